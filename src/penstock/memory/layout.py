"""Shapes and strides: how the elements of an array lie in its buffer. Pure arithmetic."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.dtypes import check_dimensions
from penstock.errors import ArgumentError, BadIndex, InvalidValue
from penstock.ledger.hazards import Region

Index: TypeAlias = SupportsIndex | slice | EllipsisType | None


class Layout(NamedTuple):
    """Elements of `itemsize` bytes, the first at `offset`."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of a C-contiguous array."""
    strides = [0] * len(shape)
    step = itemsize
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


def reshaped_strides(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of the same elements in another shape of as many; None if it takes a copy.

    Each run of new axes must fill a run of old axes that one stride walks through.
    """
    if not math.prod(shape):
        return contiguous_strides(shape, layout.itemsize)
    old = [(n, s) for n, s in zip(layout.shape, layout.strides, strict=True) if n != 1]
    strides = [0] * len(shape)
    new = len(shape) - 1
    while old:
        size, step = old.pop()
        while old and old[-1][1] == size * step:
            size *= old.pop()[0]
        while new >= 0 and (size > 1 or shape[new] == 1):
            if size % shape[new]:
                return None
            strides[new] = step
            step *= shape[new]
            size //= shape[new]
            new -= 1
        if size > 1:
            return None
    for axis in range(new, -1, -1):  # axes of one element
        inner = axis + 1
        strides[axis] = shape[inner] * strides[inner] if inner < len(shape) else layout.itemsize
    return tuple(strides)


def index_layout(layout: Layout, index: Index | tuple[Index, ...]) -> Layout:
    """The layout that NumPy's basic indexing selects, by integers, slices, `...` and None."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(item is not None and item is not Ellipsis for item in items)
    place = place_of_rest(items, taken, len(layout.shape))
    items[place : place + 1] = [slice(None)] * (len(layout.shape) - taken)
    offset, axis = layout.offset, 0
    shape: list[int] = []
    strides: list[int] = []
    for item in items:
        if item is None:
            shape.append(1)
            strides.append(0)
            continue
        length, stride = layout.shape[axis], layout.strides[axis]
        if isinstance(item, slice):
            start, stop, step = _bounds(item, length)
            count = len(range(start, stop, step))
            offset += start * stride if count else 0
            shape.append(count)
            if count < 2 and abs(step * stride) > sys.maxsize:
                step = 1  # no element is a step away, and NumPy has no stride of that size
            strides.append(step * stride)
        else:
            offset += _position(item, length, axis) * stride
        axis += 1
    check_dimensions(len(shape))
    return Layout(offset, tuple(shape), tuple(strides), layout.itemsize)


def place_of_rest(items: Sequence[Any], taken: int, ndim: int) -> int:
    """Where the dimensions go that an index does not name: at its ellipsis, or at its end.

    `taken` dimensions of `ndim` are named.
    """
    if taken > ndim:
        raise BadIndex(f"too many indices: the array has {ndim} dimensions, {taken} were indexed")
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise BadIndex("an index can have only one ellipsis ('...')")
    return dots[0] if dots else len(items)


def _bounds(item: slice, length: int) -> tuple[int, int, int]:
    try:
        return item.indices(length)
    except TypeError as error:
        raise ArgumentError(f"a slice is made of integers: {error}") from error
    except ValueError as error:
        raise InvalidValue(f"{item} cannot be taken: {error}") from error


def _position(item: Any, length: int, axis: int) -> int:
    try:
        if isinstance(item, bool | np.bool_):
            raise TypeError("a bool is a mask, not a position")
        position = operator.index(item)
    except TypeError as error:
        raise ArgumentError(
            "arrays are indexed by integers, slices, '...', None, masks and arrays of integers, "
            f"not {type(item).__name__}"
        ) from error
    if not -length <= position < length:
        raise BadIndex(f"index {position} is out of bounds for axis {axis} of size {length}")
    return position % length


def rows_of(layout: Layout) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Split a layout into contiguous runs: bytes per run, then shape and strides of the runs."""
    shape = [n for n in layout.shape if n != 1]
    strides = [s for n, s in zip(layout.shape, layout.strides, strict=True) if n != 1]
    width = layout.itemsize
    while shape and strides[-1] == width:
        width *= shape.pop()
        strides.pop()
    for axis in range(len(shape) - 2, -1, -1):
        if strides[axis] == shape[axis + 1] * strides[axis + 1]:  # the two axes collapse into one
            shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
            del strides[axis]
    return width, tuple(shape), tuple(strides)


def row_offsets(layout: Layout) -> tuple[int, npt.NDArray[np.int64]]:
    """Bytes per contiguous run, and the offset of each run."""
    width, shape, strides = rows_of(layout)
    offsets = np.full((1,), layout.offset, np.int64)
    for count, stride in zip(shape, strides, strict=True):
        steps = np.arange(count, dtype=np.int64) * stride
        offsets = (offsets[:, None] + steps[None, :]).ravel()
    return width, offsets


def region_of(layout: Layout) -> tuple[Region, bool]:
    """The bytes a layout touches, and whether they are one C-contiguous block.

    The region is exact for a block and for pitched rows. Otherwise it is the span from the first
    byte to the last.
    """
    if not math.prod(layout.shape):
        return Region(layout.offset, layout.offset), True
    width, shape, strides = rows_of(layout)
    if not shape:
        return Region(layout.offset, layout.offset + width), True
    steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    lo = layout.offset + sum(min(0, step) for step in steps)
    hi = layout.offset + sum(max(0, step) for step in steps) + width
    if len(shape) == 1 and abs(strides[0]) > width:
        return Region(lo, hi, width, abs(strides[0])), False
    return Region(lo, hi), False
