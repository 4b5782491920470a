"""Dtypes and shapes: `astype`, `result_type`, `finfo`, broadcasting, by the Array API standard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import Dtype, as_dtype, as_shape
from penstock.errors import ArgumentError, DtypeMismatch
from penstock.ops.strides import broadcast_shape
from penstock.xp.axes import check_arrays
from penstock.xp.construction import check_device, checked_dtype
from penstock.xp.promotion import common, is_number, with_number

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.xp.namespace import Namespace


def astype(
    xp: Namespace, x: Array, dtype: npt.DTypeLike, /, *, copy: bool = True,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """The elements converted to another dtype, in a new array; with `copy=False`, `x` if it has it.

    Floats are truncated towards zero; NaN and numbers beyond an integer's range have no defined
    value. Complex numbers convert to real ones only by `real` and `imag`.
    """
    check_device(xp, device)
    check_arrays(xp, "astype", x)
    kind = checked_dtype(xp, dtype, x.dtype)
    if kind == x.dtype:
        return x.copy() if copy else x
    if x.dtype.kind == "c" and kind.kind not in "cb":
        raise DtypeMismatch(
            f"astype: {x.dtype} to {kind} would drop the imaginary parts; use xp.real(x)"
        )
    return xp.device.operations.cast(x, kind)


def broadcast_to(xp: Namespace, x: Array, /, shape: tuple[int, ...]) -> Array:
    """The same bytes repeated to a larger shape. Read-only."""
    check_arrays(xp, "broadcast_to", x)
    return x.broadcast_to(shape)


def broadcast_arrays(xp: Namespace, *arrays: Array) -> tuple[Array, ...]:
    """The arrays, each broadcast to the shape that they have in common."""
    check_arrays(xp, "broadcast_arrays", *arrays)
    shape = broadcast_shape([x.shape for x in arrays], "broadcast_arrays")
    return tuple(x if x.shape == shape else x.broadcast_to(shape) for x in arrays)


def broadcast_shapes(xp: Namespace, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that some shapes broadcast to."""
    return broadcast_shape([as_shape(shape) for shape in shapes], "broadcast_shapes")


def can_cast(xp: Namespace, from_: Dtype | Array, to: Dtype, /) -> bool:
    """Whether every value of one dtype has a place in another, by the promotion tables."""
    source = from_.dtype if isinstance(from_, Array) else as_dtype(from_)
    goal = as_dtype(to)
    return source == goal or bool(np.can_cast(source, goal, "safe"))


def result_type(xp: Namespace, *arrays_and_dtypes: Any) -> Dtype:
    """The dtype that arrays, dtypes and Python numbers are computed in together."""
    found = []
    numbers = []
    for each in arrays_and_dtypes:
        if isinstance(each, Array):
            found.append(each.dtype)
        elif is_number(each) and not isinstance(each, np.generic):
            numbers.append(each)
        else:
            found.append(each.dtype if isinstance(each, np.generic) else as_dtype(each))
    if not found:
        raise ArgumentError("result_type takes at least one array or dtype")
    dtype = common(*found)
    for number in numbers:
        dtype = with_number(dtype, number)
    return dtype


_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu",
    "real floating": "f", "complex floating": "c", "numeric": "iufc",
}  # fmt: skip


def isdtype(xp: Namespace, dtype: Dtype, kind: Any) -> bool:
    """Whether a dtype is of a kind ("integral", "real floating", …), or one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(xp, dtype, each) for each in kind)
    found = as_dtype(dtype)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ArgumentError(f"isdtype: {kind!r} is no kind; choose of {', '.join(_KINDS)}")
        own = "f" if found.name == "bfloat16" else found.kind
        return own in _KINDS[kind]
    return found == as_dtype(kind)


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a float dtype, as Python floats."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Dtype


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: Dtype


def finfo(xp: Namespace, type: Dtype | Array, /) -> FloatInfo:
    """The limits of a float dtype, or of the parts of a complex one."""
    dtype = type.dtype if isinstance(type, Array) else as_dtype(type)
    if dtype.kind not in "fc":
        raise DtypeMismatch(f"finfo of {dtype}, which is not a float dtype")
    real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    limits = np.finfo(real)
    return FloatInfo(
        limits.bits, float(limits.eps), float(limits.max), float(limits.min),
        float(limits.smallest_normal), real,
    )  # fmt: skip


def iinfo(xp: Namespace, type: Dtype | Array, /) -> IntegerInfo:
    """The limits of an integer dtype."""
    dtype = type.dtype if isinstance(type, Array) else as_dtype(type)
    if dtype.kind not in "iu":
        raise DtypeMismatch(f"iinfo of {dtype}, which is not an integer dtype")
    limits = np.iinfo(dtype)
    return IntegerInfo(limits.bits, int(limits.max), int(limits.min), dtype)
