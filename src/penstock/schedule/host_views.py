"""NumPy arrays that show a device's memory, and the threads that hold writable ones.

A writable view is a value on a host lane: device work on its bytes waits for that value, which is
signalled when the view ends. So a thread that waits for such work while it holds the view itself
would wait forever, and if another thread holds the view, the wait lasts until that thread drops it.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

from penstock import accelerator
from penstock.errors import Error, ViewHeld
from penstock.ledger.hazards import Lane
from penstock.memory.backing import Hold, is_own
from penstock.schedule.host_lane import HostLanes
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler

LONG = 10.0  # seconds after which a wait for another thread's view gives a warning


@accelerator.share
class HostViews:
    """The host views of one device. The caller holds its lock, except for `ended`."""

    __slots__ = ("__dict__", "held")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.exports: set[Hold] = set()  # all live views
        self.lanes = HostLanes(scheduler.driver, "writable view")
        self.held: dict[Lane, int] = {}  # by lane of a live writable view: the thread that made it

    def ended(self, hold: Hold) -> None:
        """Note, from a finaliser, that no NumPy array of this view is left."""
        scheduler, shutdown = self._scheduler, self._scheduler.shutdown
        scheduler.ended.leave(hold)
        if not shutdown.torn_down:
            scheduler.try_locked(scheduler.drain_ended_quietly)  # other threads may wait for it
            if shutdown.over:
                shutdown.tear_down()

    def end(self, hold: Hold) -> None:
        """Release a view that ended. Each end is reported twice; calling it again is safe."""
        backing, shown = hold.backing, hold.shown
        torn_down = self._scheduler.shutdown.torn_down
        if hold.written is not None:
            # Flushed before the device may use the bytes, and never after that.
            if not torn_down:
                hold.written()
            hold.written = None
        if shown is not None:
            backing.views = [view for view in backing.views if view is not shown]
            if shown.release is not None and not torn_down:
                self._let_go(*shown.release)
        backing.holds.discard(hold)
        self.exports.discard(hold)

    def next_point(self) -> tuple[Lane, int]:
        """The point that the end of the next writable view will signal."""
        lane = self.lanes.next_idle().lane
        return lane, lane.submitted + 1

    def hold(self, lane: Lane, value: int) -> None:
        """Begin a writable view whose end signals this point."""
        self.lanes.take(lane.owner)
        self.held[lane] = threading.get_ident()
        lane.submitted = value

    def _let_go(self, lane: Lane, value: int) -> None:
        """End a writable view: device work may use its bytes. Calling it again is safe."""
        if lane.submitted > value:
            return  # it has ended before, and the lane belongs to another view now
        try:
            lane.owner.finish(value)
            if events.active:
                at = (lane.place, value, 0)
                events.emit("done", "a writable view has ended", path="view", at=at)
        except Error as error:  # Python ignores exceptions of a finaliser
            self._scheduler.mark_lost(error)
        self.held.pop(lane, None)
        self.lanes.give_back(lane.owner)

    def check_own(self, points: dict[Lane, int]) -> None:
        """Raise if the calling thread would wait for itself to drop a view."""
        if any(is_own(thread) for thread in self.holders_before(points)):
            raise ViewHeld(
                "this thread would wait forever: it waits for work that comes after a writable "
                "view held by this thread, or by one that has ended; drop the view (del it and all "
                "its slices) first"
            )

    def holders_before(self, points: dict[Lane, int]) -> set[int]:
        """The threads whose writable views must end before these points are reached."""
        held = {
            lane.number: (lane.submitted, thread)  # smaller values belong to views that have ended
            for lane, thread in tuple(self.held.items())
        }
        streams = self._scheduler.all_streams()
        lanes = {at.number: at for stream in streams for at in (stream.lane, stream.copier.lane)}
        reached: set[int] = set()
        found: set[int] = set()
        waiting = [(lane.number, value) for lane, value in points.items()]
        while waiting:
            number, value = waiting.pop()
            if number in held and value >= held[number][0]:
                found.add(held[number][1])
            if number not in reached and number in lanes:
                reached.add(number)
                waiting += lanes[number].seen.items()
        return found


def warn_of_holders(threads: set[int]) -> None:
    """Warn that a wait takes long because of writable views that these threads made.

    The caller does not hold the device's lock.
    """
    names = [each.name for each in threading.enumerate() if each.ident in threads]
    if names:
        warnings.warn(
            f"waiting for more than {LONG:.0f} s for work that waits for a writable view made "
            f"by thread {', '.join(names)}; drop the view (del it and all its slices) in the "
            "thread that holds it now",
            RuntimeWarning,
            stacklevel=2,
        )
