"""What the decoder's kernels must give, in float64 NumPy, and builders of what they take."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.llm.kv_cache import Cache
from penstock.llm.weights import Piece, Weight

Host = npt.NDArray[Any]

_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def vector(device: ps.Device, values: Host, kind: str, first: int = 0) -> Weight:
    """A vector of weights in the layout of a file, `first` bytes into its words."""
    data = bytes(first) + values.astype(_DTYPES[kind]).tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 4), np.uint32)
    piece = Piece(device.array(words, name="weight"), first, 0, 1)
    return Weight("weight", kind, 1, values.size, (piece,))


def stored(values: Host, kind: str) -> Host:
    """The numbers that such a vector holds."""
    return values.astype(_DTYPES[kind]).astype(np.float64)


def rmsnorm(x: Host, w: Host, eps: float) -> Host:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rope_angles(context: int, rope_dims: int, base: float) -> npt.NDArray[np.float32]:
    """Cosine and sine for each position and pair, shape (context, rope_dims / 2, 2)."""
    angle = np.outer(np.arange(context), base ** (-2.0 * np.arange(rope_dims // 2) / rope_dims))
    return np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)


def rotate(x: Host, angles: Host, layout: str) -> Host:
    """x of shape (tokens, heads, head_size), by the angles of each token, (tokens, pairs, 2)."""
    y = x.astype(np.float64).copy()
    pairs = angles.shape[1]
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
        if layout == "adjacent"
        else (slice(0, pairs), slice(pairs, 2 * pairs))
    )
    cosine, sine = (angles[:, None, :, i].astype(np.float64) for i in (0, 1))
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first] = a * cosine - b * sine
    y[..., second] = b * cosine + a * sine
    return y


def attention(q: Host, keys: Host, values: Host, position: int) -> Host:
    """q (tokens, heads, size) over keys and values (context, kv_heads, size), causally."""
    tokens, heads, size = q.shape
    group = heads // keys.shape[1]
    q, keys, values = (a.astype(np.float64) for a in (q, keys, values))
    y = np.zeros_like(q)
    for token in range(tokens):
        rows = min(position + token + 1, len(keys))
        k = np.repeat(keys[:rows], group, 1)
        v = np.repeat(values[:rows], group, 1)
        scores = np.einsum("hd,rhd->hr", q[token], k) / np.sqrt(size)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y[token] = np.einsum("hr,rhd->hd", weights / weights.sum(-1, keepdims=True), v)
    return y


def plane(cache: Cache, array: ps.Array) -> Host:
    """A plane of a cache as numbers, (context, kv_heads, head_size)."""
    data = array[: cache.context].numpy()
    if cache.kind == "f16":
        data = data.view(np.float16)
    elif cache.kind == "q8_0":
        return _from_bytes(cache, data)
    return data.reshape(cache.context, cache.kv_heads, cache.head_size).astype(np.float32)


def fill(cache: Cache, array: ps.Array, values: Host) -> Host:
    """Write numbers to a plane; returns those that it then holds."""
    flat = values.reshape(cache.context, -1)
    if cache.kind == "f16":
        flat = np.ascontiguousarray(flat.astype(np.float16)).view(np.uint32)
    elif cache.kind == "q8_0":
        flat = _to_bytes(cache, values)
    array[: cache.context].write(flat)
    return plane(cache, array)


def _bytes_of(cache: Cache) -> int:
    return cache.kv_heads * cache.head_size


def _to_bytes(cache: Cache, values: Host) -> Host:
    """Rows of bytes, and behind them a float16 for each 32 of a head; two of them fill a word."""
    blocks = values.reshape(cache.context, cache.kv_heads, -1, 32)
    factors = (np.abs(blocks).max(-1) / 127).astype(np.float16)
    rounded = np.rint(blocks / np.maximum(factors, 1e-7)[..., None].astype(np.float32))
    made = np.full((cache.context, 4 * cache.keys.shape[1]), 0x7E, np.uint8)  # NaN behind
    made[:, : _bytes_of(cache)] = (
        rounded.clip(-127, 127).astype(np.int8).view(np.uint8).reshape(cache.context, -1)
    )
    even = np.full((*factors.shape[:2], -(-factors.shape[2] // 2) * 2), np.nan, np.float16)
    even[..., : factors.shape[2]] = factors
    stored = even.reshape(cache.context, -1).view(np.uint8)
    made[:, _bytes_of(cache) : _bytes_of(cache) + stored.shape[1]] = stored
    return made.view(np.uint32)


def _from_bytes(cache: Cache, data: Host) -> Host:
    raw = np.ascontiguousarray(data).view(np.uint8)
    blocks = raw[:, : _bytes_of(cache)].view(np.int8).astype(np.float32)
    blocks = blocks.reshape(cache.context, cache.kv_heads, -1, 32)
    each = -(-blocks.shape[2] // 2) * 2
    nbytes = 2 * each * cache.kv_heads
    factors = np.ascontiguousarray(raw[:, _bytes_of(cache) : _bytes_of(cache) + nbytes])
    factors = factors.view(np.float16).astype(np.float32)
    factors = factors.reshape(cache.context, cache.kv_heads, each)[..., : blocks.shape[2], None]
    return np.asarray(blocks * factors).reshape(cache.context, cache.kv_heads, cache.head_size)


_random = np.random.default_rng(20)


def normal(*shape: int) -> npt.NDArray[np.float32]:
    return _random.standard_normal(shape, np.float32)
