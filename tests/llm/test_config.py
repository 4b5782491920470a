"""Rotations: every way to stretch a context, by its definition and as transformers does it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from penstock.llm import Config, ModelError
from penstock.llm.config import from_gguf, from_json
from penstock.llm.random_model import metadata_of, shape_of
from tests.llm.model_builders import hugging_face_config

SHAPE = shape_of("tiny", context=4096)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 512, "rope_theta": 500000.0}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
        "rope_theta": 1e6}  # fmt: skip
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn with attention factor": YARN | {"attention_factor": 0.7},
    "yarn with bounds": YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
    "yarn with magnitudes": YARN | {"mscale": 0.8, "mscale_all_dim": 0.5},
    "yarn not truncated": YARN | {"truncate": False},
}


def described(rope: dict[str, Any], **changes: Any) -> Config:
    return from_json("config.json", hugging_face_config(SHAPE, rope_parameters=rope, **changes))


@pytest.mark.parametrize("rope", ROPES)
def test_transformers_agrees(rope: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    ours = described(ROPES[rope])
    values = hugging_face_config(SHAPE, rope_parameters=dict(ROPES[rope]))
    theirs = LlamaRotaryEmbedding(transformers.LlamaConfig(**values | {"model_type": "llama"}))
    assert theirs.inv_freq.numpy() == pytest.approx(ours.frequencies(), rel=1e-6)
    cos, sin = theirs(torch.zeros(1, dtype=torch.float32), torch.arange(300)[None])
    angles = ours.angles(300)
    half = ours.rope_dimensions // 2
    # Theirs are of float32 frequencies: the error grows with the position.
    assert np.allclose(angles[..., 0], cos[0, :, :half].numpy(), atol=1e-4)
    assert np.allclose(angles[..., 1], sin[0, :, :half].numpy(), atol=1e-4)


def test_plain_rotations_by_definition() -> None:
    config = described(ROPES["default"])
    angles = config.angles(2000)
    assert angles.dtype == np.float32
    assert angles.shape == (2000, 32, 2)
    for position, pair in ((0, 0), (1, 0), (7, 3), (1999, 31), (1999, 0)):
        turn = position * 10000.0 ** (-2 * pair / 64)
        assert angles[position, pair, 0] == pytest.approx(math.cos(turn), abs=1e-7)
        assert angles[position, pair, 1] == pytest.approx(math.sin(turn), abs=1e-7)


def test_linear_is_a_slower_walk() -> None:
    linear, plain = described(ROPES["linear"]), described(ROPES["default"])
    assert np.allclose(linear.angles(51)[::5], plain.angles(21)[::2], atol=1e-6)


def test_llama3_keeps_short_waves_and_divides_long_ones() -> None:
    scaled, plain = described(LLAMA3), described(LLAMA3 | {"rope_type": "default"})
    ratio = scaled.frequencies() / plain.frequencies()
    turns = 512 * plain.frequencies() / (2 * math.pi)
    assert (ratio[turns > 4] == 1).all()
    assert ratio[turns < 1] == pytest.approx(1 / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert (np.diff(ratio[between]) < 0).all()


def test_factors_in_the_file_are_the_same_as_llama3_in_the_config() -> None:
    scaled, plain = described(LLAMA3), described(LLAMA3 | {"rope_type": "default"})
    factors = (plain.frequencies() / scaled.frequencies()).astype(np.float32)
    assert np.allclose(plain.angles(500, factors), scaled.angles(500), atol=1e-4)
    for wrong in (factors[1:], -factors, np.zeros(32)):
        with pytest.raises(ModelError, match=r"rope_freqs.weight"):
            plain.angles(5, wrong)


def test_yarn_keeps_the_first_and_divides_the_last() -> None:
    yarn, plain = described(YARN), described(YARN | {"rope_type": "default"})
    ratio = yarn.frequencies() / plain.frequencies()
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(1 / 4)
    assert yarn.rope_scaling.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert yarn.angles(1)[0, 0, 0] == pytest.approx(yarn.rope_scaling.attention_factor)


RAMPS = [  # what is changed; from which pair on frequencies are divided; from which on fully
    ({}, 3, 12),
    ({"truncate": False}, 3.7705, 11.7982),
    ({"original_max_position_embeddings": 64, "rope_theta": 1e4}, 0, 9),
    ({"original_max_position_embeddings": 10**9, "rope_theta": 1e4, "beta_fast": 1e5}, 25, 63),
]


@pytest.mark.parametrize(("changes", "low", "high"), RAMPS)
def test_yarn_divides_gradually(changes: dict[str, Any], low: float, high: float) -> None:
    rope = YARN | changes
    yarn, plain = described(rope), described(rope | {"rope_type": "default"})
    ramp = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    assert yarn.frequencies() / plain.frequencies() == pytest.approx(1 - 0.75 * ramp, abs=1e-4)


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "type"])
def test_old_and_new_spellings(spelling: str) -> None:
    rope = dict(YARN)
    changes: dict[str, Any] = {"rope_parameters": rope}
    if spelling != "rope_parameters":
        changes = {"rope_parameters": None, "rope_theta": rope.pop("rope_theta"),
                   "rope_scaling": rope}  # fmt: skip
    if spelling == "type":
        rope["type"] = rope.pop("rope_type")
    assert from_json("config.json", hugging_face_config(SHAPE, **changes)) == described(YARN)


GGUF_ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {"scaling.type": "linear", "scaling.factor": 2.5, "freq_base": 1e4}),
    "linear in old files": ("linear", {"scale_linear": 2.5, "freq_base": 1e4}),
    "yarn": ("yarn", {"scaling.type": "yarn", "scaling.factor": 4.0, "freq_base": 1e6,
                      "scaling.original_context_length": 1024}),
    "yarn with bounds": ("yarn with bounds", {
        "scaling.type": "yarn", "scaling.factor": 4.0, "freq_base": 1e6,
        "scaling.original_context_length": 1024, "scaling.yarn_beta_fast": 16.0,
        "scaling.yarn_beta_slow": 2.0}),
    "none": ("default", {"scaling.type": "none", "freq_base": 1e4}),
}  # fmt: skip


@pytest.mark.parametrize("keys", GGUF_ROPES)
def test_gguf_says_the_same_in_other_words(keys: str) -> None:
    rope, changes = GGUF_ROPES[keys]
    metadata = metadata_of(SHAPE, "F32") | {f"qwen3.rope.{k}": v for k, v in changes.items()}
    ours = from_gguf("a.gguf", metadata, SHAPE.vocabulary, tied=True, qk_norm=True, biases=False)
    assert np.array_equal(ours.angles(64), described(ROPES[rope]).angles(64))


def test_gguf_scales_attention_on_top_of_yarn() -> None:
    metadata = metadata_of(SHAPE, "F32") | {
        "qwen3.rope.scaling.type": "yarn", "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.attn_factor": 0.5,
    }  # fmt: skip
    ours = from_gguf("a.gguf", metadata, SHAPE.vocabulary, tied=True, qk_norm=True, biases=False)
    assert ours.rope_scaling.attention_factor == pytest.approx(0.5 * (0.1 * math.log(4) + 1))
    assert ours.rope_scaling.original_context == SHAPE.context


def test_partial_rotation() -> None:
    half = described(ROPES["default"] | {"partial_rotary_factor": 0.5})
    assert half.rope_dimensions == 32
    assert np.allclose(half.frequencies(), 1e4 ** -(np.arange(16) / 16))
    with pytest.raises(ModelError, match="above 0 and at most 1"):
        described(ROPES["default"] | {"partial_rotary_factor": 1.5})


def test_no_positions_no_angles() -> None:
    with pytest.raises(ModelError, match="at least 1"):
        SHAPE.angles(0)
