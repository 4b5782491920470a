"""The host's access to device memory: what it conflicts with, the wait for that, and the copy.

Every access of the host to an array's bytes goes through here: transfers, views, blocking reads.
Each takes one snapshot, under the device's lock, of what it conflicts with (`Conflicts`), and is
decided from that. `at_once` is the short cut for small accesses without conflicts. This module also
makes host copies visible to the device, and device writes visible to the host.

Small host copies are made under the device's lock. Large ones are not: they take a host lane, so
that work of other threads on the same bytes is ordered against them like against any other work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.host_values import memories
from penstock.errors import InvalidValue, NotWhileRecording, ViewHeld
from penstock.ledger.hazards import Access, History, Lane, Region, needs_of_host
from penstock.memory.backing import Backing, Shown
from penstock.memory.layout import Layout, region_of, row_offsets
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

    That is so for most small transfers. If not, it returns None, and `Conflicts` says why. The
    caller holds the lock while it accesses the bytes, and counts a write; a read is counted here.
    """
    buffer = array.buffer
    backing = buffer.backing
    history, scheduler = backing.history, buffer.scheduler
    if (
        not (backing.host_writes if write else backing.host_reads) or backing.views
        or history.device_only or backing.unpublished or buffer.closed
        or (write and (buffer.guarded or not buffer.policy.host_writes))
        or scheduler.closed or scheduler.lost is not None or scheduler.captures or events.recording
        or scheduler.transfers != "auto" or array.nbytes > scheduler.sizes.under_lock
        or ((history.writes or history.reads) and any(in_flight(history, array.region, write)))
    ):  # fmt: skip
        return None
    if not write:
        events.count("copy", array.nbytes)
    return host_array(array, backing)


def in_flight(history: History, region: Region, write: bool) -> Iterator[Access]:
    """The accesses that an access of the host must wait for; polls their lanes.

    A host that reads, and finds the work just done, follows the device as closely as one that
    waits for it.
    """
    for access in history.near(region, write):
        lane = access.lane
        if access.value > lane.complete and region.overlaps(access.region):
            lane.owner.poll()
            if access.value > lane.complete:
                yield access
            elif not write:
                lane.owner.host_waits()


class Conflicts:
    """What the host's access to some bytes of a backing conflicts with, at one moment.

    Made once for each access, under the device's lock, and out of date once the lock is released.
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
        #: The accesses in flight that must complete first, and the points at which they have.
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
        """Whether a host write now would reach work in flight or a view, or might be lost."""
        return bool(self.points or self.views or self.hidden)

    @property
    def latest(self) -> Access:
        """The last of the accesses in flight, for messages and receipts."""
        return max(self.pending, key=lambda access: access.value)

    def wait(
        self, what: str, buffer: str, found: str = "what is in flight"
    ) -> Callable[[], None] | None:
        """A function that makes the wait this access needs; None if it needs none.

        The caller calls it without the lock. The receipt's reason is `what` the host does, then
        what it `found`. If device writes are unpublished, they are published first; from here on
        other threads' writes are published as on any array. Until the wait is over, other threads
        must still see the memory as unpublished.
        """
        # Memory that the device never wrote needs no publishing.
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
    """What the host's access to an array conflicts with. The caller holds the lock."""
    buffer = array.buffer
    return Conflicts(buffer.scheduler, buffer.backing, array.region, write=write)


def stream_of(buffer: Buffer, stream: Stream | None) -> Stream:
    """The given or the default stream, checked to be open and of the buffer's device."""
    buffer.scheduler.check()
    buffer.check()
    return buffer.scheduler.stream_or_default(stream)


def capturing(scheduler: Scheduler) -> Graph | None:
    """The graph that the calling thread is recording, if any."""
    if not scheduler.captures:
        return None
    graph, block = scheduler.captures.get(get_ident(), (None, None))
    if block is not None and not block.is_active:
        scheduler.captures.pop(get_ident(), None)
        scheduler.note_state()
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
    """Copy between the array's bytes and host memory: a small copy now, a large one by `HostCopy`.

    Called in `HostCopies.carry_out`, which finishes the large one without the lock.
    """
    if array.nbytes <= array.buffer.scheduler.sizes.under_lock:
        copy_now(array, backing, target, source, write=write, path=path, why=why)
        return
    copy = partial(copy_now, array, backing, target, source, write=write, path=path, why=why)
    theirs = source if write else target  # the caller's side, which may be adopted memory
    HostCopy(array, backing, theirs, copy, write=write)


