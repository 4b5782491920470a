"""Host copies in stream order: a thread that copies when the copy's predecessors are done.

The *ordered* path of a transfer. The copier waits for the work that the copy conflicts with,
copies, and signals a value of its lane; later work on the same bytes waits for that value, on the
device. So the caller waits for nothing, no byte is copied twice, and no other work is delayed.

A thread that waits for a small copy to the caller's memory makes it itself: that is quicker than to
wake the copier and to be woken by it. So the copier is not woken for such a copy before the idle
submitter's next tick, or before device work or a poll of the host is to follow it.

There is no deadlock: a task waits only for work submitted before it was queued, and that work waits
only for tasks queued before it. Each stream has its own copier, so streams do not delay each other.
"""

from __future__ import annotations

import contextlib
import queue
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import accelerator
from penstock.background import Background
from penstock.errors import Error
from penstock.ledger.hazards import Lane
from penstock.locks import RLock
from penstock.schedule.host_lane import HostLane
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler


class Task:
    """A copy to be made after certain points, whose work is all submitted."""

    __slots__ = ("after", "can_help", "cancelled", "copy", "nbytes", "value")

    def __init__(
        self, after: dict[Lane, int], copy: Callable[[], None], *, can_help: bool = False,
        nbytes: int = 0,
    ) -> None:  # fmt: skip
        """`can_help` says that a thread that waits for the copy may make it: see `Copier._help`.

        `nbytes` are for the receipt, unless `copy` puts itself on it.
        """
        self.after = after
        self.copy = copy
        self.can_help = can_help
        self.nbytes = nbytes
        self.cancelled = False  # whether an exception came before the ledger had the copy
        self.value = 0  # the lane's value when the copy is made


class Copier(HostLane):
    """A host lane with its own thread, which starts with the first task."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        super().__init__(scheduler.driver, name)
        self._scheduler = weakref.ref(scheduler)
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread = Background()
        self._last_value = 0  # that a task was given
        self._unmade: deque[Task] = deque()  # all tasks whose copies are not made, in order
        self._put_off: deque[Task] = deque()  # those that the thread does not have yet, in order
        self._making = RLock()  # held by the thread that makes a copy
        self._next: Task | None = None  # the task that `_step` makes next (inline drivers only)
        if self._inline is not None:
            self._inline.attend(self._step)

    def add(self, task: Task) -> int:
        """Queue a copy; returns the lane's value when it is made."""
        seen = self.lane.seen  # the values that the copier waits for, as on a stream's lane
        for lane, value in task.after.items():
            seen[lane.number] = max(value, seen.get(lane.number, 0))
        # A value of its own, even if an interrupted call has left a task and not `submitted`: the
        # copy would count as made once that task is done.
        task.value = self._last_value = self._last_value + 1
        # First: without a task, a wait for its value would never end.
        self._unmade.append(task)
        self._put_off.append(task)
        scheduler = self._scheduler()
        if task.can_help and self._inline is None and scheduler is not None:
            scheduler.idle_submitter.wake()
        else:
            self.hand_over()
        self.lane.submitted = max(task.value, self.lane.submitted)
        return task.value

    def hand_over(self) -> None:
        """Give the thread all tasks. A task that it gets twice, after an interrupt, it makes once.

        The caller holds the device's lock.
        """
        while self._put_off:
            if self._inline is None:
                self._thread.start(self._run, f"penstock {self.lane.name}")
            oldest = self._oldest()
            if oldest is not None and oldest.value <= self._put_off[0].value:  # else it is made
                self._tasks.put(self._put_off[0])
            self._put_off.popleft()

    def ensure_submitted(self, value: int) -> None:
        self.hand_over()

    def wait(self, value: int, timeout: float) -> bool:
        if self._inline is None and not self._help(value, timeout):
            return self.lane.complete >= value
        return super().wait(value, timeout)

    def _help(self, value: int, timeout: float) -> bool:
        """Make the next copies, up to this value, in the calling thread, if it may.

        Returns False if their predecessors were not done within `timeout` seconds. Not copies to
        the device: a signal handler that waits for the copy in whose middle it runs makes it, and
        then the thread does again, when later work on the device may have begun.
        """
        scheduler = self._scheduler()
        while scheduler is not None and not self.aborted:
            task = self._oldest()
            if task is None or task.value > value or not task.can_help:
                break
            if not (
                accelerator.native.wait(scheduler, task.after)
                or scheduler.await_points(task.after, timeout)
            ):
                return False
            try:
                if not self._making.acquire(blocking=False):
                    break  # the copier, or another thread that waits, is at it
                self._copy_once(task)
            except Error as error:
                self._fail(scheduler, error)
            finally:
                try:  # noqa: SIM105 (the first call here must be the one that cannot be interrupted)
                    self._making.release()
                except RuntimeError:
                    pass  # it was not free
        return True

    def _oldest(self) -> Task | None:
        """The first task whose copy is not made; other threads make copies meanwhile."""
        with contextlib.suppress(IndexError):
            return self._unmade[0]
        return None

    def stop(self) -> None:
        """End the thread after all tasks. Safe to call twice."""
        self.hand_over()
        if self._thread.begun:
            self._tasks.put(None)
            self._thread.join()
            self._thread = Background()

    def close(self) -> None:
        self.stop()
        if self._inline is not None:
            self._inline.leave(self._step)
        super().close()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._make(task)
            del task

    def _step(self) -> bool:
        """For an inline driver: make the next copy if its predecessors are done; whether it did."""
        if self._next is None and not self._tasks.empty():
            self._next = self._tasks.get()
        if self._next is None or not all(
            value <= (lane.complete if lane.is_host else lane.owner.timeline.reached)
            for lane, value in self._next.after.items()
        ):
            return False
        task, self._next = self._next, None
        self._make(task)
        return True

    def _make(self, task: Task) -> None:
        scheduler = self._scheduler()
        if scheduler is None:
            return
        try:
            if self._inline is not None:  # `_step` saw the points reached: update the driver
                after = task.after.items()
                points = [(at.owner.timeline, v) for at, v in after if not at.is_host]
                self._driver.wait(points, 0)
            else:
                scheduler.await_points(task.after, closing=True)
            self._copy_once(task)
        except Error as error:
            self._fail(scheduler, error)

    def _copy_once(self, task: Task) -> None:
        """Make a copy whose predecessors are done, unless another thread has, and signal it."""
        with self._making:
            if self.lane.complete < task.value:
                start = events.clock() if events.active else 0.0
                if not task.cancelled:
                    task.copy()
                if start and events.active:
                    events.emit(
                        "done", "a host copy in stream order", path="copy", start=start,
                        seconds=events.since(start, task.nbytes),
                        at=(self.lane.place, task.value, 0),
                    )  # fmt: skip
            self.finish(task.value)
            while self._unmade and self._unmade[0].value <= task.value:
                self._unmade.popleft()

    def _fail(self, scheduler: Scheduler, error: Error) -> None:
        # `mark_lost` gives the error to threads that wait for this copy or for later work; `abort`
        # releases the device work that waits for the copy.
        scheduler.mark_lost(error)
        self.abort()
