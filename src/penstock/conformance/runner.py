"""Runs programs on a device, compares with the oracle, and makes failing programs small.

Nothing here waits for ever: waits have a time limit, and because some calls have none, a program
runs in a thread that is given up after a while.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.closing import Closing
from penstock.conformance.kernels import KERNELS, SLOW, Kernels
from penstock.conformance.oracle import Oracle, initial, is_valid, source_of
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
    with_parts,
)

Host = npt.NDArray[Any]

_PATIENCE = 20.0  # seconds until a wait counts as hanging
_SIMULATED = 5.0  # seconds for a program on the simulator, which takes milliseconds
_HANGS = "the program hangs"
_SHRINKING = 30.0  # seconds at most
_SCHEDULES = 12  # seeds of the simulator to try on a smaller program


@dataclass(frozen=True)
class Failure:
    """What went wrong, at which operation (None: at the end), and on what."""

    what: str
    operation: int | None
    transfers: str
    seed: int
    messages: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "at the end" if self.operation is None else f"at operation {self.operation}"
        return "\n".join([f"{self.what} ({where}, transfers={self.transfers!r})", *self.messages])


class Bench:
    """An open device with the kernels and streams that programs use."""

    def __init__(self, device: ps.Device, seed: int = 0) -> None:
        self.device = device
        self.seed = seed
        self.kernels = Kernels(device)
        self._streams = [device.default_stream]

    def streams(self, count: int) -> list[ps.Stream]:
        while len(self._streams) < count:
            self._streams.append(self.device.stream())
        return self._streams[:count]

    def reopen(self, number: int) -> ps.Stream:
        self._streams[number].close()
        self._streams[number] = self.device.stream()
        return self._streams[number]

    @property
    def transfers(self) -> str:
        return self.device.scheduler.transfers


class Lab(Closing):
    """Opens devices for programs: a fresh one each time on the simulator, else one per mode."""

    def __init__(
        self, driver: str = "sim", device: str | None = None, *, validate: bool = False
    ) -> None:
        self.driver = driver
        self.device = device
        self.validate = validate
        self._benches: dict[str, Bench] = {}

    def run(self, program: Program, transfers: str, seed: int) -> Failure | None:
        """Run a program in a transfer mode; the seed is the simulator's."""
        if self.driver == "sim":
            device = ps.Device(driver="sim", seed=seed, transfers=transfers)
            failure = _run_with_limit(program, Bench(device, seed), _SIMULATED)
            if failure is not None and failure.what == _HANGS:
                return failure
            try:
                device.close()
            except ps.Error as error:
                return failure or Failure(f"close: {error}", None, transfers, seed)
            return failure
        failure = _run_with_limit(program, self._bench(transfers), 2 * _PATIENCE)
        if failure is not None:
            self._benches.pop(transfers)  # it may hang or be lost: left to the garbage collector
        return replace(failure, seed=seed) if failure else None

    def run_any(self, program: Program, failed: Failure) -> Failure | None:
        """Run a program as it failed before; on the simulator under some more schedules too."""
        aligned = self.alignment(failed.transfers)
        launches = (each for each in program.operations if isinstance(each, Launch))
        if any(part.lo % aligned for launch in launches for part in launch.parts):
            return None  # refused by this device, which is another failure
        seeds = range(failed.seed, failed.seed + (_SCHEDULES if self.driver == "sim" else 1))
        runs = (self.run(program, failed.transfers, seed) for seed in seeds)
        return next((failure for failure in runs if failure is not None), None)

    def device_arguments(self, failure: Failure) -> str:
        """The arguments of `ps.Device` that open such a device."""
        if self.driver == "sim":
            return f'driver="sim", seed={failure.seed}, transfers="{failure.transfers}"'
        which = "" if self.device is None else f'"{self.device}", '
        validate = ", validate=True" if self.validate else ""
        return f'{which}transfers="{failure.transfers}"{validate}'

    def name_of(self, transfers: str) -> str:
        return "simulator" if self.driver == "sim" else self._bench(transfers).device.name

    def alignment(self, transfers: str) -> int:
        """Elements; kernels take slices that start at multiples of it."""
        if self.driver == "sim":
            return 4
        nbytes: Any = self._bench(transfers).device.info.limits["binding_alignment"]
        return max(4, int(nbytes) // 4)

    def close(self) -> None:
        for bench in self._benches.values():
            bench.device.close()
        self._benches.clear()

    def _bench(self, transfers: str) -> Bench:
        if transfers not in self._benches:
            device = ps.Device(
                self.device, driver=self.driver, transfers=transfers, validate=self.validate
            )
            self._benches[transfers] = Bench(device)
        return self._benches[transfers]


def run(program: Program, bench: Bench) -> Failure | None:
    """Run a program and compare all that can be seen; what was wrong, if anything."""
    said_before = len(bench.device.messages)
    running = Running(program, bench)
    what = ""
    try:
        running.all()
    except Wrong as wrong:
        what = str(wrong)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
    finally:
        running.end_batches()
    messages = tuple(bench.device.messages[said_before:])
    if not what and not messages:
        return None
    return Failure(what or messages[0], running.at, bench.transfers, bench.seed, messages)


def _run_with_limit(program: Program, bench: Bench, seconds: float) -> Failure | None:
    """Run in a thread that is told to end if it takes too long, and is not waited for."""
    outcome: list[Failure | None] = []

    def work() -> None:
        with contextlib.suppress(_Ended):
            outcome.append(run(program, bench))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if outcome:
        return outcome[0]
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_Ended))
    return Failure(_HANGS, None, bench.transfers, bench.seed)