def copy_now(
    array: Array, backing: Backing, target: Host, source: Host, *, write: bool, path: str, why: str,
    at: events.At = events.NOWHERE,
) -> None:  # fmt: skip
    """Copy between the array's bytes in `backing` and host memory; `at` is for the receipt."""
    scheduler = array.buffer.scheduler
    if not write:
        invalidate(scheduler, backing, array.layout)
    start = events.clock() if events.active else 0.0
    np.copyto(target, source)
    if events.active:
        emit_copy(array, path, why, start, at)
    if write:
        flush(scheduler, backing, array.layout)


class HostCopy:
    """A large copy by the calling thread, on its own host lane; begun under the lock.

    `HostCopies.carry_out` finishes it without the lock. If an exception comes first, it is
    abandoned: nothing is copied, and work that waits for the copy continues.
    """

    __slots__ = ("_copy", "_host", "_scheduler", "_reported", "_value")

    def __init__(
        self,
        array: Array,
        backing: Backing,
        theirs: Host,
        copy: Callable[..., None],
        *,
        write: bool,
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
            self._copy(at=(self._host.lane.place, self._value, 0))
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
    """Raise if a live writable view shows any of the bytes."""
    if conflicts.views and any(view.writable for view in conflicts.views):
        region = conflicts.region
        raise ViewHeld(
            f"a live writable view shows bytes {region.lo}:{region.hi} of array {buffer.name!r}; "
            "drop it (del it and all its slices) before any other access to them"
        )


def check_views_of_others(buffer: Buffer, conflicts: Conflicts, what: str) -> None:
    """Raise if a live writable view of another thread shows any of the bytes to be read.

    Views of the same thread are allowed: they show each other's writes, as NumPy's views do.
    """
    if any(view.writable and not view.own for view in conflicts.views):
        region = conflicts.region
        raise ViewHeld(
            f"{what} reads bytes {region.lo}:{region.hi} of array {buffer.name!r}, which a live "
            "writable view of another thread shows; have that thread drop the view (del it and all "
            "its slices) first"
        )


def check_host_memory(
    scheduler: Scheduler, array: Host, *, write: bool, what: str, behind: Lane | None = None
) -> bool:
    """Refuse a transfer from or to adopted memory that work in flight still uses (rule 3).

    Copies on the lane `behind` are allowed. Returns whether there are any; then the transfer must
    be made on that lane, too.
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
    """`check_host_memory` for anything that NumPy is about to convert to an array."""
    if not scheduler.host_memory:
        return
    for each in memories(source):
        with scheduler.lock:
            check_host_memory(scheduler, each, write=False, what="the source")


def check_not_sealed(scheduler: Scheduler, array: Host, what: str) -> None:
    """Refuse to write memory that is also a sealed weight (rule 9). The caller holds the lock."""
    for backing, region in _known(scheduler, array):
        sealed = scheduler.host_memory.sealed(backing, region)
        if sealed is not None:
            sealed.refuse_write(region, what)


_NOT_ADOPTED = contextlib.nullcontext(False)


def host_memory_at_rest(
    scheduler: Scheduler, *arrays: Host, write: bool, what: str
) -> contextlib.AbstractContextManager[bool]:
    """Let the host read or write the caller's NumPy arrays in the `with` block.

    The block gets whether any of their bytes are adopted memory. If so, it first waits for the work
    in flight on exactly those bytes, and device work on them that is recorded during the block
    waits for its end. Takes the lock, but holds it neither while waiting nor during the block. It
    waits for all arrays before it reserves any: a reserved array could block the work that it waits
    for.
    """
    if not arrays or not scheduler.host_memory:
        return _NOT_ADOPTED
    return _adopted_at_rest(scheduler, arrays, write, what)


@contextlib.contextmanager
def _adopted_at_rest(
    scheduler: Scheduler, arrays: tuple[Host, ...], write: bool, what: str
) -> Iterator[bool]:
    host: HostLane | None = None
    value = 0
    start = 0.0
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
                        start = events.clock() if events.active else 0.0
                        host.start()
                        for each in arrays:
                            note_host_memory(scheduler, each, write, host.lane, value, what)
                    break
            wait()
        yield host is not None
    finally:
        if host is not None:
            scheduler.host_copies.report_done(host, value)
            if start and events.active:
                at, used = (host.lane.place, value, 0), events.since(start)
                why = f"the host used {what}, adopted memory"
                events.emit("done", why, path="adopted", start=start, seconds=used, at=at)


def note_host_memory(
    scheduler: Scheduler, array: Host, write: bool, lane: Lane, value: int, what: str
) -> None:
    """Note in the ledger that the host uses the adopted bytes of an array until a point."""
    for backing, region in _known(scheduler, array):
        backing.history.note(region, write, lane, value, what)


def is_memory_of(array: Host, scheduler: Scheduler, backing: Backing, region: Region) -> bool:
    """Whether a NumPy array shares a byte with a region of a piece of adopted memory."""
    known = _known(scheduler, array)
    return any(each is backing and there.overlaps(region) for each, there in known)


def _known(scheduler: Scheduler, array: Host) -> Iterator[tuple[Backing, Region]]:
    """The pieces of adopted memory that an array shares bytes with, and the region in each."""
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
    """What the host's access to a NumPy array conflicts with, by piece of adopted memory.

    Raises for conflicts that no wait resolves: a sealed weight, a view that the host's write would
    change, or a writable view of another thread.
    """
    if write:
        check_not_sealed(scheduler, array, what)
    met = []
    for backing, region in _known(scheduler, array):
        conflicts = Conflicts(scheduler, backing, region, write=write)
        others = any(view.writable and not view.own for view in conflicts.views)
        own = any(view.writable and view.own for view in conflicts.views)
        if others or (write and conflicts.views and not own):
            whose = "a live writable view of another thread" if others else "a live view"
            raise ViewHeld(
                f"{what} is adopted memory that {whose} shows; drop the view (del it and all its "
                "slices) first"
            )
        met.append(conflicts)
    return met


def _wait_in_adopted(
    scheduler: Scheduler, conflicts: Conflicts, what: str
) -> Callable[[], None] | None:
    """`Conflicts.wait` for a piece of adopted memory. The caller holds the lock."""
    buffers = scheduler.host_memory.buffers(conflicts.backing, conflicts.region)
    name = buffers[-1].name if buffers else ""
    return conflicts.wait(what, name, "is adopted memory that work in flight uses")


def is_mapped(buffer: Buffer) -> bool:
    return buffer.backing.mapped and buffer.scheduler.transfers != "unmapped"


def is_readable(buffer: Buffer) -> bool:
    """Whether the host should read the memory directly: uncached memory is slow to read."""
    return is_mapped(buffer) and buffer.backing.memory.cached


def host_array(array: Array, backing: Backing) -> Host:
    """The array's bytes in `backing` as a NumPy array. Untracked, so never handed to the user."""
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
    """Make host writes visible to the device, on memory that is not coherent."""
    if not backing.memory.coherent:
        for lo, hi in _rows(backing, layout):
            scheduler.driver.flush(backing.memory, lo, hi)


def invalidate(scheduler: Scheduler, backing: Backing, layout: Layout) -> None:
    """Make device writes visible to the host, on memory that is not coherent."""
    if not backing.memory.coherent:
        for lo, hi in _rows(backing, layout):
            scheduler.driver.invalidate(backing.memory, lo, hi)


def _rows(backing: Backing, layout: Layout) -> Iterator[tuple[int, int]]:
    """Exactly the bytes of a layout, run by run: other work may use the bytes in between."""
    if 0 not in layout.shape:
        width, starts = row_offsets(layout)
        for start in starts.tolist():
            yield backing.offset + start, backing.offset + start + width


def emit_copy(
    array: Array, path: str, why: str, start: float = 0.0, at: events.At = events.NOWHERE
) -> None:
    """Put a host copy on the receipt: made since `start`, or (without a start) yet to be made.

    `at` is the point of a host lane that work on the bytes waits for, if there is one.
    """
    region = array.region
    events.emit(
        "copy", why, nbytes=array.nbytes, buffer=array.name, lo=region.lo, hi=region.hi,
        path=path, start=start, seconds=events.since(start, array.nbytes), at=at,
    )  # fmt: skip
