"""Reads models in the format of Hugging Face: *.safetensors, and the JSON files next to them.

A safetensors file is a length, a JSON header of that length, and the tensors. Names are translated
to those of GGUF, so that the rest of Penstock uses one set of names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from penstock.llm.errors import ModelError
from penstock.llm.tensors import (
    MOST_TENSORS,
    Tensor,
    check_apart,
    divided,
    mapped,
    stack,
    tensor_at,
)  # fmt: skip

INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 1 << 25
_LONGEST_JSON = 1 << 24
_DTYPES = ("F32", "F16", "BF16")
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "linear_attn.in_proj_qkvz": "ssm_in",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_EXPERT = re.compile(
    r"model\.layers\.(0|[1-9][0-9]{0,4})\.mlp\.experts\.(?:(0|[1-9][0-9]{0,4})\."
    r"(gate|up|down)_proj\.weight|(gate_up|down)_proj)",
    re.ASCII,
)
_ONE_EXPERT = re.compile(r"(blk\.\d+\.ffn_[a-z]+_exps)\.(\d+)\.weight")
_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,4})\.([a-z0-9_.]+)\.(weight|bias)", re.ASCII)
_PARAMETER = re.compile(
    r"model\.layers\.(0|[1-9][0-9]{0,4})\.linear_attn\.(A_log|dt_bias)", re.ASCII
)
_PARAMETERS = {"A_log": "ssm_a", "dt_bias": "ssm_dt.bias"}
_TEXT = "model.language_model."  # before the names of the text's tensors, if there are others
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # an escaped surrogate, paired or lone
_DERIVED = re.compile(r".*rotary_emb\.inv_freq")  # in old files; follows from the config
#: The encoder of images, and layers that predict tokens further ahead: text needs neither.
_UNUSED = re.compile(r"(model\.visual|mtp)\..*")


def read_safetensors(paths: list[Path]) -> dict[str, Tensor]:
    """All tensors of these files, by their GGUF names."""
    tensors: dict[str, Tensor] = {}
    for path in paths:
        for tensor in _of_one_file(path):
            if tensor.name in tensors:
                raise ModelError(f"{path}: tensor {tensor.name!r} is in another file, too")
            tensors[tensor.name] = tensor
    return divided(_stacked(tensors))


def _stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Replace matrices of single experts by stacks."""
    found: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        one = _ONE_EXPERT.fullmatch(name)
        if one is not None:
            experts.setdefault(f"{one[1]}.weight", {})[int(one[2])] = tensor
        else:
            found[name] = tensor
    for name, parts in experts.items():
        missing = next((n for n in range(len(parts)) if n not in parts), None)
        if missing is not None:
            raise ModelError(
                f"{next(iter(parts.values())).file.filename}: {name!r} has {len(parts)} experts, "
                f"but number {missing} is missing"
            )
        if name in found:
            raise ModelError(f"{found[name].file.filename}: {name!r} is there twice")
        found[name] = stack(name, [parts[number] for number in range(len(parts))])
    return found


def shards(directory: Path) -> list[Path]:
    """Return the safetensors files of the model in a directory."""
    index = directory / INDEX
    if index.exists():
        listed = read_json(index).get("weight_map")
        if not isinstance(listed, dict) or not listed:
            raise ModelError(f"{index}: weight_map must say which file each tensor is in")
        names = sorted({name for name in listed.values() if isinstance(name, str)})
        for name in names:
            # A name from an untrusted file must not point outside the user's directory.
            if Path(name).name != name or not name.endswith(".safetensors") or "\0" in name:
                raise ModelError(f"{index}: {name[:80]!r} is not the name of a safetensors file")
        return [directory / name for name in names]
    alone = directory / "model.safetensors"
    found = [alone] if alone.exists() else sorted(directory.glob("*.safetensors"))
    if not found:
        instead = gguf_beside(directory) or "; a model has at least one"
        raise ModelError(f"{directory} has no *.safetensors{instead}")
    if len(found) > 1:
        raise ModelError(f"{directory} has several *.safetensors and no {INDEX} to say which")
    return found


