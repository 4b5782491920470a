"""The host's access to device memory: what it conflicts with, the wait for that, and the copy.

Every way for the host to touch an array's bytes comes through here: transfers, views, values asked
for at once. Each access takes one snapshot of what is in its way (`Conflicts`), under the device's
lock, and is decided from that. `at_once` is the short cut for small accesses with nothing in their
way. Host copies are made visible to the device here, and device writes to the host.

Small host copies are made under the device's lock. Large ones are not: they take a host lane, so
that work of other threads on the same bytes is ordered against them like against any other work.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.host_values import memories
from penstock.errors import InvalidValue, NotWhileRecording, ViewHeld
from penstock.ledger.hazards import Access, History, Lane, Region, needs_of_host
from penstock.memory.layout import Layout, region_of, row_offsets
from penstock.memory.pool import Backing, Shown
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.array.buffer import Buffer
    from penstock.graph.graph import Graph
    from penstock.schedule.host_lane import HostLane
    from penstock.schedule.scheduler import Scheduler
    from penstock.schedule.stream import Stream

Host = npt.NDArray[Any]


def at_once(array: Array, *, write: bool) -> Host | None:
    """The array's bytes, if the host may read or write them now and nothing else has to be done.

    That is so for most small transfers. If not, the caller finds out why (`Conflicts`). Called
    under the device's lock, under which the caller must touch the bytes, too.
    """
    buffer = array.buffer
    backing = buffer.backing
    memory = backing.memory
    history = backing.history
    scheduler = buffer.scheduler
    if (
        not memory.coherent or memory.address is None or backing.views
        or history.device_only or backing.unpublished or buffer.closed
        or ((buffer.guarded or not buffer.policy.host_writes) if write else not memory.cached)
        or scheduler.closed or scheduler.lost is not None or scheduler.captures
        or scheduler.transfers != "auto" or array.nbytes > scheduler.sizes.under_lock
        or events.active
        or ((history.writes or history.reads) and any(in_flight(history, array.region, write)))
    ):  # fmt: skip
        return None
    return host_array(array, backing)


def in_flight(history: History, region: Region, write: bool) -> Iterator[Access]:
    """The accesses that the host's must wait for, as of a look at how far their lanes have come."""
    for access in history.near(region, write):
        lane = access.lane
        if access.value > lane.complete and region.overlaps(access.region):
            lane.owner.poll()
            if access.value > lane.complete:
                yield access


class Conflicts:
    """What the host's access to some bytes of a backing conflicts with, at one moment.

    Made once for each access, under the device's lock, and out of date when the lock is let go of.
    An access to no bytes conflicts with nothing.
    """

    __slots__ = ("_scheduler", "backing", "hidden", "pending", "points", "region", "views")

    def __init__(
        self, scheduler: Scheduler, backing: Backing, region: Region, *, write: bool
    ) -> None:
        history = backing.history
        self._scheduler = scheduler
        self.backing = backing
        self.region = region
        #: Live views that show any of the bytes.
        self.views: list[Shown] = []
        #: The accesses in flight that have to complete first, and when they have.
        self.pending: list[Access] = []
        self.points: dict[Lane, int] = {}
        #: Whether the host may not touch the bytes until device writes are published.
        self.hidden = False
        if region.lo < region.hi:
            if backing.views:
                scheduler.drain()
                self.views = backing.views_of(region)
            if history.writes or history.reads:
                self.pending += in_flight(history, region, write)
                self.points = needs_of_host(self.pending)
            self.hidden = backing.hidden

    @property
    def busy(self) -> bool:
        """Whether a host write to the bytes would be seen by work in flight, by a view, or lost."""
        return bool(self.points or self.views or self.hidden)

    @property
    def latest(self) -> Access:
        """The last of the accesses in flight, for messages and receipts."""
        return max(self.pending, key=lambda access: access.value)

    def wait(
        self, what: str, buffer: str, found: str = "what is in flight"
    ) -> Callable[[], None] | None:
        """The wait that the access needs first; None if it needs none. Call it without the lock.

        The receipt says that `what` the host does met what was `found`. If device writes are
        unpublished, they are published first. Those that other threads record from here on are
        published as on any array, and until these points are reached other threads must still see
        the memory as unpublished.
        """
        # What the device never wrote needs no publishing.
        backing = self.backing
        unpublished = self.hidden and bool(backing.history.writes or backing.unpublished)
        if not self.points and not unpublished:
            return None
        scheduler, points, reason, works = self._scheduler, self.points, what, {}
        if points and events.active:
            reason = f"{what} {found}: {self.latest!r}"
            in_order = sorted(self.pending, key=lambda access: access.value)
            works = {access.lane: access.what for access in in_order}
        if unpublished:
            published = scheduler.publish_everything()
            points = points | published
            backing.unpublished = published
            backing.history.device_only = False

        def wait() -> None:
            lo, hi = self.region.lo, self.region.hi
            scheduler.wait_for(points, None, reason, works, buffer=buffer, lo=lo, hi=hi)
            if unpublished:
                backing.unpublished = {}

        return wait


