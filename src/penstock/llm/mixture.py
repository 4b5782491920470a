"""The experts of a model: how many there are, how many a token takes, and how a file says so."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.llm.errors import ModelError
from penstock.llm.keys import Keys

#: The architectures that have experts.
WITH_EXPERTS = ("qwen3moe", "qwen35moe", "qwen3next")
_MOST_EXPERTS = 1 << 10
_MOST_CHOSEN = 1 << 6
_MOST_LAYERS = 1 << 10
_MOST_FFN = 1 << 20


@dataclass(frozen=True)
class Mixture:
    """The experts of the layers that have them: feed-forward networks, of which a router chooses.

    The router's product gives a number for each expert; a softmax turns these into shares. The
    `chosen` experts with the largest shares add to the layer's result, each times its share. With
    `normalized` the shares of the chosen are scaled to a sum of 1. A shared expert, if `shared_ffn`
    is not 0, adds to every token's result, times the sigmoid of a product of its own.
    """

    experts: int
    chosen: int
    ffn: int  # of each expert
    normalized: bool
    shared_ffn: int = 0
    dense_layers: frozenset[int] = frozenset()  # that have a single network instead


def gguf_mixture(keys: Keys, arch: str) -> Mixture | None:
    """Read the keys of a GGUF file; None if the architecture has no experts."""
    count = keys.integer(f"{arch}.expert_count", 0)
    if not count:
        if arch in WITH_EXPERTS:
            raise ModelError(f"{keys.where}: {arch}.expert_count is missing or 0")
        return None
    if arch not in WITH_EXPERTS:
        raise _no_experts(keys.where, arch)
    # 1 is a softmax; other gates, groups and scales belong to other architectures.
    for name, usual in (("expert_gating_func", 1), ("expert_group_count", 1)):
        if keys.integer(f"{arch}.{name}", usual) not in (0, usual):
            raise ModelError(f"{keys.where}: {arch}.{name} other than {usual} is not supported")
    if keys.number(f"{arch}.expert_weights_scale", 1.0) not in (0.0, 1.0):
        raise ModelError(f"{keys.where}: {arch}.expert_weights_scale is not supported")
    return Mixture(
        experts=count,
        chosen=keys.integer(f"{arch}.expert_used_count"),
        ffn=keys.integer(f"{arch}.expert_feed_forward_length"),
        normalized=keys.flag(f"{arch}.expert_weights_norm", True),
        shared_ffn=keys.integer(f"{arch}.expert_shared_feed_forward_length", 0),
    )


def json_mixture(keys: Keys, arch: str) -> Mixture | None:
    """The same from a config.json."""
    name = "num_experts" if keys.has("num_experts") else "num_local_experts"
    if arch not in WITH_EXPERTS:
        if keys.integer(name, 0):
            raise _no_experts(keys.where, arch)
        return None
    layers = keys.integer("num_hidden_layers")
    step = keys.integer("decoder_sparse_step", 1)
    listed = keys.get("mlp_only_layers") or []
    if step < 1 or not isinstance(listed, list) or not all(type(one) is int for one in listed):
        raise ModelError(
            f"{keys.where}: decoder_sparse_step must be a number from 1 on, and mlp_only_layers "
            "a list of numbers of layers"
        )
    dense = frozenset(listed)  # a hostile file may list millions
    every = range(min(layers, _MOST_LAYERS))
    return Mixture(
        experts=keys.integer(name),
        chosen=keys.integer("num_experts_per_tok"),
        ffn=keys.integer("moe_intermediate_size"),
        # Files omit transformers' defaults.
        normalized=keys.flag("norm_topk_prob", arch != "qwen3moe"),
        shared_ffn=keys.integer("shared_expert_intermediate_size", 0),
        dense_layers=frozenset(n for n in every if n in dense or (n + 1) % step),
    )


def check_mixture(where: str, mixture: Mixture) -> None:
    """Raise `ModelError` unless the numbers make sense."""
    sane = 1 <= mixture.experts <= _MOST_EXPERTS
    sane &= 1 <= mixture.chosen <= min(mixture.experts, _MOST_CHOSEN)
    sane &= 1 <= mixture.ffn <= _MOST_FFN and 0 <= mixture.shared_ffn <= _MOST_FFN
    if not sane:
        raise ModelError(
            f"{where}: {mixture.chosen} of {mixture.experts} experts of {mixture.ffn}, and a "
            f"shared one of {mixture.shared_ffn}, make no sense; up to {_MOST_EXPERTS} are "
            f"supported, of which up to {_MOST_CHOSEN} are chosen"
        )


def _no_experts(where: str, arch: str) -> ModelError:
    return ModelError(
        f"{where}: a {arch} model with a mixture of experts is not supported; of the architectures "
        f"that are, these have one: {', '.join(WITH_EXPERTS)}"
    )
