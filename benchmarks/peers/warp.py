"""NVIDIA Warp on its CPU device: kernels are Python functions, compiled by the LLVM it brings.

Not Vulkan, and no queue: a launch runs the kernel on the calling thread and returns when it is
done, so there is nothing to wait for. Launches are recorded once (`record_cmd=True`), and NumPy
shares the memory of arrays: both are Warp's own advice.

Annotations are evaluated here, unlike elsewhere: Warp reads the types of a kernel from them.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

from penstock.bench.jobs import CHAIN, LARGE, SIZE, STRIDE, A, Host, Peer

wp.config.enable_backward = False  # no gradients are asked for
_DEVICE = "cpu"
_FLOATS = wp.array(dtype=wp.float32)


@wp.kernel
def saxpy(x: _FLOATS, y: _FLOATS, a: wp.float32):
    i = wp.tid()
    y[i] = a * x[i] + y[i]


@wp.kernel
def second(x: _FLOATS, y: _FLOATS, a: wp.float32):
    i = wp.tid()
    y[i] = a * x[i] + y[i]


@wp.kernel
def pick(x: _FLOATS, result: _FLOATS, a: wp.float32, i: wp.int32):
    result[0] = a * x[i]


@wp.kernel
def touch(x: _FLOATS, a: wp.float32, stride: wp.int32):
    i = wp.tid() * stride
    x[i] = x[i] + a


class Worker(Peer):
    how: Mapping[str, str] = {
        "wait": "command.launch(), which runs the kernel; synchronize()",
        "record": "command.launch(), which runs the kernel",
        "alternate": "command.launch() of two in turn, which run the kernels",
        "result": "set_param_at_index_from_ctype(i), command.launch(), a float of shared memory",
        "array": "set_param_at_index(array), command.launch(), in place",
        "trip": "copyto shared memory, command.launch(), a copy of shared memory",
        "chain": "command.launch() each, synchronize()",
        "replay": "capture_launch(graph), synchronize()",
    }

    def __init__(self, programs: Path) -> None:
        x, y, result, large = (
            wp.zeros(size, dtype=wp.float32, device=_DEVICE) for size in (SIZE, SIZE, 1, LARGE)
        )
        self.x, self.y, self.result = x.numpy(), y.numpy(), result.numpy()  # the same memory
        self.saxpy = _command(saxpy, SIZE, [x, y, A])
        self.second = _command(second, SIZE, [x, y, A])
        self.pick = _command(pick, 1, [x, result, A, 0])
        self.touch = _command(touch, LARGE // STRIDE, [large, A, STRIDE])
        self.graph: Any = None

    def about(self) -> dict[str, str]:
        device = f"Warp's {_DEVICE} device, on the calling thread"
        return {"version": version("warp-lang"), "device": device}

    def put(self, x: Host, y: Host) -> None:
        np.copyto(self.x, x)
        np.copyto(self.y, y)

    def get(self) -> Host:
        return self.y.copy()

    def finish(self) -> None:
        wp.synchronize()

    def prepare_replay(self) -> None:
        if self.graph is None:
            with wp.ScopedCapture(device=_DEVICE) as capture:
                self.record(CHAIN)
            self.graph = capture.graph

    def wait(self, times: int) -> None:
        command = self.saxpy
        for _ in range(times):
            command.launch()
            wp.synchronize()

    def record(self, times: int) -> None:
        command = self.saxpy
        for _ in range(times):
            command.launch()

    def alternate(self, times: int) -> None:
        one, other = self.saxpy, self.second
        for _ in range(times // 2):
            one.launch()
            other.launch()

    def results(self, indices: Sequence[int]) -> list[float]:
        command, result = self.pick, self.result
        values = []
        for i in indices:
            command.set_param_at_index_from_ctype(3, i)
            command.launch()
            values.append(float(result[0]))
        return values

    def call(self, array: Host) -> None:
        self.touch.set_param_at_index(0, array)
        self.touch.launch()

    def trips(self, sources: Host) -> Sequence[Host]:
        command, x, y = self.saxpy, self.x, self.y
        results = []
        for source in sources:
            np.copyto(x, source)
            command.launch()
            results.append(y.copy())
        return results

    def chain(self) -> None:
        self.record(CHAIN)
        wp.synchronize()

    def replay(self) -> None:
        wp.capture_launch(self.graph)
        wp.synchronize()


def _command(kernel: Any, invocations: int, arguments: list[Any]) -> Any:
    """A launch that is not made yet, whose `launch` packs no arguments again."""
    return wp.launch(kernel, invocations, inputs=arguments, device=_DEVICE, record_cmd=True)