def conflicts_of(array: Array, *, write: bool) -> Conflicts:
    """What the host's access to an array conflicts with. Under the lock."""
    buffer = array.buffer
    return Conflicts(buffer.scheduler, buffer.backing, array.region, write=write)


def stream_of(buffer: Buffer, stream: Stream | None) -> Stream:
    """The stream to work on, after checking that everything is open and belongs together."""
    buffer.scheduler.check()
    buffer.check()
    return buffer.scheduler.stream_or_default(stream)


def capturing(scheduler: Scheduler) -> Graph | None:
    """The graph that the calling thread records at the moment, if any."""
    if not scheduler.captures:
        return None
    graph, block = scheduler.captures.get(get_ident(), (None, None))
    if block is not None and not block.is_active:
        scheduler.captures.pop(get_ident(), None)
        return None
    return graph


def check_not_capturing(scheduler: Scheduler, what: str) -> None:
    if capturing(scheduler) is not None:
        raise NotWhileRecording(
            f"{what} while a graph is recorded: nothing has run yet; do it after g.replay()"
        )


def host_copy(
    array: Array, backing: Backing, target: Host, source: Host, *, write: bool, path: str, why: str
) -> None:
    """Copy between the array's bytes and the host's: a small copy now, a large one by a `HostCopy`.

    Called in `HostCopies.carry_out`, which finishes the large one without the lock.
    """
    if array.nbytes <= array.buffer.scheduler.sizes.under_lock:
        copy_now(array, backing, target, source, write=write, path=path, why=why)
        return
    copy = partial(copy_now, array, backing, target, source, write=write, path=path, why=why)
    theirs = source if write else target  # the caller's side, which may be adopted memory
    HostCopy(array, backing, theirs, copy, write=write)


def copy_now(
    array: Array, backing: Backing, target: Host, source: Host, *, write: bool, path: str, why: str
) -> None:
    """Copy between the array's bytes in `backing` and memory of the host's."""
    scheduler = array.buffer.scheduler
    if not write:
        invalidate(scheduler, backing, array.layout)
    start = time.perf_counter() if events.active else 0.0
    np.copyto(target, source)
    if events.active:
        emit_copy(array, path, why, start)
    if write:
        flush(scheduler, backing, array.layout)


class HostCopy:
    """A large copy by the calling thread, on a host lane of its own; begun under the lock.

    `HostCopies.carry_out` finishes it without the lock. If an exception comes first, it is
    abandoned: nothing is copied, and whatever waits for it goes on.
    """

    __slots__ = ("_copy", "_host", "_scheduler", "_reported", "_value")

    def __init__(
        self, array: Array, backing: Backing, theirs: Host, copy: Callable[[], None], *, write: bool
    ) -> None:
        self._reported = True
        self._copy = copy
        self._scheduler = scheduler = array.buffer.scheduler
        self._host = self._scheduler.host_copies.take_lane()
        self._value = self._host.lane.submitted + 1
        scheduler.host_copies.begun.append(self)
        self._reported = False
        self._host.start()
        what = f"a host {'write' if write else 'read'}"
        backing.history.note(array.region, write, self._host.lane, self._value, what)
        note_host_memory(scheduler, theirs, not write, self._host.lane, self._value, what)

    def finish(self) -> bool:
        try:
            self._copy()
        finally:
            self._scheduler.ended.leave((self._host, self._value))
            self._reported = True
            self._scheduler.drain_ended()
        return True

    def abandon(self) -> None:
        if not self._reported:
            self._scheduler.ended.leave((self._host, self._value))
            self._reported = True

    __del__ = abandon


