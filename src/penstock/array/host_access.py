"""The host's access to device memory: what it must wait for, and the copy itself.

Every way for the host to touch an array's bytes comes through here: transfers, views, values asked
for at once. What conflicts is the ledger's to say; this is where its answer becomes a wait, and
where host copies are made visible to the device and the other way round.

Small host copies are made under the device's lock. Large ones are not: they take a host lane, so
that work of other threads on the same bytes is ordered against them like against any other work.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.host_values import memories
from penstock.errors import InvalidValue, NotWhileRecording, Unsupported, ViewHeld
from penstock.ledger.hazards import Access, Lane, Region, needs_of_host
from penstock.memory.layout import Layout, region_of, row_offsets
from penstock.memory.pool import Backing
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
    """The array's bytes, if the host may touch them now and there is nothing else to it.

    So it is for most small transfers. What stands in the way otherwise is for the caller to find.
    Under the device's lock, under which the bytes must be touched, too.
    """
    buffer = array.buffer
    backing = buffer.backing
    scheduler = buffer.scheduler
    if (
        not backing.memory.coherent or backing.memory.address is None or backing.views
        or backing.history.device_only or backing.unpublished or buffer.closed
        or (write and (buffer.role != "generic" or buffer.guarded))
        or scheduler.closed or scheduler.lost is not None or scheduler.captures
        or scheduler.transfers != "auto" or array.nbytes > scheduler.sizes.under_lock
        or events.active or pending_conflicts(buffer, array.region, write)
    ):  # fmt: skip
        return None
    return host_array(array, backing)


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
    if block is not None and not block.goes_on:
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
) -> Callable[[], None]:
    """Copy at once if that is quick; else take a host lane. Call the outcome without the lock."""
    copy = partial(copy_now, array, backing, target, source, write=write, path=path, why=why)
    if array.nbytes <= array.buffer.scheduler.sizes.under_lock:
        copy()
        return _nothing
    theirs = source if write else target  # the caller's side, which may be adopted memory
    return HostCopy(array, backing, theirs, copy, write=write)


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

    Call it without the lock. If an exception comes first, it is abandoned: nothing is copied, and
    whatever waits for it goes on.
    """

    __slots__ = ("_copy", "_host", "_scheduler", "_told", "_value")

    def __init__(
        self, array: Array, backing: Backing, theirs: Host, copy: Callable[[], None], *, write: bool
    ) -> None:
        self._told = True
        self._copy = copy
        self._scheduler = scheduler = array.buffer.scheduler
        self._host = scheduler.host_copies.take_lane()
        self._value = self._host.lane.submitted + 1
        scheduler.host_copies.begun.append(self)
        self._told = False
        self._host.start()
        what = f"a host {'write' if write else 'read'}"
        backing.history.note(array.region, write, self._host.lane, self._value, what)
        note_host_memory(scheduler, theirs, not write, self._host.lane, self._value, what)

    def __call__(self) -> None:
        try:
            self._copy()
        finally:
            self._scheduler.ended.leave((self._host, self._value))
            self._told = True
            self._scheduler.drain_ended()

    def abandon(self) -> None:
        if not self._told:
            self._scheduler.ended.leave((self._host, self._value))
            self._told = True

    __del__ = abandon


def _nothing() -> None:
    """The copy is made already."""


def pending_conflicts(buffer: Buffer, region: Region, write: bool) -> dict[Lane, int]:
    """What the host would have to wait for before it may touch these bytes."""
    found: list[Access] = []
    buffer.backing.history.collect(region, write, found)
    if not found:
        return {}
    for access in found:
        access.lane.owner.poll()
    return needs_of_host(found)


def wait_for_conflicts(array: Array, *, write: bool, what: str) -> None:
    """Block until the host may touch the array's bytes. Takes the lock, waits without it."""
    buffer, region = array.buffer, array.region
    scheduler = buffer.scheduler
    with scheduler.lock:
        scheduler.check()
        buffer.check()
        if not array.size:
            return
        backing = buffer.backing
        history = backing.history
        found: list[Access] = []
        history.collect(region, write, found)
        points = needs_of_host(found) if found else {}
        # What the device never wrote is visible.
        hidden = backing.hidden and bool(history.writes or backing.unpublished)
        if not points and not hidden:
            return
        reason, works = what, {}
        if points and events.active:
            reason = f"{what} what is in flight: {_latest(found)!r}"
            works = {each.lane: each.what for each in sorted(found, key=lambda each: each.value)}
        if hidden:
            # The first host access publishes the device's writes so far. Those that other threads
            # record from here on are published as on any array, and until these points are reached
            # other threads must still see the memory as unpublished.
            published = scheduler.publish_everything()
            points |= published
            backing.unpublished = published
            history.device_only = False
    scheduler.wait_for(points, None, reason, works, buffer=buffer.name, lo=region.lo, hi=region.hi)
    if hidden:
        backing.unpublished = {}


