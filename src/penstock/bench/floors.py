"""The floors that launches are compared with: bare Vulkan calls from Python, and NumPy copies."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import numpy as np

from penstock.bench.jobs import (
    CHAIN,
    LARGE,
    LAUNCHES,
    LOCAL_SIZE,
    SIZE,
    STRIDE,
    A,
    Host,
    Peer,
    page_aligned,
)
from penstock.bench.measure import SHADERS
from penstock.bench.raw import Raw
from penstock.shader.glsl import compile_glsl


def programs() -> dict[str, bytes]:
    """The kernels as SPIR-V, for runtimes that take nothing else."""
    return {
        name: compile_glsl((SHADERS / f"{name}.comp").read_text(), name=name)
        for name in ("saxpy", "pick", "touch")
    }


class Bare(Peer):
    """Every structure prebuilt, nothing tracked, nothing checked. `programs`: SPIR-V by name.

    Array 0 of saxpy is x, array 1 is y, and the rest are the ys of launches that need no barrier.
    """

    how: Mapping[str, str] = {
        "wait": "record, end, submit, wait for a timeline semaphore",
        "record": "begin and five calls per launch; submitting excluded",
        "alternate": "the same calls: five per launch, whichever the kernel",
        "result": "record, submit, wait, read mapped memory",
        "array": "copyto mapped memory, launch, wait, copyto back",
        "trip": "copyto mapped memory, launch, wait, copy",
        "chain": "record, submit, wait",
        "replay": "submit the recorded command buffer, wait",
    }

    def __init__(self, device: str, programs: Mapping[str, bytes]) -> None:
        self.device = device

        def raw(name: str, constants: bytes, bindings: int, arrays: int, floats: int) -> Raw:
            code = programs[name]
            return Raw(device, code, constants, bindings=bindings, arrays=arrays, nbytes=4 * floats)

        self.saxpy = raw("saxpy", struct.pack("<fI", A, SIZE), 2, 2 + LAUNCHES, SIZE)
        self.pick = raw("pick", struct.pack("<fI", A, 0), 2, 2, SIZE)
        self.touch = raw("touch", struct.pack("<fII", A, STRIDE, LARGE // STRIDE), 1, 1, LARGE)
        self.x, self.y = self.saxpy.host(0), self.saxpy.host(1)
        self.picked_from, self.picked = self.pick.host(0), self.pick.host(1)
        self.large = self.touch.host(0)
        self.groups = SIZE // LOCAL_SIZE
        self.touch_groups = LARGE // STRIDE // LOCAL_SIZE
        self.saxpy_bound = self.saxpy.bind(0, 1)
        self.pick_bound = self.pick.bind(0, 1)
        self.touch_bound = self.touch.bind(0)

    def about(self) -> dict[str, str]:
        return {"version": f"vulkan {version('vulkan')}", "device": self.device}

    def put(self, x: Host, y: Host) -> None:
        np.copyto(self.x, x)
        np.copyto(self.picked_from, x)
        np.copyto(self.y, y)

    def get(self) -> Host:
        return self.y

    def finish(self) -> None:
        self.saxpy.end()
        self.saxpy.submit_and_wait()

    def prepare_replay(self) -> None:
        self.record(CHAIN)
        self.saxpy.end()

    def wait(self, times: int) -> None:
        raw, bound, groups = self.saxpy, [self.saxpy_bound], self.groups
        for _ in range(times):
            raw.record(bound, groups, barriers=True)
            raw.end()
            raw.submit_and_wait()

    def record(self, times: int) -> None:
        self.saxpy.record([self.saxpy_bound] * times, self.groups, barriers=True)

    def alternate(self, times: int) -> None:
        self.record(times)  # which binds the pipeline for every launch

    def results(self, indices: Sequence[int]) -> list[float]:
        raw, bound, left = self.pick, [self.pick_bound], self.picked
        constants = raw.constants()
        values = []
        for index in indices:
            struct.pack_into("<I", constants, 4, index)
            raw.record(bound, 1, barriers=True)
            raw.end()
            raw.submit_and_wait()
            values.append(float(left[0]))
        return values

    def call(self, array: Host) -> None:
        np.copyto(self.large, array)
        self.touch.record([self.touch_bound], self.touch_groups, barriers=True)
        self.touch.end()
        self.touch.submit_and_wait()
        np.copyto(array, self.large)

    def trips(self, sources: Host) -> Sequence[Host]:
        results = []
        for source in sources:
            np.copyto(self.x, source)
            self.wait(1)
            results.append(self.y.copy())
        return results

    def chain(self) -> None:
        self.record(CHAIN)
        self.finish()

    def replay(self) -> None:
        self.saxpy.submit_and_wait()

    def close(self) -> None:
        del self.x, self.y, self.picked_from, self.picked, self.large
        for raw in (self.saxpy, self.pick, self.touch):
            raw.close()


class Copies(Peer):
    """No device at all: the two copies that a NumPy array must make to a device and back."""

    how: Mapping[str, str] = {"array": "two copytos of the array and nothing else"}

    def __init__(self) -> None:
        self.memory = page_aligned(4 * LARGE)

    def about(self) -> dict[str, str]:
        return {"version": np.__version__, "device": "none"}

    def call(self, array: Host) -> None:
        np.copyto(self.memory, array)
        self.memory[::STRIDE] += np.float32(A)
        np.copyto(array, self.memory)
