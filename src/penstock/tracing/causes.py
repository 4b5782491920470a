"""Why a device had nothing to run in a gap: the walk back from the command that ended it.

A command begins once the device has it, everything it waits for is complete, and the driver has got
round to it; the host gives it to the device by a call that records it and one that submits it. The
walk starts at the command that ended the gap and goes back in time along these prerequisites,
always to the one that was complete *last*: had it been complete earlier, the command would have
begun earlier, and had any other one been, it would not. The time from the completion of one
prerequisite to that of the next is a `Part` of the gap, so the parts of a gap add up to it exactly.
From the latest to the earliest:

1. *latency*: from the last of submission and awaited points until the command began;
2. *copy*, *view*, *other*: while a host copy, a view or another stream's event was outstanding
   that the submission waits for, if that ended after the submission was made;
3. *issuing*: while the submission was being made;
4. *unsubmitted*: from when the command was recorded until its submission was made, unless the call
   that recorded it also submitted it (then *issuing*);
5. what the thread that recorded the command did before that, from event to event: *issuing*,
   *waited*, *bound*, *copy*, *compile*, *trace*; and *caller* where it was outside of Penstock.

One correction follows. If the last wait of that thread was for the command before the gap, then the
host could issue nothing while that command ran: without the wait, everything that it did afterwards
would have happened earlier, by as long as the wait took. So up to that many seconds of *issuing*
and *latency* count as *waited* (or *bound*). Time in the caller's code and in copies does not,
because it has a line of its own.

The cause of the gap is the one with the largest share of its parts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.tracing.gaps import Cause, Gap, Hole, Part, in_seconds, is_command, ticks

if TYPE_CHECKING:
    from penstock.tracing.receipt import Point, TraceEvent

#: What the host was doing, by the kind of event that covers the time.
_OF_KIND = {
    "launch": Cause.ISSUING,
    "replay": Cause.ISSUING,
    "submission": Cause.ISSUING,
    "allocation": Cause.ISSUING,
    "fill": Cause.ISSUING,
    "adopt": Cause.ISSUING,
    "copy": Cause.COPY,
    "compile": Cause.COMPILE,
    "clock": Cause.TRACE,
    "wait": Cause.WAITED,
}
#: Reasons of submissions that the call makes which recorded the command (`submit_policy`).
_AT_ONCE = ("the device would run dry", "the recording is long")
#: Kinds of events that the host reaches a point with: the end of a copy or of a view.
_HOST_POINTS = ("done", "copy")
_EXPOSED = (Cause.ISSUING, Cause.LATENCY)


class Piece(NamedTuple):
    """A time, in ticks, that a thread spent on one event and on none inside of that event."""

    start: int
    end: int
    event: TraceEvent


class _Step(NamedTuple):
    """A part of a gap, in ticks."""

    cause: Cause
    start: int
    end: int
    lines: tuple[str, ...] = ()
    proof: tuple[TraceEvent, ...] = ()
    detail: str = ""


class _Done(NamedTuple):
    """When a point was complete, since when it was being worked on, and the event that says so."""

    value: int
    begun: int
    end: int
    events: tuple[TraceEvent, ...]


class Events:
    """The events of a trace, arranged for the walk."""

    def __init__(self, events: Iterable[TraceEvent]) -> None:
        self._submissions: dict[tuple[int, int], TraceEvent] = {}
        self._lengths: dict[tuple[int, int], int] = {}  # the last command of each submission
        self._orders: dict[tuple[int, int], list[TraceEvent]] = defaultdict(list)
        self._done: dict[int, list[_Done]] = defaultdict(list)  # by lane, in order of values
        by_thread: dict[tuple[str, int], list[TraceEvent]] = defaultdict(list)
        asked: dict[tuple[int, int], TraceEvent] = {}  # views and copies, by the point of their end
        ends: dict[int, dict[int, int]] = defaultdict(dict)
        for event in events:
            at = (event.stream_id, event.submission)
            if is_command(event):
                self._lengths[at] = max(event.command, self._lengths.get(at, 0))
                if event.device_start is not None and event.device_seconds is not None:
                    end = ticks(event.device_start + event.device_seconds)
                    ends[at[0]][at[1]] = max(end, ends[at[0]].get(at[1], end))
            elif event.kind == "submission":
                self._submissions[at] = event
            elif event.kind == "order":
                self._orders[at].append(event)
            elif event.kind == "view" or (event.kind == "copy" and not event.seconds):
                asked[at] = event
            elif event.kind in _HOST_POINTS and event.path and event.submission:
                self._note_done(event, asked.get(at))
            if (event.seconds or event.where) and event.kind != "done":
                by_thread[event.thread, event.thread_id].append(event)
        for stream, values in ends.items():
            # By the device's own clock, which is more exact than when the host learned of it.
            self._done[stream] = [_Done(v, end, end, ()) for v, end in sorted(values.items())]
        for found in self._done.values():
            found.sort(key=lambda done: done.value)
        self._pieces = {thread: pieces(found) for thread, found in by_thread.items()}
        self._starts = {
            thread: [piece.start for piece in found] for thread, found in self._pieces.items()
        }
        self._waits = {
            thread: [event for event in found if event.kind == "wait"]
            for thread, found in by_thread.items()
        }

    def _note_done(self, event: TraceEvent, asked: TraceEvent | None) -> None:
        begun, end = _interval(event)
        if asked is not None and asked.kind == "view":
            begun = ticks(asked.start)
        proof = (event,) if asked is None else (asked, event)
        self._done[event.stream_id].append(_Done(event.submission, begun, end, proof))

    def submission(self, command: TraceEvent) -> TraceEvent | None:
        """The submission that a command is part of, if it was made while the trace was active."""
        return self._submissions.get((command.stream_id, command.submission))

    def is_last(self, command: TraceEvent) -> bool:
        """Whether a command is the last one of its submission."""
        return command.command == self._lengths[command.stream_id, command.submission]

    def order(self, point: Point, command: TraceEvent) -> TraceEvent | None:
        """The call of `Stream.wait` that made a command's submission wait for a point."""
        for order in self._orders.get((command.stream_id, command.submission), ()):
            if any(p.stream_id == point.stream_id for p in order.awaited):
                return order
        return None

    def is_host(self, point: Point) -> bool:
        """Whether a point is a copy or a view of the host, not a submission."""
        done = self._done.get(point.stream_id)
        return done is not None and bool(done[0].events)

    def done(self, point: Point) -> _Done | None:
        """When a point was complete, as far as the trace tells."""
        found = self._done.get(point.stream_id, [])
        index = bisect_left(found, point.submission, key=lambda done: done.value)
        return found[index] if index < len(found) else None

    def latest(self, points: Sequence[Point]) -> tuple[Point, _Done] | None:
        """The one of several points that was complete last."""
        known = [(point, done) for point in points if (done := self.done(point)) is not None]
        return max(known, key=lambda pair: pair[1].end, default=None)

    def back(self, thread: tuple[str, int], end: int) -> Iterator[Piece]:
        """What a thread did before a moment, latest first."""
        found = self._pieces.get(thread, [])
        index = bisect_left(self._starts.get(thread, []), end)
        for number in range(index - 1, -1, -1):
            yield found[number]

    def last_wait(self, thread: tuple[str, int], moment: float) -> TraceEvent | None:
        """The last wait of a thread that began before a moment (seconds)."""
        found = self._waits.get(thread, [])
        index = bisect_left(found, moment, key=lambda wait: wait.start)
        return found[index - 1] if index else None

    def next_piece(self, thread: tuple[str, int], start: int) -> Piece | None:
        """The first thing that a thread did from a moment on."""
        index = bisect_left(self._starts.get(thread, []), start)
        found = self._pieces.get(thread, [])
        return found[index] if index < len(found) else None


