"""What the host pays for a launch over the stand-in: `python -m tests.hip.cost`.

Median and minimum of many launches of a kernel with little to do, in microseconds: with scalars
only, with a result that is waited for, and with a NumPy array of a million elements that is read.
The stand-in works in the call that asks for it, so that what it does is in the figures, and threads
that wake each other are not.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from tests.hip.standin import StandIn, build

_TOUCH = """
struct Result { unsigned int value; };
extern "C" __global__ void touch(unsigned int *x, unsigned int a, unsigned int b, unsigned int c) {
    x[0] = a + b + c;
}
extern "C" __global__ void ask(const unsigned int *x, unsigned int a, Result *result) {
    result->value = x[0] + a;
}
"""
_TOUCHED = "inout uint32 x, uint32 a, uint32 b, uint32 c"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        library = StandIn(build(Path(directory)))
        for integrated in (0, 1):
            settings = {"integrated": integrated, "prompt": 1}
            with library.chosen(**settings), library.device() as device:
                print(f"{device.name}, {device.info.kind}")
                _measure(device)


def _measure(device: ps.Device) -> None:
    touch = device.kernel(_TOUCH, name="touch", signature=_TOUCHED, group_size=1)
    asked = "in uint32 x, uint32 a -> uint32 value"
    ask = device.kernel(_TOUCH, name="ask", signature=asked, group_size=1)
    x = device.zeros(16, np.uint32)
    million = np.zeros(1 << 20, np.uint32)
    _report("scalars", device, lambda: touch(x=x, a=1, b=2, c=3, threads=1), 1000)
    _report("result", device, lambda: ask(x=x, a=1, threads=1).result(), 100)
    _report("1M-element array in", device, lambda: ask(x=million, a=1, threads=1), 1)


def _report(what: str, device: ps.Device, step: Callable[[], Any], times: int) -> None:
    samples = []
    for _ in range(30):
        start = time.perf_counter()
        for _ in range(times):
            step()
        samples.append((time.perf_counter() - start) / times * 1e6)
        device.synchronize()
    print(f"  {what:<20} {statistics.median(samples):8.1f} / {min(samples):.1f} µs")


if __name__ == "__main__":
    main()
