"""Submissions that are held back until what they wait for is on its way.

A queue that was given work which waits for the host would keep all work behind it waiting, that of
other streams too where they share the queue; and HIP has no way to let a stream wait for the host.
So no queue is given such work: it is held here, in the order of its stream, together with what
waits for it, and whoever signals hands it over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from penstock.errors import OutOfMemory


class Timeline(Protocol):
    issued: int  # the value that the host has reached, or that a queue was told to reach


Waits = Sequence[tuple[Any, int]]


class Submission(NamedTuple):
    """What `Queue.submit` was told."""

    recording: Any
    waits: Waits
    timeline: Any
    value: int


class HoldingQueue(Protocol):
    held: deque[Submission]  # the oldest first

    def issue(self, recording: Any, waits: Waits, timeline: Any, value: int) -> bool:
        """Hand a submission over; False if it, or some of it, is to be held still."""
        ...


def on_their_way(waits: Sequence[tuple[Timeline, int]]) -> bool:
    """Whether the host has reached these values, or a queue has been told to."""
    return all(timeline.issued >= value for timeline, value in waits)


class Backlog:
    """All that one driver holds back."""

    def __init__(self) -> None:
        #: Held while something is handed over that was held back.
        self.lock = threading.RLock()
        self.queues: list[HoldingQueue] = []  # for each submission held back, its queue
        self._at_it = self._again = False  # whether someone hands over, and is to look again
        self._stuck: str | None = None  # why something could not be handed over

    def hold(self, queue: HoldingQueue, submission: Submission) -> None:
        with self.lock:
            point = (submission.timeline, submission.value)
            if all((each.timeline, each.value) != point for each in queue.held):
                queue.held.append(submission)  # else a call that was interrupted has done it
            while self.queues.count(queue) < len(queue.held):
                self.queues.append(queue)
        self.hand_over()  # for a signal that has just come and did not see this

    def hand_over(self) -> None:
        """Let go of whatever need not be held any more; one submission may let go of others.

        Out of memory, it stays held, and whoever looks next tries again; whoever waits for it hears
        of it.
        """
        with self.lock:
            self._again = True
            while self._again and not self._at_it:  # or a finaliser signals in the middle of this
                try:
                    self._again, self._at_it, self._stuck = False, True, None
                    for queue in list(self.queues):
                        if self._hand_over_first(queue):
                            self._again = True
                finally:
                    self._at_it = False

    def refuse_if_stuck(self, points: Waits) -> None:
        """Raise if one of these points will not be reached, for want of memory."""
        if self._stuck is None:
            return
        with self.lock:
            held = {each.timeline for queue in self.queues for each in queue.held}
        if any(timeline in held for timeline, _ in points):
            raise OutOfMemory(f"what was submitted cannot be issued: {self._stuck}")

    def clear(self) -> None:
        """Forget all of it: the device is lost, or closes."""
        with self.lock:
            for queue in self.queues:
                queue.held.clear()
            self.queues.clear()

    def _hand_over_first(self, queue: HoldingQueue) -> bool:
        if self.queues.count(queue) > len(queue.held):
            self.queues.remove(queue)  # left there when a call was interrupted
        if not queue.held or not on_their_way(queue.held[0].waits):
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
