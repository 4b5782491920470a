"""What the kernels of attention are compiled from, and how their work is split."""

from __future__ import annotations

import math
from dataclasses import dataclass

import penstock as ps
from penstock.llm.device_state import STATE
from penstock.llm.kernels import Shader
from penstock.llm.kv_cache import Cache, row_words, scale_words
from penstock.llm.traits import Defines, Traits

_MOST_SPLITS = 16
_GPU_GROUP = 128
_GPU_GROUPS = 256  # workgroups: enough to keep a GPU busy


@dataclass(frozen=True)
class Shape:
    """The heads of a layer, and how its cache stores them."""

    heads: int
    kv_heads: int
    head_size: int
    cache: str  # one of CACHE_TYPES

    @classmethod
    def of(cls, q: ps.Array, cache: Cache) -> Shape:
        heads, rest = divmod(q.shape[-1], cache.head_size)
        if rest or heads % cache.kv_heads:
            raise ps.ShapeMismatch(
                f"queries of {q.shape[-1]} are not a multiple of the cache's {cache.kv_heads} "
                f"heads of {cache.head_size}"
            )
        return cls(heads, cache.kv_heads, cache.head_size, cache.kind)

    @property
    def texel(self) -> int:
        """Elements of the cache that a texel holds."""
        return 4 if self.cache == "f32" else 8

    def defines(self, traits: Traits) -> Defines:
        found: Defines = {
            "HEADS": self.heads, "KV_HEADS": self.kv_heads, "HEAD_SIZE": self.head_size, **STATE,
        }  # fmt: skip
        if self.cache == "f16":
            found["HALVES"] = 1
        elif self.cache == "q8_0":
            found["BYTES"] = 1
            found["ROW_WORDS"] = row_words(self.cache, self.kv_heads, self.head_size)
            found["SCALE_WORDS"] = scale_words(self.head_size)
        if traits.wide and self.head_size % (2 * self.in_word) == 0:
            found["WIDE"] = 1
        return found

    @property
    def in_word(self) -> int:
        """Elements in 4 bytes of the cache."""
        return {"f32": 1, "f16": 2, "q8_0": 4}[self.cache]


