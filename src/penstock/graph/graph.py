"""Work recorded once and replayed as one command.

Inside `with dev.record() as g:` launches, copies and fills are recorded instead of executed. The
first replay encodes them: the ledger's rules, applied to the recorded commands alone, decide where
barriers go, and a replay touches the union of the bytes that they touch. From then on a replay is a
command like any other, and the ledger orders it against all other work by the same code.

Values that may change from replay to replay are named at recording, as parameters. Every distinct
combination of their values is a *variant*, encoded at its first replay and kept for the next.
"""

from __future__ import annotations

import contextlib
import operator
import struct
import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.append_counter import settle_counter
from penstock.array.array import Array
from penstock.array.buffer import Buffer
from penstock.array.host_access import capturing, check_not_capturing, check_source, emit_copy
from penstock.array.host_values import as_array
from penstock.dtypes import as_counts
from penstock.errors import (
    ArgumentError,
    Closed,
    DtypeMismatch,
    NotWhileRecording,
    ShapeMismatch,
)
from penstock.graph import encoding
from penstock.graph.append_counters import Growth, Rows
from penstock.graph.encoding import CopyNode, FillNode, LaunchNode, Node, Scalar, Variant, WriteNode
from penstock.graph.recorded import Recorded
from penstock.handle import Block, Closing
from penstock.launch.kernel import Kernel
from penstock.memory.copy_rows import packed_array
from penstock.schedule.pending import Pending
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.scheduler import Scheduler
    from penstock.schedule.stream import Stream

_bits = struct.Struct("d").pack
_FAR = 1 << 63  # integers from here on are not NumPy's int64
_VARIANTS = 16  # variants kept; beyond that, the least recently used is encoded anew

Host = npt.NDArray[Any]


