"""Suballocation of device memory: few driver allocations, size-classed free lists, safe reuse.

A `Pool` allocates chunks from the driver and suballocates `Backing`s from them. A backing that its
owner gives up is *retired*: it returns to its free list only when its last use is complete and no
host view shows it. There are two exceptions, in which memory goes to another array at once, and its
ledger page orders the new array's work after the work in flight: scratch goes to the next scratch
array, and what an operation leaves behind to the results of later operations on the same stream.
The latter costs no barrier (see `allocate_result`), unless so much memory is in flight that one is
the lesser evil: a program that never waits must not take all memory. The pool keeps free memory for
reuse; `trim` returns chunks that are wholly unused to the driver, and an allocation that fails
trims and tries once more. With `clear`, the pool fills memory with zeros before handing it out: on
the host where the host can write it, else on the device, in stream order.

Lifetime: a chunk lives while any of its backings does, and longer if a NumPy array still shows its
bytes after the device is closed (see `Device.close`).
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.driver.protocol import Driver, Memory
from penstock.errors import OutOfMemory
from penstock.ledger.hazards import History, Lane, Region
from penstock.memory.backing import Backing, Chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

_ALIGN = 256  # every driver's binding alignment divides this
_FIRST_CHUNK = 1 << 20
_LARGEST_CHUNK = 64 << 20
_DEDICATED = 16 << 20  # a backing of at least this size gets its own driver allocation
_CLASSES = 4  # size classes per power of two
_EXAMINED = 4  # retired backings of a size that may be examined for a result
#: Bytes dropped in flight from which on a result takes memory that costs a barrier, or a wait of
#: its stream for another one.
_MUCH = 64 << 20
_TOO_MUCH = 256 << 20


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of device memory, as they are at the time of `dev.memory`; `allocations` is a count.

    - `reserved`: held from the driver; `used`, `pending` and `free` are its parts
    - `used`: held by live arrays, staging buffers and results
    - `pending`: dropped by their owner, but still used by work in flight
    - `free`: ready for reuse; `dev.trim()` returns unused blocks of it to the driver
    - `adopted`: the caller's own memory, used in place, and no part of `reserved`
    - `peak`: the most that was reserved so far, of each kind of memory, added up
    - `allocations`: how many allocations the driver has made so far
    """

    reserved: int
    used: int
    pending: int
    free: int
    adopted: int
    peak: int
    allocations: int


