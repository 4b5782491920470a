"""Recorded commands, and their encoding into replayable driver commands.

A *node* is a command as it was recorded. A *variant* is a graph encoded with certain values of its
parameters. The `Encoder` encodes it and inserts barriers, by applying the ledger's rules to the
recorded commands alone.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.array.array import Array, Bound
from penstock.array.buffer import Buffer
from penstock.driver.protocol import PLACE
from penstock.errors import RoleViolation
from penstock.launch.kernel import Kernel
from penstock.launch.launch import Launch
from penstock.launch.launch_memory import ResultMemory
from penstock.launch.result import Result
from penstock.ledger.hazards import History, Lane, Region, Use, needs_of_lane, note_all
from penstock.memory.backing import Backing
from penstock.memory.copy_rows import copy_rows, packed_rows
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.driver.protocol import Replayable
    from penstock.schedule.scheduler import Scheduler
    from penstock.schedule.stream import Stream
    from penstock.tracing.device_times import Mark

_ages = itertools.count()


class Scalar:
    """A numeric parameter of a graph, as a placeholder while recording: `g["a"]`."""

    __slots__ = ("name", "of", "value")

    def __init__(self, name: str, value: Any, of: str) -> None:
        """`of` names the graph. No reference to it is kept, so the user can drop the graph."""
        self.name = name
        self.value = value
        self.of = of

    def __repr__(self) -> str:
        return f"<parameter {self.name}, now {self.value!r}>"


# What can be recorded.


class LaunchNode(NamedTuple):
    kernel: Kernel
    given: dict[str, Any]
    threads: Any
    groups: Any

    def encode(self, encoder: Encoder) -> None:
        kernel = self.kernel
        given = {name: encoder.value(value) for name, value in self.given.items()}
        counts = kernel.group_counts(encoder.value(self.threads), encoder.value(self.groups))
        launch = kernel.prepare(given, kernel.pack_scalars(given), counts)
        kernel.check_writes(launch.arrays, encoder.growing)
        result = encoder.variant.result_slot(kernel) if kernel.results is not None else None
        arguments = encoder.arguments(launch)
        if not launch.is_empty:
            bound = [array.bind() for array in launch.arrays]
            kernel.bind_texels(launch.arrays, bound)
            encoder.variant.bound += bound
            said = Said("launch", launch.in_words())
            commands = encoder.after(launch.touched(), kernel.what, said)
            launch.dispatch(commands, bound, arguments, result)

    def __str__(self) -> str:
        fixed = [
            f"{member.name}={self.given[member.name]!r}"
            for member in self.kernel.interface.push
            if not isinstance(self.given[member.name], Scalar)
        ]
        size = ("threads", self.threads) if self.groups is None else ("groups", self.groups)
        if not isinstance(size[1], Scalar | Array):
            fixed.append(f"{size[0]}={size[1]!r}")
        return f"{self.kernel.name} with {', '.join(fixed)}" if fixed else ""


class CopyNode(NamedTuple):
    source: Array
    target: Array

    def encode(self, encoder: Encoder) -> None:
        source, target = encoder.array(self.source), encoder.array(self.target, write=True)
        same = source.buffer.backing is target.buffer.backing
        if same and source.region.overlaps(target.region):
            between = encoder.variant.room(
                target
            )  # overlapping copies go through a temporary, as in NumPy
            encoder.copy(source, between)
            source = between
        encoder.copy(source, target)

    def __str__(self) -> str:
        return ""


class FillNode(NamedTuple):
    target: Array
    word: int
    value: Any

    def encode(self, encoder: Encoder) -> None:
        target = encoder.array(self.target, write=True)
        lo = target.region.lo
        if lo % 4:  # a parameter's new array, misaligned for a device fill
            word = self.word.to_bytes(4, "little")
            encoder.put(encoder.variant.keep(word * (target.nbytes // 4)), target, "a fill")
            return
        backing = target.buffer.backing
        uses = [(target.buffer, target.region, True)]
        commands = encoder.after(uses, "a fill", Said("fill", "a fill"))
        commands.fill(backing.memory, backing.offset + lo, target.nbytes, self.word)

    def __str__(self) -> str:
        return f"a fill of {self.target.name!r} with {self.value!r}"


class WriteNode(NamedTuple):
    """A host write, with a snapshot of the bytes taken when it was recorded."""

    content: Buffer
    target: Array

    def encode(self, encoder: Encoder) -> None:
        encoder.put(self.content, encoder.array(self.target, write=True), "a write")

    def __str__(self) -> str:
        return f"a write of {self.target.nbytes:,} bytes to {self.target.name!r}"


Node = LaunchNode | CopyNode | FillNode | WriteNode
BufferUse = tuple[Buffer, Region, bool]  # bytes that a command touches; whether it writes them


class Encoder:
    """Encodes recorded commands as driver commands, with the barriers needed between them."""

    def __init__(
        self, variant: Variant, recorded: Mapping[str, Array], values: Mapping[str, Any],
        growing: Collection[Buffer],
    ) -> None:  # fmt: skip
        self.variant = variant
        self.growing = growing  # append-only buffers to which every replay writes the next rows
        self._recorded = recorded
        self._values = values
        self._lane = Lane("a graph", None)
        self._histories: dict[Backing, History] = {}
        self.touched: dict[tuple[Buffer, Region], bool] = {}
        self.barriers = 0
        self._timing: tuple[Said, int] | None = None  # the last command, and the bytes it touches
        self._began: int | None = None  # the timestamp of its start

    def value(self, value: Any) -> Any:
        """The value of a recorded argument in this variant."""
        if isinstance(value, Array):
            return self.array(value)
        return self._values[value.name] if isinstance(value, Scalar) else value

    def array(self, array: Array, *, write: bool = False) -> Array:
        """The array, or the part of a parameter's new array that replaces it."""
        for name, recorded in self._recorded.items():
            if array.buffer is recorded.buffer and recorded.region.covers(array.region):
                new = self._values[name]
                if new is not recorded:
                    shift = new.layout.offset - recorded.layout.offset
                    layout = array.layout._replace(offset=array.layout.offset + shift)
                    moved = Array(new.buffer, layout, array.dtype)
                    moved.lead = array.lead  # as a number that was recorded with it may say
                    if array.window:
                        moved.follow_window(array, shift)
                    array = moved
                break
        array.buffer.check()
        if write:
            array.buffer.check_write(array.region, "a graph")
            if array.buffer in self.growing:
                raise RoleViolation(
                    f"a graph advances array {array.name!r}, so that only its kernels may write it"
                )
        return array

    def copy(self, source: Array, target: Array) -> None:
        origin, goal = source.buffer.backing, target.buffer.backing
        rows = copy_rows(source, origin, target, goal)
        uses = [(source.buffer, source.region, False), (target.buffer, target.region, True)]
        self.after(uses, "a copy", Said("copy", "a copy")).copy(origin.memory, goal.memory, rows)

    def put(self, content: Buffer, target: Array, what: str) -> None:
        """Copy packed bytes into an array."""
        origin, goal = content.backing, target.buffer.backing
        rows = packed_rows(target, goal, origin, to_device=True)
        packed = Region(0, target.nbytes)
        uses = [(content, packed, False), (target.buffer, target.region, True)]
        self.after(uses, what, Said("copy", what)).copy(origin.memory, goal.memory, rows)

    def arguments(self, launch: Launch) -> bytes | None:
        """The buffer range with the scalars of a launch; None if they are push constants."""
        if not launch.kernel.scalars_in_buffer:
            return None
        backing = self.variant.keep(launch.block).backing
        return PLACE.pack(backing.memory.handle, backing.offset, len(launch.block))

    def after(self, uses: list[BufferUse], what: str, said: Said) -> Replayable:
        """Record a barrier if a command that touches these bytes needs one. Returns `commands`."""
        self.end_timing()
        local: list[Use] = [
            (self._histories.setdefault(buffer.backing, History()), region, write)
            for buffer, region, write in uses
        ]
        behind, _ = needs_of_lane(self._lane, local)
        commands = self.variant.commands
        if behind:
            commands.barrier()
            self.barriers += 1
            self._lane.epoch += 1
        if self.variant.timed:
            self._timing = (said, sum(region.hi - region.lo for _, region, _ in uses))
            self._began = commands.mark(end=False)
        note_all(local, self._lane, 1, what)
        for buffer, region, write in uses:
            writes = write and buffer not in self.growing
            self.touched[buffer, region] = writes or self.touched.get((buffer, region), False)
        return commands

    def end_timing(self) -> None:
        """For receipts: record a timestamp of the end of the last command, if it has one."""
        if self._timing is not None and self._began is not None:
            said, nbytes = self._timing
            self._timing = None
            ended = self.variant.commands.mark(end=True)
            if ended is not None:
                self.variant.inner.append(Inner(*said, nbytes, self._began, ended))


