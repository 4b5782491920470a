"""What small calls cost the host: transfers of 1 KiB, a replay, an elementwise call, a reduction.

Calls that are *recorded* are made within a batch, which is submitted afterwards, untimed. A busy
array is one that a launch recorded before uses. The floors are bare Vulkan calls that record, or
submit and wait for, one launch, or NumPy's copy of the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

import penstock as ps
from penstock.bench.floors import Bare, programs
from penstock.bench.jobs import JOBS, A
from penstock.bench.measure import expect, timed
from penstock.bench.runtime import Piece

_FLOATS = 256
_TIMES = 50
_RENAMES = 3  # one less than a buffer may have in flight: the next would be staged

Work = Callable[[], Any]


def calls(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    bare = Bare(device.name, programs())
    ending.callback(bare.close)
    unmapped = ending.enter_context(ps.Device(device.info.index, transfers="unmapped"))
    yield [*_transfers(device, unmapped, bare), *_launches(device, bare)]


def _recorded(device: ps.Device, work: Work) -> float:
    device.synchronize()
    with device.default_stream.batch():
        seconds = timed(_TIMES, work)
    device.synchronize()
    return seconds


def _transfers(device: ps.Device, unmapped: ps.Device, bare: Bare) -> Iterator[Piece]:
    step = device.elementwise("x[i] += a", "inout float32 x, float32 a", name="step")
    source, out, memory = (np.zeros(_FLOATS, np.float32) for _ in range(3))
    x, far = device.zeros(_FLOATS, name="x"), unmapped.zeros(_FLOATS, name="x")
    part = device.zeros(2 * _FLOATS, name="y")[:_FLOATS]

    def checked(array: ps.Array, measure: Callable[[], float]) -> float:
        source[:] += 1  # other content each time
        seconds = measure()
        expect(bool((array.numpy() == source).all()), "write()")
        return seconds

    def read(array: ps.Array) -> float:
        array.write(source).result()
        out[:] = -1
        seconds = timed(_TIMES, lambda: array.read(out=out).result())
        expect(bool((out == source).all()), "read()")
        return seconds

    def write_busy(array: ps.Array, times: int = 1) -> float:
        seconds = 0.0
        with device.default_stream.batch():
            for _ in range(times):
                step(array, A)
                seconds += timed(1, array.write, source)
        return seconds / times

    def busy(array: ps.Array, times: int) -> float:
        return checked(array, partial(write_busy, array, times))

    def waited() -> float:
        return checked(far, lambda: timed(_TIMES, lambda: far.write(source).result()))

    copied = ("copyto", partial(timed, _TIMES, np.copyto, memory, source))
    raw = ("raw launch and wait", partial(JOBS["wait"].run, bare))
    part_of, renamed = partial(busy, part, _TIMES), partial(busy, x, _RENAMES)
    yield Piece("read 1 KiB", partial(read, x), *copied, partial(x.read, out=out))
    yield Piece("write 1 KiB, busy: renamed", renamed, *copied, partial(write_busy, x))
    yield Piece("write 1 KiB, busy: staged", part_of, *copied, partial(write_busy, part))
    yield Piece("write 1 KiB, unmapped", waited, *raw, partial(far.write, source))
    yield Piece("read 1 KiB, unmapped", partial(read, far), *raw, partial(far.read, out=out))


def _launches(device: ps.Device, bare: Bare) -> Iterator[Piece]:
    axpy = device.elementwise(
        "y[i] = a * x[i] + y[i]", "in float32 x, inout float32 y, float32 a", name="axpy"
    )
    scale = device.elementwise("y[i] = a * x[i]", "in float32 x, out float32 y, float32 a")
    x, y = device.ones(_FLOATS, name="x"), device.zeros(_FLOATS, name="y")
    with device.record() as graph:
        axpy(x, y, A)

    def added(work: Work) -> float:
        y.fill(0)
        seconds = _recorded(device, work)
        expect(bool((y.numpy() == _TIMES * A).all()), "launches")
        return seconds

    def made() -> float:
        kept: list[ps.Array] = []
        seconds = _recorded(device, lambda: kept.append(scale(x, a=A)))
        expect(all((each.numpy() == A).all() for each in kept), "launches with new arrays")
        return seconds

    def summed() -> float:
        found: list[float] = []
        seconds = timed(_TIMES, lambda: found.append(x.sum().result()))
        expect(found == [_FLOATS] * _TIMES, "sum()")
        return seconds

    raw = ("raw launch", partial(JOBS["record"].run, bare))
    result = ("raw launch, read the value", partial(JOBS["result"].run, bare))
    replay, again = graph.replay, partial(axpy, x, y, A)
    yield Piece("replay of one launch, recorded", partial(added, replay), *raw, replay)
    yield Piece("elementwise, recorded", partial(added, again), *raw, again)
    yield Piece("elementwise to a new array, recorded", made, *raw, partial(scale, x, a=A))
    yield Piece("sum of 256 floats", summed, *result, lambda: x.sum().result())