class _Ended(BaseException):
    """Raised in a thread that has run for too long."""


class Wrong(Exception):
    """The device showed something else than the oracle."""


class Running:
    """A program on its way, on the device and on the oracle at once."""

    def __init__(self, program: Program, bench: Bench) -> None:
        self.program = program
        self.bench = bench
        self.device = bench.device
        self.oracle = Oracle(program.arrays, program.streams)
        self.at: int | None = None
        self.streams = bench.streams(program.streams)
        self.lent: dict[int, Host] = {}  # the host's side of adopted arrays
        self.pending: dict[int, ps.Pending[Any]] = {}
        self.sources: dict[int, Host] = {}
        self.outs: dict[int, Host] = {}
        self.results: dict[int, Host] = {}
        self.events: dict[int, ps.Event] = {}
        self.views: dict[int, Host] = {}
        self.batches: dict[int, contextlib.ExitStack] = {}
        self.arrays: list[ps.Array] = []

    def all(self) -> None:
        self.arrays += map(self._make, range(len(self.program.arrays)))
        for number, operation in enumerate(self.program.operations):
            self.at = number
            seen = self._do(operation)
            expected = self.oracle.step(operation)
            if expected is not None:
                _compare(type(operation).__name__.lower(), seen, expected)
            self._check_events(operation)
        self.at = None
        self._finish()

    def end_batches(self) -> None:
        for batch in self.batches.values():
            with contextlib.suppress(ps.Error):
                batch.close()
        self.batches.clear()

    def _finish(self) -> None:
        """Everything that is still to be seen; no waiting for all before, that would help."""
        for number, array in enumerate(self.arrays):
            _compare(f"array {number}", array.numpy(), self.oracle.arrays[number])
        self.end_batches()
        for slot, transfer in self.oracle.transfers.items():
            if not transfer.collected:
                self._collect(slot)
            if transfer.value is not None:
                _compare(f"the value of read {slot}", self.results[slot], transfer.value)
        for slot, (_, expected) in self.oracle.views.items():
            _compare(f"held view {slot}", self.views[slot], expected)
        for event in self.events.values():
            event.wait(_PATIENCE)
        self.device.synchronize(_PATIENCE)
        for number, lent in self.lent.items():
            _compare(f"the memory of array {number}", lent, self.oracle.arrays[number])

    def _make(self, number: int) -> ps.Array:
        declared = self.program.arrays[number]
        if declared.how == "zeros":
            return self.device.zeros(declared.size, np.uint32)
        content = initial(number, declared)
        if declared.how == "array":
            return self.device.array(content)
        self.lent[number] = self.device.host_empty(declared.size, np.uint32)
        self.lent[number][:] = content
        return self.device.adopt(self.lent[number])

    def _part(self, part: Part) -> ps.Array:
        array = self.arrays[part.array]
        whole = (part.lo, part.hi, part.step) == (0, array.size, 1)
        return array if whole else array[part.index]

    def _do(self, operation: Operation) -> Host | None:
        """Do one operation; what it shows."""
        match operation:
            case Write():
                self._write(operation)
            case Change(slot=slot):
                self.sources[slot][:] = 99
            case Read(of=part, slot=slot, stream=stream):
                out = np.zeros(part.size, np.uint32) if operation.out else None
                if out is not None:
                    self.outs[slot] = out
                self.pending[slot] = self._part(part).read(self.streams[stream], out)
            case Collect(slot=slot):
                return self._collect(slot)
            case Numpy(of=part):
                return self._part(part).numpy()
            case View(of=part, slot=slot):
                try:
                    self.views[slot] = self._part(part).view()
                except ps.Unsupported:  # memory that is not mapped
                    self.views[slot] = self._part(part).numpy()
                return self.views[slot].copy()
            case Drop(slot=slot):
                return self.views.pop(slot).copy()
            case Fill(to=part, value=value, stream=stream):
                self._part(part).fill(value, self.streams[stream])
            case Copy(source=source, target=target, stream=stream):
                self._part(target).copy_from(self._part(source), self.streams[stream])
            case Poke(to=part, value=value):
                self.lent[part.array][part.index] = value
            case Launch():
                self._launch(operation)
            case Renew(array=array):
                if operation.close:
                    self.arrays[array].close()
                self.arrays[array] = self._make(array)
            case _:
                self._order(operation)
        return None

    def _order(self, operation: Operation) -> None:
        """Operations that move no data."""
        match operation:
            case Record(slot=slot, stream=stream):
                self.events[slot] = self.streams[stream].record()
            case StreamWait(slot=slot, stream=stream):
                self.streams[stream].wait(self.events[slot])
            case EventWait(slot=slot):
                self.events[slot].wait(_PATIENCE)
            case Flush(stream=stream):
                self.streams[stream].flush()
            case Reopen(stream=stream):
                self.streams[stream] = self.bench.reopen(stream)
            case BeginBatch(stream=stream):
                self.batches[stream] = contextlib.ExitStack()
                self.batches[stream].enter_context(self.streams[stream].batch())
            case EndBatch(stream=stream):
                self.batches.pop(stream).close()
            case Synchronize():
                self.device.synchronize(_PATIENCE)
                if not all(stream.record().done for stream in self.streams):
                    raise Wrong("an event recorded on an idle stream is not done")
            case _:
                pass

    def _write(self, write: Write) -> None:
        source = source_of(write)
        if write.pinned:
            source = self.device.host_empty(write.to.size, np.uint32)
            source[:] = source_of(write)
        stream = self.streams[write.stream]
        self.sources[write.slot] = source
        self.pending[write.slot] = self._part(write.to).write(source, stream, write.borrow)

    def _launch(self, launch: Launch) -> None:
        names = [name for name, _ in KERNELS[launch.kernel].arrays]
        parts = zip(names, map(self._part, launch.parts), strict=True)
        arguments: dict[str, Any] = dict(parts)
        size = launch.parts[0].size
        self.bench.kernels[launch.kernel](
            **arguments, n=size, spin=SLOW if launch.slow else 0, a=launch.value,
            threads=size, stream=self.streams[launch.stream],
        )  # fmt: skip

    def _collect(self, slot: int) -> Host | None:
        result = self.pending[slot].result(_PATIENCE)
        if result is not None:
            self.results[slot] = result
            return self.results[slot].copy()
        return None

    def _check_events(self, operation: Operation) -> None:
        """Rule 7: when an event is done, so is all before it, and the bytes have arrived."""
        match operation:
            case EventWait(slot=slot) | EventDone(slot=slot):
                if not self.events[slot].done:
                    if isinstance(operation, EventWait):
                        raise Wrong(f"event {slot} was waited for and is not done")
                    return
                for covered in sorted(self.oracle.events[slot]):
                    if not self.pending[covered].done:
                        raise Wrong(f"event {slot} is done, transfer {covered} before it is not")
                    value = self.oracle.transfers[covered].value
                    if covered in self.outs and value is not None:
                        _compare(f"out of read {covered}", self.outs[covered], value)
            case _:
                pass


