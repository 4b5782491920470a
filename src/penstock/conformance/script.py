"""A program as a script that anyone can run: the public API, and asserts with what must be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.conformance.kernels import KERNELS, SLOW
from penstock.conformance.oracle import Oracle, initial
from penstock.conformance.program import (
    BeginBatch,
    Change,
    Collect,
    Copy,
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
)

Host = npt.NDArray[Any]


def as_script(program: Program, device: str = 'driver="sim"') -> str:
    """The program as Python text; `device` are the arguments of `ps.Device`."""
    writer = _Writer(program, mapped='"unmapped"' not in device)
    lines = [f"# {line}" for line in (program.name, program.about) if line]
    lines += ["import numpy as np", "", "import penstock as ps"]
    if any(isinstance(each, Launch) for each in program.operations):
        lines.append("from penstock.conformance.kernels import Kernels")
    lines += ["", f"dev = ps.Device({device})"]
    if any(isinstance(each, Launch) for each in program.operations):
        lines.append("kernels = Kernels(dev)")
    lines.append("s0 = dev.default_stream")
    lines += [f"s{number} = dev.stream()" for number in range(1, program.streams)]
    for number in range(len(program.arrays)):
        lines += writer.made(number)
    lines.append("")
    for operation in program.operations:
        lines += writer.operation(operation)
    lines += ["", *writer.end(), ""]
    return "\n".join(lines)


class _Writer:
    """Writes operations; the oracle tells what to assert."""

    def __init__(self, program: Program, *, mapped: bool) -> None:
        self.program = program
        self.mapped = mapped
        self.oracle = Oracle(program.arrays, program.streams)

    def made(self, number: int) -> list[str]:
        declared = self.program.arrays[number]
        if declared.how == "zeros":
            return [f"a{number} = dev.zeros({declared.size}, np.uint32)"]
        content = _values(initial(number, declared))
        if declared.how == "array":
            return [f"a{number} = dev.array({content})"]
        return [
            f"host{number} = dev.host_empty({declared.size}, np.uint32)",
            f"host{number}[:] = {content}",
            f"a{number} = dev.adopt(host{number})",
        ]

    def operation(self, operation: Operation) -> list[str]:
        lines = self._lines(operation)
        expected = self.oracle.step(operation)
        if expected is None:
            return lines
        *before, shown = lines
        after = [] if not isinstance(operation, Drop) else [f"del view{operation.slot}"]
        return [*before, _equal(shown, expected), *after]

    def end(self) -> list[str]:
        lines = [_equal(f"a{n}.numpy()", value) for n, value in enumerate(self.oracle.arrays)]
        lines += [f"batch{stream}.__exit__(None, None, None)" for stream in self.oracle.batches]
        for slot, transfer in self.oracle.transfers.items():
            result = f"pending{slot}.result(20)"
            if transfer.value is not None:
                lines.append(_equal(result, transfer.value))
            elif not transfer.collected:
                lines.append(result)
        lines += [_equal(f"view{slot}", value) for slot, (_, value) in self.oracle.views.items()]
        lines += ["dev.synchronize(20)"]
        for number, declared in enumerate(self.program.arrays):
            if declared.how == "adopted":
                lines.append(_equal(f"host{number}", self.oracle.arrays[number]))
        return [*lines, 'assert not dev.messages, "\\n".join(dev.messages)']

    def _lines(self, operation: Operation) -> list[str]:
        """The statements of an operation; the last is an expression if it shows a value."""
        match operation:
            case Write():
                return self._write(operation)
            case Change(slot=slot):
                return [f"source{slot}[:] = 99"]
            case Read(of=part, slot=slot, stream=stream):
                out = f", out=np.zeros({part.size}, np.uint32)" if operation.out else ""
                return [f"pending{slot} = {self._part(part)}.read(s{stream}{out})"]
            case Collect(slot=slot):
                return [f"pending{slot}.result(20)"]
            case Numpy(of=part):
                return [f"{self._part(part)}.numpy()"]
            case View(of=part, slot=slot):
                look = "view" if self.mapped else "numpy"
                return [f"view{slot} = {self._part(part)}.{look}()", f"view{slot}"]
            case Drop(slot=slot):
                return [f"view{slot}"]
            case Fill(to=part, value=value, stream=stream):
                return [f"{self._part(part)}.fill({value}, s{stream})"]
            case Copy(source=source, target=target, stream=stream):
                return [f"{self._part(target)}.copy_from({self._part(source)}, s{stream})"]
            case Poke(to=part, value=value):
                return [f"host{part.array}[{_index(part)}] = {value}"]
            case Launch():
                return [self._launch(operation)]
            case Renew(array=array, close=close):
                return [f"a{array}.close()" if close else f"del a{array}", *self.made(array)]
            case Record(slot=slot, stream=stream):
                return [f"event{slot} = s{stream}.record()"]
            case StreamWait(slot=slot, stream=stream):
                return [f"s{stream}.wait(event{slot})"]
            case EventWait(slot=slot):
                return [f"event{slot}.wait(20)", *self._covered(slot, "")]
            case EventDone(slot=slot):
                return self._covered(slot, f"not event{slot}.done or ") or [f"event{slot}.done"]
            case Flush(stream=stream):
                return [f"s{stream}.flush()"]
            case Reopen(stream=stream):
                return [f"s{stream}.close()", f"s{stream} = dev.stream()"]
            case BeginBatch(stream=stream):
                return [f"batch{stream} = s{stream}.batch()", f"batch{stream}.__enter__()"]
            case EndBatch(stream=stream):
                return [f"batch{stream}.__exit__(None, None, None)"]
            case Synchronize():
                streams = [f"assert s{n}.record().done" for n in range(self.program.streams)]
                return ["dev.synchronize(20)", *streams]

    def _covered(self, slot: int, unless: str) -> list[str]:
        return [f"assert {unless}pending{n}.done" for n in sorted(self.oracle.events[slot])]

    def _part(self, part: Part) -> str:
        whole = (part.lo, part.hi, part.step) == (0, self.program.arrays[part.array].size, 1)
        return f"a{part.array}" if whole else f"a{part.array}[{_index(part)}]"

    def _write(self, write: Write) -> list[str]:
        source, size = f"source{write.slot}", write.to.size
        content = f"np.arange({write.value}, {write.value + size}, dtype=np.uint32)"
        lines = [f"{source} = {content}"]
        if write.pinned:
            lines = [f"{source} = dev.host_empty({size}, np.uint32)", f"{source}[:] = {content}"]
        borrow = ", borrow=True" if write.borrow else ""
        call = f"{self._part(write.to)}.write({source}, s{write.stream}{borrow})"
        return [*lines, f"pending{write.slot} = {call}"]

    def _launch(self, launch: Launch) -> str:
        names = [name for name, _ in KERNELS[launch.kernel].arrays]
        given = [f"{n}={self._part(p)}" for n, p in zip(names, launch.parts, strict=True)]
        size = launch.parts[0].size
        spin = SLOW if launch.slow else 0
        given += [f"a={launch.value}", f"n={size}", f"spin={spin}", f"threads={size}"]
        return f'kernels["{launch.kernel}"]({", ".join(given)}, stream=s{launch.stream})'


def _index(part: Part) -> str:
    return f"{part.lo}:{part.hi}" + (f":{part.step}" if part.step > 1 else "")


def _equal(shown: str, expected: Host) -> str:
    return f"assert np.array_equal({shown}, {_values(expected)})"


def _values(content: Host) -> str:
    """An array as short text."""
    first, size = int(content[0]), len(content)
    if (content == first).all():
        return f"np.full({size}, {first}, np.uint32)"
    if np.array_equal(content, np.arange(first, first + size)):
        return f"np.arange({first}, {first + size}, dtype=np.uint32)"
    return str(content.tolist())
