"""The jobs of a launch through Penstock, by its public interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import penstock as ps
from penstock.bench.jobs import CHAIN, SIZE, STRIDE, A, Host, Peer
from penstock.bench.measure import SHADERS, expect


class Tracked(Peer):
    """The jobs through Penstock: launches are recorded within a batch, which submits afterwards."""

    how: Mapping[str, str] = {
        "wait": "k(…), synchronize()",
        "record": "k(…) within a batch, which is submitted afterwards, untimed",
        "alternate": "k(…), k2(…) within a batch, which is submitted afterwards, untimed",
        "result": "k(…).result()",
        "array": "k(x=array), which waits",
        "trip": "x.write(source), k(…), y.numpy()",
        "chain": "k(…) each, synchronize()",
        "replay": "graph.replay(), synchronize()",
    }

    def __init__(self, device: ps.Device) -> None:
        self.device = device
        self.stream = device.default_stream
        self.saxpy, self.second, self.touch = (
            device.kernel(SHADERS / f"{name}.comp") for name in ("saxpy", "saxpy", "touch")
        )
        self.pick = device.kernel(SHADERS / "pick.comp", defines={"AS_RESULT": 1})
        self.x = device.ones(SIZE, name="x")
        self.y = device.ones(SIZE, name="y")
        self._batch: Any = None
        self._graph: ps.Graph | None = None

    def about(self) -> dict[str, str]:
        return {"version": ps.__version__, "device": self.device.name}

    def put(self, x: Host, y: Host) -> None:
        self.x.write(x)
        self.y.write(y)
        self.stream.synchronize()

    def get(self) -> Host:
        return self.y.numpy()

    def launches(self, count: int) -> None:
        saxpy, x, y = self.saxpy, self.x, self.y
        for _ in range(count):
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)

    def launches_in_turn(self, count: int) -> None:
        saxpy, second, x, y = self.saxpy, self.second, self.x, self.y
        for _ in range(count // 2):
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)
            second(x=x, y=y, a=A, n=SIZE, threads=SIZE)

    def record(self, times: int) -> None:
        self._batch = self.stream.batch()
        self._batch.__enter__()
        self.launches(times)

    def alternate(self, times: int) -> None:
        self._batch = self.stream.batch()
        self._batch.__enter__()
        self.launches_in_turn(times)

    def finish(self) -> None:
        self._batch.__exit__(None, None, None)
        self.stream.synchronize()

    def wait(self, times: int) -> None:
        saxpy, x, y, synchronize = self.saxpy, self.x, self.y, self.stream.synchronize
        for _ in range(times):
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)
            synchronize()

    def results(self, indices: Sequence[int]) -> list[float]:
        pick, x = self.pick, self.x
        return [float(pick(x=x, a=A, i=i, threads=1).result()) for i in indices]

    def call(self, array: Host) -> None:
        count = array.size // STRIDE
        self.touch(x=array, a=A, stride=STRIDE, n=count, threads=count)

    def trips(self, sources: Host) -> Sequence[Host]:
        saxpy, x, y = self.saxpy, self.x, self.y
        results = []
        for source in sources:
            x.write(source)
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)
            results.append(y.numpy())
        return results

    def chain(self) -> None:
        self.launches(CHAIN)
        self.stream.synchronize()

    def prepare_replay(self) -> None:
        if self._graph is None:
            with self.device.record() as self._graph:
                self.launches(CHAIN)

    def replay(self) -> None:
        assert self._graph is not None
        self._graph.replay()
        self.stream.synchronize()

    def checked(self, launches: int, work: Callable[[], float]) -> float:
        self.x.fill(1)
        self.y.fill(1)
        self.stream.synchronize()
        seconds = work()
        expect(bool((self.y.numpy() == 1 + launches * A).all()), "launches")
        return seconds
