"""Lanes whose work the host does: copies and writable views that device work may wait for."""

from __future__ import annotations

import _thread
import contextlib
from typing import TYPE_CHECKING, Any

from penstock.driver.protocol import as_inline
from penstock.errors import Error
from penstock.ledger.hazards import Lane

if TYPE_CHECKING:
    from penstock.driver.protocol import Driver


class HostLane:
    """A timeline that only the host raises. Every copy takes the next value, in order."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._inline = as_inline(driver)
        self.timeline = driver.timeline()
        self.lane = Lane(name, self, is_host=True, device=driver.info.name)
        self._waiting: list[Any] = []  # a lock for each thread that waits, which `finish` lets go
        self._signalled = 0
        self.aborted = False  # whether copies that are not made yet never will be

    @property
    def recorded(self) -> int:
        return self.lane.submitted

    def start(self) -> int:
        """The value of a copy that is about to be made; device work may wait for it from now."""
        self.lane.submitted += 1
        return self.lane.submitted

    def finish(self, value: int) -> None:
        """The copy is made. May be called again for the same value, if a call was interrupted.

        The host is told first: device work behind the copy may be done before this returns, and a
        host that has seen so must not be told that the copy is still under way.
        """
        self.lane.submitted = max(value, self.lane.submitted)
        self.lane.complete = max(value, self.lane.complete)
        self._wake()
        self._signal(value)

    def wait(self, value: int, timeout: float) -> bool:
        """Block until the copy of this value is made; may return False before time has run out."""

        def over() -> bool:
            return self.aborted or self.lane.complete >= value

        if self._inline is not None:
            self._inline.run_until(over)
        elif not over():
            # No lock is held while Python code runs: it may be interrupted by code that takes one.
            waker = _thread.allocate_lock()
            waker.acquire()
            self._waiting.append(waker)
            if not over():
                waker.acquire(timeout=timeout)
        return self.lane.complete >= value

    def _wake(self) -> None:
        """Let every thread that waits look again."""
        while self._waiting:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._waiting.pop().release()

    def ensure_submitted(self, value: int) -> None:
        """Always so: a copy is under way from its start."""

    def poll(self) -> None:
        """Nothing to do: what there is to know is known."""

    def host_waits(self) -> None:
        """Nothing to do."""

    def abort(self) -> None:
        """Let go of device work that waits for copies which will never be made."""
        with contextlib.suppress(Error):
            self._signal(self.lane.submitted)
        self.aborted = True  # threads that wait on the host are to hear of the loss
        self._wake()

    def close(self) -> None:
        self.timeline.close()

    def _signal(self, value: int) -> None:
        if value > self._signalled:
            self._driver.signal(self.timeline, value)
            self._signalled = value


class HostLanes:
    """Host lanes of one purpose. The lane that was given back last is used first."""

    def __init__(self, driver: Driver, purpose: str) -> None:
        self._driver = driver
        self._purpose = purpose
        self.made: list[HostLane] = []
        self._idle: dict[HostLane, None] = {}

    def next_idle(self) -> HostLane:
        """The lane to use next, which is idle until it is taken; made if there is none."""
        if not self._idle:
            made = HostLane(self._driver, f"{self._purpose} {len(self.made)}")
            self.made.append(made)
            self._idle[made] = None
        return next(reversed(self._idle))

    def take(self, host: HostLane) -> None:
        self._idle.pop(host, None)

    def give_back(self, host: HostLane) -> None:
        self._idle[host] = None