def _compare(what: str, got: Host | None, expected: Host) -> None:
    if got is None or not np.array_equal(got, expected):
        raise Wrong(f"{what}: {describe_difference(got, expected)}")


def describe_difference(got: Host | None, expected: Host) -> str:
    """Where two arrays differ first, and in how many elements."""
    if got is None or got.shape != expected.shape:
        return f"expected {expected.shape} elements, got {None if got is None else got.shape}"
    wrong = np.flatnonzero(got != expected)
    first = int(wrong[0])
    return (
        f"{len(wrong)} of {len(expected)} elements are wrong, the first at {first}: "
        f"expected {expected[first]}, got {got[first]}"
    )


# Shrinking.


def shrink(
    program: Program, failure: Failure, again: Callable[[Program, Failure], Failure | None]
) -> tuple[Program, Failure]:
    """A small program that still fails, and how; `again` runs a program as the last one failed.

    Tries one simplification after the other, in a fixed order, and starts over from each that
    still fails, until none does.
    """
    deadline = time.monotonic() + _SHRINKING
    tried: set[Program] = set()
    better = True
    while better:
        better = False
        for candidate in _simpler(program):
            if candidate in tried or not is_valid(candidate):
                continue
            if time.monotonic() > deadline:
                return program, failure
            tried.add(candidate)
            found = again(candidate, failure)
            if found is not None:
                program, failure, better = candidate, found, True
                break
    return program, failure


