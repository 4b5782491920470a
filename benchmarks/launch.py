"""What the host pays for a launch, against the same Vulkan calls made bare.

The kernel is a saxpy on 1,024 floats, small so that the host's part shows. Recording is timed
while the device is idle and nothing is submitted, on both sides, so that the device does not
compete for the cores: 100 launches, then a submission that is not timed, then the check.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.bench.measure import SHADERS, Case, Samples, expect, interleave, timed
from penstock.bench.raw import Raw
from penstock.bench.tables import Row, Section
from penstock.shader.glsl import compile_glsl

SIZE = 1024  # floats
LAUNCHES = 100  # between two submissions; fewer than Penstock submits on its own account
TRIPS = 10  # waits and round trips are timed so many at a time
A = 0.5

_LOCAL_SIZE = 256
_KERNEL = SHADERS / "saxpy.comp"

Host = npt.NDArray[np.float32]
#: What makes the context that launches are timed in: none, or a trace with or without times.
Tracing = Callable[[], AbstractContextManager[Any]]
COUNTED: Tracing = partial(ps.trace, times=False)
TIMED: Tracing = ps.trace


def run(device: ps.Device, repeat: int) -> list[Section]:
    bare, tracked = _Bare(device.name), _Tracked(device)
    try:
        return [_recording(bare, tracked, repeat), _waiting(bare, tracked, repeat)]
    finally:
        bare.close()


def _recording(bare: _Bare, tracked: _Tracked, repeat: int) -> Section:
    chain, apart = "raw, dependent (5 calls)", "raw, independent (4 calls, no barrier)"
    cases: dict[str, Case] = {
        chain: bare.chain,
        "  noise: the same again": bare.chain,
        "  penstock, dependent": tracked.chain,
        "  noise: penstock again": tracked.chain,
        "  penstock, dependent, traced, without times": partial(tracked.chain, traced=COUNTED),
        "  penstock, dependent, traced": partial(tracked.chain, traced=TIMED),
        apart: bare.apart,
        "  penstock, independent": tracked.apart,
        "  penstock, independent, traced, without times": partial(tracked.apart, traced=COUNTED),
        "  penstock, independent, traced": partial(tracked.apart, traced=TIMED),
    }
    samples = interleave(cases, repeat)
    notes = (
        f"{repeat} interleaved rounds of {LAUNCHES} launches each; excluded on both sides: ending "
        "the recording and submitting it;",
        "included on both: beginning it. Garbage collector on. Checked after every round: the "
        "values of y, and that it was one submission",
    )
    title = (
        f"Recording a launch of saxpy on {SIZE:,} floats, host time per launch and "
        "relative to raw;\nthe aim for penstock, dependent: at most 2 × raw, and about 5 µs"
    )
    return Section(title, _rows(samples, LAUNCHES), notes)


def _waiting(bare: _Bare, tracked: _Tracked, repeat: int) -> Section:
    cases: dict[str, Case] = {
        "raw: record, submit, wait": bare.wait,
        "  raw: replay, wait": bare.replay,
        "  noise: raw record, submit, wait again": bare.wait,
        "  penstock: launch, synchronize": tracked.wait,
        "  penstock: launch, synchronize, traced, without times": partial(
            tracked.wait, traced=COUNTED
        ),
        "  penstock: launch, synchronize, traced": partial(tracked.wait, traced=TIMED),
        "raw: copy in 4 KiB, launch, wait, copy out 4 KiB": bare.round_trip,
        "  penstock: write, launch, numpy()": tracked.round_trip,
        "  penstock: write, launch, read().result()": partial(tracked.round_trip, ahead=True),
    }
    samples = interleave(cases, repeat)
    title = (
        "One launch and waiting for it, and the small round trip from host to kernel to host; "
        "time relative to raw"
    )
    notes = (
        f"{repeat} interleaved rounds of {TRIPS} each; checked after every one: the values of y",
    )
    return Section(title, _rows(samples, 1), notes)


def _rows(samples: dict[str, Samples], launches: int) -> list[Row]:
    """A row per case; the time of an indented case is relative to the last that is not."""
    rows: list[Row] = []
    for name, taken in samples.items():
        if not name.startswith(" "):
            peer_name, peer = name, taken
        rows.append(
            {
                "case": name,
                "relative_to": peer_name,
                "median_us": taken.median / launches * 1e6,
                "min_us": taken.minimum / launches * 1e6,
                "ratio_of_medians": taken.median / peer.median,
                "ratio_of_minima": taken.minimum / peer.minimum,
            }
        )
    return rows


class _Bare:
    """The launches as bare Vulkan calls. Array 0 is x, array 1 the y of chains, the rest apart."""

    def __init__(self, device_name: str) -> None:
        code = compile_glsl(_KERNEL.read_text(), name="saxpy")
        self._raw = Raw(
            device_name,
            code,
            struct.pack("<fI", A, SIZE),
            bindings=2,
            arrays=LAUNCHES + 2,
            nbytes=4 * SIZE,
        )
        self._chained = [self._raw.bind(0, 1)] * LAUNCHES
        self._apart = [self._raw.bind(0, 2 + i) for i in range(LAUNCHES)]
        self._one = self._chained[:1]
        self._groups = SIZE // _LOCAL_SIZE
        self._x, self._y = self._raw.host(0), self._raw.host(1)
        self._inputs = _Inputs()
        np.copyto(self._x, self._inputs.next())

    def close(self) -> None:
        del self._x, self._y
        self._raw.close()

    def chain(self) -> float:
        self._y.fill(1)
        seconds = self._record(self._chained, barriers=True)
        _expect_launches(self._y, self._x, LAUNCHES, "the raw chain")
        return seconds

    def apart(self) -> float:
        ys = [self._raw.host(2 + i) for i in range(LAUNCHES)]
        for y in ys:
            y.fill(1)
        seconds = self._record(self._apart, barriers=False)
        for y in ys:
            _expect_launches(y, self._x, 1, "raw launches")
        return seconds

    def _record(self, bound: list[Any], *, barriers: bool) -> float:
        start = time.perf_counter()
        self._raw.record(bound, self._groups, barriers=barriers)
        seconds = time.perf_counter() - start
        self._raw.end()
        self._raw.submit_and_wait()
        return seconds

    def wait(self) -> float:
        self._y.fill(1)
        seconds = timed(TRIPS, self._launch_and_wait)
        _expect_launches(self._y, self._x, TRIPS, "a raw launch")
        return seconds

    def replay(self) -> float:
        self._raw.record(self._one, self._groups, barriers=True)
        self._raw.end()
        self._y.fill(1)
        seconds = timed(TRIPS, self._raw.submit_and_wait)
        _expect_launches(self._y, self._x, TRIPS, "a raw replay")
        return seconds

    def round_trip(self) -> float:
        self._y.fill(1)
        return _timed_trips(self._inputs, self._round_trip)

    def _round_trip(self, source: Host) -> Host:
        np.copyto(self._x, source)
        self._launch_and_wait()
        return self._y.copy()

    def _launch_and_wait(self) -> None:
        self._raw.record(self._one, self._groups, barriers=True)
        self._raw.end()
        self._raw.submit_and_wait()


class _Tracked:
    """The same launches through Penstock."""

    def __init__(self, device: ps.Device) -> None:
        self._stream = device.default_stream
        self._kernel = device.kernel(_KERNEL)
        self._inputs = _Inputs()
        self._source = self._inputs.next()
        self._x = device.array(self._source, name="x")
        self._y = device.ones(SIZE, name="y")
        self._apart = [device.ones(SIZE, name=f"y{i}") for i in range(LAUNCHES)]

    def chain(self, *, traced: Tracing = nullcontext) -> float:
        self._y.fill(1)
        seconds = self._record([self._y] * LAUNCHES, traced)
        _expect_launches(self._y.numpy(), self._source, LAUNCHES, "a chain of launches")
        return seconds

    def apart(self, *, traced: Tracing = nullcontext) -> float:
        for y in self._apart:
            y.fill(1)
        seconds = self._record(self._apart, traced)
        for y in self._apart:
            _expect_launches(y.numpy(), self._source, 1, "launches")
        return seconds

    def _record(self, targets: list[ps.Array], traced: Tracing) -> float:
        """Seconds to record a launch on each y."""
        kernel, x = self._kernel, self._x
        self._stream.synchronize()
        with self._stream.batch():
            with traced():
                start = time.perf_counter()
                for y in targets:
                    kernel(x=x, y=y, a=A, n=SIZE, threads=SIZE)
                seconds = time.perf_counter() - start
            with ps.trace() as receipt:
                self._stream.flush()
        expect(receipt.submissions == 1, "gathering launches in one submission")
        self._stream.synchronize()
        return seconds

    def wait(self, *, traced: Tracing = nullcontext) -> float:
        self._y.fill(1)
        with traced():
            seconds = timed(TRIPS, self._launch_and_wait)
        _expect_launches(self._y.numpy(), self._source, TRIPS, "a launch")
        return seconds

    def _launch_and_wait(self) -> None:
        self._kernel(x=self._x, y=self._y, a=A, n=SIZE, threads=SIZE)
        self._stream.synchronize()

    def round_trip(self, *, ahead: bool = False) -> float:
        self._y.fill(1)
        seconds = _timed_trips(self._inputs, self._round_trip_ahead if ahead else self._round_trip)
        self._source = self._x.numpy()
        return seconds

    def _round_trip(self, source: Host) -> Host:
        self._x.write(source)
        self._kernel(x=self._x, y=self._y, a=A, n=SIZE, threads=SIZE)
        return self._y.numpy()

    def _round_trip_ahead(self, source: Host) -> Host:
        self._x.write(source)
        self._kernel(x=self._x, y=self._y, a=A, n=SIZE, threads=SIZE)
        return self._y.read().result()


class _Inputs:
    """Contents for x: small whole numbers, so that every result is exact; each time others."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def next(self) -> Host:
        return self._random.integers(0, 8, SIZE).astype(np.float32)


def _timed_trips(inputs: _Inputs, trip: Callable[[Host], Host]) -> float:
    """Seconds of one round trip of several, each with other content; y starts as 1."""
    sources = [inputs.next() for _ in range(TRIPS)]
    start = time.perf_counter()
    results = [trip(source) for source in sources]
    seconds = (time.perf_counter() - start) / TRIPS
    y = np.ones(SIZE, np.float32)
    for source, result in zip(sources, results, strict=True):
        y += np.float32(A) * source
        expect(bool((result == y).all()), "a round trip")
    return seconds


def _expect_launches(y: Host, x: Host, launches: int, what: str) -> None:
    """Check that y, which was 1, has had a·x added `launches` times."""
    expect(bool((y == 1 + launches * np.float32(A) * x).all()), what)
