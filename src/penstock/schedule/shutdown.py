"""The end of a device: closed, dropped, or inherited by a forked child.

Closing takes steps, each of which sets a flag before the next begins:

1. `Scheduler.closed`: no new work begins; work in flight continues.
2. `over`: all work is complete, or never will be. Threads that wait for it stop waiting.
3. `torn_down`: the driver's objects are destroyed, once no thread uses them (`guests`) and no NumPy
   array shows the device's memory (`HostViews.exports`). The last of these to end destroys them.

A device whose work does not end in time is never torn down: its memory may still be written.
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

from penstock import accelerator
from penstock.errors import Closed, DeviceLost, Error, ForkedDevice, OutOfMemory
from penstock.ledger.hazards import Lane
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler

T = TypeVar("T")
_CLOSE_TIMEOUT = 30.0  # seconds that `close` waits for work in flight
_LEAVE_TIMEOUT = 5.0  # seconds that it then waits for other threads to leave
_TICK = 0.001

_alive: weakref.WeakSet[Scheduler] = weakref.WeakSet()


@accelerator.share
class Guest:
    """A thread that uses the driver, or the driver's memory, without the device's lock.

    While a device has guests, it is not torn down, and the lanes that they wait for are not
    released.
    """

    __slots__ = ("points", "thread")

    def __init__(self, points: Collection[Lane] = ()) -> None:
        self.points = points
        self.thread = threading.get_ident()


@accelerator.share
class Shutdown:
    """How far the closing of a device has come, and what still delays it."""

    __slots__ = ("__dict__", "guests", "over")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.guests: set[Guest] = set()
        self.over = False
        self.torn_down = False
        self._resting = False  # whether no work runs on the device any more
        self._put_off = False  # whether `close` waits for the garbage collector: see there
        _alive.add(scheduler)
        events.time_sources.add(scheduler.times)

    def use(self, access: Callable[[], T]) -> T:
        """Call `access`, which uses the driver or its memory without the lock.

        Neither is released before it returns. Raises `Closed` if closing is already `over`.
        """
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

        An interrupted call can be repeated. Raises `ViewHeld`, and closes nothing, if work waits
        for a writable view of the calling thread: that work would never end.
        """
        if self.torn_down:  # also after `abandon`, when not even the lock may be used
            return
        if self.over:  # an interrupted call, or a NumPy array, may have left the rest undone
            self._let_go()
            return
        scheduler = self._scheduler
        points: dict[Lane, int] | None = None
        with scheduler.lock:
            if scheduler.has_hidden_streams():
                # The garbage collector is collecting device and streams together, and has cleared
                # the weak references to the streams. Each stream's finaliser calls this again.
                self._put_off = True
                return
            with contextlib.suppress(DeviceLost, OutOfMemory):
                if scheduler.lost is None:
                    scheduler.drain_ended_locked()
                    points = scheduler.everything_recorded()
            if points and scheduler.views.held:
                scheduler.check_own_views(points)
            scheduler.closed = True  # from here on nothing new begins
            scheduler.note_state()
        finished = False
        with contextlib.suppress(DeviceLost, OutOfMemory):
            if points is not None:
                finished = scheduler.await_points(points, timeout, closing=True)
                scheduler.times.deliver_known_times(time.monotonic() + _LEAVE_TIMEOUT)
                scheduler.times.note_clock(events.recording)
        self._resting = finished or scheduler.lost is not None
        self.over = True  # from here on no thread keeps waiting
        self._let_go()

    def _let_go(self) -> None:
        """Once `over`: end the device's threads, and tear it down. May be repeated."""
        scheduler = self._scheduler
        scheduler.idle_submitter.close()
        if self._resting:
            for stream in scheduler.all_streams():
                stream.stop_copier()
            for host in scheduler.host_copies.lanes.made:
                host.abort()
            self.dismiss_guests()
            self.tear_down()
        _alive.discard(scheduler)  # last: what an interrupt leaves undone is done at exit

    def stream_finalised(self) -> None:
        """Close a device that was dropped together with its streams."""
        if self._put_off:
            self.close()

    def dismiss_guests(self) -> None:
        """Wait for other threads to leave the driver; the last one to leave tears it down."""
        me = threading.get_ident()
        until = time.monotonic() + _LEAVE_TIMEOUT
        while any(guest.thread != me for guest in self.guests.copy()) and time.monotonic() < until:
            time.sleep(_TICK)

    def abandon(self) -> None:
        """In a forked child: make every use of the device raise, without calling the driver."""
        scheduler = self._scheduler
        scheduler.closed = self.over = True
        scheduler.note_state()
        self.torn_down = True
        scheduler.is_locked_here = partial(_refuse_forked, scheduler.name)
        events.time_sources.discard(scheduler.times)

    def tear_down(self) -> None:
        """Once `over`: destroy the driver's objects, unless something still uses them."""
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
        for backing in {*scheduler.host_memory.imported(), *scheduler.retirement.adopted}:
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
        with contextlib.suppress(Error):  # `ViewHeld`, if this thread still holds a writable view
            scheduler.shutdown.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