class Graph(Closing):
    """Launches, copies and fills, recorded once. Made by `Device.record`.

    `repr(g)` shows its parameters, which may change from replay to replay, and its fixed values.
    """

    def __init__(self, device: Device, parameters: Mapping[str, Any]) -> None:
        self.device = device
        self._scheduler: Scheduler = device.scheduler
        self._arrays: dict[str, Array] = {}
        self._scalars: dict[str, Scalar] = {}
        self._called = f"the graph of {', '.join(parameters) or 'no parameters'} on {device}"
        check_source(self._scheduler, [*parameters.values()])
        for name, value in parameters.items():
            if name == "stream":
                raise ArgumentError("a parameter cannot be called 'stream', as replay() has one")
            if isinstance(value, Array):
                self._check_new_array(name, value)
                self._arrays[name] = value
            else:
                _key(name, value)
                self._scalars[name] = Scalar(name, _frozen(value), self._called)
        #: All parameters, arrays and numbers, as they were recorded.
        numbers = {name: scalar.value for name, scalar in self._scalars.items()}
        self._values: dict[str, Any] = {**self._arrays, **numbers}
        self._nodes: list[Node] = []
        self._kernels: set[Kernel] = set()
        self._growths: dict[Buffer, Growth] = {}
        self._thread = 0  # the thread that records
        self._variants: dict[tuple[Any, ...], deque[Variant]] = {}
        self._recorded = self._closed = False
        retirement, leave = self._scheduler.retirement, self._scheduler.ended.leave
        self._end_of_life = retirement.expect_end(self, self._variants, leave)

    # While recording.

    def recording(self) -> Block[Graph]:
        return Block(self._begin, self._end)

    def _begin(self, block: Block[Graph]) -> Graph:
        scheduler = self._scheduler
        if self._thread:
            raise ArgumentError("a graph is recorded once; dev.record() makes another")
        self._thread = threading.get_ident()
        with scheduler.lock:
            scheduler.check()
            if capturing(scheduler) is not None:
                raise NotWhileRecording(
                    "this thread is recording another graph; record one at a time"
                )
            scheduler.captures[self._thread] = (self, block)
            scheduler.note_state()
        return self

    def _end(self, block: Block[Graph], failed: bool) -> None:
        # First, and in one step: if anything below raises, recording must have ended.
        self._scheduler.captures.pop(self._thread, None)
        self._scheduler.note_state()
        if not failed:
            self._check_appends()
            self._recorded = True

    def __getitem__(self, name: str) -> Scalar:
        """A numeric parameter, to pass to a kernel while recording."""
        if name in self._scalars:
            return self._scalars[name]
        if name in self._arrays:
            raise ArgumentError(f"parameter {name!r} is an array: use the array itself")
        raise ArgumentError(f"the graph has no parameter {name!r}; name it: dev.record({name}=…)")

    def launch(
        self, kernel: Kernel, given: dict[str, Any], stream: Any, threads: Any, groups: Any
    ) -> Recorded | None:
        self._check_stream(stream)
        for parameter in kernel.parameters:
            if isinstance(given[parameter.name], np.ndarray):
                raise NotWhileRecording(
                    f"{kernel.name}: argument {parameter.name!r} is a NumPy array, and a graph "
                    "does not carry it; make it an array of the device first (dev.array, dev.adopt)"
                )
        for name, value in {**given, "threads": threads, "groups": groups}.items():
            if isinstance(value, Scalar):
                self._check_own(f"{kernel.name}: {name}=", value)
        check_source(self._scheduler, [*given.values(), threads, groups])
        given = {name: _number(_frozen(value)) for name, value in given.items()}
        threads = _counts(threads, "threads")
        groups = groups if isinstance(groups, Array) else _counts(groups, "groups")
        now = {name: self._now(value) for name, value in given.items()}
        block = kernel.pack_scalars(now)
        counts = kernel.group_counts(self._now(threads), self._now(groups))
        with self._scheduler.lock:
            launch = kernel.prepare(now, block, counts)
            # `advance` may be recorded later, so appends are checked when the recording ends.
            buffers = (array.buffer for array in launch.arrays)
            appended = {buffer for buffer in buffers if buffer.policy.written_once}
            kernel.check_writes(launch.arrays, appended)
            self._nodes.append(LaunchNode(kernel, given, threads, groups))
            self._kernels.add(kernel)
        if kernel.results is None:
            return None
        return Recorded(self._scheduler, kernel.what, kernel.results.instead)

    def copy(self, target: Array, source: Array, stream: Any, what: str) -> Recorded:
        self._check_stream(stream)
        self._nodes.append(CopyNode(source, target))
        return Recorded(self._scheduler, what)

    def recorded(self, what: str) -> Recorded:
        return Recorded(self._scheduler, what)

    def fill(self, target: Array, word: int, value: Any, stream: Any, what: str) -> Recorded:
        self._check_stream(stream)
        self._nodes.append(FillNode(target, word, value))
        return Recorded(self._scheduler, what)

    def write(self, target: Array, data: Host, stream: Any, what: str) -> Recorded:
        self._check_stream(stream)
        scheduler = self._scheduler
        block = scheduler.host_pool.allocate(target.nbytes)
        content = Buffer(scheduler, block, target.nbytes, what, pinned=True)
        start = events.clock() if events.active else 0.0
        np.copyto(packed_array(target, block), data)
        if events.active:
            emit_copy(target, "staged", "snapshot: a graph is recorded", start)
        scheduler.flush(block.memory, block.offset, block.offset + target.nbytes)
        self._nodes.append(WriteNode(content, target))
        return Recorded(scheduler, what)

    def grow(self, growth: Growth) -> None:
        """Let every replay append to an array."""
        if growth.array.buffer in self._growths:
            raise ArgumentError(
                f"array {growth.array.name!r} is advanced twice; say once by how much a replay "
                "advances it"
            )
        self._growths[growth.array.buffer] = growth

    def _check_appends(self) -> None:
        for node in self._nodes:
            if isinstance(node, LaunchNode):
                arrays = [node.given[each.name] for each in node.kernel.parameters]
                node.kernel.check_writes(arrays, self._growths)

    def _check_own(self, label: str, scalar: Scalar) -> None:
        """Raise for a parameter of another graph, whose value this graph's replays do not have."""
        if self._scalars.get(scalar.name) is not scalar:
            raise ArgumentError(
                f"{label} is {scalar!r} of {scalar.of}, and what is recorded is {self._called}; "
                f"name a parameter of its own: dev.record({scalar.name}=…)"
            )

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
        """Execute the recorded commands, in stream order, with these parameters replaced.

        Blocks only where it meets a run-ahead bound (docs/performance.md). Returns a `Pending` with
        the result of the kernel that has one, or with a tuple if several kernels have one.
        """
        scheduler = self._scheduler
        scheduler.admit(stream)
        began = events.clock() if events.active else 0.0
        if changed:
            check_source(scheduler, [*changed.values()])
            changed = {name: _frozen(value) for name, value in changed.items()}
            for name, value in changed.items():
                if name in self._scalars and not isinstance(value, _PLAIN):
                    _key(name, value)  # raises unless it is numbers; those are safe under the lock
        with scheduler.lock:
            on = self._check(stream)
            variant = self._variant(changed, timed=bool(events.detailed))
            for growth in self._growths.values():
                settle_counter(growth.array.appended, on)
            for buffer, region, write in variant.touched:
                if buffer.closed or buffer.guarded or buffer.backing.views:
                    buffer.check()
                    if write and buffer.meets_seal:
                        buffer.check_write(region, "a graph")
                    buffer.backing_for(on, region, "a graph", write=write)
            uses, rows = variant.uses, []
            if self._growths:
                rows = [self._room_for(growth, on) for growth in self._growths.values()]
                uses = [*uses, *(each.use for each in rows)]
            results = variant.new_results()
            commands = on.begin(uses, "a graph")
            variant.replayed(on.lane, on.recorded)
            for result in results:
                result.launched(on.lane, on.recorded)
            recorded: list[None] = []
            try:
                for each in rows:
                    each.begun()
                commands.execute(variant.commands, recorded)
                if events.active:
                    variant.emit(on, began, len(self._nodes))
                if results:
                    on.expect_result()
                for each in rows:
                    each.recorded()
                value = on.end()
            except BaseException:
                for each in rows:  # either all arrays get their rows or none does
                    if recorded:
                        each.recorded()
                    else:
                        each.not_recorded()
                raise
        if len(results) == 1:
            return results[0]
        points = {on.lane: value}
        if not results:
            return Pending(scheduler, points, "a graph", value=None)
        return Pending(scheduler, points, "a graph", lambda: tuple(r.result() for r in results))

    def encode(self) -> None:
        """Encode the commands for the driver now, which otherwise the first replay does."""
        with self._scheduler.lock:
            self._check(None)
            self._variant({}, timed=bool(events.detailed))

    def _room_for(self, growth: Growth, stream: Stream) -> Rows:
        """The rows that a replay appends, in memory that no host view blocks."""
        rows = growth.next_rows()
        growth.array.buffer.backing_for(stream, rows.region, "a graph", write=True)
        return rows

    def close(self) -> None:
        """Free the graph's resources once replays in flight are complete. Safe to call twice."""
        with self._scheduler.lock:
            if not self._closed:
                self._closed = True
                self._scheduler.retirement.retire_graph(self._end_of_life)

    @property
    def closed(self) -> bool:
        return self._closed

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else "" if self._recorded else ", recording"
        kinds = [type(node).__name__.removesuffix("Node").lower() for node in self._nodes]
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
        if scheduler.captures:
            captures = scheduler.captures.values()
            if any(graph is self and block.is_active for graph, block in captures):
                raise NotWhileRecording("the graph is still being recorded")
            check_not_capturing(scheduler, "a replay of another graph")
        if not self._recorded:
            raise Closed("the graph was not recorded to its end")
        for kernel in self._kernels:
            if kernel.closed:
                raise Closed(f"{kernel.what}, which the graph launches, is closed")
        return scheduler.stream_or_default(stream)

    def _check_changed(self, changed: Mapping[str, Any]) -> None:
        """Raise unless these can replace parameters of a replay."""
        for name, value in changed.items():
            if name not in self._values:
                known = ", ".join(self._values) or "none"
                raise ArgumentError(f"the graph has no parameter {name!r}; it has {known}")
            recorded = self._arrays.get(name)
            if recorded is not None and value is not recorded:
                self._check_array(name, recorded, value)
            elif recorded is None and isinstance(value, Array):
                raise ArgumentError(f"parameter {name!r} was recorded as a number, not an array")

    def _check_new_array(self, name: str, array: Array) -> None:
        if array.buffer.scheduler is not self._scheduler:
            raise ArgumentError(f"parameter {name!r} is on {array.device}, not on {self.device}")
        if not array.contiguous:
            raise ShapeMismatch(f"parameter {name!r} is not contiguous; record with a copy()")
        for other, known in self._arrays.items():
            if array.buffer is known.buffer and array.region.overlaps(known.region):
                raise ArgumentError(
                    f"parameters {other!r} and {name!r} are the same bytes, so commands that use "
                    "them are ambiguous; record with a separate array for each"
                )

    def _check_array(self, name: str, recorded: Array, array: Any) -> None:
        if not isinstance(array, Array):
            raise ArgumentError(f"parameter {name!r} must be an array of {self.device}")
        if array.buffer.scheduler is not self._scheduler:
            raise ArgumentError(f"parameter {name!r} is on {array.device}, not on {self.device}")
        array.buffer.check()
        if array.dtype != recorded.dtype:
            raise DtypeMismatch(f"parameter {name!r} must be {recorded.dtype}, not {array.dtype}")
        if array.shape != recorded.shape or not array.contiguous:
            raise ShapeMismatch(
                f"parameter {name!r} was recorded with shape {recorded.shape}; it cannot be "
                f"{array.shape}{'' if array.contiguous else ', not contiguous,'} at replay"
            )

    def _variant(self, changed: Mapping[str, Any], *, timed: bool) -> Variant:
        """The graph encoded with these parameters replaced; for a trace, with timestamps."""
        timed = timed and self._scheduler.driver.has_clock
        values = self._values
        if changed:
            self._check_changed(changed)
            values = {**values, **changed}
        key: tuple[Any, ...] = tuple([_key(name, value) for name, value in values.items()])
        key = (*key, "timed") if timed else key
        kept = self._variants.get(key)
        found = None if kept is None else encoding.usable(kept)
        if found is not None:
            found.read_times()
            return found
        variant = self._spare(timed)
        try:
            variant = variant or Variant(self._scheduler, timed=timed)
            variant.encode(self._nodes, self._arrays, values, self._growths)
            kept = self._variants.setdefault(key, deque())
        except BaseException as error:
            self._scheduler.note_failure(error)
            if variant is not None:
                self._scheduler.retirement.retire_variants([variant])
            raise
        kept.append(variant)  # no other call before this one: an exception would lose the variant
        return variant

    def _spare(self, timed: bool) -> Variant | None:
        """The least recently used variant, to be encoded anew, if none of it is in flight."""
        if sum(map(len, self._variants.values())) < _VARIANTS:
            return None
        every = [(variant, key) for key, kept in self._variants.items() for variant in kept]
        for variant, key in sorted(every, key=lambda pair: pair[0].last_used):
            if variant.unread or variant.timed != timed:
                continue
            if variant.in_flight:
                return None  # the others were replayed later than this one
            self._variants[key].remove(variant)
            if not self._variants[key]:
                del self._variants[key]
            variant.clear()
            return variant
        return None


