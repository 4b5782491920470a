"""Matrix products with weights, and embedding lookups.

Weights keep their file layout; kernels decode quantized blocks as they read them
(shaders/blocks.glsl). The mapping of work to invocations depends on the device
(shaders/product.comp): on a GPU a workgroup takes a few rows, or a tile of rows and tokens in
shared memory (`gpu_products`). On lavapipe a lane takes a few rows (shaders/product_rows.comp), and
reads weights and activations through texel buffers. Where these are too small, a subgroup reads
them through uniform buffers, which hold 64 KiB at most: there a matrix is bound in windows, a dozen
per launch.

No launch depends on values, so a graph can record all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from penstock.llm import kernels
from penstock.llm.compiling import Compiled
from penstock.llm.gpu_products import GpuProducts
from penstock.llm.kernels import Blocks, Way
from penstock.llm.product_checks import check_array, check_bias, check_kind, check_stack
from penstock.llm.routing import Routed
from penstock.llm.weights import Piece, Weight


class Products:
    """Launches the products of one device; compiles each kernel on first use.

    `way` is the strategy, one of `penstock.llm.kernels.WAYS`, by default the one that the device's
    limits suggest; `batch_way` is that for several tokens, if it differs. Where "rows", "windowed"
    or a way for GPUs is impossible (rows that are too long or no whole units, or, for windows,
    matrices that are too small), "subgroup" takes its place. "packed" multiplies with F32, F16 and
    BF16 as "tiles" does.
    """

    def __init__(
        self,
        device: ps.Device,
        *,
        way: str | None = None,
        batch_way: str | None = None,
        compiled: Compiled | None = None,
    ) -> None:
        for name in (way, batch_way):
            if name is not None and name not in kernels.WAYS:
                raise ps.InvalidValue(f"way={name!r}; choose one of {', '.join(kernels.WAYS)}")
            if name == "packed" and "shaderIntegerDotProduct" not in device.info.features:
                raise ps.Unsupported(
                    f"way='packed': {device.info.name} has no shaderIntegerDotProduct"
                )
        self.device = device
        limits: Any = device.info.limits
        self._uniform_alignment: int = limits["uniform_alignment"]
        self._uniform_range: int = limits["uniform_range"]
        self._subgroup_size: int = limits["subgroup_size"]
        self._texel_elements: int = limits.get("texel_elements", 0)
        self._texel_alignment: int = limits.get("texel_alignment", 1)
        self._counts_turns = device.info.kind == "cpu"
        self._takes_rows = kernels.takes_rows(device)
        self._takes_wide = "rgba32ui" in device.info.texel_formats
        self.way = way or ways_for(device)[0]
        self.batch_way = batch_way or self.way
        self._one, self._several = (
            kernels.way(name, self._subgroup_size) for name in (self.way, self.batch_way)
        )
        self._rows = kernels.way("rows", self._subgroup_size)
        self._kernel = compiled or Compiled(device)
        self._for_gpus = GpuProducts(device, self._kernel)
        # Holds each piece, so that the id in its key stays unique.
        self._parts: dict[tuple[int, ...], tuple[Piece, list[_Part]]] = {}
        self._views: dict[tuple[int, ...], tuple[Piece, list[Piece]]] = {}
        self._between: ps.Array | None = None

    def multiply(
        self,
        weight: Weight,
        x: ps.Array,
        y: ps.Array,
        count: int,
        *,
        bias: Weight | None = None,
        add: bool = False,
    ) -> None:
        """y[t, r] = the sum of weight[r, c] * x[t, c] over c, plus bias[r], for t < count.

        With `add`, the result is added to y.
        """
        check_kind(weight)
        check_array("x", x, count, weight.columns, exactly=True)
        stride = check_array("y", y, count, weight.rows)
        if bias is not None:
            check_bias(bias, weight)
        check_stack(weight, wanted=False)
        self._multiply(weight, x, y, count, stride, add)
        if bias is not None:
            self._add_bias(bias, y, count, stride)

    def multiply_experts(
        self, weight: Weight, x: ps.Array, y: ps.Array, routed: Routed, *, gather: bool
    ) -> None:
        """y[n] = the matrix of the expert of row n times a row of x, for all rows of `routed`.

        With `gather` that row is the token's, else it is x[n].
        """
        check_kind(weight)
        check_stack(weight, wanted=True)
        check_array("x", x, routed.tokens if gather else routed.rows, weight.columns, exactly=True)
        stride = check_array("y", y, routed.rows, weight.rows)
        self._multiply(weight, x, y, routed.tile, stride, False, routed.gathering(gather))

    def _multiply(
        self, weight: Weight, x: ps.Array, y: ps.Array, count: int, stride: int, add: bool,
        routed: Routed | None = None,
    ) -> None:  # fmt: skip
        """Choose a way for each piece. If `routed`, `count` is that of a tile."""
        how = self._one if count == 1 else self._several
        if routed is not None and how.window and self._takes_rows:
            how = self._rows  # windows are bound before it is known which matrices are read
        inputs = None
        if how.name in kernels.GPU_WAYS and self._for_gpus.fits(how, weight, count):
            rows = count if routed is None else routed.rows_of_x
            inputs = self._for_gpus.inputs(how, weight, x, rows)
        for piece in weight.pieces:
            if routed is not None:
                piece = replace(piece, first=0)  # matrices begin where the table says
            if inputs is not None:
                aligned = _is_aligned(weight, piece, kernels.blocks_of(weight.kind, how.steps))
                self._for_gpus.multiply(
                    how, weight, piece, inputs, y, count, stride, add, aligned, routed
                )
                continue
            if how.name == "rows" and self._fit_rows(how, weight, piece, x, count):
                self._by_rows(how, weight, piece, x, y, count, stride, add, routed)
                continue
            through, rest = self._split(how, weight, piece)
            if through is not None:
                self._through_windows(how, weight, through, x, y, count, stride, add)
            if rest is not None:
                self._at_once(how, weight, rest, x, y, count, stride, add, routed)

    def same_input(self) -> contextlib.AbstractContextManager[None]:
        """Products within this block may share what they make of x, which must not change."""
        return self._for_gpus.same_input()

    def embed(self, weight: Weight, tokens: ps.Array, y: ps.Array, count: int) -> None:
        """y[t] = row tokens[t] of the weight, for t < count.

        Values are exactly those of the reference decoder. An id without a row gives zeros.
        """
        check_kind(weight)
        if tokens.dtype not in (np.uint32, np.int32):
            raise ps.DtypeMismatch(f"embed: tokens must be uint32 or int32, not {tokens.dtype}")
        if tokens.size < count:
            raise ps.ShapeMismatch(f"embed: {count} tokens of an array that has {tokens.size}")
        stride = check_array("y", y, count, weight.columns)
        blocks = kernels.blocks_of(weight.kind, 8)
        units, rest = divmod(weight.columns, blocks.unit)
        for piece in weight.pieces:
            aligned = _is_aligned(weight, piece, blocks)
            kernel = self._kernel(kernels.embedding(weight.kind, aligned=aligned))
            width = -(-(units + rest) // kernel.local_size[0])
            kernel(
                words=piece.words, tokens=tokens, y=y, begin=piece.first,
                pitch=blocks.pitch(weight.columns), row=piece.row, rows=piece.rows,
                all_rows=weight.rows, units=units, columns=weight.columns, stride=stride,
                groups=(width, count),
            )  # fmt: skip

    def gated(self, gate: Weight, up: Weight, x: ps.Array, y: ps.Array, count: int) -> None:
        """y = silu(gate · x) * (up · x), for count tokens."""
        if (gate.rows, gate.columns) != (up.rows, up.columns):
            raise ps.ShapeMismatch(
                f"gated: {gate.name!r} is {gate.rows} × {gate.columns}, "
                f"{up.name!r} is {up.rows} × {up.columns}"
            )
        between = self._room(count, up.rows)
        with self.same_input():
            self.multiply(gate, x, y, count)
            self.multiply(up, x, between, count)
        self._gate(between, y, count)

    def gated_experts(
        self, gate: Weight, up: Weight, x: ps.Array, y: ps.Array, routed: Routed
    ) -> None:
        """The same with the matrices of each row's expert, and the row of x of its token."""
        between = self._room(routed.rows, up.rows)
        with self.same_input():
            self.multiply_experts(gate, x, y, routed, gather=True)
            self.multiply_experts(up, x, between, routed, gather=True)
        self._gate(between, y, routed.rows)

    def _gate(self, up: ps.Array, y: ps.Array, count: int) -> None:
        """y = silu(y) * up"""
        rows = up.shape[1]
        stride = check_array("y", y, count, rows)
        kernel = self._kernel(kernels.gating())
        groups = (-(-rows // kernel.local_size[0]), count)
        kernel(up=up, y=y, rows=rows, stride=stride, groups=groups)

    # Splitting products into launches.

    def _split(self, how: Way, weight: Weight, piece: Piece) -> tuple[Piece | None, Piece | None]:
        """Split a piece into the rows that windows can cover, and the rest.

        If rows fit windows at all, windows cover all but perhaps the last rows: a window starts at
        the uniform alignment and has a fixed size, so it may not reach the end of the piece.
        """
        step = self._uniform_alignment // 4
        blocks = kernels.blocks_of(weight.kind, how.steps)
        pitch = blocks.pitch(weight.columns)
        fits = (
            how.window > 0
            and piece.experts is None
            and 4 * how.window <= self._uniform_range
            and 4 * weight.columns <= self._uniform_range
            and weight.columns % step == 0
            and weight.columns % blocks.unit == 0
            and pitch + self._uniform_alignment <= 4 * how.window
            and how.window <= piece.words.size
        )
        if not fits:
            return None, piece
        end = (piece.words.size - how.window) // step * step + how.window
        rows = min(piece.rows, (4 * end - piece.first) // pitch)
        if rows == piece.rows:
            return piece, None
        words, first, row = piece.words, piece.first, piece.row
        rest = Piece(words, first + rows * pitch, row + rows, piece.rows - rows)
        return (Piece(words, first, row, rows) if rows else None), rest

    def _fit_rows(self, how: Way, weight: Weight, piece: Piece, x: ps.Array, count: int) -> bool:
        """Whether a lane can take whole rows, and texel buffers can hold a row, and x.

        Of a stack they must hold the whole piece: which of its matrices are read is not known.
        """
        kind, columns = weight.kind, weight.columns
        blocks = kernels.blocks_of(kind, how.steps)
        turns = kernels.turns_by_rows(kind, how, how.tokens(count), columns)
        return (
            self._takes_rows
            and columns % blocks.unit == 0
            and x.size % 4 == 0
            and self._in_texels(4 * x.size, 16)
            and self._in_texels(blocks.pitch(columns) + 4, 4)
            and (piece.experts is None or self._in_texels(piece.words.nbytes, 4))
            and (turns <= kernels.MOST_TURNS or not self._counts_turns)
        )

    def _in_texels(self, nbytes: int, size: int) -> bool:
        """Whether a texel buffer with texels of that size holds bytes that begin anywhere."""
        return nbytes + self._texel_alignment <= self._texel_elements * size

    def _by_rows(
        self, how: Way, weight: Weight, piece: Piece, x: ps.Array, y: ps.Array, count: int,
        stride: int, add: bool, routed: Routed | None,
    ) -> None:  # fmt: skip
        """Issue one launch for all rows and tokens, or one per view of a large matrix."""
        blocks = kernels.blocks_of(weight.kind, how.steps)
        pitch, tokens = blocks.pitch(weight.columns), how.tokens(count)
        wide = self._wide(how, weight, piece, tokens)
        shader = kernels.product_by_rows(
            weight.kind, how, tokens, aligned=_is_aligned(weight, piece, blocks), wide=wide,
            experts=routed is not None,
        )  # fmt: skip
        kernel = self._kernel(shader)
        experts = {} if routed is None else routed.arguments(piece, tokens)
        groups = -(-count // tokens) if routed is None else routed.groups(tokens)
        in_group = how.group_size * how.rows(weight.kind, tokens)
        inputs, x_first = x.texels("rgba32f")
        for view in self._texel_views(piece, pitch, wide > 0):
            kernel(
                words=view.words, x=inputs, y=y, pitch=pitch, rows=view.rows,
                units=weight.columns // blocks.unit, columns=weight.columns, tokens=count,
                stride=stride, place=view.row, begin=view.first, x_first=x_first, add=int(add),
                **experts, groups=(-(-view.rows // in_group), groups),
            )  # fmt: skip

    def _wide(self, how: Way, weight: Weight, piece: Piece, tokens: int) -> int:
        """How a kernel can read 16 bytes at a time: WIDE of blocks.glsl, or 0 if it cannot."""
        pitch = kernels.blocks_of(weight.kind, how.steps).pitch(weight.columns)
        end = piece.first + piece.rows * pitch if piece.experts is None else piece.words.nbytes
        starts = (piece.words.region.lo, self._texel_alignment)
        if not self._takes_wide or any(start % 16 for start in starts):
            return 0
        if -(-end // 16) * 16 > piece.words.nbytes:
            return 0  # the last texel is not whole
        first = piece.first if piece.experts is None else piece.experts.alignment
        return kernels.wide_reads(weight.kind, how, tokens, first, pitch)

    def _texel_views(self, piece: Piece, pitch: int, wide: bool) -> list[Piece]:
        """Cut the piece into parts that texel buffers hold; cached, like windows."""
        key = (id(piece.words), piece.first, piece.row, piece.rows, int(wide))
        if key not in self._views:
            texel, size = ("rgba32ui", 16) if wide else ("r32ui", 4)
            if piece.experts is not None:
                words, lead = piece.words.texels(texel)
                self._views[key] = piece, [Piece(words, size * lead, 0, piece.rows)]
                return self._views[key][1]
            most = (self._texel_elements * size - self._texel_alignment) // 4  # words
            each = piece.rows if piece.words.size <= most else (4 * most - 2 * size) // pitch
            views = []
            for row in range(0, piece.rows, each):
                rows = min(each, piece.rows - row)
                first = piece.first + row * pitch
                start, end = first // size * size, -(-(first + rows * pitch) // size) * size
                words, lead = piece.words[start // 4 : end // 4].texels(texel)
                views.append(Piece(words, size * lead + first - start, piece.row + row, rows))
            self._views[key] = piece, views
        return self._views[key][1]

    def _at_once(
        self, how: Way, weight: Weight, piece: Piece, x: ps.Array, y: ps.Array, count: int,
        stride: int, add: bool, routed: Routed | None,
    ) -> None:  # fmt: skip
        """Issue one launch for all rows and tokens, or one per part of rows that are too long."""
        if how.name in ("rows", "windowed", *kernels.GPU_WAYS):
            how = kernels.way("subgroup", self._subgroup_size)
        blocks = kernels.blocks_of(weight.kind, how.steps)
        tokens = how.tokens(count)
        units = weight.columns // blocks.unit
        each = kernels.units_each(weight.kind, how, tokens) if self._counts_turns else units
        parts = _cut_units(units, each)
        rows = how.rows(weight.kind, tokens)
        span = -(-piece.rows // rows)
        in_group = max(1, how.group_size // how.lanes)
        experts = {} if routed is None else routed.arguments(piece, tokens)
        groups = -(-count // tokens) if routed is None else routed.groups(tokens)
        for part in parts:
            kernel = self._kernel(
                kernels.product(
                    weight.kind, how, tokens, aligned=_is_aligned(weight, piece, blocks),
                    vectors=weight.columns % blocks.unit == 0, columns=weight.columns,
                    add=add or part is not parts[0], cut=len(parts) > 1,
                    experts=routed is not None,
                )
            )  # fmt: skip
            kernel(
                words=piece.words, x=x, y=y, pitch=blocks.pitch(weight.columns), rows=piece.rows,
                span=span, units=units, columns=weight.columns, tokens=count, stride=stride,
                place=piece.row, begin0=piece.first, **part, **experts,
                groups=(-(-span // in_group), groups),
            )  # fmt: skip

    def _through_windows(
        self, how: Way, weight: Weight, piece: Piece, x: ps.Array, y: ps.Array, count: int,
        stride: int, add: bool,
    ) -> None:  # fmt: skip
        """A launch for as many rows as the windows hold, and as many tokens as a lane takes."""
        blocks = kernels.blocks_of(weight.kind, how.steps)
        aligned = _is_aligned(weight, piece, blocks)
        pitch = blocks.pitch(weight.columns)
        in_group = how.group_size // how.lanes
        row_of_x = x.reshape(-1)
        for done in range(0, count, max(how.tiles)):
            left = min(count - done, max(how.tiles))
            tokens = how.tokens(left)
            kernel = self._kernel(
                kernels.product(
                    weight.kind, how, tokens, aligned=aligned, vectors=False, add=add,
                    columns=weight.columns,
                )
            )  # fmt: skip
            # If fewer tokens are left than a lane takes, bind the last again; its sums are dropped.
            numbers = [done + min(n, left - 1) for n in range(tokens)]
            inputs: dict[str, Any] = {
                f"x{n}": row_of_x[number * weight.columns : (number + 1) * weight.columns]
                for n, number in enumerate(numbers)
            }
            windows = how.rows(weight.kind, tokens)
            for part in self._windows(piece, pitch, windows, how.window):
                kernel(
                    **part.words, **part.begin, **inputs, y=y, pitch=pitch, rows=part.rows,
                    span=part.span, units=weight.columns // blocks.unit, columns=weight.columns,
                    tokens=left, stride=stride, place=done * stride + part.row,
                    groups=-(-part.span // in_group),
                )  # fmt: skip

    def _windows(self, piece: Piece, pitch: int, windows: int, size: int) -> list[_Part]:
        """Cut the piece into parts, and cache them: slicing costs more than recording a launch."""
        key = (id(piece.words), piece.first, piece.row, piece.rows, windows)
        if key not in self._parts:
            self._parts[key] = piece, list(self._cut(piece, pitch, windows, size))
        return self._parts[key][1]

    def _cut(self, piece: Piece, pitch: int, windows: int, size: int) -> Iterator[_Part]:
        """Cut the piece into as few parts as possible, of about equal numbers of rows."""
        in_window = (4 * size - self._uniform_alignment) // pitch
        parts = -(-piece.rows // (windows * in_window))
        most = -(-piece.rows // parts)
        for row in range(0, piece.rows, most):
            rows = min(most, piece.rows - row)
            span = -(-rows // windows)
            words: dict[str, ps.Array] = {}
            begin: dict[str, int] = {}
            for n in range(windows):
                first = piece.first + min(row + n * span, piece.rows - 1) * pitch
                start = min(first // 4, piece.words.size - size)
                start -= start % (self._uniform_alignment // 4)
                words[f"words{n}"] = piece.words[start : start + size]
                begin[f"begin{n}"] = first - 4 * start
            yield _Part(words, begin, piece.row + row, rows, span)

    def _add_bias(self, bias: Weight, y: ps.Array, count: int, stride: int) -> None:
        (piece,) = bias.pieces
        kernel = self._kernel(kernels.addition(bias.kind, aligned=piece.first % 4 == 0))
        kernel(
            words=piece.words, y=y, begin=piece.first, rows=bias.columns, stride=stride,
            groups=(-(-bias.columns // kernel.local_size[0]), count),
        )  # fmt: skip

    def _room(self, count: int, rows: int) -> ps.Array:
        """Return scratch for an intermediate result. A graph keeps the array it recorded."""
        if self._between is None or self._between.size < count * rows:
            self._between = self.device.empty(count * rows, role="scratch", name="between products")
        return self._between[: count * rows].reshape(count, rows)


class _Part(NamedTuple):
    """The rows of one windowed launch, and the arguments that locate them."""

    words: dict[str, Any]  # by argument name, the array of each window
    begin: dict[str, Any]  # by argument name, the byte of each window where its first row begins
    row: int
    rows: int
    span: int  # rows from one window to the next


def _cut_units(units: int, each: int) -> list[dict[str, Any]]:
    """Split rows of `units` units into launches: the arguments of each, empty if one suffices."""
    if units <= each:
        return [{}]
    return [{"from_unit": at, "to_unit": min(at + each, units)} for at in range(0, units, each)]


def ways_for(device: ps.Device, count: int = 1) -> list[str]:
    """Return the ways that suit a device's limits for `count` tokens, the expected fastest first.

    CPU drivers get none with shared memory or barriers, and GPUs none whose tiles are made for
    the registers of a CPU. "packed" rounds, so it is taken only where the caller names it.
    """
    has = device.info.features
    limits: Any = device.info.limits
    adds = "subgroupArithmetic" in has
    if device.info.kind != "cpu":
        tiles = ["tiles"] if count > 1 else []
        return [*tiles, "vector", "subgroup"] if adds else [*tiles, "shared"]
    rows = ["rows"] if kernels.takes_rows(device) else []
    uniform = limits["uniform_range"] >= 1 << 16 and "scalarBlockLayout" in has
    windowed = ["windowed"] if adds and uniform and limits["subgroup_size"] >= 8 else []
    return [*rows, *windowed] or ["alone"]


def _is_aligned(weight: Weight, piece: Piece, blocks: Blocks) -> bool:
    """Whether all rows and blocks begin at multiples of 4 bytes."""
    first = piece.first if piece.experts is None else piece.experts.alignment
    whole = first % 4 == 0 and blocks.pitch(weight.columns) % 4 == 0
    return whole and kernels.blocks_are_words(weight.kind)
