"""Embeddings: one vector for a text, from the final hidden states of its tokens.

The hidden states are those that logits are computed from: after the last layer and the output norm.
Pooling makes one vector of them: their mean, or the state of the last token, which alone has seen
the whole text. Files of embedding models say which, and whether a token follows the text.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.llm.errors import ModelError
from penstock.llm.modelfile import ModelFile
from penstock.llm.network import Network
from penstock.llm.safetensors_file import read_json
from penstock.llm.tokens import Tokenizer

Pooling = Literal["mean", "last"]

#: `{architecture}.pooling_type` of GGUF files.
_GGUF: dict[Any, str] = {0: "", 1: "mean", 2: "the first token", 3: "last", 4: "a ranking"}


def pooling_of(file: ModelFile, asked: str | None) -> Pooling:
    """The pooling that was asked for, or that the file says, or else the mean."""
    wanted = asked or _stored(file) or "mean"
    if wanted == "mean":
        return "mean"
    if wanted == "last":
        return "last"
    if asked:
        raise ps.InvalidValue(f"pooling={asked!r}; there are 'mean' and 'last'")
    raise ModelError(
        f"{file.path} makes embeddings by {wanted}, which is not supported; pooling='mean' or "
        "'last' makes others"
    )


def _stored(file: ModelFile) -> str:
    if file.format == "gguf":
        stored = file.metadata.get(f"{file.config.architecture}.pooling_type", 0)
        return _GGUF.get(stored, f"pooling {stored}")
    path = file.directory / "1_Pooling" / "config.json"
    settings = read_json(path) if path.exists() else {}
    ways = {"mean_tokens": "mean", "lasttoken": "last", "cls_token": "the first token"}
    chosen = [name for key, name in ways.items() if settings.get(f"pooling_mode_{key}") is True]
    return chosen[0] if chosen else ""


def text_ids(file: ModelFile, tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text, and the one that the file wants after it."""
    ids = tokenizer.encode(text)
    return [*ids, *_ending(file, tokenizer)] if ids else ids


def _ending(file: ModelFile, tokenizer: Tokenizer) -> list[int]:
    if file.format == "gguf":
        wanted = file.metadata.get("tokenizer.ggml.add_eos_token") is True
        return [tokenizer.eos] if wanted and tokenizer.eos is not None else []
    # What tokenizer.json adds after a text.
    engine = tokenizer._engine
    plain, whole = (engine.encode("a", add_special_tokens=own).ids for own in (False, True))
    return list(whole[-1:]) if whole[-1:] != plain[-1:] else []


def embedded(
    network: Network, ids: list[int], pooling: Pooling, normalize: bool
) -> npt.NDArray[np.float32]:
    """The vector of a text's tokens; waits for it."""
    states = network.hidden(ids, last=pooling == "last")
    vector = states.mean(axis=0, dtype=np.float64)
    if normalize:
        length = float(np.sqrt(np.square(vector).sum()))
        vector = vector / length if length > 0 else vector
    found: npt.NDArray[np.float32] = vector.astype(np.float32)
    return found
