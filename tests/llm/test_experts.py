"""Mixtures of experts: routing, products with the chosen matrices, and whole models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from penstock import llm
from penstock.llm import ModelError, feed_forward, kernels, open_model, place
from penstock.llm import weights as weights_module
from penstock.llm.kinds import KINDS
from penstock.llm.mixture import Mixture
from penstock.llm.products import Products
from penstock.llm.routing import Room, Routed, Routing, is_grouped, tile_of
from penstock.llm.weights import NOWHERE, Begins, Piece, Weight
from tests.llm.model_builders import gguf, hugging_face, miniature, shared
from tests.llm.reference_model import Reference
from tests.llm.test_decode import IDS, SMALL, TOLERANCE, _safetensors, close_to
from tests.llm.weight_builders import block_columns, decoded, encoded

Host = npt.NDArray[Any]


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# Routing.

ROUTES = [
    Mixture(1, 1, 1, True), Mixture(8, 2, 1, True), Mixture(7, 3, 1, False),
    Mixture(64, 8, 1, True), Mixture(9, 9, 1, False), Mixture(130, 10, 1, False),
]  # fmt: skip


@pytest.mark.parametrize("variant", ["cpu", "gpu"])
def test_the_experts_with_the_largest_numbers_are_chosen(dev: ps.Device, variant: Any) -> None:
    routing = Routing(dev, variant=variant)
    for mixture in ROUTES:
        for count in (1, 2, 5, 33):
            logits = random(count).standard_normal((count, mixture.experts), np.float32) * 3
            logits[:, ::3] = np.round(logits[:, ::3])  # some are equal
            routed = routing.route(dev.array(logits), mixture, Room(dev, mixture, 40), count)
            chosen, shares = read(routed)
            assert np.array_equal(chosen, expected_choice(logits, mixture.chosen))
            wide = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
            wanted = np.take_along_axis(wide / wide.sum(-1, keepdims=True), chosen, -1)
            if mixture.normalized:
                wanted /= wanted.sum(-1, keepdims=True)
            np.testing.assert_allclose(shares, wanted, rtol=1e-5)
            assert_tiles(routed, chosen)


@pytest.mark.parametrize("variant", ["cpu", "gpu"])
def test_whatever_the_numbers_are_the_experts_exist_and_differ(
    dev: ps.Device, variant: Any
) -> None:
    mixture = Mixture(13, 5, 1, True)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1e-42, 3e38, 1.0], np.float32)
    logits = random(1).choice(odd, (60, 13))
    logits[0], logits[1], logits[2] = np.nan, -np.inf, np.inf
    logits[3, 4] = -np.float32(np.nan)
    routed = Routing(dev, variant=variant).route(
        dev.array(logits), mixture, Room(dev, mixture, 60), 60
    )
    chosen, _ = read(routed)
    assert chosen.max() < 13
    assert all(len(set(row)) == 5 for row in chosen.tolist())
    assert chosen[0].tolist() == chosen[1].tolist() == chosen[2].tolist() == [0, 1, 2, 3, 4]
    assert_tiles(routed, chosen)


def test_routes_that_do_not_fit_are_refused(dev: ps.Device) -> None:
    mixture, routing = Mixture(8, 2, 1, True), Routing(dev)
    room = Room(dev, mixture, 4)
    for shape, count in (((4, 7), 4), ((3, 8), 4), ((8, 8), 5)):
        with pytest.raises(ps.ShapeMismatch, match="route: logits of shape"):
            routing.route(dev.zeros(shape), mixture, room, count)


def read(routed: Routed) -> tuple[Host, Host]:
    shape = (routed.tokens, routed.rows // routed.tokens)
    room = routed.room
    return tuple(
        one.numpy(force=True)[: routed.rows].reshape(shape) for one in (room.chosen, room.shares)
    )  # type: ignore[return-value]


def expected_choice(logits: Host, count: int) -> Host:
    return np.argsort(-logits, -1, kind="stable")[:, :count]


def assert_tiles(routed: Routed, chosen: Host) -> None:
    """Each row is in one tile, of its expert; it has its token's input, and the token finds it."""
    tiles = routed.room.tiles.numpy(force=True)[: 3 * routed.tiles].reshape(-1, 3)
    sources, places = (
        one.numpy(force=True)[: routed.rows] for one in (routed.room.sources, routed.room.places)
    )
    assert sorted(places) == list(range(routed.rows))
    expert_of = np.full(routed.rows, -1)
    for expert, first, end in tiles.tolist():
        assert first <= end <= first + routed.tile
        assert (expert_of[first:end] == -1).all()
        expert_of[first:end] = expert
    pairs = np.arange(routed.rows)
    assert np.array_equal(expert_of[places], chosen.ravel())
    assert np.array_equal(sources[places], pairs // chosen.shape[1])


def test_tiles_grow_with_the_prompt() -> None:
    mixture = Mixture(128, 8, 1, True)
    assert [is_grouped(mixture, count) for count in (1, 7, 8, 64)] == [False, False, True, True]
    assert [tile_of(mixture, count) for count in (8, 64, 65, 512, 4096)] == [1, 4, 8, 32, 64]
    assert is_grouped(Mixture(2, 2, 1, True), 2)


# Products.


def stack(device: ps.Device, kind: str, experts: list[Host], first: int, split: int) -> Weight:
    """Matrices in reversed order, with bytes of something else between, in two pieces."""
    pieces = []
    for numbers in (range(split), range(split, len(experts))):
        begins = np.full(len(experts), NOWHERE, np.uint32)
        data = b"\xa5" * first
        for number in reversed(numbers):
            begins[number] = len(data)
            data += experts[number].tobytes() + b"\xa5" * first
        own = [int(begins[number]) for number in numbers]
        words = np.frombuffer(data + bytes(-len(data) % 4), np.uint32)
        table = Begins(device.array(begins), int(np.gcd.reduce([16, *own])))
        pieces.append(Piece(device.array(words), own[0], 0, len(experts[0]), table))
    columns = decoded(kind, experts[0][:1]).shape[1]
    return Weight(kind, kind, len(experts[0]), columns, tuple(pieces), len(experts))


def routed_by(device: ps.Device, mixture: Mixture, count: int) -> tuple[Routed, Host]:
    logits = random(7).standard_normal((count, mixture.experts), np.float32)
    room = Room(device, mixture, count)
    routed = Routing(device).route(device.array(logits), mixture, room, count)
    return routed, expected_choice(logits, mixture.chosen)


#: Every kind by rows, as lavapipe takes it; in other ways a plain and a quantized kind.
WAYS = [
    *(("rows", kind) for kind in KINDS),
    *((way, kind) for way in kernels.WAYS if way != "rows" for kind in ("F16", "Q8_0")),
]


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
@pytest.mark.parametrize(("way", "kind"), WAYS)
def test_rows_are_multiplied_with_their_experts_matrices(
    dev: ps.Device, way: str, kind: str
) -> None:
    if way == "packed" and "shaderIntegerDotProduct" not in dev.info.features:
        pytest.skip("no packed dots")
    columns = 96 if block_columns(kind) <= 32 else 256
    raw = [encoded(kind, 37, columns, random(number)) for number in range(6)]
    weight = stack(dev, kind, raw, 2 * 7 if kind != "F32" else 12, split=2)
    matrices = np.array([decoded(kind, one) for one in raw], np.float64)
    products = Products(dev, way=way)
    counts = {"rows": (1, 21, 60) if kind == "F16" else (1, 21), "tiles": (60,), "packed": (2, 60)}
    for count in counts.get(way, (2, 21)):
        routed, chosen = routed_by(dev, Mixture(6, 2, 1, True), count)
        places = routed.room.places.numpy(force=True)[: routed.rows].reshape(chosen.shape)
        x = random(1).standard_normal((routed.rows, columns), np.float32)
        y = dev.full((routed.rows + 1, 40), np.nan, np.float32)
        for gather in (True, False):
            y.fill(np.nan)
            given = dev.array(x[:count] if gather else x)
            products.multiply_experts(weight, given, y, routed, gather=gather)
            got = y.numpy()
            assert np.isnan(got[routed.rows :]).all()
            assert np.isnan(got[:, 37:]).all()
            rows = np.arange(count)[:, None] if gather else places
            inputs = np.broadcast_to(x[rows], (*chosen.shape, columns)).astype(np.float64)
            wanted = np.einsum("tkc,tkrc->tkr", inputs, matrices[chosen])
            slack = np.einsum("tkc,tkrc->tkr", np.abs(inputs), np.abs(matrices[chosen]))
            off = np.abs(got[:, :37][places] - wanted) / slack
            assert off.max() < (1e-2 if way == "packed" and kind == "Q8_0" else 2e-6)


def test_stacks_and_matrices_are_told_apart(dev: ps.Device) -> None:
    raw = [encoded("F32", 4, 8, random(number)) for number in range(6)]
    weight = stack(dev, "F32", raw, 0, split=3)
    routed, _ = routed_by(dev, Mixture(6, 2, 1, True), 2)
    products, x, y = Products(dev), dev.zeros((4, 8)), dev.zeros((4, 4))
    with pytest.raises(ps.Unsupported, match="is stack of experts' matrices"):
        products.multiply(weight, x, y, 2)
    one = Weight("one", "F32", 4, 8, (Piece(weight.pieces[0].words, 0, 0, 4),))
    with pytest.raises(ps.Unsupported, match="is no stack"):
        products.multiply_experts(one, x, y, routed, gather=False)
    with pytest.raises(ps.ShapeMismatch, match="x has the shape"):
        products.multiply_experts(weight, dev.zeros((3, 8)), y, routed, gather=False)
    with pytest.raises(ps.ShapeMismatch, match="y has the shape"):
        products.multiply_experts(weight, x, dev.zeros((3, 4)), routed, gather=True)


# Placement.


@pytest.mark.parametrize("form", ["gguf", "safetensors", "fused"])
@pytest.mark.parametrize("copy", [False, True])
def test_matrices_stay_in_the_file(
    dev: ps.Device, tmp_path: Path, form: str, copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where little can be bound or imported at once: every matrix is whole in one piece."""
    sizes = {"mixture": Mixture(12, 3, 16, normalized=False, shared_ffn=8), "layers": 2}
    if form == "gguf":
        model = open_model(miniature(tmp_path, "qwen3moe", **sizes))
    else:
        fused = form == "fused"
        model = open_model(hugging_face(tmp_path / "hf", "qwen3moe", 2, fused=fused, sizes=sizes))
    real = weights_module._limit
    for bound, imported in ((1 << 30, 1 << 30), (5000, 1 << 30), (5000, 20000)):
        limits = {"binding_range": bound, "allocation": imported}
        monkeypatch.setattr(
            weights_module, "_limit",
            lambda device, name, limits=limits: min(real(device, name), limits.get(name, 1 << 62)),
        )  # fmt: skip
        with ps.trace() as receipt:
            weights = place(dev, model, progress=False, copy=copy)
        tables = 0
        for name, tensor in model.tensors.items():
            weight = weights[name]
            if "_exps" not in name:
                assert weight.experts == 0
                continue
            assert (weight.experts, weight.rows, weight.columns) == tensor.shape
            assert len(weight.pieces) > 1 or bound > 5000
            tables += 4 * 12 * len(weight.pieces)
            assert content_of_stack(weight, tensor.nbytes // 12) == tensor.bytes.tobytes()
        assert receipt.bytes_copied == tables + (model.nbytes if copy else 0)
        weights.close()
    monkeypatch.setattr(
        weights_module, "_limit",
        lambda device, name: 2000 if name == "binding_range" else real(device, name),
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"_exps\.weight' has matrices of 2,048 bytes, more than"):
        place(dev, model, progress=False, copy=copy)


def content_of_stack(weight: Weight, nbytes: int) -> bytes:
    found: dict[int, bytes] = {}
    for piece in weight.pieces:
        assert piece.experts is not None
        data = piece.words.numpy().tobytes()
        for expert, begin in enumerate(piece.experts.table.numpy().tolist()):
            if begin != NOWHERE:
                assert begin % piece.experts.alignment == 0
                assert expert not in found
                found[expert] = data[begin : begin + nbytes]
    return b"".join(found[expert] for expert in range(weight.experts))


# Whole models.

#: One to four experts of a token; a shared one, layers without, tied embeddings.
MODELS = {
    "one of five": Mixture(5, 1, 48, normalized=False),
    "two of eight": Mixture(8, 2, 32, normalized=True),
    "three of six, and a shared one": Mixture(6, 3, 32, normalized=False, shared_ffn=80),
    "four of 33": Mixture(33, 4, 16, normalized=True, shared_ffn=32),
}


@pytest.fixture(params=MODELS)
def model(dev: ps.Device, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[llm.Model]:
    mixture = MODELS[request.param]
    tied = mixture.experts % 2 == 0
    path = gguf(tmp_path, "qwen3moe", "F32", **SMALL, mixture=mixture, tied=tied)
    with llm.load(path, dev, cache="f32") as loaded:
        assert loaded.config.tied == tied
        yield loaded


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
def test_models_of_several_shapes(model: llm.Model) -> None:
    """Logits and tokens are those of NumPy; a prompt may be read in any two parts."""
    reference = Reference(model.file)
    wanted = reference.logits(IDS)
    close_to(model.logits(IDS), wanted, TOLERANCE)
    assert model.generate(IDS, max_tokens=8, stop_ids=[]).ids == reference.greedy(IDS, 8)
    every = range(1, len(IDS)) if model.config.mixture == MODELS["two of eight"] else (1, 7)
    for first in every:
        with model.network() as network:
            network.read(IDS[:first], "nothing")
            close_to(network.logits(IDS[first:]), wanted[first:], TOLERANCE)


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
def test_a_token_costs_what_it_does_without_experts(dev: ps.Device, tmp_path: Path) -> None:
    path = gguf(tmp_path, "qwen3moe", "Q8_0", **SMALL, mixture=Mixture(16, 4, 32, True, 64))
    with llm.load(path, dev) as model:
        with ps.trace() as loading:
            model.generate(IDS, max_tokens=2, stop_ids=[])
        names = {event.buffer for event in loading.of_kind("copy")}
        assert not any("weight" in str(name) for name in names), "weights stay in the file"
        for _ in range(2):
            made = model.generate(IDS, max_tokens=30, stop_ids=[])
        cost = made.receipt.generation
        assert (cost.allocations, cost.bytes_copied) == (0, 4 * cost.tokens)
        with model.network() as network:
            network.read(IDS, "greedy")
            network.step("greedy")
            dev.synchronize()
            with ps.trace() as t:
                for _ in range(10):
                    network.step("greedy")
                t.expect(waits=0, allocations=0, copies=0, replays=10)
            assert network.token(11) == made.ids[11]


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
def test_other_experts_are_not_read(dev: ps.Device, tmp_path: Path) -> None:
    """Zeros instead of the matrices that no token takes change nothing."""
    mixture = Mixture(32, 2, 32, True)
    path = gguf(tmp_path, "qwen3moe", "F32", **SMALL, mixture=mixture)
    with llm.load(path, dev, cache="f32") as model:
        wanted = model.logits(IDS[:2])
        data = np.memmap(path, np.uint8, "r+")
        taken = 0
        with model.network() as network:
            network.logits(IDS[:2])
            chosen = network._ffn._experts._room.chosen.numpy(force=True)[:4]  # type: ignore[union-attr]
        for name, tensor in model.file.tensors.items():
            if name.startswith("blk.1.") and "_exps" in name:
                for expert, one in enumerate(tensor.matrices()):
                    if expert in chosen:
                        taken += 1
                    else:
                        data[one.offset : one.offset + one.nbytes] = 0xFF  # NaN
        data.flush()
        assert 0 < taken < 3 * 5
        np.testing.assert_array_equal(model.logits(IDS[:2]), wanted)


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
@pytest.mark.parametrize("fused", [False, True])
def test_experts_of_safetensors(
    dev: ps.Device, tmp_path: Path, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where weights are copied, and where few tokens are routed at a time."""
    monkeypatch.setattr(feed_forward, "most_tokens", lambda mixture: 5)
    sizes = {"mixture": Mixture(12, 3, 32, normalized=False, shared_ffn=8), "layers": 2}
    directory = hugging_face(
        tmp_path / "hf", "qwen3moe", 3, 288, fused=fused, sizes=sizes, mlp_only_layers=[]
    )
    wanted = None
    for options in ({}, {"transfers": "unmapped"}):
        with (
            ps.Device(dev.name, **options) as other,
            llm.load(directory, other, cache="f32", progress=False) as model,
        ):
            if wanted is None:
                wanted = model.logits(IDS)
                close_to(wanted, Reference(model.file).logits(IDS), TOLERANCE)
            np.testing.assert_array_equal(model.logits(IDS), wanted)


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
@pytest.mark.parametrize("file", ["tiny-random-qwen3moe-BF16.gguf", "."])
def test_logits_and_tokens_computed_elsewhere(dev: ps.Device, file: str) -> None:
    directory = shared("tiny-random-qwen3moe")
    expected = json.loads((directory / "expected.json").read_text())
    ids = expected["prompt_ids"]
    with llm.load(directory / file, dev, cache="f32") as model:
        logits = _safetensors(directory / "expected_logits.safetensors")["logits"]
        close_to(model.logits(ids), logits, 1e-5)
        made = model.generate(ids, max_tokens=48, stop_ids=[])
        assert made.ids == expected["greedy_ids"]
