"""The distinct elements of an array, and whether elements are among others.

Elements are sorted, and those that differ from the one before are counted, which is the one wait:
the receipt calls it "number of distinct elements". -0.0 equals 0.0, and every NaN is distinct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.ops.indexing import Indexing
from penstock.ops.moves import Moves, view
from penstock.ops.portable import Program, Programs
from penstock.ops.selection import Selection
from penstock.ops.sorting import Sorting, constants_of, keys_of

if TYPE_CHECKING:
    from penstock.device import Device

Host = npt.NDArray[Any]

CHANGES = Program(
    "changes",
    {"x": "in", "flags": "inout"},
    ("count", "span", "x_at"),
    {"SIZE": 4, "KIND": 0, "DESCENDING": 0, "ALSO": 0},
    uses=("keys",),
)
GAPS = Program("gaps", {"places": "in", "out_": "inout"}, ("count", "span", "end_"), {})

_WORD = np.dtype(np.uint32)
_DISTINCT = "number of distinct elements"


class Unique(NamedTuple):
    """The distinct elements, and what was asked for beside them."""

    values: Array
    indices: Array | None
    inverse: Array | None
    counts: Array | None


class Sets:
    """The sets of one device. `unique` waits, once; `contains` does not."""

    def __init__(
        self, device: Device, programs: Programs, moves: Moves, selection: Selection,
        indexing: Indexing, sorting: Sorting,
    ) -> None:  # fmt: skip
        self._device = device
        self._programs = programs
        self._moves = moves
        self._selection = selection
        self._indexing = indexing
        self._sorting = sorting

    def unique(
        self, x: Array, *, indices: bool = False, inverse: bool = False, counts: bool = False
    ) -> Unique:
        """The distinct elements in ascending order; first indices, inverse and counts as asked."""
        flat, count = x.reshape(-1), x.size
        empty = self._device.empty
        if not count:
            index = [empty(0, np.int64) if asked else None for asked in (indices, inverse, counts)]
            back = None if index[1] is None else index[1].reshape(x.shape)
            return Unique(empty(0, x.dtype), index[0], back, index[2])
        ordered, order = self._sorted(flat, indices or inverse)
        flags = self._changes(ordered)
        places = self._selection.found(flags, _DISTINCT)
        made = self._indexing.take(ordered, places, 0)
        first = self._indexing.take(order, places, 0) if indices and order is not None else None
        back = None
        if inverse and order is not None:
            back = self._inverse(flags, order).reshape(x.shape)
        return Unique(made, first, back, self._gaps(places, count) if counts else None)

    def contains(self, x: Array, wanted: Array) -> Array:
        """Whether each of `wanted` equals an element of x, an array of the same dtype."""
        if x.dtype.kind == "c":
            both = self._device.new_result(wanted.size + x.size, x.dtype)
            both[: wanted.size].copy_from(wanted.reshape(-1))
            both[wanted.size :].copy_from(x.reshape(-1))
            # Every number is replaced by that of the distinct one that it equals.
            found = self.unique(both, inverse=True).inverse
            assert found is not None
            wanted, x = found[: wanted.size].reshape(wanted.shape), found[wanted.size :]
        ordered, _ = self._sorting.sort(x.reshape(-1), 0)
        assert ordered is not None
        return self._sorting.contains(ordered, wanted)

    def _sorted(self, x: Array, indexed: bool) -> tuple[Array, Array | None]:
        if x.dtype.kind != "c":
            ordered, order = self._sorting.sort(x, 0, indices=indexed)
            assert ordered is not None
            return ordered, order
        # First by the imaginary parts; the sort by the real parts is stable.
        real, imaginary = _parts(x)
        _, order = self._sorting.sort(imaginary, 0, values=False, indices=True)
        assert order is not None
        by_imaginary = self._indexing.take(real, order, 0)
        _, second = self._sorting.sort(by_imaginary, 0, values=False, indices=True)
        assert second is not None
        order = self._indexing.take(order, second, 0)
        return self._indexing.take(x, order, 0), order

    def _changes(self, ordered: Array) -> Array:
        """A word for each element: 1 if it differs from the one before."""
        count = ordered.size
        flags = self._device.new_result(count, _WORD)
        groups = self._programs.groups(count)
        parts = _parts(ordered) if ordered.dtype.kind == "c" else (ordered,)
        for number, part in enumerate(parts):
            window, at = (part.settled() if part.contiguous else part.copy()).words()
            kernel = self._programs.kernel(
                CHANGES, _changed, **constants_of(part.dtype), ALSO=number
            )
            kernel(
                x=window, flags=flags, count=count, span=-(-count // groups), x_at=at, groups=groups
            )
        return flags

    def _inverse(self, flags: Array, order: Array) -> Array:
        """For each element in its own place: which of the distinct ones it is."""
        count = flags.size
        # The sum of the flags up to each element, without that of the first.
        ranks = self._device.new_result(count + 1, _WORD)
        ranks[:count].copy_from(flags)
        ranks[:1].fill(0)
        ranks[count:].fill(0)
        self._selection.sums_before(ranks, count + 1)
        made = self._device.zeros(count, np.int64)
        low = view(made, (count,), (0,), dtype=_WORD)
        self._moves.scatter(low, ranks[1:], order, count, 8)
        return made

    def _gaps(self, places: Array, count: int) -> Array:
        made = self._device.new_result(places.size, np.int64)
        if places.size:
            groups = self._programs.groups(places.size)
            kernel = self._programs.kernel(GAPS, _gaps)
            kernel(
                places=places, out_=made, count=places.size, span=-(-places.size // groups),
                end_=count, groups=groups,
            )  # fmt: skip
        return made


def _parts(x: Array) -> tuple[Array, Array]:
    """The real and imaginary parts of a complex array."""
    half = x.itemsize // 2
    kind = np.dtype(f"f{half}")
    real = view(x, x.shape, x.strides, dtype=kind)
    return real, view(x, x.shape, x.strides, half, dtype=kind)


# The kernels in NumPy, for the simulator.


def _changed(
    *, SIZE: int, ALSO: int, x: Host, flags: Host, count: int, x_at: int, span: int,  # noqa: N803
    threads: Any, **order: int,
) -> None:  # fmt: skip
    keys = keys_of(x[x_at : x_at + count * SIZE].reshape(-1, SIZE), SIZE, **order)
    changed = np.ones(count, bool)
    changed[1:] = keys[1:] != keys[:-1]
    if order["KIND"] >= 2:
        changed |= keys == np.uint64((1 << (8 * SIZE)) - 1)
    out = flags.view(_WORD)[:count]
    out[...] = changed | (out if ALSO else 0)


def _gaps(*, places: Host, out_: Host, count: int, end_: int, **_: Any) -> None:
    out_.view(np.int64)[:count] = np.diff(places.view(_WORD)[:count], append=np.uint32(end_))
