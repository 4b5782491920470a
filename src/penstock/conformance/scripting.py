"""Helpers that programs and their scripts use in addition to the public API."""

from __future__ import annotations

import contextlib
import functools
import mmap
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.conformance.kernels import Kernels
from penstock.conformance.program import Misuse, Operation
from penstock.handle import Closing
from penstock.schedule.thresholds import Sizes

#: Size thresholds low enough for the small arrays of programs to reach all of them.
SMALL = Sizes(under_lock=48, ordered=96, staging_block=64, staging_blocks=2, pooled_result=128)

#: Calls that must raise, by name: the error, and the call as text, for a part x and a stream s.
MISUSES: dict[str, tuple[type[ps.Error], str]] = {
    "source of another shape": (
        ps.ShapeMismatch, "{x}.write(np.zeros((7, 7, 7), {x}.dtype), {s})"
    ),
    "source of another dtype": (ps.DtypeMismatch, "{x}.write(np.zeros({x}.shape, 'f2'), {s})"),
    "out of another shape": (ps.ShapeMismatch, "{x}.read({s}, np.zeros((7, 7, 7), {x}.dtype))"),
    "out of another dtype": (ps.DtypeMismatch, "{x}.read({s}, np.zeros({x}.shape, 'f2'))"),
    "read-only out": (
        ps.ReadOnly, "{x}.read({s}, np.broadcast_to(np.zeros((), {x}.dtype), {x}.shape))"
    ),
    "copy of another shape": (
        ps.ShapeMismatch, "{x}.copy_from(dev.zeros((7, 7, 7), {x}.dtype), {s})"
    ),
    "copy of another dtype": (ps.DtypeMismatch, "{x}.copy_from(dev.zeros({x}.shape, 'f2'), {s})"),
    "copy of host memory": (ps.ArgumentError, "{x}.copy_from(np.zeros(4), {s})"),
    "fill with text": (ps.DtypeMismatch, "{x}.fill('one', {s})"),
    "fill with several": (ps.ShapeMismatch, "{x}.fill([1, 2], {s})"),
    "index outside": (ps.BadIndex, "{x}[{x}.shape[0]]"),
    "too many indices": (ps.BadIndex, "{x}[0:1, 0:1, 0:1]"),
    "reshape to another size": (ps.ShapeMismatch, "{x}.reshape(7, 7, 7)"),
    "unknown view mode": (ps.InvalidValue, "{x}.view('x')"),
    "closed array": (ps.Closed, "closed(dev.zeros({x}.shape)).fill(1, {s})"),
    "closed stream": (ps.Closed, "{x}.fill(1, closed(dev.stream()))"),
    "read on a closed stream": (ps.Closed, "{x}.read(closed(dev.stream()))"),
    "no stream": (ps.ArgumentError, "{x}.fill(1, 'stream')"),
    "no event": (ps.ArgumentError, "{s}.wait(None)"),
    "adopt a reversed array": (ps.CannotAdopt, "dev.adopt(np.zeros(8)[::-1])"),
    "no such file": (ps.CannotRead, "dev.from_file('no such file', 'u4', 1)"),
    "launch without arguments": (
        ps.ArgumentError, "kernels['add'](x=dev.zeros(4, 'u4'), threads=4, stream={s})"
    ),
    "number that does not fit": (
        ps.InvalidValue,
        "kernels['add'](x=dev.zeros(4, 'u4'), a=-1, n=4, spin=0, threads=4, stream={s})",
    ),
    "launch on a closed stream": (
        ps.Closed,
        "kernels['add'](x=dev.zeros(4, 'u4'), a=1, n=4, spin=0, threads=4, "
        "stream=closed(dev.stream()))",
    ),
    "array of another device": (
        ps.ArgumentError,
        "kernels['add'](x=launched(other), a=1, n=4, spin=0, threads=4, stream={s})",
    ),
    "launch on a stream of another device": (
        ps.ArgumentError,
        "kernels['add'](x=dev.zeros(4, 'u4'), a=1, n=4, spin=0, threads=4, "
        "stream=other.default_stream)",
    ),
    "fill on a stream of another device": (ps.ArgumentError, "{x}.fill(1, other.default_stream)"),
    "read on a stream of another device": (ps.ArgumentError, "{x}.read(other.default_stream)"),
    "event of another device": (ps.ArgumentError, "{s}.wait(other.default_stream.record())"),
    "graph input of another device": (ps.ArgumentError, "dev.record(x=launched(other))"),
    "more memory than there is": (ps.OutOfMemory, "dev.empty(1 << 50)"),
}  # fmt: skip

C = TypeVar("C", bound=Closing)


@functools.cache
def compiled_misuse(name: str) -> CodeType:
    return compile(MISUSES[name][1].format(x="x", s="s"), f"<{name}>", "eval")


@contextlib.contextmanager
def raises(error: type[ps.Error]) -> Iterator[None]:
    """Assert that the block raises this error."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"must raise {error.__name__}")


@contextlib.contextmanager
def perhaps_closed() -> Iterator[None]:
    """Allow the block to raise `Closed`, or to lack a name that an earlier block failed to set."""
    with contextlib.suppress(ps.Closed, NameError):
        yield


def uses_other_device(operation: Operation) -> bool:
    match operation:
        case Misuse(what=what):
            return re.search(r"\bother\b", MISUSES[what][1]) is not None
        case _:
            return getattr(operation, "across", False)


def launched(device: ps.Device) -> ps.Array:
    """Return an array that a kernel of its device has used."""
    array = device.zeros(4, np.uint32)
    Kernels(device)["add"](x=array, a=1, n=4, spin=0, threads=4)
    return array


def there_and_on(other: ps.Device, source: ps.Array) -> ps.Array:
    """Copy an array to another device, and copy it again there, on a stream that may be busy."""
    there, on = other.empty_like(source), other.empty_like(source)
    there.copy_from(source)
    on.copy_from(there)
    return on


def closed(thing: C) -> C:
    thing.close()
    return thing


def ordinary_memory(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array inside anonymous pages of its own, which no device allocated."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    pages = np.frombuffer(mmap.mmap(-1, nbytes + 512), np.uint8)
    return pages[256 : 256 + nbytes].view(dtype).reshape(shape)
