"""Holds submissions back until every value they wait for is reached or will be by a queue.

Work that waits for the host would block everything behind it in a hardware queue, including other
streams that share the queue; and in HIP a stream cannot wait for the host at all. So such work is
not given to the queue. It is held here, in stream order, together with the work that waits for it.
The thread that signals the last missing value issues it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from penstock import accelerator
from penstock.errors import OutOfMemory
from penstock.locks import RLock


class Timeline(Protocol):
    issued: int  # the highest value that the host has signalled or a queue was given to signal


Waits = Sequence[tuple[Any, int]]


class Submission(NamedTuple):
    """The arguments of `Queue.submit`."""

    recording: Any
    waits: Waits
    timeline: Any
    value: int


class HoldingQueue(Protocol):
    held: deque[Submission]  # oldest first

    def issue(self, recording: Any, waits: Waits, timeline: Any, value: int) -> bool:
        """Issue a submission to the queue; False if it, or part of it, must still be held."""
        ...


def all_issued(waits: Sequence[tuple[Timeline, int]]) -> bool:
    """Whether the host has signalled these values, or a queue was given the work that will."""
    return all(timeline.issued >= value for timeline, value in waits)


@accelerator.share
class Backlog:
    """All submissions that one driver holds back."""

    __slots__ = ("__dict__", "queues")

    def __init__(self) -> None:
        #: Locked while a held submission is issued.
        self.lock = RLock()
        self.queues: list[HoldingQueue] = []  # one entry per held submission: its queue
        self._at_it = self._again = False  # a `hand_over` is running; it must look again
        self._stuck: str | None = None  # why a submission could not be issued

    def hold(self, queue: HoldingQueue, submission: Submission) -> None:
        with self.lock:
            point = (submission.timeline, submission.value)
            if all((each.timeline, each.value) != point for each in queue.held):
                queue.held.append(submission)  # else an interrupted call has added it already
            while self.queues.count(queue) < len(queue.held):
                self.queues.append(queue)
        self.hand_over()  # in case the signal came before the submission was listed

    def hand_over(self) -> None:
        """Issue every submission that need not be held any more; one may release others.

        A submission for which the driver has no memory stays held. The next call tries again, and
        a thread that waits for it gets the error (`refuse_if_stuck`).
        """
        with self.lock:
            self._again = True
            while self._again and not self._at_it:  # a finaliser may signal during this loop
                try:
                    self._again, self._at_it, self._stuck = False, True, None
                    for queue in list(self.queues):
                        if self._hand_over_first(queue):
                            self._again = True
                finally:
                    self._at_it = False

    def refuse_if_stuck(self, points: Waits) -> None:
        """Raise if one of these points cannot be reached because the driver is out of memory."""
        if self._stuck is None:
            return
        with self.lock:
            held = {each.timeline for queue in self.queues for each in queue.held}
        if any(timeline in held for timeline, _ in points):
            raise OutOfMemory(f"what was submitted cannot be issued: {self._stuck}")

    def clear(self) -> None:
        """Drop all held submissions, when the device is lost or closed."""
        with self.lock:
            for queue in self.queues:
                queue.held.clear()
            self.queues.clear()

    def _hand_over_first(self, queue: HoldingQueue) -> bool:
        if self.queues.count(queue) > len(queue.held):
            self.queues.remove(queue)  # left over from an interrupted call
        if not queue.held or not all_issued(queue.held[0].waits):
            return False
        try:
            if not queue.issue(*queue.held[0]):
                return False
        except OutOfMemory as error:
            self._stuck = str(error)
            return False
        queue.held.popleft()
        self.queues.remove(queue)
        return True
