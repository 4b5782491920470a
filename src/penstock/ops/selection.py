"""Sums over words, and the indices of elements that are not zero.

What has a size that depends on data (`nonzero`, masks, `unique`) waits once, for the number of
elements. The receipt names the kernel that counts them, "number of true elements" or the like.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.array.host_access import capturing
from penstock.dtypes import Dtype
from penstock.errors import NotWhileRecording, Unsupported
from penstock.ops.portable import MOST_TURNS, Program, Programs
from penstock.ops.strides import reciprocal

if TYPE_CHECKING:
    from penstock.device import Device

Host = npt.NDArray[Any]

SCAN = Program("scan", {"values": "inout", "sums": "inout"}, ("count", "each"), {"STAGE": 0})
SELECT = Program(
    "select",
    {"x": "in", "places": "inout", "found": "inout"},
    ("count", "each", "mask0", "mask1", "mask2", "mask3"),
    {"SIZE": 1, "STAGE": 0},
)
PEEK = Program("peek", {"x": "in"}, ("at",), {}, returns=("value",))
UNRAVEL = Program(
    "unravel",
    {"x": "in", "out_": "inout"},
    ("count", "span", "x_first", "inner_m", "inner_shift", "extent", "extent_m", "extent_shift"),
    {"INNER": 0, "EXTENT": 0},
)

_WORD = np.dtype(np.uint32)


class Selection:
    """Sums and selections of one device."""

    def __init__(self, device: Device, programs: Programs) -> None:
        self._device = device
        self._programs = programs
        # A lone invocation is slow on a GPU, and launches are cheap there.
        self._alone, self._each = (4096, 64) if programs.on_cpu else (64, 16)

    def sums_before(self, values: Array, count: int) -> None:
        """Replace each of `count` words by the sum of those in front of it."""
        lanes, each = self._programs.lanes, self._each
        if count <= self._alone:
            kernel = self._programs.kernel(SCAN, _scan, STAGE=2)
            kernel(values=values, sums=self._unused(), count=count, each=count, groups=1)
            return
        parts = -(-count // each)
        sums = self._device.new_result(parts, _WORD)
        groups = self._grid(parts, lanes)
        for stage in (0, 1):
            kernel = self._programs.kernel(SCAN, _scan, STAGE=stage)
            kernel(values=values, sums=sums, count=count, each=each, groups=groups)
            if stage == 0:
                self.sums_before(sums, parts)

    def _unused(self) -> Array:
        """What a kernel binds that its stage does not touch: not what it changes elsewhere."""
        return self._device.new_result(1, _WORD)

    def _grid(self, count: int, lanes: int) -> int:
        groups = -(-count // lanes)
        most: Any = self._device.info.limits["group_count"]
        if groups > most[0]:
            raise Unsupported(f"{count:,} sums on {self._device.name}; take slices")
        return groups

    def found(self, x: Array, what: str) -> Array:
        """The flat indices (uint32) of the elements of x that are not zero. Waits, once.

        `what` names on the receipt what is counted.
        """
        if capturing(x.buffer.scheduler) is not None:
            raise NotWhileRecording(
                f"the {what} decides on the shape of a result, and while a graph is recorded "
                "there is no value yet; do it before, or keep the shape: multiply by the mask"
            )
        count = x.size
        if count >= 1 << 31:
            raise Unsupported(f"the {what} of {count:,} elements; take it of slices")
        if not count:
            return self._device.empty(0, _WORD)
        window, at = self._from_a_word(x)
        each = max(64, -(-count // 4096)) if self._programs.on_cpu else 64
        each = min(-(-each // 4) * 4, MOST_TURNS)
        parts = -(-count // each)
        places = self._device.new_result(parts + 1, _WORD)
        masks: dict[str, Any] = dict(
            zip(("mask0", "mask1", "mask2", "mask3"), _masks(x.dtype), strict=True)
        )
        groups = self._grid(parts, self._programs.lanes)
        places[parts:].fill(0)

        def launch(stage: int, into: Array) -> None:
            kernel = self._programs.kernel(SELECT, _select, SIZE=x.itemsize, STAGE=stage)
            kernel(
                x=window, places=places, found=into, count=count, each=each, groups=groups, **masks
            )

        assert at == 0
        launch(0, self._unused())
        self.sums_before(places, parts + 1)
        made = self._device.new_result(self.value(places, parts, what), _WORD)
        if made.size:
            launch(1, made)
        return made

    def value(self, words: Array, at: int, what: str) -> int:
        """The word at an index; waits for it. `what` names it on the receipt."""
        kernel = self._programs.kernel(PEEK, _peek, what)
        return int(kernel(x=words, at=at, groups=1))

    def _from_a_word(self, x: Array) -> tuple[Array, int]:
        """The words of x, starting with its first element; of a copy, if they do not."""
        if x.contiguous and x.is_settled:
            window, at = x.words()
            if at == 0:
                return window, 0
        made = self._device.new_result(x.shape, x.dtype)
        self._device.moves.copy(made, x)
        return made.words()

    def unraveled(self, flat: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
        """Indices along each axis (int64) of flat indices into a shape."""
        made = []
        for axis, n in enumerate(shape):
            inner = math.prod(shape[axis + 1 :])
            if axis and n == 1:
                made.append(self._device.zeros(flat.size, np.int64))
            elif inner == 1 and not axis:
                made.append(self.wide(flat))
            else:
                made.append(self._along(flat, max(1, inner), n if axis else 0))
        return tuple(made)

    def wide(self, words: Array) -> Array:
        """Words as int64."""
        return self._device.operations.cast(words, np.dtype(np.int64))

    def _along(self, words: Array, inner: int, extent: int) -> Array:
        """Words as int64, divided by `inner`, modulo `extent` if there is one."""
        count = words.size
        out = self._device.new_result(count, np.int64)
        if count:
            groups = self._programs.groups(count)
            kernel = self._programs.kernel(
                UNRAVEL, _unravel, INNER=int(inner > 1), EXTENT=int(extent > 1)
            )
            window, at = words.words()
            inner_m, inner_shift = reciprocal(inner)
            extent_m, extent_shift = reciprocal(max(1, extent))
            kernel(
                x=window, out_=out, count=count, span=-(-count // groups), x_first=at // 4,
                inner_m=inner_m, inner_shift=inner_shift, extent=extent, extent_m=extent_m,
                extent_shift=extent_shift, groups=groups,
            )  # fmt: skip
        return out


def _masks(dtype: Dtype) -> tuple[int, int, int, int]:
    """The bits of an element's words that make it true: all but the sign of a float."""
    every = 0xFFFFFFFF
    if dtype.kind == "c":
        return (0x7FFFFFFF,) * 4 if dtype.itemsize == 8 else (every, 0x7FFFFFFF) * 2
    if dtype.kind in "fV" and dtype.name != "void":
        last = 0x7FFF if dtype.itemsize == 2 else 0x7F if dtype.itemsize == 1 else 0x7FFFFFFF
        return (last if dtype.itemsize <= 4 else every, last, every, every)
    return every, every, every, every


