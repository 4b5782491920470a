"""Device memory in pieces: few driver allocations, size-classed free lists, safe reuse.

A `Pool` takes chunks from the driver and cuts them into `Backing`s. A backing that nobody wants
any more is *retired*: it returns to its free list only when its last use is complete and no host
view shows it. Scratch is the exception: its memory may go to the next scratch array at once, with
its ledger page, so that what the new array is used for comes after what is in flight. Nothing is
given back to the driver while it may be wanted again; `trim` gives back what is wholly unused, and
an allocation that fails trims and tries once more. With `clear`, memory is filled with zeros before
it is handed out: by the host where that can, else by the device, in stream order.

Lifetime: a chunk lives while any of its backings does, and longer if a NumPy array still shows its
bytes after the device is closed (see `Device.close`).
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.driver.protocol import Driver, Memory
from penstock.errors import OutOfMemory
from penstock.ledger.hazards import History, Lane, Region

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

_ALIGN = 256  # every driver's binding alignment divides this
_FIRST_CHUNK = 1 << 20
_LARGEST_CHUNK = 64 << 20
_DEDICATED = 16 << 20  # from here on a backing gets an allocation of its own
_CLASSES = 4  # size classes to the doubling


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of device memory, from `dev.memory`."""

    reserved: int  #: held from the driver
    used: int  #: in arrays, staging and results that are alive
    pending: int  #: dropped, but still in use by work in flight
    free: int  #: ready for reuse
    adopted: int  #: of the caller's own memory, used in place
    peak: int  #: the most that was ever reserved
    allocations: int  #: how many allocations the driver has made in all


class Chunk:
    """One allocation of the driver's, and how much of it is taken."""

    __slots__ = ("bytes", "cut", "live", "memory")

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.bytes = None if memory.address is None else _host_bytes(memory.address, memory.nbytes)
        self.cut = 0
        self.live = 0


class Shown(NamedTuple):
    """Bytes of a backing that a live NumPy array shows."""

    region: Region
    #: For a writable view: the thread that holds it, and the point at which it lets go.
    thread: int = 0
    release: tuple[Lane, int] | None = None

    @property
    def writable(self) -> bool:
        return self.release is not None

    @property
    def own(self) -> bool:
        return is_own(self.thread)


def is_own(thread: int) -> bool:
    """Whether a writable view that this thread made counts as the calling thread's.

    A view whose thread has ended counts, too: no other thread is known that could drop it.
    """
    return thread == threading.get_ident() or thread not in sys._current_frames()


class Hold(weakref.ref[Any]):
    """Stands for one NumPy array, and all made from it, that shows the bytes of a backing.

    It refers weakly to the root of these arrays. So the end of the last of them is heard of even if
    an exception comes in the middle of its finaliser, of which Python then tells no one.
    """

    __slots__ = ("backing", "shown", "written")

    backing: Backing
    shown: Shown | None  # what the device has to respect of it
    written: Callable[[], None] | None  # makes what was written through it count


class Owner(weakref.ref[Any]):
    """Stands for one buffer over a backing, until it gives that back.

    It refers weakly to the buffer, whose end is heard of as that of a view is. (But not if the
    garbage collector takes the two together: then the backing is dropped, and tells so itself.)
    """

    __slots__ = ("backing",)

    backing: Backing