def _simpler(program: Program) -> Iterator[Program]:
    """Programs that are a little simpler, the boldest first."""
    operations = program.operations
    size = len(operations) // 2
    while size:
        for start in range(0, len(operations), size):
            yield replace(program, operations=operations[:start] + operations[start + size :])
        size //= 2
    # A pair such as begin and end of a batch, or a view and its drop, only goes together.
    slots = {getattr(operation, "slot", None) for operation in operations} - {None}
    for slot in sorted(slots, key=repr):
        kept = tuple(each for each in operations if getattr(each, "slot", None) != slot)
        yield replace(program, operations=kept)
    without = (each for each in operations if not isinstance(each, BeginBatch | EndBatch))
    yield replace(program, operations=tuple(without))
    yield from _simpler_shape(program)
    for number, operation in enumerate(operations):
        for other in _simpler_operation(operation):
            yield replace(
                program, operations=(*operations[:number], other, *operations[number + 1 :])
            )


def _simpler_shape(program: Program) -> Iterator[Program]:
    """Fewer streams, smaller and plainer arrays."""
    operations = program.operations
    if program.streams > 1:
        last = program.streams - 1
        first: Any = {"stream": 0}
        moved = tuple(
            replace(each, **first) if getattr(each, "stream", 0) == last else each
            for each in operations
        )
        yield replace(program, streams=last, operations=moved)
    used = {part.array for each in operations for part in parts_of(each)}
    if max(used, default=-1) < len(program.arrays) - 1 and len(program.arrays) > 1:
        kept = tuple(
            each for each in operations if getattr(each, "array", 0) < len(program.arrays) - 1
        )
        yield replace(program, arrays=program.arrays[:-1], operations=kept)
    for number, declared in enumerate(program.arrays):
        if declared.how != "zeros":
            yield _with_array(program, number, declared.size, "zeros")
        start = min((p.lo for o in operations for p in parts_of(o) if p.array == number), default=0)
        if start >= 4:
            yield _moved_down(program, number, start // 4 * 4)
        if declared.size > 4:
            yield _with_array(program, number, max(4, declared.size // 8 * 4), declared.how)


def _with_array(program: Program, number: int, size: int, how: str) -> Program:
    """The program with an array made otherwise; slices are cut to its size."""
    arrays = list(program.arrays)
    arrays[number] = Declared(size, how)

    def cut(part: Part) -> Part:
        return replace(part, hi=min(part.hi, size)) if part.array == number else part

    operations = tuple(with_parts(operation, cut) for operation in program.operations)
    return replace(program, arrays=tuple(arrays), operations=operations)


def _moved_down(program: Program, number: int, count: int) -> Program:
    """The program with all slices of an array so many elements further down."""

    def down(part: Part) -> Part:
        moved = replace(part, lo=part.lo - count, hi=part.hi - count)
        return moved if part.array == number else part

    operations = tuple(with_parts(operation, down) for operation in program.operations)
    return replace(program, operations=operations)


def _simpler_operation(operation: Operation) -> Iterator[Operation]:
    """The operation with less: shorter slices, no options."""
    size = max((part.size for part in parts_of(operation)), default=0)
    half = max(4, size // 8 * 4) if isinstance(operation, Launch) else size // 2
    if 0 < half < size:
        yield with_parts(operation, lambda p: replace(p, hi=p.lo + half * p.step))
        yield with_parts(operation, lambda p: replace(p, lo=p.lo + (size - half) * p.step))
    if any(part.step > 1 for part in parts_of(operation)):
        yield with_parts(operation, lambda p: replace(p, hi=p.lo + p.size, step=1))
    for option in ("slow", "borrow", "pinned", "out", "close", "stream"):
        value: Any = getattr(operation, option, False)
        if value:
            plain: Any = {option: type(value)()}
            yield replace(operation, **plain)
