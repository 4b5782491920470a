"""What to do about idle time: a sentence for each cause, where following it would have helped.

For every part of every gap a rule works out by how much the gap would have been shorter, had the
program followed the advice; 0 where the trace does not show that. The rules, by cause:

- *waited*: nothing that the host did between the wait and the command that ended the gap carried
  bytes to the device, so the command could have been issued before the wait. It saves the part.
- *caller*: if nothing carried bytes to the device from the code on, the command could have been
  issued first; in a loop, all commands could have been, and the code could have run afterwards. If
  something did, as a loader's batch is written before its launch, and the same lines left gaps
  repeatedly, the code could have run ahead while the device worked: it saves as much of the part
  as the device was busy before the gap. If the host does not wait for the device, it does so
  already, and two threads would have taken half of its time.
- *copy*: a staged copy of bytes that the next command does not use could have been left to the
  runtime (`borrow=True`); a direct read could have been a view; other writes could have gone to
  memory that the device uses in place. It saves the part.
- *compile*: the kernel could have been made before the first command. It saves the part.
- *view*: the command was submitted while the host held the view. It saves the time since then.
- *other*: a submission waited for an event, and its first command uses no bytes of the work
  awaited. It saves the part.
- *unsubmitted*: a flush would have submitted it. It saves the part, but no more than by how much
  the next command could have begun earlier, since otherwise the device would have been idle after
  the command instead; less the cost of a submission for each time that the line ran.
- *issuing*: launches that follow each other repeat, so that a graph could replay them: of a
  sequence of n launches it saves all but one.
- *latency*: the command was submitted before the gap began. As the first of its submission, it
  would have begun at once in the submission before it: that saves the part. Between two short
  launches of one submission the time is the driver's own, and fewer launches have less of it: one
  in place of a sequence of n saves all but one, and one in place of two of the same saves half.
- *bound*: each bound has a way to stay below it (docs/performance.md). It saves the part.

There is at most one sentence for each cause, and at most one for each thing that lines do: of a
flush and a batch of the same launches, or of a later read and a view in place of it, the one that
saves more. It must save at least a hundredth of the span.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.tracing.gaps import Cause, Gap, Part, is_command
from penstock.tracing.source_lines import file_and_line, is_condition
from penstock.tracing.split_calls import split_pending, split_read, view_of
from penstock.tracing.verdict import duration, is_turn, place

if TYPE_CHECKING:
    from penstock.tracing.idle import Use
    from penstock.tracing.receipt import TraceEvent

_LEAST = 0.01  # of the span
_AFTER_LOOP = "after the loop, or some turns later"
_SHORT = 2e-4  # seconds of a launch that is worth merging with others
_LARGE = 1 << 20  # bytes from which a borrowed write is left to a thread of the runtime
#: Kinds of events that may carry values of the host to the device.
_CARRY = ("copy", "fill", "view", "adopt", "rename")
#: Reasons of copies that carry values from the device to the host.
_READS = (
    "the work that writes the bytes is done",
    "nothing pending writes the bytes",
    "to the caller's array",
)


def _is_read(event: TraceEvent) -> bool:
    """Whether a transfer carries values to the host only."""
    return event.kind == "copy" and event.reason in _READS


class Advice(NamedTuple):
    """A sentence, and how many seconds of idle time of its cause it would have saved."""

    cause: Cause
    seconds: float
    sentence: str
    gaps: tuple[Gap, ...] = ()  #: those that would have been shorter
    lines: tuple[str, ...] = ()  #: the user's files and lines to change

    def __str__(self) -> str:
        return f"{self.sentence} (up to {duration(self.seconds)})"

    def __repr__(self) -> str:
        return (
            f"<Advice: {self.cause.value}, up to {duration(self.seconds)}, "
            f"{place(self.lines, names=True)}>"
        )


class _Change(NamedTuple):
    """What to change. Two changes exclude each other if they do the same `act` at a shared line."""

    sentence: str
    lines: tuple[str, ...]
    act: str = ""  #: "read", "write" or "submit"; "" if it excludes no other

    def excludes(self, other: _Change) -> bool:
        return self.act == other.act != "" and not set(self.lines).isdisjoint(other.lines)


def advice(use: Use, events: Sequence[TraceEvent]) -> tuple[Advice, ...]:
    """What would have helped, the largest saving first."""
    rules = _Rules(use, events)
    saved: dict[tuple[Cause, _Change], float] = defaultdict(float)
    shorter: dict[tuple[Cause, _Change], dict[int, Gap]] = defaultdict(dict)
    for gap in use.gaps:
        for part in gap.parts:
            for change, seconds in rules.of_part(gap, part):
                if seconds > 0:
                    saved[part.cause, change] += seconds
                    shorter[part.cause, change][id(gap)] = gap
    least = _LEAST * (use.span or 0.0)
    found: dict[Cause, _Change] = {}
    for cause, change in sorted(saved, key=lambda key: -saved[key]):
        helps = saved[cause, change] >= least and cause not in found
        if helps and not any(change.excludes(other) for other in found.values()):
            found[cause] = change
    return tuple(
        Advice(
            cause, saved[cause, change], change.sentence,
            tuple(shorter[cause, change].values()), change.lines,
        )
        for cause, change in found.items()
    )  # fmt: skip


Changes = Iterator[tuple[_Change, float]]


class _Rules:
    """The rules, and what they look up in a trace."""

    def __init__(self, use: Use, events: Sequence[TraceEvent]) -> None:
        files = {
            line.rpartition(":")[0] for g in use.gaps for part in g.parts for line in part.lines
        }
        self._names = len(files) > 1
        self._by_thread: dict[int, list[TraceEvent]] = defaultdict(list)
        self._submissions = {}
        self._launched: dict[int, list[str]] = defaultdict(list)  # by thread, the lines
        self._turns: dict[tuple[int, str, str], tuple[int, int]] = {}  # where in it, and the period
        self._waits: dict[tuple[int, str], int] = defaultdict(int)
        for event in sorted(events, key=lambda event: event.start):
            self._by_thread[event.thread_id].append(event)
            if event.kind == "submission":
                self._submissions[event.stream_id, event.submission] = event
            elif event.kind == "launch":
                key = (event.thread_id, event.where, event.reason)
                launched = self._launched[event.thread_id]
                now = len(launched)
                self._turns[key] = (now, now - self._turns[key][0] if key in self._turns else 0)
                launched.append(event.where)
            elif event.kind == "wait":
                self._waits[event.thread_id, event.where] += 1
        run = sorted(
            (event for event in events if is_command(event)),
            key=lambda event: (event.stream_id, event.submission, event.command),
        )
        self._commands = Counter((event.thread_id, event.where) for event in run)
        self._following = {
            (event.stream_id, event.submission, event.command): following
            for event, following in itertools.pairwise(run)
            if event.stream_id == following.stream_id
        }
        self._unsubmitted_at = Counter(
            (gap.after.thread_id, gap.after.where)
            for gap in use.gaps
            if any(part.cause is Cause.UNSUBMITTED for part in gap.parts)
        )
        self._places: dict[tuple[str, ...], int] = defaultdict(int)
        self._busy_before: dict[float, float] = {}
        for device in use.devices:
            end = None
            for gap in device.gaps:
                if end is not None:
                    self._busy_before[gap.start] = gap.start - end
                end = gap.start + gap.seconds
                for lines in {part.lines for part in gap.parts if part.cause is Cause.CALLER}:
                    self._places[lines] += 1
        self._rules: dict[Cause, Callable[[Gap, Part], Changes]] = {
            Cause.WAITED: self._waited,
            Cause.CALLER: self._caller,
            Cause.COPY: self._copy,
            Cause.COMPILE: self._compile,
            Cause.VIEW: self._view,
            Cause.OTHER: self._other,
            Cause.UNSUBMITTED: self._unsubmitted,
            Cause.ISSUING: self._issuing,
            Cause.LATENCY: self._latency,
            Cause.BOUND: self._bound,
        }

    def of_part(self, gap: Gap, part: Part) -> Changes:
        """The changes that concern a part of a gap, and the seconds each would have saved."""
        rule = self._rules.get(part.cause)
        if rule is not None:
            yield from rule(gap, part)

    def _at(self, *lines: str) -> str:
        return place([line for line in lines if line], names=self._names)

    def _transfers(self, command: TraceEvent, start: float) -> Iterator[TraceEvent]:
        """What a command's thread transferred from a moment on, before it recorded the command."""
        for event in self._between(command, start):
            if event.kind in _CARRY and not event.command:
                yield event

    def _between(self, command: TraceEvent, start: float) -> Iterator[TraceEvent]:
        """The events of a command's thread from a moment on, before it recorded the command."""
        found = self._by_thread[command.thread_id]
        first = bisect_left(found, start, key=lambda event: event.start)
        for number in range(first, len(found)):
            if found[number].start >= command.start:
                return
            yield found[number]

    def _carried(self, command: TraceEvent, start: float) -> bool:
        """Whether a command's thread may have carried values to the device since a moment."""
        if command.kind == "copy" and not command.reason.startswith("copy of"):
            return True  # of a staged write
        return any(not _is_read(event) for event in self._transfers(command, start))

    def _waited(self, gap: Gap, part: Part) -> Changes:
        wait = part.proof[0]
        if self._carried(gap.after, wait.start + wait.seconds) or _is_one_call(wait, gap.after):
            return
        repeats = self._waits[wait.thread_id, wait.where] > 1
        there = self._at(gap.after.where)
        if _takes_no_value(wait):
            what = f"leave out `{wait.call or 'synchronize()'}` {self._at(wait.where)}"
            what = f"{what}: the work {there} keeps its order without it; only NumPy code needs it"
            what = f"{what}, if it uses adopted memory"
        elif wait.call and wait.call in gap.after.call:  # an argument of the launch
            return
        elif repeats and is_condition(wait.where):
            what = f"decide {self._at(wait.where)} in some turns only, or by a value of some turns"
            what = f"{what} before: each time, the device is idle until the host has decided"
        else:
            what = self._take(wait, _AFTER_LOOP if repeats else f"after the {_work(gap)} {there}")
        yield _Change(what, (wait.where,), "read"), part.seconds

    def _take(self, wait: TraceEvent, later: str, code: str = "") -> str:
        """The sentence to take a value later, for which the host waited, or which it read.

        `code`, if given, is where the code is that uses the value.
        """
        here = self._at(wait.where)
        later = f"and run the code {code} with it, {later}" if code else later
        if wait.buffer:
            begin, take = _read_in_words(wait)
            return f"read {here} without a wait: {begin}, and take {take} {later}"
        split = split_pending(wait.call)
        if split is None:
            return f"take the value that the host waits for {here} {later}"
        name = split.begin if split.is_named else "pending"
        otherwise = f"where a launch needs the value, pass `{name}` itself"
        if split.is_named:
            return f"take `{split.take}`, now {here}, {later}; {otherwise}"
        what = f"keep `pending = {split.begin}` {here}, and take `{split.take}` {later}"
        return f"{what}; {otherwise}"

    def _caller(self, gap: Gap, part: Part) -> Changes:
        code, there = self._at(*part.lines), self._at(gap.after.where)
        repeats = self._places[part.lines] > 1
        if self._carried(gap.after, part.start):
            if repeats:
                yield self._run_ahead(gap, part, code)
            return
        if repeats or is_turn(part.lines):
            yield self._after_loop(gap, part, code, there), part.seconds
        elif part.lines != (gap.after.where,):  # not code in the middle of the line that launches
            read = next(self._transfers(gap.after, part.start), None)
            if read is None:
                what = f"make the next {_work(gap)}, {there}, before the code {code}"
                yield _Change(what, part.lines), part.seconds
            else:
                begin, take = _read_in_words(read)
                what = f"before the code {code}, read {self._at(read.where)} without a wait"
                what = f"{what} ({begin}) and make the next {_work(gap)}, {there};"
                what = f"{what} take {take} after the code"
                yield _Change(what, (read.where,), "read"), part.seconds

    def _run_ahead(self, gap: Gap, part: Part, code: str) -> tuple[_Change, float]:
        """The change to code that makes the input of launches, and what it saves."""
        busy = self._busy_before.get(gap.start, 0.0)
        since = self._between(gap.after, min(part.start, gap.before.start))
        if any(event.kind == "wait" for event in since):
            what = f"run the code {code} ahead, in another thread, while the device works; it"
            saved = min(part.seconds, busy)
        else:  # it does, and takes longer
            what = f"make the code {code} faster, or run it ahead in two or more threads: it runs"
            what = f"{what} while the device works, and takes longer; threads"
            saved = min(part.seconds, (part.seconds + busy) / 2)
        what = f"{what} may write on a second stream (`dev.stream()`)"
        return _Change(what, part.lines), saved

    def _after_loop(self, gap: Gap, part: Part, code: str, there: str) -> _Change:
        """The change that moves code out of a loop, with the value that the code may use."""
        since = min(part.start, gap.before.start)
        for event in self._between(gap.after, since):
            waits = event.kind == "wait" and event.path != "bound" and not _takes_no_value(event)
            if (waits or _is_read(event)) and not _is_one_call(event, gap.after):
                return _Change(self._take(event, _AFTER_LOOP, code), (event.where,), "read")
        what = f"run the code {code} after the loop, or in another thread"
        return _Change(f"{what}, if the {_work(gap)} {there} does not need it", part.lines)

    def _copy(self, gap: Gap, part: Part) -> Changes:
        copy = next((event for event in part.proof if event.kind == "copy"), None)
        if copy is None:
            return
        here, lines = self._at(copy.where), (copy.where,)
        if _is_read(copy):
            if copy.path == "direct":
                what = f"look at {copy.buffer!r} {here} in place: {_view_in_words(copy)},"
                what = f"{what} and drop the view before the next work that writes it"
                yield _Change(what, lines, "read"), part.seconds
        elif copy.path == "staged" and copy.nbytes >= _LARGE and gap.after.kind == "launch":
            what = f"lend the source of the write {here}: `borrow=True`"
            yield _Change(what, lines, "write"), part.seconds
        else:
            what = f"let the device use the source of the write {here} in place"
            what = f"{what}: `dev.host_empty()` or `dev.adopt()`"
            yield _Change(what, lines, "write"), part.seconds

    def _compile(self, gap: Gap, part: Part) -> Changes:
        what = "warm up: make the kernels, and call each once, before the work that counts"
        yield _Change(f"{what} ({self._at(*part.lines[:1])})", part.lines[:1]), part.seconds

    def _view(self, gap: Gap, part: Part) -> Changes:
        submission = self._submissions.get((gap.after.stream_id, gap.after.submission))
        if submission is None or part.proof[0].kind != "view":
            return
        view = part.proof[0]
        late = part.start + part.seconds - max(part.start, submission.start)
        here, there = self._at(view.where), self._at(gap.after.where)
        what = f"drop the view that `view()` gave {here}"
        what = f"{what} (`del` it and its slices) before the {_work(gap)} {there}"
        yield _Change(what, (view.where,)), late

    def _other(self, gap: Gap, part: Part) -> Changes:
        if (order := part.proof[0]).kind == "order":
            what = f"leave out `Stream.wait()` {self._at(order.where)}"
            what = f"{what}: streams that share arrays are ordered without it"
            yield _Change(what, (order.where,)), part.seconds

    def _unsubmitted(self, gap: Gap, part: Part) -> Changes:
        command = gap.after
        submission = self._submissions.get((command.stream_id, command.submission))
        cost = 0.0 if submission is None else submission.seconds
        at = (command.thread_id, command.where)
        cost *= self._commands[at] / max(1, self._unsubmitted_at[at])
        saved = part.seconds
        following = self._following.get((command.stream_id, command.submission, command.command))
        if following is not None and following.device_start is not None:
            saved = min(saved, following.device_start - following.start - following.seconds)
        what = f"call `{_stream(command)}.flush()` after the {_work(gap)}"
        lines = (command.where,)
        yield _Change(f"{what} {self._at(*lines)}", lines, "submit"), saved - cost

    def _issuing(self, gap: Gap, part: Part) -> Changes:
        for event in (*part.proof, gap.after):
            period, lines = self._turn(event)
            if period > 1 and not self._waits_within(event.thread_id, lines):
                what = f"record the launches {self._at(*lines)}, which repeat, as a graph"
                what = f"{what} (`with dev.record() as graph:`), and replay it (`graph.replay()`)"
                yield _Change(what, lines, "submit"), (1 - 1 / period) * part.seconds
                return

    def _waits_within(self, thread: int, lines: Sequence[str]) -> bool:
        """Whether the host waits for a value between launches, which a graph cannot."""
        first, last = file_and_line(lines[0]), file_and_line(lines[-1])
        return any(
            first <= file_and_line(where) <= last
            for waiting, where in self._waits
            if waiting == thread
        )

    def _turn(self, launch: TraceEvent) -> tuple[int, tuple[str, ...]]:
        """How many launches repeat with one, 0 if it does not repeat; their first and last line."""
        last, period = self._turns.get((launch.thread_id, launch.where, launch.reason), (0, 0))
        lines = self._launched[launch.thread_id][last - period + 1 : last + 1]
        ordered = sorted({line for line in lines if line}, key=file_and_line)
        return period if launch.kind == "launch" else 0, tuple(dict.fromkeys(ordered))

    def _latency(self, gap: Gap, part: Part) -> Changes:
        before, after = gap.before, gap.after
        submission = self._submissions.get((after.stream_id, after.submission))
        ahead = submission is not None and submission.start <= gap.start
        if not ahead or before.stream_id != after.stream_id:
            return
        if after.command == 1 and not submission.awaited:  # type: ignore[union-attr]
            lines = tuple(sorted({before.where, after.where} - {""}, key=file_and_line))
            around = "" if len(lines) > 1 else f"the loop of the {_work(gap)} "
            what = f"submit several launches at once: `with {_stream(after)}.batch():` around"
            what = f"{what} {around or 'the work '}{self._at(*lines)}"
            yield _Change(what, lines, "submit"), part.seconds
        elif before.submission == after.submission and _is_short(before) and _is_short(after):
            period, lines = self._turn(after)
            if period:
                what = f"make fewer, larger launches {self._at(*lines)}: the driver takes time"
                what = f"{what} between two, and one kernel may do the work of several"
                yield _Change(what, lines, "submit"), (1 - 1 / max(period, 2)) * part.seconds

    def _bound(self, gap: Gap, part: Part) -> Changes:
        wait = part.proof[0]
        here = self._at(wait.where)
        ways = {
            "submissions in flight": ("submit", "submit fewer, larger batches: `with {}.batch():`"),
            "slot for arguments": ("", "pass large constants as an array, which launches share"),
            "staging memory": ("write", "lend the source of the write: `borrow=True`"),
            "copies of argument": ("", "pass an `Array` instead of a NumPy array"),
        }
        for name, (act, way) in ways.items():
            if name in wait.reason:
                what = f"stay below the bound {here}: {way.format(_stream(gap.after))}"
                yield _Change(what, (wait.where,), act), part.seconds