def check_no_writable_view(buffer: Buffer, conflicts: Conflicts) -> None:
    """Raise where a live view may be written through."""
    if any(view.writable for view in conflicts.views):
        region = conflicts.region
        raise ViewHeld(
            f"a live writable view shows bytes {region.lo}:{region.hi} of array {buffer.name!r}; "
            "drop it (del it and all its slices) before using them otherwise"
        )


def check_views_of_others(buffer: Buffer, conflicts: Conflicts, what: str) -> None:
    """Raise where another thread may be writing through a view what this one reads.

    Views of one thread show each other's writes, as those of one NumPy array do.
    """
    if any(view.writable and not view.own for view in conflicts.views):
        region = conflicts.region
        raise ViewHeld(
            f"{what} reads bytes {region.lo}:{region.hi} of array {buffer.name!r}, which a live "
            "writable view of another thread's shows; have that thread drop the view (del it and "
            "all its slices) first"
        )


def check_host_memory(
    scheduler: Scheduler, array: Host, *, write: bool, what: str, behind: Lane | None = None
) -> bool:
    """Refuse a transfer from or to adopted memory that work in flight still uses (rule 3).

    Copies of the lane `behind` are not refused; whether there are any is the answer, and then the
    transfer must be made by that lane, too.
    """
    if not scheduler.host_memory:
        return False
    pending = [a for each in _in_adopted(scheduler, array, write, what) for a in each.pending]
    lanes = {access.lane for access in pending}
    if lanes and lanes != {behind}:
        latest = max(pending, key=lambda access: access.value)
        raise InvalidValue(
            f"{what} is adopted memory that work in flight still uses ({latest!r}); "
            "use copy_from() with the adopted array, or wait for the work first"
        )
    return bool(lanes)


def check_source(scheduler: Scheduler, source: Any) -> None:
    """The same for anything that NumPy is about to make an array of."""
    if not scheduler.host_memory:
        return
    for each in memories(source):
        with scheduler.lock:
            check_host_memory(scheduler, each, write=False, what="the source")


def check_not_sealed(scheduler: Scheduler, array: Host, what: str) -> None:
    """Refuse to write memory that is also a sealed weight (rule 9). Under the lock."""
    for backing, region in _known(scheduler, array):
        sealed = scheduler.host_memory.sealed(backing, region)
        if sealed is not None:
            sealed.refuse_write(region, what)


@contextlib.contextmanager
def host_memory_at_rest(
    scheduler: Scheduler, *arrays: Host, write: bool, what: str
) -> Iterator[bool]:
    """Let the host read or write NumPy arrays of the caller's in the `with` block.

    The block gets whether any of their bytes are adopted, and so kept from the device meanwhile.

    Adopted bytes among them are waited for, exactly those, and work on them that is recorded
    meanwhile comes behind the block. Takes the lock, and holds it neither to wait nor in the block.
    No array is kept from the device while another is waited for, which might be for ever.
    """
    if not arrays or not scheduler.host_memory:
        yield False
        return
    host: HostLane | None = None
    value = 0
    try:
        while True:
            with scheduler.lock:
                met = [c for each in arrays for c in _in_adopted(scheduler, each, write, what)]
                busy = next((each for each in met if each.points), None)
                wait = None if busy is None else _wait_in_adopted(scheduler, busy, what)
                if wait is None:
                    if met:
                        lane = scheduler.host_copies.take_lane()
                        value = lane.lane.submitted + 1
                        host = lane
                        host.start()
                        for each in arrays:
                            note_host_memory(scheduler, each, write, host.lane, value, what)
                    break
            wait()
        yield host is not None
    finally:
        if host is not None:
            scheduler.ended.leave((host, value))
            scheduler.drain_ended()


def note_host_memory(
    scheduler: Scheduler, array: Host, write: bool, lane: Lane, value: int, what: str
) -> None:
    """Write down that the host reads or writes the adopted bytes of an array up to a point."""
    for backing, region in _known(scheduler, array):
        backing.history.note(region, write, lane, value, what)


def is_memory_of(array: Host, scheduler: Scheduler, backing: Backing, region: Region) -> bool:
    """Whether an array of the caller's shares a byte with these of a piece of adopted memory."""
    known = _known(scheduler, array)
    return any(each is backing and there.overlaps(region) for each, there in known)


