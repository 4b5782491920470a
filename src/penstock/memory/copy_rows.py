"""Copy regions for device copies: rows between two layouts, and large arrays split into pieces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.memory.backing import Backing
from penstock.memory.layout import Layout, contiguous_strides, row_offsets, rows_of

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.driver.protocol import CopyRegions

Host = npt.NDArray[Any]

#: A driver's copy takes about 0.3 us for each region, and a kernel as long for a few hundred bytes.
_SHORT = 256
_FEW = 256


def packed_array(array: Array, block: Backing) -> Host:
    """View a staging block as a C-contiguous NumPy array of the array's shape and dtype."""
    return np.ndarray(array.shape, array.dtype, buffer=block.chunk.bytes, offset=block.offset)


def pieces(array: Array, data: Host, most: int) -> list[tuple[Array, Host]]:
    """Split array and data into pieces of at most `most` bytes each, along the first axes."""
    if array.nbytes <= most:
        return [(array, data)]
    if len(array) == 1:
        return pieces(array[0], data[0], most)
    step = max(1, most * len(array) // array.nbytes)
    found: list[tuple[Array, Host]] = []
    for start in range(0, len(array), step):
        found += pieces(array[start : start + step], data[start : start + step], most)
    return found


def packed_rows(array: Array, backing: Backing, packed: Backing, *, to_device: bool) -> CopyRegions:
    """Copy regions between an array's elements and the same elements packed in another backing."""
    if array.contiguous:
        here, there = backing.offset + array.region.lo, packed.offset
        return (
            one_row(there, here, array.nbytes) if to_device else one_row(here, there, array.nbytes)
        )
    layout = array.layout
    return _rows(layout, backing, packed_layout(layout), packed, reverse=to_device)


def packed_layout(layout: Layout) -> Layout:
    """The C-contiguous layout of the same elements, starting at offset 0."""
    strides = contiguous_strides(layout.shape, layout.itemsize)
    return Layout(0, layout.shape, strides, layout.itemsize)


def copy_rows(source: Array, origin: Backing, target: Array, goal: Backing) -> CopyRegions:
    """Copy regions from one array to another of the same shape."""
    if source.contiguous and target.contiguous:
        start = origin.offset + source.region.lo
        return one_row(start, goal.offset + target.region.lo, source.nbytes)
    return _rows(source.layout, origin, target.layout, goal)


def in_short_runs(layout: Layout) -> bool:
    """Whether a copy of it by regions, one per run, takes longer than a launch."""
    width, shape, _ = rows_of(layout)
    return width < _SHORT and math.prod(shape) > _FEW


def one_row(source: int, target: int, nbytes: int) -> CopyRegions:
    """The copy region of one contiguous run."""
    return np.array([[source, target, nbytes]], np.uint64)


def _rows(
    source: Layout, origin: Backing, target: Layout, goal: Backing, *, reverse: bool = False
) -> CopyRegions:
    """Copy regions from one layout to another of the same shape, one per contiguous run.

    `reverse` swaps source and destination.
    """
    width, starts = row_offsets(source)
    goal_width, goal_starts = row_offsets(target)
    if goal_width != width:
        # Cut the longer runs to the length of the shorter; that length always divides the longer.
        short = min(width, goal_width)
        starts = _cut(starts, width, short)
        goal_starts = _cut(goal_starts, goal_width, short)
        width = short
    rows = np.empty((len(starts), 3), np.uint64)
    rows[:, 1 if reverse else 0] = starts + origin.offset
    rows[:, 0 if reverse else 1] = goal_starts + goal.offset
    rows[:, 2] = width
    return rows


def _cut(starts: npt.NDArray[np.int64], width: int, short: int) -> npt.NDArray[np.int64]:
    return (starts[:, None] + np.arange(0, width, short)[None, :]).ravel()
