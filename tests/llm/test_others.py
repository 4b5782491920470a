"""The same models in other people's runtimes, where those are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import llm
from penstock.llm.gguf_file import Strings, read_gguf
from penstock.llm.gguf_writer import NewTensor, write_gguf
from tests.llm.model_builders import gguf, shared

IDS = [5, 17, 3, 200, 41, 99, 8, 1, 254, 30, 31, 7]
COMMON = {
    "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 128,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 32},
    "qwen2": {"tie_word_embeddings": True},
    "llama": {"head_dim": 16, "attention_bias": True},
    "llama, scaled": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
        },
    },
    "qwen3, yarn": {
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_agrees(dev: ps.Device, tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    arch = name.split(",")[0]
    config = transformers.AutoConfig.for_model(arch, **COMMON, **CONFIGS[name])
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # norms and biases matter, too
        wanted = theirs.double()(torch.tensor([IDS])).logits[0].numpy()
        theirs = theirs.float()
        tokens = theirs.generate(
            torch.tensor([IDS]), max_new_tokens=24, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )[0].tolist()  # fmt: skip
    theirs.save_pretrained(tmp_path)
    with llm.load(tmp_path, dev, cache="f32") as ours:
        got = ours.logits(IDS)
        assert np.abs(got - wanted).max() <= 2e-5 * np.abs(wanted).max()
        assert ours.generate(IDS, max_tokens=24, stop_ids=[]).ids == tokens[len(IDS) :]


def assert_llama_cpp_agrees(dev: ps.Device, path: Path, prompt: list[int]) -> None:
    """The tokens that llama.cpp takes are the likeliest here, or almost."""
    others = pytest.importorskip("xllamacpp")
    tokenizer = llm.Tokenizer.of(llm.open_model(path))
    vocabulary = tokenizer.vocabulary
    # Of bytes that are no characters their server does not tell, so neither may choose those.
    allowed = np.array([_is_text(tokenizer, token) for token in range(vocabulary)])
    settings = others.CommonParams()
    settings.model.path = str(path)
    settings.n_ctx, settings.n_parallel, settings.warmup = 128, 1, False
    settings.cache_type_k = settings.cache_type_v = others.ggml_type.GGML_TYPE_F32
    asked = {
        "prompt": prompt, "max_tokens": 24, "temperature": 0.0, "logprobs": 1,
        "logit_bias": [[number, False] for number in np.flatnonzero(~allowed).tolist()],
    }  # fmt: skip
    answer = others.Server(settings).handle_completions(asked)
    ids = [one["id"] for one in answer["choices"][0]["logprobs"]["content"]]
    assert len(ids) == 24
    with llm.load(path, dev, cache="f32", context=128, progress=False) as ours:
        logits = ours.logits(prompt + ids[:-1])[len(prompt) - 1 :]
    logits[:, ~allowed] = -np.inf
    chosen = logits[np.arange(len(ids)), ids]
    # Theirs are rounded to halves here and there, which may decide between two that are close.
    assert (chosen > logits.max(-1) - 2e-3).all()
    assert (ids == logits.argmax(-1)).mean() > 0.8


def _is_text(tokenizer: llm.Tokenizer, token: int) -> bool:
    try:
        return token not in tokenizer.control_ids and bool(tokenizer.bytes_of(token).decode())
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("arch", ["qwen3", "qwen2", "llama", "qwen3moe"])
def test_llama_cpp_agrees(dev: ps.Device, tmp_path: Path, arch: str) -> None:
    path = gguf(
        tmp_path, arch, "F32", tokenizer=True, layers=2, hidden=128, ffn=256, heads=4, kv_heads=2,
        head_size=32, rope_dimensions=32, vocabulary=288, context=128,
    )  # fmt: skip
    assert_llama_cpp_agrees(dev, path, IDS)


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen35", "qwen35moe", "qwen3next"])
def test_llama_cpp_agrees_on_files_that_it_converted(
    dev: ps.Device, tmp_path: Path, arch: str
) -> None:
    path = shared(f"tiny-random-{arch}/tiny-random-{arch}-BF16.gguf")
    assert_llama_cpp_agrees(dev, in_float32(path, tmp_path / "f32.gguf"), IDS)


def in_float32(path: Path, made: Path) -> Path:
    """The same file with exact weights: with those in BF16 llama.cpp rounds activations, too."""
    metadata, tensors = read_gguf(path)
    keys = {k: list(v) if isinstance(v, Strings) else v for k, v in metadata.items()}
    write_gguf(made, keys, [_in_float32(name, one) for name, one in tensors.items()])
    return made


def _in_float32(name: str, tensor: llm.Tensor) -> NewTensor:
    data = tensor.bytes.tobytes()
    if tensor.kind == "BF16":
        data = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).tobytes()
    return NewTensor(name, "F32", tensor.shape, lambda: [data])
