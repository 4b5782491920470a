"""Programs: operations over a few arrays and streams.

Arrays, streams and slots are numbers. A slot holds what an operation leaves for a later one: a
pending transfer, an event, or a held view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from penstock.conformance.kernels import KERNELS
from penstock.conformance.parts import Part as Part
from penstock.ledger.roles import Role

DTYPES = ("uint8", "int16", "uint32", "float32", "int64", "complex128")

#: How an array is made: allocated by the runtime, or in host memory that the device uses in place.
HOWS = (
    "zeros",
    "array",  # from host data
    "adopted",  # from host_empty
    "own",  # adopted, from memory that the device did not allocate
    "dlpack",  # adopted, through DLPack
    "again",  # adopted, from the last part of the previous array's memory, which is adopted already
    "file",  # read-only
)
IN_PLACE = ("adopted", "own", "dlpack", "again")


@dataclass(frozen=True)
class Declared:
    """An array: its size, how it is made, and its columns if it has two dimensions."""

    size: int
    how: str = "zeros"
    dtype: str = "uint32"
    columns: int = 0
    role: Role = "generic"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size // self.columns, self.columns) if self.columns else (self.size,)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize


# Transfers.


@dataclass(frozen=True)
class Write:
    """Write value, value + 1, ... from host memory, which may be `pinned` or strided (`spread`)."""

    to: Part
    value: int
    slot: int
    stream: int = 0
    borrow: bool = False
    pinned: bool = False
    spread: bool = False


@dataclass(frozen=True)
class Change:
    """The caller overwrites the source of a write; if borrowed, only once the write is done."""

    slot: int


@dataclass(frozen=True)
class Read:
    """Read asynchronously, with `out` into an array of the caller."""

    of: Part
    slot: int
    stream: int = 0
    out: bool = False


@dataclass(frozen=True)
class Collect:
    """Wait for a transfer; a read must have the value as of its place in the program."""

    slot: int


@dataclass(frozen=True)
class Numpy:
    """Read and wait."""

    of: Part


@dataclass(frozen=True)
class View:
    """Hold a view, perhaps through DLPack; where memory is not mapped, a copy."""

    of: Part
    slot: int
    mode: Literal["r", "w", "rw"] = "r"
    dlpack: bool = False


@dataclass(frozen=True)
class Touch:
    """Write value, value + 1, ... through a held writable view."""

    slot: int
    value: int


@dataclass(frozen=True)
class Drop:
    """Compare a view once more, then drop it."""

    slot: int


@dataclass(frozen=True)
class Fill:
    to: Part
    value: int
    stream: int = 0


@dataclass(frozen=True)
class Copy:
    """Copy on the device; with `across`, through arrays of another device."""

    source: Part
    target: Part
    stream: int = 0
    across: bool = False


@dataclass(frozen=True)
class Poke:
    """The host writes the memory behind an adopted array, while the device is idle."""

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
    again: int = 0  # if not 0: recorded this often into a graph, which is replayed as often


@dataclass(frozen=True)
class Ask:
    """Launch a kernel that returns the sum of what it reads; `Collect` reads the result."""

    of: Part
    slot: int
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
    """Close a stream, which waits for its work, and create another in its place."""

    stream: int = 1


@dataclass(frozen=True)
class BeginBatch:
    stream: int = 0


@dataclass(frozen=True)
class EndBatch:
    stream: int = 0


@dataclass(frozen=True)
class Renew:
    """Drop or close an array, and create another in its place."""

    array: int
    close: bool = False


@dataclass(frozen=True)
class Reset:
    """Reset an append-only array, so that it can be written from the start again."""

    array: int


@dataclass(frozen=True)
class Length:
    """Read the length of an append-only array: the rows written without a gap from the first."""

    array: int


@dataclass(frozen=True)
class Synchronize:
    """Wait for all work; an event recorded afterwards must be done at once."""


@dataclass(frozen=True)
class Misuse:
    """A call that must raise and change nothing; see `MISUSES`."""

    what: str
    of: Part
    stream: int = 0


Operation: TypeAlias = (
    Write | Change | Read | Collect | Numpy | View | Touch | Drop | Fill | Copy | Poke | Launch
    | Ask | Record | StreamWait | EventWait | EventDone | Flush | Reopen | BeginBatch | EndBatch
    | Renew | Reset | Length | Synchronize | Misuse
)  # fmt: skip

#: Operations that a closed device must refuse. Others may succeed with what the host has.
NEEDS_DEVICE = (Write, Read, Numpy, Fill, Copy, Launch, Ask)


@dataclass(frozen=True)
class Program:
    """Operations that take effect one after the other, whichever thread calls them.

    With `small`, the runtime's size thresholds are low enough for the arrays to reach all of them.
    `interrupted` has pairs of an operation's number and a number n: Ctrl-C arrives at point n of
    the operation, then, when the program retries it, at point 2n, and so on until it completes
    (`penstock.conformance.interrupts`). Only operations that may be repeated are interrupted. If
    `closed_at` is not 0, the device is closed before that operation; if there are several threads,
    by an additional one, at any time after the operation before it.
    """

    arrays: tuple[Declared, ...]
    streams: int
    operations: tuple[Operation, ...]
    name: str = ""
    about: str = field(default="", compare=False)
    small: bool = False
    threads: int = 1
    interrupted: tuple[tuple[int, int], ...] = ()
    closed_at: int = 0


def keeping(program: Program, kept: Iterable[int]) -> Program:
    """The program with only the operations of these numbers."""
    places = {number: place for place, number in enumerate(kept)}
    return replace(
        program,
        operations=tuple(program.operations[number] for number in places),
        closed_at=sum(number < program.closed_at for number in places),
        interrupted=tuple((places[n], every) for n, every in program.interrupted if n in places),
    )


def parts_of(operation: Operation) -> tuple[Part, ...]:
    """The parts that an operation names."""
    if isinstance(operation, Launch):
        return operation.parts
    values = (getattr(operation, each.name) for each in fields(operation))
    return tuple(value for value in values if isinstance(value, Part))


def with_parts(operation: Operation, change: Callable[[Part], Part]) -> Operation:
    """The same operation on other parts."""
    if isinstance(operation, Launch):
        return replace(operation, parts=tuple(map(change, operation.parts)))
    values = {each.name: getattr(operation, each.name) for each in fields(operation)}
    changed: Any = {n: change(value) for n, value in values.items() if isinstance(value, Part)}
    return replace(operation, **changed) if changed else operation


def accesses_of(operation: Operation) -> tuple[tuple[Part, bool], ...]:
    """The parts that the device or a transfer accesses, and whether it writes them."""
    match operation:
        case Write(to=to) | Fill(to=to):
            return ((to, True),)
        case Copy(source=source, target=target):
            return ((target, True), (source, False))
        case Ask(of=of):
            return ((of, False),)
        case Launch(kernel=kernel, parts=parts):
            writes = ("w" in access for _, access in KERNELS[kernel].arrays)
            return tuple(zip(parts, writes, strict=True))
        case _:
            return ()