def pieces(events: Sequence[TraceEvent]) -> list[Piece]:
    """One thread's events as pieces in order: of events inside each other, the innermost counts."""
    found: list[Piece] = []
    open_: list[tuple[int, TraceEvent]] = []  # end and event, the innermost last
    now = 0

    def close_until(moment: int) -> None:
        nonlocal now
        while open_ and open_[-1][0] <= moment:
            end, event = open_.pop()
            if end > now:
                found.append(Piece(now, end, event))
                now = end
        if open_ and moment > now:
            found.append(Piece(now, moment, open_[-1][1]))

    for event in sorted(events, key=lambda event: (event.start, -event.seconds)):
        start, end = _interval(event)
        close_until(start)
        now = max(now, start)
        if end > start:
            open_.append((end, event))
        elif not open_:
            found.append(Piece(start, start, event))  # a call that took no time has a line, too
    close_until(max((end for end, _ in open_), default=0))
    return found


def explain(device: str, hole: Hole, events: Events) -> Gap:
    """The gap with its parts and its cause."""
    steps = _Walk(device, hole, events).steps()
    shares: dict[Cause, int] = defaultdict(int)
    groups: dict[tuple[Cause, tuple[str, ...]], list[_Step]] = defaultdict(list)
    for step in steps:
        shares[step.cause] += step.end - step.start
        groups[step.cause, step.lines].append(step)
    cause = max(shares, key=lambda each: shares[each])
    sizes = {key: sum(s.end - s.start for s in found) for key, found in groups.items()}
    largest = max((key for key in groups if key[0] is cause), key=lambda key: sizes[key])
    proof = tuple(event for step in groups[largest] for event in step.proof)
    detail = max(groups[largest], key=lambda step: step.end - step.start).detail
    return Gap(
        device, hole.after.stream, in_seconds(hole.start), in_seconds(hole.end - hole.start),
        cause, largest[1], hole.before, hole.after, tuple(_as_part(step) for step in steps),
        proof, _issued(proof, sizes[largest]) if cause is Cause.ISSUING else detail,
    )  # fmt: skip


