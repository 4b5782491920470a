"""Writes a model with random weights, for measuring and for tests.

`python -m penstock.llm.random_model --type Q4_K_M --out model.gguf` writes a file in the shape of
Qwen3-0.6B that any GGUF loader opens. The weights are roughly normal with a deviation of 0.02, so
that activations stay in range; the text it generates is meaningless. Quantized blocks are generated
directly, and use all their bits.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import Error
from penstock.llm.config import ARCHITECTURES, Config
from penstock.llm.delta_net import WITH_DELTA_NET, DeltaNet
from penstock.llm.errors import ModelError
from penstock.llm.gguf_writer import NewTensor, write_gguf
from penstock.llm.kinds import KINDS
from penstock.llm.mixture import Mixture, check_mixture
from penstock.llm.modelfile import wanted_tensors
from penstock.llm.progress_bar import Bar
from penstock.llm.token_bytes import byte_characters

TYPES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K_M", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4",
)  # fmt: skip
_DEVIATION = 0.02
_PART = 1 << 22  # weights generated at a time
_FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q2_K": 10, "Q3_K": 12, "Q4_K_M": 15, "IQ4_NL": 25,
    "IQ4_XS": 30, "BF16": 32, "MXFP4": 38,
}  # fmt: skip
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _qwen3(**changes: Any) -> Config:
    shape = Config(
        architecture="qwen3", layers=28, hidden=1024, ffn=3072, heads=16, kv_heads=8, head_size=128,
        context=40960, vocabulary=151_936, norm_epsilon=1e-6, rope_base=1e6, rope_layout="halves",
        rope_dimensions=128, qk_norm=True, tied=True,
    )  # fmt: skip
    return dataclasses.replace(shape, **changes)


def _three_of_four(layers: int) -> frozenset[int]:
    return frozenset(layer for layer in range(layers) if layer % 4 != 3)


PRESETS: dict[str, Config] = {
    "qwen3-0.6b": _qwen3(),
    "tiny": _qwen3(
        layers=2, hidden=256, ffn=512, heads=8, kv_heads=4, head_size=64, rope_dimensions=64,
        context=512, vocabulary=320,
    ),
    "qwen3-30b-a3b": _qwen3(
        architecture="qwen3moe", layers=48, hidden=2048, ffn=6144, heads=32, kv_heads=4, tied=False,
        mixture=Mixture(experts=128, chosen=8, ffn=768, normalized=True),
    ),
    "qwen3.5-0.8b": _qwen3(
        architecture="qwen35", layers=24, ffn=3584, heads=8, kv_heads=2, head_size=256,
        context=262_144, vocabulary=248_320, rope_base=1e7, rope_dimensions=64, gated=True,
        delta_net=DeltaNet(_three_of_four(24), 16, 16, 128, 128, 4, tiled=True),
    ),
    "qwen3-next-80b-a3b": _qwen3(
        architecture="qwen3next", layers=48, hidden=2048, ffn=5120, heads=16, kv_heads=2,
        head_size=256, context=262_144, rope_base=1e7, rope_dimensions=64, gated=True, tied=False,
        delta_net=DeltaNet(_three_of_four(48), 16, 32, 128, 128, 4, fused_factors=True),
        mixture=Mixture(experts=512, chosen=10, ffn=512, normalized=True, shared_ffn=512),
    ),
}  # fmt: skip


def shape_of(preset: str, architecture: str | None = None, **changes: Any) -> Config:
    """Return a preset adapted to an architecture, its own by default, with `changes` applied."""
    shape = PRESETS[preset]
    architecture = architecture or shape.architecture
    if architecture != "qwen3moe":
        shape = dataclasses.replace(shape, architecture=architecture, mixture=None)
    if architecture == "qwen2":
        shape = dataclasses.replace(shape, architecture="qwen2", qk_norm=False, biases=True)
    elif architecture == "qwen3moe":
        usual = Mixture(experts=8, chosen=2, ffn=shape.ffn // 2, normalized=True)
        mixture = shape.mixture or usual
        shape = dataclasses.replace(shape, architecture="qwen3moe", tied=False, mixture=mixture)
    elif architecture == "llama":
        shape = dataclasses.replace(
            shape, architecture="llama", qk_norm=False, tied=False, rope_layout="adjacent"
        )
    elif architecture in WITH_DELTA_NET and shape.delta_net is None:
        shape = _with_delta_net(dataclasses.replace(shape, **changes), architecture)
    return dataclasses.replace(shape, **changes)


def _with_delta_net(shape: Config, architecture: str) -> Config:
    """Give all layers but the last, or but every fourth, a state instead of a KV cache."""
    interval = min(4, shape.layers)
    layers = frozenset(n for n in range(shape.layers) if (n + 1) % interval)
    size = max(4, shape.head_size // 8 * 4)
    mixture = None
    if architecture != "qwen35":
        half = shape.ffn // 2
        mixture = Mixture(experts=8, chosen=2, ffn=half, normalized=True, shared_ffn=half)
    return dataclasses.replace(
        shape,
        architecture=architecture,
        tied=False,
        gated=True,
        rope_dimensions=max(2, shape.head_size // 8 * 2),
        mixture=shape.mixture or mixture,
        delta_net=DeltaNet(
            layers, shape.kv_heads, 2 * shape.kv_heads, size, size, 4,
            tiled=architecture != "qwen3next", fused_factors=architecture == "qwen3next",
        ),
    )  # fmt: skip


def write_random_model(
    path: Path,
    shape: Config,
    kind: str = "F16",
    *,
    seed: int = 0,
    tokenizer: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a GGUF file; the same arguments write the same bytes.

    Its tokenizer has a token for every byte, and the control tokens of ChatML.
    """
    if kind not in TYPES:
        raise ModelError(f"type {kind!r} cannot be written; there are {', '.join(TYPES)}")
    metadata = metadata_of(shape, kind) | (_byte_tokenizer(shape.vocabulary) if tokenizer else {})
    tensors = [
        _tensor(
            _name_in_file(name, shape),
            dimensions,
            _kind_of(name, dimensions, kind, shape.layers),
            seed,
        )
        for name, dimensions, needed in wanted_tensors(shape)
        if needed
    ]
    write_gguf(path, metadata, tensors, progress)


