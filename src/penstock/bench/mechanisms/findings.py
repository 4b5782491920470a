"""What the rows show, in words that follow from their figures alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from penstock.bench.measure import FEWEST
from penstock.bench.mechanisms.comparison import Row

Effect = Literal["gain", "loss", "none", "unclear"]
_SPREAD = 1.5  # an interval that spans more than this factor rules no effect out


def effect(row: Row) -> Effect:
    """Whether the mechanism makes a difference.

    It does if the interval of off ÷ on excludes 1 and lies beyond that of on with itself. If it
    does not, and one of the two is wide, the machine was too noisy to tell. Of a few rounds there
    is no interval, and nothing can be told.
    """
    if not has_interval(row):
        return "unclear"
    if row["ratio_low"] > max(1.0, row["noise_high"]):
        return "gain"
    if row["ratio_high"] < min(1.0, row["noise_low"]):
        return "loss"
    intervals = ((row[f"{name}_low"], row[f"{name}_high"]) for name in ("ratio", "noise"))
    return "unclear" if any(high > _SPREAD * low for low, high in intervals) else "none"


def has_interval(row: Row) -> bool:
    """Whether there were enough rounds for an interval."""
    return min(len(row["samples_ns"]), len(row["off_samples_ns"])) >= FEWEST


def largest(rows: Sequence[Row]) -> Row:
    """The row with the largest gain that is shown; without one, the largest ratio."""
    shown = [row for row in rows if effect(row) == "gain"]
    return max(shown or rows, key=lambda row: row["ratio"])


def finding(rows: Sequence[Row]) -> str:
    """What the rows of one mechanism show."""
    parts = []
    gains, losses, none, unclear = (
        [row for row in rows if effect(row) == kind] for kind in ("gain", "loss", "none", "unclear")
    )
    if gains:
        most = largest(gains)
        parts.append(
            f"Without it, {each(most['unit'])} takes longer in {_of(gains, rows)}, up to "
            f"{times(most['ratio'])} times as long ({most['test']}; 95 % within {within(most)})."
        )
    if losses:
        most = min(losses, key=lambda row: float(row["ratio"]))
        parts.append(
            f"It costs time in {_of(losses, rows)}: off takes {times(most['ratio'])} times as long "
            f"as on ({most['test']}; 95 % within {within(most)})."
        )
    if slower := [row for row in rows if _rate_falls(row)]:
        most = slower[0]
        rate = next(one for one in most["figures"] if one["unit"] == "/s")
        parts.append(
            f"Its price: {rate['what']} per second are fewer with it on in {_of(slower, rows)} "
            f"({_short(rate['on'])} against {_short(rate['off'])}: {most['test']})."
        )
    if few := [row for row in unclear if not has_interval(row)]:
        parts.append(
            f"Whether there is an effect cannot be told in {_of(few, rows)}, because there were "
            f"fewer than {FEWEST} rounds."
        )
    if unclear := [row for row in unclear if has_interval(row)]:
        listed = "; ".join(f"{row['test']} ({within(row)})" for row in unclear)
        parts.append(
            f"Whether there is an effect cannot be told in {_of(unclear, rows)}, because the run "
            f"was too noisy: {listed}."
        )
    if none:
        listed = "; ".join(f"{row['test']} ({within(row)})" for row in none)
        parts.append(
            f"No effect is shown in {_of(none, rows)}, where the interval of off ÷ on includes 1 "
            f"or meets that of on with itself: {listed}."
        )
    return " ".join(parts)


def headline(title: str, rows: Sequence[Row]) -> str:
    """The message of a mechanism's plot."""
    most = largest(rows)
    title = title[:1].upper() + title[1:]
    if effect(most) != "gain":
        found = {effect(row) for row in rows}
        kind = "no gain" if "loss" in found else "no effect"
        if "unclear" in found:
            kind = "the run was too noisy to show an effect"
        if not all(map(has_interval, rows)):
            kind = "too few rounds to show an effect"
        return f"{title}: {kind} on {most['gpu_info'].partition(' (')[0]}"
    memory = next((one for one in most["figures"] if one["unit"] == "bytes"), None)
    more = ""
    if memory is not None and memory["off"] > memory["on"]:
        more = f", and {size(memory['off'] - memory['on'])} more memory"
    return (
        f"{title}: off, {each(most['unit'])} takes up to {times(most['ratio'])} times as long{more}"
    )


def summary(groups: Sequence[Sequence[Row]]) -> str:
    """The message of the plot of all mechanisms."""
    shown = [rows for rows in groups if effect(largest(rows)) == "gain"]
    device = groups[0][0]["gpu_info"].partition(" (")[0]
    if not any(has_interval(row) for rows in groups for row in rows):
        return f"Too few rounds to tell which mechanisms save time on {device}"
    return f"{len(shown)} of {len(groups)} mechanisms save time on {device} where their effect lies"


def _rate_falls(row: Row) -> bool:
    """Whether something per second is lower with the mechanism on, by a twentieth or more."""
    return any(one["unit"] == "/s" and one["on"] < 0.95 * one["off"] for one in row["figures"])


# Figures as text.


def within(row: Row, name: str = "ratio") -> str:
    """The interval of off ÷ on, or with `name` "noise" of on with itself."""
    if not has_interval(row):
        return "–"
    return f"{times(row[f'{name}_low'])}–{times(row[f'{name}_high'])}"


def times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def duration(nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return "–"
    for unit, length in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= length:
            return f"{_short(nanoseconds / length)} {unit}"
    return f"{_short(nanoseconds)} ns" if nanoseconds else "0"


def size(nbytes: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= length:
            return f"{_short(nbytes / length)} {unit}"
    return f"{_short(nbytes)} B" if nbytes else "0"


def figure(value: float, unit: str) -> str:
    if unit == "bytes":
        return size(value)
    return duration(value * 1e9) if unit == "s" else f"{_short(value)} {unit}"


def each(unit: str) -> str:
    if unit.startswith("first"):
        return f"the {unit}"
    return f"an {unit}" if unit[0] in "aeiou" else f"a {unit}"


def pair(on: Any, off: Any) -> str:
    """On and off, once if they are the same."""
    return f"{on} → {off}" if on != off else str(on)


def _short(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _of(some: Sequence[Row], rows: Sequence[Row]) -> str:
    if len(some) == len(rows):
        return "every case" if len(rows) > 1 else "its case"
    return f"{len(some)} of {len(rows)} cases"
