"""Penstock, by its public interface."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import penstock as ps
from penstock.bench.jobs import LARGE, SIZE, STRIDE, A, Host
from penstock.bench.measure import SHADERS
from penstock.bench.tracked import Tracked


class ExplicitWorker(Tracked):
    """Transfers and batches said call by call, as in most of the peers."""

    def __init__(self, programs: Path) -> None:
        super().__init__(ps.Device(os.environ.get("PENSTOCK_PEERS_DEVICE") or None))
        imports = self.device.info.can_import
        self.how: Mapping[str, str] = {
            "record": Tracked.how["record"],
            "alternate": Tracked.how["alternate"],
            "result": "k(…) into an array, float(array)",
            "array": "adopt(array), k(…), synchronize()"
            if imports
            else "write(array), k(…), read(out=array)",
            "trip": "x.write(source), k(…), y.read().result()",
        }
        self.pick_into = self.device.kernel(SHADERS / "pick.comp")
        self.result = self.device.ones(1, name="result")
        self.large = self.device.ones(LARGE, name="large")

    def close(self) -> None:
        self.device.close()

    def results(self, indices: Sequence[int]) -> list[float]:
        pick, x, result = self.pick_into, self.x, self.result
        values = []
        for i in indices:
            pick(x=x, result=result, a=A, i=i, threads=1)
            values.append(float(result))
        return values

    def call(self, array: Host) -> None:
        count = array.size // STRIDE
        if self.device.info.can_import:
            x = self.device.adopt(array)
            self.touch(x=x, a=A, stride=STRIDE, n=count, threads=count)
            self.stream.synchronize()
        else:
            self.large.write(array)
            self.touch(x=self.large, a=A, stride=STRIDE, n=count, threads=count)
            self.large.read(out=array).result()

    def trips(self, sources: Host) -> Sequence[Host]:
        saxpy, x, y = self.saxpy, self.x, self.y
        results = []
        for source in sources:
            x.write(source)
            saxpy(x=x, y=y, a=A, n=SIZE, threads=SIZE)
            results.append(y.read().result())
        return results


class Worker(Tracked):
    """What a user writes first: nothing is said that Penstock does by itself."""

    how: Mapping[str, str] = {
        **Tracked.how,
        "record": "k(…), which submits when the device would run dry",
        "alternate": "k(…), k2(…), which submit when the device would run dry",
    }

    def __init__(self, programs: Path) -> None:
        super().__init__(ps.Device(os.environ.get("PENSTOCK_PEERS_DEVICE") or None))

    def close(self) -> None:
        self.device.close()

    def record(self, times: int) -> None:
        self.launches(times)

    def alternate(self, times: int) -> None:
        self.launches_in_turn(times)

    def finish(self) -> None:
        self.stream.synchronize()
