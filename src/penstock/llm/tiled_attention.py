"""How attention in tiles is compiled and split into workgroups (shaders/attention_tiles.comp)."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.llm.kernels import Define, Shader

QUERIES = 32  # of a tile
_ROWS = 32  # of a block
_GROUPS = 256  # workgroups: enough to keep a GPU busy
_MOST_SPLITS = 16
_STAGED = 512  # quads of values in shared memory
_USEFUL = 128  # rows: a share of fewer costs more to join than it saves
SHARED_MEMORY = 1 << 14  # bytes that a workgroup needs at most


def shader(shape: Mapping[str, Define], head_size: int, *, split: bool) -> Shader:
    """The shader for heads of that size; `shape` has the defines of the heads and their cache."""
    quads, rows = head_size // 4, _value_rows(head_size)
    each = -(-quads // 16)
    defines = {
        **shape, "SPLIT": int(split), "HEAD_QUADS": quads, "QUADS_EACH": each, "SUMS": 4 * each,
        "VALUE_ROWS": rows, "LOADS": -(-rows * quads // 128), "SCALE": head_size**-0.5,
    }  # fmt: skip
    defines.pop("WIDE", None)  # a load takes four elements
    return Shader.of("attention", "attention_tiles", defines, {})


def tiles(queries: int) -> int:
    """Return how many tiles the queries of a key head fill."""
    return -(-queries // QUERIES)


def splits(queries: int, kv_heads: int, head_size: int, context: int, most_turns: int) -> int:
    """Return how many shares to split rows into: more only while workgroups are few.

    With `most_turns`, every invocation stays within that many loop iterations.
    """
    wanted = -(-_GROUPS // (tiles(queries) * kv_heads))
    best = max(1, min(wanted, -(-context // _USEFUL), _MOST_SPLITS))
    if not most_turns:
        return best
    blocks = max(1, (most_turns - 1) // turns(head_size))
    return max(best, -(-context // (_ROWS * blocks)))


def turns(head_size: int) -> int:
    """Return how many iterations the loops take for a block of rows. Each ends with one more."""
    chunks, rows = -(-head_size // 32), _value_rows(head_size)
    return 1 + chunks * 10 + 1 + _ROWS // rows * (rows + 2) + 1


def _value_rows(head_size: int) -> int:
    """VALUE_ROWS of the shader."""
    return min(_ROWS, 1 << ((_STAGED // (head_size // 4)).bit_length() - 1))
