"""A model's configuration: its sizes, and its rotary position embedding.

`Config` is the same whether it comes from the keys of a GGUF file or from a config.json. Rotary
position embedding (RoPE) rotates pairs of a head's values by `position * frequency`; `RopeScaling`
says how a model stretches the frequencies to longer contexts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.llm.delta_net import DeltaNet, check_delta_net, gguf_delta_net, json_delta_net
from penstock.llm.errors import ModelError
from penstock.llm.keys import Keys
from penstock.llm.mixture import Mixture, check_mixture, gguf_mixture, json_mixture

ARCHITECTURES = ("qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen3next", "qwen2", "llama")
#: What a config.json calls an architecture, where GGUF files have another name.
_JSON_NAMES = {
    "qwen3_moe": "qwen3moe", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
}  # fmt: skip
#: Files for text and images have the configuration of the text in `text_config`.
_WITH_IMAGES = ("qwen3_5", "qwen3_5_moe")
RopeLayout = Literal["adjacent", "halves"]
# Limits far above every known model, and far below what could exhaust memory.
_MOST: dict[str, int] = {
    "layers": 1 << 10, "hidden": 1 << 18, "ffn": 1 << 20, "heads": 1 << 12, "kv_heads": 1 << 12,
    "head_size": 1 << 14, "context": 1 << 28, "vocabulary": 1 << 23, "rope_dimensions": 1 << 14,
}  # fmt: skip


@dataclass(frozen=True)
class RopeScaling:
    """How frequencies are changed for contexts longer than the model was first trained on.

    linear: divides all frequencies by `factor`. llama3: divides low frequencies by `factor`, keeps
    high ones, and interpolates between `low` and `high` rotations within the original context.
    yarn: the same between `beta_slow` and `beta_fast` rotations; also multiplies cosines and sines
    by `attention_factor`.
    """

    kind: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    original_context: int = 0
    low: float = 1.0
    high: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True)
class Config:
    """The sizes of a model. `head_size * heads` need not be `hidden`."""

    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    vocabulary: int
    norm_epsilon: float
    rope_base: float
    rope_layout: RopeLayout
    rope_dimensions: int
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    qk_norm: bool = False  # queries and keys are normalised per head
    biases: bool = False  # at least one matrix product has a bias
    tied: bool = False  # the output matrix is token_embd
    mixture: Mixture | None = None
    delta_net: DeltaNet | None = None  # layers with a state instead of a KV cache
    gated: bool = False  # attn_q also makes gates: of each head first the query, then its gate
    norm_shift: float = 0.0  # what norms add to their weights; no norm of a DeltaNet layer does

    @property
    def attention_layers(self) -> list[int]:
        """The layers that have a KV cache."""
        without = self.delta_net.layers if self.delta_net else frozenset[int]()
        return [layer for layer in range(self.layers) if layer not in without]

    def mixture_of(self, layer: int) -> Mixture | None:
        """The experts of a layer; None if a single network takes their place."""
        mixture = self.mixture
        return None if mixture is None or layer in mixture.dense_layers else mixture

    def frequencies(self, factors: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
        """Return the radians per position of each pair; divides by `factors`, then scales."""
        exponents = np.arange(0, self.rope_dimensions, 2, dtype=np.float64) / self.rope_dimensions
        plain = self.rope_base**-exponents
        if factors is not None:
            divisors = np.asarray(factors, np.float64).reshape(-1)
            if divisors.shape != plain.shape or not (divisors > 0).all():
                raise ModelError(
                    f"rope_freqs.weight has {divisors.size} factors, not all above 0 or not "
                    f"{plain.size} as {self.rope_dimensions} rotated values need"
                )
            plain = plain / divisors
        scaling = self.rope_scaling
        if scaling.kind == "linear":
            return np.asarray(plain / scaling.factor)
        if scaling.kind == "llama3":
            return _llama3(plain, scaling)
        if scaling.kind == "yarn":
            return _yarn(plain, scaling, self.rope_dimensions, self.rope_base)
        return np.asarray(plain)

    def angles(self, context: int, factors: npt.ArrayLike | None = None) -> npt.NDArray[np.float32]:
        """Return cosine and sine of each position's rotations: float32, (context, pairs, 2)."""
        if context < 1:
            raise ModelError(f"angles for {context} positions were asked for; at least 1")
        turns = np.outer(np.arange(context, dtype=np.float64), self.frequencies(factors))
        made = np.empty((*turns.shape, 2), np.float32)
        scale = self.rope_scaling.attention_factor
        made[..., 0] = np.cos(turns) * scale
        made[..., 1] = np.sin(turns) * scale
        return made


