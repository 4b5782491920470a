"""Timelines, which HIP lacks, as a counter and an event for each pending value.

A value signalled by a submission has an event, recorded after the submission. Values are reached in
order, so only the oldest event needs polling. A value signalled by the host has no event: the
driver holds work that waits for it back until then (`penstock.driver.hip.recording`).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock import accelerator
from penstock.driver.hip.api import NOT_READY, ffi
from penstock.locks import RLock

if TYPE_CHECKING:
    from penstock.driver.hip.clock import Round
    from penstock.driver.hip.driver import HipDriver

_DISABLE_TIMING, _RELEASE_TO_SYSTEM = 0x2, 0x80000000
_MOMENT = 1e-4  # seconds to poll before sleeping: about the cost of sleeping and waking
_LONGEST_NAP = 1e-3
_let_others_run = getattr(os, "sched_yield", partial(time.sleep, 0))


class Events:
    """A pool of reusable events. Used by one thread at a time."""

    def __init__(self, driver: HipDriver) -> None:
        self._driver = driver
        self._spare: list[int] = []
        self._made: list[int] = []

    def take(self) -> int:
        return self._spare.pop() if self._spare else self._new()

    def give_back(self, event: int) -> None:
        """Return a completed event. It can be recorded again even if a stream still waits for it:
        the stream waits for the recording that was current when the wait was issued.
        """
        self._spare.append(event)

    def close(self) -> None:
        for event in self._made:
            self._driver.call.hipEventDestroy(event)

    def _new(self) -> int:
        driver = self._driver
        out = ffi.new("handle *")
        # Make earlier writes host-visible; without timing, an event is cheapest.
        flags = _DISABLE_TIMING | _RELEASE_TO_SYSTEM
        driver.hip.check(driver.call.hipEventCreateWithFlags(out, flags), "hipEventCreateWithFlags")
        driver.notify("event", 0)
        self._made.append(int(out[0]))
        return self._made[-1]


@accelerator.share
class HipTimeline:
    """A timeline that starts at 0. The code that made it closes it."""

    def __init__(self, driver: HipDriver) -> None:
        self._driver = driver
        self._query = driver.call.hipEventQuery
        self._events: deque[tuple[int, int]] = deque()  # pending values with their events
        self._lock = RLock()  # reentrant: a finaliser may signal meanwhile
        self.issued = 0  # the highest value signalled by the host or issued to HIP
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
                # Before the event is returned: an exception in between must not lose the value.
                self._reached = value
                events.popleft()
                self._driver.events.give_back(event)

    def raise_to(self, value: int) -> None:
        """Raise it from the host."""
        self._reached = self.issued = value

    def will_raise(self, value: int, event: int) -> None:
        """Note that a submission which signals this value was issued, and its event recorded.

        Called with `issuing` locked, as `event_for` is; `_look` only removes what is there.
        """
        self._events.append((value, event))
        self.issued = value

    def event_for(self, value: int) -> int | None:
        """The event that a stream must wait for; None if the value is reached.

        Called with `issuing` locked.
        """
        with self._lock:
            return next((event for at, event in self._events if at >= value), None)

    def close(self) -> None:
        with self._lock:
            while self._events:
                self._driver.events.give_back(self._events.popleft()[1])


def wait(points: Sequence[tuple[HipTimeline | Round, int]], timeout_ns: int) -> bool:
    """Block until all values are reached; False on timeout.

    HIP's wait for an event has no timeout, and notices neither Ctrl-C nor the loss of the device.
    So this polls instead: continuously at first, then at growing intervals.
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
