"""pyopencl on PoCL: not Vulkan, and so another driver on the same processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyopencl as cl

from penstock.bench.jobs import CHAIN, LARGE, LOCAL_SIZE, SIZE, STRIDE, A, Host, Peer

_TOUCHED = LARGE // STRIDE
_SOURCE = """
kernel void saxpy(global const float *x, global float *y, float a, uint n) {
    uint i = get_global_id(0);
    if (i < n) y[i] = a * x[i] + y[i];
}
kernel void pick(global const float *x, global float *result, float a, uint i) {
    result[0] = a * x[i];
}
kernel void touch(global float *x, float a, uint stride, uint n) {
    uint i = get_global_id(0);
    if (i < n) x[i * stride] += a;
}
"""


class Worker(Peer):
    how: Mapping[str, str] = {
        "wait": "k(queue, …), queue.finish()",
        "record": "k(queue, …), which the driver may start",
        "result": "k(queue, …), enqueue_copy 4 bytes",
        "array": "enqueue_copy, k(queue, …), enqueue_copy",
        "trip": "enqueue_copy, k(queue, …), enqueue_copy",
        "chain": "k(queue, …) each, queue.finish()",
    }

    def __init__(self, programs: Path) -> None:
        device = cl.get_platforms()[0].get_devices()[0]
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.device = f"{device.name.strip()}, {device.version.strip()}"
        program = cl.Program(self.context, _SOURCE).build()
        # One kernel object each: looked up by name on the program, it would be made anew.
        self.saxpy = cl.Kernel(program, "saxpy")
        self.pick = cl.Kernel(program, "pick")
        self.touch = cl.Kernel(program, "touch")
        for kernel, kinds in (
            (self.saxpy, [None, None, np.float32, np.uint32]),
            (self.pick, [None, None, np.float32, np.uint32]),
            (self.touch, [None, np.float32, np.uint32, np.uint32]),
        ):
            kernel.set_scalar_arg_dtypes(kinds)
        flags = cl.mem_flags.READ_WRITE
        self.x, self.y = (cl.Buffer(self.context, flags, 4 * SIZE) for _ in "xy")
        self.result = cl.Buffer(self.context, flags, 4)
        self.large = cl.Buffer(self.context, flags, 4 * LARGE)

    def about(self) -> dict[str, str]:
        return {"version": version("pyopencl"), "device": self.device}

    def put(self, x: Host, y: Host) -> None:
        cl.enqueue_copy(self.queue, self.x, x)
        cl.enqueue_copy(self.queue, self.y, y)
        self.queue.finish()

    def get(self) -> Host:
        y = np.empty(SIZE, np.float32)
        cl.enqueue_copy(self.queue, y, self.y)
        return y

    def finish(self) -> None:
        self.queue.finish()

    def wait(self, times: int) -> None:
        saxpy, queue, x, y = self.saxpy, self.queue, self.x, self.y
        for _ in range(times):
            saxpy(queue, (SIZE,), (LOCAL_SIZE,), x, y, A, SIZE)
            queue.finish()

    def record(self, times: int) -> None:
        saxpy, queue, x, y = self.saxpy, self.queue, self.x, self.y
        for _ in range(times):
            saxpy(queue, (SIZE,), (LOCAL_SIZE,), x, y, A, SIZE)

    def results(self, indices: Sequence[int]) -> list[float]:
        pick, queue, x, result = self.pick, self.queue, self.x, self.result
        value = np.empty(1, np.float32)
        values = []
        for i in indices:
            pick(queue, (1,), (1,), x, result, A, i)
            cl.enqueue_copy(queue, value, result)
            values.append(float(value[0]))
        return values

    def call(self, array: Host) -> None:
        cl.enqueue_copy(self.queue, self.large, array)
        self.touch(self.queue, (_TOUCHED,), (LOCAL_SIZE,), self.large, A, STRIDE, _TOUCHED)
        cl.enqueue_copy(self.queue, array, self.large)

    def trips(self, sources: Host) -> Sequence[Host]:
        saxpy, queue, x, y = self.saxpy, self.queue, self.x, self.y
        results = []
        for source in sources:
            cl.enqueue_copy(queue, x, source)
            saxpy(queue, (SIZE,), (LOCAL_SIZE,), x, y, A, SIZE)
            result = np.empty(SIZE, np.float32)
            cl.enqueue_copy(queue, result, y)
            results.append(result)
        return results

    def chain(self) -> None:
        self.record(CHAIN)
        self.queue.finish()
