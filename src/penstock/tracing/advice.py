"""What to do about idle time: a sentence for each cause, where following it would have helped.

For every part of every gap a rule works out by how much the gap would have been shorter, had the
program followed the advice; 0 where the trace does not show that. The rules, by cause:

- *waited*: nothing that the host did between the wait and the command that ended the gap carried
  bytes to the device, so the command could have been issued before the wait, unless by the
  program's text the value decides what comes next or is passed to a launch. It saves the part.
- *caller*: if nothing carried bytes to the device from the code on, the command could have been
  issued first; in a loop, all commands could have been, and the code could have run afterwards. If
  the host waited for a value before, which the code by its text does not use, the code could have
  run while the device worked: it saves as much of the part as the device was busy since the last
  such gap. If something carried bytes, as a loader's batch is written before its launch, and the
  same lines left gaps repeatedly, the code could have run ahead, and it saves as much. If the host
  does not wait for the device, it does so already, and two threads would have taken half of its
  time.
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
- *issuing*: launches that follow each other repeat, return no new arrays, and the host waits for
  none, so that a graph could replay them: of a sequence of n launches it saves all but one.
- *latency*: the command was submitted before the gap began. As the first of its submission, it
  would have begun at once in the submission before it, but for a flush: that saves the part.
  Between two short launches of one submission the time is the driver's own, and fewer launches have
  less of it: one in place of a sequence of n saves all but one, and one in place of two of the same
  saves half.
- *bound*: each bound has a way to stay below it (docs/performance.md). It saves the part.

There is at most one sentence for each cause, and at most one for each thing that lines do: of a
flush and a batch of the same launches, or of a later read and a view in place of it, the one that
saves more. It must save at least a hundredth of the span.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.tracing.event_words import (
    is_one_call,
    is_read,
    is_short,
    read_in_words,
    returns_array,
    stream,
    takes_no_value,
    view_in_words,
    wait_in_words,
    work,
)
from penstock.tracing.gaps import Cause, Gap, Part, is_command
from penstock.tracing.program_text import ValueUse, has_code_between, only_keeps_value, value_use
from penstock.tracing.source_lines import file_and_line
from penstock.tracing.split_calls import split_pending
from penstock.tracing.verdict import duration, is_turn, place

if TYPE_CHECKING:
    from penstock.tracing.idle import Use
    from penstock.tracing.receipt import TraceEvent

_LEAST = 0.01  # of the span
_AFTER_LOOP = "after the loop, or two or more turns later"
_TURNS_LATER = "two or more turns later, or after the loop"  # then code runs while the device works
_LARGE = 1 << 20  # bytes from which a borrowed write is left to a thread of the runtime
#: Kinds of events that may carry values of the host to the device.
_CARRY = ("copy", "fill", "view", "adopt", "rename")


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
        self._launched: dict[int, list[TraceEvent]] = defaultdict(list)  # by thread
        self._launch_lines: dict[int, dict[str, tuple[str, int]]] = defaultdict(dict)  # by thread
        self._turns: dict[tuple[int, str, str], tuple[int, int]] = {}  # where in it, and the period
        self._waits: dict[tuple[int, str], int] = defaultdict(int)
        self._uses: dict[tuple[str, str], ValueUse | None] = {}
        self._code: dict[tuple[str, ...], bool] = {}
        self._kept: dict[tuple[str, ...], bool] = {}
        for event in sorted(events, key=lambda event: event.start):
            self._by_thread[event.thread_id].append(event)
            if event.kind == "submission":
                self._submissions[event.stream_id, event.submission] = event
            elif event.kind == "launch":
                key = (event.thread_id, event.where, event.reason)
                launched = self._launched[event.thread_id]
                now = len(launched)
                self._turns[key] = (now, now - self._turns[key][0] if key in self._turns else 0)
                launched.append(event)
                self._launch_lines[event.thread_id][event.where] = file_and_line(event.where)
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
        self._busy_since: dict[tuple[float, tuple[str, ...]], float] = {}  # the last such gap
        for device in use.devices:
            idle, busy_until = 0.0, defaultdict[tuple[str, ...], float](float)
            for gap in device.gaps:
                busy = gap.start - device.gaps[0].start - idle  # since the first gap began
                idle += gap.seconds
                for lines in {part.lines for part in gap.parts if part.cause is Cause.CALLER}:
                    self._places[lines] += 1
                    self._busy_since[gap.start, lines] = busy - busy_until[lines]
                    busy_until[lines] = busy
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
        return any(not is_read(event) for event in self._transfers(command, start))

    def _waited(self, gap: Gap, part: Part) -> Changes:
        wait = part.proof[0]
        if self._carried(gap.after, wait.start + wait.seconds) or is_one_call(wait, gap.after):
            return
        if wait.reason.startswith("the host waits for write of"):
            return  # the source of the write may change after it
        repeats = self._waits[wait.thread_id, wait.where] > 1
        here, there = self._at(wait.where), self._at(gap.after.where)
        if takes_no_value(wait):
            what = f"leave out {wait_in_words(wait)} {here}"
            what = f"{what}: the work {there} keeps its order without it; only NumPy code needs it"
            what = f"{what}, if it uses adopted memory"
        elif wait.call and wait.call in gap.after.call:  # an argument of the launch
            return
        elif self._steers(wait):
            if not repeats:
                return
            what = f"decide {here} in some turns only, or by a value of some turns before: each"
            what = f"{what} time, the device is idle until the host has decided"
        elif needs := self._launches_with(wait):
            what = f"keep on the device what the host waits for {here}: the launch"
            what = f"{what} {self._at(*needs)} can read it from an array, which functions of"
            what = f"{what} `dev.xp` return"
        else:
            what = self._take(wait, _AFTER_LOOP if repeats else f"after the {work(gap)} {there}")
        yield _Change(what, (wait.where,), "read"), part.seconds

    def _use(self, read: TraceEvent) -> ValueUse | None:
        """What the program does with a value that the host waits for."""
        key = (read.where, read.call)
        if key not in self._uses:
            self._uses[key] = value_use(*key)
        return self._uses[key]

    def _steers(self, read: TraceEvent) -> bool:
        use = self._use(read)
        return use is not None and use.steers

    def _launches_with(self, read: TraceEvent) -> list[str]:
        """The lines that launch something, and use the value, in the loop around a read."""
        use, file = self._use(read), file_and_line(read.where)[0]
        return sorted(
            where
            for where, (other, line) in self._launch_lines[read.thread_id].items()
            if use is not None and line in use.lines and other == file and where != read.where
        )

    def _take(self, wait: TraceEvent, later: str) -> str:
        """The sentence to take a value later, for which the host waited, or which it read."""
        here = self._at(wait.where)
        use = self._use(wait)
        if use is None or use.leaves or (later in (_AFTER_LOOP, _TURNS_LATER) and not use.looped):
            later = f"{later}, if nothing needs it before"
        if wait.buffer:
            begin, take = read_in_words(wait)
            return f"read {here} without a wait: {begin}, and take {take} {later}"
        split = split_pending(wait.call)
        if split is None:
            return f"take the value that the host waits for {here} {later}"
        if split.is_named:
            return f"take `{split.take}`, now {here}, {later}"
        return f"keep `pending = {split.begin}` {here}, and take `{split.take}` {later}"

    def _caller(self, gap: Gap, part: Part) -> Changes:
        code, there = self._at(*part.lines), self._at(gap.after.where)
        repeats = self._places[part.lines] > 1
        if self._carried(gap.after, part.start):
            if repeats:
                yield self._run_ahead(gap, part, code)
            return
        if repeats or is_turn(part.lines):
            yield from self._after_loop(gap, part, code, there)
        elif part.lines != (gap.after.where,):  # not code in the middle of the line that launches
            read = next(self._transfers(gap.after, part.start), None)
            if read is None:
                what = f"make the next {work(gap)}, {there}, before the code {code},"
                yield _Change(f"{what} if it does not need it", part.lines), part.seconds
            else:
                begin, take = read_in_words(read)
                what = f"before the code {code}, read {self._at(read.where)} without a wait"
                what = f"{what} ({begin}) and make the next {work(gap)}, {there};"
                what = f"{what} take {take} after the code"
                yield _Change(what, (read.where,), "read"), part.seconds

    def _run_ahead(self, gap: Gap, part: Part, code: str) -> tuple[_Change, float]:
        """The change to code that makes the input of launches, and what it saves."""
        busy = self._busy_since[gap.start, part.lines]
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

    def _after_loop(self, gap: Gap, part: Part, code: str, there: str) -> Changes:
        """The change to code in a loop, or to the wait for a value that the code may use."""
        known = self._launch_lines[gap.after.thread_id]
        movable = len(part.lines) > 1 and self._has_code(part.lines, known)
        for event in self._between(gap.after, min(part.start, gap.before.start)):
            waits = event.kind == "wait" and event.path != "bound" and not takes_no_value(event)
            if not (waits or is_read(event)) or is_one_call(event, gap.after):
                continue
            if self._steers(event) or self._launches_with(event):
                return
            if not self._only_keeps(event, part.lines):
                what = f"{self._take(event, _TURNS_LATER)}; of the code {code}, what needs the"
                what = f"{what} value goes with it, and the rest stays where it is"
                yield _Change(what, (event.where,), "read"), part.seconds
                return
            hidden = min(part.seconds, self._busy_since[gap.start, part.lines])
            if part.seconds <= 2 * hidden or not movable:
                what = f"{self._take(event, _AFTER_LOOP)}; leave the code {code} where it is: it"
                what = f"{what} does not use the value, and can run while the device works"
                yield _Change(what, (event.where,), "read"), hidden
                return
            break  # most of the code would not be hidden
        if movable:
            what = f"run the code {code} after the loop, or in another thread"
            what = f"{what}, if the {work(gap)} {there} does not need it"
            yield _Change(what, part.lines), part.seconds

    def _only_keeps(self, read: TraceEvent, lines: tuple[str, ...]) -> bool:
        key = (read.where, read.call, *lines)
        if key not in self._kept:
            self._kept[key] = only_keeps_value(read.where, read.call, lines)
        return self._kept[key]

    def _has_code(self, lines: tuple[str, ...], known: Collection[str]) -> bool:
        if lines not in self._code:
            self._code[lines] = has_code_between(lines[0], lines[-1], known)
        return self._code[lines]

    def _copy(self, gap: Gap, part: Part) -> Changes:
        copy = next((event for event in part.proof if event.kind == "copy"), None)
        if copy is None:
            return
        here, lines = self._at(copy.where), (copy.where,)
        if is_read(copy):
            if copy.path == "direct":
                what = f"look at {copy.buffer!r} {here} in place: {view_in_words(copy)},"
                what = f"{what} and drop the view before the next work that writes it"
                yield _Change(what, lines, "read"), part.seconds
        elif copy.path == "staged" and copy.nbytes >= _LARGE and gap.after.kind == "launch":
            what = f"lend the source of the write {here}: `borrow=True`"
            yield _Change(what, lines, "write"), part.seconds
        else:
            what = f"make the source of the write {here} with `dev.host_empty()`, which the device"
            what = f"{what} uses in place"
            yield _Change(what, lines, "write"), part.seconds

    def _compile(self, gap: Gap, part: Part) -> Changes:
        what = "warm up: make the kernels, and call each once, before the work that you trace"
        yield _Change(f"{what} ({self._at(*part.lines[:1])})", part.lines[:1]), part.seconds

    def _view(self, gap: Gap, part: Part) -> Changes:
        submission = self._submissions.get((gap.after.stream_id, gap.after.submission))
        if submission is None or part.proof[0].kind != "view":
            return
        view = part.proof[0]
        late = part.start + part.seconds - max(part.start, submission.start)
        here, there = self._at(view.where), self._at(gap.after.where)
        what = f"drop the view that `view()` gave {here}"
        what = f"{what} (`del` it and its slices) before the {work(gap)} {there}"
        yield _Change(what, (view.where,)), late

    def _other(self, gap: Gap, part: Part) -> Changes:
        if (order := part.proof[0]).kind == "order":
            what = f"leave out `{order.call or 'Stream.wait()'}` {self._at(order.where)}"
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
        what = f"call `{stream(command)}.flush()` after the {work(gap)}"
        lines = (command.where,)
        yield _Change(f"{what} {self._at(*lines)}", lines, "submit"), saved - cost

    def _issuing(self, gap: Gap, part: Part) -> Changes:
        for event in (*part.proof, gap.after):
            period, lines = self._turn(event)
            if period > 1 and not self._cannot_be_recorded(event, period, lines):
                what = f"record the launches {self._at(*lines)}, which repeat, as a graph"
                what = f"{what} (`with dev.record() as graph:`), and replay it (`graph.replay()`)"
                yield _Change(what, lines, "submit"), (1 - 1 / period) * part.seconds
                return

    def _cannot_be_recorded(self, launch: TraceEvent, period: int, lines: Sequence[str]) -> bool:
        """Whether the host waits for a value between launches, or they return new arrays."""
        last, _ = self._turns[launch.thread_id, launch.where, launch.reason]
        if any(map(returns_array, self._launched[launch.thread_id][last - period + 1 : last + 1])):
            return True
        first, end = file_and_line(lines[0]), file_and_line(lines[-1])
        return any(
            first <= file_and_line(where) <= end
            for waiting, where in self._waits
            if waiting == launch.thread_id
        )

    def _turn(self, launch: TraceEvent) -> tuple[int, tuple[str, ...]]:
        """How many launches repeat with one, 0 if it does not repeat; their first and last line."""
        last, period = self._turns.get((launch.thread_id, launch.where, launch.reason), (0, 0))
        turn = self._launched[launch.thread_id][last - period + 1 : last + 1]
        ordered = sorted({each.where for each in turn if each.where}, key=file_and_line)
        return period if launch.kind == "launch" else 0, tuple(dict.fromkeys(ordered))

    def _latency(self, gap: Gap, part: Part) -> Changes:
        before, after = gap.before, gap.after
        submission = self._submissions.get((after.stream_id, after.submission))
        ahead = submission is not None and submission.start <= gap.start
        if not ahead or before.stream_id != after.stream_id:
            return
        if after.command == 1 and not submission.awaited:  # type: ignore[union-attr]
            earlier = self._submissions.get((before.stream_id, before.submission))
            why = "" if earlier is None else earlier.reason
            if earlier is not None and why.endswith(": flush"):
                what = (
                    f"leave out `{earlier.call or 'flush()'}` {self._at(earlier.where)}: the work"
                )
                what = f"{what} then shares submissions, which take time"
                yield _Change(what, (earlier.where,), "submit"), part.seconds
                return
            if not why.endswith(": the device would run dry") or any(
                event.kind == "wait" for event in self._between(after, before.start)
            ):
                return  # the host asked for it, and would again
            lines = tuple(sorted({before.where, after.where} - {""}, key=file_and_line))
            around = "" if len(lines) > 1 else f"the loop of the {work(gap)} "
            what = f"submit several launches at once: `with {stream(after)}.batch():` around"
            what = f"{what} {around or 'the work '}{self._at(*lines)}"
            yield _Change(what, lines, "submit"), part.seconds
        elif before.submission == after.submission and is_short(before) and is_short(after):
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
                what = f"stay below the bound {here}: {way.format(stream(gap.after))}"
                yield _Change(what, (wait.where,), act), part.seconds
