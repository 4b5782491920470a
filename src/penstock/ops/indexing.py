"""Indexing by arrays: integers, masks, and both mixed with slices, with NumPy's meaning.

No index is checked on the device, because an error would take a wait: negative indices count from
the end, and what is out of bounds then is the first or the last element. Indices that the host
has (lists, NumPy arrays) are checked, and raise `BadIndex`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.array.host_values import as_source
from penstock.errors import (
    ArgumentError,
    BadIndex,
    DtypeMismatch,
    ShapeMismatch,
    Unsupported,
)
from penstock.memory.layout import index_layout, place_of_rest
from penstock.ops.moves import Moves, kept_within, view
from penstock.ops.portable import Program, signed
from penstock.ops.selection import Selection
from penstock.ops.strides import broadcast_shape, broadcast_strides

if TYPE_CHECKING:
    from penstock.device import Device

Host = npt.NDArray[Any]

COMBINE = Program(
    "combine",
    {"keys": "in", "out_": "inout"},
    ("count", "span", "keys_at", "limit", "scale"),
    {"KEY_SIZE": 4, "KEY_SIGNED": 0, "FLIP": 0, "FIRST": 0},
    uses=("index",),
)

_TRUE = "number of true elements"


class Chosen(NamedTuple):
    """What an index chooses: the elements of `base`, each further on by its key's choice.

    `base` and `keys` have the shape of the result; a key chooses one of `length` places that are
    `step` bytes apart.
    """

    base: Array
    keys: Array
    length: int
    step: int


class Indexing:
    """Indexing on one device. Every method launches; only masks wait, for their number of True."""

    def __init__(self, device: Device, moves: Moves, selection: Selection) -> None:
        self._device = device
        self._moves = moves
        self._selection = selection

    def get(self, x: Array, index: Any) -> Array:
        """`x[index]`, a new array."""
        x.buffer.check()
        x, index = _of_one(x, index)
        mask = self._lone_mask(x, index)
        return self._taken(self._masked(x, mask) if mask is not None else self._chosen(x, index))

    def set(self, x: Array, index: Any, value: Any) -> None:
        """`x[index] = value`."""
        x.buffer.check()
        x.check_written("x[index] = value")
        source = self._source(x, value)
        x, index = _of_one(x, index)
        mask = self._lone_mask(x, index)
        if mask is None:
            chosen = self._chosen(x, index)
        elif (wide := _in_every_place(source, mask, x)) is not None:
            if mask.buffer is x.buffer:  # read all of it before x changes
                mask = mask.copy()
            self._moves.where(x, wide, _leading(mask, x.shape))
            return
        else:
            chosen = self._masked(x, mask, in_place=True)
        self._put(chosen, source)

    def take(self, x: Array, indices: Any, axis: int) -> Array:
        """The elements at some indices along an axis, which indices of any shape replace."""
        keys = self._integers(indices, x.shape[axis], axis)
        return self._taken(self._along([(axis, keys)], x, x.shape[:axis]))

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        """One element of each row along an axis for each index of that row."""
        if indices.ndim != x.ndim:
            raise ShapeMismatch(
                f"take_along_axis of shape {x.shape} takes indices of as many dimensions, not "
                f"of shape {indices.shape}"
            )
        length, step = x.shape[axis], x.strides[axis]
        keys = self._integers(indices, length, axis)
        mine = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        shape = broadcast_shape((mine, keys.shape), "take_along_axis")
        strides = (*x.strides[:axis], 0, *x.strides[axis + 1 :])
        base = view(x, shape, broadcast_strides(mine, strides, shape))
        return self._taken(Chosen(base, _broadcast(keys, shape), length, step))

    def nonzero(self, x: Array) -> tuple[Array, ...]:
        """The indices along each axis of the elements that are not zero. Waits, once."""
        found = self._selection.found(x, _TRUE)
        return self._selection.unraveled(found, x.shape)

    # Moving what was chosen.

    def _taken(self, chosen: Chosen) -> Array:
        base, keys, length, step = chosen
        made = self._device.new_result(base.shape, base.dtype)
        if made.size:
            self._moves.gather(made, base, keys, length, step)
        return made

    def _put(self, chosen: Chosen, source: Array) -> None:
        base, keys, length, step = chosen
        try:
            wide = source.broadcast_to(base.shape)
        except ShapeMismatch:
            extra = source.ndim - base.ndim
            if extra <= 0 or source.shape[:extra] != (1,) * extra:
                raise ShapeMismatch(
                    f"cannot put shape {source.shape} into shape {base.shape}"
                ) from None
            wide = source[(0,) * extra].broadcast_to(base.shape)
        if not wide.size:
            return
        if keys.buffer is base.buffer:
            keys = keys.copy()
        self._moves.scatter(base, wide, keys, length, step)

    def _source(self, x: Array, value: Any) -> Array:
        """The value of an assignment, as an array that the assignment does not change."""
        if not isinstance(value, Array):
            return self._device.array(as_source(value, x.dtype), x.dtype)
        if value.device is not self._device:
            raise ArgumentError(f"a value on {value.device} for x on {x.device}; copy it over")
        if value.dtype != x.dtype:
            raise DtypeMismatch(f"cannot put {value.dtype} into {x.dtype}: nothing is cast")
        return value.copy() if value.buffer is x.buffer else value

    # Masks.

    def _lone_mask(self, x: Array, index: Any) -> Array | None:
        """The mask, if the index is one and nothing else."""
        only = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        if isinstance(only, list):
            only = _from_list(only)
        if not isinstance(only, Array | np.ndarray) or only.dtype.kind != "b" or not only.shape:
            return None
        _check_mask(only.shape, x.shape, 0)
        return self._device.array(only) if isinstance(only, np.ndarray) else only

    def _masked(self, x: Array, mask: Array, *, in_place: bool = False) -> Chosen:
        """The elements of x where a mask of its first axes is true."""
        axes = mask.ndim
        found = self._selection.found(mask, _TRUE)
        step = _one_step(x.shape[:axes], x.strides[:axes])
        if step is None:
            if in_place:
                places = self._selection.unraveled(found, mask.shape)
                return self._along(list(enumerate(places)), x, ())
            x = x.copy()
            step = _one_step(x.shape[:axes], x.strides[:axes])
        assert step is not None
        shape = (found.size, *x.shape[axes:])
        base = view(x, shape, (0, *x.strides[axes:]))
        return Chosen(base, _leading(found, shape), max(1, mask.size), step)

    # Reading an index.

    def _chosen(self, x: Array, index: Any) -> Chosen:
        """What an index chooses that has at least one array."""
        items = list(index) if isinstance(index, tuple) else [index]
        items = [_as_item(each) for each in items]
        taken = sum(_dimensions(each) for each in items)
        place = place_of_rest(items, taken, x.ndim)
        rest: list[Any] = [slice(None)] * (x.ndim - taken)
        # Arrays with an ellipsis between them are not side by side, even if it stands for nothing.
        expanded = [*items[:place], *rest, *items[place + 1 :]]
        marks = [*map(_is_place, items[:place]), *([False] if place < len(items) else ()),
                 *map(_is_place, items[place + 1 :])]  # fmt: skip
        basic: list[Any] = []
        arrays: list[tuple[int, Array]] = []  # with their axes in the slice
        axis = place_in_x = 0
        first: int | None = None
        for each in expanded:
            if _is_place(each) and first is None:
                first = axis
            if not isinstance(each, Array | np.ndarray):
                basic.append(each)
                place_in_x += each is not None
                axis += each is None or isinstance(each, slice)
                continue
            for keys in self._places(each, x.shape, place_in_x):
                arrays.append((axis, keys))
                basic.append(slice(None))
                axis += 1
                place_in_x += 1
        sliced = index_layout(x.layout, tuple(basic))
        part = Array(x.buffer, sliced, x.dtype, repeats=x.repeats)
        assert first is not None
        gaps = "".join("x" if mark else "-" for mark in marks).strip("-")
        front = part.shape[:first] if "-" not in gaps else ()
        return self._along(arrays, part, front)

    def _places(self, each: Array | Host, shape: tuple[int, ...], axis: int) -> list[Array]:
        """The index arrays that an item stands for: itself, or where a mask is true."""
        if each.dtype.kind != "b":
            return [self._integers(each, shape[axis], axis)]
        if not each.shape:
            raise ArgumentError("a bool without dimensions is no index; use a mask or a slice")
        _check_mask(each.shape, shape, axis)
        if isinstance(each, Array):
            return [*self.nonzero(each)]
        return [self._device.array(where) for where in np.nonzero(each)]

    def _integers(self, indices: Any, length: int, axis: int) -> Array:
        """Indices along an axis, on the device; those of the host are checked."""
        if not isinstance(indices, Array):
            host = _from_list(indices)
            host = host.astype(np.int64) if not host.size else host
            if host.dtype.kind not in "iu":
                raise BadIndex(f"arrays of {host.dtype} are no indices; use integers or a mask")
            if host.size and not -length <= int(host.min()) <= int(host.max()) < length:
                worst = int(host.min() if int(host.min()) < -length else host.max())
                raise BadIndex(f"index {worst} is out of bounds for axis {axis} of size {length}")
            return self._device.array(host)
        if indices.dtype.kind not in "iu":
            raise BadIndex(f"arrays of {indices.dtype} are no indices; use integers or a mask")
        if indices.device is not self._device:
            raise ArgumentError(f"indices on {indices.device}, x on {self._device}; copy them over")
        if indices.size and not length:
            raise BadIndex(f"axis {axis} has no elements to choose from")
        return indices.settled()

    def _along(
        self, arrays: list[tuple[int, Array]], part: Array, front: tuple[int, ...]
    ) -> Chosen:
        """The choice of index arrays along axes of `part`, broadcast, behind the axes `front`."""
        common = broadcast_shape([keys.shape for _, keys in arrays], "index arrays")
        chosen = {axis for axis, _ in arrays}
        others = [axis for axis in range(part.ndim) if axis not in chosen]
        before, behind = others[: len(front)], others[len(front) :]
        rest = (1,) * len(behind)
        shape = (
            *(part.shape[axis] for axis in before), *common,
            *(part.shape[axis] for axis in behind),
        )  # fmt: skip
        strides = (
            *(part.strides[axis] for axis in before), *(0,) * len(common),
            *(part.strides[axis] for axis in behind),
        )  # fmt: skip
        if len(arrays) == 1 or not math.prod(shape):
            axis, keys = arrays[0]
            length, step, offset = part.shape[axis], part.strides[axis], 0
        else:
            wide = [(axis, _broadcast(keys, common)) for axis, keys in arrays]
            keys, length, step, offset = self._combined(wide, part)
        if not math.prod(shape):
            keys = view(self._device.empty(1, np.int32), common, (0,) * len(common))
        own = (*(1,) * len(before), *(1,) * (len(common) - keys.ndim), *keys.shape, *rest)
        missing = len(own) - keys.ndim - len(rest)
        lined = view(keys, own, (*(0,) * missing, *keys.strides, *(0,) * len(rest)))
        base = view(part, shape, strides, offset)
        return Chosen(base, _broadcast(lined, shape), max(1, length), step)

    def _combined(
        self, arrays: list[tuple[int, Array]], part: Array
    ) -> tuple[Array, int, int, int]:
        """One array of keys for several: keys, how many places there are, their step, the offset.

        The places that all of them choose from together are a multiple of one step apart.
        """
        strides = [part.strides[axis] for axis, _ in arrays]
        step = math.gcd(*strides) or 1
        reach = [
            (part.shape[axis] - 1) * (abs(stride) // step)
            for (axis, _), stride in zip(arrays, strides, strict=True)
        ]
        length = sum(reach) + 1
        if length >= 1 << 32:
            raise Unsupported(f"{len(arrays)} index arrays into {part.nbytes:,} bytes; use slices")
        made = self._device.new_result(arrays[0][1].shape, np.uint32)
        programs = self._moves.programs
        offset = 0
        for number, ((axis, keys), stride) in enumerate(zip(arrays, strides, strict=True)):
            side_by_side = keys.settled() if keys.contiguous else keys.copy()
            window, at = side_by_side.words()
            groups = programs.groups(made.size)
            kernel = programs.kernel(
                COMBINE, _combine, KEY_SIZE=keys.itemsize, KEY_SIGNED=int(keys.dtype.kind == "i"),
                FLIP=int(stride < 0), FIRST=int(number == 0),
            )  # fmt: skip
            kernel(
                keys=window, out_=made, count=made.size, span=-(-made.size // groups), keys_at=at,
                limit=part.shape[axis], scale=signed(abs(stride) // step), groups=groups,
            )  # fmt: skip
            offset += (part.shape[axis] - 1) * stride if stride < 0 else 0
        return made, length, step, offset


def _of_one(x: Array, index: Any) -> tuple[Array, Any]:
    """An index that is one bool as NumPy takes it: a mask of a new first axis of length one."""
    only = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if isinstance(only, Array | np.ndarray) and only.dtype.kind == "b" and not only.shape:
        return x[None], only.reshape(1)
    return x, index


def _as_item(each: Any) -> Any:
    """An item of an index: an array, an int, a slice, None or Ellipsis."""
    if isinstance(each, list | tuple | range):
        each = _from_list(each)
        return each.astype(np.int64) if not each.size else each
    if isinstance(each, bool | np.bool_):
        raise ArgumentError("a bool without dimensions is no index; use a mask or a slice")
    if isinstance(each, Array | np.ndarray | slice) or each is None or each is Ellipsis:
        return each
    try:
        return operator.index(each)
    except TypeError as error:
        raise ArgumentError(
            "arrays are indexed by integers, slices, '...', None, masks and arrays of integers, "
            f"not {type(each).__name__}"
        ) from error


def _from_list(items: Sequence[Any]) -> Host:
    """The array that a list in an index stands for."""
    try:
        return np.asarray(items)
    except ValueError as error:
        raise BadIndex(f"a list whose parts differ in length is no index: {items!r}") from error


def _dimensions(item: Any) -> int:
    """How many axes of the array an item indexes."""
    if item is None or item is Ellipsis:
        return 0
    is_mask = isinstance(item, Array | np.ndarray) and item.dtype.kind == "b"
    return len(item.shape) if is_mask else 1


def _is_place(item: Any) -> bool:
    return isinstance(item, int | Array | np.ndarray)


def _check_mask(mask: tuple[int, ...], shape: tuple[int, ...], axis: int) -> None:
    if mask != shape[axis : axis + len(mask)]:
        raise BadIndex(f"a mask of shape {mask} for axes from {axis} on of an array of {shape}")


def _one_step(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The step from element to element in C order, if it is the same from all."""
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n != 1]
    if 0 in shape:
        return 0
    for (_, outer), (n, inner) in itertools.pairwise(axes):
        if outer != n * inner:
            return None
    return axes[-1][1] if axes else 0


