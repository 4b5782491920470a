"""Bare Vulkan from Python: every structure prebuilt, nothing tracked, nothing checked."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.peers.peer import CHAIN, LARGE, LOCAL_SIZE, SIZE, STRIDE, A, Host, Peer
from penstock.bench.raw import Raw


class Worker(Peer):
    how: Mapping[str, str] = {
        "wait": "record, end, submit, wait for a timeline semaphore",
        "record": "begin and five calls per launch; submitting excluded",
        "result": "record, submit, wait, read mapped memory",
        "array": "copyto mapped memory, launch, wait, copyto back",
        "trip": "copyto mapped memory, launch, wait, copy",
        "chain": "record, submit, wait",
        "replay": "submit the recorded command buffer, wait",
    }

    def __init__(self, programs: Path) -> None:
        self.device = os.environ["PENSTOCK_PEERS_DEVICE"]
        saxpy, pick, touch = (
            (programs / f"{name}.spv").read_bytes() for name in ("saxpy", "pick", "touch")
        )
        constants = struct.pack("<fI", A, SIZE)
        self.saxpy = Raw(self.device, saxpy, constants, bindings=2, arrays=2, nbytes=4 * SIZE)
        constants = struct.pack("<fI", A, 0)
        self.pick = Raw(self.device, pick, constants, bindings=2, arrays=2, nbytes=4 * SIZE)
        constants = struct.pack("<fII", A, STRIDE, LARGE // STRIDE)
        self.touch = Raw(self.device, touch, constants, bindings=1, arrays=1, nbytes=4 * LARGE)
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

    def results(self, indices: Sequence[int]) -> list[float]:
        raw, bound, constants, left = (
            self.pick,
            [self.pick_bound],
            self.pick.constants(),
            self.picked,
        )
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
