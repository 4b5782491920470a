"""Busy and idle time of a device: the intervals in which it ran something, and the gaps between.

A device's *span* is from the start of its first command to the end of its last one, by its own
timestamps. It is *busy* while at least one command runs; commands that overlap, on one stream or on
several, count once. Every other interval of the span is a `Gap`, with its cause (see `causes`).

Times are whole ticks of 2**-30 s, about a nanosecond. So busy time and gaps add up to the span
exactly, as integers and as float seconds: a double holds every sum of such ticks below 97 days.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.tracing.receipt import TraceEvent

_TICKS = 1 << 30  # in a second


class Cause(enum.Enum):
    """Why a device had nothing to run. The value is the name in files, `text` is a sentence."""

    text: str

    def __new__(cls, name: str, text: str) -> Cause:
        made = object.__new__(cls)
        made._value_ = name
        made.text = text
        return made

    CALLER = "caller", "your code ran between two calls of Penstock"
    ISSUING = "issuing", "the host was issuing work: launches, replays, submissions, allocations"
    WAITED = "waited", "the host waited for the device, and so could not issue the next work"
    COPY = "copy", "the host was copying bytes that the next work, or the next call, needed"
    COMPILE = "compile", "a kernel was being compiled"
    VIEW = "view", "the host held a view of the bytes, or used adopted memory, that work needs"
    OTHER = "other", "the work waited for another stream, or the host for another device"
    UNSUBMITTED = "unsubmitted", "work was recorded and not submitted yet"
    LATENCY = "latency", "work was submitted and the device had not begun it yet"
    BOUND = "bound", "the host met a run-ahead bound and waited"
    TRACE = "trace", "the trace itself was taking the device's times"


class Part(NamedTuple):
    """A part of a gap, in which one and the same thing was still to be done."""

    cause: Cause
    start: float  #: seconds, on the clock of `TraceEvent.start`
    seconds: float
    lines: tuple[str, ...] = ()  #: the user's files and lines
    proof: tuple[TraceEvent, ...] = ()  #: the wait, the copy, the compilation, … that shows it
    detail: str = ""  #: which array, how many bytes, how many launches

    def __repr__(self) -> str:
        return _in_short(self)


class Gap(NamedTuple):
    """An interval between two commands in which a device had nothing to run.

    `parts` divides it, in order and without remainder. `cause` is that of the largest share of it,
    and `lines`, `proof` and `detail` are those of the largest part of that cause.
    """

    device: str
    stream: str  #: the stream of `after`
    start: float  #: seconds, on the clock of `TraceEvent.start`
    seconds: float
    cause: Cause
    lines: tuple[str, ...]
    before: TraceEvent  #: the command that ended last before the gap
    after: TraceEvent  #: the command that ended the gap
    parts: tuple[Part, ...]
    proof: tuple[TraceEvent, ...] = ()
    detail: str = ""

    def __repr__(self) -> str:
        return _in_short(self)


def _in_short(thing: Part | Gap) -> str:
    from penstock.tracing.verdict import duration, place

    where = place(thing.lines, names=True)
    return f"<{type(thing).__name__}: {thing.cause.value}, {duration(thing.seconds)}, {where}>"


class DeviceTime(NamedTuple):
    """What one device did: `busy` and the seconds of all `gaps` add up to `span` exactly."""

    device: str
    span: float
    busy: float
    gaps: tuple[Gap, ...] = ()

    @property
    def idle(self) -> float:
        return self.span - self.busy

    def __repr__(self) -> str:
        from penstock.tracing.verdict import duration

        times = f"busy {duration(self.busy)} of {duration(self.span)}, {len(self.gaps)} gaps"
        return f"<DeviceTime: {self.device}, {times}>"


def ticks(seconds: float) -> int:
    """A time in whole ticks. One that is not finite, which no clock returns, is 0."""
    return round(seconds * _TICKS) if math.isfinite(seconds) else 0


def in_seconds(count: int) -> float:
    """Ticks in seconds. Exact below 97 days."""
    return count / _TICKS


class Hole(NamedTuple):
    """A gap without its cause: ticks, and the commands around it."""

    start: int
    end: int
    before: TraceEvent
    after: TraceEvent


class Busy(NamedTuple):
    """Where a device was busy, in ticks."""

    span: int
    busy: int
    holes: list[Hole]


#: Kinds of events that the device executes, if they have a place in a submission.
COMMANDS = ("launch", "copy", "fill", "replay")


def is_command(event: TraceEvent) -> bool:
    """Whether the device executes it, rather than the host."""
    return event.kind in COMMANDS and event.command > 0


def busy_times(events: Iterable[TraceEvent]) -> dict[str, Busy]:
    """By name of the device: when it was busy. Devices without timestamps are left out.

    Only the first commands of a long submission have timestamps. The device counts as busy with the
    others until the next command on the stream that has one.
    """
    commands: dict[str, list[TraceEvent]] = defaultdict(list)
    for event in events:
        if is_command(event):
            commands[event.device].append(event)
    found = {}
    for device, run in commands.items():
        intervals = _intervals(run)
        if intervals:
            found[device] = _union(intervals)
    return found


Interval = tuple[int, int, "TraceEvent"]


def _intervals(commands: Sequence[TraceEvent]) -> list[Interval]:
    """Start, end and command of everything that one device ran."""
    found: list[Interval] = []
    by_stream: dict[int, list[TraceEvent]] = defaultdict(list)
    for command in commands:
        by_stream[command.stream_id].append(command)
    for run in by_stream.values():
        run.sort(key=lambda command: (command.submission, command.command))
        last: Interval | None = None
        untimed: TraceEvent | None = None  # the latest command since `last` without timestamps
        for command in run:
            if command.device_start is None or command.device_seconds is None:
                untimed = command
                continue
            start = ticks(command.device_start)
            end = max(start, ticks(command.device_start + command.device_seconds))
            if last is not None and untimed is not None and last[1] < start:
                found.append((last[1], start, untimed))
            last, untimed = (start, end, command), None
            found.append(last)
    return found


def _union(intervals: list[Interval]) -> Busy:
    intervals.sort(key=lambda interval: interval[:2])
    first, reached, before = intervals[0]
    busy, holes = 0, []
    begun = first
    for start, end, command in intervals:
        if start > reached:
            holes.append(Hole(reached, start, before, command))
            busy += reached - begun
            begun = start
        if end >= reached:
            reached, before = end, command
    return Busy(reached - first, busy + reached - begun, holes)
