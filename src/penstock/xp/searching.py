"""The searching functions of the Array API standard that reduce along axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.array.array import Array
from penstock.ops import along
from penstock.ops.along import Axis
from penstock.xp.axes import check_arrays

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace


def argmin(xp: Namespace, x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The indices of the first smallest elements, or of the first NaN, along an axis."""
    check_arrays(xp, "argmin", x)
    return along.extreme_index("argmin", x, axis, keepdims=keepdims)


def argmax(xp: Namespace, x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The indices of the first largest elements, or of the first NaN, along an axis."""
    check_arrays(xp, "argmax", x)
    return along.extreme_index("argmax", x, axis, keepdims=keepdims)


def count_nonzero(
    xp: Namespace, x: Array, /, *, axis: Axis = None, keepdims: bool = False
) -> Array:
    """How many elements along axes are not zero, as int64."""
    check_arrays(xp, "count_nonzero", x)
    return along.truth("count_nonzero", x, axis, keepdims=keepdims)
