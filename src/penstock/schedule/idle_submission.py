"""A thread that submits recorded work when the device would otherwise sit idle.

Most submissions are made by the program's own calls. This thread is for a program that launches a
few kernels and then does something else: it checks the streams once a millisecond while anything is
recorded, and sleeps otherwise.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

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
        self._wanted = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Start checking: something is recorded and not submitted. The caller holds the lock."""
        if self._wanted.is_set() or self._inline:
            return
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="penstock idle submitter", daemon=True
            )
            self._thread.start()

    def hurry(self) -> None:
        """Have the thread, if it runs, act on the messages of finalisers. Safe in a finaliser."""
        if self._thread is not None:
            self._wanted.set()

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
        self._wanted.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        quiet = 0
        while True:
            self._wanted.wait()
            time.sleep(_TICK)
            if quiet == _QUIET_TICKS:
                # Cleared before the last check: what is recorded after the check sets it again.
                self._wanted.clear()
            scheduler = self._scheduler()
            if scheduler is None or self._stopped:
                return
            try:
                recorded = self.submit_dry_streams(scheduler)
            except (Error, MemoryError):
                # The next call that uses the device raises the same error; the thread goes on,
                # because that error may be of one call only.
                recorded = False
            quiet = 0 if recorded or quiet == _QUIET_TICKS else quiet + 1
            if recorded:
                self._wanted.set()
            del scheduler
