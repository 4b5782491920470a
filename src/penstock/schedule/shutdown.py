"""The end of a device: closed, lost to a fork, or dropped.

Closing takes steps, each of which is noted before the next:

1. `Scheduler.closed`: no new work begins; what there is goes on.
2. `over`: what there was to wait for is done, or will never be. No thread waits any longer.
3. `torn_down`: the driver's objects are released, once no thread uses them (`guests`) and no NumPy
   array shows the device's memory (`HostViews.exports`); the last of them to go releases them.

A device whose work does not end in time is left as it is: its memory may still be written.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from penstock.errors import Closed, DeviceLost, Error, ForkedDevice, OutOfMemory
from penstock.ledger.hazards import Lane
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler

T = TypeVar("T")
_CLOSE_TIMEOUT = 30.0  # seconds that closing gives a kernel to end
_LEAVE_TIMEOUT = 5.0  # seconds that it then gives other threads to notice
_TICK = 0.001

_alive: weakref.WeakSet[Scheduler] = weakref.WeakSet()


class Guest:
    """A thread that uses the driver, or memory of the driver's, without the device's lock.

    While it is among the guests of a device, that is not torn down, and the lanes that the thread
    waits for are not released.
    """

    __slots__ = ("points", "thread")

    def __init__(self, points: Collection[Lane] = ()) -> None:
        self.points = points
        self.thread = threading.get_ident()


class Shutdown:
    """How far a device has come in its end, and what is still in the way."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.guests: set[Guest] = set()
        self.over = False
        self.torn_down = False
        self._resting = False  # whether nothing runs on the device any more
        self._put_off = False  # whether to close once the garbage collector shows all streams
        _alive.add(scheduler)
        events.time_sources.add(scheduler.times)

    def use(self, access: Callable[[], T]) -> T:
        """Have the host use the driver or its memory without the lock; neither goes meanwhile."""
        guest = Guest()
        try:
            self.guests.add(guest)
            if self.over:
                raise Closed(f"{self._scheduler.name} is closed")
            return access()
        finally:
            self.guests.discard(guest)
            if self.over:
                self.tear_down()

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Finish all work, then release everything that no NumPy array shows any more.

        Interrupted, it can be called again. Raises `ViewHeld`, and closes nothing, if work waits
        for a writable view of the calling thread's: that would never end.
        """
        if self.over:  # or abandoned, and then not even the lock may be touched
            return
        scheduler = self._scheduler
        points: dict[Lane, int] | None = None
        with scheduler.lock:
            if scheduler.has_hidden_streams():
                # The garbage collector is taking device and streams together, and has hidden the
                # streams from us; as each of them is finalised, we are called again.
                self._put_off = True
                return
            with contextlib.suppress(DeviceLost, OutOfMemory):
                if scheduler.lost is None:
                    scheduler.drain_ended_locked()
                    points = scheduler.everything_recorded()
            if points and scheduler.views.held:
                scheduler.check_own_views(points)
            scheduler.closed = True  # from here on nothing new begins
        finished = False
        with contextlib.suppress(DeviceLost, OutOfMemory):
            if points is not None:
                finished = scheduler.await_points(points, timeout, closing=True)
                scheduler.times.deliver_known_times(time.monotonic() + _LEAVE_TIMEOUT)
        self._resting = finished or scheduler.lost is not None
        self.over = True  # from here on no wait goes on
        _alive.discard(scheduler)
        scheduler.pump.close()
        if self._resting:
            for stream in scheduler.all_streams():
                stream.stop_copier()
            for host in scheduler.host_copies.lanes.made:
                host.abort()
            self.dismiss_guests()
            self.tear_down()

    def stream_finalised(self) -> None:
        """Close a device that was dropped together with its streams."""
        if self._put_off:
            self.close()

    def dismiss_guests(self) -> None:
        """Wait for other threads to notice that it is over; the last one to leave tears down."""
        me = threading.get_ident()
        until = time.monotonic() + _LEAVE_TIMEOUT
        while any(guest.thread != me for guest in self.guests.copy()) and time.monotonic() < until:
            time.sleep(_TICK)

    def abandon(self) -> None:
        """Forget the device without touching it: this is a forked child."""
        scheduler = self._scheduler
        scheduler.closed = self.over = True
        self.torn_down = True
        scheduler.is_locked_here = partial(_refuse_forked, scheduler.name)
        events.time_sources.discard(scheduler.times)

    def tear_down(self) -> None:
        """Once it is over: release the driver's objects, unless something still needs them."""
        if self._resting and not self.torn_down:
            self._scheduler.try_locked(self._tear_down_locked)

    def _tear_down_locked(self) -> None:
        scheduler = self._scheduler
        scheduler.drain_ended_quietly()
        if scheduler.views.exports or self.guests or self.torn_down:
            return
        self.torn_down = True
        driver = scheduler.driver
        driver.settle()
        scheduler.retirement.free_all()
        for stream in scheduler.all_streams():
            stream.release()
        for host in (*scheduler.host_copies.lanes.made, *scheduler.views.lanes.made):
            host.close()
        for backing in scheduler.host_memory.imported():
            driver.free(backing.memory)
        scheduler.pool.close()
        scheduler.host_pool.close()
        driver.close()


def _refuse_forked(name: str) -> NoReturn:
    raise ForkedDevice(
        f"{name} was opened before this process was forked, and cannot be used here; "
        "open a Device in the child, or use the 'spawn' start method of multiprocessing"
    )


def _after_fork() -> None:
    for scheduler in list(_alive):
        scheduler.shutdown.abandon()
    _alive.clear()


def _at_exit() -> None:
    for scheduler in list(_alive):
        with contextlib.suppress(Error):  # a view of this thread's is in the way
            scheduler.shutdown.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