def _name_in_file(name: str, shape: Config) -> str:
    """GGUF files of models with DeltaNet layers call a norm as transformers does."""
    return name if shape.delta_net is None else name.replace(".ffn_norm.", ".post_attention_norm.")


def metadata_of(shape: Config, kind: str) -> dict[str, Any]:
    """The keys of a GGUF file of this shape."""
    arch, mixture = shape.architecture, shape.mixture
    experts = (
        {}
        if mixture is None
        else {
            f"{arch}.expert_count": mixture.experts,
            f"{arch}.expert_used_count": mixture.chosen,
            f"{arch}.expert_feed_forward_length": mixture.ffn,
            f"{arch}.expert_weights_norm": mixture.normalized,
            f"{arch}.expert_shared_feed_forward_length": mixture.shared_ffn,
        }
    )
    return (
        experts
        | _delta_net_keys(shape)
        | {
            "general.architecture": arch,
            "general.name": f"random {arch}",
            "general.file_type": _FILE_TYPES[kind],
            "general.quantization_version": 2,
            f"{arch}.block_count": shape.layers,
            f"{arch}.context_length": shape.context,
            f"{arch}.embedding_length": shape.hidden,
            f"{arch}.feed_forward_length": shape.ffn,
            f"{arch}.attention.head_count": shape.heads,
            f"{arch}.attention.head_count_kv": shape.kv_heads,
            f"{arch}.attention.key_length": shape.head_size,
            f"{arch}.attention.value_length": shape.head_size,
            f"{arch}.attention.layer_norm_rms_epsilon": shape.norm_epsilon,
            f"{arch}.rope.freq_base": shape.rope_base,
            f"{arch}.rope.dimension_count": shape.rope_dimensions,
            f"{arch}.vocab_size": shape.vocabulary,
        }
    )


def _delta_net_keys(shape: Config) -> dict[str, Any]:
    arch, net = shape.architecture, shape.delta_net
    if net is None:
        return {}
    return {
        f"{arch}.ssm.conv_kernel": net.taps,
        f"{arch}.ssm.state_size": net.key_size,
        f"{arch}.ssm.group_count": net.key_heads,
        f"{arch}.ssm.time_step_rank": net.value_heads,
        f"{arch}.ssm.inner_size": net.values,
        f"{arch}.full_attention_interval": shape.attention_layers[0] + 1,
        f"{arch}.rope.dimension_sections": np.array([11, 11, 10, 0], np.int32),
    }


def _byte_tokenizer(vocabulary: int) -> dict[str, Any]:
    names = [*sorted(byte_characters(), key=byte_characters().get), *_CONTROL]  # type: ignore[arg-type]
    if vocabulary < len(names):
        raise ModelError(f"a vocabulary of {vocabulary} is too small for {len(names)} tokens")
    first = len(names) - len(_CONTROL)
    types = np.full(vocabulary, 5, np.int32)  # unused
    types[:first], types[first : len(names)] = 1, 3  # normal, control
    names += [f"[PAD{number}]" for number in range(len(names), vocabulary)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list[str](),
        "tokenizer.ggml.bos_token_id": first,
        "tokenizer.ggml.eos_token_id": first + 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _CHATML,
    }


