"""Batches of a prompt: few sizes, few of them, and padding that has no effect."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from penstock import llm
from penstock.llm import batches
from penstock.llm.config import ARCHITECTURES
from penstock.llm.device_state import NO_TOKEN, DeviceState
from penstock.llm.layers import Layers
from tests.llm.model_builders import miniature
from tests.llm.reference_model import Reference

IDS = [5, 17, 3, 20, 41, 9, 8, 1, 25, 30, 31, 7, 47, 6, 26, 12, 13, 9, 15, 42, 3, 3, 18]
WHOLE = 16  # tokens that are always one batch


@pytest.fixture(scope="module", params=["llvmpipe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = miniature(tmp_path_factory.mktemp("batches"), layers=2, vocabulary=48)
    with (
        ps.Device(request.param) as dev,
        llm.load(path, dev, cache="f32", progress=False) as loaded,
    ):
        yield loaded


@pytest.fixture(scope="module")
def one_by_one(model: llm.Model) -> Any:
    """The same model, without padding."""
    with llm.load(model.file.path, model.device, cache="f32", batch=1, progress=False) as loaded:
        yield loaded


@pytest.mark.parametrize("most", [1, 7, 16, 20, 64, 100, 256])
def test_every_token_is_in_a_batch(most: int) -> None:
    sizes = set()
    for count in range(600):
        parts = batches.split(count, most)
        assert sum(parts) == count
        assert all(0 < part <= most for part in parts)
        with_padding = [batches.padded(part, most) for part in parts]
        assert all(part == size for part, size in zip(parts[:-1], with_padding[:-1], strict=True))
        if parts and with_padding[-1] > WHOLE:
            assert 4 * parts[-1] > 3 * with_padding[-1], "less than a quarter is padding"
        sizes.update(with_padding)
    assert sizes <= {1 << n for n in range(10)} | {most}


def test_shorter_prompts_take_no_more_launches(model: llm.Model) -> None:
    """Up to 16 tokens are one batch. From there on a second one is smaller than its padding."""

    def launches(count: int) -> int:
        ids = (IDS * 3)[:count]
        return model.generate(ids, max_tokens=1, stop_ids=[]).receipt.prompt.launches

    found = [launches(count) for count in range(1, WHOLE + 2)]
    # Attention of few tokens takes one launch more in a layer, to join its shares.
    spare = model.config.layers
    assert all(here <= after + spare for here, after in itertools.pairwise(found))
    assert max(launches(count) for count in (24, 25, 33, 48, 49, 63)) <= 2 * max(found[:WHOLE])
    assert launches(63) <= found[WHOLE - 1] < found[WHOLE]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
def test_logits_of_short_prompts(dev: ps.Device, tmp_path: Path, arch: str) -> None:
    """They are the reference's, and so are those of later turns, after the padding."""
    path = miniature(tmp_path, arch, layers=2, vocabulary=48)
    with llm.load(path, dev, cache="f32", progress=False) as model:
        reference = Reference(model.file)
        wanted = _log_softmax(reference.logits(IDS))
        options: dict[str, Any] = {"stop_ids": [], "logprobs": 20}
        for count in (1, 2, 3, 5, 7, 9, 12, 15, 16, 17, 19, 22):
            first = model.generate(IDS[:count], max_tokens=3, **options)
            _check(first, wanted[count - 1])
            second = model.generate(
                [*IDS[:count], *first.ids, 9, 2], max_tokens=1, reuse=True, **options
            )
            assert second.receipt.reused >= count + 2
            _check(second, _log_softmax(reference.logits(second.prompt_ids))[-1])
            third = model.generate(IDS, max_tokens=1, reuse=True, **options)
            assert third.receipt.reused >= count
            _check(third, wanted[-1])


def test_steps_after_padding(model: llm.Model, one_by_one: llm.Model) -> None:
    """Positions, the history of penalties and random numbers go on after the last real token."""
    options: dict[str, Any] = {
        "max_tokens": 12, "stop_ids": [], "temperature": 2.0, "seed": 7, "repetition_penalty": 5.0,
        "penalty_last": 2,
    }  # fmt: skip
    for count in (3, 5, 11):
        ids = IDS[:count]
        assert model.generate(ids, **options).ids == one_by_one.generate(ids, **options).ids


def test_penalties_look_back_from_the_last_token(model: llm.Model) -> None:
    ids = [*IDS[:9], 33, 34]
    options: dict[str, Any] = {"max_tokens": 1, "repetition_penalty": 1e9, "penalty_last": 1}
    for biased, chosen in ((33, True), (34, False)):
        made = model.generate(ids, stop_ids=[], logit_bias={biased: 50.0}, **options)
        assert (made.ids == [biased]) is chosen


def test_padding_at_the_end_of_the_context(model: llm.Model) -> None:
    ids = (IDS * 3)[: model.context - 2]
    wanted = model.generate(ids, max_tokens=2, stop_ids=[]).ids
    model.generate(ids[:-5], max_tokens=1, stop_ids=[])
    made = model.generate(ids, max_tokens=2, stop_ids=[], reuse=True)
    assert made.receipt.reused == len(ids) - 5
    assert made.ids == wanted


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embeddings_without_padding(
    model: llm.Model, one_by_one: llm.Model, pooling: Literal["last", "mean"]
) -> None:
    texts = [IDS[:11], IDS[:3]]
    found, wanted = (each.embed(texts, pooling=pooling) for each in (model, one_by_one))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_history_without_padding(dev: ps.Device) -> None:
    layers = Layers(dev)
    progress = DeviceState.new(dev, batch=8, history=5, ring=1)
    for real, expected in (
        (8, [17, 13, 14, 15, 16]),
        (6, [12, 13, 14, 15, 11]),
        (1, [0, 0, 0, 10, 0]),
    ):
        progress.history.fill(0)
        progress.tokens.write(np.arange(10, 18, dtype=np.uint32))
        if real < 8:
            progress.tokens[real:].fill(NO_TOKEN)
        progress.restart(3)
        layers.remember(progress.tokens, progress.history, progress.state, count=8)
        assert progress.history.numpy().tolist() == expected
        layers.advance(progress.state, count=8)
        assert progress.state.numpy().tolist() == [3 + real, 0, 0, 0]


def _log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    result: npt.NDArray[Any] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return result


def _check(made: llm.Generation, wanted: npt.NDArray[Any]) -> None:
    one = (made.logprobs or ())[0]
    assert len(one.top) == 20
    for each in one.top:
        assert each.logprob == pytest.approx(wanted[each.id], abs=2e-4)
    assert wanted[one.id] >= wanted.max() - 1e-4
