"""Host-visible memory that a launch owns while it is in flight: argument blocks and results.

A slot belongs to one launch. The host does not overwrite an argument slot before the launch that
reads it completes; a result slot stays with its launch until the result is read or dropped. Slots
are suballocated from memory that is kept: a launch allocates nothing once there are as many slots
as launches in flight.

The caller holds the device's lock, except for `ResultMemory.give_back`.
"""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import accelerator
from penstock.array.buffer import Buffer
from penstock.driver.protocol import PLACE
from penstock.launch.result import Result
from penstock.ledger.hazards import Lane, Region, Use

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.schedule.scheduler import Scheduler
    from penstock.shader.interface import Member

_FIRST = 16  # slots in a new ring or pool
_AT_ONCE = 4 << 20  # bytes of result slots allocated at once (at least one slot)
_LARGEST = 4 << 20  # bytes of an argument ring; beyond that a launch waits for an earlier one
_HELD = 1 << 62  # a value that no lane reaches
_ALIGN = 64  # bytes: a cache line, or the device's alignment if that is larger


class ArgumentRing:
    """Argument blocks of one kernel on one stream, used in turn.

    The stream owns the ring and drops it when the kernel is closed.
    """

    def __init__(self, scheduler: Scheduler, nbytes: int, what: str) -> None:
        self._scheduler = scheduler
        self._name = f"arguments of {what}"
        self.nbytes = nbytes
        self._stride = _stride(scheduler, nbytes)
        self._values: list[int] = []  # by slot: the lane value at which its last launch completes
        self._at = 0
        self._grow()

    def make_room(self, lane: Lane) -> None:
        """Block until the next slot is free, unless the ring can grow. Takes the device's lock."""
        value = self._values[self._at]
        can_grow = 2 * len(self._values) * self._stride <= max(_LARGEST, 2 * _FIRST * self._stride)
        if value > lane.complete and not can_grow:
            with self._scheduler.lock:
                lane.owner.poll()
            room = len(self._values) * self._stride
            full = f"every slot for {self._name} in flight, {room:,} bytes"
            self._scheduler.wait_for({lane: value}, None, full, path="bound")

    def put(self, block: bytes, lane: Lane) -> bytes:
        """Write a block into the next slot, possibly of new memory, and return its `PLACE`.

        Until `taken` is called, the next `put` overwrites the same slot.
        """
        values = self._values
        if values[self._at] > lane.complete:
            lane.owner.poll()
            if values[self._at] > lane.complete:
                self._grow()
        lo = self._offset + self._at * self._stride
        hi = lo + self.nbytes
        self._bytes[lo:hi] = block
        self._scheduler.flush(self._memory, lo, hi)
        return PLACE.pack(self._handle, lo, self.nbytes)

    def taken(self, value: int) -> None:
        """Assign the slot to the launch about to be recorded, which completes at this value."""
        self._values[self._at] = value
        self._at = (self._at + 1) % len(self._values)

    def _grow(self) -> None:
        scheduler = self._scheduler
        scheduler.drain()
        count = max(_FIRST, 2 * len(self._values))
        backing = scheduler.host_pool.allocate(count * self._stride)
        buffer = Buffer(scheduler, backing, backing.nbytes, self._name, pinned=True)
        raw = memoryview(backing.chunk.bytes)  # type: ignore[arg-type]
        use = (backing.history, Region(0, buffer.nbytes), False)
        # No calls from here on, so that an interrupt cannot leave the ring half in the old memory.
        # The pool reuses the old memory when the last launch that reads it completes.
        self._buffer = buffer
        self._memory: Any = backing.memory
        self._offset = backing.offset
        self._bytes = raw
        self._handle: int = backing.memory.handle
        #: The access that a launch notes in the ledger, which keeps the memory alive. It covers the
        #: whole ring: slots never conflict, and the ledger is fastest with a repeated access.
        self.use = use
        self._values = [0] * count
        self._at = 0