class _Walk:
    """The walk back through one gap."""

    def __init__(self, device: str, hole: Hole, events: Events) -> None:
        self._device = device
        self._hole = hole
        self._events = events
        self._found: list[_Step] = []  # latest first
        self._now = hole.end  # how far back the walk has come

    def steps(self) -> list[_Step]:
        """The parts of the gap, in order."""
        command = self._hole.after
        thread = (command.thread, command.thread_id)
        self._walk_device(command)
        self._walk_host(thread)
        self._found.reverse()
        merged: list[_Step] = []
        for step in self._charge_wait(thread, self._found):
            last = merged[-1] if merged else None
            if last is not None and last[0] is step.cause and last.lines == step.lines:
                proof = tuple(dict.fromkeys((*last.proof, *step.proof)))
                detail = last.detail or step.detail
                merged[-1] = last._replace(end=step.end, proof=proof, detail=detail)
            else:
                merged.append(step)
        return merged

    def _back_to(
        self, moment: int, cause: Cause, lines: tuple[str, ...] = (),
        proof: tuple[TraceEvent, ...] = (), detail: str = "",
    ) -> None:  # fmt: skip
        """Blame the time from a moment on that is not blamed yet."""
        start = max(moment, self._hole.start)
        if start < self._now:
            known = tuple(line for line in lines if line)
            if cause is not Cause.CALLER:  # whose lines are where the code begins and ends
                known = tuple(dict.fromkeys(known))
            self._found.append(_Step(cause, start, self._now, known, proof, detail))
            self._now = start

    def _walk_device(self, command: TraceEvent) -> None:
        """Back to when the host had recorded the command."""
        submission = self._events.submission(command)
        where = (command.where,)
        recorded = _interval(command)[1]
        if submission is None:
            why = "not submitted while the trace was active"
            self._back_to(recorded, Cause.UNSUBMITTED, where, (command,), why)
            return
        given, accepted = _interval(submission)
        late = self._events.latest(submission.awaited)
        if late is not None and late[1].end > given:
            self._walk_point(command, submission, *late)
        self._back_to(accepted, Cause.LATENCY, where, (submission,))
        self._back_to(given, Cause.ISSUING, where, (submission,))
        same_call = (
            submission.thread_id == command.thread_id
            and submission.where == command.where
            and submission.reason.endswith(_AT_ONCE)
            and self._events.is_last(command)
        )
        if same_call:
            self._back_to(recorded, Cause.ISSUING, where, (submission,))
        else:
            why = submission.reason.partition(": ")[2]
            self._back_to(recorded, Cause.UNSUBMITTED, where, (command, submission), why)

    def _walk_point(
        self, command: TraceEvent, submission: TraceEvent, point: Point, done: _Done
    ) -> None:
        """Back to when the last of the points was begun that the submission waits for."""
        # An event makes no difference where the command's own arrays need the point as well.
        order = None if point.what else self._events.order(point, command)
        lines = (command.where,) if order is None else (order.where, command.where)
        proof = (submission,) if order is None else (order, submission)
        if not self._events.is_host(point):
            if self._hole.before.stream_id == point.stream_id:
                # The device had run until the other stream's work was complete, and the command
                # was there before: what was left is to pass from one stream to the other.
                self._back_to(done.end, Cause.OTHER, lines, proof, str(point))
            return
        self._back_to(done.end, Cause.LATENCY, (command.where,), (submission,))
        given = ticks(submission.start)
        if order is not None:
            self._back_to(given, Cause.OTHER, lines, (*proof, *done.events), str(point))
            return
        begun, cause = min(done.begun, given), _cause_of_lane(done)
        known = done.events if cause is Cause.VIEW else done.events[:1]
        wheres = tuple(event.where for event in known if event.where)
        self._back_to(begun, cause, wheres or lines, done.events, _about(done.events[0]))

    def _walk_host(self, thread: tuple[str, int]) -> None:
        """Back to the start of the gap, by what a thread did."""
        after = self._hole.after
        if self._now < ticks(after.start):  # the walk has left out a part of the thread's time
            following = self._events.next_piece(thread, self._now)
            after = after if following is None else following.event
        for piece in self._events.back(thread, self._now):
            if self._now <= self._hole.start:
                return
            if piece.end < self._now:
                if _is_same_call(piece.event, after):
                    self._back_to(piece.end, *self._blame(piece.event))
                else:
                    self._back_to(piece.end, Cause.CALLER, _from_to(piece.event, after))
            self._back_to(piece.start, *self._blame(piece.event))
            after = piece.event if piece.event.where else after
        self._back_to(self._hole.start, Cause.CALLER, (after.where,))

    def _blame(
        self, event: TraceEvent
    ) -> tuple[Cause, tuple[str, ...], tuple[TraceEvent, ...], str]:
        """The cause of time that the host spent on an event; its lines, proof and detail."""
        cause = _OF_KIND.get(event.kind, Cause.ISSUING)
        if cause is Cause.WAITED:
            cause = self._cause_of_wait(event)
        detail = "" if cause is Cause.ISSUING else _about(event)
        return cause, (event.where,), (event,), detail

    def _cause_of_wait(self, wait: TraceEvent) -> Cause:
        if wait.path == "bound":
            return Cause.BOUND
        late = self._events.latest(wait.awaited)
        if late is None:
            return Cause.WAITED
        point, done = late
        if point.device != self._device:
            return Cause.OTHER
        return _cause_of_lane(done) if self._events.is_host(point) else Cause.WAITED

    def _charge_wait(self, thread: tuple[str, int], steps: Sequence[_Step]) -> Iterator[_Step]:
        """Give the wait for the command before the gap the time that it exposed."""
        wait = self._exposing_wait(thread)
        left = 0 if wait is None else ticks(wait.seconds)
        for step in steps:
            size = step.end - step.start
            if wait is None or step.cause not in _EXPOSED or left == 0:
                yield step
                continue
            middle = step.start + min(size, left)
            left -= middle - step.start
            cause, lines, proof, detail = self._blame(wait)
            yield _Step(cause, step.start, middle, lines, proof, detail)
            if middle < step.end:
                yield step._replace(start=middle)

    def _exposing_wait(self, thread: tuple[str, int]) -> TraceEvent | None:
        """The last wait of a thread before it recorded the command, if for what ran before it."""
        before = self._hole.before
        after = self._hole.after
        wait = self._events.last_wait(thread, after.start + after.seconds)
        for point in () if wait is None else wait.awaited:
            if point.stream_id == before.stream_id and point.submission >= before.submission:
                return wait
        return None


