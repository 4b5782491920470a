"""tinygrad on its CPU device: tensor expressions, which clang compiles.

Not Vulkan. tinygrad's WEBGPU device runs on the Vulkan driver, but makes a pipeline for each launch
anew. The CPU device keeps its programs and has no queue: a launch runs the kernel on the calling
thread, and a replay is one call for each kernel. The queue that `HCQ2=1` gives it, which replays
many kernels in one call, is not documented, so it is not used here.

Tensors are made by `from_blob`, so that NumPy shares their memory: `Tensor(array)` and `numpy()`
copy, and schedule anew each time. A captured function without tensors as arguments is the faster
one to call.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from penstock.bench.jobs import CHAIN, LARGE, SIZE, STRIDE, A, Host, Peer, Unavailable, page_aligned

_CLANG = next(filter(shutil.which, ["clang", *(f"clang-{n}" for n in range(30, 13, -1))]), None)
if _CLANG is None:
    raise Unavailable("tinygrad's CPU device needs clang, which is not installed")
os.environ |= {"DEV": "CPU", "CC": _CLANG}  # read when it is imported, and when it compiles

from tinygrad import Device, Tensor, TinyJit, Variable  # noqa: E402


class Worker(Peer):
    how: Mapping[str, str] = {
        "wait": "TinyJit function of y.assign(…).realize(), synchronize()",
        "record": "TinyJit function, which runs the kernel",
        "alternate": "two TinyJit functions in turn, which run the kernels",
        "result": "TinyJit function of a bound Variable, synchronize(), a float of shared memory",
        "array": "from_blob(array), TinyJit function, synchronize()",
        "trip": "copyto shared memory, TinyJit function, synchronize(), a copy of shared memory",
        "chain": "TinyJit function each, synchronize()",
        "replay": f"one TinyJit function of the {CHAIN}, synchronize()",
    }

    def __init__(self, programs: Path) -> None:
        self.x, self.y, self.result = (page_aligned(4 * size) for size in (SIZE, SIZE, 1))
        x, y, result = (_shared(array) for array in (self.x, self.y, self.result))
        self.synchronize = Device["CPU"].synchronize
        self.index = Variable("i", 0, SIZE - 1)

        def saxpy() -> None:
            y.assign(A * x + y).realize()

        def chain() -> None:
            for _ in range(CHAIN):
                saxpy()

        def pick(i: Variable) -> None:
            result.assign((A * x[i]).reshape(1)).realize()

        def touch(large: Tensor) -> None:
            firsts = large.reshape(LARGE // STRIDE, STRIDE)[:, 0:1]
            firsts.assign(firsts + A).realize()

        self.saxpy, self.second, self.pick, self.touch, self.recorded = (
            TinyJit(function) for function in (saxpy, saxpy, pick, touch, chain)
        )
        self._capture()

    def _capture(self) -> None:
        """The first call of a TinyJit function only compiles, and the second captures."""
        large = page_aligned(4 * LARGE)
        for _ in range(2):
            self.saxpy()
            self.second()
            self.pick(self.index.bind(0))
            self.call(large)
        self.synchronize()

    def about(self) -> dict[str, str]:
        device = f"tinygrad's CPU device ({_CLANG}), on the calling thread"
        return {"version": version("tinygrad"), "device": device}

    def put(self, x: Host, y: Host) -> None:
        np.copyto(self.x, x)
        np.copyto(self.y, y)

    def get(self) -> Host:
        self.synchronize()
        return self.y.copy()

    def finish(self) -> None:
        self.synchronize()

    def prepare_replay(self) -> None:
        while self.recorded.captured is None:
            self.recorded()
        self.synchronize()

    def wait(self, times: int) -> None:
        saxpy, synchronize = self.saxpy, self.synchronize
        for _ in range(times):
            saxpy()
            synchronize()

    def record(self, times: int) -> None:
        saxpy = self.saxpy
        for _ in range(times):
            saxpy()

    def alternate(self, times: int) -> None:
        saxpy, second = self.saxpy, self.second
        for _ in range(times // 2):
            saxpy()
            second()

    def results(self, indices: Sequence[int]) -> list[float]:
        pick, bind, synchronize, result = self.pick, self.index.bind, self.synchronize, self.result
        values = []
        for i in indices:
            pick(bind(i))
            synchronize()
            values.append(float(result[0]))
        return values

    def call(self, array: Host) -> None:
        self.touch(_shared(array))
        self.synchronize()

    def trips(self, sources: Host) -> Sequence[Host]:
        saxpy, synchronize, x, y = self.saxpy, self.synchronize, self.x, self.y
        results = []
        for source in sources:
            np.copyto(x, source)
            saxpy()
            synchronize()
            results.append(y.copy())
        return results

    def chain(self) -> None:
        self.record(CHAIN)
        self.synchronize()

    def replay(self) -> None:
        self.recorded()
        self.synchronize()


def _shared(array: Host) -> Tensor:
    return Tensor.from_blob(array.ctypes.data, array.shape, device="CPU")
