"""Everything that reads weights: products with matrices, and rows of them.

Weights stay as they are in the file, and are decoded where they are used (shaders/blocks.glsl).
How the work is laid out depends on the device (shaders/product.comp): a subgroup for a few rows on
a GPU; on lavapipe the same, but through uniform buffers, which it reads several times as fast.
Those hold 64 KiB at most, so a matrix is bound in windows, a dozen to a launch.

Nothing here depends on values: all of it can be recorded in a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from penstock.llm import kernels
from penstock.llm.kernels import Blocks
from penstock.llm.weights import Piece, Weight


class Products:
    """The products of one device, each kernel made when it is first needed.

    `way` forces how products are computed: one of `penstock.llm.kernels.WAYS`. Where "windowed"
    cannot be (rows that are too long, or matrices that are too small), "subgroup" takes its place.
    """

    def __init__(self, device: ps.Device, *, way: str | None = None) -> None:
        if way is not None and way not in kernels.WAYS:
            raise ps.InvalidValue(f"way={way!r}; choose one of {', '.join(kernels.WAYS)}")
        self.device = device
        limits: Any = device.info.limits
        self._uniform_alignment: int = limits["uniform_alignment"]
        self._uniform_range: int = limits["uniform_range"]
        self._subgroup_size: int = limits["subgroup_size"]
        self._counts_turns = device.info.kind == "cpu"
        self.way = way or _best_way(device)
        self._how = kernels.way(self.way, self._subgroup_size)
        self._otherwise = (
            kernels.way("subgroup", self._subgroup_size) if self._how.window else self._how
        )
        self._kernel = kernels.Compiled(device)
        self._parts: dict[tuple[int, ...], tuple[Piece, list[_Part]]] = {}  # piece kept, for its id
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
        stream: ps.Stream | None = None,
    ) -> None:
        """y[t, r] = the sum of weight[r, c] * x[t, c] over c, plus bias[r], for t < count.

        With `add`, it is added to what y has.
        """
        _check_kind(weight)
        _check_array("x", x, count, weight.columns, exactly=True)
        stride = _check_array("y", y, count, weight.rows)
        if bias is not None:
            _check_bias(bias, weight)
        for piece in weight.pieces:
            through, rest = self._split(weight, piece)
            if through is not None:
                self._through_windows(weight, through, x, y, count, stride, add, stream)
            if rest is not None:
                self._at_once(weight, rest, x, y, count, stride, add, stream)
        if bias is not None:
            self._add_bias(bias, y, count, stride, stream)

    def embed(
        self,
        weight: Weight,
        tokens: ps.Array,
        y: ps.Array,
        count: int,
        *,
        stream: ps.Stream | None = None,
    ) -> None:
        """y[t] = the row of the weight with the number tokens[t], for t < count.

        Decoded exactly as the reference decoder does. A number that no row has gives zeros.
        """
        _check_kind(weight)
        if tokens.dtype not in (np.uint32, np.int32):
            raise ps.DtypeMismatch(f"embed: tokens must be uint32 or int32, not {tokens.dtype}")
        if tokens.size < count:
            raise ps.ShapeMismatch(f"embed: {count} tokens of an array that has {tokens.size}")
        stride = _check_array("y", y, count, weight.columns)
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
                groups=(width, count), stream=stream,
            )  # fmt: skip

    def gated(
        self,
        gate: Weight,
        up: Weight,
        x: ps.Array,
        y: ps.Array,
        count: int,
        *,
        stream: ps.Stream | None = None,
    ) -> None:
        """y = silu(gate · x) * (up · x), for count tokens."""
        if (gate.rows, gate.columns) != (up.rows, up.columns):
            raise ps.ShapeMismatch(
                f"gated: {gate.name!r} is {gate.rows} × {gate.columns}, "
                f"{up.name!r} is {up.rows} × {up.columns}"
            )
        stride = _check_array("y", y, count, gate.rows)
        between = self._room(count, up.rows)
        self.multiply(gate, x, y, count, stream=stream)
        self.multiply(up, x, between, count, stream=stream)
        kernel = self._kernel(kernels.gating())
        groups = (-(-gate.rows // kernel.local_size[0]), count)
        kernel(up=between, y=y, rows=gate.rows, stride=stride, groups=groups, stream=stream)

    # How.

    def _split(self, weight: Weight, piece: Piece) -> tuple[Piece | None, Piece | None]:
        """The rows of a piece that windows can show, and the others.

        Where they fit at all, windows show all rows but perhaps the last: a window begins where
        uniform buffers may, and is always of the same size, so that it may not reach the very end.
        """
        how, step = self._how, self._uniform_alignment // 4
        blocks = kernels.blocks_of(weight.kind, how.steps)
        pitch = blocks.pitch(weight.columns)
        fits = (
            how.window > 0
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

    def _at_once(
        self, weight: Weight, piece: Piece, x: ps.Array, y: ps.Array, count: int, stride: int,
        add: bool, stream: ps.Stream | None,
    ) -> None:  # fmt: skip
        """One launch for all rows and tokens; of rows that are too long, one for each part."""
        how = self._otherwise
        blocks = kernels.blocks_of(weight.kind, how.steps)
        tokens = how.tokens(count)
        units = weight.columns // blocks.unit
        each = kernels.units_each(weight.kind, how, tokens) if self._counts_turns else units
        parts = _cut_units(units, each)
        rows = how.rows(weight.kind, tokens)
        span = -(-piece.rows // rows)
        in_group = max(1, how.group_size // how.lanes)
        for part in parts:
            kernel = self._kernel(
                kernels.product(
                    weight.kind, how, tokens, aligned=_is_aligned(weight, piece, blocks),
                    vectors=weight.columns % blocks.unit == 0, columns=weight.columns,
                    add=add or part is not parts[0], cut=len(parts) > 1,
                )
            )  # fmt: skip
            kernel(
                words=piece.words, x=x, y=y, pitch=blocks.pitch(weight.columns), rows=piece.rows,
                span=span, units=units, columns=weight.columns, tokens=count, stride=stride,
                place=piece.row, begin0=piece.first, **part,
                groups=(-(-span // in_group), -(-count // tokens)), stream=stream,
            )  # fmt: skip

    def _through_windows(
        self, weight: Weight, piece: Piece, x: ps.Array, y: ps.Array, count: int, stride: int,
        add: bool, stream: ps.Stream | None,
    ) -> None:  # fmt: skip
        """A launch for as many rows as the windows hold, and as many tokens as a lane takes."""
        how = self._how
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
            # Where there are fewer tokens than a lane takes, the last one stands in, unwritten.
            numbers = [done + min(n, left - 1) for n in range(tokens)]
            inputs: dict[str, Any] = {
                f"x{n}": row_of_x[number * weight.columns : (number + 1) * weight.columns]
                for n, number in enumerate(numbers)
            }
            windows = how.rows(weight.kind, tokens)
            for part in self._windows(piece, pitch, windows):
                kernel(
                    **part.words, **part.begin, **inputs, y=y, pitch=pitch, rows=part.rows,
                    span=part.span, units=weight.columns // blocks.unit, columns=weight.columns,
                    tokens=left, stride=stride, place=done * stride + part.row,
                    groups=-(-part.span // in_group), stream=stream,
                )  # fmt: skip

    def _windows(self, piece: Piece, pitch: int, windows: int) -> list[_Part]:
        """The piece in parts, made once: slicing takes longer than recording a launch."""
        key = (id(piece.words), piece.first, piece.row, piece.rows, windows)
        if key not in self._parts:
            self._parts[key] = piece, list(self._cut(piece, pitch, windows, self._how.window))
        return self._parts[key][1]

    def _cut(self, piece: Piece, pitch: int, windows: int, size: int) -> Iterator[_Part]:
        """The piece in as few parts as can be, each of about the same number of rows."""
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

    def _add_bias(
        self, bias: Weight, y: ps.Array, count: int, stride: int, stream: ps.Stream | None
    ) -> None:
        (piece,) = bias.pieces
        aligned = piece.first % 4 == 0
        kernel = self._kernel(kernels.addition(bias.kind, aligned=aligned))
        groups = (-(-bias.columns // kernel.local_size[0]), count)
        kernel(
            words=piece.words, y=y, begin=piece.first, rows=bias.columns, stride=stride,
            groups=groups, stream=stream,
        )  # fmt: skip

    def _room(self, count: int, rows: int) -> ps.Array:
        """Memory for what comes between two launches. Graphs keep what they were recorded with."""
        if self._between is None or self._between.size < count * rows:
            self._between = self.device.empty(count * rows, role="scratch", name="between products")
        return self._between[: count * rows].reshape(count, rows)


class _Part(NamedTuple):
    """Rows that one launch can take, and where they are."""

    words: dict[str, Any]  # arrays, by the names of arguments
    begin: dict[str, Any]  # the byte of each window at which its first row begins, likewise
    row: int
    rows: int
    span: int  # rows from one window to the next


def _cut_units(units: int, each: int) -> list[dict[str, Any]]:
    """The parts of a row of `units` units, as arguments; a single part takes none."""
    if units <= each:
        return [{}]
    return [{"from_unit": at, "to_unit": min(at + each, units)} for at in range(0, units, each)]


def _best_way(device: ps.Device) -> str:
    """What suits a device: on CPU drivers no shared memory and no barriers."""
    has = device.info.features
    adds = "subgroupArithmetic" in has
    if device.info.kind != "cpu":
        return "subgroup" if adds else "shared"
    limits: Any = device.info.limits
    bindable = limits["uniform_range"] >= 1 << 16 and limits["subgroup_size"] >= 8
    return "windowed" if adds and bindable and "scalarBlockLayout" in has else "alone"


def _is_aligned(weight: Weight, piece: Piece, blocks: Blocks) -> bool:
    """Whether all that is read as words is at whole words."""
    whole = piece.first % 4 == 0 and blocks.pitch(weight.columns) % 4 == 0
    return whole and kernels.blocks_are_words(weight.kind)


# What is checked before anything is launched.


def _check_kind(weight: Weight) -> None:
    if weight.kind not in kernels.KINDS:
        raise ps.Unsupported(
            f"{weight.name!r} is of kind {weight.kind}; there are {', '.join(kernels.KINDS)}"
        )
    block = kernels.blocks_of(weight.kind, 1).columns
    if weight.columns % block:
        raise ps.ShapeMismatch(
            f"{weight.name!r} has {weight.columns} columns; {weight.kind} has blocks of {block}"
        )


def _check_array(name: str, array: ps.Array, count: int, width: int, exactly: bool = False) -> int:
    """An activation: float32 with a row for each token. The distance of its rows."""
    if array.dtype != np.float32:
        raise ps.DtypeMismatch(f"{name} must be float32, not {array.dtype}")
    if count < 1:
        raise ps.InvalidValue(f"a product of {count} tokens; there must be one at least")
    distance = array.shape[-1] if array.ndim > 1 else width
    if distance < width or (exactly and distance != width) or array.size < count * distance:
        raise ps.ShapeMismatch(
            f"{name} has the shape {array.shape}; {count} rows of {width} were expected"
        )
    return distance


def _check_bias(bias: Weight, weight: Weight) -> None:
    if bias.kind not in kernels.PLAIN or len(bias.pieces) != 1:
        raise ps.Unsupported(
            f"the bias {bias.name!r} is of kind {bias.kind}, in {len(bias.pieces)} pieces; it can "
            f"be {', '.join(kernels.PLAIN)}, in one"
        )
    if (bias.rows, bias.columns) != (1, weight.rows):
        raise ps.ShapeMismatch(
            f"the bias {bias.name!r} is {bias.rows} × {bias.columns}; {weight.name!r} has "
            f"{weight.rows} rows"
        )
