"""A thread that submits recorded work when the device would otherwise sit idle.

Most submissions are made by the program's own calls. This thread is for a program that launches a
few kernels and then does something else: it checks the streams once a millisecond while anything is
recorded, and sleeps otherwise.
"""

from __future__ import annotations

import contextlib
import queue
import time
import weakref
from typing import TYPE_CHECKING

from penstock.background import Background, NoThread
from penstock.errors import Error, OutOfMemory

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler

_TICK = 0.001
_QUIET_TICKS = 20


class IdleSubmitter:
    """The thread of one device, which does not keep the device alive."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = weakref.ref(scheduler)
        self._inline = scheduler.driver.inline
        # Not an event: a signal handler or a finaliser may come in the middle of `Event.set`, and
        # then no thread would be woken, or no thread could set it.
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._awake = False  # whether the thread checks without being called
        self._stopped = False
        self._thread = Background()

    def wake(self) -> None:
        """Start checking: something is recorded and not submitted. The caller holds the lock."""
        if self._awake or self._inline:
            return
        with contextlib.suppress(NoThread):  # then the calls that need the work submit it
            self._thread.start(self._run, "penstock idle submitter")
            self._calls.put(None)

    def hurry(self) -> None:
        """Have the thread, if it runs, act on the messages of finalisers. Safe in a finaliser."""
        if self._thread.begun:
            self._calls.put(None)

    def submit_dry_streams(self, scheduler: Scheduler) -> bool:
        """Submit on every stream whose device work is done; takes the lock.

        Returns whether anything is still recorded and not submitted.
        """
        with scheduler.lock:
            if scheduler.closed or scheduler.lost is not None:
                return False
            streams = scheduler.living_streams()
            steps = [
                step for each in streams for step in (each.submit_if_dry, each.copier.hand_over)
            ]
            for step in (*steps, scheduler.drain):
                try:
                    step()
                except OutOfMemory:
                    continue  # it stays recorded; the next call that needs it tries again
            return any(stream.has_recorded for stream in streams)

    def close(self) -> None:
        self._stopped = True
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._calls.get()
            self._awake = True
            while not self._calls.empty():
                self._calls.get()
            quiet = 0
            while self._awake:
                time.sleep(_TICK)
                # Before the last check: what is recorded after the check calls the thread again.
                self._awake = quiet < _QUIET_TICKS
                scheduler = self._scheduler()
                if scheduler is None or self._stopped:
                    return
                if self._still_recorded(scheduler):
                    self._awake, quiet = True, 0
                else:
                    quiet += 1
                del scheduler

    def _still_recorded(self, scheduler: Scheduler) -> bool:
        try:
            return self.submit_dry_streams(scheduler)
        except (Error, MemoryError, NoThread):
            # The next call that uses the device raises the same error; the thread goes on, because
            # that error may be of one call only.
            return False
