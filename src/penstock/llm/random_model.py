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
from penstock.llm.errors import ModelError
from penstock.llm.gguf_writer import NewTensor, write_gguf
from penstock.llm.kinds import KINDS
from penstock.llm.modelfile import wanted_tensors
from penstock.llm.progress_bar import Bar
from penstock.llm.tokens import byte_characters

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K_M")
_DEVIATION = 0.02
_PART = 1 << 22  # weights generated at a time
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32}
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


PRESETS: dict[str, Config] = {
    "qwen3-0.6b": _qwen3(),
    "tiny": _qwen3(
        layers=2, hidden=256, ffn=512, heads=8, kv_heads=4, head_size=64, rope_dimensions=64,
        context=512, vocabulary=320,
    ),
}  # fmt: skip


def shape_of(preset: str, architecture: str = "qwen3", **changes: Any) -> Config:
    """Return a preset adapted to an architecture, with `changes` applied."""
    shape = PRESETS[preset]
    if architecture == "qwen2":
        shape = dataclasses.replace(shape, architecture="qwen2", qk_norm=False, biases=True)
    elif architecture == "llama":
        shape = dataclasses.replace(
            shape, architecture="llama", qk_norm=False, tied=False, rope_layout="adjacent"
        )
    return dataclasses.replace(shape, **changes)


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
        _tensor(name, dimensions, _kind_of(name, dimensions, kind, shape.layers), seed)
        for name, dimensions, needed in wanted_tensors(shape)
        if needed
    ]
    write_gguf(path, metadata, tensors, progress)


def metadata_of(shape: Config, kind: str) -> dict[str, Any]:
    """The keys of a GGUF file of this shape."""
    arch = shape.architecture
    return {
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
    if len(shape) == 1:
        return "F32"
    if kind != "Q4_K_M":
        return kind
    # llama.cpp's mix: more bits where they matter most.
    if name in ("token_embd.weight", "output.weight"):
        return "Q6_K"
    if ".attn_v." in name or ".ffn_down." in name:
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


_MAKERS: dict[str, Callable[[Random, int, str], npt.NDArray[Any]]] = {
    "F32": _floats,
    "F16": _halves,
    "BF16": _brain_floats,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.llm.random_model", description="Write a model of random weights."
    )
    parser.add_argument("--out", required=True, type=Path, help="the GGUF file to write")
    parser.add_argument("--type", default="F16", choices=TYPES)
    parser.add_argument("--preset", default="qwen3-0.6b", choices=sorted(PRESETS))
    parser.add_argument("--arch", default="qwen3", choices=ARCHITECTURES)
    for size in ("layers", "hidden", "ffn", "heads", "kv-heads", "head-size", "vocabulary"):
        parser.add_argument(f"--{size}", type=int, help="instead of the preset's")
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
            shape_of(given.preset, given.arch, **changes),
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


if __name__ == "__main__":
    sys.exit(main())
