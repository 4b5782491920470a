"""Device times on every driver: in order, and within what the host knows, by the clock's error."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.driver import alignment
from penstock.driver.alignment import Alignment
from penstock.driver.sim import virtual_time
from tests.kernels import REFERENCES, SAXPY, new_kernel

N = 1000


@pytest.fixture
def timed(any_device: ps.Device) -> Iterator[ps.Device]:
    """A device with a clock, of every driver; the simulator in virtual time."""
    with contextlib.ExitStack() as left:
        if any_device.info.driver == "sim":
            driver: Any = any_device.scheduler.driver
            left.enter_context(virtual_time(driver))
        yield any_device


def traced(device: ps.Device) -> ps.Trace:
    """Work on two streams, with a copy, a fill and a replay, seen complete within the trace."""
    kernel = new_kernel(device, SAXPY)
    x, y, z = device.ones(N), device.zeros(N), device.zeros(N)
    other = device.stream()
    with device.record() as graph:
        kernel(x=x, y=y, a=1, n=N, threads=N)
        kernel(x=x, y=y, a=1, n=N, threads=N)
    device.synchronize()
    with ps.trace() as t:
        for _ in range(3):
            kernel(x=x, y=y, a=2, n=N, threads=N)
            kernel(x=x, y=z, a=2, n=N, threads=N, stream=other)
            graph.replay()
            z.copy_from(y)
            y.fill(0)
            device.synchronize()
    t.wait_for_times()
    return t


def test_times_are_in_order_and_within_what_the_host_saw(timed: ps.Device) -> None:
    t = traced(timed)
    error = t.clock_error
    assert error is not None
    submitted = {(e.stream_id, e.submission): e.start for e in t.of_kind("submission")}
    done = t.of_kind("done")
    checked = []
    for event in t.events:
        if event.kind not in ("launch", "replay", "copy", "fill") or event.stream_id < 0:
            continue
        start, seconds = event.device_start, event.device_seconds
        assert start is not None
        assert seconds is not None
        assert seconds >= 0
        seen = min(
            e.start
            for e in done
            if e.stream_id == event.stream_id and e.submission >= event.submission
        )
        place = (event.stream_id, event.submission)
        assert submitted[place] - error <= start <= start + seconds <= seen + error
        checked.append((place, event.command, start))
    kinds = {event.kind for event in t.events if event.device_start is not None}
    assert kinds == {"launch", "replay", "copy", "fill"}
    # Commands of a stream that a barrier separates run one after the other, and here all do.
    assert [c[:2] for c in sorted(checked)] == [
        c[:2] for c in sorted(checked, key=lambda c: (c[0][0], c[2]))
    ]
    assert {*t.clocks} == {timed.name}


def test_the_receipt_tells_of_the_clock(timed: ps.Device) -> None:
    clock = traced(timed).clocks[timed.name]
    assert clock.has_times
    assert clock.error is not None
    assert 0 <= clock.error < 1
    assert (
        clock.how
        == {
            "llvmpipe": "calibrated timestamps",
            "SwiftShader": "bounded by submission and completion",
            "simulator": "virtual time",
            "Penstock's": "HIP events, compared with the host's clock when it issues and sees them",
        }[timed.name.split(maxsplit=1)[0]]
    )


def test_commands_inside_a_graph_have_times_when_asked(timed: ps.Device) -> None:
    kernel = new_kernel(timed, SAXPY, "twice")
    x, y, z = timed.ones(N), timed.zeros(N), timed.zeros(N)
    with timed.record() as graph:
        kernel(x=x, y=y, a=1, n=N, threads=N)
        kernel(x=y, y=z, a=1, n=N, threads=N)
        y.copy_from(z)
        z.fill(0)
    graph.replay().wait()
    with ps.trace() as plain:
        graph.replay().wait()
    plain.wait_for_times()
    assert not plain.of_kind("replayed")
    with ps.trace() as without, ps.trace(kernels=True) as t:
        for _ in range(5):  # more than one in flight
            graph.replay()
        timed.synchronize()
        t.expect(replays=5, launches=0, copies=0, fills=0)
    t.wait_for_times()
    assert not without.of_kind("replayed")
    assert "replayable" not in {event.reason for event in t.of_kind("allocation")}
    replays, error = t.of_kind("replay"), t.clock_error
    assert error is not None
    assert len(replays) == 5
    for replay in replays:
        inner = [
            event
            for event in t.of_kind("replayed")
            if (event.submission, event.command) == (replay.submission, replay.command)
        ]
        assert [(event.kernel, event.path, event.inner) for event in inner] == [
            ("twice", "launch", 1), ("twice", "launch", 2), ("", "copy", 3), ("", "fill", 4),
        ]  # fmt: skip
        assert inner[0].nbytes == 2 * 4 * N
        at, lasts = replay.device_start, replay.device_seconds
        assert at is not None
        assert lasts is not None
        ended = at - 2 * error
        for event in inner:
            start, seconds = event.device_start, event.device_seconds
            assert start is not None
            assert seconds is not None
            assert ended <= start + 1e-9
            ended = start + seconds
        assert ended <= at + lasts + 2 * error
    assert (y.numpy() == 7).all()  # each replay adds 1
    graph.replay().wait()  # the encoding without timestamps
    assert (y.numpy() == 8).all()


def test_times_inside_a_graph_survive_its_end(timed: ps.Device) -> None:
    kernel = new_kernel(timed, SAXPY)
    x, y = timed.ones(N), timed.zeros(N)
    with timed.record() as graph:
        kernel(x=x, y=y, a=1, n=N, threads=N)
    with ps.trace(kernels=True) as t:
        graph.replay()
    graph.close()
    timed.synchronize()
    t.wait_for_times()
    (event,) = t.of_kind("replayed")
    assert event.device_seconds is not None


def test_a_compilation_is_on_the_receipt_once(timed: ps.Device) -> None:
    """With the time it took, so that the first call is not blamed on the kernel."""
    with ps.trace() as t:
        if timed.info.driver == "hip":
            kernel = new_kernel(timed, SAXPY, "fresh")
        else:
            new = {"NEW": time.time_ns() % 10**9}  # to no cache known
            kernel = timed.kernel(SAXPY, name="fresh", defines=new, reference=REFERENCES[SAXPY])
        x, y = timed.ones(N), timed.zeros(N)
        for _ in range(3):
            kernel(x=x, y=y, a=1, n=N, threads=N)
        timed.synchronize()
    found = t.of_kind("compile")
    assert [event.path for event in found] == ["source", "driver"]
    assert all(event.reason.startswith("kernel fresh: ") for event in found)
    assert all(f"{os.sep}tests{os.sep}" in event.where for event in found)
    assert found[-1].seconds > 0
    assert "compile" not in t.as_dict()


def test_a_trace_says_what_it_costs(timed: ps.Device) -> None:
    kernel = new_kernel(timed, SAXPY)
    x, y = timed.ones(N), timed.zeros(N)
    with ps.trace() as t, timed.default_stream.batch():
        for _ in range(10):
            kernel(x=x, y=y, a=1, n=N, threads=N)
    timed.synchronize()
    t.wait_for_times()
    cost = t.cost
    assert cost.events == len(t.events)
    assert cost.timestamps == 20
    assert cost.event_seconds > 0
    assert cost.host_seconds >= cost.events * cost.event_seconds
    assert cost.timestamp_seconds is not None
    assert cost.device_seconds == 20 * cost.timestamp_seconds
    assert "20 timestamps" in str(cost)
    assert not ps.trace().cost.events


def test_kernels_without_times_are_a_contradiction() -> None:
    with pytest.raises(ps.ArgumentError, match="kernels=True"):
        ps.trace(times=False, kernels=True)


def test_a_clock_is_compared_again_after_a_while(
    timed: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if timed.info.driver == "sim":
        pytest.skip("virtual time is the host's time")
    driver: Any = timed.scheduler.driver
    monkeypatch.setattr(alignment, "_FRESH", 0.0)
    kernel = new_kernel(timed, SAXPY)
    x, y = timed.ones(N), timed.zeros(N)
    counts = []
    for _ in range(2):
        with ps.trace() as t:
            kernel(x=x, y=y, a=2, n=N, threads=N)
            timed.synchronize()
        t.wait_for_times()
        assert t.of_kind("launch")[0].device_start is not None
        counts.append(len(driver.clock.alignment._ticks))
    assert 0 < counts[0] < counts[1]


def test_ticks_between_two_measurements_are_converted_by_both() -> None:
    clock = Alignment(1e-9)
    assert not clock.known
    clock.measured([(1.0, 1.5, 50), (1.0, 1.2, 100), (1.0, 3.0, 999)])  # the shortest counts
    assert clock.seconds([100]) == [pytest.approx(1.1)]
    assert clock.error == pytest.approx(0.1)
    assert clock.seconds([100 + 10**9]) == [pytest.approx(2.1)]
    assert clock.error == pytest.approx(0.10005)  # with a second's drift
    # A second later the device's clock has run twice as fast.
    clock.measured([(2.1, 2.1, 100 + 2 * 10**9)])
    assert clock.seconds([100 + 10**9, 100 + 3 * 10**9]) == [
        pytest.approx(1.6),
        pytest.approx(3.1),
    ]
    assert clock.error == pytest.approx(1.0)  # of the tick that was converted too early
