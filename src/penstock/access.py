"""The host's access to device memory: what it must wait for, and the copy itself.

Every way for the host to touch an array's bytes comes through here: transfers, views, values asked
for at once. What conflicts is the ledger's to say; this is where its answer becomes a wait, and
where host copies are made visible to the device and the other way round.

Small host copies are made under the device's lock. Large ones are not: they take a host lane, so
that work of other threads on the same bytes is ordered against them like against any other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock import tracing
from penstock.errors import InvalidValue, NotWhileRecording, ViewHeld
from penstock.hazards import Access, Lane, Region, needs_of_host
from penstock.layout import Layout, row_offsets
from penstock.memory import Backing
from penstock.scheduler import Guest

if TYPE_CHECKING:
    from penstock.array import Array
    from penstock.buffer import Buffer
    from penstock.graph import Graph
    from penstock.scheduler import Scheduler
    from penstock.stream import Stream

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
        or backing.history.quiet or (write and buffer.role != "generic") or buffer.closed
        or scheduler.closed or scheduler.lost is not None or scheduler.recordings
        or scheduler.transfers != "auto" or array.nbytes > scheduler.sizes.under_lock
        or tracing.active or pending_conflicts(buffer, array.region, write)
    ):  # fmt: skip
        return None
    return host_array(array, backing)


def stream_of(buffer: Buffer, stream: Stream | None) -> Stream:
    """The stream to work on, after checking that everything is open and belongs together."""
    buffer.scheduler.check()
    buffer.check()
    return buffer.scheduler.stream_or_default(stream)


def recording(scheduler: Scheduler) -> Graph | None:
    """The graph that the calling thread records at the moment, if any."""
    return scheduler.recordings.get(get_ident()) if scheduler.recordings else None


def check_not_recording(scheduler: Scheduler, what: str) -> None:
    if recording(scheduler) is not None:
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
    return HostCopy(array, backing, copy, write=write)


def copy_now(
    array: Array, backing: Backing, target: Host, source: Host, *, write: bool, path: str, why: str
) -> None:
    """Copy between the array's bytes in `backing` and memory of the host's."""
    scheduler = array.buffer.scheduler
    if not write:
        invalidate(scheduler, backing, array.layout)
    start = time.perf_counter() if tracing.active else 0.0
    np.copyto(target, source)
    if tracing.active:
        emit_copy(array, path, why, start)
    if write:
        flush(scheduler, backing, array.layout)


class HostCopy:
    """A large copy by the calling thread, on a host lane of its own; begun under the lock.

    Call it without the lock. If it is dropped instead, because an exception came first, nothing is
    copied, and whatever waits for it goes on.
    """

    __slots__ = ("_copy", "_host", "_scheduler", "_told", "_value")

    def __init__(
        self, array: Array, backing: Backing, copy: Callable[[], None], *, write: bool
    ) -> None:
        self._told = True
        self._copy = copy
        self._scheduler = array.buffer.scheduler
        self._host = self._scheduler.take_host_lane()
        self._value = self._host.lane.submitted + 1
        self._told = False
        self._host.start()
        what = f"a host {'write' if write else 'read'}"
        backing.history.note(array.region, write, self._host.lane, self._value, what)

    def __call__(self) -> None:
        try:
            self._copy()
        finally:
            self._scheduler.copies_made.append((self._host, self._value))
            self._told = True
            self._scheduler.tell_of_copies()

    def __del__(self) -> None:
        if not self._told:
            self._scheduler.copies_made.append((self._host, self._value))


def touch(scheduler: Scheduler, access: Callable[[], None]) -> None:
    """Have the host read or write device memory without the lock; it is not freed meanwhile."""
    guest = Guest()
    try:
        scheduler.guests.add(guest)
        scheduler.check_over()
        access()
    finally:
        scheduler.guests.discard(guest)
        scheduler.guest_left()


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
        history = buffer.backing.history
        found: list[Access] = []
        history.collect(region, write, found)
        points = needs_of_host(found) if found else {}
        quiet = history.quiet
        if not points and not quiet:
            return
        reason, works = what, {}
        if points and tracing.active:
            reason = f"{what} what is in flight: {_latest(found)!r}"
            works = {each.lane: each.what for each in sorted(found, key=lambda each: each.value)}
        if quiet:
            # What the host has no business in is not made visible to it; its first look is an end
            # to that. Until then nobody else may think that it is.
            points |= scheduler.publish_everything()
    scheduler.wait_for(points, None, reason, works, buffer=buffer.name, lo=region.lo, hi=region.hi)
    if quiet:
        history.quiet = False


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


def check_host_memory(scheduler: Scheduler, array: Host, *, write: bool, what: str) -> None:
    """Refuse a transfer from or to adopted memory that work in flight still uses (rule 3)."""
    if not scheduler.host_memory:
        return
    lo, hi = np.lib.array_utils.byte_bounds(array)
    for start, _, backing in scheduler.host_memory.overlapping(lo, hi):
        found: list[Access] = []
        backing.history.collect(Region(max(0, lo - start), hi - start), write, found)
        for access in found:
            access.lane.owner.poll()
        if needs_of_host(found):
            raise InvalidValue(
                f"{what} is adopted memory that work in flight still uses ({_latest(found)!r}); "
                "use copy_from() with the adopted array, or wait for the work first"
            )


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
    tracing.emit(
        "copy", why, nbytes=array.nbytes, buffer=array.name, lo=region.lo, hi=region.hi,
        path=path, start=start, seconds=tracing.since(start),
    )  # fmt: skip
