"""Before and after: what got better, what got worse, and what is noise.

Rows of two files belong together when they measured the same thing. Their ratio is that of the
median times, with its 95 % interval by the bootstrap. How noisy a run was, it says itself: the
rounds with even numbers against those with odd ones, which measured the same. A difference is one
when the whole interval is beyond that noise, and beyond a least difference. The effect size is
Cliff's delta: how much oftener a run after is slower than one before (1: always, 0: as often).

Counts have no noise. One that grew is worse, whatever the clock says.
"""

from __future__ import annotations

import bisect
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.measure import ratio
from penstock.errors import InvalidValue

Row = dict[str, Any]

#: What makes two rows the same measurement.
_IDENTITY = (
    "benchmark", "group", "model_type", "model_size", "gpu_info", "test", "without", "n_batch",
    "type_k",
)  # fmt: skip
_COUNTS = ("waits", "copies", "bytes_copied", "allocations", "submissions", "barriers")
#: Of these a run may have a few more or less: how far the device got before the host asks.
_CHANCE = ("waits", "submissions", "barriers")


@dataclass(frozen=True)
class Difference:
    """One row before and after."""

    name: str
    before_ns: float
    after_ns: float
    ratio: float  #: of the times: below 1 is faster
    low: float
    high: float
    noise: float  #: how far from 1 a ratio of the same thing was
    effect: float
    verdict: str  #: "better", "worse" or "no difference"
    counts: list[str] = field(default_factory=list)  #: those that grew or shrank
    counts_verdict: str = "no difference"


def read(file: Path) -> list[Row]:
    """The rows of a file of `penstock bench -o json` or `-o jsonl`, or of `--save`."""
    try:
        text = file.read_text(encoding="utf-8")
        rows = json.loads(text) if text.lstrip()[:1] == "[" else _lines(text)
        json.dumps(rows, ensure_ascii=False).encode()  # refuses halves of characters
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValue(f"{file} is not JSON of penstock bench: {error}") from error
    if not all(isinstance(row, dict) and "samples_ns" in row and "test" in row for row in rows):
        raise InvalidValue(f"{file} has rows without samples_ns and test; write it with -o json")
    return list(rows)


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def compare(before: Iterable[Row], after: Iterable[Row], least: float) -> list[Difference]:
    """The rows that are in both, in the order of the second. `least` is in percent."""
    earlier = {identity(row): row for row in before}
    found = [
        _difference(earlier[identity(row)], row, least / 100)
        for row in after
        if identity(row) in earlier
    ]
    if not found:
        raise InvalidValue(
            "the two files have no measurement in common: same device, model, batch and test?"
        )
    return found


def identity(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _IDENTITY)


def exit_code(found: Sequence[Difference], fail_on: str) -> int:
    worse = {
        "never": False,
        "counts": any(one.counts_verdict == "worse" for one in found),
        "worse": any("worse" in (one.verdict, one.counts_verdict) for one in found),
    }
    return int(worse[fail_on])


def as_json(found: Sequence[Difference]) -> str:
    return json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False)


def as_text(found: Sequence[Difference]) -> str:
    width = max(len(one.name) for one in found)
    lines = [
        f"| {'test':<{width}} | before | after | time | 95 % within | noise | effect | verdict |",
        f"| {'-' * width} | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for one in found:
        verdict = one.verdict
        if one.counts:
            verdict += f"; counts {one.counts_verdict}: {', '.join(one.counts)}"
        lines.append(
            f"| {one.name:<{width}} | {_time(one.before_ns)} | {_time(one.after_ns)} "
            f"| × {one.ratio:.3f} | {one.low:.3f}–{one.high:.3f} | ± {100 * one.noise:.1f} % "
            f"| {one.effect:+.2f} | {verdict} |"
        )
    verdicts = [one.verdict for one in found]
    told = [f"{verdicts.count(v)} {v}" for v in ("better", "worse", "no difference")]
    return "\n".join([*lines, "", ", ".join(told)])


def _difference(before: Row, after: Row, least: float) -> Difference:
    one, other = before["samples_ns"], after["samples_ns"]
    compared = ratio(other, one, paired=False)
    noise = max(_own_noise(one), _own_noise(other))
    margin = max(noise, least)
    verdict = "no difference"
    if compared.low > 1 + margin:
        verdict = "worse"
    elif compared.high < 1 / (1 + margin):
        verdict = "better"
    changed, judged = _changed_counts(before, after)
    name = str(after["test"]) + (f" without {after['without']}" if "without" in after else "")
    return Difference(
        name, statistics.median(one), statistics.median(other), *compared, noise,
        effect_size(one, other), verdict, changed, judged,
    )  # fmt: skip


def _own_noise(samples: Sequence[float]) -> float:
    """How far from 1 the ratio of even to odd rounds is; of one round, nobody knows."""
    if len(samples) < 2:
        return float("inf")
    even, odd = statistics.median(samples[::2]), statistics.median(samples[1::2])
    return max(even, odd) / min(even, odd) - 1


def effect_size(before: Sequence[float], after: Sequence[float]) -> float:
    """Cliff's delta: how much oftener one of `after` is greater than one of `before` than less."""
    ranked = sorted(before)
    score = sum(
        bisect.bisect_left(ranked, one) - (len(ranked) - bisect.bisect_right(ranked, one))
        for one in after
    )
    return score / (len(before) * len(after))


def _changed_counts(before: Row, after: Row) -> tuple[list[str], str]:
    changed, verdict = [], "no difference"
    for name in _COUNTS:
        for field_name in (name, f"{name}_per_token"):
            if field_name not in before or field_name not in after:
                continue
            old, new = before[field_name], after[field_name]
            if abs(new - old) <= (1 if name in _CHANCE else 0):
                continue
            changed.append(f"{name} {old:g} → {new:g}")
            verdict = "worse" if new > old or verdict == "worse" else "better"
    return changed, verdict


def _time(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"
