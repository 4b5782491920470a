"""How a matrix product is divided into invocations, groups and segments, on each kind of device.

Pure arithmetic on shapes and strides; `ops.products` launches what is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.array.array import Array
from penstock.ops.product_references import KINDS, Kind

if TYPE_CHECKING:
    from penstock.device import Device

#: By compute type: the kind of the sums.
KIND_OF: dict[str, Kind] = {
    "b": "U32", "i32": "U32", "u32": "U32", "i64": "U64", "u64": "U64", "f32": "F32", "f64": "F64",
    "c64": "C64", "c128": "C128",
}  # fmt: skip

THIN = 2  # lines of the thinner operand up to which a product is made where the elements are
ROWS = 8  # of a panel of the left operand
MOST_EACH = 1 << 15  # turns of a kernel's inner loop


class Operand(NamedTuple):
    """A matrix of each batch: lines (rows of the left, columns of the right) along k."""

    array: Array
    lines: int
    line_stride: int  # strides are in bytes
    inner_stride: int
    batch: tuple[int, int, int]  # strides, innermost axis first


class Shape(NamedTuple):
    """The numbers that every kernel of a product takes."""

    rows: int
    columns: int
    inner: int
    sizes: tuple[int, int, int]  # of the batch's axes, innermost first

    @property
    def batches(self) -> int:
        return math.prod(self.sizes)

    @property
    def work(self) -> int:
        return self.rows * self.columns * self.inner * self.batches


class Way(NamedTuple):
    """How a device multiplies."""

    large: str  # the kernel for large products: "lanes", "shared" or "direct"
    group: int  # invocations of a group of the direct kernel and those around it
    tree: bool  # sums of a group meet in shared memory
    busy: int  # groups that keep the device busy

    @classmethod
    def of(cls, device: Device) -> Way:
        info = device.info
        limits: Any = info.limits
        if info.driver == "sim":
            return cls("direct", 64, tree=True, busy=64)
        if info.driver == "vulkan" and info.kind == "cpu" and "subgroupShuffle" in info.features:
            return cls("lanes", limits["subgroup_size"], tree=False, busy=32)
        return cls("shared", 64, tree=True, busy=512)


class DirectPlan(NamedTuple):
    """How the direct kernel divides a product."""

    shape: Shape
    left: Operand
    right: Operand
    swapped: bool  # the operands, and so rows and columns
    mode: str  # a define of the kernel, or ""
    rows: int  # of an invocation
    columns: int
    grid: tuple[int, int]
    least: int  # products that are worth a segment of their own
    most: int  # products of a segment

    @property
    def groups(self) -> int:
        return self.grid[0] * self.grid[1]


def direct_plan(shape: Shape, left: Operand, right: Operand, way: Way) -> DirectPlan:
    """Choose the axis that the invocations of a group are side by side on.

    Neighbours should read neighbouring elements of the operand with more lines.
    """
    group = way.group
    along = shape.inner >= 4 * group
    if shape.rows == shape.columns == 1:
        size = shape.sizes[0]
        if size > 1 and not (along and abs(right.inner_stride) <= abs(right.batch[0])):
            # Sums of pairs of vectors: the innermost axis of the batch takes the place of columns.
            left = left._replace(line_stride=left.batch[0], batch=(*left.batch[1:], 0))
            right = right._replace(line_stride=right.batch[0], batch=(*right.batch[1:], 0))
            shape = Shape(1, size, shape.inner, (*shape.sizes[1:], 1))
            grid = (-(-size // group), 1)
            return DirectPlan(shape, left, right, False, "PAIRED", 1, 1, grid, 512, MOST_EACH)
    more = right if shape.columns >= shape.rows else left
    contiguous = abs(more.inner_stride) < abs(more.line_stride) or more.lines == 1
    if along and contiguous and min(shape.rows, shape.columns) <= 4:
        swapped = shape.columns > shape.rows
    else:
        along = False
        swapped = shape.rows > shape.columns
    if swapped:
        left, right = right, left
        shape = shape._replace(rows=shape.columns, columns=shape.rows)
    if along:
        rows = 4 if shape.rows >= 4 * way.busy else 1
        grid = (shape.columns, -(-shape.rows // rows))
        most = MOST_EACH * group
        return DirectPlan(shape, left, right, swapped, "ALONG", rows, 1, grid, 4096, most)
    rows = 1 if shape.rows <= THIN else 4
    columns = 4 if rows == 1 else 1
    grid = (-(-shape.columns // (columns * group)), -(-shape.rows // rows))
    return DirectPlan(shape, left, right, swapped, "", rows, columns, grid, 256, MOST_EACH)


def shared_depth(kind: Kind) -> int:
    """How deep tiles are, so that two of them fit the 16 KiB that every device has."""
    return 8 if KINDS[kind].size == 16 else 16


def segments_of(inner: int, groups: int, way: Way, least: int, most: int) -> tuple[int, int]:
    """How many segments to divide `inner` into, and their span: neither too long nor too short."""
    wanted = min(-(-way.busy // groups), inner // least)
    span = -(-inner // max(1, -(-inner // most), wanted))
    return -(-inner // span), span


def three(values: tuple[int, ...], fill: int) -> tuple[int, int, int]:
    first, second, third = (*values, fill, fill, fill)[:3]
    return first, second, third


def defines_of(kind: Kind, int64: bool, defines: dict[str, Any]) -> dict[str, Any]:
    every = {"KIND": KINDS[kind].code, **defines}
    if kind == "U64" and int64:
        every["INT64"] = 1
    return every


def every_variant() -> Iterator[tuple[str, dict[str, Any]]]:
    """The shaders and defines of every product on known devices."""
    for kind in KINDS:
        for int64 in (False, True) if kind == "U64" else (False,):
            for shader, defines in _variants(kind):
                yield shader, defines_of(kind, int64, defines)


def _variants(kind: Kind) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "product_finish", {}
    yield "product_shared", {"DEPTH": shared_depth(kind)}
    modes = (("", 4, 1), ("", 1, 4), ("ALONG", 4, 1), ("ALONG", 1, 1), ("PAIRED", 1, 1))
    for texels in ({"TEXELS": 1}, {}):
        yield "product_pack", {**texels}
        for columns in (2, 4):
            yield "product_lanes", {"COLUMNS": columns, **texels}
        for mode, rows, columns in modes:
            made: dict[str, Any] = {"ROWS": rows, "COLUMNS": columns}
            if mode:
                made[mode] = 1
            yield "product_direct", {**made, **texels}
            if mode == "ALONG" and not texels:
                yield "product_direct", {**made, "TREE": 1}
