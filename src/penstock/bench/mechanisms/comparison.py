"""One comparison: the same work with a mechanism on and off, timed, checked and traced.

A `Side` does the work once. Both sides and a second run of the first (the noise) take turns, round
by round. The counts and the idle time are from one more run of each side under a trace with device
times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import penstock as ps
from penstock.bench.measure import interleave, ratio
from penstock.bench.models import OnProgress
from penstock.llm.costs import COUNTS, counted

Row: TypeAlias = dict[str, Any]
#: Seconds of each part of the work, or None if the whole of it is timed.
Parts: TypeAlias = Sequence[float] | None


@dataclass(frozen=True)
class Costs:
    """What one run cost, from its receipt. Seconds; None without device times."""

    counts: dict[str, float]
    span: float | None = None
    busy: float | None = None

    @classmethod
    def of(cls, trace: ps.Trace) -> Costs:
        """The costs of a trace that has ended; waits for its device times."""
        trace.wait_for_times()
        counts: dict[str, float] = dict(counted(trace))
        return cls(counts, trace.span, trace.busy)


def _nothing() -> None:
    pass


@dataclass
class Side:
    """The work with the mechanism on, or off."""

    work: Callable[[], Parts]
    check: Callable[[], None]  # raises `WrongResult` unless the work gave the right values
    prepare: Callable[[], Any] = _nothing
    #: How its costs are found, if not by a trace in this process.
    costs: Callable[[], Costs] | None = None
    parts: list[float] = field(default_factory=list)  # seconds of every part, if parts are timed
    whole: list[float] = field(default_factory=list)  # seconds of every run

    def run(self, units: int) -> float:
        """Seconds of one unit: the median of the parts, or the whole run divided."""
        self.prepare()
        start = time.perf_counter()
        parts = self.work()
        seconds = time.perf_counter() - start
        self.check()
        if parts is None:
            self.whole.append(seconds)
            return seconds / units
        self.parts += parts
        self.whole.append(seconds)
        return statistics.median(parts)

    def forget(self) -> None:
        """Drop the times of the warm-up."""
        self.parts.clear()
        self.whole.clear()

    def traced(self, device: ps.Device) -> Costs:
        """Run once more, for the receipt."""
        if self.costs is not None:
            return self.costs()
        self.prepare()
        device.synchronize()
        with ps.trace() as trace:
            self.work()
        self.check()
        return Costs.of(trace)


@dataclass(frozen=True)
class Figure:
    """Another figure of both sides, such as memory. `unit` is "bytes", "s" or "/s"."""

    what: str
    unit: str
    on: float
    off: float


@dataclass
class Comparison:
    """A case of a mechanism. `unit` is what a time is the time of; a run has `units` of them."""

    test: str
    on: Side
    off: Side
    unit: str
    units: int = 1
    size: int = 0
    device_of_off: ps.Device | None = None  # if off needs a device of its own
    figures: Callable[[Side, Side], list[Figure]] = lambda on, off: []
    slow: bool = False  # half as many rounds, and none to warm up


@dataclass(frozen=True)
class Plan:
    """What a run measures on, and how much."""

    device: ps.Device
    models: Path  # where model files are, or are made
    sizes: Sequence[float] = (0.1, 0.5, 2.0)  # of model files, in GB
    repeat: int = 10
    quick: bool = False
    progress: OnProgress = lambda what, done, total: None


@dataclass(frozen=True)
class Mechanism:
    """A mechanism, what on and off mean, its comparisons, and what is to be said of them.

    `why` explains cases without an effect; it is only shown if there are any. `elsewhere` is the
    arithmetic for a device with memory of its own, from rows and named public figures.
    """

    name: str  # for --only
    title: str
    on: str
    off: str
    compare: Callable[[Plan, ExitStack], Iterator[Comparison]]
    why: str
    elsewhere: Callable[[Sequence[Row]], str]


def row_of(mechanism: Mechanism, plan: Plan, case: Comparison) -> Row:
    """Measure one comparison."""
    repeat, warm_up = plan.repeat, 2
    if case.slow:
        repeat, warm_up = max(2, plan.repeat // 2), 0
    if plan.quick:
        repeat, warm_up = (1, 0) if case.slow else (plan.repeat, 1)
    what = f"{mechanism.name}: {case.test}"
    sides = {"on": case.on, "off": case.off}
    if not (plan.quick and case.slow):
        sides["again"] = Side(case.on.work, case.on.check, case.on.prepare)
    cases = {name: partial(side.run, case.units) for name, side in sides.items()}

    def progress(done: int, total: int) -> None:
        if done == warm_up:
            for side in sides.values():
                side.forget()
        plan.progress(what, done, total)

    samples = interleave(cases, repeat, warm_up=warm_up, progress=progress)
    on, off = samples["on"].seconds, samples["off"].seconds
    compared = ratio(off, on, paired=True)
    noise = ratio(samples.get("again", samples["on"]).seconds, on, paired=True)
    found = {
        "": case.on.traced(plan.device),
        "off_": case.off.traced(case.device_of_off or plan.device),
    }
    plan.progress(what, repeat + warm_up, repeat + warm_up)
    row: Row = {
        "group": mechanism.name, "mechanism": mechanism.title, "test": case.test,
        "size": case.size, "unit": case.unit,
        **_times("", on), **_times("off_", off),
        **compared.columns("ratio"), **noise.columns("noise"),
    }  # fmt: skip
    for prefix, costs in found.items():
        row |= _costs(prefix, costs, case.units)
    row["figures"] = [vars(one) for one in case.figures(case.on, case.off)]
    return row


def _times(prefix: str, seconds: Sequence[float]) -> Row:
    nanoseconds = [round(one * 1e9, 1) for one in seconds]
    return {
        f"{prefix}median_ns": statistics.median(nanoseconds),
        f"{prefix}min_ns": min(nanoseconds),
        f"{prefix}samples_ns": nanoseconds,
    }


def _costs(prefix: str, costs: Costs, units: int) -> Row:
    found: Row = {f"{prefix}{name}": costs.counts[name] / units for name in COUNTS}
    if costs.span and costs.busy is not None:
        found[f"{prefix}idle_ns"] = round((costs.span - costs.busy) / units * 1e9, 1)
        found[f"{prefix}busy"] = round(costs.busy / costs.span, 4)
    else:
        found[f"{prefix}idle_ns"] = found[f"{prefix}busy"] = None
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, -int(-share * len(ranked) // 1) - 1))]
