"""Writes a program as a standalone script: calls of the public API, and asserts of the results."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.conformance import program as op
from penstock.conformance.kernels import KERNELS, SLOW
from penstock.conformance.oracle import Oracle, fitting, initial, numbers
from penstock.conformance.parts import Part, Raises
from penstock.conformance.program import IN_PLACE, NEEDS_DEVICE, Operation, Program
from penstock.conformance.scripting import MISUSES, uses_other_device
from penstock.conformance.threads import dependencies, thread_of

Host = npt.NDArray[Any]


def as_script(program: Program, device: str = 'driver="sim"') -> str:
    """Return the program as Python source; `device` has the arguments of `ps.Device`, as text."""
    writer = _Writer(program, mapped='"unmapped"' not in device)
    body = [line for number in range(len(program.arrays)) for line in writer.made(number)]
    body.append("")
    blocks = [writer.operation(operation) for operation in program.operations]
    for number, every in program.interrupted:
        keep = ", keep=False" if isinstance(program.operations[number], op.View) else ""
        blocks[number] = ["", f"@interrupted({every}{keep})", *_function("_", blocks[number])]
    if program.closed_at:
        first = program.closed_at if program.threads == 1 else 0
        for number in range(first, len(blocks)):
            must = program.threads == 1 and isinstance(program.operations[number], NEEDS_DEVICE)
            blocks[number] = _closed(blocks[number], must=must)
    if program.threads == 1:
        if program.closed_at:
            blocks.insert(program.closed_at, ["dev.close()", *writer.lent_when_closed])
        body += [line for block in blocks for line in block]
    else:
        seed = re.search(r"seed=(\d+)", device)
        body += [*_steps(program, blocks), f"together(dev, steps, {seed[1] if seed else 0})"]
    body += ["", *(writer.end_closed() if program.closed_at else writer.end())]
    opened = [f"dev = ps.Device({device})"]
    if program.interrupted:
        opened.insert(0, "gc.disable()  # finalisers would use the device at any time")
    if any(map(uses_other_device, program.operations)):
        another = re.sub(r"seed=(\d+)", lambda found: f"seed={int(found[1]) + 1}", device)
        opened.append(f"other = ps.Device({another})")
    if program.small:
        opened.append("dev.scheduler.sizes = SMALL")
    if "kernels[" in "".join(body):
        opened.append("kernels = Kernels(dev)")
    opened.append("s0 = dev.default_stream")
    opened += [f"s{number} = dev.stream()" for number in range(1, program.streams)]
    about = [f"# {line}" for line in (program.name, program.about) if line]
    return "\n".join([*about, *_imports("\n".join([*opened, *body])), "", *opened, *body, ""])


def _steps(program: Program, blocks: list[list[str]]) -> list[str]:
    """The lines for operations as functions that threads call."""
    lines: list[str] = []
    calls = []
    after = dependencies(program)
    for number, block in enumerate(blocks):
        lines += _function(f"step{number}", block)
        needed = after[number] or "set()"
        calls.append(f"    ({thread_of(program, number)}, step{number}, {needed}),")
    if program.closed_at:
        calls.append(f"    ({program.threads}, dev.close, {{{program.closed_at - 1}}}),")
    return [*lines, "steps = [", *calls, "]"]


def _closed(block: list[str], *, must: bool = False) -> list[str]:
    """Wrap lines that may find the device closed; with `must` they have to, unless they raise."""
    must = must and not any("raises(" in line for line in block)
    expecting = "raises(ps.Closed)" if must else "perhaps_closed()"
    return [f"with {expecting}:", *(f"    {line}" for line in block)]


def _function(name: str, block: list[str]) -> list[str]:
    """Wrap lines in a function that sets the script's global names."""
    found = (re.match(r" *(?:del )?(\w+)(?: =|$)", line) for line in block)
    names = sorted({match[1] for match in found if match})
    declared = [f"    global {', '.join(names)}"] if names else []
    return [f"def {name}():", *declared, *(f"    {line}" for line in block), "", ""]


