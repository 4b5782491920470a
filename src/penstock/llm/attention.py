"""Attention over the KV cache, of one token or of several.

Which kernel takes a call depends on the device, on the number of tokens, and on what fits the
device's limits: `Attention.attention` reads in decision order. Only the position changes from step
to step, and kernels read it from device memory (see `llm.device_state`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import penstock as ps
from penstock.llm import tiled_attention
from penstock.llm.attention_kernels import (
    Cut,
    Shape,
    attention_join,
    attention_lanes,
    attention_rows,
    attention_shared,
    attention_token,
    attention_windows,
    token_turns,
)
from penstock.llm.compiling import Compiled
from penstock.llm.kernels import MOST_TURNS
from penstock.llm.kv_cache import WINDOWS, Cache
from penstock.llm.traits import Choice, Traits

#: The ways to compute attention of several tokens.
#:
#: =========  ===================================================================================
#: "lanes"    for CPU drivers: a subgroup for a few queries
#: "rows"     for CPU drivers: a lane for a few queries, through texel buffers; where these are too
#:            small, "lanes" takes its place
#: "shared"   for GPUs: a workgroup for each query
#: "tiles"    for GPUs: a workgroup for 32 queries, which share each load; where a head is no
#:            multiple of four, "shared" takes its place
#: =========  ===================================================================================
ATTENTION_WAYS = ("lanes", "rows", "shared", "tiles")
_TEXELS = {"f32": "rgba32f", "f16": "rgba32ui", "q8_0": "rg32ui"}  # of a plane


class Attention:
    """Launches attention on one device; compiles each kernel on first use and keeps it."""

    def __init__(
        self,
        device: ps.Device,
        *,
        variant: Choice | None = None,
        splits: int | None = None,
        attention: str | None = None,
        compiled: Compiled | None = None,
    ) -> None:
        """`attention` is one of `ATTENTION_WAYS`, by default the one that suits the device.

        For tests, force the `variant`, and the number of shares attention `splits` rows into.
        """
        if variant not in (None, "cpu", "gpu"):
            raise ps.InvalidValue(f"variant={variant!r}; there are 'cpu' and 'gpu'")
        if attention not in (None, *ATTENTION_WAYS):
            raise ps.InvalidValue(
                f"attention={attention!r}; choose one of {', '.join(ATTENTION_WAYS)}"
            )
        self.device = device
        self.traits = Traits.of(device, variant)
        self._way = attention or attention_ways(device, variant)[0]
        self._splits = splits
        self._kernel = compiled or Compiled(device)
        self._scratch: dict[int, tuple[ps.Array, ps.Array]] = {}

    def attention(
        self, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array, *, count: int,
        reach: int | None = None,
    ) -> None:  # fmt: skip
        """y[:count] = causal attention of the rotated queries over the cache, own rows included.

        `reach` bounds the cache rows that are read (default: the whole context). The caller
        guarantees that the queries see no row beyond it, and gets it from `Layers.reach`.
        """
        shape = Shape.of(q, cache)
        check_rows("attention", count, q.shape[-1], q, y)
        if self._through_texels(shape, cache, count, q):
            self._attend_token(shape, q, cache, state, y)
            return
        if self._through_windows(shape, cache, count) and self._fits(q[:1]):
            self._attend_windows(shape, q, cache, state, y, reach or cache.context)
            return
        if count > 1 and self._way == "tiles" and shape.head_size % 4 == 0:
            self._attend_tiles(shape, q, cache, state, y, count)
            return
        each = self._queries_each(shape, cache, count, q, y) if self._way == "rows" else 0
        if each:
            self._attend_rows(shape, q, cache, state, y, count, each)
            return
        traits = self.traits
        if count > 1:
            traits = replace(traits, shared=self._way in ("shared", "tiles"))
        most = count if traits.shared else self._tokens_each(q)
        for first in range(0, count, most):
            self._attend(traits, shape, q, cache, state, y, first, min(most, count - first))

    def reach(self, q: ps.Array, cache: Cache, rows: int, *, count: int) -> int:
        """Return a `reach` for `attention` that covers the first `rows` rows of the cache.

        Where the cost of attention depends on it, each reach is twice the next smaller one, so that
        few distinct values occur, and few graphs are recorded. Elsewhere it is the whole context.
        """
        shape = Shape.of(q, cache)
        if self._through_texels(shape, cache, count, q) or not self._through_windows(
            shape, cache, count
        ):
            return cache.context
        each = WINDOWS * cache.window
        shares = 1 << (-(-rows // each) - 1).bit_length()
        return min(shares * each, cache.context)

    # How attention is split into launches and workgroups.

    def _attend(
        self, traits: Traits, shape: Shape, q: ps.Array, cache: Cache, state: ps.Array,
        y: ps.Array, first: int, count: int,
    ) -> None:  # fmt: skip
        cut = Cut.of(traits, shape, cache, count, self._splits)
        if traits.shared:
            shader = attention_shared(traits, shape, cut.splits)
            groups = (cut.splits, shape.heads, count)
        else:
            rows = q[first : first + count]
            small = rows.size if self._fits(rows) else None
            if small:
                q = rows
            shader = attention_lanes(traits, shape, cut, small)
            blocks = shape.heads // cut.heads
            groups = (cut.splits, blocks, -(-count // cut.tokens))
        to = y[first:] if first else y
        out: dict[str, Any] = {"y": to}
        queries = count * shape.heads
        if cut.splits > 1:
            parts, ends = self._parts(queries, cut.splits, shape.head_size)
            out = {"parts": parts, "ends": ends}
        self._kernel(shader)(
            q=q, keys=cache.keys, values=cache.values, state=state, count=count,
            first_token=first, context=cache.context, groups=groups, **out,
        )  # fmt: skip
        if cut.splits > 1:
            self._join(shape, queries, cut.splits, to)

    def _join(self, shape: Shape, queries: int, splits: int, y: ps.Array) -> None:
        """Combine the partial results of all shares of the rows."""
        parts, ends = self._parts(queries, splits, shape.head_size)
        n = queries * shape.head_size
        join = self._kernel(attention_join(self.traits, shape.head_size, splits))
        join(parts=parts, ends=ends, y=y, n=n, shares=splits, threads=n)

    def _attend_tiles(
        self, shape: Shape, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array, count: int
    ) -> None:
        queries = count * (shape.heads // shape.kv_heads)
        splits = self._splits or tiled_attention.splits(
            queries, shape.kv_heads, shape.head_size, cache.context, self.traits.most_turns
        )
        out: dict[str, Any] = {"y": y}
        if splits > 1:
            parts, ends = self._parts(count * shape.heads, splits, shape.head_size)
            out = {"parts": parts, "ends": ends}
        defines = shape.defines(self.traits)
        self._kernel(tiled_attention.shader(defines, shape.head_size, split=splits > 1))(
            q=q, keys=cache.keys, values=cache.values, state=state, count=count,
            context=cache.context, groups=(tiled_attention.tiles(queries), shape.kv_heads, splits),
            **out,
        )  # fmt: skip
        if splits > 1:
            self._join(shape, count * shape.heads, splits, y)

    def _queries_each(
        self, shape: Shape, cache: Cache, count: int, q: ps.Array, y: ps.Array
    ) -> int:
        """Return how many queries a lane of attention_rows.comp takes; 0 if it cannot be used."""
        traits = self.traits
        texel = shape.texel
        if not traits.texels or self._splits is not None or shape.head_size % texel:
            return 0
        lanes, queries = traits.lanes, count * (shape.heads // shape.kv_heads)
        room = self._limit("shared_memory") // (4 * shape.head_size * lanes)
        each = min(4, -(-queries // lanes), room)
        turns = -(-cache.context // 16) * (2 * (shape.head_size // texel) + 3) + 64
        fits = max(q.nbytes, y.nbytes) <= self._texel_bytes() and self._plane_fits(cache)
        busy = each and -(-queries // (lanes * each)) * shape.kv_heads >= traits.cores
        bounded = not traits.most_turns or turns <= traits.most_turns
        return each if busy and fits and bounded else 0

    def _attend_rows(
        self, shape: Shape, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array, count: int,
        each: int,
    ) -> None:  # fmt: skip
        to, y_first = y.texels("rgba32f")
        queries = count * (shape.heads // shape.kv_heads)
        self._kernel(attention_rows(self.traits, shape, each))(
            **_texels(shape, q, cache), y=to, y_first=y_first, state=state, count=count,
            context=cache.context,
            groups=(-(-queries // (self.traits.lanes * each)), shape.kv_heads),
        )  # fmt: skip

    def _through_texels(self, shape: Shape, cache: Cache, count: int, q: ps.Array) -> bool:
        """Whether attention of a single token reads everything through texel buffers."""
        return (
            count == 1
            and self.traits.texels
            and self._splits is None
            and shape.head_size % shape.texel == 0
            and q.nbytes <= self._texel_bytes()
            and self._plane_fits(cache)
        )

    def _attend_token(
        self, shape: Shape, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array
    ) -> None:
        # A share of the rows for each core if there are fewer key heads, and for each MOST_TURNS.
        turns = token_turns(shape, cache.context)
        splits = max(-(-self.traits.cores // shape.kv_heads), -(-turns // MOST_TURNS))
        out: dict[str, Any] = {"y": y}
        if splits > 1:
            parts, ends = self._parts(shape.heads, splits, shape.head_size)
            out = {"parts": parts, "ends": ends}
        shader, heads = attention_token(self.traits, shape, splits)
        self._kernel(shader)(
            **_texels(shape, q, cache), state=state, context=cache.context,
            groups=(shape.heads // heads, splits), **out,
        )  # fmt: skip
        if splits > 1:
            n = shape.heads * shape.head_size
            join = self._kernel(attention_join(self.traits, shape.head_size, splits))
            join(parts=parts, ends=ends, y=y, n=n, shares=splits, threads=n)

    def _plane_fits(self, cache: Cache) -> bool:
        """Whether a texel buffer holds a plane of the cache."""
        size = 8 if cache.kind == "q8_0" else 16
        known = _TEXELS[cache.kind] in self.device.info.texel_formats
        return known and cache.keys.nbytes <= self._texel_bytes(size)

    def _texel_bytes(self, size: int = 16) -> int:
        """Return how many bytes a texel buffer of such texels holds, wherever they begin."""
        return size * self._limit("texel_elements") - self._limit("texel_alignment")

    def _through_windows(self, shape: Shape, cache: Cache, count: int) -> bool:
        """Whether attention reads the cache through uniform blocks, in 16-byte loads.

        Only for a single token, and if heads are a multiple of 16 bytes.
        """
        whole = shape.head_size % shape.texel == 0
        return (
            count == 1
            and self.traits.windows
            and self._splits is None
            and whole
            and cache.window > 0
        )

    def _attend_windows(
        self, shape: Shape, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array, reach: int
    ) -> None:
        """Issue a launch for every `WINDOWS` windows within reach, and one that joins the results.

        A launch whose windows all lie beyond the position does no work.
        """
        traits = self.traits
        rows = cache.window
        shares = -(-cache.context // (WINDOWS * rows))
        used = -(-reach // (WINDOWS * rows))
        cut = Cut.of(traits, shape, cache, 1, shares)
        parts, ends = self._parts(shape.heads, shares, shape.head_size)
        kernel = self._kernel(attention_windows(traits, shape, cut, rows))
        for share in range(used):
            first = share * WINDOWS * rows
            windows: dict[str, Any] = {}
            for number in range(WINDOWS):
                at = first + number * rows
                if at >= cache.keys.shape[0]:
                    at = 0  # past the cache: the kernel reads no row of this window
                windows[f"keys{number}"] = cache.keys[at : at + rows]
                windows[f"values{number}"] = cache.values[at : at + rows]
            kernel(
                q=q[:1], state=state, parts=parts, ends=ends, first=first, share=share,
                context=cache.context, groups=shape.heads // cut.heads, **windows,
            )  # fmt: skip
        ends = ends[: shape.heads * shares * 2]
        small = ends.size if self._fits(ends) else None
        join = self._kernel(attention_join(traits, shape.head_size, shares, small))
        n = shape.heads * shape.head_size
        join(parts=parts, ends=ends, y=y, n=n, shares=used, threads=n)

    def _tokens_each(self, q: ps.Array) -> int:
        """Return how many queries fit a uniform block, so that every batch of them is aligned."""
        row = q.nbytes // q.shape[0]
        most = self._limit("uniform_range") // row
        alignment = max(self._limit("uniform_alignment"), self._limit("binding_alignment"))
        step = alignment // math.gcd(alignment, row)
        return most // step * step or q.shape[0]

    def _parts(self, queries: int, splits: int, head_size: int) -> tuple[ps.Array, ps.Array]:
        """Return scratch for the partial results of all shares; the layers reuse it in turn."""
        sizes = (queries * splits * head_size, queries * splits * 2)
        found = self._scratch.get(splits)
        if found is None or found[0].size < sizes[0] or found[1].size < sizes[1]:
            parts, ends = (self.device.empty(n, name="attention's parts") for n in sizes)
            found = self._scratch[splits] = parts, ends
        return found

    def _fits(self, array: ps.Array) -> bool:
        return (
            self.traits.small
            and array.nbytes <= self._limit("uniform_range")
            and array.region.lo % self._limit("uniform_alignment") == 0
        )

    def _limit(self, name: str) -> int:
        value = self.device.info.limits[name]
        assert isinstance(value, int)
        return value


def attention_ways(device: ps.Device, variant: Choice | None = None) -> list[str]:
    """Return the ways that suit a device, the one expected to be fastest first."""
    traits = Traits.of(device, variant)
    if not traits.shared:
        return ["rows" if traits.texels else "lanes"]
    room: Any = device.info.limits["shared_memory"]
    return ["tiles", "shared"] if room >= tiled_attention.SHARED_MEMORY else ["shared"]


def _texels(shape: Shape, q: ps.Array, cache: Cache) -> dict[str, Any]:
    """Return the arguments of a kernel that reads queries and cache through texel buffers."""
    plane = _TEXELS[shape.cache]
    found: dict[str, Any] = {}
    for name, array, texel in (
        ("q", q, "rgba32f"), ("keys", cache.keys, plane), ("values", cache.values, plane),
    ):  # fmt: skip
        found[name], found[f"{name}_first"] = array.texels(texel)
    return found


def check_rows(what: str, count: int, width: int, *arrays: ps.Array) -> None:
    """Check that each array has `count` rows of `width`; a kernel would go out of bounds else."""
    if count < 1:
        raise ps.InvalidValue(f"{what}: count={count}; at least one token is wanted")
    for array in arrays:
        if array.ndim != 2 or array.shape[0] < count or array.shape[1] != width:
            raise ps.ShapeMismatch(
                f"{what}: {array.name!r} has shape {array.shape}; wanted are {count} rows of "
                f"{width}"
            )
