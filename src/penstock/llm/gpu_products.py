"""Launches of the products for GPUs: the ways "vector", "tiles" and "packed" (see gpu_kernels)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from penstock.llm import gpu_kernels, kernels
from penstock.llm.compiling import Compiled
from penstock.llm.gpu_kernels import SCALED
from penstock.llm.kernels import Shader, Way
from penstock.llm.kinds import PLAIN
from penstock.llm.routing import Routed
from penstock.llm.weights import Piece, Weight


class GpuProducts:
    """The products of one device that take the ways for GPUs."""

    def __init__(self, device: ps.Device, compiled: Compiled) -> None:
        limits: Any = device.info.limits
        self._device = device
        self._counts_turns = device.info.kind == "cpu"
        self._adds = "subgroupArithmetic" in device.info.features and limits["subgroup_size"] >= 4
        self._most_groups: int = limits["group_count"][0]
        self._vector = kernels.way("vector", limits["subgroup_size"])
        self._kernel = compiled
        self._room: _Rounded | None = None
        self._shared = _Shared()

    def fits(self, how: Way, weight: Weight, count: int) -> bool:
        """Whether units cover the columns, and a CPU driver's limit on iterations holds."""
        kind, columns = weight.kind, weight.columns
        taken = self._taken(how, count)
        if columns % kernels.blocks_of(kind, taken.steps).unit:
            return False
        if taken.name == "tiles":
            turns = gpu_kernels.tiles_turns(columns)
        else:
            turns = gpu_kernels.vector_turns(kind, taken, columns)
        return turns <= kernels.MOST_TURNS or not self._counts_turns

    @contextlib.contextmanager
    def same_input(self) -> Iterator[None]:
        """Products of this thread in the block may share the rounding of an x, if it stays."""
        shared = self._shared
        shared.allowed, shared.last = True, None
        try:
            yield
        finally:
            shared.allowed, shared.last = False, None

    def inputs(self, how: Way, weight: Weight, x: ps.Array, count: int) -> dict[str, Any]:
        """Return the arguments that stand for x in `multiply`; rounds it for the way "packed"."""
        if not _is_packed(how, weight):
            return {"x": x}
        shared = self._shared
        if shared.last is None or shared.last[0] is not x or shared.last[1] != count:
            made = self._rounded(x, count, weight.columns)
            shared.last = (x, count, made)
        room = shared.last[2]
        if not shared.allowed:
            shared.last = None
        return {"x": room.bytes, "factors": room.factors}

    def _rounded(self, x: ps.Array, count: int, columns: int) -> _Rounded:
        """Round x to 8 bits, in scratch. A graph keeps the arrays that it recorded."""
        room, size = self._room, count * columns
        if room is None or room.bytes.size < size // 4:
            room = self._room = _Rounded(
                self._device.empty(size // 4, np.int32, role="scratch", name="x in bytes"),
                self._device.empty((size // SCALED, 2), role="scratch", name="factors of x"),
            )
        self._kernel(gpu_kernels.quantizing())(
            x=x, bytes=room.bytes, factors=room.factors, columns=columns,
            groups=(-(-columns // 256), count),
        )  # fmt: skip
        return room

    def multiply(
        self, how: Way, weight: Weight, piece: Piece, inputs: dict[str, Any], y: ps.Array,
        count: int, stride: int, add: bool, aligned: bool, routed: Routed | None = None,
    ) -> None:  # fmt: skip
        """Compute the rows of a piece, as `Products` does those of a weight."""
        taken = self._taken(how, count)
        shader, rows, tokens = self._shader(how, taken, weight, count, aligned, routed is not None)
        experts = {} if routed is None else routed.arguments(piece, tokens)
        groups = -(-count // tokens) if routed is None else routed.groups(tokens)
        blocks = kernels.blocks_of(weight.kind, taken.steps)
        pitch = blocks.pitch(weight.columns)
        kernel = self._kernel(shader)
        for part in _cut_rows(piece, pitch, rows * self._most_groups):
            kernel(
                words=part.words, **inputs, y=y, pitch=pitch, rows=part.rows,
                units=weight.columns // blocks.unit, columns=weight.columns, tokens=count,
                stride=stride, place=part.row, begin=part.first, add=int(add), **experts,
                groups=(-(-part.rows // rows), groups),
            )  # fmt: skip

    def _shader(
        self, how: Way, taken: Way, weight: Weight, count: int, aligned: bool, experts: bool
    ) -> tuple[Shader, int, int]:
        """Return a shader, and how many rows and tokens a workgroup of it takes."""
        kind, packed = weight.kind, _is_packed(how, weight)
        tokens = taken.tokens(count)
        if taken.name == "tiles":
            if packed:
                tokens = gpu_kernels.packed_tile(kind, count)
            make = gpu_kernels.packed_tiles if packed else gpu_kernels.tiles
            shader = make(kind, tokens, aligned=aligned, experts=experts)
            return shader, gpu_kernels.TILE_ROWS, tokens
        make_one = gpu_kernels.packed_vector if packed else gpu_kernels.vector
        rows = taken.rows(kind, tokens)
        if packed:
            rows = gpu_kernels.packed_rows(kind, taken, tokens)
        return make_one(kind, taken, tokens, aligned=aligned, experts=experts), rows, tokens

    def _taken(self, how: Way, count: int) -> Way:
        """Return "vector" or "tiles", whichever suits the number of tokens."""
        if how.name == "vector" or (self._adds and count <= gpu_kernels.FEW):
            return self._vector
        return gpu_kernels.tile_way()


class _Rounded(NamedTuple):
    """Activations in 8 bits: see shaders/quantize.comp."""

    bytes: ps.Array
    factors: ps.Array


class _Shared(threading.local):
    """What `same_input` shares. Threads record the networks of a model at the same time."""

    allowed: bool = False
    last: tuple[ps.Array, int, _Rounded] | None = None


def _is_packed(how: Way, weight: Weight) -> bool:
    return how.name == "packed" and weight.kind not in PLAIN


def _cut_rows(piece: Piece, pitch: int, most: int) -> Iterator[Piece]:
    """Cut a piece into parts of at most `most` rows: as many as one launch has groups for."""
    for row in range(0, piece.rows, most):
        yield Piece(
            piece.words, piece.first + row * pitch, piece.row + row, min(most, piece.rows - row)
        )
