"""The receipt: every copy, allocation, wait, barrier, submission and launch, with its reason.

`with trace() as t:` collects what all devices do, in all threads, while the block runs. The runtime
emits plain records (see `events`); reasons and source lines are formatted when they are read.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from penstock import accelerator
from penstock.errors import ArgumentError
from penstock.handle import Handle
from penstock.locks import RLock
from penstock.tracing import events
from penstock.tracing.advice import Advice, advice
from penstock.tracing.cost import TraceCost, cost_of
from penstock.tracing.device_times import DeviceClock
from penstock.tracing.expectations import Expected, fits, in_words
from penstock.tracing.gaps import is_command
from penstock.tracing.idle import Use, Used, between, use_of
from penstock.tracing.source_lines import call_text, line_in_words
from penstock.tracing.verdict import causes_in_words, gaps_in_words


class Point(NamedTuple):
    """What a wait waited for: a submission of a stream, or a host copy."""

    device: str
    stream: str
    stream_id: int
    submission: int
    what: str = ""  #: the work in it that caused the wait, where that is known

    def __str__(self) -> str:
        what = f"{self.what}, " if self.what else ""
        return f"{what}submission {self.submission} of {self.stream}"


class TraceEvent(NamedTuple):
    """One operation and its reason. Times are seconds of `time.perf_counter`.

    (Or of a simulated device's virtual clock, `penstock.driver.sim.virtual_time`.)
    """

    kind: str  #: "copy", "fill", "wait", "barrier", "submission", "launch", "allocation", …
    reason: str
    nbytes: int = 0
    buffer: str = ""  #: the name of the buffer concerned
    lo: int = 0  #: the first of its bytes concerned
    hi: int = 0  #: one past the last
    #: How a transfer was made: direct, rename, staged, ordered, adopt, …; of a wait, "bound" if the
    #: host had run ahead of the device as far as it may (docs/performance.md).
    path: str = ""
    where: str = ""  #: the user's file and line, or a notebook's cell and the line in it
    start: float = 0.0
    seconds: float = 0.0  #: host time; 0 for events without a measured duration
    thread: str = ""  #: the name of the host thread
    thread_id: int = 0  #: the operating system's id of that thread
    device: str = ""
    stream: str = ""  #: the stream, or line of host copies, that it is on
    stream_id: int = -1  #: the stream's number, unique across devices
    submission: int = 0  #: the submission it is part of; in "done" events, the last complete one
    command: int = 0  #: the index of the command in that submission, from 1
    awaited: tuple[Point, ...] = ()  #: what a wait, or a submission, waited for
    #: When the device began it, on the host's clock; None without device timestamps. See
    #: `device_times`.
    device_start: float | None = None
    device_seconds: float | None = None
    inner: int = 0  #: of a "replayed" event, the number of the command in the graph, from 1
    call: str = ""  #: the source of the user's call, where it can be found: `float(x[0])`
    instruction: int = -1  #: of that call in the code of its function; the order within a line

    @property
    def kernel(self) -> str:
        """The name of the kernel of a launch, also inside a replayed graph; else ""."""
        found = _LAUNCH.match(self.reason) if "launch" in (self.kind, self.path) else None
        return found[1] if found else ""

    def __str__(self) -> str:
        parts = [f"{self.kind:<11}"]
        if self.path:
            parts.append(f"[{self.path}]")
        if self.buffer:
            parts.append(f"{self.buffer}[{self.lo}:{self.hi}]")
        if self.nbytes:
            parts.append(human_bytes(self.nbytes))
        parts.append(self.reason)
        if self.seconds:
            parts.append(f"({self.seconds * 1e6:.1f} µs)")
        if self.where:
            here = f"{os.getcwd()}{os.sep}"
            parts.append(f"at {self.where.removeprefix(here)}")
        return "  ".join(parts)


#: The reason of a launch, as `Launch.in_words` says it.
_LAUNCH = re.compile(r"(.*?) in (?:\(\d+, \d+, \d+\) groups$|groups of )", re.DOTALL)
#: The counts: name, kind of event counted, and whether to sum bytes instead.
_COUNTS = (
    ("launches", "launch", False),
    ("replays", "replay", False),
    ("submissions", "submission", False),
    ("barriers", "barrier", False),
    ("copies", "copy", False),
    ("bytes_copied", "copy", True),
    ("fills", "fill", False),
    ("renames", "rename", False),
    ("allocations", "allocation", False),
    ("waits", "wait", False),
)
_CHEAP = ("launch", "replay", "replayed", "submission", "barrier", "done")
_PATIENCE = 10.0  # seconds that saving a file waits for the timestamps of work in flight
_SHOWN = 20  # events that are printed before "… and N more"


class Trace(Used, Handle):
    """The events and counts of everything the runtime did while this trace was active."""

    counts_only = False

    def __init__(self, *, times: bool = True, kernels: bool = False) -> None:
        if kernels and not times:
            raise ArgumentError("kernels=True asks for device times, and times=False for none")
        self.wants_times = times
        self.wants_kernels = kernels
        self.records: list[Any] = []  # as `emit` leaves them
        self._events: list[TraceEvent] = []  # the first of the records, formatted
        self.times: deque[tuple[tuple[int, ...], tuple[float, float]]] = deque()
        self.noted_clocks: dict[str, DeviceClock] = {}  # of all devices, used or not
        self._lines: dict[tuple[int, int], tuple[str, str]] = {}
        self._counted = 0  # how many records the counts below include
        self._counts: dict[str, int] = {}
        self._copied = self._inner_commands = self._inner_barriers = 0
        self._times_put = 0  # how often device times were added to the events
        self._use: tuple[tuple[int, int], Use] | None = None  # what it was made from, and it
        self._reading = RLock()  # reentrant: a signal handler may read, too
        self._stopped: float | None = None
        self.started = events.clock()  #: the clock of `TraceEvent.start`
        self.started_at = time.time()  #: the same moment as a Unix timestamp

    @property
    def events(self) -> list[TraceEvent]:
        """All events so far, in order.

        Does not wait: device times of work that is still in flight are missing until it is
        complete. `wait_for_times` waits for them.
        """
        if self._stopped is not None:
            self._ask_for_times(0)
        with self._reading:
            done = self._events
            start = len(done)
            done[start:] = [self._read(record) for record in self.records[start:]]
            if self.times:
                self._put_device_times()
            return done

    def wait_for_times(self, timeout: float = _PATIENCE) -> None:
        """Wait up to `timeout` seconds for the device times of work that is still in flight.

        Leaving the `with` block does not wait. Times that do not arrive are left out: the device
        is lost, is still working, or waits for a view that this thread holds.
        """
        self._ask_for_times(timeout)

    def _ask_for_times(self, patience: float) -> None:
        for source in events.living_sources():
            source.deliver_times(self, patience)
            source.note_clock((self,))

    @property
    def cost(self) -> TraceCost:
        """What this trace has added to the program: host time, and time on the device."""
        return cost_of(self.events)

    @property
    def clocks(self) -> dict[str, DeviceClock]:
        """By the name of each device in it: whether it has device times, and how exact they are."""
        used = {event.device for event in self.events}
        return {name: clock for name, clock in self.noted_clocks.items() if name in used}

    @property
    def clock_error(self) -> float | None:
        """By how many seconds device times may be off the host's; None if that is not known."""
        errors = [clock.error for clock in self.clocks.values() if clock.error is not None]
        return max(errors, default=None)

    def of_kind(self, kind: str) -> list[TraceEvent]:
        """The events of one kind, in order."""
        return [event for event in self.events if event.kind == kind]

    def _count(self, kind: str) -> int:
        self._count_up()
        return self._counts.get(kind, 0)

    def _count_up(self) -> None:
        """Count the records added since the last call, so that reading often stays cheap."""
        with self._reading:
            records, counts = self.records, self._counts
            while self._counted < len(records):
                record = records[self._counted]
                self._counted += 1
                kind = record[0]
                counts[kind] = counts.get(kind, 0) + 1
                if kind == "copy":
                    self._copied += record[2]
                elif kind == "replay":
                    _, commands, barriers = record[1]
                    self._inner_commands += commands
                    self._inner_barriers += barriers

    @property
    def waits(self) -> int:
        """How often the host blocked."""
        return self._count("wait")

    @property
    def bounds_met(self) -> dict[str, int]:
        """How many of the waits were at each run-ahead bound, which docs/performance.md lists."""
        return dict(Counter(e.reason for e in self.of_kind("wait") if e.path == "bound"))

    @property
    def copies(self) -> int:
        """How often bytes were copied, by the host or by the device."""
        return self._count("copy")

    @property
    def bytes_copied(self) -> int:
        self._count_up()
        return self._copied

    @property
    def allocations(self) -> int:
        """Memory allocations and imports by the driver; timelines, recordings and pools it made."""
        return self._count("allocation")

    @property
    def barriers(self) -> int:
        """Barriers between work on the device, and between device and host."""
        return self._count("barrier")

    @property
    def submissions(self) -> int:
        return self._count("submission")

    @property
    def launches(self) -> int:
        return self._count("launch")

    @property
    def replays(self) -> int:
        """How often a graph was replayed. `launches` and `barriers` exclude what is inside it."""
        return self._count("replay")

    @property
    def replayed_commands(self) -> int:
        """Launches, copies and fills inside the replayed graphs, summed over all replays."""
        self._count_up()
        return self._inner_commands

    @property
    def replayed_barriers(self) -> int:
        """Barriers inside the replayed graphs, summed over all replays."""
        self._count_up()
        return self._inner_barriers

    @property
    def renames(self) -> int:
        """How often a buffer got fresh memory, so that the host need not wait."""
        return self._count("rename")

    @property
    def fills(self) -> int:
        return self._count("fill")

    @property
    def seconds(self) -> float:
        """How long the trace has been, or was, active."""
        return (self._stopped or events.clock()) - self.started

    @property
    def use(self) -> Use:
        """How busy the devices were, gap by gap, as far as their times are known now.

        `span`, `busy`, `idle`, `gaps`, `kernels` and `verdict` are parts of it. None of them waits;
        `wait_for_times` does.
        """
        found = self.events
        with self._reading:
            if self._use is None or self._use[0] != (len(found), self._times_put):
                made = use_of(found, self._why_no_times(found))
                self._use = ((len(found), self._times_put), made)
            return self._use[1]

    def use_between(self, start: float, end: float) -> Use:
        """`use` of the commands that the device ran between two moments (`time.perf_counter`)."""
        found = self.events
        return use_of(between(found, start, end), self._why_no_times(found))

    @property
    def advice(self) -> tuple[Advice, ...]:
        """A sentence for each cause of idle time that a call of Penstock's would have shortened."""
        return advice(self.use, self.events)

    def _why_no_times(self, found: Sequence[TraceEvent]) -> str:
        if not self.wants_times:
            return "the trace was made with times=False"
        if not any(is_command(event) for event in found):
            return "it ran nothing while the trace was active"
        return "it has no timestamps, or has not completed anything yet"

    def as_dict(self) -> dict[str, int | float]:
        """The counts by name."""
        counts: dict[str, int | float] = {name: getattr(self, name) for name, _, _ in _COUNTS}
        return {**counts, "seconds": self.seconds}

    def expect(self, **counts: Expected) -> None:
        """Raise `AssertionError`, listing the events counted, unless the counts are as given.

        Takes the names of `as_dict`, each with a number, a range or a function that judges it:
        `t.expect(waits=1, allocations=0, copies=range(3), bytes_copied=lambda n: n < 4096)`.

        Also takes `idle`, the share of `span` in which the device may have been idle at most:
        `t.expect(idle=0.1)`. Then it first calls `wait_for_times`, and a device without timestamps
        fails it.
        """
        __tracebackhide__ = True  # pytest shows the line that expects, not this one
        actual: dict[str, int | float | None] = {**self.as_dict()}
        actual["idle"] = self._idle_share() if "idle" in counts else None
        if unknown := [name for name in counts if name not in actual]:
            raise ArgumentError(
                f"expect() knows no {', '.join(map(repr, unknown))}; there are {', '.join(actual)}"
            )
        wrong = [name for name, wanted in counts.items() if not fits(name, actual[name], wanted)]
        if wrong:
            lines = ["the receipt is not as expected"]
            for name in wrong:
                lines.append(f"  {name}: {actual[name]}, expected {in_words(name, counts[name])}")
                kinds = [kind for count, kind, _ in _COUNTS if count == name]
                lines += _shown([event for kind in kinds for event in self.of_kind(kind)])
                if name == "idle":
                    lines += (f"    {line}" for line in (self.verdict, *gaps_in_words(self.gaps)))
            raise AssertionError("\n".join(lines))

    def _idle_share(self) -> float | None:
        self.wait_for_times()
        span, idle = self.span, self.idle
        return None if span is None or idle is None else idle / span if span else 0.0

    def save_html(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Write one self-contained HTML page that shows the trace on a timeline.

        Like the other methods that write files, it first calls `wait_for_times`.
        """
        self.wait_for_times()
        from penstock.tracing.page import as_html

        _write(path, as_html(self, title))

    def save_json(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Write events and counts as JSON; docs/tracing.md describes the format."""
        self.wait_for_times()
        from penstock.tracing.document import as_json

        _write(path, as_json(self, title))

    def save_perfetto(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Write a file for https://ui.perfetto.dev and other viewers of Chrome's format."""
        self.wait_for_times()
        from penstock.tracing.perfetto import as_perfetto

        _write(path, as_perfetto(self, title))

    def __enter__(self) -> Trace:
        self.started_at = time.time()
        self.started = events.clock()
        events.begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        events.end(self)
        for source in events.living_sources():
            source.note_clock((self,))
        self._stopped = events.clock()

    def __str__(self) -> str:
        lines = []
        if any(is_command(event) for event in self.events):
            lines += [self.verdict, *(f"  {line}" for line in causes_in_words(self.use))]
        lines.append(f"penstock receipt, {self.seconds * 1e3:.2f} ms")
        for name, value in self.as_dict().items():
            if name in ("seconds", "bytes_copied"):
                continue
            extra = f"  ({human_bytes(self.bytes_copied)})" if name == "copies" else ""
            lines.append(f"  {name:<12}{value:>7}{extra}")
        lines.append(f"  native step: {accelerator.status}")
        if bounds := self.bounds_met:
            met = "; ".join(f"{count} × {bound}" for bound, count in bounds.items())
            lines.append(f"  bounds met: {met}")
        costly = [e for e in self.events if e.kind not in _CHEAP]
        costly.sort(key=lambda e: e.kind == "clock")  # the trace's own work comes last
        if costly:
            lines += ["  in detail", *_shown(costly)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: the page of `save_html` inline. Waits like it."""
        self.wait_for_times()
        from penstock.tracing.page import as_frame

        return as_frame(self)

    def _read(self, record: Any) -> TraceEvent:
        """Format a record that `emit` left."""
        kind, reason, *details, start, seconds, code, instruction, thread, at, awaited = record
        if type(reason) is tuple:
            reason = reason[0] % reason[1:]
        where, call = ("", "") if code is None else self._where(code, instruction)
        if awaited:
            awaited = tuple([Point._make((*place, *rest)) for place, *rest in awaited])
        place, submission, command, *inner = at
        point = (*place, submission, command)
        fields = (kind, reason, *details, where, start, seconds, *thread, *point, awaited)
        times = (None, None)
        return TraceEvent._make((*fields, *times, *(inner or (0,)), call, instruction))

    def _where(self, code: CodeType, instruction: int) -> tuple[str, str]:
        """Line and text of a call."""
        key = (id(code), instruction)  # records keep the code alive, so ids are not reused
        found = self._lines.get(key)
        if found is None:
            where = line_in_words(code.co_filename, _line(code, instruction))
            found = self._lines[key] = where, call_text(code, instruction)
        return found

    def _put_device_times(self) -> None:
        self._times_put += 1
        arrived = dict([self.times.popleft() for _ in range(len(self.times))])
        for number, event in enumerate(self._events):
            key: tuple[int, ...] = (event.stream_id, event.submission, event.command)
            key = (*key, event.inner) if event.inner else key
            if event.kind in _ON_DEVICE and key in arrived:
                start, seconds = arrived[key]
                self._events[number] = event._replace(device_start=start, device_seconds=seconds)


_ON_DEVICE = ("launch", "copy", "fill", "replay", "replayed", "submission")


def trace(*, times: bool = True, kernels: bool = False) -> Trace:
    """Trace everything the runtime does inside the `with` block.

    `times=False` leaves out the device's timestamps, which add to the cost of every launch.
    `kernels=True` adds an event with times for each command inside a replayed graph; the graph is
    encoded again for that, with timestamps.
    """
    return Trace(times=times, kernels=kernels)


def _line(code: CodeType, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def _write(path: str | os.PathLike[str], text: str) -> None:
    # Names may hold lone surrogates, which UTF-8 cannot encode: Python's escape is valid JSON.
    Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")


def _shown(events: Sequence[TraceEvent]) -> Iterable[str]:
    yield from (f"    {event}" for event in events[:_SHOWN])
    if len(events) > _SHOWN:
        yield f"    … and {len(events) - _SHOWN} more in .events"


def human_bytes(count: int) -> str:
    """A byte count with a unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