def _key(name: str, value: Any) -> tuple[Any, ...]:
    """A key that distinguishes values of a parameter, also 0.0 from -0.0 and 1 from True."""
    if isinstance(value, Array):
        return value.buffer, value.buffer.backing, value.layout.offset
    if type(value) is float:
        return float, _bits(value)
    if type(value) is int and -_FAR <= value < _FAR:
        return int, value
    data = as_array(value, None)
    if data.dtype.kind == "O":
        raise ArgumentError(f"parameter {name!r} must be a number or several, not {value!r}")
    return data.dtype, data.shape, data.tobytes()


#: Types whose values can be read without running the caller's code.
_PLAIN = (Array, Scalar, int, float, complex, np.generic, type(None))


def _frozen(value: Any) -> Any:
    """Snapshot a value that the caller could change, or whose conversion runs the caller's code.

    May wait for a pending result and may run the caller's code, so call it without the lock.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return np.array(value)
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    data = as_array(value, None)
    return value if data.dtype.kind == "O" else data.copy()[()]


def _number(value: Any) -> Any:
    """Convert a scalar that only supports `int()` or `float()` to that number."""
    if isinstance(value, (*_PLAIN, np.ndarray, tuple)):
        return value
    for ask in (operator.index, float):
        with contextlib.suppress(TypeError):
            return ask(value)
    return value


def _counts(given: Any, what: str) -> Any:
    """Numbers of threads or groups as Python integers; parameters are left as they are."""
    if given is None or isinstance(given, Scalar):
        return given
    counts = as_counts(given, what)
    return counts[: len(given)] if isinstance(given, tuple | list) else counts[0]
