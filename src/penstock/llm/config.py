"""A model's configuration: its sizes, and its rotary position embedding.

`Config` is the same whether it comes from the keys of a GGUF file or from a config.json. Rotary
position embedding (RoPE) rotates pairs of a head's values by `position * frequency`; `RopeScaling`
says how a model stretches the frequencies to longer contexts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.llm.errors import ModelError

ARCHITECTURES = ("qwen3", "qwen2", "llama")
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


class Keys:
    """Typed access to untrusted keys; every error names the file and the key."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._values = values

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key)
        if isinstance(value, np.ndarray) and value.size:  # one number per layer
            if not (value == value[0]).all():
                raise ModelError(f"{self.where}: {key} differs from layer to layer: not supported")
            value = value[0].item()
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        try:
            made = float(value)
        except OverflowError:
            made = math.inf
        if not math.isfinite(made):
            raise self._wrong(key, "a finite number", value)
        return made

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def inner(self, key: str) -> Keys:
        value = self._values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return Keys(f"{self.where}: {key}", value or {})

    def _wrong(self, key: str, wanted: str, value: Any) -> ModelError:
        if value is None:
            return ModelError(f"{self.where}: {key} is missing; it must be {wanted}")
        shown = repr(value)
        return ModelError(f"{self.where}: {key} must be {wanted}, not {shown[:80]}")


def from_gguf(
    where: str,
    metadata: Mapping[str, Any],
    vocabulary: int,
    tied: bool,
    qk_norm: bool,
    biases: bool,
) -> Config:
    """Read the config from a GGUF file's keys. The caller passes what only the tensors show."""
    keys = Keys(where, metadata)
    arch = _architecture(where, keys.text("general.architecture"))
    heads = keys.integer(f"{arch}.attention.head_count")
    hidden = keys.integer(f"{arch}.embedding_length")
    head_size = keys.integer(f"{arch}.attention.key_length", hidden // max(1, heads))
    if keys.integer(f"{arch}.attention.value_length", head_size) != head_size:
        raise ModelError(f"{where}: keys and values of different head sizes are not supported")
    if keys.integer(f"{arch}.expert_count", 0):
        raise ModelError(f"{where}: mixtures of experts are not supported")
    context = keys.integer(f"{arch}.context_length")
    if 0 < keys.integer(f"{arch}.attention.sliding_window", 0) < context:
        raise ModelError(f"{where}: sliding-window attention is not supported")
    return _checked(
        where,
        Config(
            architecture=arch,
            layers=keys.integer(f"{arch}.block_count"),
            hidden=hidden,
            ffn=keys.integer(f"{arch}.feed_forward_length"),
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
    keys = Keys(where, values)
    arch = _architecture(where, keys.text("model_type"))
    heads, hidden = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    head_size = keys.integer("head_dim", hidden // max(1, heads))
    if keys.text("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"{where}: hidden_act {keys.get('hidden_act')!r} is not supported: silu")
    kinds = keys.get("layer_types") or []
    if keys.flag("use_sliding_window", False) or (
        isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds)
    ):
        raise ModelError(f"{where}: only full attention is supported, not sliding windows")
    context = keys.integer("max_position_embeddings")
    # Newer files have all in rope_parameters; older ones at the top level and in rope_scaling.
    rope = keys.inner("rope_parameters" if keys.has("rope_parameters") else "rope_scaling")
    base = rope.number("rope_theta", keys.number("rope_theta", 10000.0))
    portion = rope.number("partial_rotary_factor", keys.number("partial_rotary_factor", 1.0))
    if not 0 < portion <= 1:
        raise ModelError(f"{where}: partial_rotary_factor must be above 0 and at most 1")
    return _checked(
        where,
        Config(
            architecture=arch,
            layers=keys.integer("num_hidden_layers"),
            hidden=hidden,
            ffn=keys.integer("intermediate_size"),
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
            tied=keys.flag("tie_word_embeddings", False),
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


def _architecture(where: str, name: str) -> str:
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{where}: architecture {name[:40]!r} is not supported; there are "
            f"{', '.join(ARCHITECTURES)}"
        )
    return name


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