class Pool:
    """All memory of one kind. Every method is called under the device's lock."""

    def __init__(
        self,
        driver: Driver,
        *,
        host: bool,
        limit: int,
        catch_up: Callable[[], None],
        lanes: Callable[[], Iterable[Lane]],
        publish: Callable[[], dict[Lane, int]],
        leave: Callable[[Backing], None],
        clear: Callable[[Backing], None] | None = None,
    ) -> None:
        """`lanes` returns the lanes of the device's streams. `publish` makes all writes recorded on
        them host-visible, and returns by lane the value at which they are. Finalisers call `leave`
        with a backing that was dropped without having been retired.

        `clear` has the device fill a backing with zeros. If given, every backing is cleared before
        it is handed out.
        """
        self._driver = driver
        self._clear = clear
        self._catch_up = catch_up
        self._lanes = lanes
        self._publish = publish
        self.leave = leave
        self._host = host
        self._limit = limit
        self._chunks: list[Chunk] = []
        self._free: dict[int, list[Backing]] = {}
        # By size, oldest first: retired backings, and those of scratch.
        self._retired: dict[int, deque[Backing]] = {}
        self._handed_on: dict[int, deque[Backing]] = {}
        self._next_chunk = _FIRST_CHUNK
        self.reserved = self.used = self.pending = self.peak = self.allocations = 0

    def allocate(self, nbytes: int, *, for_device: bool = False) -> Backing:
        """Allocate a backing of at least `nbytes` bytes with an empty history.

        With `for_device`, writes by an earlier owner's kernels may still be unpublished: the host
        must not touch the memory before they are.
        """
        size = size_class(nbytes)
        backing = self._take_free(self._free.get(size), for_device)
        if backing is None:
            self.reap()
            backing = self._take_free(self._free.get(size) or self._free_of(size), for_device)
        if backing is None:
            backing = self._cut(size, nbytes)
        if self._clear is not None:
            try:
                self._wipe(backing)
            except BaseException:
                self._free.setdefault(backing.nbytes, []).append(backing)
                raise
        backing.chunk.live += 1
        self.used += backing.nbytes
        backing.counted = True
        return backing

    def allocate_scratch(self, nbytes: int) -> Backing:
        """Allocate a backing that work in flight may still use; its history says which work.

        An idle backing is preferred, because work on it needs no ordering.
        """
        size = size_class(nbytes)
        backing = None if self._free.get(size) else self._take_handed_on(size)
        return self.allocate(nbytes, for_device=True) if backing is None else self._reused(backing)

    def allocate_result(self, nbytes: int, lane: Lane, *, others: bool = True) -> Backing:
        """Allocate a backing that work on `lane` is about to write, all of it.

        Work in flight on the lane may still use the memory: as its history says, the next command
        comes after it anyway, behind a barrier that is recorded already. Unlike memory that is
        idle, it is found without asking the driver. If much is in flight, `others` allows memory
        that work on other lanes uses, for which the lane then waits.
        """
        size = size_class(nbytes)
        backing = None if self._free.get(size) else self._take_in_flight(size, lane, others)
        return self.allocate(nbytes) if backing is None else self._reused(backing)

    def retire(self, backing: Backing) -> None:
        """Take a backing back. It is reused once its last use is complete; scratch, at once.

        Calling it again does nothing.
        """
        if backing.retired:
            return
        places = self._handed_on if backing.reused_in_flight else self._retired
        place = places.setdefault(backing.nbytes, deque())
        # Nothing is called before the last line, so no exception can leave this half done.
        backing.retired = True
        if not backing.counted:  # an exception interrupted its allocation
            backing.chunk.live += 1
            self.used += backing.nbytes
        self.used -= backing.nbytes
        self.pending += backing.nbytes
        place.append(backing)

    def reap(self) -> None:
        """Move retired backings that are no longer in use to the free lists."""
        self._catch_up()
        for places in (self._retired, self._handed_on):
            for size, retired in places.items():
                places[size] = self._still_in_use(retired)

    def points_of_dropped(self) -> dict[Lane, int]:
        """By lane: the value after which no work uses memory that its owner has given back."""
        points: dict[Lane, int] = {}
        for places in (self._retired, self._handed_on):
            for retired in places.values():
                for backing in retired:
                    for lane, value in backing.history.pending().items():
                        points[lane] = max(value, points.get(lane, 0))
        return points

    def trim(self) -> int:
        """Return wholly unused chunks to the driver; returns how many bytes that freed."""
        self.reap()
        empty = [chunk for chunk in self._chunks if not chunk.live]
        for chunk in empty:
            self._chunks.remove(chunk)
            for backing in (b for free in self._free.values() for b in free if b.chunk is chunk):
                backing.retired = True  # it must not return itself: its chunk goes
            self._free = {
                size: [b for b in backings if b.chunk is not chunk]
                for size, backings in self._free.items()
            }
            self.reserved -= chunk.memory.nbytes
            self._driver.free(chunk.memory)
        return sum(chunk.memory.nbytes for chunk in empty)

    def close(self) -> None:
        for chunk in self._chunks:
            self._driver.free(chunk.memory)
        self._chunks.clear()
        self.leave = deque[Backing](maxlen=0).append  # late backings have no pool to return to
        self._free.clear()

    def _reused(self, backing: Backing) -> Backing:
        """A backing that work in flight still uses, filled with zeros if the pool clears memory."""
        if self._clear is not None:
            try:
                self._clear(backing)  # ordered after that work
            except BaseException:
                self.retire(backing)
                raise
        return backing

    def _wipe(self, backing: Backing) -> None:
        """Fill an idle backing with zeros."""
        seen = backing.chunk.bytes
        if seen is None or backing.unpublished:
            assert self._clear is not None
            self._clear(backing)
            return
        lo, hi = backing.offset, backing.offset + backing.nbytes
        seen[lo:hi] = 0
        if not backing.memory.coherent:
            self._driver.flush(backing.memory, lo, hi)

    def _still_in_use(self, retired: deque[Backing]) -> deque[Backing]:
        """Release the retired backings that are idle; returns the others."""
        for backing in retired:
            if backing.idle and not backing.released:
                self._release(backing)
        return deque([backing for backing in retired if not backing.released])

    def _take_handed_on(self, size: int) -> Backing | None:
        """Take the oldest fitting backing that a scratch array left and no host view shows."""
        for fitting in _fitting(size):
            handed_on = self._handed_on.get(fitting, deque())
            for backing in handed_on:
                if not backing.holds:
                    # Nothing is called before `remove`, so no exception can leave this half done;
                    # if one strikes later, the backing is dropped and returns itself.
                    backing.retired = False
                    backing.owners = set()
                    self.pending -= backing.nbytes
                    self.used += backing.nbytes
                    handed_on.remove(backing)
                    return backing
        return None

    def _take_in_flight(self, size: int, lane: Lane, others: bool) -> Backing | None:
        """Take the memory of an array that was dropped, although work in flight may use it."""
        for fitting in _fitting(size):
            for backing in itertools.islice(self._retired.get(fitting, ()), _EXAMINED):
                if self._suits(backing, lane, others):
                    return self._hand_on(backing)
        return None

    def _suits(self, backing: Backing, lane: Lane, others: bool) -> bool:
        """Whether work on a lane may write the memory at a price that is worth it."""
        history = backing.history
        if backing.holds or history.device_only or type(history) is not History:
            return False
        barrier, others = self.pending > _MUCH, others and self.pending > _TOO_MUCH
        for access in (*history.reads, *history.writes):
            if access.pending:
                here = access.lane is lane
                if not here and not (others and not access.lane.is_host):
                    return False
                if here and not (barrier or access.epoch < lane.epoch):
                    return False
        return True

    def _hand_on(self, backing: Backing) -> Backing:
        """A backing of the same bytes, with what is in flight of the ledger page of the other."""
        fresh = Backing(backing.chunk, backing.offset, backing.nbytes)
        fresh.unpublished = dict(backing.unpublished)
        fresh.history.reads = [access for access in backing.history.reads if access.pending]
        fresh.history.writes = [access for access in backing.history.writes if access.pending]
        # Nothing is called before the last line, so no exception can leave this half done; if one
        # strikes later, the new backing is dropped and returns itself.
        backing.released = True
        self.pending -= backing.nbytes
        self.used += backing.nbytes
        fresh.counted = True
        fresh.pool = self
        self._retired[backing.nbytes].remove(backing)
        return fresh

    def _take_free(self, free: list[Backing] | None, for_device: bool) -> Backing | None:
        """Take one of these. For the host, only one without unpublished writes.

        Those with unpublished writes are published and retired; they are free again when the
        publishing is complete.
        """
        while free:
            if for_device or free[-1].is_published():
                return free.pop()
            backing, whole = free[-1], Region(0, free[-1].nbytes)
            for lane, value in self._publish().items():
                backing.history.note(whole, True, lane, value, "publishing")
            backing.unpublished = {}
            self.retire(free.pop())
        return None

    def _free_of(self, size: int) -> list[Backing] | None:
        """The free list of this size class, or of one a little larger if that avoids a chunk."""
        return next((free for fitting in _fitting(size) if (free := self._free.get(fitting))), None)

    def _release(self, backing: Backing) -> None:
        fresh = Backing(backing.chunk, backing.offset, backing.nbytes)
        fresh.unpublished = dict(backing.unpublished)
        if backing.history.device_only and backing.history.writes:
            fresh.unpublished |= {lane: lane.recorded for lane in self._lanes()}
        free = self._free.setdefault(backing.nbytes, [])
        # Nothing is called before the last line: no exception can put the bytes in the list twice.
        backing.released = True
        self.pending -= backing.nbytes
        backing.chunk.live -= 1
        fresh.pool = self
        free.append(fresh)

    def _cut(self, size: int, asked: int) -> Backing:
        chunk = self._chunk_with_room(size)
        if chunk is None:
            chunk = self._new_chunk(size, asked)
        cut = Backing(chunk, chunk.cut, size)
        # Nothing is called from here on. If the backing is dropped, it returns itself to the pool.
        chunk.cut += size
        cut.pool = self
        return cut

    def _chunk_with_room(self, size: int) -> Chunk | None:
        # Only the newest chunk is cut: what is left of older ones is small by construction.
        if size < _DEDICATED and self._chunks:
            chunk = self._chunks[-1]
            if chunk.memory.nbytes - chunk.cut >= size:
                return chunk
        return None

    def _new_chunk(self, size: int, asked: int) -> Chunk:
        nbytes = size if size >= _DEDICATED else max(size, self._next_chunk)
        try:
            memory = self._take(nbytes)
        except OutOfMemory:
            given = self.trim()
            try:
                memory = self._take(nbytes if given else size)
            except OutOfMemory as error:
                in_use = self.used + self.pending
                raise OutOfMemory(
                    f"asked for {asked:,} bytes of {'host' if self._host else 'device'} memory; "
                    f"{in_use:,} are in use ({self.pending:,} of them by work in flight), "
                    f"{self.reserved - in_use:,} of {self.reserved:,} reserved are free, and the "
                    f"device allows {self._limit:,} in one piece. Close arrays you no longer "
                    f"need, or synchronize and try again. ({error})"
                ) from None
        if size < _DEDICATED:
            self._next_chunk = min(2 * self._next_chunk, _LARGEST_CHUNK)
        chunk = Chunk(memory)
        # A dedicated chunk goes first, so that the one being cut stays last.
        self._chunks.insert(0 if size >= _DEDICATED else len(self._chunks), chunk)
        return chunk

    def _take(self, nbytes: int) -> Memory:
        if nbytes > self._limit:
            raise OutOfMemory(f"{nbytes:,} bytes are more than one allocation may have")
        memory = self._driver.allocate(nbytes, host=self._host)
        self.allocations += 1
        self.reserved += nbytes
        self.peak = max(self.peak, self.reserved)
        return memory


def stats_of(pools: Collection[Pool], adopted: int) -> MemoryStats:
    """Sum up the pools, and add how many bytes of the caller's own memory are adopted."""
    for pool in pools:
        pool.reap()
    reserved = sum(pool.reserved for pool in pools)
    used = sum(pool.used for pool in pools)
    pending = sum(pool.pending for pool in pools)
    return MemoryStats(
        reserved=reserved,
        used=used,
        pending=pending,
        free=reserved - used - pending,
        adopted=adopted,
        peak=sum(pool.peak for pool in pools),
        allocations=sum(pool.allocations for pool in pools),
    )


def size_class(nbytes: int) -> int:
    """The size that is allocated for `nbytes`: at most a quarter more, and at least `_ALIGN`."""
    if nbytes <= _ALIGN:
        return _ALIGN
    step = max(_ALIGN, (1 << (nbytes - 1).bit_length()) // (2 * _CLASSES))
    return -(-nbytes // step) * step


def _fitting(size: int) -> Iterator[int]:
    """A size class, and those above it, up to twice the size."""
    for _ in range(_CLASSES + 1):
        yield size
        size = size_class(size + 1)
