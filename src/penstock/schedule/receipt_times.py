"""Device times for receipts: which ones are owed, and the waits that make them known."""

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

_MOMENT = 0.05  # seconds that a wait on the receipt may take longer, to learn the device's clock


class ReceiptTimes(Timekeeper):
    """Those of one device. Takes the device's lock where `Timekeeper` is called under it."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler.driver)
        self._scheduler = scheduler

    def deliver_times(self, collector: events.Collector, patience: float) -> None:
        """Tell a receipt when the device did what it did, once it is done.

        With patience, waits that many seconds for what is in flight; without, for nothing.
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
                scheduler.wait_for(points, patience, "the receipt is to have the device's times")
            self.deliver_known_times(deadline if patience else 0.0)

    def deliver_known_times(self, deadline: float = 0.0) -> None:
        """Have times told as far as that takes no wait, or only one until the deadline."""
        scheduler = self._scheduler
        with scheduler.lock:
            resting = True
            for stream in scheduler.all_streams():
                stream.read_times()
                resting = resting and stream.lane.complete == stream.lane.submitted
        if not self.owed or not (resting or deadline):
            return
        # How the clocks compare is asked of the device, once, and takes it a moment.
        if self._learn_time(deadline or time.monotonic() + _MOMENT):
            with scheduler.lock:
                self.deliver()

    def _learn_time(self, deadline: float) -> bool:
        """Find out how the device's clock and the host's compare; whether that is known."""
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
