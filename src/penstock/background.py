"""Threads that are started once, whatever a signal handler raises while they are started."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable


class NoThread(RuntimeError):
    """There are too many threads, or Python is about to end."""


class Background:
    """A daemon thread. The first call of `start` that is not interrupted has started it."""

    def __init__(self) -> None:
        self._started = False
        self._claimed = threading.Lock()  # by the one thread that calls `run`
        self._threads: list[threading.Thread] = []  # several only if a call was interrupted

    def start(self, run: Callable[[], None], name: str) -> None:
        """Have a thread call `run`, once, if none does; raises `NoThread`.

        An interrupted call may be repeated.
        """
        if self._started:
            return

        def begin() -> None:
            if self._claimed.acquire(blocking=False):
                run()

        thread = threading.Thread(target=begin, name=name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:
            if "new thread" in str(error):
                self._threads.remove(thread)
                raise NoThread(str(error)) from None
            # A signal handler raised in `Condition.wait`, which then released a free lock.
            raised = error.__context__ if "lock" in str(error) else None
            raise raised or error from None
        self._started = True

    @property
    def begun(self) -> bool:
        """Whether the thread was started, or the call that was to start it interrupted."""
        return bool(self._threads)

    def join(self) -> None:
        """Wait until the thread has ended, unless it is the one that calls. None starts later."""
        if self._claimed.acquire(blocking=False):
            return
        for thread in self._threads:
            with contextlib.suppress(RuntimeError):  # it is this one, or was never quite started
                thread.join()
