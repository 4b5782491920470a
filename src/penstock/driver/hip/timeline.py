"""Timelines, which HIP does not have: a counter, and an event for each value on its way.

A value that a submission reaches has an event, recorded behind the submission; values are reached
in order, so that the oldest event tells. A value that the host reaches has none: work that waits
for it is held back by the driver until then (`penstock.driver.hip.recording`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.driver.hip.api import NOT_READY, ffi

if TYPE_CHECKING:
    from penstock.driver.hip.driver import HipDriver

_DISABLE_TIMING, _RELEASE_TO_SYSTEM = 0x2, 0x80000000
_MOMENT = 1e-4  # seconds: what it may take to fall asleep and be woken
_LONGEST_NAP = 1e-3
_let_others_run = getattr(os, "sched_yield", partial(time.sleep, 0))


class Events:
    """Events for use again and again. Handed out and given back by one thread at a time."""

    def __init__(self, driver: HipDriver) -> None:
        self._driver = driver
        self._spare: list[int] = []
        self._made: list[int] = []

    def take(self) -> int:
        return self._spare.pop() if self._spare else self._new()

    def give_back(self, event: int) -> None:
        """It has happened. A stream that was told to wait for it waits for what it was then."""
        self._spare.append(event)

    def close(self) -> None:
        for event in self._made:
            self._driver.call.hipEventDestroy(event)

    def _new(self) -> int:
        driver = self._driver
        out = ffi.new("handle *")
        # The host is to see what was written before; without timing an event costs least.
        flags = _DISABLE_TIMING | _RELEASE_TO_SYSTEM
        driver.hip.check(driver.call.hipEventCreateWithFlags(out, flags), "hipEventCreateWithFlags")
        driver.notify("event", 0)
        self._made.append(int(out[0]))
        return self._made[-1]


class HipTimeline:
    """Starts at 0. Owned by whoever made it."""

    def __init__(self, driver: HipDriver) -> None:
        self._driver = driver
        self._query = driver.call.hipEventQuery
        self._events: deque[tuple[int, int]] = deque()  # value and event, of what is on its way
        self._lock = threading.RLock()  # a finaliser that runs in between may signal
        self.issued = 0  # the value that HIP has been told of
        self._reached = 0

    def value(self) -> int:
        """The value reached so far."""
        driver = self._driver
        if driver.backlog.queues:
            driver.issue_held()
        if self._events:
            self._look()
        return self._reached

    def _look(self) -> None:
        with self._lock:
            events = self._events
            while events:
                value, event = events[0]
                result = self._query(event)
                if result == NOT_READY:
                    return
                if result:
                    self._driver.failed(result, "hipEventQuery")
                # Before the event goes: nothing else could tell of the value.
                self._reached = value
                events.popleft()
                self._driver.events.give_back(event)

    def raise_to(self, value: int) -> None:
        """By the host."""
        self._reached = self.issued = value

    def will_raise(self, value: int, event: int) -> None:
        """A submission that reaches this value is on its way, and the event behind it."""
        with self._lock:
            self._events.append((value, event))
            self.issued = value

    def event_for(self, value: int) -> int | None:
        """What a stream is to wait for; None if the value is reached."""
        with self._lock:
            return next((event for at, event in self._events if at >= value), None)

    def close(self) -> None:
        with self._lock:
            while self._events:
                self._driver.events.give_back(self._events.popleft()[1])


def wait(points: Sequence[tuple[HipTimeline, int]], timeout_ns: int) -> bool:
    """Block until all values are reached; False when time ran out.

    HIP can wait for an event only without a limit, during which neither Ctrl-C nor the loss of the
    device is heard of. So it is asked again and again: at once at first, then at growing distances.
    """
    start = time.perf_counter()
    left = list(points)
    while True:
        while left and left[-1][0].value() >= left[-1][1]:
            left.pop()
        if not left:
            return True
        passed = time.perf_counter() - start
        rest = timeout_ns * 1e-9 - passed
        if rest <= 0:
            return False
        if passed < _MOMENT:
            _let_others_run()
        else:
            time.sleep(min(passed / 8, _LONGEST_NAP, rest))
