"""Computes what a program must do: runs its operations one after another on NumPy arrays.

The oracle also decides what a program may do. An operation that breaks the caller's side of the
contract, such as changing borrowed memory too early, is `Invalid`; generator and shrinker leave
those out. An operation that the runtime must refuse `Raises`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.conformance import program as op
from penstock.conformance.kernels import KERNELS
from penstock.conformance.parts import Part, Raises
from penstock.conformance.program import (
    IN_PLACE,
    Declared,
    Operation,
    Program,
    accesses_of,
    parts_of,
)
from penstock.conformance.scripting import MISUSES

Host = npt.NDArray[Any]


class Invalid(Exception):
    """The operation breaks the caller's side of the contract, or makes no sense."""


@dataclass
class Transfer:
    """A read or write that may still be pending."""

    value: Host | None  # of a read
    borrowed: bool
    changed: bool = False
    collected: bool = False


@dataclass
class Shown:
    """A held view: the bytes it shows, and the values that its holder must see."""

    place: Host
    value: Host
    writable: bool
    array: int
    current: bool = True  # the array still has these bytes, not a fresh backing


#: Operations that issue no work to the device.
_OF_THE_HOST = (
    op.Poke, op.Numpy, op.View, op.Touch, op.Drop, op.Collect, op.Change, op.Reset, op.Length,
)  # fmt: skip

_REPEATABLE = (
    op.Write, op.Fill, op.Read, op.Numpy, op.View, op.Ask, op.Collect, op.Record,
    op.EventWait, op.Flush, op.Synchronize,
)  # fmt: skip


