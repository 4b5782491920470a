"""The gated DeltaNet layers of a model: their sizes, their tensors, and how a file says so.

Such a layer has no KV cache. Each value head keeps a matrix of `key_size` × `value_size`, the
state, which every token changes: it fades by a factor, and the token's key writes its value into
it. `delta_layers` computes them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.llm.errors import ModelError
from penstock.llm.keys import Keys

#: The architectures that have such layers.
WITH_DELTA_NET = ("qwen35", "qwen35moe", "qwen3next")
_INTERVAL = 4  # by default, every fourth layer has full attention
_MOST_LAYERS = 1 << 10
_MOST_HEADS = 1 << 12
_MOST_SIZE = 1 << 10


@dataclass(frozen=True)
class DeltaNet:
    """The sizes of the DeltaNet layers, and how the file orders their tensors.

    A causal convolution of `taps` taps goes over queries, keys and values, channel by channel.
    Several value heads share a key head: neighbours, or with `tiled`, every `key_heads`-th, which
    is how GGUF files of some architectures reorder them.
    """

    layers: frozenset[int]  # the others have full attention
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    taps: int
    tiled: bool = False
    #: One matrix for queries, keys, values and gates, whose rows are grouped by key head.
    fused: bool = False
    #: One matrix for the factors that write and fade, whose rows are grouped by key head.
    fused_factors: bool = False
    #: The file has the logarithm of the fading rate, and not the rate itself, which is negative.
    log_rates: bool = False

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        return self.value_heads * self.value_size

    @property
    def channels(self) -> int:
        """What the convolution goes over: queries, keys and values."""
        return 2 * self.keys + self.values

    def tensors(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer's tensors, by their GGUF names without the prefix."""
        found: dict[str, tuple[int, ...]] = {
            "ssm_conv1d.weight": (self.channels, self.taps),
            "ssm_a": (self.value_heads,),
            "ssm_dt.bias": (self.value_heads,),
            "ssm_norm.weight": (self.value_size,),
            "ssm_out.weight": (hidden, self.values),
        }
        if self.fused:
            found["ssm_in.weight"] = (self.channels + self.values, hidden)
        else:
            found["attn_qkv.weight"] = (self.channels, hidden)
            found["attn_gate.weight"] = (self.values, hidden)
        if self.fused_factors:
            found["ssm_ba.weight"] = (2 * self.value_heads, hidden)
        else:
            found["ssm_alpha.weight"] = (self.value_heads, hidden)
            found["ssm_beta.weight"] = (self.value_heads, hidden)
        return found


def gguf_delta_net(keys: Keys, arch: str, layers: int, tensors: Collection[str]) -> DeltaNet | None:
    """Read the keys of a GGUF file; None if the architecture has no such layers."""
    if arch not in WITH_DELTA_NET:
        return None
    value_heads = keys.integer(f"{arch}.ssm.time_step_rank")
    inner = keys.integer(f"{arch}.ssm.inner_size")
    value_size, rest = divmod(inner, max(1, value_heads))
    if rest:
        raise ModelError(
            f"{keys.where}: {arch}.ssm.inner_size is {inner}; {value_heads} heads cannot share it"
        )
    marked = keys.get(f"{arch}.attention.recurrent_layers")
    if isinstance(marked, np.ndarray) and marked.size >= layers:
        own = frozenset(n for n in range(min(layers, _MOST_LAYERS)) if marked[n])
    else:
        interval = keys.integer(f"{arch}.full_attention_interval", _INTERVAL)
        own = _between(keys.where, layers, interval)
    return DeltaNet(
        layers=own,
        key_heads=keys.integer(f"{arch}.ssm.group_count"),
        value_heads=value_heads,
        key_size=keys.integer(f"{arch}.ssm.state_size"),
        value_size=value_size,
        taps=keys.integer(f"{arch}.ssm.conv_kernel"),
        tiled=arch != "qwen3next",
        fused=any(name.endswith(".ssm_in.weight") for name in tensors),
        fused_factors=any(name.endswith(".ssm_ba.weight") for name in tensors),
    )


def json_delta_net(keys: Keys, arch: str) -> DeltaNet | None:
    """The same from a config.json."""
    if arch not in WITH_DELTA_NET:
        return None
    layers = keys.integer("num_hidden_layers")
    kinds = keys.get("layer_types")
    if kinds is None:
        interval = keys.integer("full_attention_interval", _INTERVAL)
        own = _between(keys.where, layers, interval)
    else:
        own = _of_kinds(keys.where, kinds, layers)
    return DeltaNet(
        layers=own,
        key_heads=keys.integer("linear_num_key_heads", 16),
        value_heads=keys.integer("linear_num_value_heads", 32),
        key_size=keys.integer("linear_key_head_dim", 128),
        value_size=keys.integer("linear_value_head_dim", 128),
        taps=keys.integer("linear_conv_kernel_dim", 4),
        fused=arch == "qwen3next",
        fused_factors=arch == "qwen3next",
        log_rates=True,
    )


def check_delta_net(where: str, net: DeltaNet) -> None:
    """Raise `ModelError` unless the numbers make sense."""
    heads, sizes = (net.key_heads, net.value_heads), (net.key_size, net.value_size)
    if not (
        all(1 <= one <= _MOST_HEADS for one in heads)
        and all(1 <= one <= _MOST_SIZE for one in sizes)
    ):
        raise ModelError(
            f"{where}: DeltaNet layers of {net.key_heads} key heads of {net.key_size} and "
            f"{net.value_heads} value heads of {net.value_size} make no sense; up to "
            f"{_MOST_HEADS:,} heads of up to {_MOST_SIZE:,} are supported"
        )
    if net.key_size % 4:
        raise ModelError(f"{where}: key heads of {net.key_size}; a multiple of 4 is supported")
    if net.value_heads % net.key_heads:
        raise ModelError(
            f"{where}: {net.value_heads} value heads cannot share {net.key_heads} key heads evenly"
        )
    if not 2 <= net.taps <= 8:
        raise ModelError(f"{where}: a convolution of {net.taps} taps; 2 to 8 are supported")


def _between(where: str, layers: int, interval: int) -> frozenset[int]:
    """Return all layers but every `interval`-th."""
    if interval < 1:
        raise ModelError(f"{where}: full_attention_interval is {interval}; it must be from 1 on")
    return frozenset(n for n in range(min(layers, _MOST_LAYERS)) if (n + 1) % interval)


def _of_kinds(where: str, kinds: Any, layers: int) -> frozenset[int]:
    known = ("linear_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in known for k in kinds):
        raise ModelError(
            f"{where}: layer_types must name {known[0]} or {known[1]} for each of {layers} layers"
        )
    return frozenset(n for n, kind in enumerate(kinds) if kind == known[0])
