"""The device's clock on the host's: measurements of both at once, and what follows in between.

A measurement is a tick of the device's clock, and the host's times before and after it was taken;
the tick was taken somewhere within that bracket, so the offset is off by half of it at most. Of a
series, the measurement with the shortest bracket counts.

Two clocks drift apart, and a clock that the system sets may jump. So measurements are repeated
while times are wanted, and a tick between two of them is converted by both. For one before the
first or after the last, the error includes the drift of quartz clocks, 50 µs a second.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

ROUNDS = 5  # measurements in a series
_FRESH = 1.0  # seconds after which a measurement is repeated
_DRIFT = 50e-6  # seconds in a second


class Alignment:
    """Converts ticks to seconds of `time.perf_counter`."""

    def __init__(self, period: float) -> None:
        self._period = period  # seconds per tick
        self._ticks: list[int] = []  # measured, in order; and the host's times
        self._times: list[float] = []
        self._bracket = 0.0  # half of the longest
        self._ahead = False  # whether a tick after the last measurement was converted
        #: The largest error so far: half the bracket of a measurement, and the drift.
        self.error: float | None = None

    @property
    def known(self) -> bool:
        return bool(self._ticks)

    @property
    def fresh(self) -> bool:
        """Whether it is known, and need not be measured again yet."""
        return self.known and time.perf_counter() - self._times[-1] < _FRESH

    def measured(self, series: Sequence[tuple[float, float, int]]) -> None:
        """Add a series of measurements: the host's time before and after each, and the tick."""
        before, after, tick = min(series, key=lambda each: each[1] - each[0])
        middle, error = (before + after) / 2, (after - before) / 2
        self._bracket = max(self._bracket, error)
        if self.known and self._ahead:
            error = max(error, abs(self.seconds([tick])[0] - middle))
        self._ahead = False
        if not self.known or tick > self._ticks[-1]:
            self._ticks.append(tick)
            self._times.append(middle)
        self.error = max(error, self.error or 0.0)

    def seconds(self, ticks: Sequence[int]) -> list[float]:
        """The ticks as times of the host."""
        if ticks:
            ahead, behind = max(ticks) - self._ticks[-1], self._ticks[0] - min(ticks)
            self._ahead = self._ahead or ahead > 0
            drift = max(ahead, behind, 0) * self._period * _DRIFT
            self.error = max(self.error or 0.0, drift + self._bracket)
        return [self._seconds(tick) for tick in ticks]

    def _seconds(self, tick: int) -> float:
        known, times = self._ticks, self._times
        after = bisect_left(known, tick)
        if after == 0 or after == len(known):
            nearest = 0 if after == 0 else -1
            return times[nearest] + (tick - known[nearest]) * self._period
        lo, hi = after - 1, after
        share = (tick - known[lo]) / (known[hi] - known[lo])
        return times[lo] + share * (times[hi] - times[lo])
