"""The kernels of a decoder layer except its matrix products: norms, RoPE, attention.

Every call issues launches that a graph can record. Only the position changes from step to step, and
kernels read it from device memory (see `llm.device_state`). Activations are float32 arrays of shape
(tokens, n); a call works on the first `count` rows.

There are two variants. On CPU drivers a workgroup is a single subgroup, without shared memory or
barriers, and inputs that fit are read through uniform blocks, which those drivers read faster by an
order of magnitude; attention of several tokens reads everything through texel buffers, if they are
large enough. On GPUs workgroups are large and use shared memory.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

import penstock as ps
from penstock.llm.device_state import STATE
from penstock.llm.kernels import MOST_TURNS, Compiled, Shader, takes_rows
from penstock.llm.weights import Weight

Choice: TypeAlias = Literal["cpu", "gpu"]
Defines: TypeAlias = dict[str, str | int | float]

_VECTOR_KINDS = {"F32": "KIND_F32", "F16": "KIND_F16", "BF16": "KIND_BF16"}
_MOST_SPLITS = 16
_WINDOWS = 6  # per plane and launch: twelve in all, within the limit on uniform blocks
_GPU_GROUP = 128
_GPU_GROUPS = 256  # workgroups: enough to keep a GPU busy
# Elements. A longer row takes a large workgroup on CPU drivers too, not a single subgroup.
_LONG_ROW = 1 << 16
_MOST_ROW = 1 << 22  # elements: a group of 256 covers them in two loops of 16,384 iterations


@dataclass(frozen=True)
class Cache:
    """The KV cache of one layer: two planes, keys and values, with a row for each position.

    A plane is float32, or uint32 words that pack two float16 each. Its rows come in whole windows
    of `window` rows, so it may have more rows than the context. A window fits a uniform block;
    `window` is 0 if not even one row does.
    """

    keys: ps.Array
    values: ps.Array
    context: int
    kv_heads: int
    head_size: int
    window: int

    @classmethod
    def new(
        cls,
        device: ps.Device,
        context: int,
        kv_heads: int,
        head_size: int,
        *,
        cache_type: str = "f16",
    ) -> Cache:
        """An empty cache for `context` positions; `cache_type` is "f32" or "f16"."""
        return cls.of_layers(
            device, 1, context, kv_heads, head_size, cache_type=cache_type, role="generic"
        )[1][0]

    @classmethod
    def of_layers(
        cls,
        device: ps.Device,
        layers: int,
        context: int,
        kv_heads: int,
        head_size: int,
        *,
        cache_type: str = "f16",
        role: ps.Role = "append",
    ) -> tuple[ps.Array, list[Cache]]:
        """Return an array for all layers, which grows along axis 1, and each layer's part of it."""
        if cache_type not in ("f32", "f16"):
            raise ps.InvalidValue(f"a cache of {cache_type!r}; there are 'f32' and 'f16'")
        if head_size % 2 or not 2 <= head_size <= 256:
            raise ps.Unsupported(f"heads of {head_size}; an even number up to 256 is supported")
        if min(context, kv_heads) < 1:
            raise ps.InvalidValue(f"a cache of {context} positions and {kv_heads} heads")
        row = kv_heads * head_size
        words = row if cache_type == "f32" else row // 2
        window = _window(device, context, 4 * words)
        rows = -(-context // window) * window if window else context
        dtype: Any = np.float32 if cache_type == "f32" else np.uint32
        whole = device.empty((2 * layers, rows, words), dtype, name="cache", role=role)
        made = [
            cls(whole[number], whole[number + 1], context, kv_heads, head_size, window)
            for number in range(0, 2 * layers, 2)
        ]
        return whole, made

    @property
    def halves(self) -> bool:
        return self.keys.dtype == np.uint32


def _window(device: ps.Device, context: int, row: int) -> int:
    """Return the rows of a window, for rows of `row` bytes.

    A window is a multiple of the subgroup size and begins where the device can bind it.
    """
    limits = {name: limit for name, limit in device.info.limits.items() if isinstance(limit, int)}
    alignment = limits["uniform_alignment"]
    step = math.lcm(limits["subgroup_size"], alignment // math.gcd(alignment, row))
    most = min(limits["uniform_range"], 1 << 16) // row // step * step
    return min(most, -(-context // _WINDOWS // step) * step)


class Layers:
    """Launches the kernels on one device; compiles each on first use and keeps it."""

    def __init__(
        self, device: ps.Device, *, variant: Choice | None = None, splits: int | None = None
    ) -> None:
        """For tests, force the `variant`, and the number of shares attention `splits` rows into."""
        if variant not in (None, "cpu", "gpu"):
            raise ps.InvalidValue(f"Layers: variant={variant!r}; there are 'cpu' and 'gpu'")
        self.device = device
        self.traits = Traits.of(device, variant)
        self._splits = splits
        self._kernel = Compiled(device)
        self._scratch: dict[int, tuple[ps.Array, ps.Array]] = {}

    def rmsnorm(
        self, x: ps.Array, weight: Weight, y: ps.Array, *, count: int, eps: float, first: int = 0
    ) -> None:
        """y[:count] = the rows of x from `first` on, each divided by its root mean square."""
        n = x.shape[-1]
        words, offset = _vector(weight, n)
        _check_rows("rmsnorm", count, n, x[first:], y)
        if n > _MOST_ROW:
            raise ps.Unsupported(f"rmsnorm of rows of {n:,}; up to {_MOST_ROW:,} are supported")
        traits = replace(self.traits, shared=True) if n > _LONG_ROW else self.traits
        small = self._small(count, x[first : first + 1])
        # With few rows, one workgroup each would leave cores idle.
        parts = min(4, -(-n // 256)) if count < 8 and not traits.shared else 1
        kernel = self._kernel(rmsnorm(traits, weight.kind, n if small else None))
        kernel(
            x=x[first : first + 1] if small else x, words=words, y=y, n=n,
            first_row=0 if small else first, first=offset, eps=eps, groups=(parts, count),
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
    ) -> None:
        """Rotate q into q_out; append rotated k, and v as it is, to the cache at their positions.

        `angles` comes from `Config.angles`; its number of pairs sets how much of a head is rotated.
        With `q_norm` and `k_norm` each head is normalised first.
        """
        shape = _Shape.of(q, cache)
        _check_rows("rope_store", count, q.shape[-1], q, q_out)
        _check_rows("rope_store", count, shape.kv_heads * shape.head_size, k, v)
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
            norms["eps"] = eps
        small = self._small(count, q[:1], k[:1], v[:1])
        rope_dims = 2 * angles.shape[1]
        kernel = self._kernel(rope_store(self.traits, shape, rope_dims, layout, kind, small))
        if small:
            q, k, v = q[:1], k[:1], v[:1]
        kernel(
            q=q, k=k, v=v, angles=angles, state=state, q_out=q_out, keys=cache.keys,
            values=cache.values, context=cache.context,
            groups=(shape.heads + 2 * shape.kv_heads, count), **norms,
        )  # fmt: skip

    def attention(
        self, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array, *, count: int,
        reach: int | None = None,
    ) -> None:  # fmt: skip
        """y[:count] = causal attention of the rotated queries over the cache, own rows included.

        `reach` bounds the cache rows that are read (default: the whole context). The caller
        guarantees that the queries see no row beyond it, and gets it from `Layers.reach`.
        """
        shape = _Shape.of(q, cache)
        _check_rows("attention", count, q.shape[-1], q, y)
        if self._through_windows(shape, cache, count) and self._fits(q[:1]):
            self._attend_windows(shape, q, cache, state, y, reach or cache.context)
            return
        each = self._queries_each(shape, cache, count, q, y)
        if each:
            self._attend_rows(shape, q, cache, state, y, count, each)
            return
        most = count if self.traits.shared else self._tokens_each(q)
        for first in range(0, count, most):
            self._attend(shape, q, cache, state, y, first, min(most, count - first))

    def reach(self, q: ps.Array, cache: Cache, rows: int, *, count: int) -> int:
        """Return a `reach` for `attention` that covers the first `rows` rows of the cache.

        Where the cost of attention depends on it, each reach is twice the next smaller one, so that
        few distinct values occur, and few graphs are recorded. Elsewhere it is the whole context.
        """
        if not self._through_windows(_Shape.of(q, cache), cache, count):
            return cache.context
        each = _WINDOWS * cache.window
        shares = 1 << (-(-rows // each) - 1).bit_length()
        return min(shares * each, cache.context)

    def remember(self, tokens: ps.Array, history: ps.Array, state: ps.Array, *, count: int) -> None:
        """Write the tokens of a batch to the history. Must come before the position advances."""
        self._kernel(_REMEMBER)(
            tokens=tokens, history=history, state=state, count=count, size=history.size,
            threads=count,
        )  # fmt: skip

    def advance(self, state: ps.Array, *, count: int) -> None:
        """Advance the position by `count`, after a batch from which no token is sampled."""
        self._kernel(_ADVANCE)(state=state, count=count, groups=1)

    # How attention is split into launches and workgroups.

    def _attend(
        self, shape: _Shape, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array,
        first: int, count: int,
    ) -> None:  # fmt: skip
        traits = self.traits
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
            n = queries * shape.head_size
            join = self._kernel(attention_join(traits, shape.head_size, cut.splits))
            join(parts=parts, ends=ends, y=to, n=n, shares=cut.splits, threads=n)

    def _queries_each(
        self, shape: _Shape, cache: Cache, count: int, q: ps.Array, y: ps.Array
    ) -> int:
        """Return how many queries a lane of attention_rows.comp takes; 0 if it cannot be used."""
        traits = self.traits
        texel = 8 if shape.halves else 4  # elements in 16 bytes of the cache
        if not traits.texels or self._splits is not None or shape.head_size % texel:
            return 0
        lanes, queries = traits.lanes, count * (shape.heads // shape.kv_heads)
        room = self._limit("shared_memory") // (4 * shape.head_size * lanes)
        each = min(4, -(-queries // lanes), room)
        turns = -(-cache.context // 16) * (2 * (shape.head_size // texel) + 3) + 64
        most = 16 * self._limit("texel_elements") - self._limit("texel_alignment")
        fits = max(q.nbytes, y.nbytes, cache.keys.nbytes) <= most
        busy = each and -(-queries // (lanes * each)) * shape.kv_heads >= traits.cores
        bounded = not traits.most_turns or turns <= traits.most_turns
        return each if busy and fits and bounded else 0

    def _attend_rows(
        self, shape: _Shape, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array, count: int,
        each: int,
    ) -> None:  # fmt: skip
        plane = "rgba32ui" if shape.halves else "rgba32f"
        arguments: dict[str, Any] = {}
        for name, array, texel in (
            ("q", q, "rgba32f"), ("keys", cache.keys, plane), ("values", cache.values, plane),
            ("y", y, "rgba32f"),
        ):  # fmt: skip
            arguments[name], arguments[f"{name}_first"] = array.texels(texel)
        queries = count * (shape.heads // shape.kv_heads)
        self._kernel(attention_rows(self.traits, shape, each))(
            **arguments, state=state, count=count, context=cache.context,
            groups=(-(-queries // (self.traits.lanes * each)), shape.kv_heads),
        )  # fmt: skip

    def _through_windows(self, shape: _Shape, cache: Cache, count: int) -> bool:
        """Whether attention reads the cache through uniform blocks, in 16-byte loads.

        Only for a single token, and if heads are a multiple of 16 bytes.
        """
        whole = shape.head_size % (8 if shape.halves else 4) == 0
        return (
            count == 1
            and self.traits.windows
            and self._splits is None
            and whole
            and cache.window > 0
        )

    def _attend_windows(
        self, shape: _Shape, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array, reach: int
    ) -> None:
        """Issue a launch for every `_WINDOWS` windows within reach, and one that joins the results.

        A launch whose windows all lie beyond the position does no work.
        """
        traits = self.traits
        rows = cache.window
        shares = -(-cache.context // (_WINDOWS * rows))
        used = -(-reach // (_WINDOWS * rows))
        cut = Cut.of(traits, shape, cache, 1, shares)
        parts, ends = self._parts(shape.heads, shares, shape.head_size)
        kernel = self._kernel(attention_windows(traits, shape, cut, rows))
        for share in range(used):
            first = share * _WINDOWS * rows
            windows: dict[str, Any] = {}
            for number in range(_WINDOWS):
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

    def _small(self, count: int, *arrays: ps.Array) -> bool:
        """Whether one row of each can be read through uniform blocks."""
        return count == 1 and all(self._fits(array) for array in arrays)

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


@dataclass(frozen=True)
class Traits:
    """The properties of a device that decide how kernels are compiled."""

    shared: bool  # large workgroups that share memory; else single subgroups
    lanes: int  # invocations of a subgroup
    plain: bool  # no subgroup arithmetic
    small: bool  # inputs that fit are read through uniform blocks of floats
    wide: bool  # 64-bit integers
    windows: bool  # so is the KV cache
    cores: int
    most_turns: int = 0  # limit on loop iterations of an invocation, all loops together; 0: none
    texels: bool = False  # attention of several tokens reads through texel buffers

    @classmethod
    def of(cls, device: ps.Device, variant: Choice | None = None) -> Traits:
        info = device.info
        features = info.features
        lone = {"subgroupArithmetic", "subgroupShuffle"} <= features
        wanted = variant or ("cpu" if info.kind == "cpu" and lone else "gpu")
        if wanted == "cpu" and not lone:
            raise ps.Unsupported(
                f"the variant for CPU drivers needs subgroups; {info.name} has none"
            )
        return cls(
            shared=wanted == "gpu",
            lanes=int(info.limits["subgroup_size"]),  # type: ignore[arg-type]
            plain="subgroupArithmetic" not in features,
            small=wanted == "cpu" and "scalarBlockLayout" in features,
            wide="shaderInt64" in features,
            # SwiftShader takes minutes to compile attention_windows.comp.
            windows=wanted == "cpu" and "scalarBlockLayout" in features and "llvmpipe" in info.name,
            cores=os.cpu_count() or 1,
            most_turns=MOST_TURNS if info.kind == "cpu" else 0,
            texels=wanted == "cpu" and takes_rows(device) and "rgba32ui" in info.texel_formats,
        )

    @classmethod
    def typical(cls, subgroup_size: int) -> list[Traits]:
        """Those of a CPU driver, with subgroups of 8, and of a GPU, with subgroups of that size."""
        return [
            cls(
                shared,
                subgroup_size if shared else 8,
                False,
                not shared,
                True,
                not shared,
                2,
                texels=not shared,
            )
            for shared in (False, True)
        ]

    def group(self, size: int) -> tuple[Defines, dict[str, int]]:
        """Defines and constants of a kernel with workgroups of `size`, or of one subgroup."""
        if not self.shared:
            return {"LONE": 1}, {"local_size_x": self.lanes}
        return {"PLAIN": 1} if self.plain else {}, {"local_size_x": size}


@dataclass(frozen=True)
class _Shape:
    """The heads of a layer, and how its cache stores them."""

    heads: int
    kv_heads: int
    head_size: int
    halves: bool

    @classmethod
    def of(cls, q: ps.Array, cache: Cache) -> _Shape:
        heads, rest = divmod(q.shape[-1], cache.head_size)
        if rest or heads % cache.kv_heads:
            raise ps.ShapeMismatch(
                f"queries of {q.shape[-1]} are not a multiple of the cache's {cache.kv_heads} "
                f"heads of {cache.head_size}"
            )
        return cls(heads, cache.kv_heads, cache.head_size, cache.halves)

    def defines(self, traits: Traits) -> Defines:
        found: Defines = {
            "HEADS": self.heads, "KV_HEADS": self.kv_heads, "HEAD_SIZE": self.head_size, **STATE,
        }  # fmt: skip
        if self.halves:
            found["HALVES"] = 1
        if traits.wide and self.head_size % (4 if self.halves else 2) == 0:
            found["WIDE"] = 1
        return found


@dataclass(frozen=True)
class Cut:
    """How attention is split: tokens and heads per workgroup, and shares of the rows."""

    tokens: int
    heads: int
    splits: int

    @classmethod
    def of(cls, traits: Traits, shape: _Shape, cache: Cache, count: int, splits: int | None) -> Cut:
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


def _fewest_splits(traits: Traits, shape: _Shape, cache: Cache) -> int:
    """Return the fewest shares that keep every invocation within `traits.most_turns` iterations.

    `turns` counts the loop iterations that attention_shared.comp or attention_lanes.comp makes for
    a block of rows if the compiler unrolls nothing. Each loop counts one more, for its exit.
    """
    if not traits.most_turns:
        return 1
    unit = (2 if shape.halves else 1) * (2 if "WIDE" in shape.defines(traits) else 1)
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


# What each kernel is compiled from.


def rmsnorm(traits: Traits, kind: str, small: int | None) -> Shader:
    defines, constants = traits.group(256)
    defines["KIND"] = _VECTOR_KINDS[kind]
    if small:
        defines["SMALL"] = small
    return Shader.of("rmsnorm", "rmsnorm", defines, constants)


def rope_store(
    traits: Traits, shape: _Shape, rope_dims: int, layout: str, kind: str | None, small: bool
) -> Shader:
    defines, constants = traits.group(64)
    defines |= shape.defines(traits)
    defines.pop("WIDE", None)  # it writes single words
    defines["ROPE_DIMS"] = rope_dims
    if layout == "adjacent":
        defines["ADJACENT"] = 1
    if kind is not None:
        defines["NORMS"] = 1
        defines["KIND"] = _VECTOR_KINDS[kind]
    if small:
        defines["SMALL"] = 1
    return Shader.of("rope_store", "rope_store", defines, constants)


def attention_lanes(traits: Traits, shape: _Shape, cut: Cut, small: int | None) -> Shader:
    defines = shape.defines(traits) | {
        "LANES": traits.lanes, "TOKENS": cut.tokens, "HEADS_EACH": cut.heads, "SPLITS": cut.splits,
        "SCALE": shape.head_size**-0.5,
    }  # fmt: skip
    if small:
        defines["SMALL"] = small
    return Shader.of("attention", "attention_lanes", defines, {})


def attention_rows(traits: Traits, shape: _Shape, each: int) -> Shader:
    quads = 2 if shape.halves else 1
    defines = shape.defines(traits) | {
        "EACH": each, "SCORES": 16 * each, "QUADS": quads, "MINE": quads * each,
        "ROW_QUADS": 16 * quads, "SCALE": shape.head_size**-0.5,
    }  # fmt: skip
    defines.pop("WIDE", None)  # a load takes 16 bytes
    return Shader.of("attention", "attention_rows", defines, {"local_size_x": traits.lanes})


def attention_windows(traits: Traits, shape: _Shape, cut: Cut, rows: int) -> Shader:
    defines = shape.defines(traits) | {
        "LANES": traits.lanes, "HEADS_EACH": cut.heads, "SPLITS": cut.splits,
        "WINDOW_ROWS": rows, "SCALE": shape.head_size**-0.5,
    }  # fmt: skip
    defines.pop("WIDE", None)  # a load takes 16 bytes
    return Shader.of("attention", "attention_windows", defines, {})


def attention_shared(traits: Traits, shape: _Shape, splits: int) -> Shader:
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


_REMEMBER = Shader.of("remember", "remember", STATE, {"local_size_x": 64})
_ADVANCE = Shader.of("advance", "advance", STATE, {})


def _vector(weight: Weight, n: int) -> tuple[ps.Array, int]:
    """Return the words that hold a vector of n elements, and the byte at which it begins."""
    if weight.kind not in _VECTOR_KINDS:
        raise ps.Unsupported(
            f"{weight.name}: a norm of kind {weight.kind}; there are {', '.join(_VECTOR_KINDS)}"
        )
    if (weight.rows, weight.columns) != (1, n) or len(weight.pieces) != 1:
        raise ps.ShapeMismatch(
            f"{weight.name}: {weight.rows} × {weight.columns} in {len(weight.pieces)} pieces; "
            f"wanted is a vector of {n} in one"
        )
    return weight.pieces[0].words, weight.pieces[0].first


def _check_rows(what: str, count: int, width: int, *arrays: ps.Array) -> None:
    """Check that each array has `count` rows of `width`; a kernel would go out of bounds else."""
    if count < 1:
        raise ps.InvalidValue(f"{what}: count={count}; at least one token is wanted")
    for array in arrays:
        if array.ndim != 2 or array.shape[0] < count or array.shape[1] != width:
            raise ps.ShapeMismatch(
                f"{what}: {array.name!r} has shape {array.shape}; wanted are {count} rows of "
                f"{width}"
            )


def layer_kernels(subgroup_size: int = 64) -> list[Shader]:
    """Every variant of every kernel here, in the shapes of Qwen3-0.6B.

    `subgroup_size` is that of the GPU; variants for CPU drivers have subgroups of 8.
    """
    found: list[Shader] = []
    for traits in Traits.typical(subgroup_size):
        single = [None] if traits.shared else [None, 1024]
        found += [rmsnorm(traits, kind, n) for kind in _VECTOR_KINDS for n in single]
        for halves in (False, True):
            shape = _Shape(16, 8, 128, halves)
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
            else:
                cuts = (Cut(1, 2, 1), Cut(1, 2, 4), Cut(4, 2, 1))
                found += [attention_lanes(traits, shape, c, 2048 * c.tokens) for c in cuts]
                found += [attention_rows(traits, shape, each) for each in (1, 2, 3, 4)]
                found.append(attention_windows(traits, shape, Cut(1, 2, 6), 32 if halves else 16))
        found.append(attention_join(traits, 128, 4))
    return [*found, _REMEMBER, _ADVANCE]