def _work(gap: Gap) -> str:
    """What ended a gap: a launch, replay, copy or fill."""
    return gap.after.kind


def _stream(command: TraceEvent) -> str:
    """How a program names the stream of a command, as far as Penstock knows."""
    return "dev.default_stream" if command.stream == "default stream" else "stream"


def _is_short(command: TraceEvent) -> bool:
    return command.kind == "launch" and (command.device_seconds or 0.0) <= _SHORT


def _takes_no_value(wait: TraceEvent) -> bool:
    return wait.reason.startswith("synchronize()") or wait.call.endswith(".wait()")


def _is_one_call(wait: TraceEvent, command: TraceEvent) -> bool:
    """Whether a call of the user's both waits and issues the work: it cannot be split."""
    same = wait.instruction == command.instruction >= 0
    return same and (wait.where, wait.call) == (command.where, command.call)


def _read_in_words(read: TraceEvent) -> tuple[str, str]:
    """How to begin a read without a wait, and how to take its value."""
    split = split_read(read.call)
    if split is None:
        return f"`pending = ….read()` of the same part of {read.buffer!r}", "`pending.result()`"
    return f"`pending = {split.begin}`", f"`{split.take}`"


def _view_in_words(read: TraceEvent) -> str:
    view = view_of(read.call)
    return f"`{view}`" if view else "`….view('r')` of the same part"
