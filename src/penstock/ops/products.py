"""Products of matrices and vectors (`matmul`, `vecdot`): launches only, for any strides and dtype.

A product is sums over k of left[m, k] * right[k, n], for each matrix of a batch. The sums have a
*kind*: float16 and bfloat16 are multiplied and added in float32, integers of up to 32 bits in
uint32 and others in uint64, which wrap as the elements do. One of three kernels makes the sums:

- `product_direct.comp` reads the elements where they are. It makes small products in one launch,
  and products of a matrix and a vector, which read each element once.
- `product_lanes.comp`, on CPU drivers, keeps tiles of sums in registers. Two launches pack its
  operands first (`product_pack.comp`), which costs far less than the product.
- `product_shared.comp`, on GPUs, keeps tiles of both operands in shared memory.

Where there are few sums of many products, k is divided into segments, each with sums of its own.
`product_finish.comp` adds them up, and encodes elements that are smaller than their sums. The order
of additions depends on the shapes, strides and the device alone, so the same operands always give
the same bits.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.array import Array
from penstock.errors import ArgumentError, DtypeMismatch, ShapeMismatch
from penstock.launch.checks import check_array
from penstock.launch.kernel import Kernel
from penstock.ops import product_references as references
from penstock.ops.elements import Abilities, Element, element_of
from penstock.ops.product_plans import (
    KIND_OF,
    MOST_EACH,
    ROWS,
    THIN,
    Operand,
    Shape,
    Way,
    defines_of,
    direct_plan,
    segments_of,
    shared_depth,
    three,
)
from penstock.ops.product_references import KINDS, SUMS
from penstock.ops.strides import broadcast_shape, broadcast_strides, halves, merged
from penstock.ops.word_texels import word_texels
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.stream import Stream

_SHADERS = Path(__file__).with_name("shaders")

_SMALL = 1 << 17  # multiplications up to which a product is made in one launch
_TINY = 1 << 14  # multiplications up to which words are bound faster than texels save
_MOST_LINES = 1 << 17
_MOST_BATCHES = 1 << 13


class Products:
    """The matrix products of one device. Kernels are made when they are first needed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._way = Way.of(device)
        self._abilities = Abilities.of(device.info)
        self._kernels: dict[Any, Kernel] = {}
        limits: Any = device.info.limits
        self._range: int = limits["binding_range"]
        self._groups: tuple[int, int, int] = limits["group_count"]
        self._texels: int = limits.get("texel_elements", 0)

    def matmul(self, a: Array, b: Array, stream: Stream | None = None) -> Array:
        """The matrix product by NumPy's rules, of two arrays of one dtype."""
        dtype = self._check("matmul", a, b)
        if not a.ndim or not b.ndim:
            raise ShapeMismatch(
                f"matmul of shapes {a.shape} and {b.shape}: an array without dimensions is no "
                "matrix; multiply() scales by one"
            )
        a, b = a.settled(stream), b.settled(stream)
        left = a[None, :] if a.ndim == 1 else a
        right = b[:, None] if b.ndim == 1 else b
        if left.shape[-1] != right.shape[-2]:
            raise ShapeMismatch(
                f"matmul of shapes {a.shape} and {b.shape}: the last dimension of the first, "
                f"{left.shape[-1]}, is not the {'only' if b.ndim == 1 else 'last but one'} of the "
                f"second, {right.shape[-2]}"
            )
        batch = broadcast_shape((left.shape[:-2], right.shape[:-2]), "matmul")
        rows = left.shape[-2:-1] if a.ndim > 1 else ()
        columns = right.shape[-1:] if b.ndim > 1 else ()
        out = self._device.new_result((*batch, *rows, *columns), a.dtype, stream)
        if out.size:
            flat = out.reshape(*batch, left.shape[-2], right.shape[-1])
            self._multiply(flat, left, right, dtype, stream)
        return out

    def vecdot(self, a: Array, b: Array, stream: Stream | None = None) -> Array:
        """Sums of a * b along their last dimension; the other dimensions broadcast."""
        dtype = self._check("vecdot", a, b)
        if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-1]:
            raise ShapeMismatch(
                f"vecdot of shapes {a.shape} and {b.shape}: the last dimensions must be the same"
            )
        a, b = a.settled(stream), b.settled(stream)
        batch = broadcast_shape((a.shape[:-1], b.shape[:-1]), "vecdot")
        out = self._device.new_result(batch, a.dtype, stream)
        if out.size:
            flat = out.reshape(*batch, 1, 1)
            self._multiply(flat, a[..., None, :], b[..., :, None], dtype, stream)
        return out

    def _check(self, what: str, a: Array, b: Array) -> Element:
        for x in (a, b):
            if not isinstance(x, Array):
                raise ArgumentError(
                    f"{what} takes Arrays, not {type(x).__name__}; dev.array makes one"
                )
            x.buffer.check()
            if x.device is not self._device:
                raise ArgumentError(
                    f"{what} of arrays on {a.device} and on {b.device}; copy one over"
                )
        if a.dtype != b.dtype:
            raise DtypeMismatch(f"{what} of {a.dtype} and {b.dtype}: nothing is cast here")
        dtype = element_of(a.dtype)
        self._abilities.check(dtype.name, self._device.info)
        return dtype

    # Dividing a product into launches that fit.

    def _multiply(
        self, out: Array, a: Array, b: Array, dtype: Element, stream: Stream | None
    ) -> None:
        """Multiply (…, m, k) by (…, k, n) into `out`, which is contiguous and has elements."""
        *ahead, rows, columns = out.shape
        inner = a.shape[-1]
        if not inner:
            out.fill(0, stream)
            return
        batch = tuple(ahead)
        of_a = broadcast_strides(a.shape[:-2], a.strides[:-2], batch)
        of_b = broadcast_strides(b.shape[:-2], b.strides[:-2], batch)
        walk = merged(batch, (of_a, of_b))
        batches = math.prod(batch)
        large = self._too_large(out, a, b, dtype, batches)
        if len(walk.sizes) > 3 or (large and batches > 1):
            axis = next(axis for axis, n in enumerate(batch) if n > 1)
            for part in halves(batch[axis]):
                where = (slice(None),) * axis + (part,)
                one, other = _part(a, len(batch), where), _part(b, len(batch), where)
                self._multiply(out[where], one, other, dtype, stream)
        elif rows > 1 and {"out", "left"} & large:
            for part in halves(rows):
                self._multiply(out[..., part, :], a[..., part, :], b, dtype, stream)
        elif columns > 1 and {"out", "right"} & large:
            for part in halves(columns):
                goal = out[..., part]
                made = (
                    goal
                    if goal.contiguous
                    else self._device.new_result(goal.shape, goal.dtype, stream)
                )
                self._multiply(made, a, b[..., part], dtype, stream)
                if made is not goal:
                    goal.copy_from(made, stream)
        elif large:
            kind = KIND_OF[dtype.compute]
            sums = self._device.new_result((2, *out.shape), SUMS[kind], stream)
            for number, part in enumerate(halves(inner)):
                self._multiply(sums[number], a[..., part], b[..., part, :], dtype, stream)
            self._finish(out, sums, dtype, stream)
        else:
            shape = Shape(rows, columns, inner, three(walk.sizes, 1))
            left = Operand(a, rows, a.strides[-2], a.strides[-1], three(walk.strides[0], 0))
            right = Operand(b, columns, b.strides[-1], b.strides[-2], three(walk.strides[1], 0))
            self._launch(out, shape, left, right, dtype, stream)

    def _too_large(self, out: Array, a: Array, b: Array, dtype: Element, batches: int) -> set[str]:
        """Which of the operands and the sums do not fit one launch."""
        size, most = KINDS[KIND_OF[dtype.compute]].size, self._range // 2
        found = set()
        for what, array, lines in (("left", a, a.shape[-2]), ("right", b, b.shape[-1])):
            # Packing fills up panels of lines and parts of 16 bytes.
            inner = -(-array.shape[-1 if array is a else -2] * size // 16) * 16
            packed = array.size // (array.shape[-1] * array.shape[-2]) * (lines + 63) * inner
            if max(array.region.hi - array.region.lo, packed) > most or lines > _MOST_LINES:
                found.add(what)
        if out.size * size > most or batches > _MOST_BATCHES:
            found.add("out")
        return found

    # Launches.

    def _launch(
        self, out: Array, shape: Shape, left: Operand, right: Operand, dtype: Element,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        thin = min(shape.rows, shape.columns)
        large = self._way.large
        if large == "direct" or thin <= THIN or shape.work <= _SMALL:
            self._direct(out, shape, left, right, dtype, stream)
        elif large == "lanes":
            self._lanes(out, shape, left, right, dtype, stream)
        else:
            self._shared(out, shape, left, right, dtype, stream)

    def _direct(
        self, out: Array, shape: Shape, left: Operand, right: Operand, dtype: Element,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        """The product of elements where they are."""
        plan = direct_plan(shape, left, right, self._way)
        shape, left, right = plan.shape, plan.left, plan.right
        defines: dict[str, Any] = {
            "ROWS": plan.rows, "COLUMNS": plan.columns,
        }  # fmt: skip
        if plan.mode:
            defines[plan.mode] = 1
        if plan.mode == "ALONG" and self._way.tree:
            defines["TREE"] = 1
        (one, at_left), (other, at_right), texels = self._bound(shape, left.array, right.array)
        if texels:
            defines["TEXELS"] = 1
        kernel = self._kernel("product_direct", dtype, defines, local_size_x=self._way.group)
        segments = segments_of(
            shape.inner, plan.groups * shape.batches, self._way, plan.least, plan.most
        )
        to_row, to_column = (1, shape.rows) if plan.swapped else (shape.columns, 1)
        self._sum_up(
            kernel, out, shape, plan.grid, segments, dtype, stream,
            left=one, right=other, inner=shape.inner, **_strides(left, at_left, right, at_right),
            to_row=to_row, to_column=to_column,
        )  # fmt: skip

    def _lanes(
        self, out: Array, shape: Shape, left: Operand, right: Operand, dtype: Element,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        """The product of packed operands, with a lane for each column."""
        swapped = shape.columns < 4 * self._way.group and shape.rows > shape.columns
        if swapped:
            left, right = right, left
            shape = shape._replace(rows=shape.columns, columns=shape.rows)
        lanes = self._way.group
        columns = 4 if shape.columns > 2 * lanes else 2
        parts = -(-shape.inner * KINDS[KIND_OF[dtype.compute]].size // 16)
        one, of_left = self._packed(left, shape, ROWS, parts, dtype, stream)
        other, of_right = self._packed(right, shape, columns * lanes, parts, dtype, stream)
        grid = (-(-shape.columns // (columns * lanes)), -(-shape.rows // ROWS))
        tiles = grid[0] * grid[1] * shape.batches
        segments = segments_of(parts, tiles, self._way, 128, MOST_EACH)
        texels = max(one.size, other.size) // 4 <= self._texels
        defines: dict[str, Any] = {"COLUMNS": columns}
        if texels:
            defines["TEXELS"] = 1
        loads = max(1, ROWS // lanes)
        kernel = self._kernel("product_lanes", dtype, defines, local_size_x=lanes, LOADS=loads)
        to_row, to_column = (1, shape.rows) if swapped else (shape.columns, 1)
        self._sum_up(
            kernel, out, shape, grid, segments, dtype, stream,
            left=one, right=other, parts=parts,
            **_batch("left", of_left), **_batch("right", of_right),
            to_row=to_row, to_column=to_column,
        )  # fmt: skip

    def _packed(
        self, operand: Operand, shape: Shape, width: int, parts: int, dtype: Element,
        stream: Stream | None,
    ) -> tuple[Array, Operand]:  # fmt: skip
        """An operand in panels of `width` lines, and the same with strides of its parts."""
        # What the batch repeats is packed once.
        sizes = [n if step else 1 for n, step in zip(shape.sizes, operand.batch, strict=True)]
        panels = -(-operand.lines // width)
        matrix = panels * width * parts
        batches = math.prod(sizes)
        packed = self._device.new_result((batches * matrix * 4,), np.uint32, stream)
        bound, at = operand.array.words()
        texels = word_texels(operand.array, self._texels)
        defines: dict[str, Any] = {}
        if texels is not None:
            bound, at = texels
            defines["TEXELS"] = 1
        lanes = self._way.group
        kernel = self._kernel("product_pack", dtype, defines, local_size_x=lanes)
        each = max(1, width // lanes)
        wanted = max(1, 4 * self._way.busy // (panels * batches))
        span = min(max(16, -(-parts // wanted)), MOST_EACH // each)
        _call(
            kernel,
            words=bound, packed_=packed, at=at, lines=operand.lines, inner=shape.inner,
            line_stride=_u32(operand.line_stride), inner_stride=_u32(operand.inner_stride),
            width=width, parts=parts, span=span, batch_0=sizes[0], batch_1=sizes[1],
            **_batch("stride", operand),
            groups=(panels, -(-parts // span), batches), stream=stream,
        )  # fmt: skip
        steps, step = [], matrix
        for n, size in enumerate(sizes):
            steps.append(step if operand.batch[n] else 0)
            step *= size
        return packed, operand._replace(array=packed, batch=three(tuple(steps), 0))

    def _shared(
        self, out: Array, shape: Shape, left: Operand, right: Operand, dtype: Element,
        stream: Stream | None,
    ) -> None:  # fmt: skip
        """The product in tiles of shared memory."""
        grid = (-(-shape.columns // 64), -(-shape.rows // 64))
        tiles = grid[0] * grid[1] * shape.batches
        depth = shared_depth(KIND_OF[dtype.compute])
        segments = segments_of(shape.inner, tiles, self._way, 512, MOST_EACH)
        constants = {
            "ROWS_FIRST": abs(left.line_stride) < abs(left.inner_stride),
            "COLUMNS_FIRST": abs(right.line_stride) < abs(right.inner_stride),
        }
        kernel = self._kernel("product_shared", dtype, {"DEPTH": depth}, **constants)
        one, at_left = left.array.words()
        other, at_right = right.array.words()
        self._sum_up(
            kernel, out, shape, grid, segments, dtype, stream,
            left=one, right=other, inner=shape.inner, **_strides(left, at_left, right, at_right),
        )  # fmt: skip

    def _sum_up(
        self, kernel: Kernel, out: Array, shape: Shape, grid: tuple[int, int],
        segments: tuple[int, int], dtype: Element, stream: Stream | None, **operands: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel of a `grid` of groups for each of the segments, and add these up."""
        count, span = segments
        sums = self._sums(out, count, dtype)
        _call(
            kernel, **_at("sums", sums),
            rows=shape.rows, columns=shape.columns, span=span,
            batches=shape.batches, batch_0=shape.sizes[0], batch_1=shape.sizes[1],
            groups=(*grid, shape.batches * count), stream=stream, **operands,
        )  # fmt: skip
        if sums is not out:
            self._finish(out, sums, dtype, stream)

    def _sums(self, out: Array, segments: int, dtype: Element) -> Array:
        """Where the sums go: `out` itself, if its elements are sums."""
        kind = KIND_OF[dtype.compute]
        if segments == 1 and out.itemsize == KINDS[kind].size:
            return out
        return self._device.new_result((segments, *out.shape), SUMS[kind])

    def _finish(self, out: Array, sums: Array, dtype: Element, stream: Stream | None) -> None:
        """Add up the segments of sums, and encode the elements."""
        # A part of an array may share its first and last word, and the kernel writes whole words.
        ends = out.nbytes % 4 and out.region.hi != out.buffer.nbytes
        made = (
            self._device.new_result(out.shape, out.dtype, stream)
            if out.region.lo % 4 or ends
            else out
        )
        group = max(self._way.group, 8)
        # `out` may hold sums, of a part of a product.
        kernel = self._kernel("product_finish", element_of(out.dtype), {}, local_size_x=group)
        words = -(-out.nbytes // 4) if out.itemsize < 4 else out.size
        groups = -(-words // group)
        wide = min(groups, self._groups[0])
        _call(
            kernel, **_at("sums", sums), **_at("made", made), count=out.size,
            segments=sums.shape[0], groups=(wide, -(-groups // wide)), stream=stream,
        )  # fmt: skip
        if made is not out:
            out.copy_from(made, stream)

    def _bound(
        self, shape: Shape, a: Array, b: Array
    ) -> tuple[tuple[Array, int], tuple[Array, int], bool]:
        """Both operands as kernels bind them: as texels, if that pays and both can be."""
        if self._way.large == "lanes" and shape.work > _TINY:
            one, other = word_texels(a, self._texels), word_texels(b, self._texels)
            if one is not None and other is not None:
                return one, other, True
        return a.words(), b.words(), False

    def _kernel(
        self, shader: str, dtype: Element, defines: dict[str, Any], **constants: Any
    ) -> Kernel:
        key = (shader, dtype.code, *defines.items(), *constants.items())
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._make(shader, dtype, defines, constants)
            # Another thread may have made the same kernel meanwhile.
            kernel = self._kernels.setdefault(key, kernel)
        return kernel

    def _make(
        self, shader: str, dtype: Element, defines: dict[str, Any], constants: dict[str, Any]
    ) -> Kernel:
        kind = KIND_OF[dtype.compute]
        name = f"{shader.replace('_', ': ')} of {dtype.name}"
        formats = {}
        if "TEXELS" in defines:
            texel = "rgba32ui" if shader == "product_lanes" else "r32ui"
            names = ("words",) if shader == "product_pack" else ("left", "right")
            formats = dict.fromkeys(names, texel)
        every = defines_of(kind, self._abilities.int64, defines)
        return Kernel.of_forms(
            self._device,
            partial(references.BY_SHADER[shader], kind, dtype.name, defines),
            spirv=KernelSource(
                _SHADERS / f"{shader}.comp", name, every, {"dtype": dtype.code, **constants},
                formats=formats,
            ),
            hip=_in_hip(shader, dtype, every, constants),
        )  # fmt: skip


def _in_hip(
    shader: str, dtype: Element, defines: dict[str, Any], constants: dict[str, Any]
) -> KernelSource:
    """The kernel in HIP C++, which has no specialization constants."""
    part = shader.removeprefix("product_")
    group = 256 if part == "shared" else constants["local_size_x"]
    flags = {key: int(value) for key, value in constants.items() if key != "local_size_x"}
    return KernelSource(
        _SHADERS / "product.hip", shader,
        {**defines, **flags, "PART": part.upper(), "DTYPE": dtype.code, "GROUP": group},
        signature=_SIGNATURES.get(part, ""), group_size=group,
    )  # fmt: skip


_OPERANDS = "in bytes left, in bytes right, out bytes sums, " + ", ".join(
    f"uint32 {name}"
    for name in (
        "rows", "columns", "inner", "span", "batches", "batch_0", "batch_1", "left_at", "left_row",
        "left_inner", "left_0", "left_1", "left_2", "right_at", "right_column", "right_inner",
        "right_0", "right_1", "right_2",
    )
)  # fmt: skip
_SIGNATURES = {
    "direct": f"{_OPERANDS}, uint32 to_row, uint32 to_column, uint32 sums_at",
    "shared": f"{_OPERANDS}, uint32 sums_at",
    "finish": "in bytes sums, out bytes made, uint32 count, uint32 segments, uint32 sums_at, "
    "uint32 made_at",
}


def _call(kernel: Kernel, **given: Any) -> None:
    """Launch a kernel, whose arrays are checked and bound here.

    The launch then takes them as known; with arrays that are new to it, it costs three times more.
    """
    with kernel.scheduler.lock:
        for parameter in kernel.parameters:
            window = given[parameter.name]
            if parameter.format is not None:
                continue
            if parameter.wants not in window.accepted:
                check_array(kernel, parameter, window, given)
            window.bind()
    kernel(**given)


def _at(name: str, x: Array) -> dict[str, Any]:
    """A contiguous array of words, and the first of them that belongs to it."""
    words, at = x.words()
    return {name: words, sys.intern(f"{name}_at"): at // 4}


def _strides(left: Operand, at_left: int, right: Operand, at_right: int) -> dict[str, int]:
    """Where the elements of operands are that are not packed."""
    return {
        "left_at": at_left, "left_row": _u32(left.line_stride),
        "left_inner": _u32(left.inner_stride), **_batch("left", left),
        "right_at": at_right, "right_column": _u32(right.line_stride),
        "right_inner": _u32(right.inner_stride), **_batch("right", right),
    }  # fmt: skip


def _batch(name: str, operand: Operand) -> dict[str, int]:
    # The native step compares the names of arguments by identity.
    return {sys.intern(f"{name}_{n}"): _u32(step) for n, step in enumerate(operand.batch)}


def _part(x: Array, ndim: int, where: tuple[slice, ...]) -> Array:
    """The part of an operand that belongs to a part of the batch, which has `ndim` axes."""
    axis = len(where) - 1 - (ndim - (x.ndim - 2))
    if axis < 0 or x.shape[axis] == 1:
        return x
    return x[(slice(None),) * axis + where[-1:]]


def _u32(stride: int) -> int:
    return stride & 0xFFFFFFFF
