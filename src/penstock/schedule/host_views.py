"""NumPy arrays that show a device's memory, and the threads that hold writable ones.

A writable view is a value on a host lane: device work on its bytes waits for that value, which is
signalled when the view ends. So a wait for such work never ends if the waiting thread itself holds
the view, and takes as long as another thread likes if that has it.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

from penstock import accelerator
from penstock.errors import Error, ViewHeld
from penstock.ledger.hazards import Lane
from penstock.memory.pool import Hold, is_own
from penstock.schedule.host_lane import HostLanes

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler

LONG = 10.0  # seconds, after which a wait for a view of another thread's gives a warning


@accelerator.share
class HostViews:
    """Those of one device. Every method but `ended` is called under its lock."""

    __slots__ = ("__dict__", "held")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.exports: set[Hold] = set()  # of all views alive
        self.lanes = HostLanes(scheduler.driver, "writable view")
        self.held: dict[Lane, int] = {}  # writable views alive, by the thread that holds them

    def ended(self, hold: Hold) -> None:
        """From a finaliser: nothing shows this memory any more."""
        scheduler, shutdown = self._scheduler, self._scheduler.shutdown
        scheduler.ended.leave(hold)
        if not shutdown.torn_down:
            scheduler.try_locked(scheduler.drain_ended_quietly)  # others may wait for its end
            if shutdown.over:
                shutdown.tear_down()

    def end(self, hold: Hold) -> None:
        """Forget a view that ended. Each is told of twice, and may be forgotten again and again."""
        backing, shown = hold.backing, hold.shown
        torn_down = self._scheduler.shutdown.torn_down
        if hold.written is not None:
            # Before the device may have the bytes, and not again after that.
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
        """The point at which device work may have the bytes of the next writable view again."""
        lane = self.lanes.next_idle().lane
        return lane, lane.submitted + 1

    def hold(self, lane: Lane, value: int) -> None:
        """A writable view begins, which ends at this point."""
        self.lanes.take(lane.owner)
        self.held[lane] = threading.get_ident()
        lane.submitted = value

    def _let_go(self, lane: Lane, value: int) -> None:
        """A writable view has ended: device work may have its bytes. May be called again."""
        if lane.submitted > value:
            return  # it was let go of before, and the lane is another view's by now
        try:
            lane.owner.finish(value)
        except Error as error:  # Python drops exceptions of a finaliser
            self._scheduler.mark_lost(error)
        self.held.pop(lane, None)
        self.lanes.give_back(lane.owner)

    def check_own(self, points: dict[Lane, int]) -> None:
        """Raise if the calling thread would wait for itself to let go of a view."""
        if any(is_own(thread) for thread in self.holders_before(points)):
            raise ViewHeld(
                "this thread would wait for ever: what it waits for comes after work that waits "
                "for a writable view of this thread's, or of one that has ended; drop the view "
                "first"
            )

    def holders_before(self, points: dict[Lane, int]) -> set[int]:
        """The threads whose writable views must end before these points are reached."""
        held = {
            lane.number: (lane.submitted, thread)  # values before it are of views that are gone
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
    """A wait takes long: say so if writable views of these threads are why. Without the lock."""
    names = [each.name for each in threading.enumerate() if each.ident in threads]
    if names:
        warnings.warn(
            f"waiting for more than {LONG:.0f} s for work that waits for a writable view made "
            f"by thread {', '.join(names)}; drop the view (del it and all its slices) in the "
            "thread that has it now",
            RuntimeWarning,
            stacklevel=2,
        )
