"""hephaistos: a C++ core, with commands, sequences and subroutines of them."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import hephaistos as hp
import numpy as np

from penstock.bench.jobs import CHAIN, LARGE, LOCAL_SIZE, SIZE, STRIDE, A, Host, Peer

_GROUPS = SIZE // LOCAL_SIZE
_SAXPY = struct.pack("<fI", A, SIZE)


class Worker(Peer):
    how: Mapping[str, str] = {
        "wait": "execute(program.dispatchPush(…)); buffers were bound before",
        "record": "sequence.Then(program.dispatchPush(…)); submitting excluded",
        "alternate": "sequence.Then(…) of two programs; submitting excluded",
        "result": "execute(…), retrieve 4 bytes from a mapped tensor",
        "array": "update a mapped tensor, execute(…), retrieve it",
        "trip": "update a mapped tensor, execute(…), retrieve another",
        "chain": "sequence of Then(…), Submit().wait()",
        "replay": "execute(subroutine)",
    }

    def __init__(self, programs: Path) -> None:
        wanted = os.environ.get("PENSTOCK_PEERS_DEVICE", "")
        names = [device.name for device in hp.enumerateDevices()]
        hp.selectDevice(next(i for i, name in enumerate(names) if wanted in name))
        self.saxpy, self.second, self.pick, self.touch = (
            hp.Program((programs / f"{name}.spv").read_bytes())
            for name in ("saxpy", "saxpy", "pick", "touch")
        )
        self.x, self.y = hp.FloatTensor(SIZE, mapped=True), hp.FloatTensor(SIZE, mapped=True)
        self.result = hp.FloatTensor(1, mapped=True)
        self.large = hp.FloatTensor(LARGE, mapped=True)
        self.saxpy.bindParams(self.x, self.y)
        self.second.bindParams(self.x, self.y)
        self.pick.bindParams(self.x, self.result)
        self.touch.bindParams(self.large)
        self.subroutine = None

    def about(self) -> dict[str, str]:
        return {"version": version("hephaistos"), "device": hp.getCurrentDevice().name}

    def put(self, x: Host, y: Host) -> None:
        self.x.update(x.ctypes.data, x.nbytes)
        self.y.update(y.ctypes.data, y.nbytes)

    def get(self) -> Host:
        y = np.empty(SIZE, np.float32)
        self.y.retrieve(y.ctypes.data, y.nbytes)
        return y

    def finish(self) -> None:
        self.sequence.Submit().wait()

    def prepare_replay(self) -> None:
        if self.subroutine is None:
            commands = [self.saxpy.dispatchPush(_SAXPY, _GROUPS) for _ in range(CHAIN)]
            self.subroutine = hp.createSubroutine(commands)

    def wait(self, times: int) -> None:
        saxpy = self.saxpy
        for _ in range(times):
            push = struct.pack("<fI", A, SIZE)  # a command points to it
            hp.execute(saxpy.dispatchPush(push, _GROUPS))

    def record(self, times: int) -> None:
        saxpy = self.saxpy
        self.sequence = sequence = hp.beginSequence()
        for _ in range(times):
            sequence.Then(saxpy.dispatchPush(struct.pack("<fI", A, SIZE), _GROUPS))

    def alternate(self, times: int) -> None:
        saxpy, second = self.saxpy, self.second
        self.sequence = sequence = hp.beginSequence()
        for _ in range(times // 2):
            sequence.Then(saxpy.dispatchPush(struct.pack("<fI", A, SIZE), _GROUPS))
            sequence.Then(second.dispatchPush(struct.pack("<fI", A, SIZE), _GROUPS))

    def results(self, indices: Sequence[int]) -> list[float]:
        pick, result = self.pick, self.result
        value = np.empty(1, np.float32)
        address = value.ctypes.data
        values = []
        for i in indices:
            hp.execute(pick.dispatchPush(struct.pack("<fI", A, i), 1))
            result.retrieve(address, value.nbytes)
            values.append(float(value[0]))
        return values

    def call(self, array: Host) -> None:
        touched = LARGE // STRIDE
        self.large.update(array.ctypes.data, array.nbytes)
        push = struct.pack("<fII", A, STRIDE, touched)
        hp.execute(self.touch.dispatchPush(push, touched // LOCAL_SIZE))
        self.large.retrieve(array.ctypes.data, array.nbytes)

    def trips(self, sources: Host) -> Sequence[Host]:
        saxpy = self.saxpy
        results = []
        for source in sources:
            self.x.update(source.ctypes.data, source.nbytes)
            hp.execute(saxpy.dispatchPush(struct.pack("<fI", A, SIZE), _GROUPS))
            y = np.empty(SIZE, np.float32)
            self.y.retrieve(y.ctypes.data, y.nbytes)
            results.append(y)
        return results

    def chain(self) -> None:
        self.record(CHAIN)
        self.sequence.Submit().wait()

    def replay(self) -> None:
        hp.execute(self.subroutine)
