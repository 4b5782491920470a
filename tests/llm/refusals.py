"""What is refused, why, and a way to see it: `shown` prints it for docs/llm.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from penstock import llm
from penstock.llm.embedding import pooling_of
from penstock.llm.kv_cache import check_cache
from penstock.llm.text_only import check_text_only
from tests.llm.model_builders import hugging_face, miniature, rewritten, zeros


class Refusal(NamedTuple):
    what: str
    why: str
    attempt: Callable[[Path], object]


def _keys(arch: str, **changes: Any) -> Callable[[Path], object]:
    """Opens a GGUF file with other keys."""
    named = {f"{arch}.{key.replace('__', '.')}": value for key, value in changes.items()}
    return lambda folder: llm.open_model(rewritten(miniature(folder, arch), named))


def _with(arch: str, name: str, shape: tuple[int, ...]) -> Callable[[Path], object]:
    """Opens a GGUF file with one more tensor."""
    more = {name: zeros(name, shape)}
    return lambda folder: llm.open_model(
        rewritten(miniature(folder, arch), lambda keys, tensors: tensors.update(more))
    )


def _config(arch: str = "qwen3", **changes: Any) -> Callable[[Path], object]:
    """Opens a directory of safetensors with another config.json."""
    return lambda folder: llm.open_model(hugging_face(folder, arch, **changes))


def _other_types(folder: Path) -> object:
    path = miniature(folder)
    name = b"blk.0.attn_q.weight"
    data = bytearray(path.read_bytes())
    at = data.index(name) + len(name) + 4 + 16
    data[at : at + 4] = (16).to_bytes(4, "little")
    path.write_bytes(data)
    return llm.open_model(path)


def _fp8(folder: Path) -> object:
    hugging_face(folder)
    path = folder / "model.safetensors"
    header = b'{"lm_head.weight":{"dtype":"F8_E4M3","shape":[4,4],"data_offsets":[0,16]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    return llm.open_model(folder)


def _ranking(folder: Path) -> object:
    path = rewritten(miniature(folder), {"qwen3.pooling_type": 4})
    return pooling_of(llm.open_model(path), None)


def _unigram(folder: Path) -> object:
    path = rewritten(miniature(folder, tokenizer=True), {"tokenizer.ggml.model": "t5"})
    return llm.Tokenizer.of(llm.open_model(path))


def _image(folder: Path) -> object:
    picture = {"type": "image_url", "image_url": {"url": "file.png"}}
    return check_text_only([{"role": "user", "content": [picture]}])


REFUSALS = (
    Refusal(
        "other architectures",
        "a layer computed otherwise would give wrong text",
        lambda folder: llm.open_model(
            rewritten(miniature(folder), {"general.architecture": "gemma3"})
        ),
    ),
    Refusal(
        "adapters (LoRA)",
        "their weights are added to those of a model, which no kernel does",
        lambda folder: llm.open_model(rewritten(miniature(folder), {"general.type": "adapter"})),
    ),
    Refusal("GGUF types IQ1, IQ2, IQ3, TQ and NVFP4", "no kernel decodes them", _other_types),
    Refusal("safetensors in 8 bits", "no kernel decodes them", _fp8),
    Refusal(
        "safetensors quantized by GPTQ, AWQ and others",
        "no kernel decodes them",
        _config(quantization_config={"quant_method": "gptq", "bits": 4}),
    ),
    Refusal(
        "encoders of images as GGUF (mmproj)",
        "images are not read",
        lambda folder: llm.open_model(rewritten(miniature(folder), {"general.type": "mmproj"})),
    ),
    Refusal(
        "sliding windows",
        "attention reads the whole cache",
        _config(layer_types=["sliding_attention"]),
    ),
    Refusal(
        "RoPE scaled in other ways (longrope, dynamic)",
        "positions would be wrong",
        _keys("qwen3", rope__scaling__type="longrope"),
    ),
    Refusal(
        "activations other than SiLU",
        "feed-forward kernels compute no other",
        _config(hidden_act="gelu"),
    ),
    Refusal(
        "values of another head size than keys",
        "the KV cache has one head size",
        _keys("qwen3", attention__value_length=8),
    ),
    Refusal(
        "sizes that differ from layer to layer",
        "a network has one set of scratch arrays",
        _keys("qwen3", feed_forward_length=np.array([64, 32], np.uint32)),
    ),
    Refusal(
        "heads above 256, or of an odd size",
        "kernels of attention are made for heads up to that size",
        lambda folder: check_cache("f16", 512),
    ),
    Refusal(
        '`cache="q8_0"` with heads that are no multiple of 32',
        "32 neighbours of a head share a factor",
        lambda folder: check_cache("q8_0", 80),
    ),
    Refusal(
        "biases of feed-forward matrices",
        "none of these architectures has them",
        _with("qwen3", "blk.0.ffn_down.bias", (32,)),
    ),
    Refusal(
        "experts of `qwen3`, `qwen2`, `qwen35` or `llama` models (Mixtral)",
        "these have routers of other kinds",
        _keys("llama", expert_count=8),
    ),
    Refusal(
        "routers by a sigmoid",
        "the router is a softmax",
        _keys("qwen3moe", expert_gating_func=2),
    ),
    Refusal(
        "experts in groups",
        "the router chooses among all",
        _keys("qwen3moe", expert_group_count=4),
    ),
    Refusal(
        "scaled shares of experts",
        "shares are those of the softmax",
        _keys("qwen3moe", expert_weights_scale=2.5),
    ),
    Refusal(
        "routers with a bias",
        "the bias decides which experts are chosen",
        _with("qwen3moe", "blk.0.exp_probs_b.bias", (8,)),
    ),
    Refusal(
        "more than 1,024 experts, or 64 chosen",
        "the kernel that chooses is made for as many",
        _keys("qwen3moe", expert_count=2048),
    ),
    Refusal(
        "DeltaNet key heads that are no multiple of 4",
        "kernels load four values at once",
        _keys("qwen35", ssm__state_size=6),
    ),
    Refusal(
        "convolutions of DeltaNet layers with other than 2 to 8 taps",
        "the window is unrolled",
        _keys("qwen35", ssm__conv_kernel=9),
    ),
    Refusal(
        "DeltaNet layers alone",
        "no known model has only these",
        _config("qwen35", layer_types=["linear_attention"] * 2),
    ),
    Refusal(
        "images, videos and sounds in messages",
        "encoders are not run",
        _image,
    ),
    Refusal(
        "tokenizers other than BPE (unigram, WordPiece)",
        "text would be cut into other tokens",
        _unigram,
    ),
    Refusal(
        "embeddings by the first token, or by a ranking",
        "only the mean and the last token are pooled",
        _ranking,
    ),
)


def error_of(refusal: Refusal, folder: Path) -> str:
    """The error that an attempt raises, without the path of the file."""
    folder.mkdir()
    try:
        refusal.attempt(folder)
    except ps.Error as error:
        said = str(error)
        for path in (*sorted(map(str, folder.rglob("*")), key=len, reverse=True), str(folder)):
            said = said.replace(f"{path}: ", "").replace(path, "the file")
        return f"{type(error).__name__}: {said}"
    raise AssertionError(f"{refusal.what} are not refused")


def row(refusal: Refusal, folder: Path) -> str:
    """A row of the table in docs/llm.md."""
    return f"| {refusal.what} | {refusal.why} | {error_of(refusal, folder)} |"
