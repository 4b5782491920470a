"""What the host pays for a launch over the stand-in: `python -m tests.hip.cost`.

Median and minimum of many launches of a kernel with little to do, in microseconds, beside the aim:
what the same launch costs in Quadrants. The launches are with scalars only, with a result that is
waited for, and with a NumPy array of a million elements that the kernel reads, or writes and the
call therefore waits for. The stand-in works in the call that asks for it, so that what it does is
in the figures, and threads that wake each other are not.

Of scalars and results the aim is what Quadrants took over a stand-in of its own. An array's time is
that of the memory, which differs by machine: its aim is what Quadrants does to memory for such an
argument, read or written (allocate, clear, copy in, copy out, free), measured here in the same
rounds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
_ROUNDS = 100
_TOUCHED = "inout uint32 x, uint32 a, uint32 b, uint32 c"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        library = StandIn(build(Path(directory)))
        for integrated in (0, 1):
            settings = {"integrated": integrated, "prompt": 1}
            with library.chosen(**settings), library.device() as device:
                memory = "memory of its own" if not integrated else "the host's memory (APU)"
                print(f"{memory:<26} median  minimum      aim  median, minimum / aim")
                _measure(device)


_QUADRANTS = {"scalars": 11.0, "result": 14.0}  #: by launch: microseconds


def _measure(device: ps.Device) -> None:
    touch = device.kernel(_TOUCH, name="touch", signature=_TOUCHED, group_size=1)
    asked = "in uint32 x, uint32 a -> uint32 value"
    ask = device.kernel(_TOUCH, name="ask", signature=asked, group_size=1)
    x = device.zeros(16, np.uint32)
    million = np.arange(1 << 20, dtype=np.uint32)
    launches: dict[str, tuple[Callable[[], Any], int]] = {
        "scalars": (lambda: touch(x=x, a=1, b=2, c=3, threads=1), 1000),
        "result": (lambda: ask(x=x, a=1, threads=1).result(), 100),
        "1M array, read": (lambda: ask(x=million, a=1, threads=1), 1),
        "1M array, written": (lambda: touch(x=million, a=1, b=2, c=3, threads=1), 1),
    }
    for what, (step, times) in launches.items():
        samples, theirs = [], []
        for _ in range(_ROUNDS):
            samples.append(_time(step, times))
            device.synchronize()
            aim = _QUADRANTS.get(what)
            theirs.append(_time(lambda: _carry_as_quadrants(million), 1) if aim is None else aim)
        median, least = statistics.median(samples), min(samples)
        ratios = f"{median / statistics.median(theirs):7.2f} {least / min(theirs):7.2f}"
        print(f"  {what:<23} {median:7.1f} {least:8.1f} {min(theirs):8.1f} {ratios}")


def _time(step: Callable[[], Any], times: int) -> float:
    """Microseconds of one step, the mean of `times` in a row."""
    start = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - start) / times * 1e6


def _carry_as_quadrants(host: NDArray[np.uint32]) -> None:
    """Take a host array to memory made for one launch, and back."""
    memory = np.empty_like(host)
    memory.fill(0)
    np.copyto(memory, host)
    np.copyto(host, memory)


if __name__ == "__main__":
    main()
