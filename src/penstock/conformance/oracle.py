"""What a program must do: its operations one after another on plain NumPy arrays.

The oracle also says what a program may ask at all. An operation that users must not make, such as
changing borrowed memory too early, is `Invalid`; generator and shrinker leave those out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.conformance.kernels import KERNELS
from penstock.conformance.program import (
    BeginBatch,
    Change,
    Collect,
    Copy,
    Declared,
    Drop,
    EndBatch,
    EventDone,
    EventWait,
    Fill,
    Flush,
    Launch,
    Numpy,
    Operation,
    Part,
    Poke,
    Program,
    Read,
    Record,
    Renew,
    Reopen,
    StreamWait,
    Synchronize,
    View,
    Write,
    parts_of,
    written_by,
)

Host = npt.NDArray[Any]


class Invalid(Exception):
    """The program asks for something that the contract does not allow, or that makes no sense."""


@dataclass
class Transfer:
    """A read or write that may still be on its way."""

    value: Host | None  # of a read
    borrowed: bool
    changed: bool = False
    collected: bool = False


class Oracle:
    """The state of a program."""

    def __init__(self, arrays: Sequence[Declared], streams: int) -> None:
        self.declared = arrays
        self.streams = streams
        self.arrays = [initial(number, each) for number, each in enumerate(arrays)]
        self.transfers: dict[int, Transfer] = {}
        self.events: dict[int, frozenset[int]] = {}  # the transfers that each covers
        self.views: dict[int, tuple[Part, Host]] = {}
        self.stale: set[int] = set()  # views whose array was renewed
        self.batches: set[int] = set()
        self.quiet = False  # all work is done
        self._before: list[frozenset[int]] = [frozenset()] * streams  # transfers on each stream

    def step(self, operation: Operation) -> Host | None:
        """Do one operation; what the program then sees, if it sees something."""
        self._check(operation)
        if not isinstance(operation, Poke | Numpy | View | Drop | Collect | Change):
            self.quiet = isinstance(operation, Synchronize)
        match operation:
            case Write():
                part = operation.to
                self._at(part)[:] = source_of(operation)
                self._started(operation.slot, operation.stream, None, operation.borrow)
            case Poke(to=part, value=value) | Fill(to=part, value=value):
                self._at(part)[:] = value
            case Read():
                seen = self._at(operation.of).copy()
                self._started(operation.slot, operation.stream, seen, False)
            case Copy(source=source, target=target):
                self._at(target)[:] = self._at(source).copy()
            case Launch(kernel=kernel, parts=parts):
                KERNELS[kernel].apply(*map(self._at, parts), np.uint32(operation.value))
            case Collect(slot=slot):
                self.transfers[slot].collected = True
                return self.transfers[slot].value
            case Change(slot=slot):
                self.transfers[slot].changed = True
            case Numpy(of=part):
                return self._at(part).copy()
            case View(of=part, slot=slot):
                self.views[slot] = (part, self._at(part).copy())
                return self.views[slot][1]
            case Drop(slot=slot):
                self.stale.discard(slot)
                return self.views.pop(slot)[1]
            case Record(slot=slot, stream=stream):
                self.events[slot] = self._before[stream]
            case StreamWait(slot=slot, stream=stream):
                self._before[stream] |= self.events[slot]
            case BeginBatch(stream=stream):
                self.batches.add(stream)
            case EndBatch(stream=stream):
                self.batches.discard(stream)
            case Renew(array=array):
                self.stale |= {s for s, (part, _) in self.views.items() if part.array == array}
                self.arrays[array] = initial(array, self.declared[array])
            case EventWait() | EventDone() | Flush() | Reopen() | Synchronize():
                pass
        return None

    def _at(self, part: Part) -> Host:
        return self.arrays[part.array][part.index]

    def _started(self, slot: int, stream: int, value: Host | None, borrowed: bool) -> None:
        self.transfers[slot] = Transfer(value, borrowed)
        self._before[stream] |= {slot}

    def _check(self, operation: Operation) -> None:
        for part in parts_of(operation):
            if not 0 <= part.lo < part.hi <= self.declared[part.array].size:
                _refuse("a slice outside its array")
        if getattr(operation, "stream", 0) >= self.streams:
            _refuse("no such stream")
        sizes = {part.size for part in parts_of(operation)}
        if len(sizes) > 1:
            _refuse("slices of different sizes")
        for written in written_by(operation):
            if self._is_shown(written):
                _refuse("a held view of adopted memory keeps it from being written")
        match operation:
            case Launch():
                self._check_launch(operation)
            case Poke(to=part):
                if self.declared[part.array].how != "adopted" or self._is_shown(part):
                    _refuse("not the program's own memory")
                if not self.quiet:
                    _refuse("the device may still use the memory")
            case Change(slot=slot):
                write = self.transfers.get(slot)
                if write is None or write.value is not None or write.changed:
                    _refuse("no such write")
                if write.borrowed and not write.collected:
                    _refuse("borrowed memory of a write that may not be done")
            case Collect(slot=slot):
                if slot not in self.transfers or self.transfers[slot].collected:
                    _refuse("no such transfer")
            case Drop(slot=slot):
                if slot not in self.views:
                    _refuse("no such view")
            case StreamWait(slot=slot) | EventWait(slot=slot) | EventDone(slot=slot):
                if slot not in self.events:
                    _refuse("no such event")
            case BeginBatch(stream=stream):
                if stream in self.batches:
                    _refuse("a batch is open")
            case EndBatch(stream=stream):
                if stream not in self.batches:
                    _refuse("no batch is open")
            case Reopen(stream=stream):
                if stream == 0 or stream in self.batches:
                    _refuse("the default stream, or one with an open batch")
            case _:
                pass

    def _check_launch(self, launch: Launch) -> None:
        for written in written_by(launch):
            if sum(part.overlaps(written) for part in launch.parts) > 1:
                _refuse("a kernel whose arrays overlap")
        if any(part.step != 1 or part.lo % 4 for part in launch.parts):
            _refuse("a slice that kernels do not take")

    def _is_shown(self, written: Part) -> bool:
        """Whether a view keeps adopted memory, which cannot be replaced, from being written."""
        return self.declared[written.array].how == "adopted" and any(
            part.overlaps(written)
            for slot, (part, _) in self.views.items()
            if slot not in self.stale
        )


def initial(number: int, declared: Declared) -> Host:
    """What an array holds at first."""
    if declared.how == "zeros":
        return np.zeros(declared.size, np.uint32)
    return np.arange(declared.size, dtype=np.uint32) + np.uint32(100_000 * (number + 1))


def source_of(write: Write) -> Host:
    """What a write puts into its array."""
    return np.arange(write.value, write.value + write.to.size, dtype=np.uint32)


def is_valid(program: Program) -> bool:
    oracle = Oracle(program.arrays, program.streams)
    try:
        for operation in program.operations:
            oracle.step(operation)
    except Invalid:
        return False
    return True


def _refuse(why: str) -> NoReturn:
    raise Invalid(why)
