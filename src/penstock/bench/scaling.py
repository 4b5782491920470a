"""How costs grow: with the launches issued, streams, arrays alive, a graph's length, accesses.

Every piece returns the seconds of *one* launch (or replay, or node). Where the total cost is
linear, the curve is level; a rising curve shows a cost that grows faster. The floor is the same
piece at its smallest size, in the same round.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

import penstock as ps
from penstock.bench.jobs import SIZE, A
from penstock.bench.measure import SHADERS, expect, timed
from penstock.bench.runtime import Piece
from penstock.bench.tracked import Tracked

LAUNCHES = (1, 4, 16, 64, 256, 1024, 4096)
STREAMS = (1, 2, 4, 8, 16, 32)
ARRAYS = (1, 10, 100, 1000, 10_000)
NODES = (1, 4, 16, 64, 256, 1024, 4096)
ENTRIES = (1, 4, 16, 64, 256, 1024, 4096)
_EACH = 16  # launches on every stream
_WORK = 64  # launches while arrays are alive
_SMALL = 16  # floats of what is only there

Seconds = Callable[[], float]


def curves(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    own = Tracked(device)
    yield _curve("launches issued, then waited for", LAUNCHES, _launches(own))
    yield _curve("streams", STREAMS, _streams(own, ending))
    yield _curve("arrays alive", ARRAYS, _arrays(own))
    yield _curve("arrays made and dropped", ARRAYS, _made(own))
    for title, make in (("recorded and encoded", _encoded), ("replayed", _replayed)):
        yield _curve(f"graph length, {title}", NODES, make(own))
    for title, order in (("in order", _in_order), ("in any order", _in_any_order)):
        title = f"pending accesses to one buffer, {title}"
        yield _curve(title, ENTRIES, _entries(own, order))


def _curve(title: str, sizes: tuple[int, ...], make: Callable[[int], Seconds]) -> list[Piece]:
    smallest = make(sizes[0])
    return [
        Piece(
            f"{title}: {size:,}", run := make(size), f"{sizes[0]} of it", smallest, run, size,
            about={"curve": title},
        )
        for size in sizes
    ]  # fmt: skip


def _launches(own: Tracked) -> Callable[[int], Seconds]:
    def work(count: int) -> None:
        own.launches(count)
        own.stream.synchronize()

    def make(count: int) -> Seconds:
        return lambda: own.checked(count, partial(timed, 1, work, count)) / count

    return make


def _streams(own: Tracked, ending: ExitStack) -> Callable[[int], Seconds]:
    streams = [ending.enter_context(own.device.stream()) for _ in range(max(STREAMS))]
    ys = [own.device.ones(SIZE) for _ in streams]

    def work(count: int) -> None:
        for at in range(count):
            for _ in range(_EACH):
                own.saxpy(x=own.x, y=ys[at], a=A, n=SIZE, threads=SIZE, stream=streams[at])
        own.device.synchronize()

    return lambda count: lambda: timed(1, work, count) / (_EACH * count)


def _arrays(own: Tracked) -> Callable[[int], Seconds]:
    alive: list[ps.Array] = []

    def make(count: int) -> Seconds:
        def run() -> float:
            while len(alive) < count:
                alive.append(own.device.zeros(_SMALL))
            del alive[count:]

            def work() -> None:
                own.launches(_WORK)
                own.stream.synchronize()

            return own.checked(_WORK, partial(timed, 1, work)) / _WORK

        return run

    return make


def _made(own: Tracked) -> Callable[[int], Seconds]:
    def work(count: int) -> None:
        made = [own.device.empty(_SMALL) for _ in range(count)]
        del made
        _ = own.device.memory  # lets go of them

    return lambda count: lambda: timed(1, work, count) / count


def _graph(own: Tracked, count: int) -> Any:
    with own.device.record() as graph:
        own.launches(count)
    return graph


def _encoded(own: Tracked) -> Callable[[int], Seconds]:
    def work(count: int) -> None:
        with _graph(own, count) as graph:
            graph.replay()
        own.stream.synchronize()

    return lambda count: lambda: own.checked(count, partial(timed, 1, work, count)) / count


def _replayed(own: Tracked) -> Callable[[int], Seconds]:
    def make(count: int) -> Seconds:
        graph = _graph(own, count)

        def work() -> None:
            graph.replay()
            own.stream.synchronize()

        return lambda: own.checked(count, partial(timed, 1, work)) / count

    return make


def _in_order(count: int) -> list[int]:
    return list(range(count))


def _in_any_order(count: int) -> list[int]:
    return random.Random(count).sample(range(count), count)


def _entries(own: Tracked, order: Callable[[int], list[int]]) -> Callable[[int], Seconds]:
    """Launches on parts of one array, none of which is done when the next is issued."""
    kernel = own.device.kernel(SHADERS / "saxpy.comp")
    row = 64
    wide = own.device.zeros((max(ENTRIES), row), name="wide")

    def issue(parts: list[ps.Array]) -> None:
        x = own.x[:row]
        for part in parts:
            kernel(x=x, y=part, a=A, n=row, threads=row)

    def make(count: int) -> Seconds:
        parts = [wide[number] for number in order(count)]

        def run() -> float:
            wide.fill(0)
            own.stream.synchronize()
            with own.stream.batch():
                seconds = timed(1, issue, parts) / count
            found = wide.numpy()
            expect(bool((found[:count] == A).all() and not np.any(found[count:])), "parts")
            return seconds

        return run

    return make
