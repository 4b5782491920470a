"""Before and after: what got better, what got worse, and what is noise.

Rows of two files belong together when they measured the same thing. Their ratio is that of the
median times, with a 95 % interval: that of the bootstrap, or that of ranks (Mann and Whitney)
where it is wider. Ranks admit how little a few runs tell: of fewer than four before and after,
every order is too likely by chance for any interval, and nothing can be told. How noisy a run was,
it says itself: the rounds with even numbers against those with odd ones, which measured the same. A
difference is one when the whole interval is beyond that noise, and beyond a least difference. The
effect size is Cliff's delta: how much oftener a run after is slower than one before (1: always, 0:
as often).

Counts have no noise. One that grew is worse, whatever the clock says.
"""

from __future__ import annotations

import bisect
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.measure import FEWEST, Interval, ratio
from penstock.errors import InvalidValue

Row = dict[str, Any]

VERDICTS = ("better", "worse", "no difference", "cannot be told")

#: What makes two rows the same measurement.
_IDENTITY = (
    "benchmark", "group", "model_type", "model_size", "gpu_info", "test", "without", "n_batch",
    "type_k",
)  # fmt: skip
_COUNTS = ("waits", "copies", "bytes_copied", "allocations", "submissions", "barriers")
_WITHIN = 0.95
_EXACT = 2500  # pairs up to which ranks are counted out
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
    verdict: str  #: one of `VERDICTS`
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
    for row in rows:
        odd = [name for name in _IDENTITY if isinstance(row.get(name), list | dict)]
        if odd:
            raise InvalidValue(f"{file} has a row whose {odd[0]} is no text or number")
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
    """JSON has no infinity: a bound or a noise that there is none of is null."""
    rows = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(one).items()
        }
        for one in found
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)


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
            f"| × {one.ratio:.3f} | {_within(one)} | {_noise(one)} | {one.effect:+.2f} "
            f"| {verdict} |"
        )
    verdicts = [one.verdict for one in found]
    told = [f"{verdicts.count(v)} {v}" for v in VERDICTS[:3]]
    if unknown := verdicts.count("cannot be told"):
        told.append(f"{unknown} cannot be told (measure at least {FEWEST} runs: -r {FEWEST})")
    return "\n".join([*lines, "", ", ".join(told)])


def _within(one: Difference) -> str:
    return f"{one.low:.3f}–{one.high:.3f}" if math.isfinite(one.high) else "?"


def _noise(one: Difference) -> str:
    return f"± {100 * one.noise:.1f} %" if math.isfinite(one.noise) else "?"


def _difference(before: Row, after: Row, least: float) -> Difference:
    one, other = _samples(before), _samples(after)
    compared = _wider(ratio(other, one, paired=False), by_ranks(other, one))
    noise = max(_own_noise(one), _own_noise(other))
    margin = max(noise, least)
    verdict = "no difference"
    if not math.isfinite(compared.high):
        verdict = "cannot be told"
    elif compared.low > 1 + margin:
        verdict = "worse"
    elif compared.high < 1 / (1 + margin):
        verdict = "better"
    changed, judged = _changed_counts(before, after)
    name = str(after["test"]) + (f" without {after['without']}" if "without" in after else "")
    return Difference(
        name, statistics.median(one), statistics.median(other), *compared, noise,
        effect_size(one, other), verdict, changed, judged,
    )  # fmt: skip


def _samples(row: Row) -> list[float]:
    samples = row["samples_ns"]
    if not isinstance(samples, list) or not samples or not all(map(_is_time, samples)):
        raise InvalidValue(f"samples_ns of {row['test']!r} must be a list of positive numbers")
    return samples


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _wider(one: Interval, other: Interval) -> Interval:
    return Interval(one.value, min(one.low, other.low), max(one.high, other.high))


def by_ranks(of: Sequence[float], to: Sequence[float]) -> Interval:
    """How many times `to` is `of`: the 95 % interval of Mann's and Whitney's test.

    It takes nothing for granted of how times are distributed. Unbounded where there are so few that
    even the most extreme order of them comes by chance too often.
    """
    ratios = sorted(one / other for one in of for other in to)
    value = statistics.median(ratios) if ratios else math.nan
    outside = _outside(len(of), len(to))
    if not outside:
        return Interval(value, 0.0, math.inf)
    return Interval(value, ratios[outside - 1], ratios[-outside])


def _outside(one: int, other: int) -> int:
    """How many of the sorted ratios lie at and beyond either end of the interval."""
    # ways[k][u]: the orders of k of the first sample among the second in which the first is
    # greater u times.
    if one * other > _EXACT:
        spread = math.sqrt(one * other * (one + other + 1) / 12)
        return max(0, int(one * other / 2 - 1.96 * spread))
    ways = [1] + [0] * (one * other)
    for k in range(1, one + 1):  # Gauss's binomial: times (1 - x^(other + k)) / (1 - x^k)
        for u in range(one * other, other + k - 1, -1):
            ways[u] -= ways[u - other - k]
        for u in range(k, one * other + 1):
            ways[u] += ways[u - k]
    allowed, seen = math.comb(one + other, one) * (1 - _WITHIN) / 2, 0
    for u, count in enumerate(ways):
        seen += count
        if seen > allowed:
            return u
    return 0


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
