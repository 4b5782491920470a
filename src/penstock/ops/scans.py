"""Running sums and products along an axis: launches only, into a new array.

Where the lines along the axis are few, each is divided into chunks: one launch computes the totals
of the chunks, others the running totals of these, and the last starts every chunk from the total of
all before it. Sums of floats differ from NumPy's in rounding only, and have smaller errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.array.array import Array
from penstock.dtypes import Dtype, as_dtype
from penstock.errors import Unsupported
from penstock.launch.kernel import Kernel
from penstock.ops.axes_kernels import (
    FAMILIES,
    NUMBERS,
    SHADERS,
    UNIT,
    hip_source,
    signed,
)
from penstock.ops.axes_plan import MOST_AXES, MOST_TURNS, Axis, Walk, walk_of
from penstock.ops.elements import element_of
from penstock.ops.word_texels import reads_texels
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.stream import Stream

_MOST_CHUNK = MOST_TURNS - 16
_ARGUMENTS = (
    "at last first jobs span lines count chunk pace to initial kept_0 kept_1 kept_2 step_0 step_1 "
    "step_2 step_3 to_0 to_1 to_2 to_3"
)


class _Variant(NamedTuple):
    """What a kernel depends on."""

    family: str
    product: bool
    source: Dtype
    out: Dtype
    totals: bool
    started: bool
    along: bool
    across: bool
    aligned: bool
    several_kept: bool
    fours: bool


class Scans:
    """The running sums and products of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._axes = device.axes
        self._grid = device.axes.grid
        self._texels = reads_texels(device)
        self._whole = "window_alignment" in device.info.limits
        self._kernels: dict[_Variant, Kernel] = {}

    def scan(
        self, x: Array, axis: int, out: Dtype, *, product: bool, initial: bool,
        stream: Stream | None = None,
    ) -> Array:  # fmt: skip
        """Running sums or products along an axis, of elements converted to the dtype of the result.

        With `initial`, each line starts with the sum or product of no elements.
        """
        family = self._axes.family_of(x, out)
        self._axes.check(x, out)
        shape = tuple(n + initial * (k == axis) for k, n in enumerate(x.shape))
        kind = out if out.itemsize >= 4 else as_dtype(NUMBERS[family])
        made = self._device.new_result(shape, kind, stream)
        limits: Any = self._device.info.limits
        if x.size >= 1 << 31 or made.nbytes > limits["binding_range"]:
            raise Unsupported(f"running sums of {x.size:,} elements; take them of slices")
        if not x.size:
            if made.size:
                made.fill(int(product))
        else:
            x = self._axes.readable(x, stream)
            words, at = x.words(UNIT)
            walk = _walk(at, x, made, axis)
            if len(walk.kept) > MOST_AXES:
                x = x.copy(stream)
                words, at = x.words(UNIT)
                walk = _walk(at, x, made, axis)
            length = Axis(x.shape[axis], x.strides[axis], made.strides[axis] // made.itemsize)
            self._scan(family, product, x.dtype, words, walk, length, made, stream, initial=initial)
        if kind == out:
            return made
        # Small elements are stored four at once, which the sum of each one alone does.
        return self._axes.sum(made.reshape(*shape, 1), (made.ndim,), out, stream)

    def _scan(
        self, family: str, product: bool, source: Dtype, words: Array, walk: Walk, line: Axis,
        out: Array, stream: Stream | None, *, initial: bool,
    ) -> None:  # fmt: skip
        """Scan the lines of a walk."""
        inner = walk.kept[0]
        size = source.itemsize
        along = line.step == size and line.to == 1 and line.size >= 16
        across = not along and inner.step == size and inner.to == 1 and inner.size >= 4
        if self._grid.singles:
            along = across = False
        lines = walk.outputs
        units = lines // inner.size * -(-inner.size // 4) if across else lines
        wanted, fewest = -(-self._grid.enough // units), 1024 if self._grid.on_cpu else 32
        chunks = max(1, min(wanted, line.size // fewest), -(-line.size // _MOST_CHUNK))
        if self._whole:
            chunks = 1
        chunk = -(-line.size // chunks)
        if along:
            chunk = -(-chunk // 4) * 4
        chunks = -(-line.size // chunk)
        unit = 4 * size
        aligned = along or (
            across
            and not walk.at % unit
            and not any(axis.step % unit for axis in (*walk.kept[1:], line))
        )
        part = FAMILIES[family].size
        dtype = as_dtype(NUMBERS[family])
        variant = _Variant(
            family, product, source, out.dtype, False, chunks > 1, along, across, aligned,
            len(walk.kept) > 1, out.itemsize in (4, 8),
        )  # fmt: skip
        before = None
        if chunks > 1:
            totals = self._device.new_result((chunks, lines), dtype, stream)
            of_totals = variant._replace(
                out=dtype, totals=True, started=False, fours=part in (4, 8)
            )
            self._launch(of_totals, words, walk, line, chunk, chunks, units, totals, None, stream)
            before = self._device.new_result((chunks + 1, lines), dtype, stream)
            bound, at = totals.words(UNIT)
            self._scan(
                family, product, dtype, bound, Walk(at, (Axis(lines, part, 1),), ()),
                Axis(chunks, lines * part, lines), before, stream, initial=True,
            )  # fmt: skip
        self._launch(
            variant, words, walk, line, chunk, chunks, units, out, before, stream, initial=initial
        )

    def _launch(
        self, variant: _Variant, words: Array, walk: Walk, line: Axis, chunk: int, chunks: int,
        units: int, out: Array, before: Array | None, stream: Stream | None, *,
        initial: bool = False,
    ) -> None:  # fmt: skip
        kernel = self._kernels.get(variant)
        if kernel is None:
            # Another thread may have made the same kernel meanwhile.
            kernel = self._kernels.setdefault(variant, self._make(variant))
        size = self._grid.group_size
        each = max(1, MOST_TURNS // (chunk + 12))
        groups = max(
            -(-units // (size * each)),
            min(-(-units // size), max(1, self._grid.most_groups // chunks)),
        )
        each = -(-units // groups)
        span = -(-each // size) * size
        kept = (*walk.kept, *(Axis(1, 0),) * (MOST_AXES - len(walk.kept)))
        started = self._axes.nothing() if before is None else before
        stored, first = out.words(UNIT)
        kernel(
            x=words, p=started.words(UNIT)[0], y=stored, at=walk.at,
            last=(words.nbytes - 1) // UNIT, first=first // 4, jobs=units, span=span,
            lines=walk.outputs, count=line.size, chunk=chunk, pace=line.step & 0xFFFFFFFF,
            to=line.to, initial=int(initial), kept_0=kept[0].size, kept_1=kept[1].size,
            kept_2=kept[2].size, step_0=kept[0].step & 0xFFFFFFFF,
            step_1=kept[1].step & 0xFFFFFFFF, step_2=kept[2].step & 0xFFFFFFFF,
            step_3=kept[3].step & 0xFFFFFFFF, to_0=kept[0].to, to_1=kept[1].to,
            to_2=kept[2].to, to_3=kept[3].to, groups=(-(-units // span), chunks), stream=stream,
        )  # fmt: skip

    def _make(self, variant: _Variant) -> Kernel:
        family = FAMILIES[variant.family]
        constants = {
            "local_size_x": self._grid.group_size,
            "SOURCE": element_of(variant.source).code,
            "SIZE": variant.source.itemsize,
            "ALIGNED": variant.aligned,
            "OUT": element_of(variant.out).code,
            "OUT_SIZE": variant.out.itemsize,
            "PRODUCT": variant.product,
            "TOTALS": variant.totals,
            "ALONG": variant.along,
            "ACROSS": variant.across,
            "STARTED": variant.started,
            "SEVERAL_KEPT": variant.several_kept,
            "FOURS": variant.fours,
        }
        name = f"cumulative {'product' if variant.product else 'sum'} of {variant.source}"
        defines = {"NUMBER": family.defines["NUMBER"], **({"TEXELS": 1} if self._texels else {})}
        return Kernel.of_forms(
            self._device,
            partial(_reference, variant),
            spirv=KernelSource(
                SHADERS / "scan.comp", name, defines, constants,
                formats={"x": "rgba32ui"} if self._texels else {},
            ),
            hip=hip_source(
                "scan", name, {"NUMBER": family.defines["NUMBER"]}, constants, ("p", _ARGUMENTS)
            ),
        )  # fmt: skip


def every_variant() -> Iterator[tuple[str, dict[str, str | int | float]]]:
    """The shader and the defines of every module."""
    for texels in ({}, {"TEXELS": 1}):
        for name in NUMBERS:
            yield "scan", {"NUMBER": FAMILIES[name].defines["NUMBER"], **texels}


def _walk(at: int, x: Array, out: Array, axis: int) -> Walk:
    """The walk over the lines of x along an axis, and of `out`, which is contiguous."""
    made = walk_of(at, x.shape, x.strides, frozenset((axis,)), ordered=True)
    if out.ndim == 1:
        return made
    to = [step // out.itemsize for step in out.strides]
    return walk_of(at, x.shape, x.strides, frozenset((axis,)), ordered=True, to=to)


def _reference(variant: _Variant, **given: Any) -> None:
    """The kernel in NumPy, for the simulator, where a line is one chunk."""
    axes = range(MOST_AXES)
    sizes = [given["kept_0"], given["kept_1"], given["kept_2"]]
    sizes.append(given["lines"] // math.prod(sizes))
    steps = [signed(given[f"step_{axis}"]) for axis in axes]
    to = [variant.out.itemsize * given[f"to_{axis}"] for axis in axes]
    count, initial = given["count"], given["initial"]
    x = np.ndarray(
        [*sizes[::-1], count], variant.source, given["x"].view(np.uint8), given["at"],
        [*steps[::-1], signed(given["pace"])],
    )  # fmt: skip
    y = np.ndarray(
        [*sizes[::-1], count + initial], variant.out, given["y"].view(np.uint8),
        4 * given["first"], [*to[::-1], variant.out.itemsize * given["to"]],
    )  # fmt: skip
    with np.errstate(all="ignore"):
        numbers = x.astype(as_dtype(NUMBERS[variant.family]))
        made = numbers.cumprod(-1) if variant.product else numbers.cumsum(-1)
        y[..., initial:] = made.astype(variant.out)
    if initial:
        y[..., 0] = int(variant.product)
