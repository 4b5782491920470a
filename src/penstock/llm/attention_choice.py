"""Measures which way of computing a prompt's attention suits a device (`layers.ATTENTION_WAYS`)."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

import penstock as ps
from penstock.llm.compiling import Compiled
from penstock.llm.kv_cache import Cache
from penstock.llm.layers import Layers

#: Seconds that the other ways may take, compilation included, after the first.
BUDGET = 0.05
_TOKENS = 32
_DEPTH = 256  # rows of the KV cache that are read
_REPEAT = 3


class Heads(NamedTuple):
    """The heads of a model, and the number format of its KV cache."""

    heads: int
    kv_heads: int
    head_size: int
    cache: str


def fastest(device: ps.Device, heads: Heads, ways: list[str], compiled: Compiled) -> str:
    """Measure the ways in turn until the time is up. The first is taken without a comparison then.

    The kernels of the first way are those that the model needs if it wins: its time is no delay.
    """
    cache = Cache.new(device, _DEPTH, heads.kv_heads, heads.head_size, cache_type=heads.cache)
    for plane in (cache.keys, cache.values):
        plane.fill(0)
    q = device.zeros((_TOKENS, heads.heads * heads.head_size))
    y = device.empty(q.shape)
    state = device.array(np.array([_DEPTH - _TOKENS, 0, 0, 0], np.uint32))
    taken: dict[str, float] = {}
    longest = others = 0.0
    for way in ways:
        if taken and others + longest > BUDGET:
            break
        begun = time.perf_counter()
        layers = Layers(device, attention=way, compiled=compiled)
        found = measure(layers, q, cache, state, y)
        spent = time.perf_counter() - begun
        longest = max(longest, spent)
        others += spent if taken else 0.0
        taken[way] = found
    return min(taken, key=lambda way: taken[way])


def measure(layers: Layers, q: ps.Array, cache: Cache, state: ps.Array, y: ps.Array) -> float:
    """Return the seconds that attention takes once its kernels are compiled."""
    times = []
    for _ in range(_REPEAT + 1):
        begun = time.perf_counter()
        layers.attention(q, cache, state, y, count=_TOKENS)
        layers.device.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times[1:])
