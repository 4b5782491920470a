"""Reductions along axes (sum, mean, var, min, argmax, any, …): launches only, into a new array.

An output with many elements is reduced in parts, which a second launch reduces (`axes_plan` says
when). Arrays of any strides are read where they are. Results follow NumPy: NaN, ties, arrays
without elements; sums of floats are added in blocks, with the rounding errors of the sum of the
blocks kept, so their error does not grow with the number of elements.

`Array`'s methods and `penstock.xp` say which dtypes an operation takes and returns.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.array.array import Array
from penstock.dtypes import Dtype
from penstock.errors import DtypeMismatch, InvalidValue, Unsupported
from penstock.launch.kernel import Kernel
from penstock.memory.layout import Layout
from penstock.ops import axes_kernels as kernels
from penstock.ops.axes_kernels import FAMILIES, UNIT, Variant
from penstock.ops.axes_plan import MOST_AXES, Axis, Grid, Plan, Walk, plan, walk_of
from penstock.ops.elements import Abilities, element_of
from penstock.ops.word_texels import reads_texels

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.stream import Stream

_INT64 = np.dtype(np.int64)
_BOOL = np.dtype(np.bool_)


class Work(NamedTuple):
    """What is computed of the elements of an output."""

    family: str
    operation: int
    again: int  # the operation that reduces its parts
    out: Dtype
    argument: tuple[int, int] = (0, 0)


class Axes:
    """The reductions along axes of one device; each kernel is made when it is first needed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.abilities = Abilities.of(device.info)
        self._kernels: dict[Variant, Kernel] = {}
        self._nothing: Array | None = None
        self.texels = reads_texels(device)
        limits: Any = device.info.limits
        self._whole = "window_alignment" in limits  # the simulator: every output in one part
        self._most_bytes: int = limits["binding_range"]
        # The simulator and HIP store elements of any size, and load one at a time.
        self._singles = self._whole or device.scheduler.driver.language != "spirv"
        if device.info.kind == "cpu":
            lanes, groups = limits["subgroup_size"], max(16, 8 * (os.cpu_count() or 1))
            self.grid = Grid(True, lanes, max(512, groups), lanes * groups, self._singles)
        else:
            size = min(256, limits["group_invocations"], limits["group_size"][0])
            self.grid = Grid(False, size, 1 << 14, 1 << 15, self._singles)

    # The operations. `axes` are numbers from 0 on, each once; the result is a new array.

    def sum(self, x: Array, axes: tuple[int, ...], out: Dtype, stream: Stream | None) -> Array:
        """The sum of the elements, each converted to the dtype of the result first."""
        return self._total(kernels.SUM, x, axes, out, stream)

    def prod(self, x: Array, axes: tuple[int, ...], out: Dtype, stream: Stream | None) -> Array:
        """The product of the elements, each converted to the dtype of the result first."""
        return self._total(kernels.PRODUCT, x, axes, out, stream)

    def mean(self, x: Array, axes: tuple[int, ...], out: Dtype, stream: Stream | None) -> Array:
        """The sum in the dtype of the result, which is no integer, divided by the number."""
        return self._mean(x, axes, out, out, stream)

    def variance(
        self, x: Array, axes: tuple[int, ...], out: Dtype, correction: float, *, root: bool,
        stream: Stream | None,
    ) -> Array:  # fmt: skip
        """The mean squared distance from the mean, or its root; `out` is a real dtype.

        The squares are of the distances from the mean, which a launch before has computed.
        """
        family = self.family_of(x, np.result_type(x.dtype, out) if x.dtype.kind == "c" else out)
        self.check(x, out)
        count = _count(x.shape, axes)
        if not count:
            return self._filled(x, axes, math.nan, out)
        means = self._mean(x, axes, _dtype_of_parts(family), _dtype_of_parts(family), stream)
        divisor = kernels.argument_of(
            max(0.0, count - correction), double=family in ("double", "dcomplex")
        )
        ends = kernels.DIVIDE | (kernels.ROOT if root else 0)
        work = Work(family, kernels.SQUARES | ends, kernels.SUM | ends, out, divisor)
        return self._run(work, x, axes, stream, means=means)

    def extreme(
        self, x: Array, axes: tuple[int, ...], *, smallest: bool, stream: Stream | None
    ) -> Array:
        """The largest or smallest elements; NaN where there is one."""
        what = "min" if smallest else "max"
        self._check_extreme(what, x, axes)
        operation = kernels.SMALLEST if smallest else kernels.LARGEST
        return self._run(Work(_keys_of(x), operation, operation, x.dtype), x, axes, stream)

    def extreme_index(
        self, x: Array, axes: tuple[int, ...], *, smallest: bool, stream: Stream | None
    ) -> Array:
        """The indices of the first largest or smallest elements, in C order over the axes."""
        what = "argmin" if smallest else "argmax"
        self._check_extreme(what, x, axes)
        operation = kernels.INDEX | (kernels.SMALLEST if smallest else kernels.LARGEST)
        return self._run(Work(_keys_of(x), operation, operation, _INT64), x, axes, stream)

    def count(self, x: Array, axes: tuple[int, ...], stream: Stream | None) -> Array:
        """The number of true elements."""
        return self._count(kernels.NUMBER, x, axes, _INT64, 0, stream)

    def any(self, x: Array, axes: tuple[int, ...], stream: Stream | None) -> Array:
        return self._count(kernels.ANY, x, axes, _BOOL, False, stream)

    def all(self, x: Array, axes: tuple[int, ...], stream: Stream | None) -> Array:
        return self._count(kernels.ALL, x, axes, _BOOL, True, stream)

    # Their parts.

    def _total(
        self, operation: int, x: Array, axes: tuple[int, ...], out: Dtype, stream: Stream | None
    ) -> Array:
        family = self.family_of(x, out)
        self.check(x, out)
        if not _count(x.shape, axes):
            return self._filled(x, axes, operation == kernels.PRODUCT, out)
        return self._run(Work(family, operation, operation, out), x, axes, stream)

    def _mean(
        self, x: Array, axes: tuple[int, ...], inner: Dtype, out: Dtype, stream: Stream | None
    ) -> Array:
        family = self.family_of(x, inner)
        self.check(x, out)
        count = _count(x.shape, axes)
        if not count:
            return self._filled(x, axes, math.nan, out)
        divisor = kernels.argument_of(count, double=family in ("double", "dcomplex"))
        operation = kernels.SUM | kernels.DIVIDE
        return self._run(Work(family, operation, operation, out, divisor), x, axes, stream)

    def _count(
        self, operation: int, x: Array, axes: tuple[int, ...], out: Dtype, empty: Any,
        stream: Stream | None,
    ) -> Array:  # fmt: skip
        element_of(x.dtype)
        count = _count(x.shape, axes)
        if not count:
            return self._filled(x, axes, empty, out)
        return self._run(Work("count", operation, operation, out, (count, 0)), x, axes, stream)

    def check(self, x: Array, out: Dtype) -> None:
        for dtype in (x.dtype, out):
            self.abilities.check(element_of(dtype).name, self._device.info)

    def _check_extreme(self, what: str, x: Array, axes: tuple[int, ...]) -> None:
        element_of(x.dtype)
        if x.dtype.kind == "c":
            raise DtypeMismatch(f"{what} of {x.dtype}: complex numbers have no order")
        if not _count(x.shape, axes) and _outputs(x.shape, axes):
            raise InvalidValue(f"{what} along axes of array {x.name!r} that have no elements")

    def family_of(self, x: Array, computed: Dtype) -> str:
        """The family that computes sums in a dtype."""
        kind, source = element_of(computed).compute, element_of(x.dtype).compute
        if source in ("c64", "c128") and kind not in ("c64", "c128"):
            raise DtypeMismatch(f"{x.dtype} as {computed}: take the real part first")
        if kind in ("f32", "f64") or kind in ("c64", "c128"):
            wide = {"f64", "c128"}
            if source in wide and kind not in wide:
                raise DtypeMismatch(f"{x.dtype} as {computed}: convert it first, by astype")
            return {"f32": "float", "f64": "double", "c64": "complex", "c128": "dcomplex"}[kind]
        if source in ("f32", "f64"):
            raise DtypeMismatch(f"{x.dtype} as {computed}: convert it first, by astype")
        return "whole"

    def _filled(self, x: Array, axes: tuple[int, ...], value: Any, out: Dtype) -> Array:
        """The result of a reduction of no elements."""
        shape = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
        if not math.prod(shape):
            return self._device.empty(shape, out)
        return self._device.full(shape, np.array(value).astype(out)[()], out)

    # Launching.

    def _run(
        self, work: Work, x: Array, axes: tuple[int, ...], stream: Stream | None,
        means: Array | None = None,
    ) -> Array:  # fmt: skip
        x.buffer.check()
        shape = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
        out = self._device.new_result(shape, work.out, stream)
        if out.size:
            self._into(work, x, axes, out, means, stream)
        return out

    def _into(
        self, work: Work, x: Array, axes: tuple[int, ...], out: Array, means: Array | None,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        part = FAMILIES[work.family].size
        too_large = out.size * max(part, out.itemsize) > self._most_bytes
        if too_large and out.shape and out.shape[0] > 1:
            self._in_halves(work, x, axes, out, means, stream)
            return
        if x.size >= 1 << 31:
            raise Unsupported(f"array {x.name!r} has {x.size:,} elements; reduce slices of it")
        x = self.readable(x, stream)
        ordered = work.family in ("extreme", "long") and bool(work.operation & kernels.INDEX)
        words, at = x.words(UNIT)
        walk = walk_of(at, x.shape, x.strides, frozenset(axes), ordered=ordered)
        if max(len(walk.kept), len(walk.reduced)) > MOST_AXES:
            x = _reduced_last(x, axes).copy(stream)
            words, at = x.words(UNIT)
            axes = tuple(range(out.ndim, x.ndim))
            walk = walk_of(at, x.shape, x.strides, frozenset(axes), ordered=ordered)
        self._reduce(work, x.dtype, x.itemsize, words, walk, out, stream, means, ordered=ordered)

    def _in_halves(
        self, work: Work, x: Array, axes: tuple[int, ...], out: Array, means: Array | None,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        """Compute the outputs in two halves, which bindings hold."""
        kept = next(axis for axis in range(x.ndim) if axis not in axes)
        middle = out.shape[0] // 2
        middle = middle - middle % 16 or middle
        # Kernels store whole units: a half that does not start with one is computed elsewhere.
        in_place = middle * out.strides[0] % UNIT == 0
        for half in (slice(0, middle), slice(middle, None)):
            index = (*(slice(None),) * kept, half)
            target = (
                out[half]
                if in_place
                else self._device.new_result(out[half].shape, out.dtype, stream)
            )
            own = None if means is None else means[half].copy(stream)
            self._into(work, x[index], axes, target, own, stream)
            if not in_place:
                out[half].copy_from(target, stream=stream)

    def readable(self, x: Array, stream: Stream | None) -> Array:
        """The array, or a copy if kernels cannot read its elements where they are."""
        place = x.buffer.backing.offset + x.layout.offset
        odd = x.itemsize - 1
        if place & odd or any(step & odd for step in x.strides):
            return x.copy(stream)
        if self._whole:
            return x
        words, _ = x.words(UNIT)
        backing = x.buffer.backing
        if backing.offset + words.layout.offset + words.nbytes > backing.memory.nbytes:
            return x.copy(stream)
        return x

    def nothing(self) -> Array:
        """An array to bind where a kernel reads none."""
        if self._nothing is None:
            self._nothing = self._device.empty(4, np.uint32)
        return self._nothing

    def _reduce(
        self, work: Work, source: Dtype, size: int, words: Array, walk: Walk, out: Array,
        stream: Stream | None, means: Array | None = None, *, ordered: bool = False,
        are_parts: bool = False,
    ) -> None:  # fmt: skip
        """Reduce bound elements, in one launch or more."""
        how = plan(walk, size, self.grid, ordered=ordered, of_parts=are_parts)
        if self._whole:
            how = _in_one_part(how)
        direct = how.splits == 1 and (work.out.itemsize >= 4 or how.packs or self._singles)
        operation = work.again if are_parts else work.operation
        stored = work.out.itemsize if direct else FAMILIES[work.family].size
        variant = Variant(
            work.family, operation, source, work.out if direct else None, are_parts, how.along,
            how.across, how.aligned, how.sideways, len(how.walk.kept) > 1,
            len(how.walk.reduced) > 1, how.short and not are_parts,
            how.fours and stored in (4, 8),
        )  # fmt: skip
        if direct:
            self._launch(variant, how, words, out, work.argument, stream, means)
            return
        part = FAMILIES[work.family].size
        parts = self._device.new_result(how.splits * out.size * part // 4, np.uint32, stream)
        argument = (0, 0) if work.family in ("extreme", "long") else work.argument
        self._launch(variant, how, words, parts, argument, stream, means)
        of_parts, at = parts.words(UNIT)
        again = Walk(
            at, (Axis(out.size, part, 1),), (Axis(how.splits, out.size * part),)
        )  # fmt: skip
        if out.size == 1:
            again = Walk(at, (Axis(1, 0, 1),), (Axis(how.splits, part),))
        self._reduce(work, source, part, of_parts, again, out, stream, are_parts=True)

    def _launch(
        self, variant: Variant, how: Plan, words: Array, out: Array, argument: tuple[int, int],
        stream: Stream | None, means: Array | None,
    ) -> None:  # fmt: skip
        kernel = self._kernels.get(variant)
        if kernel is None:
            made = kernels.make(self._device, variant, self.grid.group_size)
            # Another thread may have made the same kernel meanwhile.
            kernel = self._kernels.setdefault(variant, made)
        walk = how.walk
        kept = (*walk.kept, *(Axis(1, 0),) * (MOST_AXES - len(walk.kept)))
        reduced = (*walk.reduced, *(Axis(1, 0),) * (MOST_AXES - len(walk.reduced)))
        stored, first = out.words(UNIT)
        kernel(
            x=words, m=_bits(self.nothing() if means is None else means), y=stored, at=walk.at,
            last=(words.nbytes - 1) // UNIT, first=first // 4, jobs=how.jobs, span=how.span,
            units=how.units, outputs=walk.outputs, step_splits=how.step_splits,
            rows_each=how.rows_each, steps_each=how.steps_each, rows=how.rows,
            kept_0=kept[0].size, kept_1=kept[1].size, kept_2=kept[2].size,
            step_0=_word(kept[0].step), step_1=_word(kept[1].step), step_2=_word(kept[2].step),
            step_3=_word(kept[3].step), to_0=kept[0].to, to_1=kept[1].to, to_2=kept[2].to,
            to_3=kept[3].to, reduced_0=reduced[0].size, reduced_1=reduced[1].size,
            reduced_2=reduced[2].size, pace_0=_word(reduced[0].step),
            pace_1=_word(reduced[1].step), pace_2=_word(reduced[2].step),
            pace_3=_word(reduced[3].step), argument_0=argument[0], argument_1=argument[1],
            groups=how.groups, stream=stream,
        )  # fmt: skip


def _word(number: int) -> int:
    return number & 0xFFFFFFFF


def _bits(array: Array) -> Array:
    """A contiguous array's bytes as words."""
    layout = Layout(array.layout.offset, (array.nbytes // 4,), (4,), 4)
    return Array(array.buffer, layout, np.dtype(np.uint32))


def _reduced_last(x: Array, axes: tuple[int, ...]) -> Array:
    """The array with its kept axes before the reduced ones."""
    order = (*(axis for axis in range(x.ndim) if axis not in axes), *axes)
    shape, strides = (tuple(each[axis] for axis in order) for each in (x.shape, x.strides))
    layout = x.layout._replace(shape=shape, strides=strides)
    return Array(x.buffer, layout, x.dtype, repeats=x.repeats)


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(shape[axis] for axis in axes)


def _outputs(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod(n for axis, n in enumerate(shape) if axis not in axes)


def _keys_of(x: Array) -> str:
    return "long" if x.itemsize == 8 else "extreme"


def _dtype_of_parts(family: str) -> Dtype:
    return np.dtype({"float": "f4", "double": "f8", "complex": "c8", "dcomplex": "c16"}[family])


def _in_one_part(how: Plan) -> Plan:
    return how._replace(
        row_splits=1, step_splits=1, rows_each=how.rows,
        steps_each=how.steps_each * how.step_splits, jobs=how.units, groups=(1, 1, 1),
        span=how.units, sideways=False, units=how.walk.outputs,
    )  # fmt: skip