def _kind_of(name: str, shape: tuple[int, ...], kind: str, layers: int) -> str:
    # llama.cpp keeps routers and convolutions exact, too.
    if len(shape) == 1 or ".ffn_gate_inp" in name or ".ssm_conv1d." in name:
        return "F32"
    if kind != "Q4_K_M":
        return kind
    # llama.cpp's mix: more bits where they matter most.
    if name in ("token_embd.weight", "output.weight"):
        return "Q6_K"
    if ".attn_v." in name or ".ffn_down" in name:
        layer = int(name.split(".")[1])
        first, last = layers // 8, 7 * layers // 8
        if layer < first or layer >= last or (layer - first) % 3 == 2:
            return "Q6_K"
    return "Q4_K"


def _tensor(name: str, shape: tuple[int, ...], kind: str, seed: int) -> NewTensor:
    count = int(np.prod(shape))

    def parts() -> Iterator[bytes]:
        random = np.random.default_rng([seed, zlib.crc32(name.encode())])
        for start in range(0, count, _PART):
            yield _MAKERS[kind](random, min(_PART, count - start), name).tobytes()

    return NewTensor(name, kind, shape, parts)


# Generators of random weights in each format. Each returns `count` weights with a mean of 0.

Random = np.random.Generator


def _floats(random: Random, count: int, name: str) -> npt.NDArray[Any]:
    values = random.standard_normal(count, np.float32)
    if "norm" in name:
        return 1 + 0.1 * values
    if name.endswith(".ssm_a"):  # rates, and below their biases, at which states fade slowly
        return -np.exp(np.minimum(np.abs(values), 2.5))
    if name.endswith(".ssm_dt.bias"):
        return values - 3
    if ".ssm_conv1d." in name:
        return values * np.float32(0.3)
    return values * np.float32(_DEVIATION)


def _halves(random: Random, count: int, name: str) -> npt.NDArray[Any]:
    return _floats(random, count, name).astype(np.float16)


def _brain_floats(random: Random, count: int, name: str) -> npt.NDArray[Any]:
    return (_floats(random, count, name).view(np.uint32) >> 16).astype(np.uint16)


def _blocks(random: Random, kind: str, count: int) -> npt.NDArray[np.uint8]:
    block = KINDS[kind]
    number = count // block.columns
    return random.integers(0, 256, (number, block.nbytes), np.uint8)


def _scales(random: Random, number: int, typical: float, signed: bool) -> npt.NDArray[np.uint8]:
    """Half floats around a value, as bytes; with `signed`, half of them negative."""
    values = typical * random.uniform(0.7, 1.3, number)
    if signed:
        values *= random.choice([-1.0, 1.0], number)
    return values.astype(np.float16).view(np.uint8).reshape(number, 2)


def _q8_0(random: Random, count: int, name: str) -> npt.NDArray[np.uint8]:
    made = _blocks(random, "Q8_0", count)  # half-float scale, 32 signed bytes
    made[:, :2] = _scales(random, len(made), _DEVIATION / 74, signed=True)
    return made


def _q4_0(random: Random, count: int, name: str) -> npt.NDArray[np.uint8]:
    made = _blocks(random, "Q4_0", count)  # half-float scale, 32 nibbles less 8
    made[:, :2] = _scales(random, len(made), _DEVIATION / 4.6, signed=True)
    return made


def _q4_k(random: Random, count: int, name: str) -> npt.NDArray[np.uint8]:
    # Half-float scale and minimum; eight 6-bit scales and minima; nibbles. Each minimum is 7.5
    # times its scale, so that the mean is 0. The last four have low and high bits stored apart.
    made = _blocks(random, "Q4_K", count)
    scale = _scales(random, len(made), _DEVIATION / (4.6 * 40), signed=False)
    made[:, 0:2] = scale
    made[:, 2:4] = (scale.view(np.float16) * np.float16(7.5)).view(np.uint8)
    parts = random.integers(17, 64, (len(made), 8), np.uint8)
    early, late = parts[:, :4], parts[:, 4:]
    made[:, 4:8] = made[:, 8:12] = early | (late >> 4 << 6)
    made[:, 12:16] = (late & 15) * 17
    return made