def gguf_beside(directory: Path) -> str:
    """The end of an error message: the GGUF files of a directory, which hold whole models."""
    names = sorted(path.name for path in directory.glob("*.gguf"))
    if not names:
        return ""
    which = "that file" if len(names) == 1 else "one of these files"
    listed = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return f"; this folder has {listed}: give {which}"


def read_json(path: Path, longest: int = _LONGEST_JSON) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    try:
        with path.open("rb") as file:
            text = file.read(longest + 1)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if len(text) > longest:
        raise ModelError(f"{path} is larger than {longest:,} bytes")
    return parse_json(str(path), text)


def parse_json(where: str, text: bytes) -> dict[str, Any]:
    """Parse a JSON object. Refuses repeated keys and text that is not valid Unicode.

    An escape in JSON may be a lone surrogate, which neither a tokenizer nor a terminal accepts.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=_without_repeats)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ModelError(
            f"{where} is not valid JSON: a string has half of a character, a lone surrogate"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{where} must be a JSON object")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ModelError(f"the key {twice[:80]!r} is there twice")
    return made


def _of_one_file(path: Path) -> list[Tensor]:
    file = mapped(path)
    length = int.from_bytes(bytes(file[:8]), "little")
    if file.size < 8 or length > min(file.size - 8, _LONGEST_HEADER):
        raise ModelError(
            f"{path}: a header of {length:,} bytes cannot be right in a file of {file.size:,}: it "
            "is damaged, or not a safetensors file"
        )
    header = parse_json(f"{path}: the header", bytes(file[8 : 8 + length]))
    header.pop("__metadata__", None)
    if len(header) > MOST_TENSORS:
        raise ModelError(f"{path}: {len(header):,} tensors cannot be right")
    tensors = [
        _tensor(path, file, 8 + length, name, described)
        for name, described in header.items()
        if not _DERIVED.fullmatch(name) and not _UNUSED.fullmatch(name)
    ]
    check_apart(tensors)
    return tensors


def _tensor(path: Path, file: np.memmap[Any, Any], start: int, name: str, described: Any) -> Tensor:
    where = f"{path}: tensor {name[:200]!r}"
    if not isinstance(described, Mapping):
        raise ModelError(f"{where} is not described by an object")
    dtype, shape = described.get("dtype"), described.get("shape")
    offsets = described.get("data_offsets")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise ModelError(f"{where} needs a shape and two data_offsets, all natural numbers")
    if not isinstance(dtype, str):
        raise ModelError(f"{where} needs a dtype")
    if dtype not in _DTYPES:
        raise ModelError(
            f"{where} is {dtype[:20]}; of safetensors {', '.join(_DTYPES)} are supported. Take the "
            "model as GGUF, which has quantized types, too"
        )
    first, last = offsets
    made = tensor_at(_canonical(path, name), dtype, tuple(shape), file, start + first)
    if made.nbytes != last - first:
        raise ModelError(f"{where} has {last - first:,} bytes; its shape needs {made.nbytes:,}")
    return made


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 63 for n in value
    )


def _canonical(path: Path, name: str) -> str:
    if name.startswith(_TEXT):
        name = "model." + name[len(_TEXT) :]
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    parameter = _PARAMETER.fullmatch(name)
    if parameter:
        return f"blk.{parameter[1]}.{_PARAMETERS[parameter[2]]}"
    expert = _EXPERT.fullmatch(name)
    if expert:
        number = "" if expert[2] is None else f".{expert[2]}"
        return f"blk.{expert[1]}.ffn_{expert[3] or expert[4]}_exps{number}.weight"
    inside = _LAYER.fullmatch(name)
    if inside and inside[2] in _INSIDE:
        return f"blk.{inside[1]}.{_INSIDE[inside[2]]}.{inside[3]}"
    raise ModelError(
        f"{path}: tensor {name[:200]!r} belongs to no supported architecture; the result would be "
        "wrong without it"
    )
