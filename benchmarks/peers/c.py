"""Bare Vulkan from C: the floor of every row that a device has a part in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.compiled import NoCompiler
from benchmarks.native import Native
from benchmarks.peers import cffi
from penstock.bench.jobs import CHAIN, Host, Unavailable


class Worker(cffi.Worker):
    """The preparations are cffi's; the loops that are timed are C's."""

    how: Mapping[str, str] = {
        **cffi.Worker.how,
        "array": "memcpy to mapped memory, launch, wait, memcpy back",
        "trip": "memcpy to mapped memory, launch, wait, memcpy",
    }

    def __init__(self, programs: Path) -> None:
        super().__init__(programs)
        try:
            self.native = Native(self.saxpy, self.saxpy_bound, self.groups, programs)
            self.native_pick = Native(self.pick, self.pick_bound, 1, programs)
            self.native_touch = Native(self.touch, self.touch_bound, self.touch_groups, programs)
        except NoCompiler as error:
            raise Unavailable(str(error)) from error

    def about(self) -> dict[str, str]:
        return {"version": "native.c", "device": self.device}

    def finish(self) -> None:
        self.native.call("end")
        self.native.call("run")

    def prepare_replay(self) -> None:
        self.native.call("record", CHAIN)
        self.native.call("end")

    def wait(self, times: int) -> None:
        self.native.call("wait", times)

    def record(self, times: int) -> None:
        self.native.call("record", times)

    def results(self, indices: Sequence[int]) -> list[float]:
        values = np.empty(len(indices), np.float32)
        chosen = np.array(indices, np.uint32)
        self.native_pick.call("results", len(indices), chosen, values, self.picked)
        return [float(value) for value in values]

    def call(self, array: Host) -> None:
        large = self.large
        self.native_touch.call("trips", 1, array.nbytes, array, large, large, array)

    def trips(self, sources: Host) -> Sequence[Host]:
        results = np.empty_like(sources)
        times, nbytes = len(sources), sources[0].nbytes
        self.native.call("trips", times, nbytes, sources, self.x, self.y, results)
        return list(results)

    def chain(self) -> None:
        self.native.call("chain", CHAIN)

    def replay(self) -> None:
        self.native.call("run")