@accelerator.share
class ResultMemory:
    """The slot into which one launch writes its result."""

    __slots__ = (
        "_buffer",
        "_bytes",
        "_content",
        "_lane",
        "_pool",
        "_value",
        "coherent",
        "home",
        "memory",
        "offset",
        "place",
        "use",
    )

    def __init__(self, pool: ResultPool, buffer: Buffer, use: Use, lo: int) -> None:
        backing = buffer.backing
        raw: Any = backing.chunk.bytes
        self._pool = pool
        self._buffer = buffer  # kept alive by its slots
        self.home = pool.free  # the free list that it returns to
        self._lane: Lane | None = None
        self._value = 0  # of the last launch
        self.memory = backing.memory
        self.coherent = bool(backing.memory.coherent)
        self.offset = backing.offset + lo
        self.place = PLACE.pack(backing.memory.handle, self.offset, pool.nbytes)
        self.use = use
        self._bytes = memoryview(raw)[self.offset : self.offset + pool.nbytes]
        self._content = [
            np.ndarray(m.shape, m.dtype, raw, self.offset + m.offset, m.strides)
            for m in pool.members
        ]

    @property
    def buffer(self) -> Buffer:
        return self._buffer

    @property
    def scheduler(self) -> Scheduler:
        return self._pool.scheduler

    @property
    def members(self) -> tuple[Member, ...]:
        return self._pool.members

    @property
    def fold(self) -> Callable[..., Array] | None:
        return self._pool.fold

    def hold(self) -> None:
        """Let device work read the slot: order it behind the launch, and keep the slot from reuse.

        Until now the ledger knew the launch as a reader of all slots, because slots never conflict.
        The caller calls `taken` when that work is recorded.
        """
        lane, lo = self._lane, self.offset - self._buffer.backing.offset
        if lane is not None and self._value > lane.complete:
            region = Region(lo, lo + self._pool.nbytes)
            self.use[0].note(region, True, lane, self._value, self._buffer.name)
        self._value = _HELD

    @property
    def in_flight(self) -> bool:
        """Whether a launch may still write it, or device work read it."""
        lane = self._lane
        if lane is None or self._value <= lane.complete:
            return False
        lane.owner.poll()
        return self._value > lane.complete

    def taken(self, lane: Lane, value: int) -> None:
        """Assign the slot to the launch about to be recorded, which completes at this value."""
        self._lane = lane
        self._value = value

    def result(self, what: str) -> Result:
        """Zero the slot and return the `Result` of the next launch that writes it."""
        pool = self._pool
        self._bytes[:] = pool.zeros
        if not self.memory.coherent:
            pool.scheduler.flush(self.memory, self.offset, self.offset + pool.nbytes)
        return Result(pool.scheduler, what, self)

    def read(self) -> Any:
        """Read the result of a launch that has completed."""
        pool = self._pool
        if not self.memory.coherent:
            pool.scheduler.invalidate(self.memory, self.offset, self.offset + pool.nbytes)
        if pool.convert is not None:
            return pool.convert(*self._content)
        values = [each[()] if each.shape == () else each.copy() for each in self._content]
        return values[0] if len(values) == 1 else pool.make(values)

    def give_back(self) -> None:
        """Return the slot: its result was read or dropped. Safe in any thread, at any time."""
        if not self._pool.closed:
            self.home.append(self)


@accelerator.share
class ResultPool:
    """The result slots of one kernel. A slot with an unread result outlives the kernel."""

    __slots__ = (
        "_count", "_name", "_stride", "closed", "convert", "fold", "free", "instead", "make",
        "members", "nbytes", "one_number", "scheduler", "zeros",
    )  # fmt: skip

    def __init__(
        self, scheduler: Scheduler, members: tuple[Member, ...], nbytes: int, what: str
    ) -> None:
        self.scheduler = scheduler
        self.members = members
        self.nbytes = nbytes
        self.zeros = bytes(nbytes)
        self.make = _maker(members)
        #: Whether the value is a single number, for the native step.
        self.one_number = len(members) == 1 and members[0].shape == ()
        #: Makes the value that users get from the parts of the result, in place.
        self.convert: Callable[..., Any] | None = None
        #: Makes the same on the device, as an array, from arrays of the parts.
        self.fold: Callable[..., Array] | None = None
        #: The call that gives the value as an array, for an error message; "" if there is none.
        self.instead = ""
        self.free: deque[ResultMemory] = deque()
        self._name = f"results of {what}"
        self._stride = _stride(scheduler, nbytes)
        self._count = _FIRST
        self.closed = False

    def close(self) -> None:
        """Drop all free slots. Slots of unread results go with their results."""
        self.closed = True
        self.free.clear()

    def take(self) -> ResultMemory:
        """Take a slot that no launch in flight and no unread result uses."""
        # The slot returned last first: a launch with the same bindings as the last one costs less.
        # Taken out before it is tested: meanwhile `give_back` may append one that is in flight.
        free = self.free
        if free and self._is_idle(slot := free.pop()):
            return slot
        for _ in range(len(free)):
            if self._is_idle(slot := free.popleft()):
                return slot
        self._grow()
        return free.popleft()

    def _is_idle(self, slot: ResultMemory) -> bool:
        """Whether a slot that was taken out can be used; else, or after an error, it is put back.

        A slot that was dropped unread may be in flight while that of another stream is done.
        """
        busy = True
        try:
            busy = slot.in_flight
        finally:
            if busy:
                self.free.append(slot)
        return not busy

    def new(self, what: str) -> Result:
        """A `Result` that is not launched yet; dropped, it returns its slot."""
        return self.take().result(what)

    def _grow(self) -> None:
        scheduler = self.scheduler
        scheduler.drain()
        count = max(1, min(self._count, _AT_ONCE // self._stride))
        backing = scheduler.host_pool.allocate(count * self._stride)
        buffer = Buffer(scheduler, backing, backing.nbytes, self._name, pinned=True)
        use = (backing.history, Region(0, buffer.nbytes), False)  # see `ArgumentRing.use`
        starts = range(0, count * self._stride, self._stride)
        self.free.extendleft(ResultMemory(self, buffer, use, lo) for lo in starts)
        self._count *= 2


def _stride(scheduler: Scheduler, nbytes: int) -> int:
    """The distance of slots in bytes: a multiple of a cache line and of the binding alignment."""
    needed: Any = scheduler.driver.info.limits["binding_alignment"]
    step: int = max(_ALIGN, needed)
    return -(-nbytes // step) * step


def _maker(members: tuple[Member, ...]) -> Callable[[list[Any]], Any]:
    """A function that makes a named tuple of the parts of a result."""
    names = [member.name.replace(".", "_") for member in members]
    made: Any = namedtuple("Result", names, rename=True)  # type: ignore[misc]
    return lambda values: made(*values)
