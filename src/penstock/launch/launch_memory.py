"""Small pieces of host memory that launches own: large argument blocks, and results.

A slot belongs to one launch. The host does not write an argument slot again before the launch that
reads it is done; a result slot additionally stays with its launch until the result is read or
dropped. Slots are taken from memory that stays, so that a launch allocates nothing once there are
as many slots as launches in flight.

All calls are made under the device's lock, but for `ResultMemory.give_back`.
"""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.buffer import Buffer
from penstock.launch.result import Result
from penstock.ledger.hazards import Lane, Region, Use

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler
    from penstock.shader.spirv import Member

_FIRST = 16  # slots
_AT_ONCE = 4 << 20  # bytes of result slots that are allocated together, if they are more than one
_LARGEST = 4 << 20  # bytes in one argument ring, from which on a launch waits for an earlier one
_ALIGN = 64  # a cache line; and the device's own alignment, if that is more


class ArgumentRing:
    """Blocks of arguments of one kernel on one stream, used in turn.

    The stream keeps it, for as long as there is the kernel.
    """

    def __init__(self, scheduler: Scheduler, nbytes: int, what: str) -> None:
        self._scheduler = scheduler
        self._name = f"arguments of {what}"
        self.nbytes = nbytes
        self._stride = _stride(scheduler, nbytes)
        self._values: list[int] = []  # by slot: when its last launch is done
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

    def put(self, block: bytes, lane: Lane) -> int:
        """Write the next block, for a launch on the stream's lane; where it is.

        The next call puts its block there, too, unless `taken` is called in between.
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
        return lo

    def taken(self, value: int) -> None:
        """The launch about to be recorded reads the block, and will be done at this value."""
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
        # No call from here on, so that no exception leaves a part of it in the old memory. That
        # goes back when the last work that uses it is done.
        self._buffer = buffer
        self._memory: Any = backing.memory
        self._offset = backing.offset
        self._bytes = raw
        self.handle: int = backing.memory.handle
        #: What a launch notes in the ledger, so that the memory outlives it. Not which slot: that
        #: is nobody else's, and the same use again costs least.
        self.use = use
        self._values = [0] * count
        self._at = 0


class ResultMemory:
    """Where one launch puts its result."""

    __slots__ = (
        "_buffer",
        "_bytes",
        "_content",
        "_lane",
        "_slots",
        "_value",
        "handle",
        "home",
        "memory",
        "offset",
        "use",
    )

    def __init__(self, slots: ResultPool, buffer: Buffer, use: Use, lo: int) -> None:
        backing = buffer.backing
        raw: Any = backing.chunk.bytes
        self._slots = slots
        self._buffer = buffer  # lives as long as any slot in it
        self.home = slots.free  # where it goes when nobody wants the result any more
        self._lane: Lane | None = None
        self._value = 0  # of the last launch
        self.memory = backing.memory
        self.handle: int = backing.memory.handle
        self.offset = backing.offset + lo
        self.use = use
        self._bytes = memoryview(raw)[self.offset : self.offset + slots.nbytes]
        self._content = [
            np.ndarray(m.shape, m.dtype, raw, self.offset + m.offset, m.strides)
            for m in slots.members
        ]

    @property
    def in_flight(self) -> bool:
        """Whether a launch may still write it."""
        lane = self._lane
        if lane is None or self._value <= lane.complete:
            return False
        lane.owner.poll()
        return self._value > lane.complete

    def taken(self, lane: Lane, value: int) -> None:
        """The launch about to be recorded writes the slot, and will be done at this value."""
        self._lane = lane
        self._value = value

    def result(self, what: str) -> Result:
        """The result of the next launch. What that does not write is 0, not what was there."""
        slots = self._slots
        self._bytes[:] = slots.zeros
        slots.scheduler.flush(self.memory, self.offset, self.offset + slots.nbytes)
        return Result(slots.scheduler, what, self)

    def read(self) -> Any:
        """The result of a launch that is done."""
        slots = self._slots
        slots.scheduler.invalidate(self.memory, self.offset, self.offset + slots.nbytes)
        values = [each[()] if each.shape == () else each.copy() for each in self._content]
        value = values[0] if len(values) == 1 else slots.make(values)
        return value if slots.convert is None else slots.convert(value)

    def give_back(self) -> None:
        """Nobody wants the result any more. May be called in any thread, at any time."""
        if not self._slots.closed:
            self.home.append(self)


class ResultPool:
    """The result slots of one kernel. Those of unread results outlive it."""

    def __init__(
        self, scheduler: Scheduler, members: tuple[Member, ...], nbytes: int, what: str
    ) -> None:
        self.scheduler = scheduler
        self.members = members
        self.nbytes = nbytes
        self.zeros = bytes(nbytes)
        self.make = _maker(members)
        self.convert: Callable[[Any], Any] | None = None  # what the kernel wrote to what it means
        self.free: deque[ResultMemory] = deque()
        self._name = f"results of {what}"
        self._stride = _stride(scheduler, nbytes)
        self._count = _FIRST
        self.closed = False

    def close(self) -> None:
        """No slot is wanted any more, but for the results that are not read yet."""
        self.closed = True
        self.free.clear()

    def take(self) -> ResultMemory:
        """A slot that no launch in flight and no unread result uses."""
        # The last one given back first: a launch that is bound like the last one costs less.
        free = self.free
        if free and not free[-1].in_flight:
            return free.pop()
        for _ in range(len(free)):
            slot = free.popleft()
            if not slot.in_flight:
                return slot
            free.append(slot)  # its result was dropped unread; on another stream one may be done
        self._grow()
        return free.popleft()

    def new(self, what: str) -> Result:
        """A result that waits for nothing yet: dropped, it gives its slot back."""
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
    """The distance of slots: whole cache lines, and what the device wants bindings to start at."""
    needed: Any = scheduler.driver.info.limits["binding_alignment"]
    step: int = max(_ALIGN, needed)
    return -(-nbytes // step) * step


def _maker(members: tuple[Member, ...]) -> Callable[[list[Any]], Any]:
    """Makes a named tuple of the parts of a result."""
    names = [member.name.replace(".", "_") for member in members]
    made: Any = namedtuple("Result", names, rename=True)  # type: ignore[misc]
    return lambda values: made(*values)
