"""The demo: a kernel on an adopted NumPy array, and the receipt that shows no copy was made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.device import Device
from penstock.errors import InvalidValue
from penstock.tracing.receipt import Trace, trace

_SHADER = Path(__file__).with_name("shaders") / "saxpy.comp"


@dataclass(frozen=True)
class Outcome:
    """What the demo did."""

    device: str
    receipt: Trace
    correct: bool


def run(which: str | int | None = None, size: int = 1 << 20) -> Outcome:
    """Compute y = 2 x + y twice, in memory that NumPy owns; the receipt covers the second step."""
    if size < 1:
        raise InvalidValue(f"size must be at least 1, not {size}")
    with Device(which) as device:
        saxpy = device.kernel(_SHADER)
        numbers = device.host_empty(size, np.float32)
        numbers[:] = 1.0
        x = device.array(np.arange(size, dtype=np.float32), name="x")
        y = device.adopt(numbers, name="y")
        for _ in range(2):
            with trace() as receipt:
                saxpy(x=x, y=y, a=2.0, n=size, threads=size)
                last = float(y.view()[-1])
        expected = 4.0 * np.arange(size, dtype=np.float32) + 1.0
        correct = bool(np.array_equal(numbers, expected)) and last == float(expected[-1])
        return Outcome(device.name, receipt, correct)