@dataclass(frozen=True)
class Cut:
    """How attention is split: tokens and heads per workgroup, and shares of the rows."""

    tokens: int
    heads: int
    splits: int

    @classmethod
    def of(cls, traits: Traits, shape: Shape, cache: Cache, count: int, splits: int | None) -> Cut:
        if traits.shared:
            tokens, heads = 1, 1
            wanted = -(-_GPU_GROUPS // (shape.heads * count))
            useful = -(-cache.context // _GPU_GROUP)
        else:
            # Queries per workgroup: the accumulators of more would not fit the L1 cache.
            room = max(1, 128 * traits.lanes // max(shape.head_size, traits.lanes))
            group = shape.heads // shape.kv_heads
            heads = max(n for n in range(1, min(group, room, 8) + 1) if group % n == 0)
            tokens = 1 if count == 1 else max(1, min(room, 8) // heads)
            groups = shape.heads // heads * -(-count // tokens)
            wanted = -(-2 * traits.cores // groups)
            useful = -(-cache.context // (4 * traits.lanes))
        best = max(1, min(wanted, useful, _MOST_SPLITS))
        return cls(tokens, heads, splits or max(best, _fewest_splits(traits, shape, cache)))


def _fewest_splits(traits: Traits, shape: Shape, cache: Cache) -> int:
    """Return the fewest shares that keep every invocation within `traits.most_turns` iterations.

    `turns` counts the loop iterations that attention_shared.comp or attention_lanes.comp makes for
    a block of rows if the compiler unrolls nothing. Each loop counts one more, for its exit.
    """
    if not traits.most_turns:
        return 1
    unit = shape.in_word * (2 if "WIDE" in shape.defines(traits) else 1)
    units = shape.head_size // unit
    if traits.shared:
        rows = _GPU_GROUP
        each = -(-units // rows)
        scores = 1 + units * (unit + 2)
        sums = each * unit + 1 + -(-rows // max(1, rows // units)) * (each * (unit + 2) + 2) + 1
        turns = 1 + scores + _GPU_GROUP + sums
    else:
        rows = traits.lanes
        turns = 1 + (-(-units // 4) + 1) + (rows + 1)
    blocks = max(1, traits.most_turns // turns - 1)
    return -(-cache.context // (blocks * rows))


def attention_lanes(traits: Traits, shape: Shape, cut: Cut, small: int | None) -> Shader:
    defines = shape.defines(traits) | {
        "LANES": traits.lanes, "TOKENS": cut.tokens, "HEADS_EACH": cut.heads, "SPLITS": cut.splits,
        "SCALE": shape.head_size**-0.5,
    }  # fmt: skip
    if small:
        defines["SMALL"] = small
    return Shader.of("attention", "attention_lanes", defines, {})


def attention_rows(traits: Traits, shape: Shape, each: int) -> Shader:
    quads = shape.texel // 4
    defines = shape.defines(traits) | {
        "EACH": each, "SCORES": 16 * each, "QUADS": quads, "MINE": quads * each,
        "ROW_QUADS": 16 * quads, "SCALE": shape.head_size**-0.5,
    }  # fmt: skip
    defines.pop("WIDE", None)  # a load takes 16 bytes
    return Shader.of("attention", "attention_rows", defines, {"local_size_x": traits.lanes})


def attention_token(traits: Traits, shape: Shape, splits: int) -> tuple[Shader, int]:
    """Return also how many heads a workgroup takes: as many as its registers hold sums of."""
    quads, group = shape.texel // 4, shape.heads // shape.kv_heads
    texels = shape.head_size // (4 * quads)
    each = -(-texels // 8)
    heads = max(n for n in range(1, group + 1) if group % n == 0 and n * each <= max(4, each))
    chunk = math.gcd(shape.head_size // 4, 8)
    defines = shape.defines(traits) | {
        "HEADS_EACH": heads, "SPLITS": splits, "QUADS": quads, "CHUNK": chunk,
        "CHUNK_TEXELS": chunk // quads, "SCORES": 2 * heads, "TEXELS_EACH": each,
        "SUM_QUADS": quads * each, "SUMS": heads * quads * each, "SCALE": shape.head_size**-0.5,
    }  # fmt: skip
    defines.pop("WIDE", None)  # a load takes 16 bytes
    constants = {"local_size_x": traits.lanes}
    return Shader.of("attention", "attention_token", defines, constants), heads


def token_turns(shape: Shape, context: int) -> int:
    """Return how many iterations the loops of attention_token.comp take for a whole context."""
    turns = shape.head_size // 4 // math.gcd(shape.head_size // 4, 8)
    return -(-context // 16) * (turns + 1) + 1


def attention_windows(traits: Traits, shape: Shape, cut: Cut, rows: int) -> Shader:
    defines = shape.defines(traits) | {
        "LANES": traits.lanes, "HEADS_EACH": cut.heads, "SPLITS": cut.splits,
        "WINDOW_ROWS": rows, "SCALE": shape.head_size**-0.5,
    }  # fmt: skip
    defines.pop("WIDE", None)  # a load takes 16 bytes
    return Shader.of("attention", "attention_windows", defines, {})


def attention_shared(traits: Traits, shape: Shape, splits: int) -> Shader:
    defines = shape.defines(traits) | {
        "SIZE": _GPU_GROUP, "SPLITS": splits, "SCALE": shape.head_size**-0.5,
    }  # fmt: skip
    if traits.plain:
        defines["PLAIN"] = 1
    return Shader.of("attention", "attention_shared", defines, {})


def attention_join(traits: Traits, head_size: int, splits: int, small: int | None = None) -> Shader:
    _, constants = traits.group(64)
    defines: Defines = {"HEAD_SIZE": head_size, "SPLITS": splits}
    if small:
        defines["SMALL"] = small
    return Shader.of("attention_join", "attention_join", defines, constants)
