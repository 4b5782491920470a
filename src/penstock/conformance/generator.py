"""Random programs: few arrays and overlapping slices, so that conflicting accesses are likely."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

from penstock.conformance import program as op
from penstock.conformance.kernels import KERNELS
from penstock.conformance.oracle import Invalid, Oracle
from penstock.conformance.parts import Part, Raises
from penstock.conformance.program import DTYPES, Declared, Operation, Program, accesses_of
from penstock.conformance.scripting import MISUSES
from penstock.ledger.roles import Role

_ERRORS = 0.3  # the share of operations that raise that are kept
_LIFETIMES_EVERY = 5  # one program in this many comes from `_LifetimeChooser`
_INTERRUPTED = 0.18  # the share of programs of one thread that are interrupted
_POINTS = (7, 150)  # the distance between the points at which an operation is interrupted
_CLOSED = 1 / 40  # the share of programs whose device is closed in the middle
_ACROSS = 0.3  # the share of copies across devices; about half of those are valid
_LARGE = 300_000  # elements: more than a megabyte


def generate(seed: int, size: int = 20, alignment: int = 4) -> Program:
    """Return a random program of `size` operations.

    Slices for kernels start at multiples of `alignment` 4-byte words.
    """
    chance = random.Random(seed)
    lifetimes = seed % _LIFETIMES_EVERY == _LIFETIMES_EVERY - 1
    choose = (_LifetimeChooser if lifetimes else _Chooser)(chance, alignment)
    oracle = Oracle(choose.arrays, choose.streams, alignment=alignment, threads=choose.threads)
    choose.oracle = oracle
    operations: list[Operation] = []
    repeatable: list[int] = []
    while len(operations) < size:
        operation = choose.operation()
        try:
            oracle.step(operation)
        except Invalid:
            continue
        except Raises:
            if not isinstance(operation, op.Misuse) and chance.random() > _ERRORS:
                continue
            choose.note(None)
        else:
            choose.note(operation)
            if oracle.may_repeat(operation):
                repeatable.append(len(operations))
        operations.append(operation)
    closed_at = chance.randrange(1, size) if size > 1 and chance.random() < _CLOSED else 0
    once = closed_at or choose.threads > 1
    return Program(
        choose.arrays, choose.streams, tuple(operations), f"seed {seed}",
        small=choose.small, threads=choose.threads,
        interrupted=() if once else _interrupts(chance, repeatable), closed_at=closed_at,
    )  # fmt: skip


def _interrupts(chance: random.Random, repeatable: list[int]) -> tuple[tuple[int, int], ...]:
    """Choose which operations are interrupted, and at which points."""
    if chance.random() >= _INTERRUPTED:
        return ()
    numbers = chance.sample(repeatable, min(len(repeatable), chance.choice((1, 2, 3))))
    return tuple((number, chance.randint(*_POINTS)) for number in sorted(numbers))


def _declare(chance: random.Random) -> tuple[Declared, ...]:
    """Declare arrays: plain ones for half of the programs, any kind for the others."""
    count = chance.choice((1, 2, 2, 3))
    if chance.random() < 0.5:
        hows = ("zeros", "array", "array", "adopted")
        sizes = (16, 32, 64, 256)
        arrays = [Declared(chance.choice(sizes), chance.choice(hows)) for _ in range(count)]
        return tuple(_with_role(chance, each) for each in arrays)
    common = chance.choice(DTYPES)
    arrays = [_declare_any(chance, common) for _ in range(count)]
    if arrays[0].how in ("adopted", "own") and chance.random() < 0.5:
        first = replace(arrays[0], size=128, columns=0)
        arrays[:2] = [first, replace(first, size=64, how="again")]
    if chance.random() < 0.015:
        arrays[0] = Declared(_LARGE, arrays[0].how)
        arrays = [each for each in arrays if each.how != "again"]
    return tuple(arrays)


def _with_role(chance: random.Random, declared: Declared) -> Declared:
    if declared.how not in ("zeros", "array") or chance.random() < 0.8:
        return declared
    roles: tuple[Role, ...] = ("scratch", "scratch", "output")
    if declared.how == "array":
        roles += ("weight",)  # sealed, which zeros would not be
    return replace(declared, role=chance.choice(roles))


def _declare_any(chance: random.Random, common: str) -> Declared:
    how = chance.choice(("zeros", "array", "array", "adopted", "own", "own", "file"))
    dtype = chance.choice((common, common, "uint32", *DTYPES))
    if chance.random() < 0.5:
        return Declared(chance.choice((16, 32, 64)), how, dtype)
    columns = chance.choice((3, 4, 8, 16))
    return Declared(columns * chance.choice((4, 8)), how, dtype, columns)


class _Chooser:
    """Picks operations at random. Many are invalid at that point; the oracle rejects them."""

    oracle: Oracle

    def __init__(self, chance: random.Random, alignment: int) -> None:
        self.chance = chance
        self.grain = 4 * alignment
        self.arrays = self.declare()
        self.streams = chance.choice((1, 2, 2, 3))
        self.threads = self.streams if chance.random() < 0.3 else 1
        large = any(each.size == _LARGE for each in self.arrays)
        self.small = not large and chance.random() < 0.4
        self.slow = not large and chance.random() < 0.5
        self.slots: dict[str, list[int]] = {"transfer": [], "event": [], "view": []}
        self.count = 0
        self.last: Operation | None = None

    def declare(self) -> tuple[Declared, ...]:
        return _declare(self.chance)

    def note(self, operation: Operation | None) -> None:
        """Record the slot of an operation for later ones to refer to; None if it raised."""
        self.count += 1
        self.last = operation
        kinds = {
            op.Write: "transfer",
            op.Read: "transfer",
            op.Ask: "transfer",
            op.Record: "event",
            op.View: "view",
        }
        kind = kinds.get(type(operation))
        if kind is not None:
            self.slots[kind].append(self.count - 1)

    def operation(self) -> Operation:
        return self._follow_up() or self.chance.choices(*_WEIGHED)[0](self)

    def _follow_up(self) -> Operation | None:
        """Sometimes pick an operation that tests the last one and would rarely follow by chance."""
        match self.last:
            case op.StreamWait(stream=stream) if self.chance.random() < 0.4:
                return op.Record(self.count, stream)
            case op.Record(slot=slot) if self.chance.random() < 0.4:
                return self.chance.choice((op.EventWait, op.EventDone))(slot)
            case op.Synchronize() if self.chance.random() < 0.7:
                return op.Poke(self.part(), self.value)
            case op.Write(slot=slot, borrow=False) if self.chance.random() < 0.4:
                return op.Change(slot)
            case op.View(slot=slot, mode=mode) if mode != "r" and self.chance.random() < 0.7:
                return op.Touch(slot, self.value)
            case op.View(of=part) if self.chance.random() < 0.3:
                return op.Fill(part, self.value, self.stream)
            case op.Touch(slot=slot) if self.chance.random() < 0.6:
                return op.Drop(slot)
            case _:
                return None

    @property
    def value(self) -> int:
        return 1000 * (self.count + 1)

    @property
    def stream(self) -> int:
        return self.chance.randrange(self.streams)

    def slot(self, kind: str) -> int:
        """One of the last few slots of a kind; -1, which is invalid, if there is none."""
        return self.chance.choice(self.slots[kind][-4:] or [-1])

    # Slices.

    def part(self) -> Part:
        """Any part of any array."""
        chance = self.chance
        array = chance.randrange(len(self.arrays))
        declared = self.arrays[array]
        length = declared.shape[0]
        if chance.random() < 0.4:
            found = Part(array, 0, length)
        else:
            found = Part(array, *self._cut(length))
            if declared.columns and chance.random() < 0.5:
                found = replace(found, across=self._cut(declared.columns))
        if declared.columns or declared.dtype != "uint32":
            way = chance.choice(("", "", "", "", "transposed", "flat", "bytes", "rows"))
            found = replace(found, way=way)
        return found

    def _cut(self, length: int) -> tuple[int, int, int]:
        """A random slice of `length` elements."""
        lo, hi = sorted(self.chance.sample(range(length + 1), 2))
        if self.chance.random() < 0.02:
            return lo, lo, 1
        if length >= _LARGE:
            return lo, hi, 1  # the simulator is slow with a hundred thousand pieces
        return lo, hi, self.chance.choice((1, 1, 1, 1, 1, 2, 3, -1, -2))

    def part_like(self, other: Part) -> Part:
        """A part that may have the same shape as the other."""
        chance = self.chance
        array = chance.randrange(len(self.arrays))
        declared, model = self.arrays[array], self.arrays[other.array]
        if (declared.dtype, bool(declared.columns)) != (model.dtype, bool(model.columns)):
            return replace(other, way="")
        sizes = list(other.lengths(model.shape))
        turned = bool(declared.columns) and chance.random() < 0.3
        if turned != (other.way == "transposed"):
            sizes.reverse()
        los = [
            chance.randrange(max(1, whole - size + 1))
            for size, whole in zip(sizes, declared.shape, strict=True)
        ]
        across = None
        if declared.columns and sizes[1] < declared.columns:
            across = (los[1], los[1] + sizes[1], 1)
        way = "transposed" if turned else ""
        return Part(array, los[0], los[0] + sizes[0], 1, across, way)

    def kernel_part(self, nbytes: int | None = None) -> Part:
        """A part that kernels accept, of `nbytes` if given."""
        chance = self.chance
        array = chance.randrange(len(self.arrays))
        declared = self.arrays[array]
        length = declared.shape[0]
        unit = declared.nbytes // length
        step = self.grain // math.gcd(unit, self.grain)
        way = "" if declared.dtype == "uint32" else "words"
        if nbytes is not None:
            count = nbytes // unit
            lo = chance.randrange(max(1, length - count + 1)) // step * step
            return Part(array, lo, lo + count, way=way)
        if length < step or chance.random() < 0.4:
            return Part(array, 0, length, way=way)
        lo, hi = sorted(chance.sample(range(length // step + 1), 2))
        return Part(array, lo * step, hi * step, way=way)

    # Operations.

    def write(self) -> Operation:
        borrow, pinned = self.chance.random() < 0.4, self.chance.random() < 0.3
        spread = self.chance.random() < 0.1
        return op.Write(self.part(), self.value, self.count, self.stream, borrow, pinned, spread)

    def read(self) -> Operation:
        return op.Read(self.part(), self.count, self.stream, self.chance.random() < 0.3)

    def copy(self) -> Operation:
        target = self.part()
        across = self.chance.random() < _ACROSS
        return op.Copy(self.part_like(target), target, self.stream, across)

    def fill(self) -> Operation:
        return op.Fill(self.part(), self.value if self.chance.random() < 0.8 else 0, self.stream)

    def view(self) -> Operation:
        return op.View(self.part(), self.count, self.chance.choice(("r", "r", "w", "rw")))

    def launch(self) -> Operation:
        kernel = self.chance.choice(list(KERNELS))
        first = self.kernel_part()
        declared = self.arrays[first.array]
        nbytes = (first.hi - first.lo) * declared.nbytes // declared.shape[0]
        rest = (self.kernel_part(nbytes) for _ in KERNELS[kernel].arrays[1:])
        slow = self.slow and self.chance.random() < 0.4
        again = 2 if self.chance.random() < 0.15 else 0
        return op.Launch(kernel, (first, *rest), self.value, self.stream, slow, again)

    def ask(self) -> Operation:
        return op.Ask(self.kernel_part(), self.count, self.stream, self.slow)

    def misuse(self) -> Operation:
        return op.Misuse(self.chance.choice(list(MISUSES)), self.part(), self.stream)


_WEIGHTS: dict[Callable[[_Chooser], Operation], float] = {
    _Chooser.launch: 7,
    _Chooser.write: 5,
    _Chooser.read: 3,
    _Chooser.ask: 1,
    _Chooser.copy: 3,
    _Chooser.fill: 2,
    _Chooser.view: 2,
    _Chooser.misuse: 0.7,
    lambda c: op.Numpy(c.part()): 1,
    lambda c: op.Change(c.slot("transfer")): 1,
    lambda c: op.Collect(c.slot("transfer")): 2,
    lambda c: op.Touch(c.slot("view"), c.value): 0.5,
    lambda c: op.Drop(c.slot("view")): 1.5,
    lambda c: op.Record(c.count, c.stream): 1.5,
    lambda c: op.StreamWait(c.slot("event"), c.stream): 1,
    lambda c: op.EventWait(c.slot("event")): 0.7,
    lambda c: op.EventDone(c.slot("event")): 0.7,
    lambda c: op.Flush(c.stream): 1,
    lambda c: op.Reopen(c.stream): 1,
    lambda c: op.BeginBatch(c.stream): 0.6,
    lambda c: op.EndBatch(c.stream): 0.8,
    lambda c: op.Renew(c.chance.randrange(len(c.arrays)), c.chance.random() < 0.5): 0.7,
    lambda c: op.Synchronize(): 0.6,
}
_WEIGHED = (list(_WEIGHTS), list(_WEIGHTS.values()))


class _LifetimeChooser(_Chooser):
    """Picks operations about the lifetime and sharing of memory.

    Append-only arrays that the host reads while kernels append; scratch arrays that are dropped and
    recreated while their memory is in use; views and arrays through DLPack.
    """

    def declare(self) -> tuple[Declared, ...]:
        kinds = (self._append, self._append, self._scratch, self._dlpack)
        first = self.chance.choice(kinds)
        rest = (self._append, self._scratch, self._scratch, self._dlpack, self._plain, self._plain)
        return first(), *(self.chance.choice(rest)() for _ in range(self.chance.choice((1, 2, 3))))

    def _append(self) -> Declared:
        columns = self.chance.choice((0, 4, 8))
        size = self.chance.choice((32, 64, 128))
        dtype = self.chance.choice(("uint32", "uint32", "uint32", "int64", "uint8"))
        how = self.chance.choice(("zeros", "array"))
        return Declared(size, how, dtype, columns, "append")

    def _scratch(self) -> Declared:
        return Declared(self.chance.choice((32, 64)), "zeros", role="scratch")

    def _dlpack(self) -> Declared:
        columns = self.chance.choice((0, 0, 8))
        return Declared(64, "dlpack", self.chance.choice(("uint32", *DTYPES)), columns)

    def _plain(self) -> Declared:
        return Declared(self.chance.choice((32, 64)), "array")

    def operation(self) -> Operation:
        made = self._follow_up()
        if made is None:
            made = self.chance.choices(*_WEIGHED_FOR_LIFETIMES)[0](self)
        if isinstance(made, op.View) and made.mode == "r" and self.chance.random() < 0.5:
            made = replace(made, dlpack=True)
        return made

    def _follow_up(self) -> Operation | None:
        last = self.last
        touched = [part for part, _ in accesses_of(last)] if last is not None else []
        for part in touched:
            role = self.arrays[part.array].role
            if role == "scratch" and self.chance.random() < 0.35:
                return op.Renew(part.array, self.chance.random() < 0.7)
            if role == "append" and self.chance.random() < 0.3:
                return self._look(part)
        return super()._follow_up()

    def _look(self, appended: Part) -> Operation:
        """Read complete rows while the append may be in flight, or try to write it again."""
        chance = self.chance
        rows = Part(
            appended.array, 0, max(1, appended.lo if chance.random() < 0.7 else appended.hi)
        )
        looks = (
            op.Numpy(rows),
            op.Read(rows, self.count, self.stream),
            op.View(rows, self.count),
            op.Length(appended.array),
            op.Fill(appended, self.value, self.stream),
        )
        return chance.choice(looks)

    def part(self) -> Part:
        found = super().part()
        return self._not_written(found) if self.chance.random() < 0.7 else found

    def kernel_part(self, nbytes: int | None = None) -> Part:
        found = super().kernel_part(nbytes)
        exactly = nbytes is not None
        return self._not_written(found, exactly) if self.chance.random() < 0.7 else found

    def _not_written(self, part: Part, exactly: bool = False) -> Part:
        """Move a part of an append-only array to the next unwritten rows.

        Keeps the number of rows if `exactly`, else limits it to a quarter of the array.
        """
        declared = self.arrays[part.array]
        if declared.role != "append":
            return part
        rows = declared.shape[0]
        unit = declared.nbytes // rows
        step = self.grain // math.gcd(unit, self.grain)
        start = -(-self.oracle.complete_rows(part.array) // step) * step
        count = part.hi - part.lo
        if not exactly:
            count = min(count, max(step, rows // 4 // step * step), rows - start)
        return replace(part, lo=start, hi=start + count, step=1) if count > 0 else part


_WEIGHTS_FOR_LIFETIMES: dict[Callable[[_Chooser], Operation], float] = {
    **_WEIGHTS,
    lambda c: op.Reset(c.chance.randrange(len(c.arrays))): 1,
    lambda c: op.Length(c.chance.randrange(len(c.arrays))): 1,
}
_WEIGHED_FOR_LIFETIMES = (list(_WEIGHTS_FOR_LIFETIMES), list(_WEIGHTS_FOR_LIFETIMES.values()))
