"""Runs programs on a device through the public API, and compares the results with the oracle."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.conformance import program as op
from penstock.conformance.bench import Bench as Bench
from penstock.conformance.comparing import Failure as Failure
from penstock.conformance.comparing import Wrong as Wrong
from penstock.conformance.comparing import compare
from penstock.conformance.interrupts import interrupted, no_collection
from penstock.conformance.kernels import KERNELS, SLOW
from penstock.conformance.oracle import Oracle, fitting, initial, numbers
from penstock.conformance.parts import Part, Raises
from penstock.conformance.program import NEEDS_DEVICE, Operation, Program
from penstock.conformance.scripting import (
    SMALL,
    closed,
    compiled_misuse,
    launched,
    ordinary_memory,
    there_and_on,
    uses_other_device,
)
from penstock.conformance.threads import Step, dependencies, thread_of, together
from penstock.schedule.thresholds import Sizes

Host = npt.NDArray[Any]

PATIENCE = 20.0  # seconds after which a wait counts as a hang


def run(program: Program, bench: Bench) -> Failure | None:
    """Run a program and compare everything it observes; return the failure, if any."""
    said_before = Counter(bench.messages)
    running = Running(program, bench)
    what = ""
    try:
        with no_collection() if program.interrupted else contextlib.nullcontext():
            running.all()
    except Wrong as wrong:
        what = str(wrong)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
    finally:
        running.end_batches()
        bench.device.scheduler.sizes = Sizes()
    messages = tuple((Counter(bench.messages) - said_before).elements())
    if not what and not messages:
        return None
    return Failure(what or messages[0], running.at, bench.transfers, bench.seed, messages)


class Running:
    """A run of a program, on the device and on the oracle."""

    def __init__(self, program: Program, bench: Bench) -> None:
        self.program = program
        self.bench = bench
        self.device = bench.device
        self.oracle = Oracle(program.arrays, program.streams, mapped=bench.mapped, alignment=1)
        self.expected: list[Host | Raises | None] = []
        self.content_when_closed: list[Host] = []
        for number, operation in enumerate(program.operations):
            if number == program.closed_at:
                self.content_when_closed = [array.copy() for array in self.oracle.arrays]
            self.expected.append(_outcome(self.oracle, operation))
        self.never_made: set[int] = set()  # slots of operations that found the device closed
        self.interrupted = dict(program.interrupted)
        self.at: int | None = None  # the operation that failed
        self.streams = bench.streams(program.streams)
        self.lent: dict[int, Host] = {}  # the host memory of adopted arrays
        self.left: dict[int, list[Host]] = {}  # the same of arrays that were renewed, by number
        self.pending: dict[int, ps.Pending[Any]] = {}
        self.sources: dict[int, Host] = {}
        self.outs: dict[int, Host] = {}
        #: A graph, and its remaining replays.
        self.replaying: tuple[ps.Graph, int] | None = None
        self.results: dict[int, Host] = {}
        self.events: dict[int, ps.Event] = {}
        self.views: dict[int, Host] = {}
        self.unmapped: dict[int, ps.Array] = {}  # the arrays of views that are copies
        self.batches: dict[int, contextlib.ExitStack] = {}
        self.arrays: list[ps.Array] = []

    def all(self) -> None:
        if self.program.small:
            self.device.scheduler.sizes = SMALL
        for number in range(len(self.program.arrays)):
            self.arrays.append(self._make(number))
        if any(map(uses_other_device, self.program.operations)):
            _ = self.bench.other  # opened here, because several threads must not open it at once
        closed_at = self.program.closed_at
        steps = [partial(self._step, number) for number in range(len(self.expected))]
        if self.program.threads == 1:
            for number, step in enumerate(steps):
                if closed_at and number == closed_at:
                    self._close()
                step()
        else:
            threads = (thread_of(self.program, number) for number in range(len(steps)))
            after = dependencies(self.program)
            calls: list[Step] = list(zip(threads, steps, after, strict=True))
            if closed_at:
                calls.append((self.program.threads, self.device.close, {closed_at - 1}))
            together(self.device, calls, self.bench.seed)
        if closed_at:
            self._finish_closed()
        else:
            self._finish()

    def _close(self) -> None:
        """Close the device; adopted memory must then hold what earlier work has written."""
        self.device.close()
        for number, lent in self.lent.items():
            compare(f"memory of array {number}, closed", lent, self.content_when_closed[number])

    def _step(self, number: int) -> None:
        """Do an operation; once the device may be closed, it may raise `Closed` instead.

        It must raise `Closed` if the device is certainly closed and the operation needs it.
        """
        several = self.program.threads > 1
        if not self.program.closed_at or (number < self.program.closed_at and not several):
            self._step_exactly(number)
            return
        operation = self.program.operations[number]
        if getattr(operation, "slot", -1) in self.never_made or isinstance(operation, op.Length):
            return  # the length depends on which appends came before closing
        try:
            self._step_exactly(number)
        except ps.Closed:
            if not self.device.closed:
                raise
            self.at = None
            if isinstance(operation, op.Write | op.Read | op.Ask | op.View | op.Record):
                self.never_made.add(operation.slot)
        else:
            raises = isinstance(self.expected[number], Raises)
            if not several and isinstance(operation, NEEDS_DEVICE) and not raises:
                self.at = number
                raise Wrong(f"{type(operation).__name__.lower()} must raise Closed")

    def _step_exactly(self, number: int) -> None:
        operation, expected = self.program.operations[number], self.expected[number]
        try:
            if isinstance(expected, Raises):
                self._must_raise(number, expected.error)
                return
            seen = self._attempt(number)
            if expected is not None:
                compare(type(operation).__name__.lower(), seen, expected)
            self._check_events(operation)
        except BaseException:
            self.at = number
            raise

    def _attempt(self, number: int) -> Host | None:
        """Do an operation, and retry it if it is interrupted."""
        operation = self.program.operations[number]
        every = self.interrupted.get(number)
        if every is None:
            return self._do(operation)
        seen: Host | None = None

        @interrupted(every, keep=not isinstance(operation, op.View))
        def _() -> None:
            nonlocal seen
            seen = self._do(operation)

        return seen

    def _must_raise(self, number: int, error: type[ps.Error]) -> None:
        operation = self.program.operations[number]
        try:
            self._attempt(number)
        except error as raised:
            if type(raised) is not error:
                raise
        else:
            raise Wrong(f"{type(operation).__name__.lower()} must raise {error.__name__}")

    def end_batches(self) -> None:
        for batch in self.batches.values():
            with contextlib.suppress(ps.Error):
                batch.close()
        self.batches.clear()

    def _finish(self) -> None:
        """Compare what was not compared yet, without synchronizing first, which could hide bugs."""
        if self.program.threads > 1:  # only a view's thread may read what it holds writable
            self._check_views()
            self.views.clear()
        for number, array in enumerate(self.arrays):
            compare(f"array {number}", array.numpy(force=True), self.oracle.arrays[number])
        self.end_batches()
        for slot, transfer in self.oracle.transfers.items():
            if not transfer.collected:
                self._collect(slot)
            if transfer.value is not None:
                compare(f"the value of read {slot}", self.results[slot], transfer.value)
        self._check_views()
        for event in self.events.values():
            event.wait(PATIENCE)
        self.device.synchronize(PATIENCE)
        for number, lent in self.lent.items():
            compare(f"the memory of array {number}", lent, self.oracle.arrays[number])
        for number, gone in self.left.items():
            for lent, content in zip(gone, self.oracle.left[number], strict=True):
                compare(f"the memory of array {number} before it was renewed", lent, content)

    def _finish_closed(self) -> None:
        """Check that what the host holds of a closed device is still valid."""
        self._check_views()
        for lent in (*self.lent.values(), *(each for gone in self.left.values() for each in gone)):
            lent.copy()
        for slot, result in self.results.items():
            value = self.oracle.transfers[slot].value
            if value is not None:
                compare(f"the value of read {slot}", result, value)

    def _check_views(self) -> None:
        for slot, view in self.views.items():
            compare(f"held view {slot}", view, self.oracle.views[slot].value)

    def _make(self, number: int) -> ps.Array:
        declared = self.program.arrays[number]
        content = initial(number, declared)
        match declared.how:
            case "zeros":
                return self.device.zeros(declared.shape, declared.dtype, role=declared.role)
            case "array":
                return self.device.array(content, role=declared.role)
            case "file":
                return self._make_file(content)
            case "again":
                return self._adopt(number, self.lent[number - 1][-declared.size :])
            case "own" if self.device.info.can_import:
                lent = ordinary_memory(declared.shape, declared.dtype)
                lent[...] = content
                with contextlib.suppress(ps.CannotAdopt):
                    return self._adopt(number, lent)
        lent = self.device.host_empty(declared.shape, declared.dtype)
        lent[...] = content
        return self._adopt(number, lent)

    def _adopt(self, number: int, lent: Host) -> ps.Array:
        through = self.program.arrays[number].how == "dlpack"
        adopted = self.device.from_dlpack(lent) if through else self.device.adopt(lent)
        self.lent[number] = lent
        return adopted

    def _make_file(self, content: Host) -> ps.Array:
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(256) + content.tobytes())
            file.flush()
            return self.device.from_file(file.name, content.dtype, content.shape, 256)

    def _part(self, part: Part) -> ps.Array:
        return part.on_device(self.arrays[part.array])

    def _do(self, operation: Operation) -> Host | None:
        """Do one operation; return the value that the program sees, if any."""
        match operation:
            case op.Write():
                self._write(operation)
            case op.Change(slot=slot):
                self.sources[slot][...] = 99
            case op.Read(of=part, slot=slot, stream=stream):
                array = self._part(part)
                out = np.zeros(array.shape, array.dtype) if operation.out else None
                self.pending[slot] = array.read(self.streams[stream], out)
                if out is not None:
                    self.outs[slot] = out
            case op.Collect(slot=slot):
                return self._collect(slot)
            case op.Numpy(of=part):
                return self._part(part).numpy()
            case op.View():
                return self._view(operation)
            case op.Touch(slot=slot, value=value):
                self._touch(slot, value)
            case op.Drop(slot=slot):
                self.unmapped.pop(slot, None)
                return self.views.pop(slot).copy()
            case op.Fill(to=part, value=value, stream=stream):
                array = self._part(part)
                array.fill(fitting(value, array), self.streams[stream])
            case op.Copy():
                self._copy(operation, self._source_of(operation))
            case op.Poke(to=part, value=value):
                place = part.on_host(self.lent[part.array])
                place[...] = fitting(value, place)
            case op.Launch():
                self._launch(operation)
            case op.Ask(of=part, slot=slot, stream=stream, slow=slow):
                array = self._part(part)
                self.pending[slot] = self.bench.kernels["total"](
                    x=array, n=array.size, spin=SLOW if slow else 0, a=0, threads=array.size,
                    stream=self.streams[stream],
                )  # fmt: skip
            case op.Renew(array=number):
                self._renew(number, operation.close)
            case op.Reset(array=number):
                self.arrays[number].reset()
            case op.Length(array=number):
                return np.array(self.arrays[number].length)
            case op.Misuse(what=what, of=part, stream=stream):
                names = {"np": np, "dev": self.device, "closed": closed}
                names |= {"kernels": self.bench.kernels, "s": self.streams[stream]}
                if uses_other_device(operation):
                    names |= {"other": self.bench.other, "launched": launched}
                eval(compiled_misuse(what), {**names, "x": self._part(part)})
            case _:
                self._order(operation)
        return None

    def _source_of(self, copy: op.Copy) -> ps.Array:
        source = self._part(copy.source)
        return there_and_on(self.bench.other, source) if copy.across else source

    def _copy(self, copy: op.Copy, source: ps.Array) -> None:
        self._part(copy.target).copy_from(source, self.streams[copy.stream])

    def _order(self, operation: Operation) -> None:
        """Do an operation that moves no data."""
        match operation:
            case op.Record(slot=slot, stream=stream):
                self.events[slot] = self.streams[stream].record()
            case op.StreamWait(slot=slot, stream=stream):
                self.streams[stream].wait(self.events[slot])
            case op.EventWait(slot=slot):
                self.events[slot].wait(PATIENCE)
            case op.Flush(stream=stream):
                self.streams[stream].flush()
            case op.Reopen(stream=stream):
                self.streams[stream] = self.bench.reopen(stream)
            case op.BeginBatch(stream=stream):
                self.batches[stream] = contextlib.ExitStack()
                self.batches[stream].enter_context(self.streams[stream].batch())
            case op.EndBatch(stream=stream):
                self.batches.pop(stream).close()
            case op.Synchronize():
                self.device.synchronize(PATIENCE)
                if not all(stream.record().done for stream in self.streams):
                    raise Wrong("an event recorded on an idle stream is not done")
            case _:
                pass

    def _write(self, write: op.Write) -> None:
        array = self._part(write.to)
        source = self._source(write, array)
        self.pending[write.slot] = array.write(source, self.streams[write.stream], write.borrow)
        self.sources[write.slot] = source

    def _source(self, write: op.Write, array: ps.Array) -> Host:
        content = numbers(write.value, array)
        shape = (*array.shape, 2) if write.spread else array.shape
        source = np.zeros(shape, array.dtype)
        if write.pinned:
            source = self.device.host_empty(shape, array.dtype)
        if write.spread:
            source = source[..., 0]
        source[...] = content
        return source

    def _view(self, view: op.View) -> Host:
        array = self._part(view.of)
        if self.bench.mapped:
            shown = np.from_dlpack(array) if view.dlpack else array.view(view.mode)
            self.views[view.slot] = shown
        else:
            self.views[view.slot] = array.numpy()
            self.unmapped[view.slot] = array
        return self.views[view.slot].copy()

    def _touch(self, slot: int, value: int) -> None:
        view = self.views[slot]
        view[...] = numbers(value, view)
        if slot in self.unmapped:
            self.unmapped[slot].write(view).wait(PATIENCE)

    def _renew(self, number: int, close: bool) -> None:
        self._forget_copies(number)
        if close:
            self.arrays[number].close()
        lent = self.lent.get(number)
        self.arrays[number] = self._make(number)
        if lent is not None and self.program.arrays[number].how == "own":
            self.left.setdefault(number, []).append(lent)

    def _forget_copies(self, number: int) -> None:
        """Where views are copies, stop writing those of a renewed array back to it."""
        for slot, array in list(self.unmapped.items()):
            if array.buffer is self.arrays[number].buffer:
                self.unmapped.pop(slot, None)

    def _launch(self, launch: op.Launch) -> None:
        names = [name for name, _ in KERNELS[launch.kernel].arrays]
        parts = zip(names, map(self._part, launch.parts), strict=True)
        arguments: dict[str, Any] = dict(parts)
        size = arguments[names[0]].size
        arguments |= {"n": size, "spin": SLOW if launch.slow else 0, "a": launch.value}
        kernel, stream = self.bench.kernels[launch.kernel], self.streams[launch.stream]
        if not launch.again:
            kernel(**arguments, threads=size, stream=stream)
            return
        if self.replaying is None:
            with self.device.record() as graph:
                for _ in range(launch.again):
                    kernel(**arguments, threads=size)
            self.replaying = (graph, launch.again)
        graph, left = self.replaying
        try:
            while left:
                graph.replay(stream)
                left -= 1
        except ps.OutOfMemory:
            self.replaying = (graph, left)  # the retry goes on from here
            raise
        except ps.Error:
            self.replaying = None
            raise
        self.replaying = None
        graph.close()

    def _collect(self, slot: int) -> Host | None:
        result = self.pending[slot].result(PATIENCE)
        if result is not None:
            self.results[slot] = result
            return self.results[slot].copy()
        return None

    def _check_events(self, operation: Operation) -> None:
        """Rule 7: when an event is done, all work before it is, and its bytes have arrived."""
        match operation:
            case op.EventWait(slot=slot) | op.EventDone(slot=slot):
                if not self.events[slot].done:
                    if isinstance(operation, op.EventWait):
                        raise Wrong(f"event {slot} was waited for and is not done")
                    return
                for covered in sorted(self.oracle.events[slot]):
                    if not self.pending[covered].done:
                        raise Wrong(f"event {slot} is done, transfer {covered} before it is not")
                    value = self.oracle.transfers[covered].value
                    if covered in self.outs and value is not None:
                        compare(f"out of read {covered}", self.outs[covered], value)
            case _:
                pass


def _outcome(oracle: Oracle, operation: Operation) -> Host | Raises | None:
    """What the program must see of an operation, or the error that it must raise."""
    try:
        return oracle.step(operation)
    except Raises as refused:
        return refused