class Said(NamedTuple):
    """What a receipt says of a command inside a graph."""

    kind: str
    reason: events.Reason


class Inner(NamedTuple):
    """A timed command inside a graph: what the receipt says of it, and its two timestamps."""

    kind: str
    reason: events.Reason
    nbytes: int
    start: int
    end: int


class Variant:
    """A graph encoded with certain values of its parameters; `timed`, also with timestamps."""

    def __init__(self, scheduler: Scheduler, *, timed: bool) -> None:
        self._scheduler = scheduler
        self.timed = timed
        self.inner: list[Inner] = []
        self.commands = scheduler.driver.replayable(timed=timed)
        self._blocks: list[Buffer] = []
        self._slots: list[tuple[Kernel, ResultMemory]] = []
        self._free: deque[ResultMemory] = deque()
        self._buffers: set[Buffer] = set()
        self.bound: list[Bound] = []  # what its launches bind; keeps views of texels
        self._points: dict[Lane, int] = {}
        self.last_used = 0
        self._released = False
        self.uses: list[Use] = []
        self.touched: list[BufferUse] = []
        self.barriers = 0

    @property
    def is_exclusive(self) -> bool:
        """Whether only one replay may be pending: it has results or timestamps in fixed memory."""
        return bool(self._slots) or self.timed

    @property
    def in_flight(self) -> bool:
        for lane in self._points:
            lane.owner.poll()
        return any(value > lane.complete for lane, value in self._points.items())

    @property
    def unread(self) -> bool:
        """Whether a result of its last replay may still be read by the caller."""
        return len(self._free) < len(self._slots)

    def encode(
        self, nodes: list[Node], recorded: Mapping[str, Array], values: Mapping[str, Any],
        growing: Collection[Buffer],
    ) -> None:  # fmt: skip
        encoder = Encoder(self, recorded, values, growing)
        self.inner = []
        self.commands.begin()
        for node in nodes:
            node.encode(encoder)
        encoder.end_timing()
        self.commands.end()
        self.barriers = encoder.barriers
        self.touched = _joined(encoder.touched)
        self._buffers = {buffer for buffer, _, _ in self.touched}
        for buffer in self._buffers:
            buffer.graphs.add(weakref.ref(self, buffer.graphs.discard))
            buffer.backing.reused_in_flight = False  # replays need this memory for themselves
        self.uses = [(b.backing.history, region, write) for b, region, write in self.touched]
        self.uses += [slot.use for _, slot in self._slots]

    def keep(self, content: bytes) -> Buffer:
        """Copy bytes to a host-visible buffer that lives as long as the variant."""
        scheduler = self._scheduler
        backing = scheduler.host_pool.allocate(len(content))
        kept = Buffer(scheduler, backing, len(content), "arguments", pinned=True)
        self._blocks.append(kept)
        raw: Any = backing.chunk.bytes
        raw[backing.offset : backing.offset + len(content)] = np.frombuffer(content, np.uint8)
        scheduler.flush(backing.memory, backing.offset, backing.offset + len(content))
        return kept

    def room(self, like: Array) -> Array:
        """Allocate an array of the same shape that lives as long as the variant."""
        made = self._scheduler.device.new_array(like.shape, like.dtype, "between")
        self._blocks.append(made.buffer)
        return made

    def result_slot(self, kernel: Kernel) -> ResultMemory:
        assert kernel.results is not None
        slot = kernel.results.take()
        slot.home = self._free
        slot.give_back()
        self._slots.append((kernel, slot))
        return slot

    def new_results(self) -> list[Result]:
        """Create the results of a replay that is about to be recorded."""
        made = []
        for kernel, slot in self._slots:
            self._free.remove(slot)
            made.append(slot.result(kernel.what))
        return made

    def replayed(self, lane: Lane, value: int) -> None:
        self._points = {o: v for o, v in self._points.items() if v > o.complete}
        self._points[lane] = value
        self.last_used = next(_ages)

    def emit(self, stream: Stream, began: float, nodes: int) -> None:
        """Put a replay that was just recorded on the receipt; `began` is when it was called."""
        at = stream.here()
        why = ("%d commands with %d barriers between them", nodes, self.barriers)
        events.emit("replay", why, start=began, seconds=events.since(began), at=at)
        if not self.timed or not events.detailed:
            return
        marks: list[Mark] = []
        for number, each in enumerate(self.inner, 1):
            here = (*at, number)
            marks.append((events.detailed, here, each.start, each.end))
            events.emit(
                "replayed", each.reason, nbytes=each.nbytes, path=each.kind, start=began, at=here,
                to=events.detailed,
            )  # fmt: skip
        stream.time_inner(self.commands, marks)

    def read_times(self) -> None:
        """For receipts: save the timestamps of its last replay, which is complete."""
        if self.timed:
            for stream in self._scheduler.all_streams():
                stream.read_times()

    def unpin(self) -> None:
        """Allow the buffers to get other memory again: this encoding is not replayed any more."""
        for buffer in self._buffers:
            buffer.graphs.discard(weakref.ref(self))
        self._buffers = set()

    def clear(self) -> None:
        """Give back the memory that the encoding holds. No replay of it may be in flight."""
        self.read_times()
        self.unpin()
        for kernel, slot in self._slots:
            assert kernel.results is not None
            slot.home = kernel.results.free
            if slot in self._free:  # else a pending result holds it, and gives it back when read
                slot.give_back()
        self._blocks = []
        self.bound = []
        self._slots = []
        self._free.clear()
        self.uses = []
        self.touched = []

    def release(self) -> None:
        """Free everything, for good. No replay may be in flight. Calling it again is safe."""
        self.clear()
        if not self._released:
            self._released = True
            self.commands.close()


def usable(kept: deque[Variant]) -> Variant | None:
    """A variant that can be replayed now. Variants with results or timestamps take turns."""
    for _ in range(len(kept)):
        variant = kept[0]
        if variant.is_exclusive and variant.in_flight:
            return None  # the others were replayed later than this one
        kept.rotate(-1)
        if not variant.unread:
            return variant
    return None


def _joined(touched: Mapping[tuple[Buffer, Region], bool]) -> list[BufferUse]:
    """Merge read-only regions that adjoin or overlap.

    A graph may read an array in thousands of pieces, and every replay checks each in the ledger.
    """
    joined: list[BufferUse] = []
    reads: dict[Buffer, list[Region]] = {}
    for (buffer, region), write in touched.items():
        if write or region.pitch:
            joined.append((buffer, region, write))
        else:
            reads.setdefault(buffer, []).append(region)
    for buffer, regions in reads.items():
        if len(regions) > 1:
            regions = _merged(regions)
        joined += [(buffer, region, False) for region in regions]
    return joined


def _merged(regions: list[Region]) -> list[Region]:
    """Merge contiguous regions that adjoin or overlap."""
    regions = sorted(regions)
    merged = regions[:1]
    for region in regions[1:]:
        last = merged[-1]
        if region.lo > last.hi:
            merged.append(region)
        elif region.hi > last.hi:
            merged[-1] = Region(last.lo, region.hi)
    return merged
