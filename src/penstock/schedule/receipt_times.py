"""Device timestamps for receipts: which are still to be delivered, and the waits for them."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import Error
from penstock.tracing import events
from penstock.tracing.device_times import Timekeeper

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler

_MOMENT = 0.05  # seconds by which a traced wait may be prolonged, to measure the device's clock


class ReceiptTimes(Timekeeper):
    """The timestamps of one device. These methods take the lock that `Timekeeper`'s need."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler.driver)
        self._scheduler = scheduler

    def note_traces(self) -> None:
        """Update `Scheduler.plain`: the native step must know whether a trace is active."""
        self._scheduler.note_state()

    def deliver_times(self, collector: events.Collector, patience: float) -> None:
        """Deliver to a receipt the timestamps of all work that is complete.

        Waits at most `patience` seconds for work in flight; with 0, waits for nothing.
        """
        scheduler = self._scheduler
        if scheduler.closed or scheduler.lost is not None or scheduler.is_locked_here():
            return
        deadline = time.monotonic() + patience
        with contextlib.suppress(Error):  # a receipt is not worth a failure
            with scheduler.lock:
                streams = scheduler.all_streams()
                points = {s.lane: owed for s in streams if (owed := s.times_owed(collector))}
                if points:
                    scheduler.poll()
            if points and patience:
                scheduler.wait_for(points, patience, "the receipt needs the device's timestamps")
            self.deliver_known_times(deadline if patience else 0.0)

    def deliver_known_times(self, deadline: float = 0.0) -> None:
        """Deliver the timestamps of complete work, as far as the clocks' offset is known.

        Measuring the offset may take a wait, until the deadline if one is given; without one, it is
        measured only while the device is idle.
        """
        start = events.clock() if events.timing else 0.0
        self._deliver_known_times(deadline)
        if start and events.active and (seconds := events.since(start)):
            events.emit("clock", "the trace took the device's times", start=start, seconds=seconds)

    def _deliver_known_times(self, deadline: float) -> None:
        scheduler = self._scheduler
        with scheduler.lock:
            resting = True
            for stream in scheduler.all_streams():
                stream.read_times()
                resting = resting and stream.lane.complete == stream.lane.submitted
        if not self.owed:
            return
        if not (resting or deadline):
            if scheduler.driver.clock_error is not None:  # measured some time ago
                with scheduler.lock:
                    self.deliver()
            return
        # The device measures the offset of the clocks, which takes it a moment.
        if self._learn_time(deadline or time.monotonic() + _MOMENT):
            with scheduler.lock:
                self.deliver()

    def _learn_time(self, deadline: float) -> bool:
        """Measure the offset between the device's and the host's clock; returns whether known."""
        scheduler = self._scheduler
        driver = scheduler.driver
        while True:
            with scheduler.lock:
                if scheduler.shutdown.over or scheduler.lost is not None:
                    return False
                point = driver.learn_time()
            if point is None:
                return True
            left = max(0, int((deadline - time.monotonic()) * 1e9))
            if not scheduler.shutdown.use(partial(driver.wait, [point], left)):
                return False
