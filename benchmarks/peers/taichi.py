"""Taichi and Quadrants, which began as a copy of it: kernels are Python functions.

Annotations are evaluated here, unlike elsewhere: these two read the types of a kernel from them.
Loops have constant bounds, because for others they start many times more invocations than needed.
"""

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from penstock.bench.jobs import CHAIN, LARGE, SIZE, STRIDE, A, Host, Peer

_TOUCHED = LARGE // STRIDE


class Worker(Peer):
    package: ClassVar[str] = "taichi"
    how: Mapping[str, str] = {
        "wait": "k(a) on fields, sync()",
        "record": "k(a), which submits now and then on its own",
        "result": "k(a, i), whose return value it is",
        "array": "k(array, a), sync()",
        "trip": "k(x, y, a) on NumPy arrays, sync(); y in place, and a copy of it",
        "chain": "k(a) each, sync()",
    }
    lacks: Mapping[str, str] = {}

    def __init__(self, programs: Path) -> None:
        self.ti: Any = import_module(self.package)
        self.device = self._open()
        self.x, self.y = (self.ti.field(self.ti.f32, SIZE) for _ in "xy")
        self.saxpy, self.pick, self.touch, self.trip = _kernels(self.ti, self.x, self.y)

    def _open(self) -> str:
        """Start the runtime; the device it took, which only its log says."""
        ti = self.ti
        log = _output_of(lambda: ti.init(arch=ti.vulkan, offline_cache=False, log_level=ti.TRACE))
        ti.set_logging_level(ti.WARN)
        arch = str(ti.cfg.arch).rpartition(".")[2]
        found = re.search(r'Vulkan Device "(.*?)"', log)
        return f"{found.group(1)}, its {arch} backend" if found else f"its {arch} backend"

    def about(self) -> dict[str, str]:
        return {"version": version(self.package), "device": self.device}

    def put(self, x: Host, y: Host) -> None:
        self.x.from_numpy(x)
        self.y.from_numpy(y)
        self.ti.sync()

    def get(self) -> Host:
        y: Host = self.y.to_numpy()
        return y

    def finish(self) -> None:
        self.ti.sync()

    def wait(self, times: int) -> None:
        saxpy, sync = self.saxpy, self.ti.sync
        for _ in range(times):
            saxpy(A)
            sync()

    def record(self, times: int) -> None:
        saxpy = self.saxpy
        for _ in range(times):
            saxpy(A)

    def results(self, indices: Sequence[int]) -> list[float]:
        pick = self.pick
        return [pick(A, i) for i in indices]

    def call(self, array: Host) -> None:
        self.touch(array, A)
        self.ti.sync()

    def trips(self, sources: Host) -> Sequence[Host]:
        trip, sync, y = self.trip, self.ti.sync, self.get()
        results = []
        for source in sources:
            trip(source, y, A)
            sync()
            results.append(y.copy())
        return results

    def chain(self) -> None:
        self.record(CHAIN)
        self.ti.sync()


def _kernels(ti: Any, field_x: Any, field_y: Any) -> tuple[Any, Any, Any, Any]:
    floats = ti.types.ndarray(dtype=ti.f32, ndim=1)

    @ti.kernel
    def saxpy(a: ti.f32):
        for i in range(SIZE):
            field_y[i] = a * field_x[i] + field_y[i]

    @ti.kernel
    def pick(a: ti.f32, i: ti.i32) -> ti.f32:
        return a * field_x[i]

    @ti.kernel
    def touch(x: floats, a: ti.f32):
        for i in range(_TOUCHED):
            x[i * STRIDE] += a

    @ti.kernel
    def trip(x: floats, y: floats, a: ti.f32):
        for i in range(SIZE):
            y[i] = a * x[i] + y[i]

    return saxpy, pick, touch, trip


def _output_of(call: Callable[[], Any]) -> str:
    """What a call prints, from C++ too."""
    with tempfile.TemporaryFile("w+") as caught:
        kept = os.dup(1), os.dup(2)
        try:
            os.dup2(caught.fileno(), 1)
            os.dup2(caught.fileno(), 2)
            call()
        finally:
            for number, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, number)
                os.close(copy)
        caught.seek(0)
        return caught.read()