def _latest(found: list[Access]) -> Access:
    return max((a for a in found if a.pending), key=lambda a: a.value)


def views_shown(buffer: Buffer, region: Region) -> bool:
    """Whether a live read-only view shows any of these bytes; raises for a writable one."""
    shown = buffer.views_of(region)
    if any(view.writable for view in shown):
        raise ViewHeld(
            f"a live writable view shows bytes {region.lo}:{region.hi} of array {buffer.name!r}; "
            "drop it (del it and all its slices) before using them otherwise"
        )
    return bool(shown)


def check_view(array: Array, mode: str) -> None:
    """Raise unless the host may have such a view of the array. Under the lock."""
    buffer, region = array.buffer, array.region
    if not is_mapped(buffer):
        name = buffer.scheduler.name
        raise Unsupported(f"the memory of {name} is not mapped; use numpy() and write()")
    if mode != "r":
        buffer.check_write(region, f"view({mode!r})", by_host=True)
    if not array.size:
        return
    if mode == "r":
        check_views_of_others(buffer, region, "view('r')")
    elif views_shown(buffer, region):
        raise ViewHeld(
            f"another view of array {buffer.name!r} still shows bytes {region.lo}:{region.hi}; "
            "drop it before writing them"
        )
    if any(stride < 0 for stride in array.strides):
        raise Unsupported("a view of a reversed slice; reverse the view instead")


def check_views_of_others(buffer: Buffer, region: Region, what: str) -> None:
    """Raise where another thread may be writing these bytes through a view, while this one reads.

    Views of one thread show each other's writes, as those of one NumPy array do.
    """
    if any(view.writable and not view.own for view in buffer.views_of(region)):
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
    found = [access for use in _uses(scheduler, array, write, what) for access in use.found]
    points = needs_of_host(found)
    if points and points.keys() != {behind}:
        raise InvalidValue(
            f"{what} is adopted memory that work in flight still uses ({_latest(found)!r}); "
            "use copy_from() with the adopted array, or wait for the work first"
        )
    return bool(points)


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
                uses = [use for each in arrays for use in _uses(scheduler, each, write, what)]
                busy = next((use for use in uses if needs_of_host(use.found)), None)
                if busy is None:
                    if uses:
                        lane = scheduler.host_copies.take_lane()
                        value = lane.lane.submitted + 1
                        host = lane
                        host.start()
                        for each in arrays:
                            note_host_memory(scheduler, each, write, host.lane, value, what)
                    break
            _wait_for(scheduler, busy, what)
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


class _Use(NamedTuple):
    """Bytes of adopted memory that the host is about to touch, and the accesses in its way."""

    backing: Backing
    region: Region
    found: list[Access]


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


def _uses(scheduler: Scheduler, array: Host, write: bool, what: str) -> list[_Use]:
    """The adopted memory that an array is of, and what is in the way of the host's access.

    Raises where that is more than work in flight: a sealed weight, a view that the host's write
    would change, or one that another thread may be writing through.
    """
    uses = []
    if write:
        check_not_sealed(scheduler, array, what)
    for backing, region in _known(scheduler, array):
        if backing.views:
            scheduler.drain()
            _check_views(backing, region, write, what)
        found: list[Access] = []
        backing.history.collect(region, write, found)
        for access in found:
            access.lane.owner.poll()
        uses.append(_Use(backing, region, found))
    return uses


def _check_views(backing: Backing, region: Region, write: bool, what: str) -> None:
    shown = [view for view in backing.views if view.region.overlaps(region)]
    others = any(view.writable and not view.own for view in shown)
    own = any(view.writable and view.own for view in shown)
    if others or (write and shown and not own):
        whose = "a live writable view of another thread's" if others else "a live view"
        raise ViewHeld(
            f"{what} is adopted memory that {whose} shows; drop the view (del it and all its "
            "slices) first"
        )


def _wait_for(scheduler: Scheduler, use: _Use, what: str) -> None:
    """Wait for exactly the accesses that are in the way of the host. Not under the lock."""
    backing, region, found = use
    points = needs_of_host(found)
    if not points:
        return  # done meanwhile
    reason, works, names = what, {}, [""]
    if events.active:
        reason = f"{what} is adopted memory that work in flight uses: {_latest(found)!r}"
        works = {each.lane: each.what for each in sorted(found, key=lambda each: each.value)}
        with scheduler.lock:
            names += [each.name for each in scheduler.host_memory.buffers(backing, region)]
    lo, hi = region.lo, region.hi
    scheduler.wait_for(points, None, reason, works, buffer=names[-1], lo=lo, hi=hi)


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
