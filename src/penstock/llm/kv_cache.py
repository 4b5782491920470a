"""The KV cache: keys and values of every position, and the number formats that it may have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import penstock as ps

#: The number formats of the KV cache. "q8_0" is 8 bits each, and a float16 factor for 32 of a head.
CACHE_TYPES = ("f16", "f32", "q8_0")
WINDOWS = 6  # per plane and launch: twelve in all, within the limit on uniform blocks
_SCALED = 32  # elements that share a factor


@dataclass(frozen=True)
class Cache:
    """The KV cache of one layer: two planes, keys and values, with a row for each position.

    A plane is float32, or uint32 words that pack two float16 each, or four bytes each and their
    factors (shaders/cache.glsl): `kind` is one of `CACHE_TYPES`. Its rows come in whole windows
    of `window` rows, or as many as the next plane needs to begin where the device can bind it, so
    it may have more rows than the context. A window fits a uniform block;
    `window` is 0 if not even one row does, or if kernels do not read that kind through windows.
    """

    keys: ps.Array
    values: ps.Array
    context: int
    kv_heads: int
    head_size: int
    window: int
    kind: str

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
        """An empty cache for `context` positions; `cache_type` is one of `CACHE_TYPES`."""
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
        check_cache(cache_type, head_size)
        if min(context, kv_heads) < 1:
            raise ps.InvalidValue(f"a cache of {context} positions and {kv_heads} heads")
        words = row_words(cache_type, kv_heads, head_size)
        window = 0 if cache_type == "q8_0" else _window(device, context, 4 * words)
        step = window or _rows_to_bind(device, 4 * words)
        rows = -(-context // step) * step
        dtype: Any = np.float32 if cache_type == "f32" else np.uint32
        whole = device.empty((2 * layers, rows, words), dtype, name="cache", role=role)
        made = [
            cls(whole[number], whole[number + 1], context, kv_heads, head_size, window, cache_type)
            for number in range(0, 2 * layers, 2)
        ]
        return whole, made


def check_cache(cache_type: str, head_size: int) -> None:
    """Raise unless a cache of that type can hold heads of that size."""
    if cache_type not in CACHE_TYPES:
        known = ", ".join(map(repr, CACHE_TYPES))
        raise ps.InvalidValue(f"a cache of {cache_type!r}; there are {known}")
    if head_size % 2 or not 2 <= head_size <= 256:
        raise ps.Unsupported(f"heads of {head_size}; an even number up to 256 is supported")
    if cache_type == "q8_0" and head_size % _SCALED:
        raise ps.Unsupported(
            f"a cache of 'q8_0' needs heads of a multiple of {_SCALED}, and these are of "
            f"{head_size}; use 'f16'"
        )


def row_words(cache_type: str, kv_heads: int, head_size: int) -> int:
    """Return how many words of 4 bytes a row of a plane takes."""
    if cache_type == "q8_0":
        return -(-kv_heads * (head_size // 4 + scale_words(head_size)) // 4) * 4
    return kv_heads * head_size // (1 if cache_type == "f32" else 2)


def scale_words(head_size: int) -> int:
    """Return how many words hold the factors of a head in a cache of bytes: two in each."""
    return -(-head_size // (2 * _SCALED))


def _rows_to_bind(device: ps.Device, row: int) -> int:
    """Return the fewest rows of `row` bytes behind which the device can bind others."""
    alignment = device.info.limits["binding_alignment"]
    assert isinstance(alignment, int)
    return alignment // math.gcd(alignment, row)


def _window(device: ps.Device, context: int, row: int) -> int:
    """Return the rows of a window, for rows of `row` bytes.

    A window is a multiple of the subgroup size and begins where the device can bind it.
    """
    limits = {name: limit for name, limit in device.info.limits.items() if isinstance(limit, int)}
    alignment = limits["uniform_alignment"]
    step = math.lcm(limits["subgroup_size"], alignment // math.gcd(alignment, row))
    most = min(limits["uniform_range"], 1 << 16) // row // step * step
    return min(most, -(-context // WINDOWS // step) * step)
