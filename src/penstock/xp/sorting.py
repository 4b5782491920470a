"""`sort` and `argsort`, by the Array API standard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.array.array import Array
from penstock.xp.axes import axis_of, check_arrays

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace

__all__ = ["argsort", "sort"]


def sort(
    xp: Namespace, x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Array:
    """The elements in order along an axis, NaN last. Always stable."""
    check_arrays(xp, "sort", x)
    along = axis_of(axis, x.ndim, "sort")
    made, _ = xp.device.sorting.sort(x, along, descending=descending)
    assert made is not None
    return made


def argsort(
    xp: Namespace, x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Array:
    """The indices (int64) along an axis that put the elements in order, NaN last. Stable."""
    check_arrays(xp, "argsort", x)
    along = axis_of(axis, x.ndim, "argsort")
    _, made = xp.device.sorting.sort(x, along, descending=descending, values=False, indices=True)
    assert made is not None
    return made
