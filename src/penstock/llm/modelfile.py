"""Opens a model: a GGUF file, or a directory (or file) of safetensors with its config.json.

Both formats give the same result: a `Config`, and tensors under their GGUF names. All checks are
made here, so that code that uses a model needs none: every tensor of the architecture is present,
with the right shape, within its file, and there are no others.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.llm import config as configs
from penstock.llm.config import Config
from penstock.llm.errors import ModelError
from penstock.llm.gguf_file import read_gguf
from penstock.llm.kinds import PLAIN
from penstock.llm.safetensors_file import read_json, read_safetensors, shards
from penstock.llm.tensors import Tensor

__all__ = ["ModelFile", "Tensor", "open_model"]

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


def open_model(path: str | os.PathLike[str]) -> ModelFile:
    """Open and check a model. The time does not depend on the size of the weights."""
    where = Path(path)
    try:
        if where.is_dir():
            return _open_directory(where, shards(where))
        if where.suffix == ".safetensors":
            return _open_directory(where, [where])
        if not where.exists():
            raise ModelError(f"{where} does not exist")
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{str(where)!r} cannot be opened: {error}") from error
    return _open_gguf(where)


def _open_gguf(path: Path) -> ModelFile:
    metadata, tensors = read_gguf(path)
    embedding = tensors.get("token_embd.weight")
    config = configs.from_gguf(
        str(path),
        metadata,
        vocabulary=embedding.rows if embedding else 1,
        tied="output.weight" not in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        biases=_has_biases(tensors),
    )
    tensors = _checked(path, config, tensors)
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
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        biases=_has_biases(tensors),
    )
    tensors = _checked(path, config, tensors)
    return ModelFile(
        path, directory, "safetensors", config, MappingProxyType(tensors), MappingProxyType({})
    )


def _has_biases(tensors: Mapping[str, Tensor]) -> bool:
    return any(name.endswith(".bias") for name in tensors)


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
        if tensor.shape != shape:
            raise ModelError(
                f"{path}: tensor {name!r} has shape {tensor.shape}; the config asks for {shape}"
            )
        plain = ("F32",) if name == "rope_freqs.weight" else PLAIN
        if len(shape) == 1 and tensor.kind not in plain:
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
    hidden, ffn = config.hidden, config.ffn
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    sizes = {
        "attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn),
    }  # fmt: skip
    wanted: list[tuple[str, tuple[int, ...], bool]] = [
        ("token_embd.weight", (config.vocabulary, hidden), True),
        ("output.weight", (config.vocabulary, hidden), not config.tied),
        ("output_norm.weight", (hidden,), True),
        ("rope_freqs.weight", (config.rope_dimensions // 2,), False),
    ]
    for layer in range(config.layers):
        block = f"blk.{layer}."
        must = config.qk_norm or config.architecture == "qwen3"
        wanted += [
            (f"{block}attn_norm.weight", (hidden,), True),
            (f"{block}ffn_norm.weight", (hidden,), True),
            (f"{block}attn_q_norm.weight", (config.head_size,), must),
            (f"{block}attn_k_norm.weight", (config.head_size,), must),
        ]
        for product, (rows, columns) in sizes.items():
            wanted.append((f"{block}{product}.weight", (rows, columns), True))
            must = config.architecture == "qwen2" and product in ("attn_q", "attn_k", "attn_v")
            wanted.append((f"{block}{product}.bias", (rows,), must))
    return wanted
