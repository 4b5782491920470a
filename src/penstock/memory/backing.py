"""Pieces of device memory, and what the runtime knows of each: owners, views, accesses.

A `Backing` is a part of a `Chunk`, which is one allocation of the driver. `Owner` and `Hold` are
weak references that report the end of a buffer, and of a NumPy array, over a backing.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import accelerator
from penstock.driver.protocol import Memory
from penstock.ledger.hazards import History, Lane, Region

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.memory.pool import Pool


class Chunk:
    """One driver allocation, how far it is cut into backings, and how many of those are live."""

    __slots__ = ("bytes", "cut", "live", "memory")

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.bytes: npt.NDArray[np.uint8] | None = None
        if memory.address is not None:
            self.bytes = np.asarray(_HostBytes(memory.address, memory.nbytes))
        self.cut = 0
        self.live = 0


class Shown(NamedTuple):
    """Bytes of a backing that a live NumPy array shows."""

    region: Region
    #: For a writable view: the thread that made it, and the lane and value of its release.
    thread: int = 0
    release: tuple[Lane, int] | None = None

    @property
    def writable(self) -> bool:
        return self.release is not None

    @property
    def own(self) -> bool:
        return is_own(self.thread)


def is_own(thread: int) -> bool:
    """Whether the calling thread is responsible for a writable view that `thread` made.

    True for the calling thread's own views, and for views of threads that have ended: such a
    thread can no longer drop its view.
    """
    return thread == threading.get_ident() or thread not in sys._current_frames()


class Hold(weakref.ref[Any]):
    """Represents a NumPy array that shows the bytes of a backing, and all arrays derived from it.

    It is a weak reference to the root of these arrays, so the runtime notices when the last of
    them is gone even if an exception interrupts its finaliser, which Python does not report.
    """

    __slots__ = ("backing", "shown", "written")

    backing: Backing
    shown: Shown | None  # the bytes that the device must not disturb meanwhile
    written: Callable[[], None] | None  # flushes what the host wrote through it, if need be


class Owner(weakref.ref[Any]):
    """Represents one buffer over a backing, until the buffer gives the backing back.

    It is a weak reference, which reports the end of the buffer as a `Hold` does that of a view.
    If the garbage collector collects both together, the reference reports nothing; then the
    backing's own `__del__` does.
    """

    __slots__ = ("backing",)

    backing: Backing


@accelerator.share
class Backing:
    """A suballocation of device memory with its ledger page.

    A backing that is garbage-collected without having been retired returns itself to its pool. That
    happens when an exception strikes before its owner has it, or when its owner is collected too.
    """

    __slots__ = (
        "chunk", "counted", "history", "holds", "host_reads", "host_writes", "kept", "memory",
        "nbytes", "offset", "owners", "pool", "released", "retired", "reused_in_flight",
        "unpublished", "views",
    )  # fmt: skip

    def __init__(self, chunk: Chunk, offset: int, nbytes: int) -> None:
        self.pool: Pool | None = None  # the pool it returns itself to
        self.kept: Any = None  # what owns the memory, if it is the caller's
        self.chunk = chunk
        self.memory: Any = chunk.memory
        #: Whether the host can write the memory by a plain copy, and read it quickly by one.
        self.host_writes = bool(self.memory.coherent and self.memory.address is not None)
        self.host_reads = bool(self.host_writes and self.memory.cached)
        self.offset = offset
        self.nbytes = nbytes
        self.owners: set[Owner] = set()  # buffers over it; only adopted memory ever has several
        self.counted = False  # whether `Pool.used` includes it
        self.retired = False  # whether its owner gave it back to the pool
        self.released = False  # whether a fresh backing has replaced it in the free list
        self.reused_in_flight = False  # whether a scratch array may take it while in flight
        self.holds: set[Hold] = set()  # live NumPy arrays that show these bytes
        self.views: list[Shown] = []  # the bytes of `holds` that the device must not disturb
        self.history = History()
        #: By lane: the value by which all possibly unpublished writes for earlier owners were made.
        self.unpublished: dict[Lane, int] = {}

    def __del__(self) -> None:
        if self.pool is not None and not self.retired:
            self.pool.leave(self)

    @property
    def mapped(self) -> bool:
        return self.memory.address is not None

    def is_published(self) -> bool:
        """Whether all device writes made here for earlier owners are host-visible.

        If not, the device's caches may still write them back, over what the host writes.
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
        """The host views not known to be gone that show any byte of `region`."""
        return [view for view in self.views if view.region.overlaps(region)]

    @property
    def idle(self) -> bool:
        """Whether no host view and no work known to be in flight uses it."""
        return not (self.holds or self.history.in_flight)


def adopted_backing(memory: Memory, offset: int, nbytes: int, kept: Any) -> Backing:
    """A backing over memory that belongs to no pool; it keeps the owner of the memory alive."""
    made = Backing(Chunk(memory), offset, nbytes)
    made.kept = kept
    return made


class _HostBytes:
    """Lets NumPy see raw memory. Its owner keeps the memory alive."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }
