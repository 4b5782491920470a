"""Work recorded once and replayed as one command.

Inside `with dev.record() as g:` launches, copies and fills are written down instead of done. The
first replay encodes them: the ledger's rules, applied to the recorded commands alone, say where
barriers go, and the union of what they touch is what a replay touches. From then on a replay is a
command like any other: the ledger orders it against everything else, by the same few lines.

What may change from replay to replay is named at recording. Every distinct combination of such
values is a *variant*, encoded when first wanted and kept for the next time.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from penstock import tracing
from penstock.access import check_not_recording
from penstock.array import Array
from penstock.buffer import Buffer
from penstock.closing import Closing
from penstock.errors import (
    ArgumentError,
    Closed,
    DtypeMismatch,
    NotWhileRecording,
    ShapeMismatch,
)
from penstock.hazards import History, Lane, Region, Use, collect_all, needs_of_lane, note_all
from penstock.kernel import Kernel
from penstock.memory import Backing
from penstock.pending import Pending
from penstock.regions import copy_rows, packed_array, packed_rows
from penstock.result import Result
from penstock.slots import ResultSlot
from penstock.sources import as_array

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.driver.protocol import Replayable
    from penstock.scheduler import Scheduler
    from penstock.stream import Stream

_ages = itertools.count()
_VARIANTS = 16  # kept; beyond, the one not used for longest is encoded anew

Host = npt.NDArray[Any]


class Scalar:
    """Stands for a parameter of a graph that is a number: `g["a"]` while recording."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"<parameter {self.name}, now {self.value!r}>"


class Recorded(Pending[Any]):
    """What a call returns while a graph is recorded: nothing has been done, so nothing to get."""

    __slots__ = ()

    def _refuse(self) -> NoReturn:
        raise NotWhileRecording(
            f"{self._what} is recorded, not done; g.replay() does it and returns its result"
        )

    @property
    def done(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> None:
        self._refuse()

    def result(self, timeout: float | None = None) -> Any:
        self._refuse()

    def _compare(self, other: Any) -> Any:
        self._refuse()

    __bool__ = __float__ = __int__ = __index__ = __array__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compare
    __hash__ = None  # type: ignore[assignment]


# What can be recorded.


class _Launch(NamedTuple):
    kernel: Kernel
    given: dict[str, Any]
    threads: Any
    groups: Any

    def encode(self, encoder: _Encoder) -> None:
        kernel = self.kernel
        given = {name: encoder.value(value) for name, value in self.given.items()}
        launch = kernel.prepare(given, encoder.value(self.threads), encoder.value(self.groups))
        uses: list[_Use] = []
        places = []
        for slot, array in zip(kernel.slots, launch.arrays, strict=True):
            backing = array.buffer.backing
            uses.append((array.buffer, array.region, slot.writes))
            places.append((backing.memory.handle, backing.offset + array.region.lo, array.nbytes))
        result = encoder.result(kernel) if kernel.results is not None else None
        block, place = encoder.block(kernel, launch.block)
        flat = kernel.bindings(places, place, result)
        if isinstance(launch.groups, Array):
            groups = launch.groups
            backing = groups.buffer.backing
            uses.append((groups.buffer, groups.region, False))
            commands = encoder.after(uses, kernel.what)
            lo = backing.offset + groups.region.lo
            commands.dispatch_indirect(kernel.program, flat, block, backing.memory, lo)
        elif launch.groups[0]:
            commands = encoder.after(uses, kernel.what)
            commands.dispatch(kernel.program, flat, block, launch.groups)

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


class _Copy(NamedTuple):
    source: Array
    target: Array

    def encode(self, encoder: _Encoder) -> None:
        source, target = encoder.array(self.source), encoder.array(self.target, write=True)
        same = source.buffer.backing is target.buffer.backing
        if same and source.region.overlaps(target.region):
            between = encoder.room(target)  # as if through a temporary, as NumPy does it
            encoder.copy(source, between)
            source = between
        encoder.copy(source, target)

    def __str__(self) -> str:
        return ""


class _Fill(NamedTuple):
    target: Array
    word: int
    value: Any

    def encode(self, encoder: _Encoder) -> None:
        target = encoder.array(self.target, write=True)
        lo = target.region.lo
        if lo % 4:  # another array than at recording, where the device cannot fill
            word = self.word.to_bytes(4, "little")
            encoder.put(encoder.kept(word * (target.nbytes // 4)), target, "a fill")
            return
        backing = target.buffer.backing
        commands = encoder.after([(target.buffer, target.region, True)], "a fill")
        commands.fill(backing.memory, backing.offset + lo, target.nbytes, self.word)

    def __str__(self) -> str:
        return f"a fill of {self.target.name!r} with {self.value!r}"


class _Write(NamedTuple):
    """Bytes of the host as they were when the write was recorded."""

    content: Buffer
    target: Array

    def encode(self, encoder: _Encoder) -> None:
        encoder.put(self.content, encoder.array(self.target, write=True), "a write")

    def __str__(self) -> str:
        return f"a write of {self.target.nbytes:,} bytes to {self.target.name!r}"


_Node = _Launch | _Copy | _Fill | _Write
_Use = tuple[Buffer, Region, bool]  # what a command touches, and whether it writes it


class Graph(Closing):
    """Launches, copies and fills, recorded once. Made by `Device.record`.

    `repr(g)` tells what may change from replay to replay, and which values are fixed.
    """

    def __init__(self, device: Device, parameters: Mapping[str, Any]) -> None:
        self.device = device
        self._scheduler: Scheduler = device.scheduler
        self._arrays: dict[str, Array] = {}
        self._scalars: dict[str, Scalar] = {}
        for name, value in parameters.items():
            if name == "stream":
                raise ArgumentError("a parameter cannot be called 'stream', as replay() has one")
            if isinstance(value, Array):
                self._check_new_array(name, value)
                self._arrays[name] = value
            else:
                _key(name, value)
                self._scalars[name] = Scalar(name, _frozen(value))
        self._nodes: list[_Node] = []
        self._kernels: set[Kernel] = set()
        self._thread = threading.get_ident()
        self._variants: dict[tuple[Any, ...], deque[_Variant]] = {}
        self._recorded = self._closed = False

    # While recording.

    @contextmanager
    def recording(self) -> Iterator[Graph]:
        scheduler = self._scheduler
        with scheduler.lock:
            scheduler.check()
            if scheduler.recording is not None:
                raise NotWhileRecording(
                    f"{scheduler.name} is recording another graph; record one at a time"
                )
            scheduler.recording = self
        try:
            yield self
            self._recorded = True
        finally:
            scheduler.recording = None

    def __getitem__(self, name: str) -> Scalar:
        """The parameter that is a number, to call a kernel with while recording."""
        if name in self._scalars:
            return self._scalars[name]
        if name in self._arrays:
            raise ArgumentError(f"parameter {name!r} is an array: use the array itself")
        raise ArgumentError(f"the graph has no parameter {name!r}; name it: dev.record({name}=…)")

    def is_mine(self) -> bool:
        """Whether the calling thread is the one that records; others go on as always."""
        return threading.get_ident() == self._thread

    def launch(
        self, kernel: Kernel, given: dict[str, Any], stream: Any, threads: Any, groups: Any
    ) -> Recorded | None:
        self._check_stream(stream)
        for slot in kernel.slots:
            if isinstance(given[slot.name], np.ndarray):
                raise NotWhileRecording(
                    f"{kernel.name}: argument {slot.name!r} is a NumPy array, and a graph does not "
                    "carry it; make it an array of the device first (dev.array, dev.adopt)"
                )
        given = {name: _frozen(value) for name, value in given.items()}
        threads, groups = _frozen(threads), _frozen(groups)
        with self._scheduler.lock:
            now = {name: self._now(value) for name, value in given.items()}
            kernel.prepare(now, self._now(threads), self._now(groups))
            self._nodes.append(_Launch(kernel, given, threads, groups))
            self._kernels.add(kernel)
        return None if kernel.results is None else Recorded(self._scheduler, {}, kernel.what)

    def copy(self, target: Array, source: Array, stream: Any, what: str) -> Recorded:
        self._check_stream(stream)
        self._nodes.append(_Copy(source, target))
        return Recorded(self._scheduler, {}, what)

    def fill(self, target: Array, word: int, value: Any, stream: Any, what: str) -> Recorded:
        self._check_stream(stream)
        self._nodes.append(_Fill(target, word, value))
        return Recorded(self._scheduler, {}, what)

    def write(self, target: Array, data: Host, stream: Any, what: str) -> Recorded:
        self._check_stream(stream)
        scheduler = self._scheduler
        block = scheduler.host_pool.allocate(target.nbytes)
        content = Buffer(scheduler, block, target.nbytes, what, pinned=True)
        np.copyto(packed_array(target, block), data)
        lo, hi = block.offset, block.offset + target.nbytes
        scheduler.flush(block.memory, lo, hi)
        self._nodes.append(_Write(content, target))
        return Recorded(scheduler, {}, what)

    def _now(self, value: Any) -> Any:
        return value.value if isinstance(value, Scalar) else value

    def _check_stream(self, stream: Any) -> None:
        if stream is not None:
            raise NotWhileRecording(
                "work is recorded for no stream in particular: leave stream= out, and say it at "
                "g.replay(stream=…)"
            )

    # Replaying.

    def replay(self, stream: Stream | None = None, **changed: Any) -> Pending[Any]:
        """Do everything again, in stream order, with these parameters instead of the recorded.

        Never waits. Its result is that of the kernel that has one, or a tuple if several do.
        """
        scheduler = self._scheduler
        with scheduler.lock:
            on = self._check(stream)
            variant = self._variant(self._values(changed))
            for buffer, region, write in variant.touched:
                if buffer.closed or buffer.sealed or buffer.backing.views:
                    buffer.check()
                    if write and buffer.sealed:
                        buffer.check_write(region, "a graph")
                    buffer.backing_for(on, region, "a graph", write=write)
            results = variant.new_results()
            on.begin(variant.uses).execute(variant.commands)
            if tracing.active:
                counts = (len(self._nodes), variant.barriers)
                why = ("%d commands with %d barriers between them", *counts)
                tracing.emit("replay", why, at=on.here())
            if results:
                on.expect_result()
            value = on.note(variant.uses, "a graph")
            variant.replayed(on.lane, value)
        for result in results:
            result.launched(on.lane, value)
        if len(results) == 1:
            return results[0]
        points = {on.lane: value}
        if not results:
            return Pending(scheduler, points, "a graph", value=None)
        return Pending(scheduler, points, "a graph", lambda: tuple(r.result() for r in results))

    def close(self) -> None:
        """Give back what replays need; those in flight finish first. Safe to call twice."""
        with self._scheduler.lock:
            if not self._closed:
                self._closed = True
                self._scheduler.retire_graph(self._take_variants())

    @property
    def closed(self) -> bool:
        return self._closed

    def __del__(self) -> None:
        # May run in any thread, in the middle of anything: only leave a message.
        if not getattr(self, "_closed", True):
            self._scheduler.graph_dropped(self._take_variants())

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else "" if self._recorded else ", recording"
        kinds = [type(node).__name__[1:].lower() for node in self._nodes]
        counts = {"launch": "launches", "copy": "copies", "fill": "fills", "write": "writes"}
        made_of = [f"{kinds.count(k)} {name}" for k, name in counts.items() if k in kinds]
        lines = [f"<Graph of {', '.join(made_of) or 'nothing'}{state}>"]
        lines += [f"  parameter {n}: {a.dtype}{list(a.shape)}" for n, a in self._arrays.items()]
        lines += [f"  parameter {n} = {s.value!r}" for n, s in self._scalars.items()]
        fixed = dict.fromkeys(str(node) for node in self._nodes)
        lines += [f"  fixed: {text}" for text in fixed if text]
        return "\n".join(lines)

    def _check(self, stream: Stream | None) -> Stream:
        scheduler = self._scheduler
        scheduler.check()
        if self._closed:
            raise Closed("the graph is closed")
        if scheduler.recording is self:
            raise NotWhileRecording("the graph is still being recorded")
        check_not_recording(scheduler, "a replay of another graph")
        if not self._recorded:
            raise Closed("the graph was not recorded to its end")
        for kernel in self._kernels:
            if kernel.closed:
                raise Closed(f"{kernel.what}, which the graph launches, is closed")
        return scheduler.stream_or_default(stream)

    def _values(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a replay: the arrays, and the numbers."""
        values: dict[str, Any] = dict(self._arrays)
        values |= {name: scalar.value for name, scalar in self._scalars.items()}
        for name, value in changed.items():
            if name not in values:
                known = ", ".join(values) or "none"
                raise ArgumentError(f"the graph has no parameter {name!r}; it has {known}")
            recorded = self._arrays.get(name)
            if recorded is not None and value is not recorded:
                self._check_array(name, recorded, value)
            elif recorded is None and isinstance(value, Array):
                raise ArgumentError(f"parameter {name!r} was recorded as a number, not an array")
            values[name] = value
        return values

    def _check_new_array(self, name: str, array: Array) -> None:
        if array.buffer.scheduler is not self._scheduler:
            raise ArgumentError(f"parameter {name!r} is on {array.device}, not on {self.device}")
        if not array.contiguous:
            raise ShapeMismatch(f"parameter {name!r} is not contiguous; record with a copy()")
        for other, known in self._arrays.items():
            if array.buffer is known.buffer and array.region.overlaps(known.region):
                raise ArgumentError(
                    f"parameters {other!r} and {name!r} are the same bytes, so that nobody could "
                    "tell which of them is meant; record with an array for each"
                )

    def _check_array(self, name: str, recorded: Array, array: Any) -> None:
        if not isinstance(array, Array) or array.buffer.scheduler is not self._scheduler:
            raise ArgumentError(f"parameter {name!r} must be an array of {self.device}")
        array.buffer.check()
        if array.dtype != recorded.dtype:
            raise DtypeMismatch(f"parameter {name!r} must be {recorded.dtype}, not {array.dtype}")
        if array.shape != recorded.shape or not array.contiguous:
            raise ShapeMismatch(
                f"parameter {name!r} was recorded with shape {recorded.shape}; it cannot be "
                f"{array.shape}{'' if array.contiguous else ', not contiguous,'} at replay"
            )

    def _variant(self, values: dict[str, Any]) -> _Variant:
        key = tuple(_key(name, value) for name, value in values.items())
        kept = self._variants.get(key)
        found = None if kept is None else _usable(kept)
        if found is not None:
            return found
        variant = self._spare()
        try:
            variant = variant or _Variant(self._scheduler)
            variant.encode(self._nodes, self._arrays, values)
        except BaseException as error:
            self._scheduler.note_failure(error)
            if variant is not None:
                self._scheduler.retire_graph([variant])
            raise
        self._variants.setdefault(key, deque()).append(variant)
        return variant

    def _spare(self) -> _Variant | None:
        """A variant that can be encoded anew: the one not used for longest, if it is done."""
        if sum(map(len, self._variants.values())) < _VARIANTS:
            return None
        every = [(variant, key) for key, kept in self._variants.items() for variant in kept]
        for variant, key in sorted(every, key=lambda pair: pair[0].last_used):
            if variant.unread:
                continue
            if variant.in_flight:
                return None  # the others were replayed later than this one
            self._variants[key].remove(variant)
            if not self._variants[key]:
                del self._variants[key]
            variant.clear()
            return variant
        return None

    def _take_variants(self) -> list[_Variant]:
        variants = [variant for kept in self._variants.values() for variant in kept]
        self._variants = {}
        return variants


def _usable(kept: deque[_Variant]) -> _Variant | None:
    """One of these variants that can be replayed now; those with results are used in turn."""
    for _ in range(len(kept)):
        variant = kept[0]
        if variant.has_results and variant.in_flight:
            return None  # the others were replayed later than this one
        kept.rotate(-1)
        if not variant.unread:
            return variant
    return None


def _key(name: str, value: Any) -> tuple[Any, ...]:
    """What tells a parameter's value from others; 0.0 and -0.0, 1 and True are not the same."""
    if isinstance(value, Array):
        return value.buffer, value.buffer.backing, value.layout.offset
    data = as_array(value, None)
    if data.dtype.kind == "O":
        raise ArgumentError(f"parameter {name!r} must be a number or several, not {value!r}")
    return data.dtype, data.shape, data.tobytes()


def _frozen(value: Any) -> Any:
    """The value as it is now, if it is one that the caller could change."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


class _Encoder:
    """Puts recorded commands into driver commands, with the barriers they need among themselves."""

    def __init__(
        self, variant: _Variant, recorded: Mapping[str, Array], values: Mapping[str, Any]
    ) -> None:
        self._variant = variant
        self._recorded = recorded
        self._values = values
        self._lane = Lane("a graph", None)
        self._histories: dict[Backing, History] = {}
        self.touched: dict[tuple[Buffer, Region], bool] = {}
        self.barriers = 0

    def value(self, value: Any) -> Any:
        """What stands for a recorded argument at this replay."""
        if isinstance(value, Array):
            return self.array(value)
        return self._values[value.name] if isinstance(value, Scalar) else value

    def array(self, array: Array, *, write: bool = False) -> Array:
        """The array, or the part of a parameter's new array that takes its place."""
        for name, recorded in self._recorded.items():
            if array.buffer is recorded.buffer and recorded.region.covers(array.region):
                new = self._values[name]
                if new is not recorded:
                    shift = new.layout.offset - recorded.layout.offset
                    layout = array.layout._replace(offset=array.layout.offset + shift)
                    array = Array(new.buffer, layout, array.dtype)
                break
        array.buffer.check()
        if write:
            array.buffer.check_write(array.region, "a graph")
        return array

    def room(self, like: Array) -> Array:
        """An array of the variant's own."""
        return self._variant.room(like)

    def kept(self, content: bytes) -> Buffer:
        """Bytes that stay as long as the variant does."""
        return self._variant.keep(content)

    def copy(self, source: Array, target: Array) -> None:
        origin, goal = source.buffer.backing, target.buffer.backing
        rows = copy_rows(source.layout, origin, target.layout, goal)
        uses = [(source.buffer, source.region, False), (target.buffer, target.region, True)]
        self.after(uses, "a copy").copy(origin.memory, goal.memory, rows)

    def put(self, content: Buffer, target: Array, what: str) -> None:
        """Copy packed bytes into an array."""
        origin, goal = content.backing, target.buffer.backing
        rows = packed_rows(target.layout, goal, origin, to_device=True)
        packed = Region(0, target.nbytes)
        uses = [(content, packed, False), (target.buffer, target.region, True)]
        self.after(uses, what).copy(origin.memory, goal.memory, rows)

    def block(self, kernel: Kernel, content: bytes) -> tuple[bytes, tuple[int, int]]:
        """The push constants of a launch; or none, and where its scalars are instead."""
        if len(content) <= kernel.interface.push_size:
            return content, (0, 0)
        backing = self.kept(content).backing
        return b"", (backing.memory.handle, backing.offset)

    def result(self, kernel: Kernel) -> ResultSlot:
        return self._variant.result_slot(kernel)

    def after(self, uses: list[_Use], what: str) -> Replayable:
        """The commands, ready for one that touches these bytes."""
        local: list[Use] = [
            (self._histories.setdefault(buffer.backing, History()), region, write)
            for buffer, region, write in uses
        ]
        barrier, _ = needs_of_lane(self._lane, collect_all(local))
        commands = self._variant.commands
        if barrier:
            commands.barrier()
            self.barriers += 1
            self._lane.epoch += 1
        note_all(local, self._lane, 1, what)
        for buffer, region, write in uses:
            self.touched[buffer, region] = write or self.touched.get((buffer, region), False)
        return commands


class _Variant:
    """A graph encoded with certain values of its parameters."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.commands = scheduler.driver.replayable()
        self._blocks: list[Buffer] = []
        self._slots: list[tuple[Kernel, ResultSlot]] = []
        self._free: deque[ResultSlot] = deque()
        self._buffers: set[Buffer] = set()
        self._points: dict[Lane, int] = {}
        self.last_used = 0
        self.uses: list[Use] = []
        self.touched: list[_Use] = []
        self.barriers = 0

    @property
    def has_results(self) -> bool:
        """Whether results have their place in it, so that it serves one replay at a time."""
        return bool(self._slots)

    @property
    def in_flight(self) -> bool:
        for lane in self._points:
            lane.owner.poll()
        return any(value > lane.complete for lane, value in self._points.items())

    @property
    def unread(self) -> bool:
        """Whether someone may still read a result of its last replay."""
        return len(self._free) < len(self._slots)

    def encode(
        self, nodes: list[_Node], recorded: Mapping[str, Array], values: Mapping[str, Any]
    ) -> None:
        encoder = _Encoder(self, recorded, values)
        self.commands.begin()
        for node in nodes:
            node.encode(encoder)
        self.commands.end()
        self.barriers = encoder.barriers
        self.touched = [(*where, write) for where, write in encoder.touched.items()]
        self._buffers = {buffer for buffer, _, _ in self.touched}
        for buffer in self._buffers:
            buffer.graphs += 1
        self.uses = [(b.backing.history, region, write) for b, region, write in self.touched]
        self.uses += [slot.use for _, slot in self._slots]

    def keep(self, content: bytes) -> Buffer:
        """Put bytes where they stay as long as the variant does."""
        scheduler = self._scheduler
        backing = scheduler.host_pool.allocate(len(content))
        kept = Buffer(scheduler, backing, len(content), "arguments", pinned=True)
        self._blocks.append(kept)
        raw: Any = backing.chunk.bytes
        raw[backing.offset : backing.offset + len(content)] = np.frombuffer(content, np.uint8)
        scheduler.flush(backing.memory, backing.offset, backing.offset + len(content))
        return kept

    def room(self, like: Array) -> Array:
        """An array of the same shape that stays as long as the variant does."""
        made = self._scheduler.device.empty(like.shape, like.dtype, name="between")
        self._blocks.append(made.buffer)
        return made

    def result_slot(self, kernel: Kernel) -> ResultSlot:
        assert kernel.results is not None
        slot = kernel.results.take()
        slot.home = self._free
        slot.give_back()
        self._slots.append((kernel, slot))
        return slot

    def new_results(self) -> list[Result]:
        """The results of a replay that is about to be recorded."""
        made = []
        for kernel, slot in self._slots:
            self._free.remove(slot)
            made.append(slot.result(kernel.what))
        return made

    def replayed(self, lane: Lane, value: int) -> None:
        self._points = {o: v for o, v in self._points.items() if v > o.complete}
        self._points[lane] = value
        self.last_used = next(_ages)

    def unpin(self) -> None:
        """It is not replayed any more, so its buffers may get other memory again."""
        for buffer in self._buffers:
            buffer.graphs -= 1
        self._buffers = set()

    def clear(self) -> None:
        """Give back what the encoding holds. Nothing of it may be in flight."""
        self.unpin()
        for kernel, slot in self._slots:
            assert kernel.results is not None
            slot.home = kernel.results.free
            if slot in self._free:  # else a result that is not read yet: that gives it back
                slot.give_back()
        self._blocks = []
        self._slots = []
        self._free.clear()
        self.uses = []
        self.touched = []

    def release(self) -> None:
        """The end. Nothing of it may be in flight."""
        self.clear()
        self.commands.close()
