"""The products for GPUs, run on CPU drivers for their values: vectors, tiles, packed dots."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock import llm
from penstock.llm import kernels
from penstock.llm.gpu_kernels import FEW
from penstock.llm.kinds import KINDS, PLAIN
from penstock.llm.products import Products, ways_for
from penstock.llm.variants import Variants
from tests.llm.model_builders import gguf
from tests.llm.test_products import (
    IN_SOME_WAYS,
    Host,
    activations,
    assert_product,
    products_of,
    random,
)
from tests.llm.weight_builders import block_columns, decoded, encoded, upload

ROWS = 73  # more than a tile has, and no multiple of anything
QUANTIZED = [kind for kind in KINDS if kind not in PLAIN]
on_lavapipe = pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
in_float_ways = pytest.mark.parametrize("way", ["vector", "tiles"])


def columns_of(kind: str) -> int:
    return 3 * max(block_columns(kind), 32)


def multiplied(products: Products, kind: str, counts: tuple[int, ...], first: int) -> None:
    """Compare products of every count, of a matrix that begins at byte `first`."""
    dev, columns = products.device, columns_of(kind)
    raw = encoded(kind, ROWS, columns, random())
    weight = upload(dev, kind, raw, first=first, split=(70,))
    x, there = activations(dev, max(counts), columns)
    before = random(3).standard_normal((max(counts) + 1, ROWS + 3), dtype=np.float32)
    for count in counts:
        y = dev.array(before)
        products.multiply(weight, there, y, count, add=True)
        packed = products.way == "packed" and kind in QUANTIZED
        taken = rounded(products, x[:count]) if packed else x[:count]
        got = y.numpy()
        assert_product(got[:count, :ROWS], decoded(kind, raw), taken, before[:count, :ROWS])
        assert (got[count:] == before[count:]).all()
        assert (got[:, ROWS:] == before[:, ROWS:]).all()


def rounded(products: Products, x: Host) -> Host:
    """What the device made of x for packed dots, after a check that it is x rounded as stated."""
    room = products._for_gpus._room
    assert room is not None
    integers = (
        room.bytes.numpy(force=True)[: x.size // 4].view(np.int8).reshape(-1, 32).astype(np.float64)
    )
    factor, total = room.factors.numpy(force=True)[: x.size // 32].T.astype(np.float64)
    blocks = x.reshape(-1, 32)
    np.testing.assert_allclose(factor, np.abs(blocks).max(1) / 127, rtol=1e-6)
    np.testing.assert_allclose(total, factor * integers.sum(1), rtol=1e-5, atol=1e-6)
    made = integers * factor[:, None]
    assert (np.abs(made - blocks) <= 0.50001 * factor[:, None]).all()
    return np.asarray(made.reshape(x.shape))


@on_lavapipe
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(dev: ps.Device, kind: str) -> None:
    """Few tokens by vectors, and more than `FEW` by tiles."""
    if kind in IN_SOME_WAYS:
        multiplied(products_of(dev, "tiles"), kind, (1,), 0)
        return
    multiplied(products_of(dev, "tiles"), kind, (1, 2, FEW + 1), 0)
    if kernels.blocks_are_words(kind):  # else no row begins at a word anyway
        multiplied(products_of(dev, "tiles"), kind, (2, FEW + 1), 46)


@on_lavapipe
@pytest.mark.parametrize("kind", QUANTIZED)
def test_packed_dots_of_every_kind(dev: ps.Device, kind: str) -> None:
    needs_dots(dev)
    counts = (FEW + 1,) if kind in IN_SOME_WAYS[1:] else (1, FEW + 1)  # Q2_K has minima of its own
    multiplied(products_of(dev, "packed"), kind, counts, 46)


def needs_dots(dev: ps.Device) -> None:
    if "shaderIntegerDotProduct" not in dev.info.features:
        pytest.skip(f"{dev.info.name} has no integer dot products")


@on_lavapipe
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("way", ["vector", "tiles", "packed"])
def test_every_number_of_tokens(dev: ps.Device, way: str, kind: str) -> None:
    if way == "packed":
        needs_dots(dev)
    multiplied(products_of(dev, way), kind, (1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 64, 70), 0)


@pytest.mark.parametrize("driver", ["SwiftShader"], indirect=True)
@pytest.mark.parametrize("way", ["tiles", "packed"])
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_on_another_driver(dev: ps.Device, way: str, kind: str) -> None:
    """With subgroups of four, a workgroup is eight of them."""
    if way == "packed":
        needs_dots(dev)
    multiplied(products_of(dev, way), kind, (1, 3, 70), 0)


@on_lavapipe
@in_float_ways
@pytest.mark.parametrize("columns", [1, 7, 100])
def test_columns_that_fill_no_unit_are_multiplied_another_way(
    dev: ps.Device, way: str, columns: int
) -> None:
    raw = encoded("F16", 9, columns, random())
    weight = upload(dev, "F16", raw, first=2)
    for count in (1, 12):
        x, there = activations(dev, count, columns)
        y = dev.empty((count, 9))
        products_of(dev, way).multiply(weight, there, y, count)
        assert_product(y.numpy(), decoded("F16", raw), x)


@on_lavapipe
@pytest.mark.parametrize("count", [1, 12])
def test_more_rows_than_a_launch_has_groups_for(
    dev: ps.Device, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = Products(dev, way="tiles")
    monkeypatch.setattr(products._for_gpus, "_most_groups", 1)
    raw = encoded("Q8_0", ROWS, 64, random())
    weight = upload(dev, "Q8_0", raw, first=6)
    x, there = activations(dev, count, 64)
    y = dev.full((count, ROWS), np.nan, np.float32)
    with ps.trace() as trace:
        products.multiply(weight, there, y, count)
    assert trace.launches == -(-ROWS // (4 if count == 1 else 64))
    assert_product(y.numpy(), decoded("Q8_0", raw), x)


@on_lavapipe
def test_products_of_one_input_share_its_rounding(dev: ps.Device) -> None:
    needs_dots(dev)
    products = products_of(dev, "packed")
    weight = upload(dev, "Q8_0", encoded("Q8_0", 8, 64, random()))
    x, y = dev.ones((2, 64)), dev.zeros((2, 8))

    def launches(products: Products) -> int:
        with ps.trace() as trace:
            products.multiply(weight, x, y, 2)
            products.multiply(weight, x, y, 2)
        return trace.launches

    assert launches(products) == 4
    with products.same_input():
        assert launches(products) == 3
    x[1].fill(3)
    with products.same_input():
        products.multiply(weight, x, y, 1)
        products.multiply(weight, x, y, 2)
    rows = y.numpy()
    np.testing.assert_allclose(rows[1], 3 * rows[0], rtol=1e-6, err_msg="row 1 was not rounded")
    x[0].fill(2)
    x[1].fill(6)
    before = y.numpy().copy()
    assert launches(products) == 4
    np.testing.assert_allclose(y.numpy(), 2 * before, rtol=1e-6)
    with ps.trace() as trace:
        products.gated(weight, weight, x, y, 2)
    assert trace.launches == 4, "rounding, two products, their gate"


@on_lavapipe
def test_sharing_is_a_matter_of_one_thread(dev: ps.Device) -> None:
    """Another thread, whose x may change meanwhile, rounds it for every product."""
    needs_dots(dev)
    products = products_of(dev, "packed")
    weight = upload(dev, "Q8_0", encoded("Q8_0", 8, 64, random()))
    x, y = dev.ones((1, 64)), dev.zeros((1, 8))

    def multiply_twice() -> None:
        for _ in range(2):
            products.multiply(weight, x, y, 1)

    with products.same_input(), ps.trace() as trace:
        other = threading.Thread(target=multiply_twice)
        other.start()
        other.join()
    assert trace.launches == 4


@on_lavapipe
def test_zeros_have_a_factor_too(dev: ps.Device) -> None:
    needs_dots(dev)
    weight = upload(dev, "Q4_1", encoded("Q4_1", 8, 64, random()))
    y = dev.full((1, 8), np.nan, np.float32)
    products_of(dev, "packed").multiply(weight, dev.zeros((1, 64)), y, 1)
    assert (y.numpy() == 0).all()


@on_lavapipe
def test_greedy_tokens_are_those_of_other_ways(dev: ps.Device, tmp_path: Path) -> None:
    for kind in ("Q8_0", "F16", "Q4_K_M"):
        path = gguf(tmp_path, "qwen3", kind)
        texts = []
        for fixed in (
            Variants.expected(dev),
            Variants("vector", "vector", "tiles"),
            Variants("subgroup", "tiles", "shared"),
        ):
            with llm.load(path, dev, variants=fixed, progress=False) as model:
                made = model.generate(list(range(1, 21)), max_tokens=12, stop_ids=())
                assert made.receipt.variants == fixed
                texts.append(made.ids)
        assert texts[0] == texts[1] == texts[2]
        assert len(texts[0]) == 12


@on_lavapipe
def test_packed_dots_are_taken_only_if_they_are_asked_for(dev: ps.Device, tmp_path: Path) -> None:
    needs_dots(dev)
    assert all("packed" not in ways_for(dev, count) for count in (1, 16))
    path, ids = gguf(tmp_path, "qwen3", "Q8_0"), list(range(1, 21))
    with llm.load(path, dev, variants=Variants("packed", "packed"), progress=False) as model:
        near = model.logits(ids)
    with llm.load(path, dev, variants=Variants.expected(dev), progress=False) as model:
        exact = model.logits(ids)
    off = np.abs(near - exact).max() / np.abs(exact).max()
    assert 1e-5 < off < 0.1, "rounded to 8 bits, and not further off"