def _broadcast(array: Array, shape: tuple[int, ...]) -> Array:
    return view(array, shape, broadcast_strides(array.shape, array.strides, shape))


def _leading(array: Array, shape: tuple[int, ...]) -> Array:
    """An array of the first axes, repeated along the others of a shape."""
    return view(array, shape, (*array.strides, *(0,) * (len(shape) - array.ndim)))


def _in_every_place(source: Array, mask: Array, x: Array) -> Array | None:
    """The source of a masked assignment in the shape of x, if it has no value for each True."""
    rest = x.ndim - mask.ndim
    extra = source.ndim - rest
    if extra > 1 or (extra == 1 and source.shape[0] != 1):
        return None
    own = source[0] if extra == 1 else source
    try:
        return own.broadcast_to(x.shape)
    except ShapeMismatch:
        raise ShapeMismatch(
            f"cannot put shape {source.shape} into {x.shape[mask.ndim :]} for each True"
        ) from None


def _combine(
    *, KEY_SIZE: int, KEY_SIGNED: int, FLIP: int, FIRST: int, keys: Host, out_: Host,  # noqa: N803
    count: int, keys_at: int, limit: int, scale: int, **_: Any,
) -> None:  # fmt: skip
    """The kernel in NumPy, for the simulator."""
    kind = np.dtype(f"{'i' if KEY_SIGNED else 'u'}{KEY_SIZE}")
    index = keys[keys_at : keys_at + count * KEY_SIZE].view(kind)
    places = kept_within(index, limit)
    places = limit - 1 - places if FLIP else places
    out = out_.view(np.uint32)[:count]
    out[...] = (places * scale).astype(np.uint32) + (0 if FIRST else out)
