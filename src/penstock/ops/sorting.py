"""Sorting, and searching in what is sorted.

Elements are compared by keys: unsigned integers made from their bits, in the order of the numbers,
with NaN last in either direction, and -0.0 equal to 0.0. Sorts are stable. Long rows are sorted by
the keys' bytes, from the lowest on, with a few launches for each (radix sort); short rows all in
one launch, each by one invocation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import Dtype
from penstock.errors import ArgumentError, DtypeMismatch, ShapeMismatch, Unsupported
from penstock.ops.moves import Moves, view
from penstock.ops.portable import Program, Programs
from penstock.ops.selection import Selection

if TYPE_CHECKING:
    from penstock.device import Device

Host = npt.NDArray[Any]

_KEYED = {"SIZE": 4, "KIND": 0, "DESCENDING": 0}

RADIX = Program(
    "radix",
    {
        "src": "in", "src_index": "in", "counts": "inout", "dst": "inout", "dst_index": "inout"
    },
    ("rows", "row", "parts", "each", "shift", "src_at", "first", "last", "keep"),
    {**_KEYED, "STAGE": 0, "INDEXED": 0},
    uses=("keys",),
)  # fmt: skip
ROWSORT = Program(
    "rowsort",
    {"src": "in", "data": "inout", "places": "inout"},
    ("rows", "row", "span", "half_", "src_at"),
    {**_KEYED, "INDEXED": 0},
    uses=("keys",),
)
SEARCH = Program(
    "search",
    {"x": "in", "wanted": "in", "sorter": "in", "out_": "inout"},
    ("count", "span", "length_", "x_at", "wanted_at", "sorter_at"),
    {**_KEYED, "RIGHT": 0, "SORTER": 0},
    uses=("keys",),
)

_WORD = np.dtype(np.uint32)
_INDEX = np.dtype(np.int64)
_SHORT = 512  # the longest row that one invocation sorts
_DIGITS = 256


class Sorting:
    """The sorts and searches of one device. They launch, and wait for nothing."""

    def __init__(
        self, device: Device, programs: Programs, moves: Moves, selection: Selection
    ) -> None:
        self._device = device
        self._programs = programs
        self._moves = moves
        self._selection = selection

    def sort(
        self, x: Array, axis: int = -1, *, descending: bool = False, values: bool = True,
        indices: bool = False,
    ) -> tuple[Array | None, Array | None]:  # fmt: skip
        """The elements sorted along an axis, and the indices (int64) that sort them, as asked."""
        order = constants_of(x.dtype, descending=descending)
        last = _moved_axis(x, axis)
        rows = math.prod(last.shape[:-1])
        made = self._device.new_result(last.shape, x.dtype) if values else None
        where = self._device.new_result(last.shape, _INDEX) if indices else None
        if x.size:
            flat = last.settled() if last.contiguous else last.copy()
            self._rows(flat, rows, x.shape[axis], order, made, where)
        return self._back(made, x, axis), self._back(where, x, axis)

    def search(
        self, x: Array, wanted: Array, *, right: bool = False, sorter: Array | None = None
    ) -> Array:
        """Where elements would be inserted into x, which is sorted (by `sorter`): int64."""
        out = self._device.new_result(wanted.shape, _INDEX)
        self._search(x, wanted, sorter, out, RIGHT=int(right), SORTER=int(sorter is not None))
        return out

    def contains(self, x: Array, wanted: Array) -> Array:
        """Whether x, which is sorted, has elements equal to each of `wanted`."""
        out = self._device.new_result(wanted.shape, np.bool_)
        self._search(x, wanted, None, out, RIGHT=2, SORTER=0)
        return out

    def _search(
        self, x: Array, wanted: Array, sorter: Array | None, out: Array, **how: int
    ) -> None:
        if x.dtype != wanted.dtype:
            raise DtypeMismatch(f"search for {wanted.dtype} in {x.dtype}: nothing is cast")
        if x.ndim != 1:
            raise ShapeMismatch(f"search in an array of shape {x.shape}; it takes one dimension")
        order = constants_of(x.dtype, descending=False)
        if not wanted.size:
            return
        if not x.size:
            out.fill(0)
            return
        (xs, x_at), (each, at) = _side_by_side(x), _side_by_side(wanted)
        by, by_at = (xs, 0) if sorter is None else _side_by_side(sorter)
        units = -(-wanted.size // 4) if how["RIGHT"] == 2 else wanted.size
        # A search takes a turn for each bit of the length.
        turns = (x.size.bit_length() + 2) * (4 if how["RIGHT"] == 2 else 1)
        groups = self._programs.groups(units, turns)
        kernel = self._programs.kernel(SEARCH, _searched, **order, **how)
        kernel(
            x=xs, wanted=each, sorter=by, out_=out.words()[0], count=wanted.size,
            span=-(-units // groups), length_=x.size, x_at=x_at, wanted_at=at, sorter_at=by_at,
            groups=groups,
        )  # fmt: skip

    def _back(self, made: Array | None, x: Array, axis: int) -> Array | None:
        """What is sorted along the last axis, with that axis in its place."""
        if made is None or axis % max(1, x.ndim) == x.ndim - 1 or not x.ndim:
            return made
        order = [*range(x.ndim - 1)]
        order.insert(axis % x.ndim, x.ndim - 1)
        back = view(
            made, tuple(made.shape[each] for each in order),
            tuple(made.strides[each] for each in order),
        )  # fmt: skip
        return back.copy()

    def _rows(
        self, x: Array, rows: int, row: int, order: dict[str, int], made: Array | None,
        where: Array | None,
    ) -> None:  # fmt: skip
        """Sort `rows` of `row` elements that lie side by side."""
        widest = 2 * 8 if row <= _SHORT else 8  # bytes of an element in what a kernel binds
        most = self._programs.range // widest // row
        if rows > most:
            if not most:
                raise Unsupported(
                    f"sort of {row:,} elements; {self._device.name} binds "
                    f"{self._programs.range:,} bytes, enough for "
                    f"{self._programs.range // widest:,}. Sort slices"
                )
            for start in range(0, rows, most):
                part = slice(start, min(rows, start + most))
                shape = (part.stop - start, row)
                into = [
                    None if each is None else self._device.new_result(shape, each.dtype)
                    for each in (made, where)
                ]
                self._rows(x.reshape(rows, row)[part], shape[0], row, order, *into)
                for whole, piece in zip((made, where), into, strict=True):
                    if whole is not None and piece is not None:
                        whole.reshape(rows, row)[part].copy_from(piece)
            return
        if row <= _SHORT:
            self._short_rows(x, rows, row, order, made, where)
        else:
            self._long_rows(x, rows, row, order, made, where)

    def _short_rows(
        self, x: Array, rows: int, row: int, order: dict[str, int], made: Array | None,
        where: Array | None,
    ) -> None:  # fmt: skip
        count, words = rows * row, 2 if order["SIZE"] == 8 else 1
        levels = (row - 1).bit_length()
        data = self._device.new_result(2 * count * words, _WORD)
        places = self._device.new_result(2 * count if where is not None else 1, _WORD)
        turns = row * (levels + 1) + 2 * levels + 2
        groups = self._programs.groups(rows, turns)
        src, src_at = x.words()
        kernel = self._programs.kernel(ROWSORT, _rowsorted, **order, INDEXED=int(where is not None))
        kernel(
            src=src, data=data, places=places, rows=rows, row=row, span=-(-rows // groups),
            half_=count, src_at=src_at, groups=groups,
        )  # fmt: skip
        start = count if levels % 2 else 0
        if made is not None:
            self._narrow(data[start * words : (start + count) * words], made)
        if where is not None:
            self._widen(places[start : start + count], where)

    def _long_rows(
        self, x: Array, rows: int, row: int, order: dict[str, int], made: Array | None,
        where: Array | None,
    ) -> None:  # fmt: skip
        size = order["SIZE"]
        count, words = rows * row, 2 if size == 8 else 1
        most = 8192 if self._programs.on_cpu else 1024
        each = max(512, min(most, -(-row // 512)))
        parts = -(-row // each)
        counts = self._device.new_result(rows * _DIGITS * parts, _WORD)
        groups = -(-rows * parts // self._programs.lanes)
        empty = self._device.empty
        spare = [empty(count * words, _WORD) for _ in range(min(2, size))]
        indices = (
            [empty(count, _WORD) for _ in range(min(2, size - 1))] if where is not None else []
        )
        unused = empty(1, _WORD), empty(1, _WORD)
        src, src_at = x.words()
        index: Array = unused[0]
        for number in range(size):
            last = number == size - 1
            # The result itself has the form of what the last pass writes, but for narrow dtypes.
            dst = made if last and made is not None and size >= 4 else spare[number % 2]
            to = unused[1] if where is None else where if last else indices[number % 2]
            for stage in (0, 1):
                kernel = self._programs.kernel(
                    RADIX, _radix, **order, STAGE=stage, INDEXED=int(where is not None)
                )
                kernel(
                    src=src, src_index=index, counts=counts, dst=dst, dst_index=to, rows=rows,
                    row=row, parts=parts, each=each, shift=8 * number,
                    src_at=src_at if number == 0 else 0, first=int(number == 0), last=int(last),
                    keep=int(not last or made is not None), groups=groups,
                )  # fmt: skip
                if stage == 0:
                    self._selection.sums_before(counts, counts.size)
            src, index = dst, to
        if made is not None and size < 4:
            self._narrow(src, made)

    def _narrow(self, words: Array, made: Array) -> None:
        """Copy elements that are in words of their own to the array of them."""
        size = made.itemsize
        step = max(4, size)
        source = view(words, (made.size,), (step,), dtype=np.dtype(f"V{size}"))
        self._moves.copy(view(made, (made.size,), (size,), dtype=source.dtype), source)

    def _widen(self, words: Array, where: Array) -> None:
        """Copy indices to an array of 64-bit ones."""
        wide = self._selection.wide(words)
        self._moves.copy(view(where, (where.size,), (8,)), wide)


def constants_of(dtype: Dtype, *, descending: bool = False) -> dict[str, int]:
    """The constants of kernels that compare elements of a dtype."""
    kinds = {"b": 0, "u": 0, "i": 1, "f": 2}
    kind = 3 if dtype.name == "bfloat16" else kinds.get(dtype.kind)
    if kind is None or dtype.itemsize > 8:
        raise DtypeMismatch(f"elements of {dtype} have no order; sort real numbers")
    return {"SIZE": dtype.itemsize, "KIND": kind, "DESCENDING": int(descending)}


def _moved_axis(x: Array, axis: int) -> Array:
    """x with an axis moved to the end."""
    if not x.ndim:
        raise ArgumentError("an array without dimensions is not sorted")
    order = [*range(x.ndim)]
    order.append(order.pop(axis))
    shape = tuple(x.shape[each] for each in order)
    return view(x, shape, tuple(x.strides[each] for each in order))


def _side_by_side(x: Array) -> tuple[Array, int]:
    return (x.settled() if x.contiguous else x.copy()).words()


# The kernels in NumPy, for the simulator.


def keys_of(bits: Host, SIZE: int, KIND: int, DESCENDING: int) -> Host:  # noqa: N803
    """The keys of elements, whose bits are in the last axis as bytes."""
    unsigned = np.ascontiguousarray(bits).view(f"u{SIZE}")[..., 0]
    keys = unsigned.astype(np.uint64)
    sign, every = np.uint64(1 << (8 * SIZE - 1)), np.uint64((1 << (8 * SIZE)) - 1)
    nan = np.zeros(keys.shape, bool)
    if KIND >= 2:
        infinity = 0x7F80 if KIND == 3 else {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF << 52}[SIZE]
        plain = keys & ~sign
        nan = plain > np.uint64(infinity)
        keys = np.where(plain == 0, np.uint64(0), keys)
        keys = np.where(keys & sign, keys ^ every, keys | sign)
    elif KIND == 1:
        keys ^= sign
    keys = keys ^ every if DESCENDING else keys
    return np.where(nan, every, keys)


def _radix(
    *, STAGE: int, INDEXED: int, SIZE: int, src: Host, src_index: Host, counts: Host,  # noqa: N803
    dst: Host, dst_index: Host, rows: int, row: int, parts: int, each: int, shift: int,
    src_at: int, first: int, last: int, keep: int, threads: Any, **order: int,
) -> None:  # fmt: skip
    count, wide = rows * row, SIZE if first else max(4, SIZE)
    bits = src[src_at : src_at + count * wide].reshape(count, wide)[:, :SIZE]
    digits = (keys_of(bits, SIZE, **order) >> np.uint64(shift)).astype(np.int64) & 255
    i = np.arange(count)
    at = (i // row * 256 + digits) * parts + i % row // each
    if STAGE == 0:
        counts.view(_WORD)[:] = np.bincount(at, minlength=rows * 256 * parts)
        return
    to = np.empty(count, np.int64)
    to[np.argsort(at, kind="stable")] = i
    assert (counts.view(_WORD)[at] <= to).all()
    if keep:
        made = np.zeros((count, max(4, SIZE)), np.uint8)
        made[to, :SIZE] = bits
        dst[: made.size] = made.ravel()
    if INDEXED:
        index = i % row if first else src_index.view(_WORD)[:count]
        dst_index.view(np.int64 if last else _WORD)[to] = index


def _rowsorted(
    *, INDEXED: int, SIZE: int, src: Host, data: Host, places: Host, rows: int, row: int,  # noqa: N803
    half_: int, src_at: int, span: int, threads: Any, **order: int,
) -> None:  # fmt: skip
    count, wide = rows * row, max(4, SIZE)
    bits = src[src_at : src_at + count * SIZE].reshape(rows, row, SIZE)
    where = np.argsort(keys_of(bits, SIZE, **order), axis=1, kind="stable")
    made = np.zeros((rows, row, wide), np.uint8)
    made[..., :SIZE] = np.take_along_axis(bits, where[..., None], 1)
    start = count if (row - 1).bit_length() % 2 else 0
    data[start * wide : (start + count) * wide] = made.ravel()
    if INDEXED:
        places.view(_WORD)[start : start + count] = where.ravel()


def _searched(
    *, RIGHT: int, SORTER: int, SIZE: int, x: Host, wanted: Host, sorter: Host, out_: Host,  # noqa: N803
    count: int, length_: int, x_at: int, wanted_at: int, sorter_at: int, span: int, threads: Any,
    **order: int,
) -> None:  # fmt: skip
    keys = keys_of(x[x_at : x_at + length_ * SIZE].reshape(-1, SIZE), SIZE, **order)
    each = keys_of(wanted[wanted_at : wanted_at + count * SIZE].reshape(-1, SIZE), SIZE, **order)
    if SORTER:
        keys = keys[sorter[sorter_at : sorter_at + 8 * length_].view(np.int64)]
    if RIGHT == 2:
        nan = order["KIND"] >= 2 and each == np.uint64((1 << (8 * SIZE)) - 1)
        out_[:count] = np.isin(each, keys) & ~np.asarray(nan)
    else:
        out_.view(np.int64)[:count] = np.searchsorted(keys, each, "right" if RIGHT else "left")
