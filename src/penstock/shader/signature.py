"""The declared signature of a kernel, for code that cannot be reflected, such as HIP.

`"in float32 x, inout float32 y, float32 a, uint32 n -> float32 total"`: an array has `in`, `out`
or `inout` (`in bytes x` accepts any dtype), a number has no mode, `float32 weights[4]` is several
numbers in one structure, and what the kernel returns follows the arrow.

The kernel's parameters are in that order, with arrays as pointers. A kernel that returns something
has a last parameter: a pointer to a structure of what it returns. If the numbers exceed the
device's limit for parameters, they are passed in one structure, in their order, and the kernel gets
a pointer to it after the arrays.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import NamedTuple

import numpy as np

from penstock.dtypes import Dtype
from penstock.errors import InvalidValue
from penstock.shader.interface import Access, Binding, Interface, Member, Purpose

_ACCESS: dict[str, Access] = {"in": "r", "out": "w", "inout": "rw"}
_TYPES = ("bool", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)))
_TYPES += ("float16", "float32", "float64")
_PARAMETER = re.compile(
    r"(?:(in|out|inout)\s+)?(?!(?:in|out|inout)\b)(\w+)\s+([A-Za-z_]\w*)\s*"
    r"((?:\[\s*\d+\s*\]\s*)*)"
)


class Declared(NamedTuple):
    """One parameter. An array has a mode; `bytes` means any dtype. A number may have a shape."""

    mode: str
    dtype: Dtype | None
    name: str
    shape: tuple[int, ...]


def declared(text: str, name: str, entry: str, group: tuple[int, int, int], room: int) -> Interface:
    """The interface that `text` declares. `room` is the device's limit for parameters, in bytes."""
    before, _, after = text.partition("->")
    parameters = parse(before, name) if before.strip() else []
    returned = parse(after, name) if after.strip() else []
    if any(each.mode for each in returned):
        raise InvalidValue(f"{name}: what a kernel returns is numbers; leave out in, out and inout")
    numbers, size = _members([each for each in parameters if not each.mode])
    result, result_size = _members(returned)
    arrays = [
        _binding(number, each.name, _ACCESS[each.mode], each.dtype)
        for number, each in enumerate(parameter for parameter in parameters if parameter.mode)
    ]
    order = [each.name for each in parameters]
    bindings = list(arrays)
    # An upper bound: each parameter is aligned to its own size.
    large = 8 * (len(arrays) + bool(returned)) + size > room
    if large:
        bindings.append(_binding(len(bindings), "(arguments)", "r", None, size, "arguments"))
        order = [each.name for each in arrays] + ["(arguments)"]
    if returned:
        bindings.append(_binding(len(bindings), "(result)", "rw", None, result_size, "result"))
        order.append("(result)")
    return Interface(
        entry=entry,
        local_size=group,
        local_size_ids=(None, None, None),
        bindings=tuple(bindings),
        push=numbers,
        push_size=0 if large else size,
        constants=(),
        capabilities=frozenset(),
        shared_size=0,
        version=(0, 0),
        result=result,
        parameters=tuple(order),
    )


def _binding(
    number: int,
    name: str,
    access: Access,
    dtype: Dtype | None,
    size: int | None = None,
    purpose: Purpose = "array",
) -> Binding:
    kind = np.dtype(np.uint8) if dtype is not None and dtype.kind == "b" else dtype
    stride = 1 if dtype is None else dtype.itemsize
    return Binding(name, 0, number, "storage", access, kind, 0, stride, size or stride, purpose)


def _members(numbers: list[Declared]) -> tuple[tuple[Member, ...], int]:
    """Lay out numbers as the members of a C structure; returns them and its size."""
    members: list[Member] = []
    at, widest = 0, 1
    for _, dtype, name, shape in numbers:
        assert dtype is not None
        size = dtype.itemsize
        at = -(-at // size) * size
        strides = tuple(size * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        members.append(Member(name, at, dtype, shape, strides))
        at += size * math.prod(shape)
        widest = max(widest, size)
    return tuple(members), -(-at // widest) * widest


def parse(text: str, name: str) -> list[Declared]:
    """Parse the parameters that `text` declares; `name` is the kernel's, for error messages."""
    found: list[Declared] = []
    for part in text.split(","):
        match = _PARAMETER.fullmatch(part.strip())
        if match is None:
            raise InvalidValue(
                f"{name}: {part.strip()!r} is not a parameter; write 'in float32 x' (or out, "
                "inout) for an array, 'float32 a' for a number, 'float32 a[4]' for several"
            )
        mode, dtype, called, lengths = match.groups()
        called = unicodedata.normalize("NFKC", called)  # as Python normalizes keyword arguments
        untyped = bool(mode) and dtype == "bytes"
        if dtype not in _TYPES and not untyped:
            raise InvalidValue(
                f"{name}: {part.strip()!r} has the unknown dtype {dtype!r}; there are "
                f"{', '.join(_TYPES)}"
            )
        if mode and lengths:
            raise InvalidValue(f"{name}: {part.strip()!r}: the length of an array is not declared")
        if called in {each.name for each in found}:
            raise InvalidValue(f"{name}: two parameters are called {called!r}")
        shape = tuple(int(length) for length in re.findall(r"\d+", lengths))
        found.append(Declared(mode or "", None if untyped else np.dtype(dtype), called, shape))
    return found
