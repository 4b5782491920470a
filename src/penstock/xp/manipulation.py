"""Shapes and the order of elements: `concat`, `reshape`, `roll` and their kind, by the standard.

Views where elements can stay where they are; otherwise copies on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.array.array import Array
from penstock.dtypes import as_integer, as_integers
from penstock.errors import ArgumentError, DtypeMismatch, InvalidValue, ShapeMismatch
from penstock.memory.layout import reshaped_strides
from penstock.ops.moves import view
from penstock.xp.axes import arrays_of, axes_of, axis_of, check_arrays, permuted
from penstock.xp.promotion import common

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace

__all__ = [
    "concat", "expand_dims", "flip", "moveaxis", "permute_dims", "repeat", "reshape", "roll",
    "squeeze", "stack", "tile", "unstack",
]  # fmt: skip

_REPEATED = "number of repeated elements"


def concat(xp: Namespace, arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Arrays one after the other along an axis; all of them flat, if `axis` is None."""
    given = arrays_of(xp, arrays, "concat")
    dtype = common(*(each.dtype for each in given))
    if axis is None:
        given, axis = [each.reshape(-1) for each in given], 0
    along = axis_of(axis, given[0].ndim, "concat")
    first = given[0].shape
    for each in given[1:]:
        if each.ndim != len(first) or any(
            n != m for at, (n, m) in enumerate(zip(each.shape, first, strict=True)) if at != along
        ):
            raise ShapeMismatch(f"concat along axis {along} of shapes {first} and {each.shape}")
    length = sum(each.shape[along] for each in given)
    made = xp.device.new_result((*first[:along], length, *first[along + 1 :]), dtype)
    start = 0
    for each in given:
        stop = start + each.shape[along]
        _put(xp, made[(slice(None),) * along + (slice(start, stop),)], each)
        start = stop
    return made


