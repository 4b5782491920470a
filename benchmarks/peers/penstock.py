"""Penstock, by its public interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import penstock as ps
from benchmarks.peers.peer import CHAIN, LARGE, SIZE, STRIDE, A, Host, Peer
from penstock.bench.measure import SHADERS

_TOUCHED = LARGE // STRIDE


class Worker(Peer):
    def __init__(self, programs: Path) -> None:
        self.device = device = ps.Device(os.environ.get("PENSTOCK_PEERS_DEVICE") or None)
        self.stream = device.default_stream
        self.saxpy, self.pick, self.touch = (
            device.kernel(SHADERS / f"{name}.comp") for name in ("saxpy", "pick", "touch")
        )
        self.x = device.ones(SIZE, name="x")
        self.y = device.ones(SIZE, name="y")
        self.returning_pick = device.kernel(SHADERS / "pick.comp", defines={"AS_RESULT": 1})
        self.graph: Any = None
        self.prepare()

    def prepare(self) -> None:
        self.how: dict[str, str] = {
            "wait": "k(…), synchronize()",
            "record": "k(…), which submits when the device would run dry",
            "result": "k(…).result()",
            "array": "k(x=array), which waits",
            "trip": "x.write(source), k(…), y.numpy()",
            "chain": "k(…) each, synchronize()",
            "replay": "graph.replay(), synchronize()",
        }

    def about(self) -> dict[str, str]:
        return {"version": ps.__version__, "device": self.device.name}

    def close(self) -> None:
        self.device.close()

    def put(self, x: Host, y: Host) -> None:
        self.x.write(x)
        self.y.write(y)
        self.stream.synchronize()

    def get(self) -> Host:
        return self.y.numpy()

    def finish(self) -> None:
        self.stream.synchronize()

    def wait(self, times: int) -> None:
        saxpy, x, y, synchronize = self.saxpy, self.x, self.y, self.stream.synchronize
        for _ in range(times):
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)
            synchronize()

    def record(self, times: int) -> None:
        saxpy, x, y = self.saxpy, self.x, self.y
        for _ in range(times):
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)

    def trips(self, sources: Host) -> Sequence[Host]:
        saxpy, x, y = self.saxpy, self.x, self.y
        results = []
        for source in sources:
            x.write(source)
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)
            results.append(y.numpy())
        return results

    def chain(self) -> None:
        self.record(CHAIN)
        self.stream.synchronize()

    def results(self, indices: Sequence[int]) -> list[float]:
        pick, x = self.returning_pick, self.x
        return [float(pick(x=x, a=A, i=i, threads=1).result()) for i in indices]

    def call(self, array: Host) -> None:
        self.touch(x=array, a=A, stride=STRIDE, n=_TOUCHED, threads=_TOUCHED)

    def prepare_replay(self) -> None:
        if self.graph is None:
            with self.device.record() as self.graph:
                self.record(CHAIN)

    def replay(self) -> None:
        self.graph.replay()
        self.stream.synchronize()


class ExplicitWorker(Worker):
    """The same things said call by call, as in most of the peers."""

    def prepare(self) -> None:
        self.how = {
            "record": "k(…) within a batch, which is submitted afterwards, untimed",
            "result": "k(…) into an array, float(array)",
            "array": "adopt(array), k(…), synchronize()"
            if self.device.info.can_import
            else "write(array), k(…), read(out=array)",
            "trip": "x.write(source), k(…), y.read().result()",
        }
        self.result = self.device.ones(1, name="result")
        self.large = self.device.ones(LARGE, name="large")
        self._batch: Any = None

    def record(self, times: int) -> None:
        self._batch = self.stream.batch()
        self._batch.__enter__()
        super().record(times)

    def finish(self) -> None:
        self._batch.__exit__(None, None, None)
        self.stream.synchronize()

    def results(self, indices: Sequence[int]) -> list[float]:
        pick, x, result = self.pick, self.x, self.result
        values = []
        for i in indices:
            pick(x=x, result=result, a=A, i=i, threads=1)
            values.append(float(result))
        return values

    def call(self, array: Host) -> None:
        if self.device.info.can_import:
            x = self.device.adopt(array)
            self.touch(x=x, a=A, stride=STRIDE, n=_TOUCHED, threads=_TOUCHED)
            self.stream.synchronize()
        else:
            self.large.write(array)
            self.touch(x=self.large, a=A, stride=STRIDE, n=_TOUCHED, threads=_TOUCHED)
            self.large.read(out=array).result()

    def trips(self, sources: Host) -> Sequence[Host]:
        saxpy, x, y = self.saxpy, self.x, self.y
        results = []
        for source in sources:
            x.write(source)
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)
            results.append(y.read().result())
        return results