def _known(scheduler: Scheduler, array: Host) -> Iterator[tuple[Backing, Region]]:
    """The pieces of adopted memory that an array shares bytes with, and its bytes there."""
    if not scheduler.host_memory or not array.size:
        return
    array = np.asarray(array)
    address = array.__array_interface__["data"][0]
    region, _ = region_of(Layout(0, array.shape, array.strides, array.itemsize))
    lo, hi = address + region.lo, address + region.hi
    for start, end, backing in scheduler.host_memory.overlapping(lo, hi):
        there = Region(lo - start, hi - start, region.width, region.pitch)
        if there.overlaps(Region(0, end - start)):
            yield backing, there


def _in_adopted(scheduler: Scheduler, array: Host, write: bool, what: str) -> list[Conflicts]:
    """What the host's access to an array conflicts with, in each piece of adopted memory it is of.

    Raises where that is more than work in flight: a sealed weight, a view that the host's write
    would change, or one that another thread may be writing through.
    """
    if write:
        check_not_sealed(scheduler, array, what)
    met = []
    for backing, region in _known(scheduler, array):
        conflicts = Conflicts(scheduler, backing, region, write=write)
        others = any(view.writable and not view.own for view in conflicts.views)
        own = any(view.writable and view.own for view in conflicts.views)
        if others or (write and conflicts.views and not own):
            whose = "a live writable view of another thread's" if others else "a live view"
            raise ViewHeld(
                f"{what} is adopted memory that {whose} shows; drop the view (del it and all its "
                "slices) first"
            )
        met.append(conflicts)
    return met


def _wait_in_adopted(
    scheduler: Scheduler, conflicts: Conflicts, what: str
) -> Callable[[], None] | None:
    """The wait for the accesses in flight to a piece of adopted memory. Under the lock."""
    buffers = scheduler.host_memory.buffers(conflicts.backing, conflicts.region)
    name = buffers[-1].name if buffers else ""
    return conflicts.wait(what, name, "is adopted memory that work in flight uses")


def is_mapped(buffer: Buffer) -> bool:
    return buffer.backing.mapped and buffer.scheduler.transfers != "unmapped"


def is_readable(buffer: Buffer) -> bool:
    """Whether the host should read the memory itself: uncached memory is slow to read."""
    return is_mapped(buffer) and buffer.backing.memory.cached


def host_array(array: Array, backing: Backing) -> Host:
    """The array's bytes as the host sees them in `backing`. Untracked: never leaves transfers."""
    if array.seen_by_host is not None and array.seen_by_host[0] is backing:
        return array.seen_by_host[1]
    layout = array.layout
    made: Host = np.ndarray(
        layout.shape,
        array.dtype,
        buffer=backing.chunk.bytes,
        offset=backing.offset + layout.offset,
        strides=layout.strides,
    )
    array.seen_by_host = (backing, made)
    return made


def flush(scheduler: Scheduler, backing: Backing, layout: Layout) -> None:
    """Make host writes count, on memory where they do not by themselves."""
    if not backing.memory.coherent:
        for lo, hi in _rows(backing, layout):
            scheduler.driver.flush(backing.memory, lo, hi)


def invalidate(scheduler: Scheduler, backing: Backing, layout: Layout) -> None:
    """Let the host see device writes, on memory where it does not by itself."""
    if not backing.memory.coherent:
        for lo, hi in _rows(backing, layout):
            scheduler.driver.invalidate(backing.memory, lo, hi)


def _rows(backing: Backing, layout: Layout) -> Iterator[tuple[int, int]]:
    """Exactly the bytes of a layout, run by run: what lies between may be someone else's."""
    if 0 not in layout.shape:
        width, starts = row_offsets(layout)
        for start in starts.tolist():
            yield backing.offset + start, backing.offset + start + width


def emit_copy(array: Array, path: str, why: str, start: float = 0.0) -> None:
    """Put a copy on the receipt: one that the host began at `start` and has made, or will make."""
    region = array.region
    events.emit(
        "copy", why, nbytes=array.nbytes, buffer=array.name, lo=region.lo, hi=region.hi,
        path=path, start=start, seconds=events.since(start),
    )  # fmt: skip
