"""The reductions of arrays by name, with NumPy's arguments: axes, dtypes, `keepdims`, `ddof`.

`Array.sum(axis=0)` and `dev.xp.sum` both come here. Results are new arrays; nothing waits.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import Dtype, as_dtype, as_float
from penstock.errors import ArgumentError, DtypeMismatch, InvalidValue
from penstock.memory.layout import Layout, contiguous_strides
from penstock.ops.elements import element_of

if TYPE_CHECKING:
    from penstock.schedule.stream import Stream

Axis = int | tuple[int, ...] | None

_INT, _UINT = np.dtype(np.int64), np.dtype(np.uint64)


def axes_of(what: str, x: Array, axis: Axis) -> tuple[int, ...]:
    """The axes that are meant, from 0 on; all of them for None."""
    if axis is None:
        return tuple(range(x.ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    found = []
    for each in given:
        try:
            number = operator.index(each)
        except TypeError as error:
            raise ArgumentError(
                f"{what}: axis={axis!r}; an axis is an integer, several are a tuple of them"
            ) from error
        if not -x.ndim <= number < x.ndim:
            raise InvalidValue(f"{what}: axis {number} of an array with {x.ndim} axes")
        found.append(number % x.ndim)
    if len({*found}) != len(found):
        raise InvalidValue(f"{what}: axis={axis!r} names an axis twice")
    return tuple(sorted(found))


def dtype_of_total(dtype: Dtype) -> Dtype:
    """The dtype of sums and products: 64 bits for integers, that of the elements for others."""
    if dtype.kind in "bi":
        return _INT
    return _UINT if dtype.kind == "u" else dtype


def total(
    what: str, x: Array, axis: Axis = None, dtype: npt.DTypeLike | None = None, *,
    keepdims: bool = False, stream: Stream | None = None,
) -> Array:  # fmt: skip
    """`sum` and `prod`."""
    axes = axes_of(what, x, axis)
    kind = dtype_of_total(x.dtype) if dtype is None else as_dtype(dtype)
    x, of = _converted(what, x, kind, stream), x
    engine = x.device.axes
    made = (engine.sum if what == "sum" else engine.prod)(x, axes, kind, stream)
    return _kept(made, of, axes, keepdims)


def mean(
    x: Array, axis: Axis = None, dtype: npt.DTypeLike | None = None, *, default: Dtype,
    keepdims: bool = False, stream: Stream | None = None,
) -> Array:  # fmt: skip
    """The mean; `default` is the dtype of means of integers."""
    axes = axes_of("mean", x, axis)
    kind = _float_of(x, dtype, default)
    x, of = _converted("mean", x, kind, stream), x
    return _kept(x.device.axes.mean(x, axes, kind, stream), of, axes, keepdims)


def variance(
    x: Array, axis: Axis = None, dtype: npt.DTypeLike | None = None, *, default: Dtype,
    correction: float = 0.0, keepdims: bool = False, root: bool = False,
    stream: Stream | None = None,
) -> Array:  # fmt: skip
    """The variance, or its root; of complex numbers, that of their distances from the mean."""
    what = "std" if root else "var"
    axes = axes_of(what, x, axis)
    if isinstance(correction, complex) or not isinstance(correction, int | float | np.number):
        raise ArgumentError(f"{what}: the correction is a number, not {correction!r}")
    kind = _float_of(x, dtype, default)
    x, of = _converted(what, x, kind, stream), x
    real = np.dtype(f"f{kind.itemsize // 2}") if kind.kind == "c" else kind
    made = x.device.axes.variance(
        x, axes, real, as_float(correction, f"{what}: the correction"), root=root, stream=stream
    )
    return _kept(made, of, axes, keepdims)


def extreme(
    what: str, x: Array, axis: Axis = None, *, keepdims: bool = False,
    stream: Stream | None = None,
) -> Array:  # fmt: skip
    """`min` and `max`."""
    axes = axes_of(what, x, axis)
    made = x.device.axes.extreme(x, axes, smallest=what == "min", stream=stream)
    return _kept(made, x, axes, keepdims)


def extreme_index(
    what: str, x: Array, axis: int | None = None, *, keepdims: bool = False,
    stream: Stream | None = None,
) -> Array:  # fmt: skip
    """`argmin` and `argmax`, along one axis, or in the flat array."""
    if isinstance(axis, tuple):
        raise ArgumentError(f"{what}: axis={axis!r}; give one axis, or None for the flat array")
    axes = axes_of(what, x, axis)
    made = x.device.axes.extreme_index(x, axes, smallest=what == "argmin", stream=stream)
    return _kept(made, x, axes, keepdims)


def truth(
    what: str, x: Array, axis: Axis = None, *, keepdims: bool = False,
    stream: Stream | None = None,
) -> Array:  # fmt: skip
    """`any`, `all` and `count_nonzero`."""
    axes = axes_of(what, x, axis)
    engine = x.device.axes
    compute = {"any": engine.any, "all": engine.all, "count_nonzero": engine.count}[what]
    return _kept(compute(x, axes, stream), x, axes, keepdims)


def running(
    what: str, x: Array, axis: int | None = None, dtype: npt.DTypeLike | None = None, *,
    initial: bool = False, stream: Stream | None = None,
) -> Array:  # fmt: skip
    """Running sums (`what` ends in "sum") or products along an axis, or in the flat array."""
    if isinstance(axis, tuple):
        raise ArgumentError(f"{what}: axis={axis!r}; give one axis")
    if axis is None:
        x, axis = (x if x.contiguous else x.copy(stream)).reshape(-1), 0
    (along,) = axes_of(what, x, axis)
    kind = dtype_of_total(x.dtype) if dtype is None else as_dtype(dtype)
    x = _converted(what, x, kind, stream)
    return x.device.scans.scan(
        x, along, kind, product=what.endswith("prod"), initial=initial, stream=stream
    )


def _float_of(x: Array, dtype: npt.DTypeLike | None, default: Dtype) -> Dtype:
    if dtype is not None:
        return as_dtype(dtype)
    return default if x.dtype.kind in "biu" else x.dtype


def _converted(what: str, x: Array, dtype: Dtype, stream: Stream | None) -> Array:
    """The array as kernels can convert it to a dtype: converted before, if they cannot."""
    source, goal = element_of(x.dtype).compute, element_of(dtype).compute
    if source in ("c64", "c128") and goal not in ("c64", "c128"):
        raise DtypeMismatch(f"{what} of {x.dtype} as {dtype}; take xp.real(x) or xp.imag(x) first")
    floats = source in ("f32", "f64", "c64", "c128")
    narrower = source in ("f64", "c128") and goal not in ("f64", "c128")
    if (floats and goal not in ("f32", "f64", "c64", "c128")) or narrower:
        return x.device.operations.cast(x, dtype, stream=stream)
    return x


def _kept(made: Array, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """The result, with its reduced axes as axes of size 1 if they are kept."""
    if not keepdims:
        return made
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    strides = contiguous_strides(shape, made.itemsize)
    return Array(made.buffer, Layout(made.layout.offset, shape, strides, made.itemsize), made.dtype)
