"""How the kernels that read weights are compiled: files, defines and specialization constants.

This is the one place that fixes, for the host and the device, the quantized blocks of each kind,
and the tile sizes of each way to compute a product (shaders/product.comp).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product as product_of
from pathlib import Path
from typing import Any, NamedTuple

import penstock as ps
from penstock.llm.kinds import KINDS, PLAIN

DIRECTORY = Path(__file__).with_name("shaders")

#: Limit on the loop iterations of an invocation on a CPU driver. lavapipe ends all loops of
#: an invocation after 65,535 iterations in total, and counts one extra for each loop.
MOST_TURNS = 60_000

Define = str | int | float


class Shader(NamedTuple):
    """One compilation: a file, its defines and its specialization constants."""

    name: str
    path: Path
    defines: Mapping[str, Define]
    constants: Mapping[str, int]

    @classmethod
    def of(
        cls, name: str, file: str, defines: Mapping[str, Define], constants: Mapping[str, int]
    ) -> Shader:
        """The shader in `file`.comp of this package."""
        return cls(name, DIRECTORY / f"{file}.comp", defines, constants)


class Blocks(NamedTuple):
    """The block and unit sizes of a kind; blocks.glsl defines both terms."""

    columns: int  # per block
    bytes: int  # per block
    unit: int  # columns per unit

    def pitch(self, columns: int) -> int:
        """Bytes per row."""
        return columns // self.columns * self.bytes


def blocks_of(kind: str, steps: int) -> Blocks:
    """The blocks of a kind; `steps` sets the unit of F32, F16 and BF16."""
    return Blocks(*KINDS[kind], 4 * steps if kind in PLAIN else _UNITS.get(kind, 32))


#: Columns per unit, where that is not a block of 32.
_UNITS = {"Q4_K": 64, "Q5_K": 64, "Q6_K": 128, "Q2_K": 128, "Q3_K": 128}


class Way(NamedTuple):
    """A strategy to compute products (WAY in product.comp), and its tile sizes."""

    name: str
    group_size: int
    tiles: Mapping[int, int]  # tokens per lane: most rows per lane
    steps: int  # STEPS of blocks.glsl for F32, F16 and BF16
    lanes: int  # that share a row; ways over subgroups need at least as many in a subgroup
    window: int = 0  # words of a uniform window; 0: no windows

    def tokens(self, count: int) -> int:
        """Return how many tokens a lane takes if there are `count`."""
        return next((n for n in self.tiles if n >= count), max(self.tiles))

    def rows(self, kind: str, tokens: int) -> int:
        """Return how many rows of a matrix a lane takes."""
        most = 32
        if self.window:
            most = _MOST_ROWS.get(kind, 32)
        elif self.name == "vector" and kind in ("Q6_K", "Q2_K", "Q3_K"):
            most = 2  # four would take 128 registers of an AMD GPU, and leave it half empty
        return min(self.tiles[tokens], most)


#: Most rows per lane. On lavapipe, kinds with longer decoding code are faster with fewer.
_MOST_ROWS = {
    "Q5_0": 8, "Q5_1": 8, "Q5_K": 8, "Q6_K": 4, "Q2_K": 4, "Q3_K": 4, "IQ4_NL": 4, "IQ4_XS": 4,
    "MXFP4": 4,
}  # fmt: skip


def way(name: str, subgroup_size: int) -> Way:
    """Return the way of that name, for a device with subgroups of that size."""
    if name == "alone":
        return Way(name, 8, {1: 2, 4: 2}, steps=8, lanes=1)
    if name == "subgroup":
        size = max(subgroup_size, 32)
        return Way(name, size, {1: 4, 4: 2}, steps=2, lanes=subgroup_size)
    if name == "shared":
        return Way(name, 64, {1: 2, 4: 2}, steps=2, lanes=64)
    if name == "windowed":
        return Way(name, 32, {1: 12, 4: 8, 8: 4}, steps=2, lanes=subgroup_size, window=1 << 14)
    if name == "rows":
        return Way(name, subgroup_size, {1: 4, 2: 4, 4: 4, 8: 4, 16: 4}, steps=8, lanes=1)
    if name in GPU_WAYS:
        if name == "tiles":
            return Way(name, 128, {16: 4, 32: 4, 64: 8}, steps=8, lanes=1)
        size = max(subgroup_size, 32)
        return Way(name, size, {1: 4, 2: 4, 4: 2, 8: 2}, steps=2, lanes=size)
    raise KeyError(name)


#: Those that `penstock.llm.gpu_kernels` describes.
GPU_WAYS = ("vector", "tiles", "packed")
WAYS = ("alone", "subgroup", "shared", "windowed", "rows", *GPU_WAYS)


def product(
    kind: str, how: Way, tokens: int, *, aligned: bool, vectors: bool, add: bool, columns: int,
    cut: bool = False, experts: bool = False,
) -> Shader:  # fmt: skip
    """The shader that multiplies a matrix of that kind with a batch of tokens.

    With `cut`, a launch takes only some units of each row: see `units_each`. With `experts`, tokens
    come in tiles, each for one matrix of several (shaders/share.glsl).
    """
    rows = how.rows(kind, tokens)
    defines: dict[str, Define] = {
        "WAY": how.name.upper(),
        "KIND": kind,
        "ALIGNED": int(aligned),
        "ROWS": rows,
        "TOKENS": tokens,
        "OUTPUTS": rows * tokens,
        "UNROLL": _unroll(kind, how, tokens),
    }
    if kind in PLAIN:
        defines["STEPS"] = how.steps
    if how.name in ("subgroup", "windowed"):
        defines["WRITERS"] = min(how.lanes, 8)
    if how.window:
        defines["WINDOW"] = how.window
        defines["COLUMNS"] = columns
    elif vectors:
        defines["VECTORS"] = 1
    if add:
        defines["ADD"] = 1
    if cut:
        defines["CUT"] = 1
    if experts:
        defines["EXPERTS"] = 1
    name = f"product {kind} {how.name} {rows}x{tokens}" + " experts" * experts
    return Shader.of(name, "product", defines, {"local_size_x": how.group_size})


def takes_rows(device: ps.Device) -> bool:
    """Whether kernels with a lane per row are possible, and texel buffers hold most matrices."""
    info = device.info
    limits: Any = info.limits
    return (
        limits["subgroup_size"] >= 8
        and "subgroupShuffle" in info.features
        and limits.get("texel_elements", 0) >= 1 << 22
        and {"r32ui", "rgba32f"} <= set(info.texel_formats)
    )


def product_by_rows(
    kind: str,
    how: Way,
    tokens: int,
    *,
    aligned: bool,
    wide: int = 0,
    experts: bool = False,
) -> Shader:
    """The shader that multiplies with a lane for each row: the way "rows".

    If `wide` is not 0, it reads 16 bytes of weights at a time (WIDE of shaders/blocks.glsl): see
    `wide_reads`. `experts` as in `product`.
    """
    rows, (steps, quads) = how.rows(kind, tokens), steps_of(kind, how)
    parts, unroll = _parts_and_unroll(kind, how, tokens)
    defines: dict[str, Define] = {
        "KIND": kind,
        "ALIGNED": int(aligned),
        "ROWS": rows,
        "TOKENS": tokens,
        "OUTPUTS": rows * tokens,
        "PARTS": parts,
        "UNROLL": unroll,
        "TURNS": steps // (parts * unroll),
        "LOADS": max(1, tokens // 8),
        "LOADED": min(tokens, 8),
        "TILES": quads * max(1, tokens // 8),
    }
    if wide:
        defines["WIDE"] = wide
    if tokens == 1 and parts == steps and kind not in PLAIN:
        dots = quads * _GROUPS.get(kind, 1)
        defines |= {"FACTORED": 1, "DOTS": rows * dots, "DOTS_EACH": dots}
    if experts:
        defines["EXPERTS"] = 1
    name = f"product {kind} {how.name} {rows}x{tokens}"
    name += " experts" * experts + " wide" * bool(wide)
    return Shader.of(name, "product_rows", defines, {"local_size_x": how.group_size})


def wide_reads(kind: str, how: Way, tokens: int, *starts: int) -> int:
    """WIDE of shaders/blocks.glsl for rows that begin at multiples of `starts` bytes; 0: none.

    The compiler must know which of the words read it uses. So a turn takes whole units, or, where
    rows and blocks begin at multiples of 16 bytes, a multiple of four words.
    """
    blocks = blocks_of(kind, how.steps)
    whole = blocks.bytes if blocks.columns > 1 else blocks.bytes * blocks.unit
    wide = 1 if any(start % 16 for start in (*starts, whole)) else 16
    parts, unroll = _parts_and_unroll(kind, how, tokens)
    words = {"F32": 4, "F16": 2, "BF16": 2}.get(kind, 1)  # of a step
    steps = parts * unroll
    known = steps == steps_of(kind, how)[0] or (wide == 16 and steps * words % 4 == 0)
    return wide if known else 0


def _parts_and_unroll(kind: str, how: Way, tokens: int) -> tuple[int, int]:
    """PARTS and UNROLL of product_rows.comp. A turn takes 8 quads of columns of few tokens.

    Of many tokens it takes 2: longer code is not faster, and takes longer to compile.
    """
    steps, quads = steps_of(kind, how)
    parts = min(max(1, 8 // tokens), steps)
    return parts, min(max(1, (8 if tokens <= 4 else 2) // (quads * parts)), steps // parts)


def turns_by_rows(kind: str, how: Way, tokens: int, columns: int) -> int:
    """Return how many iterations the loops of product_rows.comp take."""
    steps, _ = steps_of(kind, how)
    parts, unroll = _parts_and_unroll(kind, how, tokens)
    return (steps // (parts * unroll) + 1) * (columns // blocks_of(kind, how.steps).unit) + 1


def units_each(kind: str, how: Way, tokens: int) -> int:
    """Return how many units of a row a launch may take within `MOST_TURNS` iterations.

    Counts the loops of product.comp as if the compiler unrolled none.
    """
    steps, quads = steps_of(kind, how)
    unroll = _unroll(kind, how, tokens)
    row = quads + 1 + quads * (tokens + 1)
    turns = 1 + (steps // unroll) * (2 + unroll) + 1
    turns += steps * (quads + 1 + how.rows(kind, tokens) * row)
    return MOST_TURNS // turns * how.lanes


#: By kind: STEPS and QUADS of blocks.glsl.
_STEPS = {
    "Q8_0": (8, 1), "Q4_0": (4, 2), "Q4_1": (4, 2), "Q5_0": (4, 2), "Q5_1": (4, 2),
    "Q4_K": (8, 2), "Q5_K": (8, 2), "Q6_K": (8, 4), "Q2_K": (8, 4), "Q3_K": (8, 4),
    "IQ4_NL": (4, 2), "IQ4_XS": (4, 2), "MXFP4": (4, 2),
}  # fmt: skip


#: By kind: GROUPS of blocks.glsl, if not 1.
_GROUPS = {"Q6_K": 2, "Q2_K": 2, "Q3_K": 2}


def steps_of(kind: str, how: Way) -> tuple[int, int]:
    """STEPS and QUADS of blocks.glsl."""
    return (how.steps, 1) if kind in PLAIN else _STEPS[kind]


def _unroll(kind: str, how: Way, tokens: int) -> int:
    """Return how many steps to unroll, as measured on lavapipe: both loops and long code cost."""
    if how.name != "windowed":
        return 1
    return 2 if kind in PLAIN or (kind == "Q8_0" and tokens == 1) else 1


def embedding(kind: str, *, aligned: bool) -> Shader:
    """The shader that looks up rows of a matrix by token id."""
    defines: dict[str, Define] = {"KIND": kind, "ALIGNED": int(aligned)}
    return Shader.of(f"embed {kind}", "embed", defines, {"local_size_x": 32})


def addition(kind: str, *, aligned: bool) -> Shader:
    """The shader that adds an F32, F16 or BF16 vector to every row."""
    defines: dict[str, Define] = {"KIND": kind, "ALIGNED": int(aligned)}
    return Shader.of(f"bias {kind}", "bias", defines, {"local_size_x": 64})


def gating() -> Shader:
    """The shader for silu of one array times another."""
    return Shader.of("gate", "gate", {}, {"local_size_x": 64})


def blocks_are_words(kind: str) -> bool:
    """Whether all blocks are 4-byte aligned if the first one is."""
    return kind in PLAIN or KINDS[kind].nbytes % 4 == 0


def weight_kernels(subgroup_size: int) -> Iterable[Shader]:
    """Every shader of this module as a model uses it, for subgroups of that size."""
    by_rows = way("rows", subgroup_size)
    for kind in KINDS:
        for tokens, experts in product_of(by_rows.tiles, (False, True)):
            yield product_by_rows(
                kind, by_rows, tokens, aligned=blocks_are_words(kind),
                wide=wide_reads(kind, by_rows, tokens), experts=experts,
            )  # fmt: skip
    for how in (way(name, subgroup_size) for name in WAYS if name not in ("rows", *GPU_WAYS)):
        for kind in KINDS:
            for tokens in (min(how.tiles), max(how.tiles)):
                yield product(
                    kind, how, tokens, aligned=blocks_are_words(kind), vectors=True, add=True,
                    columns=1024,
                )  # fmt: skip
                if not how.window:
                    yield product(
                        kind, how, tokens, aligned=blocks_are_words(kind), vectors=True, add=False,
                        columns=1024, experts=True,
                    )  # fmt: skip
    for kind in KINDS:
        yield embedding(kind, aligned=blocks_are_words(kind))
    for kind in PLAIN:
        yield addition(kind, aligned=True)
    yield gating()
