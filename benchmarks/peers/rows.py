"""The rows: what is timed, and the check that stands beside it. The same code for every peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.peer import CHAIN, LARGE, SIZE, STRIDE, A, Host, Peer
from penstock.bench.measure import expect, timed

TRIPS = 20  # waits, results and round trips are timed so many at a time
LAUNCHES = 100  # recorded at a time

_random = np.random.default_rng()


@dataclass(frozen=True)
class Row:
    """One job: `run` does it on a peer, checks the values, and returns the seconds of one unit."""

    title: str
    run: Callable[[Peer], float]
    floor: str  # the peer that others are compared with


def _wait(peer: Peer) -> float:
    x = _started(peer)
    seconds = timed(1, peer.wait, TRIPS) / TRIPS
    _expect_launches(peer, x, TRIPS)
    return seconds


def _record(peer: Peer) -> float:
    x = _started(peer)
    seconds = timed(1, peer.record, LAUNCHES) / LAUNCHES
    peer.finish()
    _expect_launches(peer, x, LAUNCHES)
    return seconds


def _result(peer: Peer) -> float:
    x = _started(peer)
    indices = [int(i) for i in _random.integers(0, SIZE, TRIPS)]
    start = time.perf_counter()
    values = peer.results(indices)
    seconds = (time.perf_counter() - start) / TRIPS
    expect(values == [A * x[i] for i in indices], "a launch with a result")
    return seconds


def _array(peer: Peer) -> float:
    before = _random.random(LARGE, dtype=np.float32)
    array = before.copy()
    seconds = timed(1, peer.call, array)
    before[::STRIDE] += np.float32(A)
    expect(bool((array == before).all()), "a launch on a NumPy array")
    return seconds


def _trip(peer: Peer) -> float:
    _started(peer)
    sources = _random.integers(0, 8, (TRIPS, SIZE)).astype(np.float32)
    start = time.perf_counter()
    results = peer.trips(sources)
    seconds = (time.perf_counter() - start) / TRIPS
    y = np.ones(SIZE, np.float32)
    for source, result in zip(sources, results, strict=True):
        y += np.float32(A) * source
        expect(bool((result == y).all()), "a round trip")
    return seconds


def _chain(peer: Peer) -> float:
    x = _started(peer)
    seconds = timed(1, peer.chain)
    _expect_launches(peer, x, CHAIN)
    return seconds


def _replay(peer: Peer) -> float:
    peer.prepare_replay()
    x = _started(peer)
    seconds = timed(1, peer.replay)
    _expect_launches(peer, x, CHAIN)
    return seconds


ROWS = {
    "wait": Row(f"Launch saxpy on {SIZE:,} floats, and wait for it", _wait, "c"),
    "record": Row("Launch it without waiting: the host's time per launch", _record, "c"),
    "result": Row("Launch a kernel that gives one value, and have the value", _result, "c"),
    "array": Row(f"Launch on a plain NumPy array of {LARGE:,} floats, in place", _array, "numpy"),
    "trip": Row("Write 4 KiB, launch, read 4 KiB", _trip, "c"),
    "chain": Row(f"Issue {CHAIN} launches, each needing the one before; wait", _chain, "c"),
    "replay": Row(f"The same {CHAIN} launches, recorded once before", _replay, "c"),
}


def _started(peer: Peer) -> Host:
    """Give the peer a new x, and a y of ones; the x."""
    x = _input()
    peer.put(x, np.ones(SIZE, np.float32))
    return x


def _input() -> Host:
    """Small whole numbers, so that every result is exact; each time others."""
    return _random.integers(0, 8, SIZE).astype(np.float32)


def _expect_launches(peer: Peer, x: Host, launches: int) -> None:
    """Check that y, which was 1, has had a·x added `launches` times."""
    expect(bool((peer.get() == 1 + launches * np.float32(A) * x).all()), "a launch")
