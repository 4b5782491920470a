"""The distinct elements of arrays: `unique_all` and its kind, and `isin`, by the standard.

Functions with `unique` in their names wait for the number of distinct elements, once. Distinct
elements are in ascending order; -0.0 equals 0.0, and no NaN equals another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.array.array import Array
from penstock.errors import ArgumentError
from penstock.xp.axes import check_arrays
from penstock.xp.promotion import common

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace

__all__ = ["isin", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Array
    inverse_indices: Array


def unique_all(xp: Namespace, x: Array, /) -> UniqueAll:
    """The distinct elements, their first indices in the flat array, inverse indices, counts."""
    check_arrays(xp, "unique_all", x)
    values, first, inverse, counts = xp.device.sets.unique(
        x, indices=True, inverse=True, counts=True
    )
    assert first is not None
    assert inverse is not None
    assert counts is not None
    return UniqueAll(values, first, inverse, counts)


def unique_counts(xp: Namespace, x: Array, /) -> UniqueCounts:
    """The distinct elements, and how often each occurs."""
    check_arrays(xp, "unique_counts", x)
    found = xp.device.sets.unique(x, counts=True)
    assert found.counts is not None
    return UniqueCounts(found.values, found.counts)


def unique_inverse(xp: Namespace, x: Array, /) -> UniqueInverse:
    """The distinct elements, and for each element of x which of them it equals."""
    check_arrays(xp, "unique_inverse", x)
    found = xp.device.sets.unique(x, inverse=True)
    assert found.inverse is not None
    return UniqueInverse(found.values, found.inverse)


def unique_values(xp: Namespace, x: Array, /) -> Array:
    """The distinct elements."""
    check_arrays(xp, "unique_values", x)
    return xp.device.sets.unique(x).values


def isin(xp: Namespace, x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Whether each element of `x1` equals one of `x2`; with `invert`, none of them."""
    if not isinstance(x1, Array) and not isinstance(x2, Array):
        raise ArgumentError("isin takes at least one array of a device")
    wanted = x1 if isinstance(x1, Array) else xp.asarray(x1, dtype=x2.dtype)
    among = x2 if isinstance(x2, Array) else xp.asarray(x2, dtype=wanted.dtype)
    dtype = common(wanted.dtype, among.dtype)
    made = xp.device.sets.contains(
        xp.astype(among, dtype, copy=False), xp.astype(wanted, dtype, copy=False)
    )
    return xp.logical_not(made) if invert else made
