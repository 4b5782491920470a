"""Products of arrays by the Array API standard: `matmul`, `tensordot`, `vecdot`, and transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.array import Array
from penstock.dtypes import Dtype, as_integer
from penstock.errors import ArgumentError, ShapeMismatch
from penstock.xp.axes import check_arrays
from penstock.xp.promotion import operands

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace


__all__ = ["matmul", "matrix_transpose", "tensordot", "vecdot"]


def together(xp: Namespace, what: str, *arrays: Any) -> list[Array]:
    """Arrays converted to the dtype that they have in common; numbers are refused."""
    for each in arrays:
        if not isinstance(each, Array):
            raise ArgumentError(
                f"{what} takes arrays of a device, not {type(each).__name__}; dev.asarray(a) makes "
                "one"
            )
    _, dtype = operands(xp.device, what, arrays)
    return [converted(xp, each, dtype) for each in arrays]


def converted(xp: Namespace, x: Array, dtype: Dtype) -> Array:
    return x if x.dtype == dtype else xp.device.operations.cast(x, dtype)


def matmul(xp: Namespace, x1: Array, x2: Array, /) -> Array:
    """The matrix product; dimensions before the last two broadcast.

    A vector is a row on the left and a column on the right. Of bools, whether any product is true;
    integers wrap; products of float16 and bfloat16 are added in float32.
    """
    one, other = together(xp, "matmul", x1, x2)
    return xp.device.products.matmul(one, other)


def matrix_transpose(xp: Namespace, x: Array, /) -> Array:
    """The same bytes with the last two dimensions exchanged."""
    check_arrays(xp, "matrix_transpose", x)
    if x.ndim < 2:
        raise ShapeMismatch(f"matrix_transpose of shape {x.shape}, which has no matrix")
    return x.mT


def tensordot(
    xp: Namespace, x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Array:
    """Sums of products over axes: the last of `x1` and first of `x2`, or those that are listed."""
    one, other = together(xp, "tensordot", x1, x2)
    if isinstance(axes, int | np.integer):
        axes = int(axes)
        if not 0 <= axes <= min(one.ndim, other.ndim):
            raise ShapeMismatch(
                f"tensordot over {axes} axes of arrays with {one.ndim} and {other.ndim} dimensions"
            )
        of_one, of_other = list(range(one.ndim - axes, one.ndim)), list(range(axes))
    else:
        first, second = _pair(axes)
        of_one = [_axis("tensordot", one, axis) for axis in first]
        of_other = [_axis("tensordot", other, axis) for axis in second]
    sizes = [one.shape[axis] for axis in of_one]
    if sizes != [other.shape[axis] for axis in of_other]:
        raise ShapeMismatch(
            f"tensordot of shapes {x1.shape} and {x2.shape} over axes {of_one} and {of_other}, "
            "whose sizes differ"
        )
    kept = [axis for axis in range(one.ndim) if axis not in of_one]
    added = [axis for axis in range(other.ndim) if axis not in of_other]
    shape = [one.shape[axis] for axis in kept], [other.shape[axis] for axis in added]
    inner = math.prod(sizes)
    left = xp.permute_dims(one, (*kept, *of_one)).reshape(math.prod(shape[0]), inner)
    right = xp.permute_dims(other, (*of_other, *added)).reshape(inner, math.prod(shape[1]))
    return xp.device.products.matmul(left, right).reshape(*shape[0], *shape[1])


def vecdot(xp: Namespace, x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Sums of products along an axis; of complex numbers, `x1` is conjugated."""
    one, other = together(xp, "vecdot", x1, x2)
    own, its = _axis("vecdot", one, axis), _axis("vecdot", other, axis)
    if one.shape[own] != other.shape[its]:
        raise ShapeMismatch(
            f"vecdot of shapes {x1.shape} and {x2.shape} along axis {axis}, whose sizes differ"
        )
    if one.dtype.kind == "c":
        one = xp.conj(one)
    return xp.device.products.vecdot(xp.moveaxis(one, own, -1), xp.moveaxis(other, its, -1))


def _pair(axes: Any) -> tuple[Any, Any]:
    """The axes of each array, as `tensordot` takes them."""
    match axes:
        case [Sequence() | np.ndarray() as first, Sequence() | np.ndarray() as second]:
            return first, second
    raise ArgumentError(f"tensordot: axes={axes!r}; give a number, or the axes of each array")


def _axis(what: str, x: Array, axis: int) -> int:
    found = as_integer(axis, f"{what}, for an axis,")
    if not -x.ndim <= found < x.ndim:
        raise ShapeMismatch(f"{what}: axis {found} of an array of {x.ndim} dimensions")
    return found % x.ndim
