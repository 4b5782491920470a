"""wgpu-py: WebGPU's interface over wgpu-native, with WGSL shaders."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import wgpu

from penstock.bench.jobs import CHAIN, LARGE, LOCAL_SIZE, SIZE, STRIDE, A, Host, Peer, Unavailable

_GROUPS = SIZE // LOCAL_SIZE
_TOUCHED = LARGE // STRIDE
_STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
_UNIFORM = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST

_SAXPY = f"""
struct Scalars {{ a: f32, n: u32 }}
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> scalars: Scalars;
@compute @workgroup_size({LOCAL_SIZE})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let i = id.x;
    if (i < scalars.n) {{ y[i] = scalars.a * x[i] + y[i]; }}
}}
"""
_PICK = """
struct Scalars { a: f32, i: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> result: array<f32>;
@group(0) @binding(2) var<uniform> scalars: Scalars;
@compute @workgroup_size(1)
fn main() { result[0] = scalars.a * x[scalars.i]; }
"""
_TOUCH = f"""
struct Scalars {{ a: f32, stride: u32, n: u32 }}
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<uniform> scalars: Scalars;
@compute @workgroup_size({LOCAL_SIZE})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let i = id.x;
    if (i < scalars.n) {{ x[i * scalars.stride] = x[i * scalars.stride] + scalars.a; }}
}}
"""


class Worker(Peer):
    how: Mapping[str, str] = {
        "wait": "encode a pass of one dispatch, submit, wait",
        "record": "set_pipeline, set_bind_group, dispatch in one pass; submitting excluded",
        "result": "write_buffer the index, encode, submit, read_buffer 4 bytes",
        "array": "write_buffer, encode, submit, read_buffer",
        "trip": "write_buffer, encode, submit, read_buffer",
        "chain": "one pass of dispatches, submit, wait",
    }
    lacks: Mapping[str, str] = {"replay": "command buffers can be submitted once"}

    def __init__(self, programs: Path) -> None:
        wanted = os.environ.get("PENSTOCK_PEERS_DEVICE", "")
        adapters = [
            adapter
            for adapter in wgpu.gpu.enumerate_adapters_sync()
            if adapter.info["backend_type"] == "Vulkan" and wanted in adapter.info["device"]
        ]
        if not adapters:
            raise Unavailable("wgpu finds no Vulkan adapter of that name")
        self.info = adapters[0].info
        self.device: Any = adapters[0].request_device_sync()
        self.queue: Any = self.device.queue
        # The only public wait, on_submitted_work_done_sync, raises TypeError in 0.32.
        self._wait_for_all = self.device._poll_wait
        self.x, self.y = (self.device.create_buffer(size=4 * SIZE, usage=_STORAGE) for _ in "xy")
        self.result = self.device.create_buffer(size=4, usage=_STORAGE)
        self.large = self.device.create_buffer(size=4 * LARGE, usage=_STORAGE)
        self.saxpy = self._kernel(_SAXPY, [self.x, self.y], struct.pack("<fI", A, SIZE))
        self.index = self._uniform(struct.pack("<fI", A, 0))
        self.pick = self._kernel(_PICK, [self.x, self.result], self.index)
        scalars = struct.pack("<fII", A, STRIDE, _TOUCHED)
        self.touch = self._kernel(_TOUCH, [self.large], scalars)

    def _uniform(self, scalars: bytes) -> Any:
        return self.device.create_buffer_with_data(data=scalars, usage=_UNIFORM)

    def _kernel(self, code: str, buffers: list[Any], scalars: Any) -> tuple[Any, Any]:
        """A pipeline, and the bind group of these buffers and scalars."""
        module = self.device.create_shader_module(code=code)
        pipeline = self.device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        if isinstance(scalars, bytes):
            scalars = self._uniform(scalars)
        entries = [
            {"binding": number, "resource": {"buffer": buffer}}
            for number, buffer in enumerate([*buffers, scalars])
        ]
        layout = pipeline.get_bind_group_layout(0)
        return pipeline, self.device.create_bind_group(layout=layout, entries=entries)

    def about(self) -> dict[str, str]:
        device = f"{self.info['device']}, {self.info['backend_type']}"
        return {"version": version("wgpu"), "device": device}

    def put(self, x: Host, y: Host) -> None:
        self.queue.write_buffer(self.x, 0, x)
        self.queue.write_buffer(self.y, 0, y)
        self._wait_for_all()

    def get(self) -> Host:
        return np.frombuffer(self.queue.read_buffer(self.y), np.float32)

    def _launch(self, kernel: tuple[Any, Any], groups: int) -> None:
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(kernel[0])
        compute.set_bind_group(0, kernel[1])
        compute.dispatch_workgroups(groups)
        compute.end()
        self.queue.submit([encoder.finish()])

    def finish(self) -> None:
        self.compute.end()
        self.queue.submit([self.encoder.finish()])
        self._wait_for_all()

    def wait(self, times: int) -> None:
        for _ in range(times):
            self._launch(self.saxpy, _GROUPS)
            self._wait_for_all()

    def record(self, times: int) -> None:
        self.encoder = self.device.create_command_encoder()
        self.compute = compute = self.encoder.begin_compute_pass()
        pipeline, group = self.saxpy
        for _ in range(times):
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(_GROUPS)

    def results(self, indices: Sequence[int]) -> list[float]:
        queue, pick, result = self.queue, self.pick, self.result
        values = []
        for i in indices:
            queue.write_buffer(self.index, 0, struct.pack("<fI", A, i))
            self._launch(pick, 1)
            values.append(queue.read_buffer(result).cast("f")[0])
        return values

    def call(self, array: Host) -> None:
        self.queue.write_buffer(self.large, 0, array)
        self._launch(self.touch, _TOUCHED // LOCAL_SIZE)
        np.copyto(array, np.frombuffer(self.queue.read_buffer(self.large), np.float32))

    def trips(self, sources: Host) -> Sequence[Host]:
        queue, x, y = self.queue, self.x, self.y
        results = []
        for source in sources:
            queue.write_buffer(x, 0, source)
            self._launch(self.saxpy, _GROUPS)
            results.append(np.frombuffer(queue.read_buffer(y), np.float32))
        return results

    def chain(self) -> None:
        self.record(CHAIN)
        self.finish()
