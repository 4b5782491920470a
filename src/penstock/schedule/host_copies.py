"""Copies that a call begins under the device's lock and makes without it.

Each is a value on a host lane, so that device work on the same bytes waits for it. Whatever stops
the calling thread between the two steps, that device work goes on: `HostCopies.carry_out` has the
call abandon what it has begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.schedule.host_lane import HostLane, HostLanes
from penstock.schedule.stream import NoRoom

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler

T = TypeVar("T")


class HostCopies:
    """Those of one device, and the host lanes that they take."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.lanes = HostLanes(scheduler.driver, "host copy")
        self.lanes.next_idle()  # made now: the first copy is to cost no more than the next
        #: What the call that holds the lock has begun and is to finish without it.
        self.begun: list[Any] = []

    def carry_out(self, begin: Callable[[], T]) -> T:
        """Call `begin` under the lock, then `finish` what it has put on `begun` without the lock.

        `begin` is called again if the stream that it uses had to be given room, or if `finish` says
        that another thread came in between. If an exception stops the thread before the end,
        `abandon` of all that is on `begun` lets go of the device work that waits for it.
        """
        scheduler = self._scheduler
        begun: list[Any] = []
        try:
            while True:
                try:
                    with scheduler.lock:
                        self.begun = begun
                        outcome = begin()
                except NoRoom as full:
                    stream = full.stream
                else:
                    if not begun or all(each.finish() for each in begun):
                        return outcome
                    begun.clear()
                    continue
                stream.make_room()
        finally:
            if begun:
                for each in begun:
                    each.abandon()
                begun.clear()  # they keep the caller's arrays alive
                if scheduler.ended.left:
                    scheduler.drain_ended()

    def take_lane(self) -> HostLane:
        """A host lane for one copy by the calling thread. Under the lock."""
        host = self.lanes.next_idle()
        self.lanes.take(host)
        return host

    def report_done(self, host: HostLane, value: int) -> None:
        """Tell the device of a copy. Takes the lock."""
        self._scheduler.ended.leave((host, value))
        self._scheduler.drain_ended()

    def finish(self, made: tuple[HostLane, int]) -> None:
        """A copy is made, or never will be: tell the device. Under the lock; may be called again.

        The lane is free again, unless later copies are on it.
        """
        host, value = made
        if self._scheduler.lost is not None or host.aborted:
            return  # threads that wait for the copy hear of that
        host.finish(value)
        if host.lane.submitted == value:
            self.lanes.give_back(host)