def stack(xp: Namespace, arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Arrays of one shape side by side along a new axis."""
    given = arrays_of(xp, arrays, "stack")
    if len({each.shape for each in given}) > 1:
        raise ShapeMismatch(f"stack of shapes {', '.join(str(each.shape) for each in given)}")
    along = axis_of(axis, given[0].ndim + 1, "stack")
    return concat(xp, [expand_dims(xp, each, axis=along) for each in given], axis=along)


def _put(xp: Namespace, part: Array, source: Array) -> None:
    if not part.size:
        return
    if source.dtype == part.dtype:
        part.copy_from(source)
    else:
        part.copy_from(xp.device.operations.cast(source, part.dtype))


def unstack(xp: Namespace, x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Views of what is at each index along an axis."""
    check_arrays(xp, "unstack", x)
    along = (slice(None),) * axis_of(axis, x.ndim, "unstack")
    return tuple(x[(*along, index)] for index in range(x.shape[len(along)]))


def expand_dims(xp: Namespace, x: Array, /, axis: int | tuple[int, ...] = 0) -> Array:
    """A view with new axes of one element at these places of the result."""
    check_arrays(xp, "expand_dims", x)
    several = axis if isinstance(axis, tuple) else (axis,)
    new = {*axes_of(several, x.ndim + len(several), "expand_dims")}
    return x[tuple(None if at in new else slice(None) for at in range(x.ndim + len(new)))]


def squeeze(xp: Namespace, x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """A view without some axes of one element."""
    check_arrays(xp, "squeeze", x)
    gone = {*axes_of(axis, x.ndim, "squeeze")}
    for at in gone:
        if x.shape[at] != 1:
            raise InvalidValue(f"squeeze of axis {at}, which has {x.shape[at]} elements, not one")
    return x[tuple(0 if at in gone else slice(None) for at in range(x.ndim))]


def permute_dims(xp: Namespace, x: Array, /, axes: tuple[int, ...] | None = None) -> Array:
    """A view with the axes in another order; NumPy's default is the opposite one."""
    check_arrays(xp, "permute_dims", x)
    order = axes_of(tuple(range(x.ndim))[::-1] if axes is None else axes, x.ndim, "permute_dims")
    if len(order) != x.ndim:
        raise InvalidValue(f"permute_dims of {x.ndim} dimensions with axes={axes!r}")
    return permuted(x, order)


def moveaxis(
    xp: Namespace, x: Array, source: int | tuple[int, ...], destination: int | tuple[int, ...], /
) -> Array:
    """A view with some axes at other places, and the others in their order."""
    check_arrays(xp, "moveaxis", x)
    taken = axes_of(source, x.ndim, "moveaxis")
    goals = axes_of(destination, x.ndim, "moveaxis")
    if len(taken) != len(goals):
        raise InvalidValue(f"moveaxis of {len(taken)} axes to {len(goals)} places")
    order = [axis for axis in range(x.ndim) if axis not in taken]
    for goal, axis in sorted(zip(goals, taken, strict=True)):
        order.insert(goal, axis)
    return permuted(x, order)


def reshape(
    xp: Namespace, x: Array, /, shape: int | tuple[int, ...], *, copy: bool | None = None
) -> Array:
    """The elements in another shape: a view, or a copy where no strides reach them."""
    check_arrays(xp, "reshape", x)
    if copy:
        return x.copy().reshape(shape)
    if copy is False:
        dims = as_integers(shape)
        if dims.count(-1) == 1 and 0 not in dims:
            rest = -math.prod(dims)
            dims = tuple(x.size // rest if n == -1 else n for n in dims)
        if math.prod(dims) == x.size and reshaped_strides(x.layout, dims) is None:
            raise InvalidValue(
                f"reshape of {x.shape} with strides {x.strides} to {dims} takes a copy, which "
                "copy=False forbids"
            )
    return x.reshape(shape)


def flip(xp: Namespace, x: Array, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """A view with the opposite order along some axes, or along all."""
    check_arrays(xp, "flip", x)
    turned = range(x.ndim) if axis is None else axes_of(axis, x.ndim, "flip")
    return x[tuple(slice(None, None, -1 if at in turned else 1) for at in range(x.ndim))]


def roll(
    xp: Namespace, x: Array, /, shift: int | tuple[int, ...], *,
    axis: int | tuple[int, ...] | None = None,
) -> Array:  # fmt: skip
    """Elements moved along axes, those behind the last to the front; flat, if `axis` is None."""
    check_arrays(xp, "roll", x)
    if axis is None:
        if isinstance(shift, tuple) and len(shift) != 1:
            raise InvalidValue(f"roll with axis=None takes one shift, not {shift!r}")
        return roll(xp, x.reshape(-1), shift, axis=0).reshape(x.shape)
    axes = [
        axis_of(each, x.ndim, "roll") for each in (axis if isinstance(axis, tuple) else (axis,))
    ]
    given = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    if len(given) != len(axes):
        raise InvalidValue(f"roll by {len(given)} shifts along {len(axes)} axes")
    total = dict.fromkeys(axes, 0)
    for along, by in zip(axes, given, strict=True):
        total[along] += as_integer(by, "roll")
    made = xp.device.new_result(x.shape, x.dtype)
    if made.size:
        _rolled(made, x, [(along, by % x.shape[along]) for along, by in total.items()])
    return made


def _rolled(made: Array, x: Array, shifts: list[tuple[int, int]]) -> None:
    """Copy the parts that a shift moves together: two along each axis."""
    if not shifts:
        made.copy_from(x)
        return
    (along, by), *rest = shifts
    before = (slice(None),) * along
    length = x.shape[along]
    _rolled(made[(*before, slice(by, None))], x[(*before, slice(0, length - by))], rest)
    if by:
        _rolled(made[(*before, slice(0, by))], x[(*before, slice(length - by, None))], rest)


def tile(xp: Namespace, x: Array, repetitions: int | tuple[int, ...], /) -> Array:
    """The whole array several times along each axis."""
    check_arrays(xp, "tile", x)
    times = repetitions if isinstance(repetitions, tuple | list) else (repetitions,)
    times = tuple(as_integer(each, "tile") for each in times)
    ndim = max(len(times), x.ndim)
    times = (1,) * (ndim - len(times)) + times
    shape = (1,) * (ndim - x.ndim) + x.shape
    made = xp.device.new_result(tuple(n * m for n, m in zip(times, shape, strict=True)), x.dtype)
    if made.size:
        pairs = tuple(n for pair in zip(times, shape, strict=True) for n in pair)
        single = tuple(n for pair in zip((1,) * ndim, shape, strict=True) for n in pair)
        made.reshape(pairs).copy_from(x.reshape(single).broadcast_to(pairs))
    return made


def repeat(xp: Namespace, x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Each element several times in a row.

    `repeats` as an array of the device, one number for each index, waits for their sum.
    """
    check_arrays(xp, "repeat", x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    along = axis_of(axis, x.ndim, "repeat")
    length = x.shape[along]
    if isinstance(repeats, Array):
        return xp.device.indexing.take(x, _repeated(xp, repeats, length), along)
    host = np.asarray(repeats)
    if host.dtype.kind not in "iu" or (host.size and int(host.min()) < 0):
        raise ArgumentError(f"repeat: repeats are integers from 0 on, not {repeats!r}")
    if host.size != 1:
        if host.shape != (length,):
            raise ShapeMismatch(f"repeat: {host.shape} repeats for an axis of {length}")
        return xp.device.indexing.take(x, np.repeat(np.arange(length), host), along)
    times = int(host.item())
    shape = (*x.shape[:along], length, times, *x.shape[along + 1 :])
    made = xp.device.new_result((*x.shape[:along], length * times, *x.shape[along + 1 :]), x.dtype)
    if made.size:
        strides = (*x.strides[: along + 1], 0, *x.strides[along + 1 :])
        made.reshape(shape).copy_from(view(x, shape, strides))
    return made


def _repeated(xp: Namespace, repeats: Array, length: int) -> Array:
    """The indices of an axis, each as often as an array of the device says."""
    if repeats.dtype.kind not in "iu":
        raise DtypeMismatch(f"repeat: repeats are integers, not {repeats.dtype}")
    if repeats.ndim > 1 or (repeats.size != 1 and repeats.shape != (length,)):
        raise ShapeMismatch(f"repeat: {repeats.shape} repeats for an axis of {length}")
    device, cast = xp.device, xp.device.operations.cast
    ends = device.zeros(length + 1, np.uint32)
    wide = cast(repeats, np.dtype(np.int64))
    each = cast(wide, np.dtype(np.uint32))
    if length:
        ends[:length].copy_from(each.broadcast_to((length,)))
    beyond = xp.not_equal(cast(each, wide.dtype), wide).any()
    total = cast(each, wide.dtype).broadcast_to((length,)).sum()
    device.selection.sums_before(ends, length + 1)
    count = device.selection.value(ends, length, _REPEATED)  # what was launched before is done, too
    if length and (beyond or int(total) != count):
        raise InvalidValue("repeat: repeats are from 0 on, and their sum is below 2**32")
    last = device.selection.wide(ends[1:])
    return device.sorting.search(last, device.ramps.integers(count, 0, 1), right=True)