# The kernels in NumPy, for the simulator.


def _scan(*, STAGE: int, values: Host, sums: Host, count: int, each: int, **_: Any) -> None:  # noqa: N803
    content, before = values.view(_WORD)[:count], sums.view(_WORD)
    for number, begin in enumerate(range(0, count, each)):
        part = content[begin : begin + each]
        total = np.cumsum(part, dtype=_WORD)
        if STAGE == 0:
            before[number] = total[-1]
        else:
            part[...] = total - part + (before[number] if STAGE == 1 else 0)


def _select(
    *, SIZE: int, STAGE: int, x: Host, places: Host, found: Host, count: int, each: int,  # noqa: N803
    mask0: int, mask1: int, mask2: int, mask3: int, **_: Any,
) -> None:  # fmt: skip
    mask = np.array([mask0, mask1, mask2, mask3], _WORD).view(np.uint8)[:SIZE]
    true = ((x[: count * SIZE].reshape(count, SIZE) & mask) != 0).any(axis=1)
    indices = np.flatnonzero(true)
    if STAGE == 0:
        parts = -(-count // each)
        places.view(_WORD)[:parts] = np.bincount(indices // each, minlength=parts)
    else:
        found.view(_WORD)[: indices.size] = indices


def _peek(*, x: Host, at: int, result: dict[str, Host], **_: Any) -> None:
    result["value"][...] = x.view(_WORD)[at]


def _unravel(
    *, INNER: int, EXTENT: int, x: Host, out_: Host, count: int, x_first: int,  # noqa: N803
    inner_m: int, inner_shift: int, extent: int, extent_m: int, extent_shift: int, **_: Any,
) -> None:  # fmt: skip
    index: Host = x.view(_WORD)[x_first : x_first + count].astype(np.uint64)
    if INNER:
        index = index * np.uint64(inner_m) >> np.uint64(32 + inner_shift)
    if EXTENT:
        over = index * np.uint64(extent_m) >> np.uint64(32 + extent_shift)
        index = index - over * np.uint64(extent)
    out_.view(np.int64)[:count] = index