def _q6_k(random: Random, count: int, name: str) -> npt.NDArray[np.uint8]:
    made = _blocks(random, "Q6_K", count)  # 6-bit values less 32, 16 scales, a half-float
    scales = random.integers(40, 120, (len(made), 16)) * random.choice([-1, 1], (len(made), 16))
    made[:, 192:208] = scales.astype(np.int8).view(np.uint8)
    made[:, 208:210] = _scales(random, len(made), _DEVIATION / (18.5 * 80), signed=False)
    return made


def _q2_k(random: Random, count: int, name: str) -> npt.NDArray[np.uint8]:
    # 16 bytes of a 4-bit scale and a minimum; two bits each; two half-floats to multiply them by.
    # Each minimum is 1.5 times its scale, so that the mean is 0.
    made = _blocks(random, "Q2_K", count)
    made[:, :16] = random.integers(4, 16, (len(made), 16), np.uint8) * 17
    scale = _scales(random, len(made), _DEVIATION / (1.12 * 9.5), signed=False)
    made[:, 80:82] = scale
    made[:, 82:84] = (scale.view(np.float16) * np.float16(1.5)).view(np.uint8)
    return made


def _q3_k(random: Random, count: int, name: str) -> npt.NDArray[np.uint8]:
    made = _blocks(random, "Q3_K", count)  # 3-bit values less 4, 16 scales less 32, a half-float
    made[:, 108:110] = _scales(random, len(made), _DEVIATION / (2.3 * 18.5), signed=True)
    return made


def _iq4_nl(random: Random, count: int, name: str) -> npt.NDArray[np.uint8]:
    made = _blocks(random, "IQ4_NL", count)  # half-float scale, 32 numbers of levels up to 127
    made[:, :2] = _scales(random, len(made), _DEVIATION / 69, signed=True)
    return made


def _iq4_xs(random: Random, count: int, name: str) -> npt.NDArray[np.uint8]:
    made = _blocks(random, "IQ4_XS", count)  # half-float scale, 8 scales less 32, levels
    made[:, :2] = _scales(random, len(made), _DEVIATION / (69 * 18.5), signed=True)
    return made


def _mxfp4(random: Random, count: int, name: str) -> npt.NDArray[np.uint8]:
    made = _blocks(random, "MXFP4", count)  # exponent, 32 numbers of levels up to 12
    made[:, 0] = random.integers(119, 121, len(made))
    return made


_MAKERS: dict[str, Callable[[Random, int, str], npt.NDArray[Any]]] = {
    "F32": _floats,
    "F16": _halves,
    "BF16": _brain_floats,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.llm.random_model", description="Write a model of random weights."
    )
    parser.add_argument("--out", required=True, type=Path, help="the GGUF file to write")
    parser.add_argument("--type", default="F16", choices=TYPES)
    parser.add_argument("--preset", default="qwen3-0.6b", choices=sorted(PRESETS))
    parser.add_argument("--arch", choices=ARCHITECTURES, help="instead of the preset's")
    for size in ("layers", "hidden", "ffn", "heads", "kv-heads", "head-size", "vocabulary"):
        parser.add_argument(f"--{size}", type=int, help="instead of the preset's")
    for size in ("experts", "chosen", "expert-ffn", "shared-ffn"):
        parser.add_argument(f"--{size}", type=int, help="of a mixture of experts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-tokenizer", action="store_true", help="ids only")
    given = parser.parse_args(arguments)
    sizes = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_size", "vocabulary")
    changes = {size: getattr(given, size) for size in sizes if getattr(given, size) is not None}
    if "head_size" in changes:
        changes["rope_dimensions"] = changes["head_size"]
    try:
        write_random_model(
            given.out,
            _with_experts(shape_of(given.preset, given.arch, **changes), given),
            given.type,
            seed=given.seed,
            tokenizer=not given.no_tokenizer,
            progress=Bar("writing weights"),
        )
    except (Error, OSError) as error:
        print(f"penstock.llm.random_model: {error}", file=sys.stderr)
        return 1
    print(f"{given.out}: {given.out.stat().st_size:,} bytes")
    return 0


def _with_experts(shape: Config, given: argparse.Namespace) -> Config:
    names = {
        "experts": "experts",
        "chosen": "chosen",
        "expert_ffn": "ffn",
        "shared_ffn": "shared_ffn",
    }
    found = {ours: getattr(given, name) for name, ours in names.items()}
    changes = {name: value for name, value in found.items() if value is not None}
    if not changes:
        return shape
    if shape.mixture is None:
        raise ModelError(f"a {shape.architecture} model has no experts; --arch qwen3moe has")
    mixture = dataclasses.replace(shape.mixture, **changes)
    check_mixture("the model", mixture)
    return dataclasses.replace(shape, mixture=mixture)


if __name__ == "__main__":
    sys.exit(main())
