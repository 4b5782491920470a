"""slangpy: Slang shaders, compute kernels and command encoders over slang-rhi."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import slangpy as spy

from penstock.bench.jobs import CHAIN, LARGE, LOCAL_SIZE, SIZE, STRIDE, A, Host, Peer

_TOUCHED = LARGE // STRIDE
_SOURCE = f"""
[shader("compute")]
[numthreads({LOCAL_SIZE}, 1, 1)]
void saxpy(uint3 id : SV_DispatchThreadID, uniform StructuredBuffer<float> x,
           uniform RWStructuredBuffer<float> y, uniform float a, uniform uint n) {{
    if (id.x < n) y[id.x] = a * x[id.x] + y[id.x];
}}
[shader("compute")]
[numthreads(1, 1, 1)]
void pick(uniform StructuredBuffer<float> x, uniform RWStructuredBuffer<float> result,
          uniform float a, uniform uint i) {{
    result[0] = a * x[i];
}}
[shader("compute")]
[numthreads({LOCAL_SIZE}, 1, 1)]
void touch(uint3 id : SV_DispatchThreadID, uniform RWStructuredBuffer<float> x, uniform float a,
           uniform uint stride, uniform uint n) {{
    if (id.x < n) x[id.x * stride] += a;
}}
"""
_THREADS = [SIZE, 1, 1]


class Worker(Peer):
    how: Mapping[str, str] = {
        "wait": "kernel.dispatch(…), device.wait()",
        "record": "kernel.dispatch(…, command_encoder=…); submitting excluded",
        "result": "kernel.dispatch(…), result.to_numpy()",
        "array": "copy_from_numpy, kernel.dispatch(…), to_numpy, copyto",
        "trip": "copy_from_numpy, kernel.dispatch(…), to_numpy",
        "chain": "dispatches on one encoder, submit, device.wait()",
    }

    def __init__(self, programs: Path) -> None:
        kind = spy.DeviceType.vulkan
        wanted = os.environ.get("PENSTOCK_PEERS_DEVICE", "")
        found = next(a for a in spy.Device.enumerate_adapters(kind) if wanted in a.name)
        self.device = spy.Device(type=kind, adapter_luid=found.luid)
        module = self.device.load_module_from_source("peers", _SOURCE)
        self.saxpy, self.pick, self.touch = (
            self.device.create_compute_kernel(
                self.device.link_program([module], [module.entry_point(name)])
            )
            for name in ("saxpy", "pick", "touch")
        )
        self.x, self.y = (self._buffer(SIZE) for _ in "xy")
        self.result = self._buffer(1)
        self.large = self._buffer(LARGE)

    def _buffer(self, size: int) -> Any:
        usage = spy.BufferUsage.shader_resource | spy.BufferUsage.unordered_access
        return self.device.create_buffer(element_count=size, struct_size=4, usage=usage)

    def about(self) -> dict[str, str]:
        return {"version": version("slangpy"), "device": self.device.info.adapter_name}

    def close(self) -> None:
        self.device.close()

    def put(self, x: Host, y: Host) -> None:
        self.x.copy_from_numpy(x)
        self.y.copy_from_numpy(y)
        self.device.wait()

    def get(self) -> Host:
        return self.y.to_numpy().view(np.float32)

    def finish(self) -> None:
        self.device.submit_command_buffer(self.encoder.finish())
        self.device.wait()

    def wait(self, times: int) -> None:
        saxpy, x, y = self.saxpy, self.x, self.y
        for _ in range(times):
            saxpy.dispatch(_THREADS, x=x, y=y, a=A, n=SIZE)
            self.device.wait()

    def record(self, times: int) -> None:
        saxpy, x, y = self.saxpy, self.x, self.y
        self.encoder = encoder = self.device.create_command_encoder()
        for _ in range(times):
            saxpy.dispatch(_THREADS, command_encoder=encoder, x=x, y=y, a=A, n=SIZE)

    def results(self, indices: Sequence[int]) -> list[float]:
        pick, x, result = self.pick, self.x, self.result
        values = []
        for i in indices:
            pick.dispatch([1, 1, 1], x=x, result=result, a=A, i=i)
            values.append(float(result.to_numpy().view(np.float32)[0]))
        return values

    def call(self, array: Host) -> None:
        self.large.copy_from_numpy(array)
        self.touch.dispatch([_TOUCHED, 1, 1], x=self.large, a=A, stride=STRIDE, n=_TOUCHED)
        np.copyto(array, self.large.to_numpy().view(np.float32))

    def trips(self, sources: Host) -> Sequence[Host]:
        saxpy, x, y = self.saxpy, self.x, self.y
        results = []
        for source in sources:
            x.copy_from_numpy(source)
            saxpy.dispatch(_THREADS, x=x, y=y, a=A, n=SIZE)
            results.append(y.to_numpy().view(np.float32))
        return results

    def chain(self) -> None:
        self.record(CHAIN)
        self.finish()
