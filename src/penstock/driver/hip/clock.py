"""The device's clock: HIP events that take the time, and their conversion to the host's clock.

HIP tells only the milliseconds between two events, as a float of 32 bits. So the ticks here are
nanoseconds since a first event, and an event is compared with a *base* recorded shortly before it:
after 4 seconds there is a new base, because the float's steps grow with the distance.

Objects made here serve only tracing. Receipts list them separately, as events of kind `clock`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.driver.alignment import ROUNDS, Alignment
from penstock.driver.hip.api import NOT_READY, ffi
from penstock.errors import Timeout
from penstock.tracing import events as trace_events

if TYPE_CHECKING:
    from penstock.driver.hip.driver import HipDriver

_NON_BLOCKING = 0x1
_RELEASE_TO_DEVICE = 0x40000000  # takes the time without making writes visible to the host
_MADE_AT_ONCE = 64  # events
_FAR = 4.0  # seconds from its base at which an event gets another one
_PATIENCE = 1.0  # seconds to wait for a base on a stream without other work


class Base:
    """An event that later ones are compared with."""

    def __init__(self, event: int, before: Base | None) -> None:
        self.event = event
        self.before = before  # until `tick` is known
        self.tick = 0
        self.recorded = time.perf_counter()


class HipClock:
    """The events that take the time on one device. Called under the device's lock."""

    def __init__(self, driver: HipDriver) -> None:
        self._driver = driver
        self.alignment = Alignment(1e-9)
        self._made: list[int] = []
        self._spare: list[int] = []
        self._stream = 0  # that has no other work
        self._base: Base | None = None
        self._round: Round | None = None  # that is under way
        self._series: list[tuple[float, float, int]] = []

    def take(self) -> int:
        """An event that takes the time when it is reached."""
        if not self._spare:
            driver, start = self._driver, trace_events.clock()
            out = ffi.new("handle *")
            create = driver.call.hipEventCreateWithFlags
            for _ in range(_MADE_AT_ONCE):
                driver.hip.check(create(out, _RELEASE_TO_DEVICE), "hipEventCreateWithFlags")
                self._made.append(int(out[0]))
                self._spare.append(int(out[0]))
            driver.notify(f"clock: {_MADE_AT_ONCE} events for timestamps", 0, start)
        return self._spare.pop()

    def give_back(self, events: list[int]) -> None:
        self._spare += events

    def base(self) -> Base:
        """The base for an event that is recorded after this call."""
        base = self._base
        if base is None or time.perf_counter() - base.recorded > _FAR:
            event = self.take()
            self._record(event)
            base = self._base = Base(event, base)
        return base

    def ticks(self, base: Base, events: list[int]) -> list[int]:
        """When these complete events, recorded after the base, were reached."""
        return [self._tick_of(base) + self._between(base.event, event) for event in events]

    def _tick_of(self, base: Base) -> int:
        if base.before is not None:
            base.tick = self._tick_of(base.before) + self._between(base.before.event, base.event)
            base.before = None
        return base.tick

    def _between(self, start: int, end: int) -> int:
        """Nanoseconds from one event to the other; waits for one on the clock's own stream."""
        driver, out = self._driver, ffi.new("float *")
        until = time.perf_counter() + _PATIENCE
        while True:
            result = driver.call.hipEventElapsedTime(out, start, end)
            if result != NOT_READY:
                driver.must(result, "hipEventElapsedTime")
                return round(float(out[0]) * 1e6)
            for event in (start, end):
                driver.call.hipEventQuery(event)
            if time.perf_counter() > until:
                raise Timeout("hipEventElapsedTime: an event on an idle stream is not reached")

    def _record(self, event: int) -> None:
        driver = self._driver
        if not self._stream:
            out = ffi.new("handle *")
            result = driver.call.hipStreamCreateWithFlags(out, _NON_BLOCKING)
            driver.must(result, "hipStreamCreateWithFlags")
            self._stream = int(out[0])
            driver.notify("clock: a stream to compare it with the host's", 0)
        driver.must(driver.call.hipEventRecord(event, self._stream), "hipEventRecord")

    # The comparison with the host's clock: events on a stream without other work.

    def learn(self) -> tuple[Round, int] | None:
        """Start or continue a series of measurements; returns what to wait for, None at its end."""
        if self.alignment.fresh:
            return None
        while True:
            if self._round is None:
                base = self.base()
                self._round = Round(self._driver, base, self.take(), self._record)
            done = self._round
            if not done.value():
                return done, 1
            (tick,) = self.ticks(done.base, [done.event])
            self._series.append((done.before, done.after, tick))
            self._round = None
            self.give_back([done.event])
            if len(self._series) == ROUNDS:
                series, self._series = self._series, []
                self.alignment.measured(series)
                return None

    def close(self) -> None:
        """Free the events. Nothing may be in flight."""
        for event in self._made:
            self._driver.call.hipEventDestroy(event)
        if self._stream:
            self._driver.call.hipStreamDestroy(self._stream)


class Round:
    """One measurement: an event, and the host's times before and after it was reached.

    Other threads may call `value` at any time, as of a timeline that is waited for.
    """

    def __init__(
        self, driver: HipDriver, base: Base, event: int, record: Callable[[int], None]
    ) -> None:
        self._driver = driver
        self.base = base
        self.event = event
        self.after = 0.0
        self.before = time.perf_counter()
        record(event)

    def value(self) -> int:
        """1 once the event is reached, 0 before."""
        if not self.after:
            result = self._driver.call.hipEventQuery(self.event)
            if result == NOT_READY:
                return 0
            self._driver.must(result, "hipEventQuery")
            self.after = self.after or time.perf_counter()
        return 1
