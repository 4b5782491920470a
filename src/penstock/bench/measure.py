"""Timing on a noisy machine: side by side in one run, many times, minimum and median.

Whatever disturbs one case in an interleaved run disturbs its neighbours too, so ratios hold where
single figures do not. The minimum says what the code can do, the median what it does here and now.
How far a ratio can be trusted is its interval: what 95 of 100 ratios lie within, when rounds are
drawn again and again from those that were measured (the bootstrap).

Workers of other runtimes load this in environments of their own: nothing but Python is needed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import Error

#: The kernels that are measured.
SHADERS = Path(__file__).with_name("shaders")

#: Runs once, checks its own outcome, and returns the seconds of the part that is measured; or runs
#: several times in a row, and returns the seconds of each.
Case = Callable[[], float | Sequence[float]]

#: Rounds without which an interval tells nothing.
FEWEST = 4

_WARM_UP = 3  # rounds that do not count
_DRAWS = 1000  # of the bootstrap
_WITHIN = 0.95


class WrongResult(Error, ArithmeticError):
    """What was timed did not do its work, so the figure is none."""


@dataclass
class Samples:
    """The seconds of one case, round by round."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else float("nan")

    @property
    def minimum(self) -> float:
        return min(self.seconds, default=float("nan"))


class Interval(NamedTuple):
    """A ratio, and what it lies within."""

    value: float
    low: float
    high: float

    def columns(self, name: str) -> dict[str, float]:
        """The columns of a row: the ratio under `name`, and its bounds."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def ratio(of: Sequence[float], to: Sequence[float], *, paired: bool) -> Interval:
    """How many times the median of `to` the median of `of` is.

    Paired samples are of the same rounds, and rounds are drawn, so that what disturbed both does
    not count; samples of two runs are drawn apart.
    """
    if not of or not to:
        return Interval(float("nan"), float("nan"), float("nan"))
    draw = random.Random(0)
    paired = paired and len(of) == len(to)
    found = []
    for _ in range(_DRAWS):
        rounds = draw.choices(range(len(of)), k=len(of))
        others = rounds if paired else draw.choices(range(len(to)), k=len(to))
        top = statistics.median([of[number] for number in rounds])
        found.append(top / statistics.median([to[number] for number in others]))
    found.sort()
    outside = round(_DRAWS * (1 - _WITHIN) / 2)
    value = statistics.median(of) / statistics.median(to)
    return Interval(value, found[outside], found[-1 - outside])


def interleave(
    cases: Mapping[str, Case],
    repeat: int,
    *,
    warm_up: int = _WARM_UP,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Samples]:
    """Run every case once a round, in another order each: a case also measures what it follows."""
    order = random.Random(0)
    names = list(cases)
    samples = {name: Samples() for name in names}
    for number in range(-warm_up, repeat):
        if progress is not None:
            progress(number + warm_up, repeat + warm_up)
        for name in order.sample(names, len(names)):
            seconds = cases[name]()
            if number >= 0:
                samples[name].seconds += [seconds] if isinstance(seconds, float) else seconds
    return samples


def timed(times: int, call: Callable[..., Any], *arguments: Any) -> float:
    """The seconds of one call, from several in a row."""
    start = time.perf_counter()
    for _ in range(times):
        call(*arguments)
    return (time.perf_counter() - start) / times


def expect(good: bool, what: str) -> None:
    """Raise unless the measured work gave the right result; every measurement is checked."""
    if not good:
        raise WrongResult(f"{what} gave a wrong result; its time means nothing")