def _llama3(plain: npt.NDArray[np.float64], scaling: RopeScaling) -> npt.NDArray[np.float64]:
    turns = scaling.original_context * plain / (2 * math.pi)  # within the original context
    smooth = np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0, 1)
    return np.asarray(plain * (smooth + (1 - smooth) / scaling.factor))


def _yarn(
    plain: npt.NDArray[np.float64], scaling: RopeScaling, dimensions: int, base: float
) -> npt.NDArray[np.float64]:
    def pair_with(turns: float) -> float:
        """Return the index of the pair that makes this many turns in the original context."""
        length = scaling.original_context / (turns * 2 * math.pi)
        return dimensions * math.log(length) / (2 * math.log(base))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dimensions - 1)
    ramp = np.clip((np.arange(plain.size) - low) / max(high - low, 0.001), 0, 1)
    return np.asarray(plain * (1 - ramp) + plain / scaling.factor * ramp)


# Reading a config.


def from_gguf(
    where: str,
    metadata: Mapping[str, Any],
    vocabulary: int,
    tied: bool,
    qk_norm: bool,
    biases: bool,
    tensors: Collection[str] = (),
) -> Config:
    """Read the config from a GGUF file's keys. The caller passes what only the tensors show."""
    keys = Keys(where, metadata)
    arch = _architecture(where, keys.text("general.architecture"))
    heads = keys.integer(f"{arch}.attention.head_count")
    hidden = keys.integer(f"{arch}.embedding_length")
    head_size = keys.integer(f"{arch}.attention.key_length", hidden // max(1, heads))
    if keys.integer(f"{arch}.attention.value_length", head_size) != head_size:
        raise ModelError(f"{where}: keys and values of different head sizes are not supported")
    mixture = gguf_mixture(keys, arch)
    # Blocks that predict tokens further ahead come last, and are not used.
    layers = keys.integer(f"{arch}.block_count") - keys.integer(f"{arch}.nextn_predict_layers", 0)
    delta_net = gguf_delta_net(keys, arch, layers, tensors)
    context = keys.integer(f"{arch}.context_length")
    if 0 < keys.integer(f"{arch}.attention.sliding_window", 0) < context:
        raise ModelError(f"{where}: sliding-window attention is not supported")
    return _checked(
        where,
        Config(
            architecture=arch,
            layers=layers,
            hidden=hidden,
            ffn=keys.integer(f"{arch}.feed_forward_length", mixture.ffn if mixture else None),
            heads=heads,
            kv_heads=keys.integer(f"{arch}.attention.head_count_kv", heads),
            head_size=head_size,
            context=context,
            vocabulary=vocabulary,
            norm_epsilon=keys.number(f"{arch}.attention.layer_norm_rms_epsilon"),
            rope_base=keys.number(f"{arch}.rope.freq_base", 10000.0),
            # GGUF files of the llama architecture store the rows of q and k reordered for this.
            rope_layout="adjacent" if arch == "llama" else "halves",
            rope_dimensions=keys.integer(f"{arch}.rope.dimension_count", head_size),
            rope_scaling=_gguf_scaling(keys, arch, context),
            qk_norm=qk_norm,
            biases=biases,
            tied=tied,
            mixture=mixture,
            delta_net=delta_net,
            gated=delta_net is not None,
        ),
    )


def _gguf_scaling(keys: Keys, arch: str, context: int) -> RopeScaling:
    prefix = f"{arch}.rope.scaling"
    kind = keys.text(f"{prefix}.type", "none")
    factor = keys.number(f"{prefix}.factor", 0.0) or keys.number(f"{arch}.rope.scale_linear", 0.0)
    if kind == "none" and keys.has(f"{arch}.rope.scale_linear"):
        kind = "linear"  # old files have only this key
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind == "yarn" and not keys.number(f"{prefix}.yarn_log_multiplier", 0.0):
        factor = factor or 1.0
        stated = keys.number(f"{prefix}.attn_factor", 1.0)
        stated *= keys.number(f"{prefix}.yarn_attn_factor", 1.0)
        return RopeScaling(
            "yarn",
            factor,
            keys.integer(f"{prefix}.original_context_length", context),
            beta_fast=keys.number(f"{prefix}.yarn_beta_fast", 32.0),
            beta_slow=keys.number(f"{prefix}.yarn_beta_slow", 1.0),
            attention_factor=stated * _magnitude(factor),
        )
    raise _no_such_scaling(keys.where, kind)


def from_json(where: str, values: Mapping[str, Any]) -> Config:
    """Read the config from a config.json of transformers. The caller adds what tensors show."""
    keys = outer = Keys(where, values)
    if outer.get("model_type") in _WITH_IMAGES:
        keys = outer.inner("text_config")
    arch = _json_architecture(where, keys.text("model_type"))
    packed = outer if outer.has("quantization_config") else keys
    if packed.has("quantization_config"):
        method = packed.inner("quantization_config").text("quant_method", "some method")
        raise ModelError(
            f"{where}: weights that are quantized by {method[:40]} are not supported; take the "
            "model in BF16, or as GGUF"
        )
    delta_net = json_delta_net(keys, arch)
    mixture = json_mixture(keys, arch)
    heads, hidden = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    head_size = keys.integer("head_dim", hidden // max(1, heads))
    if keys.text("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"{where}: hidden_act {keys.get('hidden_act')!r} is not supported: silu")
    if not keys.flag("attn_output_gate", True) and delta_net is not None:
        raise ModelError(f"{where}: attn_output_gate must be true for {arch}")
    kinds = keys.get("layer_types") or [] if delta_net is None else []
    if keys.flag("use_sliding_window", False) or (
        isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds)
    ):
        raise ModelError(f"{where}: only full attention is supported, not sliding windows")
    context = keys.integer("max_position_embeddings")
    # Newer files have all in rope_parameters; older ones at the top level and in rope_scaling.
    rope = keys.inner("rope_parameters" if keys.has("rope_parameters") else "rope_scaling")
    base = rope.number("rope_theta", keys.number("rope_theta", 10000.0))
    usual = 1.0 if delta_net is None else 0.25
    portion = rope.number("partial_rotary_factor", keys.number("partial_rotary_factor", usual))
    if not 0 < portion <= 1:
        raise ModelError(f"{where}: partial_rotary_factor must be above 0 and at most 1")
    return _checked(
        where,
        Config(
            architecture=arch,
            layers=keys.integer("num_hidden_layers"),
            hidden=hidden,
            ffn=keys.integer("intermediate_size", mixture.ffn if mixture else None),
            heads=heads,
            kv_heads=keys.integer("num_key_value_heads", heads),
            head_size=head_size,
            context=context,
            vocabulary=keys.integer("vocab_size"),
            norm_epsilon=keys.number("rms_norm_eps", 1e-6),
            rope_base=base,
            rope_layout="halves",
            rope_dimensions=int(min(head_size, 1 << 20) * portion),
            rope_scaling=_json_scaling(rope, context),
            # Files omit transformers' defaults; for these architectures the default is not tied.
            tied=outer.flag("tie_word_embeddings", keys.flag("tie_word_embeddings", False)),
            delta_net=delta_net,
            gated=delta_net is not None,
            norm_shift=1.0 if delta_net is not None else 0.0,
            mixture=mixture,
        ),
    )


def _json_scaling(rope: Keys, context: int) -> RopeScaling:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return RopeScaling()
    if kind not in ("linear", "llama3", "yarn"):
        raise _no_such_scaling(rope.where, kind)
    original = rope.integer("original_max_position_embeddings", context)
    implied = context / original if kind == "yarn" and original > 0 else None
    factor = rope.number("factor", implied)
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        return RopeScaling("llama3", factor, original, low=low, high=high)
    some, all_ = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    usual = _magnitude(factor)
    if some and all_:
        usual = _magnitude(factor, some) / _magnitude(factor, all_)
    return RopeScaling(
        "yarn",
        factor,
        original,
        beta_fast=rope.number("beta_fast", 32.0) or 32.0,
        beta_slow=rope.number("beta_slow", 1.0) or 1.0,
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", usual),
    )


def _magnitude(factor: float, scale: float = 1.0) -> float:
    """Return YaRN's factor on attention for a context stretched by `factor`."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _no_such_scaling(where: str, kind: str) -> ModelError:
    return ModelError(
        f"{where}: RoPE scaling {kind[:40]!r} is not supported; there are none, linear, llama3 "
        "and yarn"
    )


def _architecture(where: str, name: str, known: Sequence[str] = ARCHITECTURES) -> str:
    if name not in known:
        raise ModelError(
            f"{where}: architecture {name[:40]!r} is not supported; there are {', '.join(known)}"
        )
    return name


def _json_architecture(where: str, name: str) -> str:
    theirs = {ours: name for name, ours in _JSON_NAMES.items()}
    known = [*(theirs.get(one, one) for one in ARCHITECTURES), *_WITH_IMAGES]
    return _JSON_NAMES.get(_architecture(where, name, known), name)


def _checked(where: str, config: Config) -> Config:
    for name, most in _MOST.items():
        value = getattr(config, name)
        if not 1 <= value <= most:
            raise ModelError(f"{where}: {name} is {value}; it must be from 1 to {most:,}")
    if config.heads % config.kv_heads:
        raise ModelError(
            f"{where}: {config.heads} heads cannot share {config.kv_heads} kv heads evenly"
        )
    if config.rope_dimensions % 2 or config.rope_dimensions > config.head_size:
        raise ModelError(
            f"{where}: {config.rope_dimensions} rotated values; it must be an even number up to "
            f"the head size, {config.head_size}"
        )
    if not 0 <= config.norm_epsilon <= 1 or not 1 < config.rope_base <= 1e15:
        raise ModelError(
            f"{where}: norm_epsilon {config.norm_epsilon:g} or rope_base {config.rope_base:g} "
            "makes no sense"
        )
    _check_scaling(where, config.rope_scaling)
    if config.mixture is not None:
        check_mixture(where, config.mixture)
    if config.delta_net is not None:
        check_delta_net(where, config.delta_net)
        if not config.attention_layers:
            raise ModelError(
                f"{where}: a model without full attention in any layer is not supported"
            )
    return config


def _check_scaling(where: str, scaling: RopeScaling) -> None:
    sane = 1 / 64 <= scaling.factor <= 1 << 20 and 0 < scaling.attention_factor < 1000
    if scaling.kind == "llama3":
        sane &= 0 < scaling.low < scaling.high <= 1e6
        sane &= 0 < scaling.original_context <= 1 << 30
    if scaling.kind == "yarn":
        sane &= 1e-3 <= scaling.beta_slow <= scaling.beta_fast <= 1e6
        sane &= 0 < scaling.original_context <= 1 << 30
    if not sane:
        raise ModelError(f"{where}: RoPE scaling makes no sense: {scaling}")
