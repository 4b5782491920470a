"""The statistical functions of the Array API standard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy.typing as npt

from penstock.array.array import Array
from penstock.errors import ArgumentError, DtypeMismatch
from penstock.ops import along
from penstock.ops.along import Axis
from penstock.xp.axes import check_arrays
from penstock.xp.construction import checked_dtype
from penstock.xp.promotion import DEFAULT_FLOAT

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace


def sum(
    xp: Namespace, x: Array, /, *, axis: Axis = None, dtype: npt.DTypeLike | None = None,
    keepdims: bool = False,
) -> Array:  # fmt: skip
    """Sums along axes; of integers in 64 bits, of floats in their own dtype."""
    check_arrays(xp, "sum", x)
    kind = None if dtype is None else checked_dtype(xp, dtype, x.dtype)
    return along.total("sum", x, axis, kind, keepdims=keepdims)


def prod(
    xp: Namespace, x: Array, /, *, axis: Axis = None, dtype: npt.DTypeLike | None = None,
    keepdims: bool = False,
) -> Array:  # fmt: skip
    """Products along axes, in the dtypes of `sum`."""
    check_arrays(xp, "prod", x)
    kind = None if dtype is None else checked_dtype(xp, dtype, x.dtype)
    return along.total("prod", x, axis, kind, keepdims=keepdims)


def mean(xp: Namespace, x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Means along axes; of integers in the default float."""
    check_arrays(xp, "mean", x)
    _no_bool("mean", x)
    return along.mean(x, axis, default=DEFAULT_FLOAT, keepdims=keepdims)


def var(
    xp: Namespace, x: Array, /, *, axis: Axis = None, correction: float = 0.0,
    keepdims: bool = False,
) -> Array:  # fmt: skip
    """Variances along axes: squared distances from the mean, over the number less `correction`."""
    check_arrays(xp, "var", x)
    _real("var", x)
    return along.variance(x, axis, default=DEFAULT_FLOAT, correction=correction, keepdims=keepdims)


def std(
    xp: Namespace, x: Array, /, *, axis: Axis = None, correction: float = 0.0,
    keepdims: bool = False,
) -> Array:  # fmt: skip
    """Roots of the variances along axes."""
    check_arrays(xp, "std", x)
    _real("std", x)
    return along.variance(
        x, axis, default=DEFAULT_FLOAT, correction=correction, keepdims=keepdims, root=True
    )


def min(xp: Namespace, x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The smallest elements along axes; NaN where there is one."""
    check_arrays(xp, "min", x)
    return along.extreme("min", x, axis, keepdims=keepdims)


def max(xp: Namespace, x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The largest elements along axes; NaN where there is one."""
    check_arrays(xp, "max", x)
    return along.extreme("max", x, axis, keepdims=keepdims)


def cumulative_sum(
    xp: Namespace, x: Array, /, *, axis: int | None = None, dtype: npt.DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:  # fmt: skip
    """Running sums along an axis; with `include_initial`, each starts with 0."""
    return _running(xp, "cumulative_sum", x, axis, dtype, include_initial)


def cumulative_prod(
    xp: Namespace, x: Array, /, *, axis: int | None = None, dtype: npt.DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:  # fmt: skip
    """Running products along an axis; with `include_initial`, each starts with 1."""
    return _running(xp, "cumulative_prod", x, axis, dtype, include_initial)


def _running(
    xp: Namespace, what: str, x: Array, axis: int | None, dtype: npt.DTypeLike | None,
    initial: bool,
) -> Array:  # fmt: skip
    check_arrays(xp, what, x)
    if axis is None and x.ndim != 1:
        raise ArgumentError(
            f"{what} of an array with {x.ndim} axes needs axis=; the method x.cumsum() or "
            "x.cumprod() takes the flat array"
        )
    kind = None if dtype is None else checked_dtype(xp, dtype, x.dtype)
    return along.running(what, x, axis, kind, initial=initial)


def _no_bool(what: str, x: Array) -> None:
    if x.dtype.kind == "b":
        raise DtypeMismatch(f"{what} takes numbers, not bool; convert with astype()")


def _real(what: str, x: Array) -> None:
    _no_bool(what, x)
    if x.dtype.kind == "c":
        raise DtypeMismatch(
            f"{what} takes real numbers, not {x.dtype}; x.{what}() takes complex ones"
        )