class Backing:
    """A piece of device memory with its ledger page.

    One that is dropped without having been retired, because an exception came between taking it
    and handing it to its owner, or with its owner, goes back to its pool by itself.
    """

    __slots__ = (
        "chunk", "counted", "history", "holds", "memory", "nbytes", "offset", "owners", "pool",
        "released", "retired", "reused_in_flight", "unpublished", "views",
    )  # fmt: skip

    def __init__(self, chunk: Chunk, offset: int, nbytes: int) -> None:
        self.pool: Pool | None = None  # where it goes if it is dropped
        self.chunk = chunk
        self.memory: Any = chunk.memory
        self.offset = offset
        self.nbytes = nbytes
        self.owners: set[Owner] = set()  # buffers over it; only adopted memory ever has several
        self.counted = False  # whether it is part of what the pool says is used
        self.retired = False  # whether its owner gave it back to the pool
        self.released = False  # whether another backing stands for its bytes in the free list
        self.reused_in_flight = False  # whether a scratch array may take it while it is in use
        self.holds: set[Hold] = set()  # NumPy arrays, alive somewhere, that show these bytes
        self.views: list[Shown] = []  # what the device must respect of them
        self.history = History()
        #: By which points all device writes for earlier owners that may be unpublished were made.
        self.unpublished: dict[Lane, int] = {}

    def __del__(self) -> None:
        if self.pool is not None and not self.retired:
            self.pool.leave(self)

    @property
    def mapped(self) -> bool:
        return self.memory.address is not None

    def is_published(self) -> bool:
        """Whether the host sees all that the device wrote here for earlier owners.

        Otherwise the device's caches may still write it back, over what the host writes.
        """
        if self.unpublished:
            self.unpublished = {
                lane: value
                for lane, value in self.unpublished.items()
                if not value <= lane.owner.published <= lane.complete
            }
        return not self.unpublished

    @property
    def hidden(self) -> bool:
        """Whether the host may not touch these bytes until device writes are published."""
        return self.history.device_only or not self.is_published()

    def views_of(self, region: Region) -> list[Shown]:
        """The host views, alive as far as is known, that show any of these bytes."""
        return [view for view in self.views if view.region.overlaps(region)]

    @property
    def idle(self) -> bool:
        """Whether nothing on the device or host uses it, as far as is known."""
        return not self.holds and not self.history.pending()


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
        """`lanes` are those of the device's streams; `publish` makes all that was recorded on them
        host-visible, and returns when that is so. `leave` takes a message from a finaliser: a
        backing that was dropped without having been retired.

        `clear` has the device fill a backing with zeros; with it none is handed out as it is.
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
        self._retired: deque[Backing] = deque()
        self._handed_on: dict[int, deque[Backing]] = {}  # retired too, by size, the oldest first
        self._next_chunk = _FIRST_CHUNK
        self.reserved = self.used = self.pending = self.peak = self.allocations = 0

    def allocate(self, nbytes: int, *, for_device: bool = False) -> Backing:
        """A backing of at least `nbytes` bytes with an empty history.

        If it is `for_device` alone, what an earlier owner's kernels wrote may be unpublished.
        """
        size = size_class(nbytes)
        backing = self._take_free(self._free.get(size), for_device)
        if backing is None:
            self.reap()
            backing = self._take_free(self._free_of(size), for_device)
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
        """A backing that work in flight may still use: its history says which.

        What is idle is better, since nothing has to be ordered then.
        """
        size = size_class(nbytes)
        backing = None if self._free.get(size) else self._take_handed_on(size)
        if backing is None:
            return self.allocate(nbytes, for_device=True)
        if self._clear is not None:
            try:
                self._clear(backing)  # behind the work that still uses it
            except BaseException:
                self.retire(backing)
                raise
        return backing

    def retire(self, backing: Backing) -> None:
        """Take a backing back; it is reused once its last use is complete, or handed on.

        May be called again.
        """
        if backing.retired:
            return
        place = self._retired
        if backing.reused_in_flight:
            place = self._handed_on.setdefault(backing.nbytes, deque())
        # No call from here on but the last: an exception must not leave a part of it.
        backing.retired = True
        if not backing.counted:  # an exception came while it was taken
            backing.chunk.live += 1
            self.used += backing.nbytes
        self.used -= backing.nbytes
        self.pending += backing.nbytes
        place.append(backing)

    def reap(self) -> None:
        """Move what is no longer in use to the free lists."""
        self._catch_up()
        self._retired = self._still_in_use(self._retired)
        for size, handed_on in self._handed_on.items():
            self._handed_on[size] = self._still_in_use(handed_on)

    def trim(self) -> int:
        """Give wholly unused chunks back to the driver; the bytes given back."""
        self.reap()
        empty = [chunk for chunk in self._chunks if not chunk.live]
        for chunk in empty:
            self._chunks.remove(chunk)
            for backing in (b for free in self._free.values() for b in free if b.chunk is chunk):
                backing.retired = True  # it goes with its chunk
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
        self.leave = deque[Backing](maxlen=0).append  # there is no pool left to go back to
        self._free.clear()

    def _wipe(self, backing: Backing) -> None:
        """Leave nothing in idle memory of what was there before."""
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
        """Those of the retired that are; the others are free."""
        for backing in retired:
            if backing.idle and not backing.released:
                self._release(backing)
        return deque(backing for backing in retired if not backing.released)

    def _take_handed_on(self, size: int) -> Backing | None:
        """The oldest that scratch arrays left, unless a host view still shows it."""
        for fitting in _fitting(size):
            handed_on = self._handed_on.get(fitting, deque())
            for backing in handed_on:
                if not backing.holds:
                    # No call from here on but the last, and dropped it is handed on again.
                    backing.retired = False
                    backing.owners = set()
                    self.pending -= backing.nbytes
                    self.used += backing.nbytes
                    handed_on.remove(backing)
                    return backing
        return None

    def _take_free(self, free: list[Backing] | None, for_device: bool) -> Backing | None:
        """One of these; for the host, those with unpublished writes are published before."""
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
        """Free backings of this class, or of one a little larger: better than a new chunk."""
        return next((free for fitting in _fitting(size) if (free := self._free.get(fitting))), None)

    def _release(self, backing: Backing) -> None:
        fresh = Backing(backing.chunk, backing.offset, backing.nbytes)
        fresh.unpublished = dict(backing.unpublished)
        if backing.history.device_only and backing.history.writes:
            fresh.unpublished |= {lane: lane.recorded for lane in self._lanes()}
        free = self._free.setdefault(backing.nbytes, [])
        # No call from here on but the last: the bytes are given out once, whatever comes.
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
        # No call from here on: dropped, it goes to the pool.
        chunk.cut += size
        cut.pool = self
        return cut

    def _chunk_with_room(self, size: int) -> Chunk | None:
        # Only the newest chunk is cut from: the rests of older ones are small by construction.
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
    """What pools have, and how much of the caller's own memory is used beside them."""
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
    """The size that is really set aside: at most a quarter more than asked for."""
    if nbytes <= _ALIGN:
        return _ALIGN
    step = max(_ALIGN, (1 << (nbytes - 1).bit_length()) // (2 * _CLASSES))
    return -(-nbytes // step) * step


def _fitting(size: int) -> Iterator[int]:
    """A size class, and those above it up to twice as large."""
    for _ in range(_CLASSES + 1):
        yield size
        size = size_class(size + 1)


def adopted_backing(memory: Memory, offset: int, nbytes: int) -> Backing:
    """A backing over memory that belongs to no pool."""
    return Backing(Chunk(memory), offset, nbytes)


class _HostBytes:
    """Lets NumPy see raw memory. Its owner keeps the memory alive."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }


def _host_bytes(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    return np.asarray(_HostBytes(address, nbytes))
