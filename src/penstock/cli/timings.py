"""The timings of a report: a launch, an operation beside NumPy's, and transfers.

`penstock doctor --report` runs this module in a process of its own, so that a driver that crashes
does not take the report with it. It prints one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from penstock.device import Device

ELEMENTS = 1 << 22
_LAUNCHES, _REPEATS = 300, 9
_SHADER = Path(__file__).with_name("shaders") / "saxpy.comp"
_HIP_TEXT, _HIP_SIGNATURE = "y[i] = a * x[i] + y[i]", "in float32 x, inout float32 y, float32 a"


@dataclass(frozen=True)
class Timings:
    """Medians, in seconds, and how many elements of float32 the last four are for."""

    launch: float  # a kernel on 64 elements, until the host knows that it is done
    add: float  # x + y, until it is done
    add_numpy: float
    write: float  # from NumPy's memory to the device's
    read: float
    elements: int

    def rate(self, seconds: float) -> float:
        """The transfer rate of all elements, in bytes per second."""
        return 4 * self.elements / max(seconds, 1e-9)


def measure(which: str | int | None, driver: str, elements: int = ELEMENTS) -> Timings:
    """Time a device. Opens it, and blocks until everything is done."""
    with Device(which, driver=driver) as device:
        numbers = np.arange(elements, dtype=np.float32)
        x, y = device.array(numbers), device.array(numbers)
        target = np.empty_like(numbers)

        def add() -> None:
            x + y
            device.synchronize()

        def write() -> None:
            x.write(numbers)
            device.synchronize()

        return Timings(
            launch=_launch(device),
            add=_median(add, _REPEATS),
            add_numpy=_median(lambda: numbers + numbers, _REPEATS),
            write=_median(write, _REPEATS),
            read=_median(lambda: x.read(out=target).result(), _REPEATS),
            elements=elements,
        )


def _launch(device: Device) -> float:
    x, y = device.zeros(64, np.float32), device.zeros(64, np.float32)
    if device.info.driver == "vulkan":
        kernel = device.kernel(_SHADER)

        def once() -> None:
            kernel(x=x, y=y, a=2.0, n=64, threads=64)
            device.synchronize()
    else:
        saxpy = device.elementwise(_HIP_TEXT, _HIP_SIGNATURE)

        def once() -> None:
            saxpy(x=x, y=y, a=2.0)
            device.synchronize()

    return _median(once, _LAUNCHES)


def _median(work: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])  # the first one compiles and allocates


def main(words: list[str]) -> int:
    """Measure the device with this number, of this driver."""
    which, driver, elements = words
    try:
        print(json.dumps(asdict(measure(int(which), driver, int(elements)))))
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # whatever it is, the report tells of it
        print(json.dumps({"problem": f"{type(error).__name__}: {error}"}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
