"""How busy the devices of a trace were, in words: one line, and a line for each large cause."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.tracing.gaps import Cause, Gap, Part
from penstock.tracing.idle import Use
from penstock.tracing.source_lines import file_and_line

_SHOWN = 3  # causes below the verdict, and gaps in a failed expectation


class Blame(NamedTuple):
    """The idle time of one cause at one place in the program."""

    cause: Cause
    seconds: float
    lines: tuple[str, ...]
    parts: tuple[Part, ...]

    @property
    def detail(self) -> str:
        """That of its longest part."""
        return max(self.parts, key=lambda part: part.seconds).detail


def blames(gaps: Iterable[Gap]) -> list[Blame]:
    """The parts of all gaps, by cause and lines, the longest time first."""
    groups: dict[tuple[Cause, tuple[str, ...]], list[Part]] = defaultdict(list)
    for gap in gaps:
        for part in gap.parts:
            groups[part.cause, part.lines].append(part)
    found = [
        Blame(cause, sum(part.seconds for part in parts), lines, tuple(parts))
        for (cause, lines), parts in groups.items()
    ]
    return sorted(found, key=lambda blame: -blame.seconds)


def verdict(use: Use) -> str:
    """One line: how busy the devices were, and what most of the rest was."""
    span, busy, idle = use.span, use.busy, use.idle
    if span is None or busy is None or idle is None:
        return f"how busy the device was is not known: {use.missing}"
    unit, scale = _unit(span)
    whole = _number(span * scale) if _unit(busy)[0] == unit else duration(span)
    name = "device" if len(use.devices) == 1 else f"{len(use.devices)} devices"
    share = busy / span if span else 1.0
    text = f"{name} busy {duration(busy)} of {whole}"
    text += f" ({share:.0%})".replace("%", " %")
    largest = max(blames(use.gaps), key=lambda blame: blame.seconds, default=None)
    if largest is not None:
        names = _names_files(use.gaps)
        text += f"; {duration(largest.seconds)} of the rest: {in_words(largest, names=names)}"
    if use.untimed:
        text += f"; without the times of {use.untimed} commands"
    return text


def causes_in_words(use: Use) -> list[str]:
    """The largest causes of idle time, a line each."""
    seconds = use.by_cause
    found = largest_causes(use)[:_SHOWN]
    return [f"{duration(seconds[cause]):>9}  {words}" for cause, words in found]


def largest_causes(use: Use) -> list[tuple[Cause, str]]:
    """The causes of idle time, the largest first: each with its largest place, in words."""
    found = blames(use.gaps)
    names = _names_files(use.gaps)
    causes = []
    for cause in use.by_cause:
        places = [blame for blame in found if blame.cause is cause]
        others = len(places) - 1
        more = f", and {others} more place{'s' * (others > 1)}" if others else ""
        detail = f" ({places[0].detail})" if places[0].detail else ""
        causes.append((cause, f"{in_words(places[0], names=names)}{detail}{more}"))
    return causes


def gaps_in_words(gaps: Iterable[Gap]) -> list[str]:
    """The longest gaps, a line each."""
    names = _names_files(gaps := list(gaps))
    longest = sorted(gaps, key=lambda gap: -gap.seconds)
    lines = []
    for gap in longest[:_SHOWN]:
        blame = Blame(gap.cause, gap.seconds, gap.lines, gap.parts)
        detail = f" ({gap.detail})" if gap.detail else ""
        before, after = gap.before.reason, gap.after.reason
        lines.append(
            f"{duration(gap.seconds):>9}  {in_words(blame, names=names)}{detail}, "
            f"between {before} and {after}"
        )
    return lines


def in_words(blame: Blame, *, names: bool) -> str:
    """What a cause was, and where. `names` says whether to name the files."""
    lines = blame.lines
    here = place(lines[:1], names=names)
    match blame.cause:
        case Cause.CALLER:
            return f"your code {place(lines, names=names)}"
        case Cause.ISSUING:
            return f"the host was issuing work {here}"
        case Cause.WAITED:
            return f"the host waited {here}"
        case Cause.COPY:
            return f"a host copy {here}"
        case Cause.COMPILE:
            return f"a kernel was compiled {here}"
        case Cause.VIEW:
            return f"the host held the bytes {place(lines, names=names)}"
        case Cause.OTHER:
            return f"a wait for another stream or device {here}"
        case Cause.UNSUBMITTED:
            return f"work recorded {here} was not submitted"
        case Cause.LATENCY:
            return f"the driver had not begun the work {here}"
        case Cause.BOUND:
            return f"a run-ahead bound was met {here}"
        case Cause.TRACE:
            return f"the trace was taking the device's times {here}"


def place(lines: Sequence[str], *, names: bool) -> str:
    """`at line 12`, or `between lines 12 and 14`; with the file's name if asked for."""
    if not lines:
        return "in Penstock's own code"
    (file, first), (other, last) = file_and_line(lines[0]), file_and_line(lines[-1])
    file, other = os.path.basename(file), os.path.basename(other)
    of = f" of {file}" if names else ""
    if len(lines) == 1:
        return f"at line {first}{of}"
    if file != other:
        return f"between {file}:{first} and {other}:{last}"
    if first == last:
        return f"between line {first}{of} and the same line in the next turn"
    if is_turn(lines):
        return f"between line {first} and, in the next turn, line {last}{of}"
    return f"between lines {first} and {last}{of}"


def is_turn(lines: Sequence[str]) -> bool:
    """Whether the second of two lines is one of a loop's next turn."""
    (file, first), (other, last) = file_and_line(lines[0]), file_and_line(lines[-1])
    return len(lines) > 1 and file == other and last <= first


def duration(seconds: float) -> str:
    """Seconds with a unit that suits them."""
    unit, scale = _unit(seconds)
    return f"{_number(seconds * scale)} {unit}"


def _unit(seconds: float) -> tuple[str, float]:
    if seconds >= 0.9995:
        return "s", 1.0
    return ("ms", 1e3) if seconds >= 0.9995e-3 else ("µs", 1e6)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def _names_files(gaps: Iterable[Gap]) -> bool:
    """Whether lines need the names of their files: they are of several."""
    files = {line.rpartition(":")[0] for gap in gaps for part in gap.parts for line in part.lines}
    return len(files) > 1
