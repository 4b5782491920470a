"""`take` and `take_along_axis`, by the Array API standard.

Negative indices count from the end. Indices on the device are kept within bounds rather than
checked, because an error would take a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.array.array import Array
from penstock.errors import ArgumentError
from penstock.xp.axes import axis_of, check_arrays

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace

__all__ = ["take", "take_along_axis"]


def take(xp: Namespace, x: Array, indices: Any, /, *, axis: int | None = None) -> Array:
    """The elements at some indices along an axis."""
    check_arrays(xp, "take", x)
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(f"take of {x.ndim} dimensions needs axis=")
        axis = 0
    return xp.device.indexing.take(x, indices, axis_of(axis, x.ndim, "take"))


def take_along_axis(xp: Namespace, x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """One element of each row along an axis for each index in that row of `indices`."""
    check_arrays(xp, "take_along_axis", x, indices)
    along = axis_of(axis, x.ndim, "take_along_axis")
    return xp.device.indexing.take_along_axis(x, indices, along)
