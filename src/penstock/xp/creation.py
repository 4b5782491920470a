"""Arrays from rules: `arange`, `linspace`, `eye` and their kind, computed on the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import Dtype, as_float, as_integer
from penstock.errors import ArgumentError, InvalidValue, ShapeMismatch
from penstock.ops.moves import view
from penstock.xp.axes import check_arrays
from penstock.xp.construction import check_device, checked_dtype
from penstock.xp.promotion import (
    DEFAULT_COMPLEX,
    DEFAULT_FLOAT,
    DEFAULT_INT,
    common,
    is_number,
    number_of,
)

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.xp.namespace import Namespace

__all__ = ["arange", "eye", "linspace", "meshgrid", "tril", "triu"]


def arange(
    xp: Namespace, start: float, /, stop: float | None = None, step: float = 1, *,
    dtype: npt.DTypeLike | None = None, device: Device | None = None,
) -> Array:  # fmt: skip
    """Numbers from `start` on, `step` apart, up to but without `stop`."""
    check_device(xp, device)
    if stop is None:
        start, stop = 0, start
    given = start, stop, step = number_of(start), number_of(stop), number_of(step)
    if not all(isinstance(each, int | float | np.integer | np.floating) for each in given):
        raise ArgumentError(f"arange takes real numbers, not {given!r}")
    whole = all(isinstance(each, int | np.integer) for each in given)
    kind = checked_dtype(xp, dtype, DEFAULT_INT if whole else DEFAULT_FLOAT)
    if not step:
        raise InvalidValue("arange with step=0")
    if whole:
        first, by = int(start), int(step)
        count = max(0, -((first - int(stop)) // by))
        return _integers(xp, count, first, by, kind)
    begin, end, width = (as_float(each, "arange: a bound") for each in given)
    distance = (end - begin) / width
    if not math.isfinite(distance):
        raise InvalidValue(f"arange{given!r} has no last number; its bounds must be finite")
    count = max(0, math.ceil(distance))
    return _floats(xp, count, begin, width, kind)


def linspace(
    xp: Namespace, start: Any, stop: Any, /, num: int, *,
    dtype: npt.DTypeLike | None = None, device: Device | None = None, endpoint: bool = True,
) -> Array:  # fmt: skip
    """`num` numbers at equal distances from `start` to `stop`, both of which are exact."""
    check_device(xp, device)
    start, stop = _bound(start), _bound(stop)
    count = as_integer(num, "linspace")
    if count < 0:
        raise InvalidValue(f"linspace of {count} numbers")
    is_complex = isinstance(start, complex) or isinstance(stop, complex)
    kind = checked_dtype(xp, dtype, DEFAULT_COMPLEX if is_complex else DEFAULT_FLOAT)
    if kind.kind == "c":
        made = xp.device.new_result(count, kind)
        part = np.dtype(f"f{kind.itemsize // 2}")
        begin, end = complex(start), complex(stop)
        for offset, low, high in ((0, begin.real, end.real), (1, begin.imag, end.imag)):
            own = _line(xp, low, high, count, part, endpoint)
            where = view(made, (count,), (kind.itemsize,), offset * part.itemsize, dtype=part)
            if count:
                where.copy_from(own)
        return made
    if is_complex:
        raise ArgumentError(f"linspace from {start!r} to {stop!r} in {kind}, which is real")
    low, high = (as_float(each.real, "linspace: a bound") for each in (start, stop))
    return _line(xp, low, high, count, kind, endpoint)


def _bound(value: Any) -> Any:
    """A bound of `linspace` as a number; a pending value or an array of one is waited for."""
    found = number_of(value)
    found = found.item() if isinstance(found, Array) else found
    if not is_number(found):
        raise ArgumentError(f"linspace is from a number to a number, not {type(value).__name__}")
    return found


def _line(
    xp: Namespace, start: float, stop: float, count: int, dtype: Dtype, endpoint: bool
) -> Array:
    steps = count - 1 if endpoint else count
    step = (stop - start) / as_float(steps, "linspace: num=") if steps > 0 else 0.0
    made = _floats(xp, count, start, step, dtype)
    if endpoint and count > 1:
        made[-1:].fill(dtype.type(stop) if dtype.kind != "i" else int(stop))
    return made


def _integers(xp: Namespace, count: int, start: int, step: int, dtype: Dtype) -> Array:
    """start + i * step, modulo the range of the dtype."""
    made = xp.device.ramps.integers(count, start, step)
    if dtype.kind not in "iu":
        return xp.device.operations.cast(made, dtype)
    if dtype.itemsize == made.itemsize:
        return made if dtype == made.dtype else made.reinterpret(dtype)
    short = xp.device.new_result(count, dtype)
    if count:  # the low bytes
        xp.device.moves.copy(short, view(made, (count,), (8,), dtype=dtype))
    return short


def _floats(xp: Namespace, count: int, start: float, step: float, dtype: Dtype) -> Array:
    """start + i * step, in float64 where the device has it."""
    operations = xp.device.operations
    wide = operations.abilities.float64
    widest: Dtype = np.dtype(np.float64 if wide else np.float32)
    if dtype.kind == "f" and dtype.itemsize >= 4:
        return xp.device.ramps.floats(count, start, step, dtype, wide)
    made = xp.device.ramps.floats(count, start, step, widest, wide)
    if dtype.kind in "iu" and count:
        made = operations.apply("floor", [made], widest, widest)
    return operations.cast(made, dtype)


def eye(
    xp: Namespace, n_rows: int, n_cols: int | None = None, /, *, k: int = 0,
    dtype: npt.DTypeLike | None = None, device: Device | None = None,
) -> Array:  # fmt: skip
    """Ones on a diagonal, `k` above the main one, and zeros elsewhere."""
    check_device(xp, device)
    kind = checked_dtype(xp, dtype, DEFAULT_FLOAT)
    rows = as_integer(n_rows, "eye")
    columns = rows if n_cols is None else as_integer(n_cols, "eye")
    made = xp.device.zeros((rows, columns), kind)
    above = as_integer(k, "eye")
    row, column = max(0, -above), max(0, above)
    length = min(rows - row, columns - column)
    if length > 0:
        across, down = kind.itemsize, columns * kind.itemsize
        where = view(made, (length,), (across + down,), row * down + column * across)
        one = xp.device.ones((), kind)
        xp.device.moves.copy(where, one.broadcast_to((length,)))
    return made


def tril(xp: Namespace, x: Array, /, *, k: int = 0) -> Array:
    """The elements on and below a diagonal, and zeros above it."""
    return _triangle(xp, x, k, lower=True)


def triu(xp: Namespace, x: Array, /, *, k: int = 0) -> Array:
    """The elements on and above a diagonal, and zeros below it."""
    return _triangle(xp, x, k, lower=False)


def _triangle(xp: Namespace, x: Array, k: int, *, lower: bool) -> Array:
    what = "tril" if lower else "triu"
    check_arrays(xp, what, x)
    if x.ndim < 2:
        raise ShapeMismatch(f"{what} takes matrices, not an array of shape {x.shape}")
    made = xp.device.new_result(x.shape, x.dtype)
    xp.device.moves.triangle(made, x, as_integer(k, what), lower=lower)
    return made


def meshgrid(xp: Namespace, *arrays: Array, indexing: str = "xy") -> tuple[Array, ...]:
    """The coordinates of a grid: one array for each axis, of the shape of the whole."""
    if indexing not in ("xy", "ij"):
        raise InvalidValue(f"meshgrid with indexing={indexing!r}; choose 'xy' or 'ij'")
    check_arrays(xp, "meshgrid", *arrays)
    if any(each.ndim > 1 for each in arrays):
        raise ShapeMismatch("meshgrid takes arrays of one dimension")
    if arrays:
        common(*(each.dtype for each in arrays))
    flat = [each.reshape(-1) for each in arrays]
    places = [*range(len(flat))]
    if indexing == "xy" and len(flat) > 1:
        places[:2] = [1, 0]
    shape = [0] * len(flat)
    for place, each in zip(places, flat, strict=True):
        shape[place] = each.size
    made = []
    for place, each in zip(places, flat, strict=True):
        own: list[Any] = [None] * len(flat)
        own[place] = slice(None)
        made.append(each[tuple(own)].broadcast_to(tuple(shape)).copy())
    return tuple(made)
