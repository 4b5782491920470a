"""Busy time, gaps and their parts, over made-up events."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Cause, Point, TraceEvent
from penstock.tracing.advice import advice
from penstock.tracing.causes import pieces
from penstock.tracing.gaps import busy_times, in_seconds, ticks
from penstock.tracing.idle import Use, use_of
from penstock.tracing.verdict import duration, place, verdict

US = 2.0**-20  # seconds: about a microsecond, and a whole number of ticks
KINDS = ("launch", "replay", "copy", "wait", "compile", "clock", "submission", "fill", "allocation")


def launch(
    submission: int, device: tuple[float, float] | None, *, start: float = 0.0,
    seconds: float = 0.0, stream: int = 1, command: int = 1, line: int = 1, kind: str = "launch",
) -> TraceEvent:  # fmt: skip
    begun, took = device or (None, None)
    return TraceEvent(
        kind, "k in (1, 1, 1) groups", where=f"prog.py:{line}", start=start, seconds=seconds,
        thread="main", thread_id=1, device="gpu", stream=f"stream {stream}", stream_id=stream,
        submission=submission, command=command,
        device_start=begun, device_seconds=took,
    )  # fmt: skip


def submitted(
    submission: int, start: float, seconds: float = 0.0, *, stream: int = 1, line: int = 1,
    awaited: tuple[Point, ...] = (), reason: str = "1 command: the device would run dry",
) -> TraceEvent:  # fmt: skip
    return TraceEvent(
        "submission", reason, where=f"prog.py:{line}", start=start, seconds=seconds, thread="main",
        thread_id=1, device="gpu", stream=f"stream {stream}", stream_id=stream,
        submission=submission, awaited=awaited,
    )  # fmt: skip


def host(kind: str, start: float, seconds: float, line: int = 1, **more: object) -> TraceEvent:
    where = f"prog.py:{line}"
    event = TraceEvent(kind, f"a {kind}", where=where, start=start, seconds=seconds)
    return event._replace(thread="main", thread_id=1, **more)  # type: ignore[arg-type]


def parts(use: Use) -> list[tuple[Cause, float, tuple[str, ...]]]:
    (gap,) = use.gaps
    lines = [tuple(line.removeprefix("prog.py:") for line in part.lines) for part in gap.parts]
    return [
        (part.cause, part.seconds / US, numbers)
        for part, numbers in zip(gap.parts, lines, strict=True)
    ]


times = st.integers(0, 60).map(lambda count: 1.0 + count * US)
lengths = st.integers(0, 20).map(lambda count: count * US)
commands = st.lists(st.tuples(st.integers(1, 3), times, lengths), min_size=1, max_size=12)


@settings(deadline=None)
@given(commands)
def test_busy_time_is_what_a_brute_count_of_ticks_finds(
    given: list[tuple[int, float, float]],
) -> None:
    events = [
        launch(number, (start, seconds), stream=stream)
        for number, (stream, start, seconds) in enumerate(given, 1)
    ]
    (found,) = busy_times(events).values()
    busy = {
        tick
        for _, start, seconds in given
        for tick in range(round(start / US), round((start + seconds) / US))
    }
    first = min(round(start / US) for _, start, _ in given)
    last = max(round((start + seconds) / US) for _, start, seconds in given)
    assert in_seconds(found.busy) == len(busy) * US
    assert in_seconds(found.span) == (last - first) * US
    assert found.busy + sum(hole.end - hole.start for hole in found.holes) == found.span
    for hole in found.holes:
        inside = set(range(round(in_seconds(hole.start) / US), round(in_seconds(hole.end) / US)))
        assert inside
        assert not inside & busy


points = st.builds(Point, st.just("gpu"), st.just("s"), st.integers(1, 4), st.integers(1, 5))


@st.composite
def anything(draw: st.DrawFn) -> TraceEvent:
    kind = draw(st.sampled_from([*KINDS, "done", "view", "order"]))
    line = draw(st.integers(0, 5))
    event = host(kind, draw(times), draw(lengths), line)
    return event._replace(
        where=event.where if line else "",
        reason=f"{kind}: the device would run dry",
        path=draw(st.sampled_from(["", "bound", "staged"])),
        device="gpu",
        stream_id=draw(st.integers(1, 4)),
        submission=draw(st.integers(0, 5)),
        awaited=tuple(draw(st.lists(points, max_size=2))),
    )


@settings(deadline=None)
@given(commands, st.lists(anything(), max_size=20))
def test_parts_divide_every_gap_without_remainder(
    given: list[tuple[int, float, float]], others: list[TraceEvent]
) -> None:
    """Whatever the events say, and however they contradict each other."""
    events = [
        launch(number, (start, seconds), stream=stream, start=start, seconds=seconds, line=number)
        for number, (stream, start, seconds) in enumerate(given, 1)
    ]
    use = use_of([*events, *others])
    assert use.span is not None
    assert use.busy is not None
    assert use.busy + sum(gap.seconds for gap in use.gaps) == use.span
    assert sum(use.by_cause.values()) == use.idle
    for gap in use.gaps:
        now = gap.start
        for part in gap.parts:
            assert part.start == now
            assert part.seconds > 0
            now += part.seconds
        assert now == gap.start + gap.seconds
    for each in advice(use, [*events, *others]):
        assert 0 < each.seconds <= use.by_cause[each.cause]
    assert verdict(use)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), times, lengths), max_size=10))
def test_pieces_are_in_order_and_apart(given: list[tuple[str, float, float]]) -> None:
    found = pieces([host(kind, start, seconds) for kind, start, seconds in given])
    for one, other in itertools.pairwise(found):
        assert one.start <= one.end <= other.start
    covered = {t for p in found for t in range(p.start // ticks(US), p.end // ticks(US))}
    wanted = {
        tick
        for _, start, seconds in given
        for tick in range(round(start / US), round((start + seconds) / US))
    }
    assert covered == wanted


def around(
    *between: TraceEvent, awaited: tuple[Point, ...] = (), after: TraceEvent
) -> list[TraceEvent]:
    """Two commands: the first ends 10 after second 1, what is between, the one that is `after`."""
    first = launch(1, (1.0, 10 * US), start=1.0 - 5 * US, seconds=US)
    return [first, submitted(1, 1.0 - 4 * US, US), *between, after]


def test_the_walk_back_names_each_step() -> None:
    events = around(
        host("compile", 1 + 20 * US, 5 * US, line=3),
        host("copy", 1 + 26 * US, 4 * US, line=4, path="direct"),
        submitted(2, 1 + 36 * US, 2 * US, line=5),
        after=launch(2, (1 + 41 * US, US), start=1 + 33 * US, seconds=2 * US, line=5),
    )
    assert parts(use_of(events)) == [
        (Cause.CALLER, 10, ("1", "3")),
        (Cause.COMPILE, 5, ("3",)),
        (Cause.CALLER, 1, ("3", "4")),
        (Cause.COPY, 4, ("4",)),
        (Cause.CALLER, 3, ("4", "5")),
        (Cause.ISSUING, 5, ("5",)),
        (Cause.LATENCY, 3, ("5",)),
    ]


def test_a_wait_inside_a_launch_is_no_launch_overhead() -> None:
    events = around(
        host("wait", 1 + 16 * US, 10 * US, line=5, path="bound"),
        submitted(2, 1 + 30 * US, line=5),
        after=launch(2, (1 + 30 * US, US), start=1 + 12 * US, seconds=18 * US, line=5),
    )
    assert parts(use_of(events)) == [
        (Cause.CALLER, 2, ("1", "5")),
        (Cause.ISSUING, 4, ("5",)),
        (Cause.BOUND, 10, ("5",)),
        (Cause.ISSUING, 4, ("5",)),
    ]


def test_recorded_early_and_submitted_late_is_unsubmitted() -> None:
    events = around(
        submitted(2, 1 + 30 * US, US, line=9, reason="1 command: flush"),
        after=launch(2, (1 + 31 * US, US), start=1 + 2 * US, seconds=US, line=5),
    )
    assert parts(use_of(events)) == [
        (Cause.UNSUBMITTED, 20, ("5",)),
        (Cause.ISSUING, 1, ("5",)),
    ]


WAITED_FOR = Point("gpu", "stream 1", 1, 1)


@pytest.mark.parametrize("seconds", [2, 40])
def test_a_wait_is_blamed_for_what_it_exposed_and_no_more(seconds: int) -> None:
    """A launch after a wait of 2 could have been issued 2 earlier, after one of 40 in time."""
    wait = host("wait", 1 + (12 - seconds) * US, seconds * US, line=3, awaited=(WAITED_FOR,))
    events = around(
        wait,
        submitted(2, 1 + 14 * US, US, line=5),
        after=launch(2, (1 + 18 * US, US), start=1 + 12 * US, seconds=2 * US, line=5),
    )
    shares = dict.fromkeys(Cause, 0.0)
    for cause, length, _ in parts(use_of(events)):
        shares[cause] += length
    exposed = min(seconds, 6)  # of the 6 from the call to the device's start
    assert shares[Cause.WAITED] == 2 + exposed
    assert shares[Cause.ISSUING] + shares[Cause.LATENCY] == 6 - exposed


def test_a_wait_for_earlier_work_is_not_blamed_for_the_launch() -> None:
    """The host went on while the command before the gap ran, so it could issue the next one."""
    early = Point("gpu", "stream 1", 1, 0)
    events = around(
        host("wait", 1.0, 5 * US, line=3, awaited=(early,)),
        submitted(2, 1 + 14 * US, US, line=5),
        after=launch(2, (1 + 18 * US, US), start=1 + 10 * US, seconds=4 * US, line=5),
    )
    assert Cause.WAITED not in {cause for cause, _, _ in parts(use_of(events))}


def test_a_command_of_another_stream_that_waited_for_an_event() -> None:
    """It was submitted while the other stream ran: it is left to pass from one to the other."""
    point = Point("gpu", "stream 1", 1, 1)
    events = around(
        submitted(1, 1 + 2 * US, US, stream=2, line=5, awaited=(point,)),
        after=launch(1, (1 + 14 * US, US), stream=2, start=1 + US, seconds=US, line=5),
    )
    assert parts(use_of(events)) == [(Cause.OTHER, 4, ("5",))]


def test_a_wait_for_another_device() -> None:
    far = Point("other gpu", "stream 9", 9, 1)
    there = launch(1, (1 + 5 * US, 15 * US), stream=9, line=8)._replace(device="other gpu")
    events = around(
        there,
        host("wait", 1 + 6 * US, 15 * US, line=3, awaited=(far,)),
        submitted(2, 1 + 21 * US, line=5),
        after=launch(2, (1 + 21 * US, US), start=1 + 21 * US, line=5),
    )
    (use,) = (each for each in use_of(events).devices if each.device == "gpu")
    (gap,) = use.gaps
    assert (gap.cause, gap.lines) == (Cause.OTHER, ("prog.py:3",))


def test_commands_without_times_between_others_count_as_busy() -> None:
    events = [
        launch(1, (1.0, US), command=1),
        launch(1, None, command=2),
        launch(2, (1 + 9 * US, US)),
    ]
    use = use_of(events)
    assert (use.busy, use.span, use.untimed) == (10 * US, 10 * US, 1)


def test_devices_are_added_up() -> None:
    one = [launch(1, (1.0, US)), launch(2, (1 + 4 * US, US))]
    other = [event._replace(device="b", stream_id=7) for event in one]
    use = use_of([*one, *other])
    assert [each.device for each in use.devices] == ["gpu", "b"]
    assert (use.span, use.busy, use.idle) == (10 * US, 4 * US, 6 * US)
    assert "2 devices busy" in verdict(use)


def test_words() -> None:
    assert duration(2e-6) == "2 µs"
    assert duration(62e-3) == "62 ms"
    assert duration(1.5) == "1.5 s"
    assert place(["/a/b.py:12", "/a/b.py:14"], names=False) == "between lines 12 and 14"
    assert place(["/a/b.py:12"], names=True) == "at line 12 of b.py"
    assert place(["/a/b.py:12", "/a/c.py:14"], names=False) == "between b.py:12 and c.py:14"
    assert place([], names=False) == "in Penstock's own code"
    events = [launch(1, (1.0, 62e-3)), launch(2, (1.0 + 82e-3, 2e-3), start=1.082, line=14)]
    use = use_of([*events, host("launch", 1.0, 0.0, line=12)])
    assert verdict(use).startswith("device busy 64 ms of 84 (76 %); 20 ms of the rest: your ")
    assert math.isclose(sum(use.by_cause.values()), 0.02, abs_tol=1e-8)
    assert all(cause.text and cause.value for cause in Cause)
