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
        self._waiting: list[Any] = []  # one lock per waiting thread; `_wake` releases them
        self._signalled = 0
        self.aborted = False  # whether the copies not made by now never will be

    @property
    def recorded(self) -> int:
        return self.lane.submitted

    def start(self) -> int:
        """Return the value of a copy about to be made; device work may wait for it from now on."""
        self.lane.submitted += 1
        return self.lane.submitted

    def finish(self, value: int) -> None:
        """Signal that the copy is made. An interrupted call can be repeated with the same value.

        `complete` is set before the device is signalled: device work that waits for the copy may
        be done before this returns, and the host must not see that work complete but the copy not.
        """
        self.lane.submitted = max(value, self.lane.submitted)
        self.lane.reach(value)
        self._wake()
        self._signal(value)

    def wait(self, value: int, timeout: float) -> bool:
        """Block until the copy of this value is made; may return False before the timeout."""

        def over() -> bool:
            return self.aborted or self.lane.complete >= value

        if self._inline is not None:
            self._inline.run_until(over)
        elif not over():
            # No lock is held while Python code runs: a signal handler or finaliser that runs in
            # its middle may need the same lock.
            waker = _thread.allocate_lock()
            waker.acquire()
            self._waiting.append(waker)
            if not over():
                waker.acquire(timeout=timeout)
        return self.lane.complete >= value

    def _wake(self) -> None:
        """Wake every waiting thread, which then checks its condition again."""
        while self._waiting:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._waiting.pop().release()

    def ensure_submitted(self, value: int) -> None:
        """Do nothing: a copy counts as submitted from its start."""

    def poll(self) -> None:
        """Do nothing: `complete` is always up to date."""

    def host_waits(self) -> None:
        """Do nothing: there is nothing to submit."""

    def abort(self) -> None:
        """Release device work that waits for copies which will never be made."""
        with contextlib.suppress(Error):
            self._signal(self.lane.submitted)
        self.aborted = True  # makes the waits of host threads raise
        self._wake()

    def close(self) -> None:
        self.timeline.close()

    def _signal(self, value: int) -> None:
        if value > self._signalled:
            self._driver.signal(self.timeline, value)
            self._signalled = value


class HostLanes:
    """Host lanes of one purpose. The lane that was returned last is used first."""

    def __init__(self, driver: Driver, purpose: str) -> None:
        self._driver = driver
        self._purpose = purpose
        self.made: list[HostLane] = []
        self._idle: dict[HostLane, None] = {}

    def next_idle(self) -> HostLane:
        """The lane to use next, made if none is idle. It stays idle until `take`."""
        if not self._idle:
            made = HostLane(self._driver, f"{self._purpose} {len(self.made)}")
            self.made.append(made)
            self._idle[made] = None
        return next(reversed(self._idle))

    def take(self, host: HostLane) -> None:
        self._idle.pop(host, None)

    def give_back(self, host: HostLane) -> None:
        self._idle[host] = None
