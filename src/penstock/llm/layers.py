"""The kernels of a decoder layer except its matrix products: norms, RoPE, attention.

Every call issues launches that a graph can record. Only the position changes from step to step, and
kernels read it from device memory (see `llm.device_state`). Activations are float32 arrays of shape
(tokens, n); a call works on the first `count` rows.

There are two variants. On CPU drivers a workgroup is a single subgroup, without shared memory or
barriers, and inputs that fit are read through uniform blocks, which those drivers read faster by an
order of magnitude; attention reads everything through texel buffers, if they are large enough. On
GPUs workgroups are large and use shared memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import penstock as ps
from penstock.llm import tiled_attention
from penstock.llm.attention import ATTENTION_WAYS, Attention, attention_ways, check_rows
from penstock.llm.attention_kernels import (
    Cut,
    Shape,
    attention_join,
    attention_lanes,
    attention_rows,
    attention_shared,
    attention_token,
    attention_windows,
)
from penstock.llm.device_state import NO_TOKEN, STATE
from penstock.llm.kernels import Shader
from penstock.llm.kv_cache import CACHE_TYPES, Cache
from penstock.llm.traits import Traits
from penstock.llm.weights import Weight

__all__ = ["ATTENTION_WAYS", "CACHE_TYPES", "Cache", "Layers", "Traits", "attention_ways"]

VECTOR_KINDS = {"F32": "KIND_F32", "F16": "KIND_F16", "BF16": "KIND_BF16"}
# Elements. A longer row takes a large workgroup on CPU drivers too, not a single subgroup.
_LONG_ROW = 1 << 16
_MOST_ROW = 1 << 22  # elements: a group of 256 covers them in two loops of 16,384 iterations


class Layers(Attention):
    """Launches the kernels on one device; compiles each on first use and keeps it."""

    def rmsnorm(
        self, x: ps.Array, weight: Weight, y: ps.Array, *, count: int, eps: float, first: int = 0,
        shift: float = 0.0, padded: ps.Array | None = None,
    ) -> None:  # fmt: skip
        """y[:count] = the rows of x from `first` on, each divided by its root mean square.

        And times the weight, to which `shift` is added. With a state `padded`, the rows are as many
        before `first` as it says that the batch has padding.
        """
        n = x.shape[-1]
        words, offset = _vector(weight, n)
        check_rows("rmsnorm", count, n, x[first:], y)
        if n > _MOST_ROW:
            raise ps.Unsupported(f"rmsnorm of rows of {n:,}; up to {_MOST_ROW:,} are supported")
        traits = replace(self.traits, shared=True) if n > _LONG_ROW else self.traits
        small = padded is None and self._small(count, x[first : first + 1])
        # With few rows, one workgroup each would leave cores idle.
        parts = min(4, -(-n // 256)) if count < 8 and not traits.shared else 1
        kernel = self._kernel(
            rmsnorm(traits, weight.kind, n if small else None, padded=padded is not None)
        )
        kernel(
            x=x[first : first + 1] if small else x, words=words, y=y, n=n,
            first_row=0 if small else first, first=offset, eps=eps, shift=shift,
            groups=(parts, count), **({} if padded is None else {"state": padded}),
        )  # fmt: skip

    def rope_store(
        self,
        q: ps.Array,
        k: ps.Array,
        v: ps.Array,
        q_out: ps.Array,
        cache: Cache,
        angles: ps.Array,
        state: ps.Array,
        *,
        count: int,
        layout: Literal["adjacent", "halves"] = "halves",
        q_norm: Weight | None = None,
        k_norm: Weight | None = None,
        eps: float = 1e-6,
        shift: float = 0.0,
        gated: bool = False,
    ) -> None:
        """Rotate q into q_out; append rotated k, and v as it is, to the cache at their positions.

        `angles` comes from `Config.angles`; its number of pairs sets how much of a head is rotated.
        With `q_norm` and `k_norm` each head is normalised first; `shift` is added to their weights.
        If q is `gated`, gates follow each of its heads: see `gate`.
        """
        shape = Shape.of(q_out, cache)
        check_rows("rope_store", count, q_out.shape[-1] * (1 + gated), q)
        check_rows("rope_store", count, q_out.shape[-1], q_out)
        check_rows("rope_store", count, shape.kv_heads * shape.head_size, k, v)
        if angles.shape[0] < cache.context or not 2 <= angles.shape[1] * 2 <= cache.head_size:
            raise ps.ShapeMismatch(
                f"rope_store: angles of shape {angles.shape}; a context of {cache.context} and "
                f"heads of {cache.head_size} need ({cache.context}, 1 to "
                f"{cache.head_size // 2}, 2)"
            )
        if layout not in ("adjacent", "halves"):
            raise ps.InvalidValue(f"rope_store: layout={layout!r}; 'adjacent' or 'halves'")
        if (q_norm is None) != (k_norm is None):
            raise ps.ArgumentError("rope_store: q_norm and k_norm go together")
        norms: dict[str, Any] = {}
        kind = None
        if q_norm is not None and k_norm is not None:
            if q_norm.kind != k_norm.kind:
                raise ps.Unsupported(f"rope_store: norms of {q_norm.kind} and {k_norm.kind}")
            kind = q_norm.kind
            norms["q_words"], norms["q_first"] = _vector(q_norm, cache.head_size)
            norms["k_words"], norms["k_first"] = _vector(k_norm, cache.head_size)
            norms["eps"], norms["shift"] = eps, shift
        small = self._small(count, q[:1], k[:1], v[:1])
        rope_dims = 2 * angles.shape[1]
        traits = self.traits
        if shape.cache == "q8_0" and traits.lanes < 8:
            traits = replace(traits, shared=True)  # a factor is that of eight lanes
        kernel = self._kernel(
            rope_store(traits, shape, rope_dims, layout, kind, small, gated=gated)
        )
        if small:
            q, k, v = q[:1], k[:1], v[:1]
        kernel(
            q=q, k=k, v=v, angles=angles, state=state, q_out=q_out, keys=cache.keys,
            values=cache.values, context=cache.context,
            groups=(shape.heads + 2 * shape.kv_heads, count), **norms,
        )  # fmt: skip

    def gate(self, q: ps.Array, y: ps.Array, *, head_size: int, count: int) -> None:
        """y[:count] *= sigmoid of the gates, which follow each head of q."""
        n = y.shape[-1]
        check_rows("gate", count, n, y)
        check_rows("gate", count, 2 * n, q)
        kernel = self._kernel(attention_gate(head_size))
        kernel(q=q, y=y, n=count * n, threads=count * n)

    def remember(self, tokens: ps.Array, history: ps.Array, state: ps.Array, *, count: int) -> None:
        """Write the tokens of a batch to the history, and count its padding in the state.

        Must come before all that depends on the padding, and before the position advances.
        """
        self._kernel(_REMEMBER)(
            tokens=tokens, history=history, state=state, count=count, size=history.size,
            threads=count,
        )  # fmt: skip

    def advance(self, state: ps.Array, *, count: int) -> None:
        """Advance the position past a batch from which no token is sampled, less its padding."""
        self._kernel(_ADVANCE)(state=state, count=count, groups=1)

    def _small(self, count: int, *arrays: ps.Array) -> bool:
        """Whether one row of each can be read through uniform blocks."""
        return count == 1 and all(self._fits(array) for array in arrays)


# What each kernel is compiled from.


def rmsnorm(traits: Traits, kind: str, small: int | None, *, padded: bool = False) -> Shader:
    defines, constants = traits.group(256)
    defines["KIND"] = VECTOR_KINDS[kind]
    if small:
        defines["SMALL"] = small
    if padded:
        defines |= {"PADDED": 1, **STATE}
    return Shader.of("rmsnorm", "rmsnorm", defines, constants)


def rope_store(
    traits: Traits, shape: Shape, rope_dims: int, layout: str, kind: str | None, small: bool, *,
    gated: bool = False,
) -> Shader:  # fmt: skip
    defines, constants = traits.group(64)
    if gated:
        defines["GATED"] = 1
    defines |= shape.defines(traits)
    defines.pop("WIDE", None)  # it writes single words
    defines["ROPE_DIMS"] = rope_dims
    if layout == "adjacent":
        defines["ADJACENT"] = 1
    if kind is not None:
        defines["NORMS"] = 1
        defines["KIND"] = VECTOR_KINDS[kind]
    if small:
        defines["SMALL"] = 1
    return Shader.of("rope_store", "rope_store", defines, constants)


def attention_gate(head_size: int) -> Shader:
    return Shader.of(
        "attention_sigmoid", "attention_gate", {"HEAD_SIZE": head_size}, {"local_size_x": 64}
    )


_REMEMBER = Shader.of(
    "remember", "remember", {**STATE, "NO_TOKEN": f"{NO_TOKEN:#x}u"}, {"local_size_x": 64}
)
_ADVANCE = Shader.of("advance", "advance", STATE, {})


def _vector(weight: Weight, n: int) -> tuple[ps.Array, int]:
    return vector_of(weight, 1, n)


def vector_of(weight: Weight, rows: int, columns: int) -> tuple[ps.Array, int]:
    """Return the words that hold a vector of that shape, and the byte at which it begins."""
    if weight.kind not in VECTOR_KINDS:
        raise ps.Unsupported(
            f"{weight.name}: a vector of kind {weight.kind}; there are {', '.join(VECTOR_KINDS)}"
        )
    if (weight.rows, weight.columns) != (rows, columns) or len(weight.pieces) != 1:
        raise ps.ShapeMismatch(
            f"{weight.name}: {weight.rows} × {weight.columns} in {len(weight.pieces)} pieces; "
            f"wanted are {rows} × {columns} in one"
        )
    return weight.pieces[0].words, weight.pieces[0].first


def layer_kernels(subgroup_size: int = 64) -> list[Shader]:
    """Every variant of every kernel here, in the shapes of Qwen3-0.6B.

    `subgroup_size` is that of the GPU; variants for CPU drivers have subgroups of 8.
    """
    found: list[Shader] = []
    for traits in Traits.typical(subgroup_size):
        single = [None] if traits.shared else [None, 1024]
        found += [rmsnorm(traits, kind, n) for kind in VECTOR_KINDS for n in single]
        found += [rmsnorm(traits, kind, None, padded=True) for kind in VECTOR_KINDS]
        for cache in CACHE_TYPES:
            shape = Shape(16, 8, 128, cache)
            found += [
                rope_store(traits, shape, 128, layout, kind, bool(n))
                for layout, kind in (
                    ("adjacent", None),
                    ("halves", None),
                    ("halves", "F32"),
                    ("halves", "BF16"),
                )
                for n in single
            ]
            if traits.shared:
                found += [attention_shared(traits, shape, splits) for splits in (1, 16)]
                found += [
                    tiled_attention.shader(shape.defines(traits), shape.head_size, split=split)
                    for split in (False, True)
                ]
            else:
                cuts = (Cut(1, 2, 1), Cut(1, 2, 4), Cut(4, 2, 1))
                found += [attention_lanes(traits, shape, c, 2048 * c.tokens) for c in cuts]
                found += [attention_rows(traits, shape, each) for each in (1, 2, 3, 4)]
                found.append(attention_token(traits, shape, 1)[0])
                if cache != "q8_0":
                    rows = 16 * shape.in_word
                    found.append(attention_windows(traits, shape, Cut(1, 2, 6), rows))
            found.append(rope_store(traits, shape, 32, "halves", "F32", False, gated=True))
        found.append(attention_join(traits, 128, 4))
    return [*found, attention_gate(128), _REMEMBER, _ADVANCE]
