"""kp, Kompute's Python package: a C++ core with tensors, algorithms and sequences of operations."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kp
import numpy as np

from penstock.bench.jobs import CHAIN, LARGE, LOCAL_SIZE, SIZE, STRIDE, A, Host, Peer

_SAXPY = np.frombuffer(struct.pack("<fI", A, SIZE), np.uint32)


class Worker(Peer):
    how: Mapping[str, str] = {
        "wait": "sequence.eval(OpAlgoDispatch(…))",
        "record": "sequence.record(OpAlgoDispatch(…)); submitting excluded",
        "result": "eval(OpAlgoDispatch(…)), eval(OpTensorSyncLocal)",
        "array": "copyto tensor.data(), sync, dispatch, sync in one sequence, copyto",
        "trip": "copyto tensor.data(), sync, dispatch, sync in one sequence, copy",
        "chain": "sequence of OpAlgoDispatch(…), eval()",
        "replay": "eval() of a sequence that is recorded",
    }

    def __init__(self, programs: Path) -> None:
        self.manager = kp.Manager(_device(os.environ.get("PENSTOCK_PEERS_DEVICE", "")))
        self.x, self.y = (self.manager.tensor(np.ones(SIZE, np.float32)) for _ in "xy")
        self.result = self.manager.tensor(np.ones(1, np.float32))
        self.large = self.manager.tensor(np.ones(LARGE, np.float32))
        touched = LARGE // STRIDE
        self.saxpy = self._algorithm(
            programs / "saxpy.spv", [self.x, self.y], SIZE // LOCAL_SIZE, _SAXPY
        )
        picking = np.frombuffer(struct.pack("<fI", A, 0), np.uint32)
        self.pick = self._algorithm(programs / "pick.spv", [self.x, self.result], 1, picking)
        touching = np.frombuffer(struct.pack("<fII", A, STRIDE, touched), np.uint32)
        self.touch = self._algorithm(
            programs / "touch.spv", [self.large], touched // LOCAL_SIZE, touching
        )
        self.sequence = self.manager.sequence()
        self.recorded: Any = None

    def _algorithm(self, code: Path, tensors: list[Any], groups: int, push: Any) -> Any:
        return self.manager.algorithm(
            tensors, code.read_bytes(), (groups, 1, 1), np.array([], np.uint32), push
        )

    def about(self) -> dict[str, str]:
        return {
            "version": version("kp"),
            "device": self.manager.get_device_properties()["device_name"],
        }

    def put(self, x: Host, y: Host) -> None:
        np.copyto(self.x.data(), x)
        np.copyto(self.y.data(), y)
        self.sequence.eval(kp.OpTensorSyncDevice([self.x, self.y]))

    def get(self) -> Host:
        self.sequence.eval(kp.OpTensorSyncLocal([self.y]))
        y: Host = self.y.data()
        return y

    def finish(self) -> None:
        self.issued.eval()

    def prepare_replay(self) -> None:
        if self.recorded is None:
            self.record(CHAIN)
            self.recorded = self.issued

    def wait(self, times: int) -> None:
        saxpy, sequence = self.saxpy, self.sequence
        for _ in range(times):
            sequence.eval(kp.OpAlgoDispatch(saxpy, _SAXPY))

    def record(self, times: int) -> None:
        saxpy = self.saxpy
        self.issued = issued = self.manager.sequence()
        for _ in range(times):
            issued.record(kp.OpAlgoDispatch(saxpy, _SAXPY))

    def results(self, indices: Sequence[int]) -> list[float]:
        pick, result, sequence = self.pick, self.result, self.sequence
        values = []
        for i in indices:
            push = np.frombuffer(struct.pack("<fI", A, i), np.uint32)
            sequence.eval(kp.OpAlgoDispatch(pick, push))
            sequence.eval(kp.OpTensorSyncLocal([result]))
            values.append(float(result.data()[0]))
        return values

    def call(self, array: Host) -> None:
        large = self.large
        np.copyto(large.data(), array)
        self._move_and_run(large, self.touch, large)
        np.copyto(array, large.data())

    def trips(self, sources: Host) -> Sequence[Host]:
        results = []
        for source in sources:
            np.copyto(self.x.data(), source)
            self._move_and_run(self.x, self.saxpy, self.y)
            results.append(self.y.data().copy())
        return results

    def _move_and_run(self, given: Any, algorithm: Any, wanted: Any) -> None:
        sequence = self.manager.sequence()
        sequence.record(kp.OpTensorSyncDevice([given]))
        sequence.record(kp.OpAlgoDispatch(algorithm))
        sequence.record(kp.OpTensorSyncLocal([wanted]))
        sequence.eval()

    def chain(self) -> None:
        self.record(CHAIN)
        self.issued.eval()

    def replay(self) -> None:
        self.recorded.eval()


def _device(wanted: str) -> int:
    """The index of the device of that name."""
    names = [found["device_name"] for found in kp.Manager().list_devices()]
    return next((index for index, name in enumerate(names) if wanted in name), 0)
