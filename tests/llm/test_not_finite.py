"""Weights that are not numbers: every generation says so, and names the position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import llm
from penstock.llm.gguf_writer import NewTensor
from penstock.llm.optimizations import Mechanisms
from tests.llm.model_builders import miniature, rewritten

IDS = [5, 17, 3, 20, 41]
SIZES: dict[str, Any] = {"layers": 2, "vocabulary": 48, "tied": False}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8, "seed": 1},
    "filters": {"temperature": 1.0, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    "bias": {"logit_bias": {3: -math.inf, 7: 2.0}},
    "logprobs": {"logprobs": 5},
    "logprobs of a draw": {"temperature": 1.0, "logprobs": 5},
}


def broken(path: Path, name: str, row: int = 0, value: float = math.nan) -> Path:
    """The same file, but for one weight."""

    def change(_: dict[str, Any], tensors: dict[str, NewTensor]) -> None:
        old = tensors[name]
        numbers = np.frombuffer(b"".join(old.parts()), np.float32).copy()
        numbers.reshape(old.shape)[row, ...].flat[0] = value
        tensors[name] = NewTensor(name, old.kind, old.shape, lambda: [numbers.tobytes()])

    return rewritten(path, change)


@pytest.fixture
def dev() -> Iterator[ps.Device]:
    with ps.Device("llvmpipe") as device:
        yield device


def check(made: llm.Generation, position: int) -> None:
    said = rf"position {position} are not finite.*NaN.*Check the file.*cache='f32'"
    with pytest.raises(llm.ModelError, match=said):
        _ = made.ids
    assert repr(made).endswith("cancelled>")


def test_every_way_of_sampling_says_so(dev: ps.Device, tmp_path: Path) -> None:
    path = broken(miniature(tmp_path, **SIZES), "blk.1.ffn_down.weight")
    with llm.load(path, dev, progress=False) as model:
        for options in WAYS.values():
            check(model.generate(IDS, max_tokens=4, stop_ids=[], stream=True, **options), len(IDS))
        with pytest.raises(llm.ModelError, match="not finite"):
            model.generate(IDS, max_tokens=1)
        assert np.isnan(model.logits(IDS)).any()


def test_where_the_first_nan_is(dev: ps.Device, tmp_path: Path) -> None:
    """The embedding of one token is NaN: what comes before that token is right."""
    path = miniature(tmp_path, **SIZES)
    options: dict[str, Any] = {"stop_ids": [], "temperature": 5.0, "seed": 1}
    with llm.load(path, dev, progress=False) as model:
        wanted = model.generate(IDS, max_tokens=8, **options).ids
    number = next(n for n in range(1, 7) if wanted[n] not in (*IDS, *wanted[:n]))
    path = broken(path, "token_embd.weight", wanted[number])
    with llm.load(path, dev, progress=False) as model:
        check(model.generate(IDS, max_tokens=8, stream=True, **options), len(IDS) + number + 1)
        short = model.generate(IDS, max_tokens=number + 1, reuse=True, **options)
        assert short.ids == wanted[: number + 1]
        assert short.receipt.reused == 0, "the rows of a cache with NaN are not used again"


@pytest.mark.parametrize(
    "name", ["output.weight", "output_norm.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"]
)
@pytest.mark.parametrize("cache", ["f32", "f16", "q8_0"])
def test_no_type_of_cache_hides_it(dev: ps.Device, tmp_path: Path, name: str, cache: str) -> None:
    path = broken(miniature(tmp_path, head_size=32, **SIZES), name)
    with llm.load(path, dev, cache=cache, progress=False) as model:
        check(model.generate(IDS, max_tokens=2, stream=True), len(IDS))


def test_rounding_of_activations_does_not_hide_it(dev: ps.Device, tmp_path: Path) -> None:
    path = broken(miniature(tmp_path, kind="Q8_0", **SIZES), "output_norm.weight")
    ways = llm.Variants(decode="packed", batch="packed")
    with llm.load(path, dev, variants=ways, progress=False) as model:
        check(model.generate(IDS, max_tokens=2, stream=True), len(IDS))


def test_infinite_weights_say_so(dev: ps.Device, tmp_path: Path) -> None:
    path = broken(miniature(tmp_path, **SIZES), "blk.0.ffn_down.weight", value=math.inf)
    with llm.load(path, dev, progress=False) as model:
        check(model.generate(IDS, max_tokens=2, stream=True), len(IDS))


def test_sampling_on_the_host_says_so(dev: ps.Device, tmp_path: Path) -> None:
    path = broken(miniature(tmp_path, **SIZES), "blk.1.ffn_down.weight")
    with llm.load(path, dev, progress=False) as model:
        check(
            model.generate(IDS, max_tokens=2, stream=True, mechanisms=Mechanisms(sampling=False)),
            len(IDS),
        )
