"""A value that the device has yet to produce; `result()` waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.errors import Timeout
from penstock.handle import Handle
from penstock.ledger.hazards import Lane

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler

T = TypeVar("T")
_UNSET: Any = object()


class Awaitable(Handle):
    """An object that is done when certain lanes have reached certain values."""

    __slots__ = ("__weakref__", "_scheduler", "_points", "_what")

    def __init__(self, scheduler: Scheduler, points: dict[Lane, int], what: str) -> None:
        self._scheduler = scheduler
        self._points = points
        self._what = what

    @property
    def done(self) -> bool:
        """Whether it is done, without waiting. Raises `DeviceLost` if it never will be."""
        if self._points and self._scheduler.reached(self._points):
            self._points = {}
        return not self._points

    def wait(self, timeout: float | None = None) -> None:
        """Block until done. Raises `Timeout` after `timeout` seconds; the work continues."""
        if self._points:
            reason = f"the host waits for {self._what}"
            if not self._scheduler.wait_for(self._points, timeout, reason):
                raise Timeout(f"{self._what} was not done within {timeout} s; the work continues")
            self._points = {}

    def points_left(self) -> dict[Lane, int]:
        """The points that are not known to be reached yet. The caller holds the device's lock."""
        for lane in self._points:
            lane.owner.poll()
        return {lane: value for lane, value in self._points.items() if value > lane.complete}

    async def _settle(self) -> None:
        if not self.done:
            await asyncio.get_running_loop().run_in_executor(None, self.wait)


class Pending(Awaitable, Generic[T]):
    """The outcome of an asynchronous read or write.

    `result()` waits for exactly the work that the value needs. A `Pending` may be dropped unread:
    the work is still done, and its memory is reused afterwards.
    """

    __slots__ = ("_finish", "_value")

    def __init__(
        self,
        scheduler: Scheduler,
        points: dict[Lane, int],
        what: str,
        finish: Callable[[], T] | None = None,
        value: T = _UNSET,
    ) -> None:
        """`finish` returns the value; several threads may call it, without the device's lock."""
        super().__init__(scheduler, points, what)
        self._finish = finish
        self._value = value

    def result(self, timeout: float | None = None) -> T:
        """The value. Blocks until it is there, at most `timeout` seconds (then `Timeout`)."""
        self.wait(timeout)
        finish = self._finish
        if finish is not None:
            self._value = finish()
            self._finish = None
        return self._value

    def __await__(self) -> Generator[Any, None, T]:
        yield from self._settle().__await__()
        return self.result()

    def __repr__(self) -> str:
        return f"<Pending {self._what}: {'done' if not self._points else 'pending'}>"