class Oracle:
    """The state of a program.

    `mapped` is False where views are copies. Slices for kernels start at multiples of `alignment`
    4-byte words. Both depend on the device. `threads` is how many threads make the calls.
    """

    def __init__(
        self,
        arrays: Sequence[Declared],
        streams: int,
        *,
        mapped: bool = True,
        alignment: int = 4,
        threads: int = 1,
    ) -> None:
        self.declared = arrays
        self.streams = streams
        self.mapped = mapped
        self.threads = threads
        self.alignment = 4 * alignment
        self.arrays: list[Host] = []
        self._memories: list[Host] = []  # that arrays were adopted from, or the arrays themselves
        for number in range(len(arrays)):
            self.arrays.append(self._initial(number))
            self._memories.append(self._memory(number))
        # For append-only arrays: all bits set where they are written.
        self.written = [np.zeros_like(each) for each in self.arrays]
        self._in_rows = [True] * len(arrays)  # only whole rows were appended
        self.left: dict[int, list[Host]] = {}  # the memory of arrays that were renewed
        self.transfers: dict[int, Transfer] = {}
        self.events: dict[int, frozenset[int]] = {}  # by event, the transfers before it
        self.views: dict[int, Shown] = {}
        self.batches: set[int] = set()
        self.device_only = False  # the device is idle
        self._before: list[frozenset[int]] = [frozenset()] * streams  # transfers on each stream

    def step(self, operation: Operation) -> Host | None:
        """Do one operation; return the value that the program sees, if any."""
        self._check(operation)
        self._check_errors(operation)
        if not isinstance(operation, _OF_THE_HOST):
            self.device_only = isinstance(operation, op.Synchronize)
        self._make_way(operation)
        self._mark(operation)
        match operation:
            case op.Write(to=part, value=value):
                self.at(part)[...] = numbers(value, self.at(part))
                self._started(operation.slot, operation.stream, None, operation.borrow)
            case op.Poke(to=part, value=value) | op.Fill(to=part, value=value):
                self.at(part)[...] = fitting(value, self.at(part))
            case op.Read():
                seen = self.at(operation.of).copy()
                self._started(operation.slot, operation.stream, seen, False)
            case op.Copy(source=source, target=target):
                self.at(target)[...] = self.at(source).copy()
            case op.Launch(kernel=kernel, parts=parts):
                arrays = [self.at(part).reshape(-1) for part in parts]
                for _ in range(max(1, operation.again**2)):
                    KERNELS[kernel].apply(*arrays, np.uint32(operation.value))
            case op.Ask(of=part, slot=slot, stream=stream):
                total = np.array(self.at(part).sum(dtype=np.uint32), np.uint32)
                self._started(slot, stream, total, False)
            case op.Collect(slot=slot):
                self.transfers[slot].collected = True
                return self.transfers[slot].value
            case op.Change(slot=slot):
                self.transfers[slot].changed = True
            case op.Numpy(of=part):
                return self.at(part).copy()
            case op.View(of=part, slot=slot, mode=mode):
                place = self.at(part)
                self.views[slot] = Shown(place, place.copy(), mode != "r", part.array)
                return self.views[slot].value
            case op.Touch(slot=slot, value=value):
                shown = self.views[slot]
                shown.value = numbers(value, shown.place)
                if self.mapped or shown.current:
                    shown.place[...] = shown.value
            case op.Drop(slot=slot):
                return self.views.pop(slot).value
            case op.Record(slot=slot, stream=stream):
                self.events[slot] = self._before[stream]
            case op.StreamWait(slot=slot, stream=stream):
                self._before[stream] |= self.events[slot]
            case op.BeginBatch(stream=stream):
                self.batches.add(stream)
            case op.EndBatch(stream=stream):
                self.batches.discard(stream)
            case op.Renew(array=array):
                if self.declared[array].how == "own":
                    self.left.setdefault(array, []).append(self.arrays[array])
                if not self.mapped:  # a copy cannot be written back to an array that is gone
                    for view in self.views.values():
                        view.current &= view.array != array
                self.arrays[array] = self._initial(array)
                self._memories[array] = self._memory(array)
                self._unmark(array)
            case op.Reset(array=array):
                self._unmark(array)
            case op.Length(array=array):
                return np.array(self.complete_rows(array))
            case _:
                pass  # the others change no values
        return None

    def may_repeat(self, operation: Operation) -> bool:
        """Whether the operation is idempotent."""
        if any(self.declared[part.array].role == "append" for part in parts_of(operation)):
            return False
        match operation:
            case op.Launch(kernel=kernel, again=again):
                return not again and all(access != "rw" for _, access in KERNELS[kernel].arrays)
            case op.Copy(source=source, target=target):
                return not np.may_share_memory(self.at(source), self.at(target))
            case _:
                return isinstance(operation, _REPEATABLE)

    def at(self, part: Part) -> Host:
        """The oracle's bytes of a part."""
        return part.on_host(self.arrays[part.array])

    def _initial(self, number: int) -> Host:
        declared = self.declared[number]
        if declared.how == "again":
            before = self.declared[number - 1] if number else declared
            if before.how not in ("adopted", "own") or before.dtype != declared.dtype:
                _refuse("no memory to adopt again")
            if before.columns or declared.columns or before.size < declared.size:
                _refuse("memory of another shape")
            return self.arrays[number - 1][-declared.size :]
        return initial(number, declared)

    def _memory(self, number: int) -> Host:
        again = self.declared[number].how == "again"
        return self._memories[number - 1] if again else self.arrays[number]

    def _started(self, slot: int, stream: int, value: Host | None, borrowed: bool) -> None:
        self.transfers[slot] = Transfer(value, borrowed)
        self._before[stream] |= {slot}

    # What must raise.

    def _check_errors(self, operation: Operation) -> None:
        """Raise the error that the call must raise; checks in the order in which calls do."""
        for part in parts_of(operation):
            self.at(part)
        match operation:
            case op.Misuse(what=what):
                raise Raises(MISUSES[what][0])
            case op.View(of=part) if self.declared[part.array].role == "scratch":
                raise Raises(ps.RoleViolation)
            case op.View(of=part, mode=mode) if self.mapped:
                self._refuse_for_threads(part)
                self._check_view(part, mode)
            case op.Numpy(of=part):
                self._refuse_for_threads(part)
            case op.Copy(source=source, target=target):
                if self.at(source).dtype != self.at(target).dtype:
                    raise Raises(ps.DtypeMismatch)
                if self.at(source).shape != self.at(target).shape:
                    raise Raises(ps.ShapeMismatch)
            case _:
                pass
        accesses = accesses_of(operation)
        self._check_role(operation)
        if isinstance(operation, op.Read) and any(v.writable for v in self._shown_at(operation.of)):
            raise Raises(ps.ViewHeld)
        if not isinstance(operation, op.Launch | op.Ask):
            for part, write in accesses:
                self._check_read_only(part, write)
        for part, write in accesses:
            if isinstance(operation, op.Launch | op.Ask):
                place = self.at(part)
                if place.dtype != np.uint32:
                    raise Raises(ps.DtypeMismatch)
                if not place.flags.c_contiguous:
                    raise Raises(ps.ShapeMismatch)
                self._check_read_only(part, write)
            replayed = isinstance(operation, op.Launch) and operation.again > 0
            if replayed and write and self._shown_at(part):
                raise Raises(ps.ViewHeld)  # a graph keeps the memory it was encoded with
            on_device = isinstance(operation, op.Launch | op.Copy | op.Ask)
            if on_device and self.threads > 1 and any(v.writable for v in self._shown_at(part)):
                _refuse("raises in the thread that holds the view, but waits in others")
            self._check_held(part, write)

    def _refuse_for_threads(self, part: Part) -> None:
        if self.threads > 1 and any(view.writable for view in self._shown_at(part)):
            _refuse("only the thread that holds a writable view may read its bytes")

    def _check_view(self, part: Part, mode: str) -> None:
        if mode != "r":
            self._check_read_only(part, True)
            if self._shown_at(part):
                raise Raises(ps.ViewHeld)
        if any(stride < 0 for stride in self.at(part).strides):
            raise Raises(ps.Unsupported)

    def _check_read_only(self, part: Part, write: bool) -> None:
        if write and self.declared[part.array].how == "file":
            raise Raises(ps.ReadOnly)
        if write and self.declared[part.array].role == "weight":
            raise Raises(ps.RoleViolation)
        if write and part.on_host(self.written[part.array]).any():
            raise Raises(ps.RoleViolation)

    def _check_role(self, operation: Operation) -> None:
        """Rule 9, as far as it depends on the kind of operation."""
        for part in parts_of(operation):
            role = self.declared[part.array].role
            match operation:
                case op.Numpy() | op.Read() if role == "scratch":
                    raise Raises(ps.RoleViolation)
                case op.Write() | op.Fill() if role == "output":
                    raise Raises(ps.RoleViolation)
                case _:
                    pass

    def _check_held(self, part: Part, write: bool) -> None:
        """Rule 6: a write under a view goes to a fresh backing if possible, and is refused else."""
        shown = self._shown_at(part)
        if any(view.writable for view in shown):
            raise Raises(ps.ViewHeld)
        if not write or not shown:
            return
        if self.declared[part.array].how in IN_PLACE or any(
            view.writable for view in self._current_views(part.array)
        ):
            raise Raises(ps.ViewHeld)

    def _shown_at(self, part: Part) -> list[Shown]:
        """The views that share bytes with a part."""
        found = []
        place = self.at(part)
        for view in self.views.values() if self.mapped else ():
            if view.current and np.may_share_memory(view.place, place):
                if not np.shares_memory(view.place, place):
                    _refuse("bytes between those of a view, which it may or may not keep")
                found.append(view)
        return found

    def _current_views(self, array: int) -> list[Shown]:
        return [
            view
            for view in self.views.values()
            if view.current and np.may_share_memory(view.place, self.arrays[array])
        ]

    def _mark(self, operation: Operation) -> None:
        """Mark what an operation writes to append-only arrays as written."""
        for part, write in accesses_of(operation):
            declared = self.declared[part.array]
            if write and declared.role == "append":
                place = part.on_host(self.written[part.array])
                place[...] = np.array(-1).astype(place.dtype)
                self._in_rows[part.array] &= part.across is None

    def _unmark(self, array: int) -> None:
        self.written[array][...] = 0
        self._in_rows[array] = True

    def complete_rows(self, array: int) -> int:
        """Return how many rows of an append-only array are written without a gap from the first."""
        rows: Host = np.all(self.written[array].reshape(len(self.arrays[array]), -1), axis=1)
        return len(rows) if rows.all() else int(rows.argmin())

    def _make_way(self, operation: Operation) -> None:
        """A write under a view moves the array to a fresh backing; views keep the old bytes."""
        for part, write in accesses_of(operation):
            if write and self._shown_at(part):
                for view in self._current_views(part.array):
                    view.current = False

    # What is invalid.

    def _check(self, operation: Operation) -> None:
        for part in parts_of(operation):
            if not _fits(part, self.declared[part.array]):
                _refuse("a slice outside its array")
        if getattr(operation, "stream", 0) >= self.streams:
            _refuse("no such stream")
        for part in parts_of(operation):
            self._refuse_for_role(operation, part)
        match operation:
            case op.Launch(parts=parts, again=again):
                self._check_launch(parts, accesses_of(operation))
                if again and self.threads > 1:
                    _refuse("one thread at a time may record")
            case op.Copy(across=True):
                if any(self.declared[part.array].role != "generic" for part in parts_of(operation)):
                    _refuse("a copy through the host, to which other role rules apply")
                if (self.mapped and self.views) or self.threads > 1:
                    _refuse("a copy through the host, which views block differently")
            case op.Ask(of=part):
                self._check_launch((part,), accesses_of(operation))
            case op.Misuse(of=part):
                self._check_exists(part)
            case op.Poke(to=part):
                self._check_exists(part)
                if self.declared[part.array].how not in IN_PLACE or self._shown_at(part):
                    _refuse("not the program's own memory")
                if not self.device_only:
                    _refuse("the device may still use the memory")
            case op.View(of=part):
                place = self.at(part)
                if not place.size:
                    _refuse("a view of nothing")
                if any(s < 0 and n == 1 for s, n in zip(place.strides, place.shape, strict=True)):
                    _refuse("one element, reversed")
            case op.Touch(slot=slot):
                self._check_touch(slot)
            case op.Change(slot=slot):
                write = self.transfers.get(slot)
                if write is None or write.value is not None or write.changed:
                    _refuse("no such write")
                if write.borrowed and not write.collected:
                    _refuse("borrowed memory of a write that may not be done")
            case op.Collect(slot=slot):
                if slot not in self.transfers or self.transfers[slot].collected:
                    _refuse("no such transfer")
            case op.Drop(slot=slot):
                if slot not in self.views:
                    _refuse("no such view")
            case op.StreamWait(slot=slot) | op.EventWait(slot=slot) | op.EventDone(slot=slot):
                if slot not in self.events:
                    _refuse("no such event")
            case op.BeginBatch(stream=stream):
                if stream in self.batches:
                    _refuse("a batch is open")
            case op.EndBatch(stream=stream):
                if stream not in self.batches:
                    _refuse("no batch is open")
            case op.Reset(array=array) | op.Length(array=array):
                if self.declared[array].role != "append":
                    _refuse("not an append-only array")
                if isinstance(operation, op.Length) and not self._in_rows[array]:
                    _refuse("the length differs when columns are appended")
            case op.Reopen(stream=stream):
                if stream == 0 or stream in self.batches:
                    _refuse("the default stream, or one with an open batch")
            case _:
                pass

    def _refuse_for_role(self, operation: Operation, part: Part) -> None:
        role = self.declared[part.array].role
        if role == "generic":
            return
        if isinstance(operation, op.Misuse):
            _refuse("a call that is wrong in two ways")
        if isinstance(operation, op.View) and operation.mode != "r":
            _refuse("where memory is not mapped, another call would raise")
        if role == "append" and any(
            part == each for each, write in accesses_of(operation) if write
        ):
            self._check_append(operation, part)
        if not self.mapped:
            return
        if role == "output" and any(view.array == part.array for view in self.views.values()):
            _refuse("an output written while a view shows it does not keep the rest")

    def _check_append(self, operation: Operation, part: Part) -> None:
        plain = part.step == 1 and (part.across is None or part.across[2] == 1)
        if not plain or part.way not in ("", "flat", "words"):
            _refuse("whether it overlaps with what is written is not known exactly")
        if 0 in part.lengths(self.declared[part.array].shape):
            _refuse("nothing is appended")
        if isinstance(operation, op.Launch) and operation.again:
            _refuse("a graph that appends could be replayed once")

    def _check_launch(
        self, parts: tuple[Part, ...], accesses: tuple[tuple[Part, bool], ...]
    ) -> None:
        places = [self.at(part) for part in parts]
        for number, (place, (_, write)) in enumerate(zip(places, accesses, strict=True)):
            others = (other for n, other in enumerate(places) if n != number)
            if write and any(np.may_share_memory(place, other) for other in others):
                _refuse("a kernel whose arrays overlap")
            if not place.size or place.size != places[0].size:
                _refuse("arrays of nothing, or of different sizes")
            memory = self._memories[parts[number].array]
            if (_address(place) - _address(memory)) % self.alignment:
                _refuse("a slice that kernels do not take")

    def _check_exists(self, part: Part) -> None:
        try:
            self.at(part)
        except Raises:
            _refuse("a part that does not exist")

    def _check_touch(self, slot: int) -> None:
        if slot not in self.views or not self.views[slot].writable:
            _refuse("no such view")
        place = self.views[slot].place
        others = [view for number, view in self.views.items() if number != slot and view.current]
        if self.mapped and any(np.may_share_memory(view.place, place) for view in others):
            _refuse("another view shows the bytes, too")


