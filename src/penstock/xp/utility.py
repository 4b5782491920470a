"""The utility functions of the Array API standard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.array.array import Array
from penstock.dtypes import as_integer
from penstock.errors import DtypeMismatch, InvalidValue, ShapeMismatch
from penstock.ops import along
from penstock.ops.along import Axis
from penstock.xp.axes import check_arrays

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace


def all(xp: Namespace, x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether all elements along axes are true."""
    check_arrays(xp, "all", x)
    return along.truth("all", x, axis, keepdims=keepdims)


def any(xp: Namespace, x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether any element along axes is true."""
    check_arrays(xp, "any", x)
    return along.truth("any", x, axis, keepdims=keepdims)


def diff(
    xp: Namespace, x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None,
    append: Array | None = None,
) -> Array:  # fmt: skip
    """The differences of neighbours along an axis, taken `n` times."""
    check_arrays(xp, "diff", x)
    if x.ndim == 0:
        raise ShapeMismatch("diff of a 0-d array, which has no neighbours")
    count = as_integer(n, "diff")
    if count < 0:
        raise InvalidValue(f"diff: n={n}; it is taken 0 times or more")
    (along_axis,) = along.axes_of("diff", x, axis)
    parts = [each for each in (prepend, x, append) if each is not None]
    for each in parts:
        if each.dtype != x.dtype:
            raise DtypeMismatch(f"diff: {x.dtype} with {each.dtype} before or after it")
    if len(parts) > 1:
        x = xp.concat(parts, axis=along_axis)
    for _ in range(min(count, x.shape[along_axis])):  # then nothing is left
        before = (*(slice(None),) * along_axis, slice(None, -1))
        after = (*(slice(None),) * along_axis, slice(1, None))
        if x.dtype.kind == "b":
            x = xp.not_equal(x[after], x[before])
        else:
            x = xp.subtract(x[after], x[before])
    return x