def _imports(text: str) -> list[str]:
    modules = [f"import {name}" for name in ("gc", "tempfile", "zlib") if f"{name}." in text]
    lines = [*modules, ""] if modules else []
    lines += ["import numpy as np", "", "import penstock as ps"]
    if "@interrupted(" in text:
        lines.append("from penstock.conformance.interrupts import interrupted")
    if "Kernels" in text:
        lines.append("from penstock.conformance.kernels import Kernels")
    used = [
        name
        for name in (
            "SMALL",
            "closed",
            "launched",
            "ordinary_memory",
            "perhaps_closed",
            "raises",
            "there_and_on",
        )
        if re.search(rf"\b{name}\b", text)
    ]
    if used:
        lines.append(f"from penstock.conformance.scripting import {', '.join(used)}")
    if "together(" in text:
        lines.append("from penstock.conformance.threads import together")
    return lines


class _Writer:
    """Writes operations as text, with asserts of the oracle's results."""

    def __init__(self, program: Program, *, mapped: bool) -> None:
        self.program = program
        self.mapped = mapped
        self.oracle = Oracle(program.arrays, program.streams, mapped=mapped, alignment=1)
        self.viewed: dict[int, Part] = {}
        self.lent_when_closed: list[str] = []
        self._written = 0  # how many operations

    def made(self, number: int) -> list[str]:
        declared = self.program.arrays[number]
        a, host = f"a{number}", f"host{number}"
        kind = f"{declared.shape}, np.{declared.dtype}"
        content = _values(initial(number, declared))
        role = "" if declared.role == "generic" else f', role="{declared.role}"'
        match declared.how:
            case "zeros":
                return [f"{a} = dev.zeros({_shape(declared.shape)}, np.{declared.dtype}{role})"]
            case "array":
                return [f"{a} = dev.array({content}{role})"]
            case "file":
                return [
                    "with tempfile.NamedTemporaryFile() as file:",
                    f"    file.write(bytes(256) + {content}.tobytes())",
                    "    file.flush()",
                    f"    {a} = dev.from_file(file.name, np.{declared.dtype}, "
                    f"{_shape(declared.shape)}, 256)",
                ]
            case "again":
                return [
                    f"{host} = host{number - 1}[-{declared.size}:]",
                    f"{a} = dev.adopt({host})",
                ]
        made = "ordinary_memory" if declared.how == "own" else "dev.host_empty"
        return [
            f"{host} = {made}({kind})",
            f"{host}[...] = {content}",
            f"{a} = dev.{'from_dlpack' if declared.how == 'dlpack' else 'adopt'}({host})",
        ]

    def operation(self, operation: Operation) -> list[str]:
        if self.program.closed_at and self._written == self.program.closed_at:
            self.lent_when_closed = self._lent()
        self._written += 1
        lines = self._lines(operation)
        try:
            expected = self.oracle.step(operation)
        except Raises as refused:
            if isinstance(operation, op.Launch):
                inner = [f"    {line}" for line in lines]
                return [f"with raises(ps.{refused.error.__name__}):", *inner]
            *before, last = lines[:1] if isinstance(operation, op.View) else lines
            return [*before, f"with raises(ps.{refused.error.__name__}):", f"    {last}"]
        if expected is None or (self.program.closed_at and isinstance(operation, op.Length)):
            return lines
        *before, shown = lines
        after = [] if not isinstance(operation, op.Drop) else [f"del view{operation.slot}"]
        return [*before, _equal(shown, expected), *after]

    def end(self) -> list[str]:
        views = [_equal(f"view{slot}", shown.value) for slot, shown in self.oracle.views.items()]
        lines = []
        if self.program.threads > 1:  # only the holder's thread may read under a writable view
            lines = [*views, *(f"del view{slot}" for slot in self.oracle.views)]
            views = []
        lines += [
            _equal(f"a{n}.numpy({'force=True' if self._is_scratch(n) else ''})", value)
            for n, value in enumerate(self.oracle.arrays)
        ]
        lines += [f"batch{stream}.__exit__(None, None, None)" for stream in self.oracle.batches]
        for slot, transfer in self.oracle.transfers.items():
            result = f"pending{slot}.result(20)"
            if transfer.value is not None:
                lines.append(_equal(result, transfer.value))
            elif not transfer.collected:
                lines.append(result)
        lines += [*views, "dev.synchronize(20)"]
        return [*lines, *self._lent(), *self._no_messages()]

    def end_closed(self) -> list[str]:
        """Assert that what the host holds is still valid after closing."""
        lines: list[str] = []
        for slot, shown in self.oracle.views.items():
            lines += _closed([_equal(f"view{slot}", shown.value)])
        return [*lines, *self._no_messages()]

    def _lent(self) -> list[str]:
        return [
            _equal(f"host{number}", self.oracle.arrays[number])
            for number, declared in enumerate(self.program.arrays)
            if declared.how in IN_PLACE
        ]

    def _no_messages(self) -> list[str]:
        devices = ["dev"]
        if any(map(uses_other_device, self.program.operations)):
            devices.append("other")
        return [f'assert not {d}.messages, "\\n".join({d}.messages)' for d in devices]

    def _lines(self, operation: Operation) -> list[str]:
        """The statements of an operation; the last is an expression if it yields a value."""
        match operation:
            case op.Write():
                return self._write(operation)
            case op.Change(slot=slot):
                return [f"source{slot}[...] = 99"]
            case op.Read(of=part, slot=slot, stream=stream):
                return [f"pending{slot} = {self._part(part)}.read(s{stream}{self._out(operation)})"]
            case op.Collect(slot=slot):
                return [f"pending{slot}.result(20)"]
            case op.Numpy(of=part):
                return [f"{self._part(part)}.numpy()"]
            case op.View(of=part, slot=slot, mode=mode):
                self.viewed[slot] = part
                look = f'.view("{mode}")' if self.mapped else ".numpy()"
                shown = f"{self._part(part)}{look}"
                if operation.dlpack and self.mapped:
                    shown = f"np.from_dlpack({self._part(part)})"
                return [f"view{slot} = {shown}", f"view{slot}"]
            case op.Touch(slot=slot, value=value):
                touch = (
                    f"view{slot}[...] = {_values(numbers(value, self.oracle.views[slot].place))}"
                )
                if self.mapped or not self._is_current(slot):
                    return [touch]
                return [touch, f"{self._part(self.viewed[slot])}.write(view{slot}).wait(20)"]
            case op.Drop(slot=slot):
                return [f"view{slot}"]
            case op.Fill(to=part, value=value, stream=stream):
                value = fitting(value, self._like(part))
                return [f"{self._part(part)}.fill({value}, s{stream})"]
            case op.Copy(source=source, target=target, stream=stream, across=across):
                array = self._part(source)
                if across:
                    array = f"there_and_on(other, {array})"
                return [f"{self._part(target)}.copy_from({array}, s{stream})"]
            case op.Poke(to=part, value=value):
                return self._poke(part, value)
            case op.Launch():
                return self._launch(operation)
            case op.Ask(of=part, slot=slot, stream=stream, slow=slow):
                size = self._like(part).size
                rest = (
                    f"a=0, n={size}, spin={SLOW if slow else 0}, threads={size}, stream=s{stream}"
                )
                return [f'pending{slot} = kernels["total"](x={self._part(part)}, {rest})']
            case op.Renew(array=array, close=close):
                return [f"a{array}.close()" if close else f"del a{array}", *self.made(array)]
            case op.Reset(array=array):
                return [f"a{array}.reset()"]
            case op.Length(array=array):
                return [f"a{array}.length"]
            case op.Record(slot=slot, stream=stream):
                return [f"event{slot} = s{stream}.record()"]
            case op.StreamWait(slot=slot, stream=stream):
                return [f"s{stream}.wait(event{slot})"]
            case op.EventWait(slot=slot):
                return [f"event{slot}.wait(20)", *self._covered(slot, "")]
            case op.EventDone(slot=slot):
                return self._covered(slot, f"not event{slot}.done or ") or [f"event{slot}.done"]
            case op.Flush(stream=stream):
                return [f"s{stream}.flush()"]
            case op.Reopen(stream=stream):
                return [f"s{stream}.close()", f"s{stream} = dev.stream()"]
            case op.BeginBatch(stream=stream):
                return [f"batch{stream} = s{stream}.batch()", f"batch{stream}.__enter__()"]
            case op.EndBatch(stream=stream):
                return [f"batch{stream}.__exit__(None, None, None)"]
            case op.Synchronize():
                streams = [f"assert s{n}.record().done" for n in range(self.program.streams)]
                return ["dev.synchronize(20)", *streams]
            case op.Misuse(what=what, of=part, stream=stream):
                return [MISUSES[what][1].format(x=self._part(part), s=f"s{stream}")]

    def _covered(self, slot: int, unless: str) -> list[str]:
        return [f"assert {unless}pending{n}.done" for n in sorted(self.oracle.events[slot])]

    def _part(self, part: Part) -> str:
        return part.text(f"a{part.array}", self.program.arrays[part.array].shape[0])

    def _like(self, part: Part) -> Host:
        """An array of the part's shape and dtype; of any if the part is invalid."""
        try:
            return self.oracle.at(part)
        except Raises:
            return np.zeros(4, np.uint32)

    def _is_current(self, slot: int) -> bool:
        """Whether the viewed array still has the bytes that the view shows."""
        array = self.oracle.arrays[self.viewed[slot].array]
        return np.may_share_memory(array, self.oracle.views[slot].place)

    def _out(self, read: op.Read) -> str:
        like = self._like(read.of)
        return f", out=np.zeros({_shape(like.shape)}, np.{like.dtype})" if read.out else ""

    def _poke(self, part: Part, value: int) -> list[str]:
        """Write host memory with NumPy calls, which have no `reinterpret`: use views of bytes."""
        place = self._like(part)
        text = replace(part, way="").text(f"host{part.array}", -1)
        match part.way:
            case "" | "transposed" | "flat":
                return [f"{text}[...] = {fitting(value, place)}"]
            case "rows":
                rows = f"np.lib.stride_tricks.as_strided({text}.reshape(-1).view(np.uint8), "
                return [f"{rows}{place.shape}, {place.strides})[...] = {fitting(value, place)}"]
        return [f"{text}.view(np.{place.dtype})[...] = {fitting(value, place)}"]

    def _write(self, write: op.Write) -> list[str]:
        source, like = f"source{write.slot}", self._like(write.to)
        content = _values(numbers(write.value, like))
        shape = (*like.shape, 2) if write.spread else like.shape
        made = "dev.host_empty" if write.pinned else "np.empty"
        lines = [f"{source} = {content}"]
        if write.pinned or write.spread:
            chosen = "[..., 0]" if write.spread else ""
            lines = [
                f"{source} = {made}({_shape(shape)}, np.{like.dtype}){chosen}",
                f"{source}[...] = {content}",
            ]
        borrow = ", borrow=True" if write.borrow else ""
        call = f"{self._part(write.to)}.write({source}, s{write.stream}{borrow})"
        return [*lines, f"pending{write.slot} = {call}"]

    def _is_scratch(self, number: int) -> bool:
        return self.program.arrays[number].role == "scratch"

    def _launch(self, launch: op.Launch) -> list[str]:
        names = [name for name, _ in KERNELS[launch.kernel].arrays]
        given = [f"{n}={self._part(p)}" for n, p in zip(names, launch.parts, strict=True)]
        size = self._like(launch.parts[0]).size
        spin = SLOW if launch.slow else 0
        given += [f"a={launch.value}", f"n={size}", f"spin={spin}", f"threads={size}"]
        call = f'kernels["{launch.kernel}"]({", ".join(given)}'
        if not launch.again:
            return [f"{call}, stream=s{launch.stream})"]
        recorded = [f"    {call})"] * launch.again
        replayed = [f"    graph.replay(s{launch.stream})"] * launch.again
        return ["with dev.record() as graph:", *recorded, "with graph:", *replayed]