def _fits(part: Part, declared: Declared) -> bool:
    inside = 0 <= part.lo <= part.hi <= declared.shape[0]
    if part.across is None:
        return inside
    lo, hi, _ = part.across
    return inside and bool(declared.columns) and 0 <= lo <= hi <= declared.columns


def _address(place: Host) -> int:
    address: int = place.__array_interface__["data"][0]
    return address


def initial(number: int, declared: Declared) -> Host:
    """The initial values of an array."""
    zeros = np.zeros(declared.shape, declared.dtype)
    return zeros if declared.how == "zeros" else numbers(100_000 * (number + 1), zeros)


def numbers(first: int, like: Host | ps.Array) -> Host:
    """Return first, first + 1, ... in the shape and dtype of `like`."""
    return np.arange(first, first + like.size).astype(like.dtype).reshape(like.shape)


def fitting(value: int, like: Host | ps.Array) -> int:
    """Return the value, reduced if it does not fit the dtype."""
    return value % 101 if like.itemsize == 1 else value


def is_valid(program: Program, alignment: int = 4) -> bool:
    try:
        oracle = Oracle(
            program.arrays, program.streams, alignment=alignment, threads=program.threads
        )
        interrupted = {number for number, _ in program.interrupted}
        if interrupted and program.threads > 1:
            _refuse("an interrupt comes to the main thread alone")
        if interrupted and program.closed_at:
            _refuse("both interrupted and closed")
        for number, operation in enumerate(program.operations):
            try:
                if number in interrupted and not oracle.may_repeat(operation):
                    _refuse("an operation that may not be done twice")
                oracle.step(operation)
            except Raises:
                continue
    except Invalid:
        return False
    return True


def _refuse(why: str) -> NoReturn:
    raise Invalid(why)
