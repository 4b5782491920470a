"""Moves of elements within a device: strided copies, gathers, scatters, masks and triangles.

One kernel (`shaders/move.glsl`) does all of it. It moves bits and computes nothing, so it works
for every dtype on every device. More than four axes are in a table, which it reads from memory.
Arrays that are larger than a device binds are moved in several launches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.memory.layout import Layout
from penstock.ops.portable import Access, Program, Programs, signed
from penstock.ops.strides import halves, merged, reciprocal

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.stream import Stream

Host = npt.NDArray[Any]

COPY, GATHER, SCATTER, MASK, LOWER, UPPER = range(6)

_AXES = 4  # whose sizes and strides are arguments of the kernel; those of more are in a table
_MOST_ELEMENTS = (1 << 31) - 1  # of a launch: the kernel counts, and divides, in 31 bits
_BYTES = np.dtype(np.uint8)

_ARRAYS: dict[str, Access] = {"src": "in", "dst": "inout", "keys": "in"}
_NUMBERS = ("count", "span", "src_at", "dst_at", "keys_at", "limit", "low", "room", "jump")
_WALK = (
    "n0", "n1", "n2", "m0", "m1", "m2", "shifts",
    "s0", "s1", "s2", "s3", "d0", "d1", "d2", "d3", "k0", "k1", "k2", "k3",
)  # fmt: skip
_CONSTANTS = {"SIZE": 4, "AXES": 1, "PACKED": 0, "MODE": 0, "KEY_SIZE": 4, "KEY_SIGNED": 0}

MOVE = Program("move", _ARRAYS, (*_NUMBERS, *_WALK), _CONSTANTS, uses=("index", "place"))
#: The same of any number of axes; AXES is 0.
MOVE_BY_TABLE = Program(
    "move", {**_ARRAYS, "table": "in"}, (*_NUMBERS, "axes"), _CONSTANTS,
    uses=("index", "place_table"),
)  # fmt: skip


class Choice(NamedTuple):
    """What the keys of a gather or scatter choose from: `limit` places, `jump` bytes apart.

    Those of them that are moved by this launch start at `low` and are `room` in number. For a
    triangle, `limit` is its diagonal.
    """

    limit: int = 1
    jump: int = 0
    low: int = 0
    room: int = 1


ONE = Choice()


class Moves:
    """The moves of one device. Every method launches, and waits for nothing."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.programs = Programs(device)

    def copy(self, target: Array, source: Array, stream: Stream | None = None) -> None:
        """Copy between arrays of one shape and itemsize, as if the source were copied first."""
        if not target.size:
            return
        if source.buffer is target.buffer and source.region.overlaps(target.region):
            between = self._device.new_result(source.shape, source.dtype, stream)
            self.move(COPY, between, source, stream=stream)
            source = between
        if not self._device.operations.copy(target, source, stream):
            self.move(COPY, target, source, stream=stream)

    def gather(
        self, target: Array, source: Array, keys: Array, length: int, step: int,
        stream: Stream | None = None,
    ) -> None:  # fmt: skip
        """Move to each element of `target` the one that its key chooses of those of `source`.

        `source` and `keys` have the target's shape (by `broadcast`); a key chooses one of `length`
        elements that are `step` bytes apart, the first of which is the element of `source`.
        """
        self._chosen(GATHER, target, source, keys, length, step, stream)

    def scatter(
        self, target: Array, source: Array, keys: Array, length: int, step: int,
        stream: Stream | None = None,
    ) -> None:  # fmt: skip
        """The opposite of `gather`: the key chooses the element of `target`.

        Of several elements with the same target, one is there in the end; which is not defined.
        """
        self._chosen(SCATTER, target, source, keys, length, step, stream)

    def where(
        self, target: Array, source: Array, mask: Array, stream: Stream | None = None
    ) -> None:
        """Move the elements whose mask, of dtype bool, is true. All have the same shape."""
        self.move(MASK, target, source, mask, stream=stream)

    def triangle(self, target: Array, source: Array, diagonal: int, *, lower: bool) -> None:
        """Move a triangle of the last two axes, and zeros instead of the others."""
        columns, rows = target.shape[-1], target.shape[-2]
        kept = max(-rows - 1, min(diagonal, columns + 1))
        self.move(LOWER if lower else UPPER, target, source, choice=Choice(limit=kept))

    def _chosen(
        self, mode: int, target: Array, source: Array, keys: Array, length: int, step: int,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        """Split the places that keys choose from into as many as can be bound."""
        wide = target if mode == SCATTER else source
        most = self._fitting(wide, length, step)
        for low in range(0, length, most):
            room = min(most, length - low)
            choice = Choice(length, step, low, room)
            first = _moved(wide, low * step)
            self.move(
                mode, first if mode == SCATTER else target, source if mode == SCATTER else first,
                keys, choice=choice, stream=stream,
            )  # fmt: skip

    def _fitting(self, wide: Array, length: int, step: int) -> int:
        """How many of the places that keys choose from can be bound at once."""
        if abs(step) * length + wide.region.hi - wide.region.lo <= self.programs.range // 2:
            return length
        return max(1, min(length, self.programs.range // 4 // max(1, abs(step))))

    def move(
        self, mode: int, target: Array, source: Array, keys: Array | None = None, *,
        choice: Choice = ONE, stream: Stream | None = None,
    ) -> None:  # fmt: skip
        """Launch the kernel for arrays of one shape, in pieces if there must be."""
        if not target.size:
            return
        triangle = mode in (LOWER, UPPER)
        unit = _unit(target, source, choice)
        # The columns and rows of a triangle stay the last two axes.
        own = 2 if triangle else 0
        if unit != target.itemsize:
            target, source = (_in_units(each, unit, before=own) for each in (target, source))
            keys = None if keys is None else _repeated(keys, target.shape)
        operands = [target, source] if keys is None else [target, source, keys]
        spans = [_window(each, choice if _is_wide(mode, at) else None)
                 for at, each in enumerate(operands)]  # fmt: skip
        most = self.programs.range - 1024
        fits = all(hi - lo <= most for lo, hi in spans) and target.size <= _MOST_ELEMENTS
        head = len(target.shape) - own
        strides = [each.strides for each in operands]
        walk = merged(target.shape[:head], [each[:head] for each in strides])
        if not fits:
            self._in_halves(mode, target, source, keys, choice, stream)
            return
        sizes = (*target.shape[head:][::-1], *walk.sizes)
        steps = [
            (*own[head:][::-1], *along) for own, along in zip(strides, walk.strides, strict=True)
        ]
        size = target.itemsize
        if not triangle:
            size, sizes = _widened(size, sizes, steps, operands, choice)
        self._launch(mode, operands, size, sizes, steps, choice, stream)

    def _in_halves(
        self, mode: int, target: Array, source: Array, keys: Array | None, choice: Choice,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        """Move the halves along the axis that spreads the most."""
        shape = target.shape
        last = len(shape) - (2 if mode in (LOWER, UPPER) else 0)
        axes = [axis for axis in range(last) if shape[axis] > 1]
        assert axes or mode in (LOWER, UPPER), "one element can be bound"
        if not axes:
            self._triangle_in_halves(mode, target, source, choice, stream)
            return
        axis = max(axes, key=lambda at: max(
            abs(each.strides[at]) * shape[at] for each in (target, source)))  # fmt: skip
        for half in halves(shape[axis]):
            at = (slice(None),) * axis + (half,)
            part = None if keys is None else keys[at]
            self.move(mode, target[at], source[at], part, choice=choice, stream=stream)

    def _triangle_in_halves(
        self, mode: int, target: Array, source: Array, choice: Choice, stream: Stream | None
    ) -> None:
        """Move the upper and the lower half of the rows, whose diagonals differ."""
        half = target.shape[-2] // 2
        assert half, "a row can be bound"
        for rows, down in ((slice(0, half), 0), (slice(half, None), half)):
            lower = choice._replace(limit=choice.limit + down)
            self.move(mode, target[..., rows, :], source[..., rows, :], choice=lower, stream=stream)

    def _launch(
        self, mode: int, operands: list[Array], size: int, sizes: tuple[int, ...],
        steps: list[tuple[int, ...]], choice: Choice, stream: Stream | None,
    ) -> None:  # fmt: skip
        target, source = operands[:2]
        keys = operands[2] if len(operands) > 2 else source
        count = math.prod(sizes)
        along = [steps[1], steps[0], steps[2] if len(steps) > 2 else (0,) * len(sizes)]
        axes, walk = self._walk(sizes, along)
        some = mode in (SCATTER, MASK) or choice.room < choice.limit
        packed = size < 4 and target.contiguous and (not some or mode in (LOWER, UPPER))
        integers = mode in (GATHER, SCATTER)
        kernel = self.programs.kernel(
            MOVE if axes else MOVE_BY_TABLE, _reference, SIZE=size, AXES=axes,
            PACKED=int(packed), MODE=mode, KEY_SIZE=keys.itemsize if integers else 4,
            KEY_SIGNED=int(integers and keys.dtype.kind == "i"),
        )  # fmt: skip
        dst, dst_at = _words(target, choice if mode == SCATTER else None)
        src, src_at = _words(source, choice if mode == GATHER else None)
        where, keys_at = keys.words() if keys is not source else (src, 0)
        units = -(-count // (4 // size)) + 1 if packed else count
        # A packed word has a loop over its elements; two elements may try for the same word.
        turns = 6 if packed else 16 if mode == SCATTER and size < 4 else 1
        if not axes:
            turns *= len(sizes) + 1
        groups = self.programs.groups(units, turns, least=1 if self.programs.on_cpu else 4)
        kernel(
            src=src, dst=dst, keys=where, count=count, span=-(-units // groups), src_at=src_at,
            dst_at=dst_at, keys_at=keys_at, limit=signed(choice.limit), low=choice.low,
            room=choice.room, jump=signed(choice.jump), **walk, stream=stream, groups=groups,
        )  # fmt: skip

    def _walk(
        self, sizes: tuple[int, ...], along: list[tuple[int, ...]]
    ) -> tuple[int, dict[str, Any]]:
        """The constant AXES for some axes, and the arguments that say how to walk them.

        `along` are their strides in src, in dst, and in the keys.
        """
        if len(sizes) > _AXES:
            rows = [[signed(each) for each in row] for row in zip(sizes, *along, strict=True)]
            return 0, {"table": self._device.array(rows, np.uint32), "axes": len(sizes)}
        divisors = [reciprocal(n) if n > 1 else (0, 0) for n in (*sizes, 1, 1, 1)[:3]]
        numbers = (
            *(*sizes, 1, 1, 1)[:3], *(multiplier for multiplier, _ in divisors),
            divisors[0][1] | divisors[1][1] << 6 | divisors[2][1] << 12,
            *(signed(stride) for each in along for stride in (*each, 0, 0, 0, 0)[:4]),
        )  # fmt: skip
        axes = 1 if len(sizes) <= 1 else 2 if len(sizes) == 2 else 4
        return axes, dict(zip(_WALK, numbers, strict=True))


# Arrays over the same bytes, in the shapes that the kernel walks.


def view(
    array: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0,
    dtype: Any = None,
) -> Array:  # fmt: skip
    """An array over the bytes of another, `offset` bytes further on."""
    kind = array.dtype if dtype is None else dtype
    layout = Layout(array.layout.offset + offset, shape, strides, kind.itemsize)
    return Array(array.buffer, layout, kind, repeats=array.repeats)


def _moved(array: Array, offset: int) -> Array:
    return view(array, array.shape, array.strides, offset)


def _is_wide(mode: int, operand: int) -> bool:
    """Whether an operand (0: target, 1: source) is the one that keys choose places of."""
    return (mode, operand) in ((SCATTER, 0), (GATHER, 1))


def _with_choice(array: Array, choice: Choice | None) -> Array:
    """An array that also covers the places that keys choose from."""
    if choice is None:
        return array
    return view(array, (*array.shape, choice.room), (*array.strides, choice.jump))


def _window(array: Array, choice: Choice | None) -> tuple[int, int]:
    region = _with_choice(array, choice).region
    return region.lo, region.hi


def _words(array: Array, choice: Choice | None) -> tuple[Array, int]:
    window, at = _with_choice(array, choice).words()
    # A target that keys choose from covers every element once, even if its other axes repeat.
    return window, at


def _unit(target: Array, source: Array, choice: Choice) -> int:
    """The size of what is moved at once: a whole element, if all addresses are multiples of it."""
    addresses = [target.itemsize, choice.jump]
    for each in (target, source):
        addresses += (each.buffer.backing.offset + each.layout.offset, *each.strides)
    divisor = math.gcd(*addresses)
    if divisor % 4 == 0:
        return next(size for size in (16, 8, 4) if target.itemsize % size == 0)
    return math.gcd(divisor, 4)


def _in_units(array: Array, unit: int, *, before: int = 0) -> Array:
    """The array with its elements split along a new axis, `before` the last axes: 0, the last."""
    at, parts = array.ndim - before, array.itemsize // unit
    shape = (*array.shape[:at], parts, *array.shape[at:])
    strides = (*array.strides[:at], unit, *array.strides[at:])
    return view(array, shape, strides, dtype=np.dtype(f"V{unit}"))


def _repeated(array: Array, shape: tuple[int, ...]) -> Array:
    return view(array, shape, (*array.strides, 0))


def _widened(
    size: int, sizes: tuple[int, ...], steps: list[tuple[int, ...]], operands: list[Array],
    choice: Choice,
) -> tuple[int, tuple[int, ...]]:  # fmt: skip
    """Take neighbouring elements as one of up to 16 bytes, where all operands allow it.

    Changes the innermost step in `steps`; returns the size and the sizes of the axes.
    """
    if not sizes or any(each[0] != size for each in steps[:2]) or any(e[0] for e in steps[2:]):
        return size, sizes
    addresses = [choice.jump]
    for each, along in zip(operands[:2], steps, strict=False):
        addresses += (each.buffer.backing.offset + each.layout.offset, *along[1:])
    aligned = math.gcd(*addresses)
    for wide in (16, 8, 4, 2):
        if wide <= size:
            break
        if aligned % min(wide, 4) == 0 and sizes[0] * size % wide == 0:
            for at, along in enumerate(steps[:2]):
                steps[at] = (wide, *along[1:])
            return wide, (sizes[0] * size // wide, *sizes[1:])
    return size, sizes


# The kernel in NumPy, for the simulator.


def _reference(
    *, SIZE: int, AXES: int, PACKED: int, MODE: int, KEY_SIZE: int, KEY_SIGNED: int,  # noqa: N803
    src: Host, dst: Host, keys: Host, count: int, src_at: int, dst_at: int, keys_at: int,
    limit: int, low: int, room: int, jump: int, **walk: Any,
) -> None:  # fmt: skip
    if AXES:
        sizes = [walk[f"n{axis}"] for axis in range(AXES - 1)]
        steps = [[walk[f"{name}{axis}"] for axis in range(AXES)] for name in "sdk"]
    else:
        table = walk["table"].view(np.uint32).reshape(-1, 4)[: walk["axes"]].T.tolist()
        sizes, steps = table[0][:-1], table[1:]
    left, index = np.arange(count), []
    for n in sizes:
        index.append(left % n)
        left = left // n
    index.append(left)

    def at(start: int, own: list[int]) -> Host:
        far = (n * _as_signed(step) for n, step in zip(index, own, strict=True))
        return sum(far, np.full(count, start))

    source, target = at(src_at, steps[0]), at(dst_at, steps[1])
    kept = np.ones(count, bool)
    zero = np.zeros(count, bool)
    if MODE in (GATHER, SCATTER):
        kind = np.dtype(f"{'i' if KEY_SIGNED else 'u'}{KEY_SIZE}")
        chosen = kept_within(
            _elements(keys, at(keys_at, steps[2]), KEY_SIZE).view(kind)[:, 0], limit
        )
        chosen -= low
        kept = (chosen >= 0) & (chosen < room)
        further = chosen * _as_signed(jump)
        source, target = (
            (source + further, target) if MODE == GATHER else (source, target + further)
        )
    elif MODE == MASK:
        kept = keys[at(keys_at, steps[2])] != 0
    elif MODE in (LOWER, UPPER):
        over = index[0] - index[1] - _as_signed(limit)
        zero = over > 0 if MODE == LOWER else over < 0
    moved = _elements(src, source[kept], SIZE)
    moved[zero[kept]] = 0
    dst[target[kept][:, None] + np.arange(SIZE)] = moved


def kept_within(indices: Host, limit: int) -> Host:
    """Indices as the kernels take them: from the end if negative, and within bounds."""
    within: Host = np.clip(indices, -limit if indices.dtype.kind == "i" else 0, limit - 1)
    within = within.astype(np.int64)
    return np.where(within < 0, within + limit, within)


def _elements(content: Host, at: Host, size: int) -> Host:
    return np.ascontiguousarray(content[at[:, None] + np.arange(size)])


def _as_signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number
