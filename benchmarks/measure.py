"""Timing on a noisy machine: side by side in one run, many times, minimum and median.

Whatever disturbs one case in an interleaved run disturbs its neighbours too, so ratios hold where
single figures do not. The minimum says what the code can do, the median what it does here and now.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Runs once, checks its own outcome, and returns the seconds of the part that is measured; None if
#: something else than the thing to be measured happened meanwhile.
Case = Callable[[], float]

_WARM_UP = 3  # rounds that do not count


class WrongResult(Exception):
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


def interleave(cases: Mapping[str, Case], repeat: int) -> dict[str, Samples]:
    """Run every case once a round, in another order each: a case also measures what it follows."""
    order = random.Random(0)
    names = list(cases)
    samples = {name: Samples() for name in names}
    for number in range(-_WARM_UP, repeat):
        for name in order.sample(names, len(names)):
            seconds = cases[name]()
            if number >= 0:
                samples[name].seconds.append(seconds)
    return samples


def timed(times: int, call: Callable[..., Any], *arguments: Any) -> float:
    """The seconds of one call, from several in a row."""
    start = time.perf_counter()
    for _ in range(times):
        call(*arguments)
    return (time.perf_counter() - start) / times


def expect(good: bool, what: str) -> None:
    """The check that stands beside every figure."""
    if not good:
        raise WrongResult(f"{what} gave a wrong result; its time means nothing")
