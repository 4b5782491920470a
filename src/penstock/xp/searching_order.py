"""`nonzero` and `searchsorted`, by the Array API standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.array.array import Array
from penstock.errors import DtypeMismatch, InvalidValue, ShapeMismatch
from penstock.xp.axes import check_arrays
from penstock.xp.promotion import common

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace

__all__ = ["nonzero", "searchsorted"]


def nonzero(xp: Namespace, x: Array, /) -> tuple[Array, ...]:
    """The indices (int64) along each axis of the elements that are not zero.

    Waits for their number, once.
    """
    check_arrays(xp, "nonzero", x)
    if not x.ndim:
        raise ShapeMismatch("nonzero of an array without dimensions; use x.reshape(1)")
    return xp.device.indexing.nonzero(x)


def searchsorted(
    xp: Namespace, x1: Array, x2: Any, /, *, side: Literal["left", "right"] = "left",
    sorter: Array | None = None,
) -> Array:  # fmt: skip
    """Where each of `x2` would be inserted into `x1`, which is sorted: indices (int64)."""
    check_arrays(xp, "searchsorted", x1)
    if side not in ("left", "right"):
        raise InvalidValue(f"searchsorted with side={side!r}; choose 'left' or 'right'")
    wanted = x2 if isinstance(x2, Array) else xp.asarray(x2, dtype=x1.dtype)
    dtype = common(x1.dtype, wanted.dtype)
    if sorter is not None:
        check_arrays(xp, "searchsorted", sorter)
        if sorter.dtype.kind not in "iu":
            raise DtypeMismatch(f"searchsorted: sorter= has integers, not {sorter.dtype}")
        if sorter.shape != x1.shape:
            raise ShapeMismatch(f"searchsorted: sorter= of {sorter.shape} for x1 of {x1.shape}")
        sorter = xp.astype(sorter, np.dtype(np.int64), copy=False)
    return xp.device.sorting.search(
        xp.astype(x1, dtype, copy=False), xp.astype(wanted, dtype, copy=False),
        right=side == "right", sorter=sorter,
    )  # fmt: skip
