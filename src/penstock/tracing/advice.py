"""What to do about idle time: a sentence for each cause, where following it would have helped.

For every part of every gap a rule works out by how much the gap would have been shorter, had the
program followed the advice; 0 where the trace does not show that. The rules, by cause:

- *waited*: nothing that the host did between the wait and the command that ended the gap carried
  bytes to the device, so the command could have been issued before the wait. It saves the part.
- *caller*: if nothing carried bytes to the device from the code on, the command could have been
  issued first. If something did, as a loader's batch is written before its launch, and the same
  lines left gaps repeatedly, the code could have run ahead while the device worked: it saves as
  much of the part as the device was busy before the gap.
- *copy*: a staged copy of bytes that the next command does not use could have been left to the
  runtime (`borrow=True`); a direct read could have been a view; other writes could have gone to
  memory that the device uses in place. It saves the part.
- *compile*: the kernel could have been made before the first command. It saves the part.
- *view*: the command was submitted while the host held the view. It saves the time since then.
- *other*: a submission waited for an event, and its first command uses no bytes of the work
  awaited. It saves the part.
- *unsubmitted*: a flush would have submitted it. It saves the part, but for the submission's cost.
- *issuing*: launches that follow each other repeat, so that a graph could replay them: of a
  sequence of n launches it saves all but one.
- *latency*: the command was submitted before the gap began, as the first of its submission: in the
  submission before it, it would have begun at once. It saves the part.
- *bound*: each bound has a way to stay below it (docs/performance.md). It saves the part.

A sentence is given once for each cause, if it saves at least a hundredth of the span.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.tracing.gaps import Cause, Gap, Part
from penstock.tracing.verdict import duration, place

if TYPE_CHECKING:
    from penstock.tracing.idle import Use
    from penstock.tracing.receipt import TraceEvent

_LEAST = 0.01  # of the span
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
    """A sentence, and how many seconds of idle time it would have saved."""

    cause: Cause
    seconds: float
    sentence: str
    gaps: tuple[Gap, ...] = ()  #: those that would have been shorter

    def __str__(self) -> str:
        return f"{self.sentence} (up to {duration(self.seconds)})"


def advice(use: Use, events: Sequence[TraceEvent]) -> tuple[Advice, ...]:
    """What would have helped, the largest saving first."""
    rules = _Rules(use, events)
    saved: dict[Cause, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    shorter: dict[str, list[Gap]] = defaultdict(list)
    for gap in use.gaps:
        for part in gap.parts:
            for sentence, seconds in rules.of_part(gap, part):
                if seconds > 0:
                    saved[part.cause][sentence] += seconds
                    if not shorter[sentence] or shorter[sentence][-1] is not gap:
                        shorter[sentence].append(gap)
    found = []
    for cause, sentences in saved.items():
        best = max(sentences, key=lambda sentence: sentences[sentence])
        found.append(Advice(cause, sentences[best], best, tuple(shorter[best])))
    least = _LEAST * (use.span or 0.0)
    helpful = [each for each in found if each.seconds >= least]
    return tuple(sorted(helpful, key=lambda each: -each.seconds))


Sentences = Iterator[tuple[str, float]]


class _Rules:
    """The rules, and what they look up in a trace."""

    def __init__(self, use: Use, events: Sequence[TraceEvent]) -> None:
        files = {
            line.rpartition(":")[0] for g in use.gaps for part in g.parts for line in part.lines
        }
        self._names = len(files) > 1
        self._by_thread: dict[int, list[TraceEvent]] = defaultdict(list)
        self._submissions = {}
        self._periods: dict[tuple[int, str, str], int] = {}
        last: dict[tuple[int, str, str], int] = {}
        issued: dict[int, int] = defaultdict(int)
        for event in sorted(events, key=lambda event: event.start):
            self._by_thread[event.thread_id].append(event)
            if event.kind == "submission":
                self._submissions[event.stream_id, event.submission] = event
            elif event.kind == "launch":
                key = (event.thread_id, event.where, event.reason)
                if key in last:
                    self._periods[key] = issued[event.thread_id] - last[key]
                last[key] = issued[event.thread_id]
                issued[event.thread_id] += 1
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
        self._rules: dict[Cause, Callable[[Gap, Part], Sentences]] = {
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

    def of_part(self, gap: Gap, part: Part) -> Sentences:
        """The sentence for a part of a gap, and the seconds it would have saved."""
        rule = self._rules.get(part.cause)
        if rule is not None:
            yield from rule(gap, part)

    def _at(self, *lines: str) -> str:
        return place([line for line in lines if line], names=self._names)

    def _transfers(self, command: TraceEvent, start: float) -> Iterator[TraceEvent]:
        """What a command's thread transferred from a moment on, before it recorded the command."""
        found = self._by_thread[command.thread_id]
        first = bisect_left(found, start, key=lambda event: event.start)
        for number in range(first, len(found)):
            event = found[number]
            if event.start >= command.start:
                return
            if event.kind in _CARRY and not event.command:
                yield event

    def _carried(self, command: TraceEvent, start: float) -> bool:
        """Whether a command's thread may have carried values to the device since a moment."""
        if command.kind == "copy" and not command.reason.startswith("copy of"):
            return True  # of a staged write
        return any(not _is_read(event) for event in self._transfers(command, start))

    def _waited(self, gap: Gap, part: Part) -> Sentences:
        wait = part.proof[0]
        if self._carried(gap.after, wait.start + wait.seconds):
            return
        here, there = self._at(wait.where), self._at(gap.after.where)
        if wait.buffer:
            what = f"read {wait.buffer!r} {here} asynchronously: `pending = x.read()`, and"
            yield f"{what} `pending.result()` after the launch {there}", part.seconds
        elif wait.reason.startswith("synchronize()"):
            what = f"leave out `synchronize()` {here}"
            yield f"{what}: the work {there} keeps its order without it", part.seconds
        else:
            yield f"ask for the value {here} after the launch {there}: `result()`", part.seconds

    def _caller(self, gap: Gap, part: Part) -> Sentences:
        code, launch = self._at(*part.lines), self._at(gap.after.where)
        if not self._carried(gap.after, part.start):
            read = next(self._transfers(gap.after, part.start), None)
            if read is None:
                what = f"make the next launch, {launch}, before the code {code}"
            else:
                what = f"read {read.buffer!r} {self._at(read.where)} asynchronously (`x.read()`),"
                what = f"{what} and make the next launch, {launch}, before the code {code}"
            yield what, part.seconds
        elif self._places[part.lines] > 1:
            what = f"run the code {code} ahead, in another thread, while the device works; it may"
            busy = self._busy_before.get(gap.start, 0.0)
            yield f"{what} write on a second stream (`dev.stream()`)", min(part.seconds, busy)

    def _copy(self, gap: Gap, part: Part) -> Sentences:
        copy = next((event for event in part.proof if event.kind == "copy"), None)
        if copy is None:
            return
        here = self._at(copy.where)
        if _is_read(copy):
            if copy.path == "direct":
                yield f"look at {copy.buffer!r} {here} in place: `x.view('r')`", part.seconds
        elif copy.path == "staged" and copy.nbytes >= _LARGE and gap.after.kind == "launch":
            yield f"lend the source of the write {here}: `borrow=True`", part.seconds
        else:
            what = f"let the device use the source of the write {here} in place"
            yield f"{what}: `dev.host_empty()` or `dev.adopt()`", part.seconds

    def _compile(self, gap: Gap, part: Part) -> Sentences:
        what = "warm up: make the kernels, and call each once, before the work that counts"
        yield f"{what} ({self._at(*part.lines[:1])})", part.seconds

    def _view(self, gap: Gap, part: Part) -> Sentences:
        submission = self._submissions.get((gap.after.stream_id, gap.after.submission))
        if submission is None or part.proof[0].kind != "view":
            return
        view = part.proof[0]
        late = part.start + part.seconds - max(part.start, submission.start)
        here, there = self._at(view.where), self._at(gap.after.where)
        what = f"drop the view that `view()` gave {here}"
        yield f"{what} (`del` it and its slices) before the launch {there}", late

    def _other(self, gap: Gap, part: Part) -> Sentences:
        if part.proof[0].kind == "order":
            what = f"leave out `Stream.wait()` {self._at(part.proof[0].where)}"
            yield f"{what}: streams that share arrays are ordered without it", part.seconds

    def _unsubmitted(self, gap: Gap, part: Part) -> Sentences:
        submission = self._submissions.get((gap.after.stream_id, gap.after.submission))
        cost = 0.0 if submission is None else submission.seconds
        what = f"call `stream.flush()` after the launch {self._at(gap.after.where)}"
        yield what, part.seconds - cost

    def _issuing(self, gap: Gap, part: Part) -> Sentences:
        for event in (*part.proof, gap.after):
            period = self._periods.get((event.thread_id, event.where, event.reason), 1)
            if event.kind == "launch" and period > 1:
                what = "record the launches that repeat as a graph (`dev.record()`)"
                yield f"{what} and replay it", (1 - 1 / period) * part.seconds
                return

    def _latency(self, gap: Gap, part: Part) -> Sentences:
        submission = self._submissions.get((gap.after.stream_id, gap.after.submission))
        ahead = submission is not None and submission.start <= gap.start
        same = gap.before.stream_id == gap.after.stream_id
        if ahead and same and gap.after.command == 1 and not submission.awaited:  # type: ignore[union-attr]
            what = "submit several launches at once: `with stream.batch()`, or a graph"
            yield f"{what} (`dev.record()`)", part.seconds

    def _bound(self, gap: Gap, part: Part) -> Sentences:
        wait = part.proof[0]
        here = self._at(wait.where)
        ways = {
            "submissions in flight": "submit fewer, larger batches: `with stream.batch()`",
            "slot for arguments": "pass large constants as an array, which launches share",
            "staging memory": "lend the source of the write: `borrow=True`",
            "copies of argument": "pass an `Array` instead of a NumPy array",
        }
        for name, way in ways.items():
            if name in wait.reason:
                yield f"stay below the bound {here}: {way}", part.seconds
