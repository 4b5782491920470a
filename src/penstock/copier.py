"""Host copies in stream order: a thread that copies when the copy's predecessors are done.

The *ordered* path of a transfer. The copier waits for the work that the copy conflicts with,
copies, and signals a value of its lane; later work on the same bytes waits for that value, on the
device. So the caller waits for nothing, no byte is copied twice, and no other work is held up.

No deadlock: a task waits only for work submitted before it was queued, and that work waits only
for tasks queued before it. One copier belongs to one stream, so streams do not hold each other up.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import tracing
from penstock.errors import Error
from penstock.hazards import Lane
from penstock.hostlane import HostLane

if TYPE_CHECKING:
    from penstock.scheduler import Scheduler

Task = tuple[dict[Lane, int], Callable[[], None], int]


class Copier(HostLane):
    """A host lane with a thread of its own, started when there is first something to do."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        super().__init__(scheduler.driver, name)
        self._scheduler = weakref.ref(scheduler)
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._next: Task | None = None  # of an inline driver
        if self._driver.inline:
            self._driver.attend(self._step)

    def add(self, after: dict[Lane, int], copy: Callable[[], None]) -> int:
        """Queue a copy to be made after these points, all submitted; the value of its end."""
        if self._thread is None and not self._driver.inline:
            self._thread = threading.Thread(
                target=self._run, name=f"penstock {self.lane.name}", daemon=True
            )
            self._thread.start()
        value = self.start()
        self._tasks.put((after, copy, value))
        return value

    def stop(self) -> None:
        """End the thread after the tasks it has. Safe to call twice."""
        if self._thread is not None:
            self._tasks.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join()
            self._thread = None

    def close(self) -> None:
        self.stop()
        if self._driver.inline:
            self._driver.leave(self._step)
        super().close()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._make(*task)
            del task

    def _step(self) -> bool:
        """For an inline driver: make the next copy if it is due; whether it was."""
        if self._next is None and not self._tasks.empty():
            self._next = self._tasks.get()
        if self._next is None or not all(
            value <= (lane.complete if lane.is_host else lane.owner.timeline.reached)
            for lane, value in self._next[0].items()
        ):
            return False
        task, self._next = self._next, None
        self._make(*task)
        return True

    def _make(self, after: dict[Lane, int], copy: Callable[[], None], value: int) -> None:
        scheduler = self._scheduler()
        if scheduler is None:
            return
        try:
            if self._driver.inline:  # it calls `_step` once they are reached; this is to see so
                points = [(at.owner.timeline, v) for at, v in after.items() if not at.is_host]
                self._driver.wait(points, 0)
            else:
                scheduler.await_points(after, closing=True)
            start = time.perf_counter() if tracing.active else 0.0
            copy()
            if start and tracing.active:
                tracing.emit(
                    "done", "a host copy in stream order", start=start,
                    seconds=tracing.since(start), at=(self.lane.place, value, 0),
                )  # fmt: skip
            self.finish(value)
        except Error as error:
            # Whoever waits for this copy, or for work behind it, learns of it from there; device
            # work that waits for the copy must still be let go.
            scheduler.mark_lost(error)
            self.abort()
