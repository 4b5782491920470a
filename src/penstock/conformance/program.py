"""Programs: operations over a few small arrays and streams, and a generator of random ones.

Arrays, streams and slots are numbers. A slot names what an operation leaves behind for a later
one: a transfer on its way, an event, a held view.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from penstock.conformance.kernels import KERNELS


@dataclass(frozen=True)
class Declared:
    """An array: how many elements of uint32, and how it is made."""

    size: int
    how: str = "zeros"  # "zeros", "array" (from host data), "adopted" (from host_empty)


@dataclass(frozen=True)
class Part:
    """A slice of an array."""

    array: int
    lo: int
    hi: int
    step: int = 1

    @property
    def index(self) -> slice:
        return slice(self.lo, self.hi, self.step)

    @property
    def size(self) -> int:
        return len(range(self.lo, self.hi, self.step))

    def overlaps(self, other: Part) -> bool:
        return self.array == other.array and self.lo < other.hi and other.lo < self.hi


# Transfers.


@dataclass(frozen=True)
class Write:
    """Write value, value + 1, ... from host memory, which may be pinned."""

    to: Part
    value: int
    slot: int
    stream: int = 0
    borrow: bool = False
    pinned: bool = False


@dataclass(frozen=True)
class Change:
    """The caller overwrites the source of a write: at once, or if borrowed, when it is done."""

    slot: int


@dataclass(frozen=True)
class Read:
    """Read asynchronously, maybe into an array of the caller."""

    of: Part
    slot: int
    stream: int = 0
    out: bool = False


@dataclass(frozen=True)
class Collect:
    """Wait for a transfer; the value of a read must be that of its place in the program."""

    slot: int


@dataclass(frozen=True)
class Numpy:
    """Read and wait."""

    of: Part


@dataclass(frozen=True)
class View:
    """Hold a read-only view."""

    of: Part
    slot: int


@dataclass(frozen=True)
class Drop:
    """Look at a view once more, then drop it."""

    slot: int


@dataclass(frozen=True)
class Fill:
    to: Part
    value: int
    stream: int = 0


@dataclass(frozen=True)
class Copy:
    source: Part
    target: Part
    stream: int = 0


@dataclass(frozen=True)
class Poke:
    """With all work done, the program writes the memory that it lent to an adopted array."""

    to: Part
    value: int


# Work.


@dataclass(frozen=True)
class Launch:
    kernel: str
    parts: tuple[Part, ...]
    value: int = 0
    stream: int = 0
    slow: bool = False


@dataclass(frozen=True)
class Record:
    slot: int
    stream: int = 0


@dataclass(frozen=True)
class StreamWait:
    slot: int
    stream: int = 0


@dataclass(frozen=True)
class EventWait:
    """Wait for an event on the host; the transfers before it must then be done."""

    slot: int


@dataclass(frozen=True)
class EventDone:
    """Ask whether an event is done; if so, the transfers before it must be."""

    slot: int


@dataclass(frozen=True)
class Flush:
    stream: int = 0


@dataclass(frozen=True)
class Reopen:
    """Close a stream, which waits for its work, and make another in its place."""

    stream: int = 1


@dataclass(frozen=True)
class BeginBatch:
    stream: int = 0


@dataclass(frozen=True)
class EndBatch:
    stream: int = 0


@dataclass(frozen=True)
class Renew:
    """Drop an array, or close it, and make another in its place."""

    array: int
    close: bool = False


@dataclass(frozen=True)
class Synchronize:
    """Wait for everything; an event recorded then is done at once."""


Operation: TypeAlias = (
    Write | Change | Read | Collect | Numpy | View | Drop | Fill | Copy | Poke | Launch | Record
    | StreamWait | EventWait | EventDone | Flush | Reopen | BeginBatch | EndBatch | Renew
    | Synchronize
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    arrays: tuple[Declared, ...]
    streams: int
    operations: tuple[Operation, ...]
    name: str = ""
    about: str = field(default="", compare=False)


def parts_of(operation: Operation) -> tuple[Part, ...]:
    """The slices that an operation touches."""
    if isinstance(operation, Launch):
        return operation.parts
    values = (getattr(operation, each.name) for each in fields(operation))
    return tuple(value for value in values if isinstance(value, Part))


def with_parts(operation: Operation, change: Callable[[Part], Part]) -> Operation:
    """The same operation on other slices."""
    if isinstance(operation, Launch):
        return replace(operation, parts=tuple(map(change, operation.parts)))
    values = {each.name: getattr(operation, each.name) for each in fields(operation)}
    changed: Any = {n: change(value) for n, value in values.items() if isinstance(value, Part)}
    return replace(operation, **changed) if changed else operation


def written_by(operation: Operation) -> tuple[Part, ...]:
    """The slices that an operation writes."""
    match operation:
        case Write(to=to) | Fill(to=to) | Copy(target=to):
            return (to,)
        case Launch(kernel=kernel, parts=parts):
            accesses = [access for _, access in KERNELS[kernel].arrays]
            return tuple(p for p, access in zip(parts, accesses, strict=True) if "w" in access)
        case _:
            return ()


def generate(seed: int, size: int = 20, alignment: int = 4) -> Program:
    """A random program of `size` operations; kernels get slices at multiples of `alignment`."""
    from penstock.conformance.oracle import Invalid, Oracle

    choose = _Chooser(random.Random(seed), alignment)
    oracle = Oracle(choose.arrays, choose.streams)
    operations: list[Operation] = []
    while len(operations) < size:
        operation = choose.operation()
        try:
            oracle.step(operation)
        except Invalid:
            continue
        operations.append(operation)
        choose.note(operation)
    return Program(choose.arrays, choose.streams, tuple(operations), f"seed {seed}")


class _Chooser:
    """Picks operations; few arrays and overlapping slices make conflicts likely."""

    def __init__(self, chance: random.Random, alignment: int) -> None:
        self.chance = chance
        self.alignment = alignment
        hows = ("zeros", "array", "array", "adopted")
        self.arrays = tuple(
            Declared(chance.choice((16, 32, 64, 256)), chance.choice(hows))
            for _ in range(chance.choice((1, 2, 2, 3)))
        )
        self.streams = chance.choice((1, 2, 2, 3))
        self.slow = chance.random() < 0.5
        self.slots: dict[str, list[int]] = {"transfer": [], "event": [], "view": []}
        self.count = 0
        self.last: Operation | None = None

    def note(self, operation: Operation) -> None:
        """Remember what later operations may refer to."""
        self.count += 1
        self.last = operation
        kinds = {Write: "transfer", Read: "transfer", Record: "event", View: "view"}
        kind = kinds.get(type(operation))
        if kind is not None:
            self.slots[kind].append(self.count - 1)

    def operation(self) -> Operation:
        return self._follow_up() or self.chance.choices(*_WEIGHED)[0](self)

    def _follow_up(self) -> Operation | None:
        """What makes the last operation count, and would hardly come next by chance."""
        match self.last:
            case StreamWait(stream=stream) if self.chance.random() < 0.4:
                return Record(self.count, stream)
            case Record(slot=slot) if self.chance.random() < 0.4:
                return self.chance.choice((EventWait, EventDone))(slot)
            case Synchronize() if self.chance.random() < 0.7:
                return Poke(self.part(), self.value)
            case Write(slot=slot, borrow=False) if self.chance.random() < 0.4:
                return Change(slot)
            case _:
                return None

    @property
    def value(self) -> int:
        return 1000 * (self.count + 1)

    @property
    def stream(self) -> int:
        return self.chance.randrange(self.streams)

    def slot(self, kind: str) -> int:
        """One of the last few of a kind; a number that fits none if there is none."""
        return self.chance.choice(self.slots[kind][-4:] or [-1])

    def part(self, size: int | None = None, aligned: bool = False) -> Part:
        chance = self.chance
        array = chance.randrange(len(self.arrays))
        whole = self.arrays[array].size
        grain = self.alignment if aligned else 1
        if size is None and (whole < grain or chance.random() < 0.4):
            return Part(array, 0, whole)
        step = 1 if aligned or size is not None else chance.choice((1, 1, 1, 1, 2, 3))
        if size is not None:
            lo = chance.randrange(0, max(1, whole - size + 1))
            lo -= lo % grain
            return Part(array, lo, lo + size, step)
        lo, hi = sorted(chance.sample(range(whole // grain + 1), 2))
        return Part(array, lo * grain, hi * grain, step)

    def write(self) -> Operation:
        borrow, pinned = self.chance.random() < 0.4, self.chance.random() < 0.3
        return Write(self.part(), self.value, self.count, self.stream, borrow, pinned)

    def read(self) -> Operation:
        return Read(self.part(), self.count, self.stream, self.chance.random() < 0.3)

    def copy(self) -> Operation:
        target = self.part()
        return Copy(self.part(target.size), target, self.stream)

    def launch(self) -> Operation:
        kernel = self.chance.choice(list(KERNELS))
        first = self.part(aligned=True)
        rest = (self.part(first.size, aligned=True) for _ in KERNELS[kernel].arrays[1:])
        slow = self.slow and self.chance.random() < 0.4
        return Launch(kernel, (first, *rest), self.value, self.stream, slow)


_WEIGHTS: dict[Callable[[_Chooser], Operation], float] = {
    _Chooser.launch: 7,
    _Chooser.write: 5,
    _Chooser.read: 3,
    _Chooser.copy: 3,
    lambda c: Fill(c.part(), c.value, c.stream): 2,
    lambda c: Numpy(c.part()): 1,
    lambda c: Change(c.slot("transfer")): 1,
    lambda c: Collect(c.slot("transfer")): 2,
    lambda c: View(c.part(), c.count): 1,
    lambda c: Drop(c.slot("view")): 1,
    lambda c: Record(c.count, c.stream): 1.5,
    lambda c: StreamWait(c.slot("event"), c.stream): 1,
    lambda c: EventWait(c.slot("event")): 0.7,
    lambda c: EventDone(c.slot("event")): 0.7,
    lambda c: Flush(c.stream): 1,
    lambda c: Reopen(c.stream): 1,
    lambda c: BeginBatch(c.stream): 0.6,
    lambda c: EndBatch(c.stream): 0.8,
    lambda c: Renew(c.chance.randrange(len(c.arrays)), c.chance.random() < 0.5): 0.7,
    lambda c: Synchronize(): 0.6,
}
_WEIGHED = (list(_WEIGHTS), list(_WEIGHTS.values()))
