"""Copies that a call begins under the device's lock and makes without it.

Each is a value on a host lane, so that device work on the same bytes waits for it. If an exception
stops the calling thread between the two steps, `HostCopies.carry_out` abandons the copy, so that
this device work does not wait forever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.schedule.host_lane import HostLane, HostLanes
from penstock.schedule.submit_policy import NoRoom

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler

T = TypeVar("T")


class HostCopies:
    """The host copies of one device, and their host lanes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.lanes = HostLanes(scheduler.driver, "host copy")
        self.lanes.next_idle()  # made now, so that the first copy costs no more than later ones
        #: The copies begun by the call that holds the lock; it finishes them without the lock.
        self.begun: list[Any] = []

    def carry_out(self, begin: Callable[[], T]) -> T:
        """Call `begin` under the lock, then `finish` of each copy in `begun` without the lock.

        `begin` is called again if its stream had no room (`NoRoom`), or if `finish` returns False
        because another thread changed the buffer in between. After an exception, `abandon` of each
        copy in `begun` releases the device work that waits for it.
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
        """Take a host lane for one copy by the calling thread. The caller holds the lock."""
        host = self.lanes.next_idle()
        self.lanes.take(host)
        return host

    def report_done(self, host: HostLane, value: int) -> None:
        """`finish`, for a caller that does not hold the lock."""
        self._scheduler.ended.leave((host, value))
        self._scheduler.drain_ended()

    def finish(self, made: tuple[HostLane, int]) -> None:
        """Signal that a copy is made, or never will be. The caller holds the lock.

        Frees the lane, unless later copies are on it. Calling it again is safe.
        """
        host, value = made
        if self._scheduler.lost is not None or host.aborted:
            return  # threads that wait for the copy get the error
        host.finish(value)
        if host.lane.submitted == value:
            self.lanes.give_back(host)
