"""How the products for GPUs are compiled: the ways "vector", "tiles" and "packed".

"vector" (shaders/product_vector.comp) is for few tokens: a workgroup takes a few rows, its lanes
neighbouring words. "tiles" (shaders/product_tiles.comp) is for many: a workgroup decodes 64 rows
into shared memory, once for up to 64 tokens. "packed" rounds activations to 8 bits, 32 columns to
a factor (shaders/quantize.comp), and multiplies four columns at once with packed integer dot
products, in either form (shaders/packed_vector.comp, shaders/packed_tiles.comp).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from penstock.llm.kernels import Define, Shader, Way, blocks_are_words, blocks_of, steps_of, way
from penstock.llm.kinds import KINDS, PLAIN

TILE_ROWS = 64
#: Tokens up to which "tiles" and "packed" work like "vector": a tile would be mostly empty.
FEW = 8
#: Columns that share the scale of an activation in 8 bits.
SCALED = 32


def vector(kind: str, how: Way, tokens: int, *, aligned: bool, experts: bool = False) -> Shader:
    """The shader of the way "vector"."""
    defines = _of_vector(kind, how, how.rows(kind, tokens), tokens, aligned, experts)
    name = f"product {kind} vector {defines['ROWS']}x{tokens}" + " experts" * experts
    return Shader.of(name, "product_vector", defines, {"local_size_x": how.group_size})


def _of_vector(
    kind: str, how: Way, rows: int, tokens: int, aligned: bool, experts: bool
) -> dict[str, Define]:
    steps, quads = steps_of(kind, how)
    defines: dict[str, Define] = {
        "KIND": kind,
        "ALIGNED": int(aligned),
        "ROWS": rows,
        "TOKENS": tokens,
        "OUTPUTS": rows * tokens,
        "INPUTS": quads * tokens,
        "EACH": _each(kind),
    }
    if kind in PLAIN:
        defines["STEPS"] = steps
    if experts:
        defines["EXPERTS"] = 1
    return defines


def _each(kind: str) -> int:
    """Steps that a lane of "vector" takes at a time: with F32 one is 16 bytes."""
    return 1 if kind == "F32" else 2


def vector_turns(kind: str, how: Way, columns: int) -> int:
    """Return how many iterations the loops of product_vector.comp take."""
    blocks, (steps, _) = blocks_of(kind, how.steps), steps_of(kind, how)
    parts = columns // blocks.unit * (steps // _each(kind))
    return -(-parts // how.group_size) + 1 + how.group_size // 4 + 1


def tiles(kind: str, tokens: int, *, aligned: bool, experts: bool = False) -> Shader:
    """The shader of the way "tiles", for tiles of that many tokens."""
    defines = _of_tiles(kind, tokens, aligned, experts)
    name = f"product {kind} tiles {TILE_ROWS}x{tokens}" + " experts" * experts
    return Shader.of(name, "product_tiles", defines, {})


def _of_tiles(kind: str, tokens: int, aligned: bool, experts: bool) -> dict[str, Define]:
    how = tile_way()
    rows, (_, quads) = how.rows(kind, tokens), steps_of(kind, how)
    each = tokens * TILE_ROWS // (how.group_size * rows)
    half = 8 // quads // 2
    defines: dict[str, Define] = {
        "KIND": kind,
        "ALIGNED": int(aligned),
        "TILE": tokens,
        "ROWS": rows,
        "TOKENS": each,
        "OUTPUTS": rows * each,
        "HALF": half,
        "LOADS": tokens // 16,
        "DECODED": half * quads,
    }
    if kind in PLAIN:
        defines["STEPS"] = how.steps
    if experts:
        defines["EXPERTS"] = 1
    return defines


def tile_way() -> Way:
    """Return the way "tiles", which is the same for every device."""
    return way("tiles", 0)


def tiles_turns(columns: int) -> int:
    """Return how many iterations the loops of product_tiles.comp take: ten for 32 columns."""
    return columns // 32 * 10 + 1


def quantizing() -> Shader:
    """The shader that rounds activations to 8 bits."""
    return Shader.of("quantize", "quantize", {}, {})


def packed_vector(
    kind: str, how: Way, tokens: int, *, aligned: bool, experts: bool = False
) -> Shader:
    """The shader of the way "packed" for few tokens."""
    rows = packed_rows(kind, how, tokens)
    defines = _of_vector(kind, how, rows, tokens, aligned, experts)
    defines["DOTS"] = _groups(kind) * rows * tokens
    name = f"product {kind} packed {defines['ROWS']}x{tokens}" + " experts" * experts
    return Shader.of(name, "packed_vector", defines, {"local_size_x": how.group_size})


def packed_rows(kind: str, how: Way, tokens: int) -> int:
    """Return the rows of a workgroup of `packed_vector`: of Q2_K, more would spill registers."""
    return 1 if kind == "Q2_K" and tokens == FEW else how.rows(kind, tokens)


def packed_tile(kind: str, count: int) -> int:
    """Return the tokens of a tile of `packed_tiles`: of Q2_K, more would spill registers."""
    return min(tile_way().tokens(count), 32 if kind == "Q2_K" else 64)


def packed_tiles(kind: str, tokens: int, *, aligned: bool, experts: bool = False) -> Shader:
    """The shader of the way "packed" for many tokens."""
    defines = _of_tiles(kind, tokens, aligned, experts)
    each = tokens * TILE_ROWS // (tile_way().group_size * tile_way().rows(kind, tokens))
    defines |= {"VALUES": 8 * each, "FACTORS": _groups(kind) * each}
    name = f"product {kind} packed tiles {TILE_ROWS}x{tokens}" + " experts" * experts
    return Shader.of(name, "packed_tiles", defines, {})


def _groups(kind: str) -> int:
    """DOT_GROUPS of packed.glsl."""
    return {"Q4_K": 2, "Q5_K": 2, "Q6_K": 4, "Q2_K": 4, "Q3_K": 4}.get(kind, 1)


def gpu_kernels(subgroup_size: int) -> Iterable[Shader]:
    """Every shader of this module as a model uses it, for subgroups of that size."""
    by_vector = way("vector", subgroup_size)
    for kind, experts in product(KINDS, (False, True)):
        aligned = blocks_are_words(kind)
        for tokens in by_vector.tiles:
            yield vector(kind, by_vector, tokens, aligned=aligned, experts=experts)
        for tokens in tile_way().tiles:
            yield tiles(kind, tokens, aligned=aligned, experts=experts)
        if kind in PLAIN or experts:
            continue  # few take experts with "packed", which a caller must name: not shipped
        for tokens in by_vector.tiles:
            yield packed_vector(kind, by_vector, tokens, aligned=aligned)
        for tokens in {packed_tile(kind, each): None for each in tile_way().tiles}:
            yield packed_tiles(kind, tokens, aligned=aligned)
    yield quantizing()