def _shape(shape: tuple[int, ...]) -> str:
    return str(shape[0] if len(shape) == 1 else shape)


def _equal(shown: str, expected: Host) -> str:
    text = _values(expected)
    if len(text) > 10_000:
        return f"assert zlib.crc32({shown}.tobytes()) == {zlib.crc32(expected.tobytes())}"
    nan = ", equal_nan=True" if expected.dtype.kind in "fc" and np.isnan(expected).any() else ""
    return f"assert np.array_equal({shown}, {text}{nan})"


def _values(content: Host) -> str:
    """Return a short expression for an array."""
    shape, dtype = _shape(content.shape), f"np.{content.dtype}"
    if not content.size:
        return f"np.zeros({shape}, {dtype})"
    if content.dtype.kind in "fc" and not np.array_equal(content, np.round(content.real)):
        bits = np.ascontiguousarray(content).reshape(-1).view(np.uint8).tolist()
        return f"np.array({bits}, np.uint8).view({dtype}).reshape({shape})"
    first = int(content.flat[0].real)
    if (content == first).all():
        return f"np.full({shape}, {first}, {dtype})"
    if np.array_equal(content.reshape(-1), np.arange(first, first + content.size)):
        run = f"np.arange({first}, {first + content.size}, dtype={dtype})"
        return run if content.ndim == 1 else f"{run}.reshape({shape})"
    return f"np.array({content.tolist()}, {dtype})"