def _as_part(step: _Step) -> Part:
    detail = step.detail
    if step.cause is Cause.ISSUING:
        detail = _issued(step.proof, step.end - step.start)
    start, seconds = in_seconds(step.start), in_seconds(step.end - step.start)
    return Part(step.cause, start, seconds, step.lines, step.proof, detail)


def _interval(event: TraceEvent) -> tuple[int, int]:
    return ticks(event.start), ticks(event.start + event.seconds)


def _from_to(event: TraceEvent, following: TraceEvent) -> tuple[str, ...]:
    """The lines of two calls of a thread: one, if both are on it in the same turn of a loop."""
    if event.where == following.where and event.instruction < following.instruction:
        return (event.where,)
    return (event.where, following.where)


def _is_same_call(event: TraceEvent, following: TraceEvent) -> bool:
    """Whether one call made two events: it waited and took times, or copied and then recorded."""
    if event.where != following.where:
        return False
    if event.kind == "wait":
        return following.kind == "clock" or following.buffer == event.buffer != ""
    if event.kind == "clock":
        return following.kind == "copy"
    if event.kind in ("allocation", "rename"):  # in the middle of what they are for
        return True
    if event.kind == "compile" and event.instruction == following.instruction >= 0:
        return True  # the first call of a kernel
    return event.kind == "copy" == following.kind and is_command(following)


def _cause_of_lane(done: _Done) -> Cause:
    """Why work waited for a point of the host: a copy, or bytes that the host held."""
    held = any(event.kind == "view" or event.path == "adopted" for event in done.events)
    return Cause.VIEW if held else Cause.COPY


def _about(event: TraceEvent) -> str:
    """The array, bytes, path and reason of an event, in a few words."""
    array = f"{event.buffer}[{event.lo}:{event.hi}]" if event.buffer else ""
    size = f"{event.nbytes:,} bytes" if event.nbytes else ""
    return ", ".join(part for part in (array, size, event.path, event.reason) if part)


def _issued(proof: Sequence[TraceEvent], spent: int) -> str:
    """How many launches the host issued in a time, and how much of it each took."""
    launches = len({event for event in proof if event.kind in ("launch", "replay")})
    if not launches:
        return ""
    what = "launch" if launches == 1 else "launches"
    return f"{launches} {what}, {in_seconds(spent) / launches * 1e6:.1f} µs each"
