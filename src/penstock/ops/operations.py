"""The elementwise functions on whole arrays: how each is divided into launches, and launched.

Every call is one launch into a contiguous array; more only where a binding cannot hold an operand.
Nothing waits. `penstock.xp` says which dtypes a function takes and returns; this module computes.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import Dtype
from penstock.launch.checks import check_array
from penstock.launch.kernel import Kernel
from penstock.ops.arithmetic import FUNCTIONS
from penstock.ops.elements import element_of
from penstock.ops.operation_kernels import STRIDED_UNIT, KernelKey, OperationKernels
from penstock.ops.operation_text import MOST_AXES
from penstock.ops.strides import (
    Walk,
    broadcast_shape,
    broadcast_strides,
    halves,
    merged,
    reciprocal,
)

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.stream import Stream

Host = npt.NDArray[Any]
Operand = Array | np.generic  # a number has the dtype in which the function computes

# The names of a kernel's arguments; the native step compares them by identity.
_NAMES = tuple(map(sys.intern, ("a", "b", "c")))
_SIZES = tuple(sys.intern(f"size_{axis}") for axis in range(MOST_AXES - 1))
_INVERSES = tuple(sys.intern(f"inverse_{axis}") for axis in range(MOST_AXES - 1))
_AT = tuple(sys.intern(f"{name}_at") for name in _NAMES)
_STEPS = tuple(
    tuple(sys.intern(f"{name}_step_{axis}") for axis in range(MOST_AXES)) for name in _NAMES
)
_PARTS = {
    label: tuple(sys.intern(f"{label}_{part}") for part in range(4))
    for label in ("number", "third")
}

_VECTOR = 16  # bytes
_MOST_COUNT = 1 << 31  # kernels count elements in 32 bits, and divide numbers of 31


class Operations:
    """The elementwise functions of one device; each kernel is made when it is first needed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kernels = OperationKernels(device)
        limits: Any = device.info.limits
        self._most_bytes: int = limits["binding_range"]
        self._alignment: int = limits["binding_alignment"]
        self._flat = device.scheduler.driver.language == "spirv" and (
            "window_alignment" not in limits
        )
        self._texels = self._kernels.texels
        self.abilities = self._kernels.abilities
        self._known: set[Dtype] = set()  # dtypes that the device computes with

    def apply(
        self,
        name: str,
        operands: Sequence[Operand],
        compute: Dtype,
        result: Dtype,
        *,
        out: Array | None = None,
        stream: Stream | None = None,
    ) -> Array:
        """Compute a function of arrays and numbers, broadcast together, as elements of `compute`.

        `result` is the dtype of its elements. Returns `out`, or a new array.
        """
        arrays = [each for each in operands if isinstance(each, Array)]
        for dtype in (*(array.dtype for array in arrays), compute, result):
            if dtype not in self._known:
                self.abilities.check(element_of(dtype).name, self._device.info)
                self._known.add(dtype)
        shape = broadcast_shape([array.shape for array in arrays], name or "astype")
        if out is None:
            made = self._device.new_result(shape, result, stream)
        elif _can_hold(out, result, arrays):
            made = out
        else:
            # Elements of `out` may be operands, or lie where no kernel stores whole words.
            made = self.apply(name, operands, compute, result, stream=stream)
            out.copy_from(made.broadcast_to(out.shape), stream)
            return out
        if made.size:
            self._compute(name, operands, compute, made, stream)
        return made

    def cast(
        self, x: Array, dtype: Dtype, *, out: Array | None = None, stream: Stream | None = None
    ) -> Array:
        """The elements converted to another dtype, as NumPy's `astype` converts them."""
        return self.apply("", [x], x.dtype, dtype, out=out, stream=stream)

    def copy(self, target: Array, source: Array, stream: Stream | None) -> bool:
        """Copy elements that do not lie side by side, where this is faster than `Moves`' kernel.

        They are arrays of one shape and itemsize that share no bytes. Returns whether it did.
        """
        bits = _BITS.get(source.itemsize)
        spread = not source.strides or source.strides[-1] != source.itemsize
        if not self._texels or bits is None or not spread or source.ndim > MOST_AXES:
            return False
        own, other = (_as(each, bits) for each in (target, source))
        if not _can_hold(own, bits, ()) or not source.is_settled or self._too_large([other], own):
            return False
        self._compute("", [other], bits, own, stream)
        return True

    def _compute(
        self, name: str, operands: Sequence[Operand], compute: Dtype, out: Array,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        if self._flat and self._fits_flat(name, operands, compute, out):
            self._launch_flat(name, operands, compute, out, stream)
            return
        shape = out.shape
        operands = [each.settled(stream) if isinstance(each, Array) else each for each in operands]
        arrays = [each for each in operands if isinstance(each, Array)]
        strides = [broadcast_strides(each.shape, each.strides, shape) for each in arrays]
        if self._too_large(arrays, out):
            self._in_halves(name, operands, compute, out, stream)
            return
        walk = merged(shape, strides)
        if len(walk.sizes) > MOST_AXES:
            operands = [
                _side_by_side(each, shape, stream) if isinstance(each, Array) else each
                for each in operands
            ]
            arrays = [each for each in operands if isinstance(each, Array)]
            walk = merged(shape, [each.strides for each in arrays])
        self._launch_strided(name, operands, compute, out, walk, stream)

    # Flat.

    def _fits_flat(
        self, name: str, operands: Sequence[Operand], compute: Dtype, out: Array
    ) -> bool:
        unit = self._kernels.flat_unit(name, compute)
        for index, each in enumerate(operands):
            if not isinstance(each, Array):
                continue
            wanted = _BOOL if self._is_condition(name, index) else compute
            if each.dtype != wanted or each.shape != out.shape or not each.contiguous:
                return False
            if not self.has_room(each, unit * each.itemsize):
                return False
        return out.nbytes <= self._most_bytes and (not name or out.itemsize <= compute.itemsize)

    def _is_condition(self, name: str, index: int) -> bool:
        return bool(name) and not index and FUNCTIONS[name].condition

    def has_room(self, array: Array, unit: int) -> bool:
        """Whether the bytes of a contiguous array can be bound, rounded up to whole units."""
        backing, region = array.buffer.backing, array.region
        shift = self._shift(array)
        start = region.lo - shift
        end = start + _rounded(region.hi - start, unit)
        return (
            end - start <= self._most_bytes
            and (not shift or (self._texels and unit >= _VECTOR > shift and start >= 0))
            and (end <= array.buffer.nbytes or (backing.pool is not None and end <= backing.nbytes))
        )

    def _shift(self, array: Array) -> int:
        """The bytes between where it can be bound and its start."""
        return (array.buffer.backing.offset + array.region.lo) % self._alignment

    def _launch_flat(
        self, name: str, operands: Sequence[Operand], compute: Dtype, out: Array,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        given = self._numbers(operands)
        unused = self._unused(operands, out)
        unit, shifts = self._kernels.flat_unit(name, compute), []
        for label, each in zip(_NAMES, operands, strict=False):
            array = each if isinstance(each, Array) else unused
            given[label], shift = array.words(unit * array.itemsize)
            shifts.append(shift if array is each else 0)
        wide = self._stores_vectors(out, unit)
        key = _key(name, operands, compute, out, 0, 0, tuple(shifts), wide)
        self._launch(key, given, out, stream)

    def _stores_vectors(self, out: Array, unit: int) -> bool:
        """Whether the kernel can store whole units of results as vectors of 16 bytes."""
        nbytes = unit * out.itemsize
        if not self._texels or nbytes % _VECTOR or self._shift(out):
            return False
        if not out.nbytes % nbytes:
            return True
        return out.region.hi == out.buffer.nbytes and self.has_room(out, nbytes)

    # Strided.

    def _launch_strided(
        self, name: str, operands: Sequence[Operand], compute: Dtype, out: Array, walk: Walk,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        given = self._numbers(operands)
        unused = self._unused(operands, out)
        shifts = 0
        for axis in range(MOST_AXES - 1):
            size = walk.sizes[axis] if axis < len(walk.sizes) else 1
            inverse, shift = reciprocal(size)
            given[_SIZES[axis]], given[_INVERSES[axis]] = size, inverse
            shifts |= shift << 5 * axis
        given["shifts"] = shifts
        whole = len(walk.sizes) < 2 or not walk.sizes[0] % STRIDED_UNIT
        steps, adjacent = iter(walk.strides), 0
        for index, each in enumerate(operands):
            label, array = _NAMES[index], unused
            own: tuple[int, ...] = ()
            if isinstance(each, Array):
                array, own = each, next(steps)
                adjacent |= (own[:1] == (each.itemsize,)) << index
            given[label], given[_AT[index]] = array.words()
            for axis, name_of_step in enumerate(_STEPS[index]):
                given[name_of_step] = own[axis] if axis < len(own) else 0
        axes = max(1, len(walk.sizes))
        key = _key(
            name, operands, compute, out, axes, adjacent if whole else -1, (),
            self._stores_vectors(out, STRIDED_UNIT),
        )  # fmt: skip
        self._launch(key, given, out, stream)

    def _unused(self, operands: Sequence[Operand], out: Array) -> Array:
        """An array for the bindings of operands that are numbers; the kernel does not read it."""
        arrays = (out, *(each for each in operands if isinstance(each, Array)))
        return max(arrays, key=lambda array: array.itemsize)

    def _numbers(self, operands: Sequence[Operand]) -> dict[str, Any]:
        """The words of operands that are numbers, by the names of the kernel's arguments."""
        bits: dict[str, tuple[int, ...]] = {"number": _NO_NUMBER}
        if len(operands) == 3:
            bits["third"] = _NO_NUMBER
        for label, each in zip(_NAMES, operands, strict=False):
            if not isinstance(each, Array):
                bits["third" if label == "c" else "number"] = _bits(each)
        given: dict[str, Any] = {}
        for label, words in bits.items():
            given.update(zip(_PARTS[label], words, strict=True))
        return given

    def _launch(
        self, key: KernelKey, given: dict[str, Any], out: Array, stream: Stream | None
    ) -> None:
        made = self._kernels.get(key)
        if key.wide:
            given["out_vectors"], at = out.words(made.unit * out.itemsize)
        else:
            given["out_words"], at = out.words()
        given["first"], given["count"] = at // 4, out.size
        self._accept(made.kernel, given)
        made.kernel(**given, groups=self._kernels.groups(made, out.size), stream=stream)

    def _accept(self, kernel: Kernel, given: dict[str, Any]) -> None:
        """Check windows here, and bind them: a launch with them is none with new arrays."""
        with kernel.scheduler.lock:
            for parameter in kernel.parameters:
                window = given[parameter.name]
                if parameter.wants not in window.accepted:
                    check_array(kernel, parameter, window, given)
                window.bind()

    def _too_large(self, arrays: Sequence[Array], out: Array) -> bool:
        most = self._most_bytes - self._alignment - 4
        return out.size >= _MOST_COUNT or any(
            each.region.hi - each.region.lo > most for each in (*arrays, out)
        )

    def _in_halves(
        self, name: str, operands: Sequence[Operand], compute: Dtype, out: Array,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        """Compute in pieces that bindings hold: the output in two halves, and so on."""
        axis = next(axis for axis, n in enumerate(out.shape) if n > 1)
        behind = math.prod(out.shape[axis + 1 :]) * out.itemsize
        for half in _aligned_halves(out.shape[axis], behind):
            index = (slice(None),) * axis + (half,)
            parts = [
                each.broadcast_to(out.shape)[index] if isinstance(each, Array) else each
                for each in operands
            ]
            self._compute(name, parts, compute, out[index], stream)


_BOOL = np.dtype(np.bool_)
_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}  # dtypes that carry any bits
_FOUR_WORDS = struct.Struct("<4I")
_NO_NUMBER = (0, 0, 0, 0)


def _key(
    name: str, operands: Sequence[Operand], compute: Dtype, out: Array, axes: int, adjacent: int,
    shifts: tuple[int, ...], wide: bool,
) -> KernelKey:  # fmt: skip
    dtypes = tuple(each.dtype for each in operands)
    numbers = sum(1 << i for i, each in enumerate(operands) if not isinstance(each, Array))
    return KernelKey(name, dtypes, compute, out.dtype, numbers, axes, adjacent, shifts, wide)


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


def _bits(number: np.generic) -> tuple[int, ...]:
    """A number as the four words in which it travels among a kernel's arguments."""
    return _FOUR_WORDS.unpack(number.tobytes().ljust(16, b"\0"))


def _as(array: Array, dtype: Dtype) -> Array:
    """The same elements under another dtype of their size."""
    if array.dtype == dtype:
        return array
    return Array(array.buffer, array.layout, dtype, repeats=array.repeats)


def _side_by_side(array: Array, shape: tuple[int, ...], stream: Stream | None) -> Array:
    """The array, or a copy of it, with an element of its own for each of a shape."""
    whole = array.broadcast_to(shape)
    return whole if whole.contiguous else whole.copy(stream)


def _can_hold(out: Array, result: Dtype, arrays: Sequence[Array]) -> bool:
    """Whether a kernel may store results in `out` as it computes them.

    An operand may be `out` itself, because each element is read before it is stored. Any other that
    shares bytes with it must be read completely first. A kernel stores whole words.
    """
    whole = out.region.hi == out.buffer.nbytes or not out.nbytes % 4
    if out.dtype != result or not out.contiguous or out.region.lo % 4 or not whole:
        return False
    return all(
        each.buffer is not out.buffer
        or not each.region.overlaps(out.region)
        or (each.layout == out.layout and each.dtype == out.dtype)
        for each in arrays
    )


def _aligned_halves(n: int, behind: int) -> Iterator[slice]:
    """Two parts of an axis, the second of which starts at a whole word of the output."""
    for middle in range(n // 2, n):
        if middle * behind % 4 == 0 and middle:
            yield slice(0, middle)
            yield slice(middle, n)
            return
    yield from halves(n)
