"""The jobs by which launches are measured, and what a runtime must implement to run them (`Peer`).

`penstock bench runtime` runs them on Penstock and by bare driver calls; `python -m benchmarks
peers` also on other runtimes, each in its own process and environment. All use the same code for
the timing and for the check of the values: a wrong value has no valid time. Peers load this module
where Penstock is not installed, so it needs only NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.bench.measure import expect, timed

Host = npt.NDArray[np.float32]

SIZE = 1024  # floats in x and y
A = 0.5
LOCAL_SIZE = 256  # invocations in a group of saxpy and touch
LARGE = 1 << 20  # floats in the large array
STRIDE = 1024  # floats from one touched element to the next: a page
CHAIN = 300  # launches of the chain, and of its recording
TRIPS = 20  # waits, results and round trips in one timed sample
LAUNCHES = 100  # recorded in one timed sample; few enough that Penstock submits none by itself
PAGE = 4096

_random = np.random.default_rng()


class Unavailable(Exception):
    """This runtime does not run here; the text says why."""


class Peer:
    """A runtime with x and y of `SIZE` floats on its device, and the kernels saxpy, pick, touch.

    It does things as its own users would, in the fastest way that is documented; `how` says which,
    and what the time includes. A job that `how` does not name is one that the runtime cannot do.
    Methods that take `times` or a sequence are timed as a whole: the loop is inside, so that each
    runtime pays only for what its user would write. Values are set and fetched untimed.
    """

    #: What is done for each job that can be done, in a few words.
    how: Mapping[str, str] = {}
    #: Why a job cannot be done, where there is more to say than that there is no such thing.
    lacks: Mapping[str, str] = {}

    def about(self) -> dict[str, str]:
        """The version, the device that is really used, and what else a reader should know."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything."""

    # Untimed.

    def put(self, x: Host, y: Host) -> None:
        """Set x and y, and be idle."""
        raise NotImplementedError

    def get(self) -> Host:
        """The values of y, when everything issued is done."""
        raise NotImplementedError

    def finish(self) -> None:
        """Run to its end what `record` or `alternate` left."""
        raise NotImplementedError

    def prepare_replay(self) -> None:
        """Record `CHAIN` dependent launches of saxpy once."""
        raise NotImplementedError

    # Timed.

    def wait(self, times: int) -> None:
        """Launch saxpy and wait for it, again and again."""
        raise NotImplementedError

    def record(self, times: int) -> None:
        """Launch saxpy again and again and wait for nothing."""
        raise NotImplementedError

    def alternate(self, times: int) -> None:
        """The same with two kernels in turn: saxpy, and saxpy made a second time."""
        raise NotImplementedError

    def results(self, indices: Sequence[int]) -> list[float]:
        """Launch pick for each index, and have its value before the next."""
        raise NotImplementedError

    def call(self, array: Host) -> None:
        """Launch touch on a plain NumPy array, in place; the array has the outcome on return."""
        raise NotImplementedError

    def trips(self, sources: Host) -> Sequence[Host]:
        """For each row of the sources: copy it to x, launch saxpy, and have a copy of y."""
        raise NotImplementedError

    def chain(self) -> None:
        """Issue `CHAIN` dependent launches of saxpy, and wait for the last."""
        raise NotImplementedError

    def replay(self) -> None:
        """Run what `prepare_replay` recorded, and wait for it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Job:
    """`run` does it on a peer, checks the values, and returns the seconds of one unit."""

    title: str
    run: Callable[[Peer], float]
    floor: str = "c"  # the peer that others are compared with


def _launched(peer: Peer, times: int, work: Callable[..., Any], *arguments: int) -> float:
    """Seconds of `work`, which launches saxpy `times` times on a y of ones."""
    x = _input(SIZE)
    peer.put(x, np.ones(SIZE, np.float32))
    seconds = timed(1, work, *arguments)
    if work in (peer.record, peer.alternate):
        peer.finish()
    expect(bool((peer.get() == 1 + times * np.float32(A) * x).all()), "a launch")
    return seconds


def _wait(peer: Peer) -> float:
    return _launched(peer, TRIPS, peer.wait, TRIPS) / TRIPS


def _record(peer: Peer) -> float:
    return _launched(peer, LAUNCHES, peer.record, LAUNCHES) / LAUNCHES


def _alternate(peer: Peer) -> float:
    return _launched(peer, LAUNCHES, peer.alternate, LAUNCHES) / LAUNCHES


def _result(peer: Peer) -> float:
    x = _input(SIZE)
    peer.put(x, np.ones(SIZE, np.float32))
    indices = [int(i) for i in _random.integers(0, SIZE, TRIPS)]
    start = time.perf_counter()
    values = peer.results(indices)
    seconds = (time.perf_counter() - start) / TRIPS
    expect(values == [A * x[i] for i in indices], "a launch with a result")
    return seconds


def _array(peer: Peer) -> float:
    before = _random.random(LARGE, dtype=np.float32)
    array = page_aligned(before.nbytes)
    array[:] = before
    seconds = timed(1, peer.call, array)
    before[::STRIDE] += np.float32(A)
    expect(bool((array == before).all()), "a launch on a NumPy array")
    return seconds


def _trip(peer: Peer) -> float:
    y = np.ones(SIZE, np.float32)
    peer.put(_input(SIZE), y)
    sources = _input(TRIPS, SIZE)
    start = time.perf_counter()
    results = peer.trips(sources)
    seconds = (time.perf_counter() - start) / TRIPS
    for source, result in zip(sources, results, strict=True):
        y = y + np.float32(A) * source
        expect(bool((result == y).all()), "a round trip")
    return seconds


def _chain(peer: Peer) -> float:
    return _launched(peer, CHAIN, peer.chain)


def _replay(peer: Peer) -> float:
    peer.prepare_replay()
    return _launched(peer, CHAIN, peer.replay)


JOBS = {
    "wait": Job(f"Launch saxpy on {SIZE:,} floats, and wait for it", _wait),
    "record": Job("Launch it without waiting: the host's time per launch", _record),
    "alternate": Job("The same with two kernels in turn", _alternate),
    "result": Job("Launch a kernel that gives one value, and have the value", _result),
    "array": Job(f"Launch on a plain NumPy array of {LARGE:,} floats, in place", _array, "numpy"),
    "trip": Job("Write 4 KiB, launch, read 4 KiB", _trip),
    "chain": Job(f"Issue {CHAIN} launches, each needing the one before; wait", _chain),
    "replay": Job(f"The same {CHAIN} launches, recorded once before", _replay),
}


def _input(*shape: int) -> Host:
    """Small whole numbers, so that every result is exact; each time others."""
    return _random.integers(0, 8, shape).astype(np.float32)


def page_aligned(nbytes: int) -> Host:
    """Ordinary NumPy memory, touched, that starts on a page, as the device's does.

    Where a copy's two sides lie towards each other within a page can make it four times slower.
    """
    room = np.ones(nbytes + PAGE, np.uint8)
    start = -int(room.__array_interface__["data"][0]) % PAGE
    return room[start : start + nbytes].view(np.float32)
