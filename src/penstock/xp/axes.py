"""The arrays and axes that callers give to functions, checked."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.array.array import Array
from penstock.errors import ArgumentError, BadIndex, InvalidValue

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace


def axis_of(axis: Any, ndim: int, what: str) -> int:
    """An axis of an array of `ndim` dimensions; negative ones count from the last."""
    try:
        found = operator.index(axis)
    except TypeError as error:
        raise ArgumentError(f"{what}: an axis is an int, not {axis!r}") from error
    if not -ndim <= found < ndim:
        raise BadIndex(f"{what}: axis {found} of an array of {ndim} dimensions")
    return found % ndim


def axes_of(axes: Any, ndim: int, what: str) -> tuple[int, ...]:
    """One axis or several, none of them twice."""
    several = axes if isinstance(axes, tuple | list) else (axes,)
    found = tuple(axis_of(each, ndim, what) for each in several)
    if len({*found}) != len(found):
        raise InvalidValue(f"{what}: an axis is given twice in {axes!r}")
    return found


def arrays_of(xp: Namespace, values: Any, what: str) -> list[Array]:
    """The arrays of a sequence, at least one of them."""
    try:
        given = [*values]
    except TypeError as error:
        raise ArgumentError(f"{what} takes a list of arrays, not {values!r}") from error
    check_arrays(xp, what, *given)
    if not given:
        raise InvalidValue(f"{what} takes at least one array")
    return given


def check_arrays(xp: Namespace, what: str, *values: Any) -> None:
    """Raise unless all values are arrays of the device that the namespace is for."""
    for each in values:
        if not isinstance(each, Array):
            raise ArgumentError(
                f"{what} takes an array of a device, not {type(each).__name__}; xp.asarray makes "
                "one"
            )
        if each.device is not xp.device:
            raise ArgumentError(
                f"{what}: an array is on {each.device}, the function is that of {xp.device}; copy "
                "it over with to_device()"
            )


def permuted(x: Array, order: Iterable[int]) -> Array:
    """The same bytes with the axes in another order."""
    x.buffer.check()
    axes = tuple(order)
    shape = tuple(x.shape[axis] for axis in axes)
    strides = tuple(x.strides[axis] for axis in axes)
    return x.seen(x.layout._replace(shape=shape, strides=strides))
