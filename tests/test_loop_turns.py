"""No kernel of Penstock's own loops longer than every driver lets it.

lavapipe ends all loops of an invocation after 65,535 turns together, nested or one after the other,
and counts one turn more for each loop than its body runs. What a kernel computes is then wrong
without an error. So each kernel is launched such that no invocation needs that many turns.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.conformance.generator import _LARGE
from penstock.conformance.kernels import SLOW, Kernels
from penstock.llm import kernels
from penstock.llm.device_state import DeviceState
from penstock.llm.kinds import KINDS
from penstock.llm.layers import Cache, Layers
from penstock.llm.products import Products
from penstock.llm.sampling import Sampler, Sampling, Shape
from penstock.llm.weights import Piece, Weight
from penstock.ops import elementwise, reductions
from tests.llm.references import vector
from tests.llm.weight_builders import decoded, encoded, upload

SOURCES = Path(ps.__file__).parent
LIMIT = 65_535
NO_LOOP = "no loop"

#: Every shader that is shipped: the test below whose sizes took more turns than LIMIT, or why no
#: size does.
TURNS = {
    "bench/shaders/pick.comp": NO_LOOP,
    "bench/shaders/saxpy.comp": NO_LOOP,
    "bench/shaders/touch.comp": NO_LOOP,
    "graph/shaders/advance.comp": NO_LOOP,
    "graph/shaders/advance.hip": NO_LOOP,
    "cli/shaders/saxpy.comp": NO_LOOP,
    "ops/shaders/reduction.comp": "test_reductions",
    "ops/shaders/reduction.hip": "16,384 elements of 2^31 for a thread of 512 groups of 256",
    "llm/shaders/advance.comp": NO_LOOP,
    "llm/shaders/attention_join.comp": "test_attention: a turn for each share; windows of at least "
    "32 KiB, six to a share, make 21,846 shares of the 4 GiB that can be bound",
    "llm/shaders/attention_lanes.comp": "test_attention",
    "llm/shaders/attention_rows.comp": "test_attention",
    "llm/shaders/attention_shared.comp": "test_attention",
    "llm/shaders/attention_windows.comp": "a window of 64 KiB has 4096 words of 16 bytes: at most "
    "512 blocks of 8 rows, 12 turns each",
    "llm/shaders/bias.comp": NO_LOOP,
    "llm/shaders/blocks.glsl": NO_LOOP,
    "llm/shaders/cache.glsl": NO_LOOP,
    "llm/shaders/cut.glsl": NO_LOOP,
    "llm/shaders/embed.comp": "an invocation decodes one unit of up to 128 weights",
    "llm/shaders/finish.glsl": NO_LOOP,
    "llm/shaders/gate.comp": NO_LOOP,
    "llm/shaders/group.glsl": "a turn for each subgroup of up to 256 invocations, or 8 of a tree",
    "llm/shaders/input.glsl": NO_LOOP,
    "llm/shaders/product.comp": "test_products",
    "llm/shaders/product_rows.comp": "test_products",
    "llm/shaders/remember.comp": NO_LOOP,
    "llm/shaders/repeat.glsl": NO_LOOP,
    "llm/shaders/rmsnorm.comp": "test_rmsnorm",
    "llm/shaders/rope_store.comp": "loops over a head, of up to 256 elements",
    "llm/shaders/sample_begin.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_draw.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_gather.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_greedy.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_peaks.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_penalise.comp": "test_penalties",
    "llm/shaders/sample_recount.comp": "test_sampling",
    "llm/shaders/sample_seek.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_sums.comp": "test_sampling_is_bounded",
    "llm/shaders/sampling.glsl": NO_LOOP,
    "llm/shaders/subgroup.glsl": NO_LOOP,
    "llm/shaders/vector.glsl": NO_LOOP,
}

on_lavapipe = pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)


def test_every_shader_is_in_the_table() -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for folder in SOURCES.rglob("shaders")
        for path in folder.glob("*.*")
        if path.suffix in (".comp", ".glsl", ".hip")
    }
    assert found == set(TURNS), "say in TURNS why the new shader cannot loop too long"
    for name, why in TURNS.items():
        code = re.sub(r"//.*", "", (SOURCES / name).read_text())
        assert (why == NO_LOOP) == (re.search(r"\b(for|while|do)\b", code) is None), name
        test = re.match(r"test_\w+", why)
        assert test is None or test[0] in globals(), name


@on_lavapipe
def test_reductions(dev: ps.Device) -> None:
    """20 million elements are more than the shape for CPUs can loop over."""
    count = 20_000_000
    ones = dev.ones(count)
    assert float(ones.sum()) == count
    assert float(ones.mean()) == 1
    count = 17_000_000
    host = np.zeros(count, np.uint8)
    host[[count - 3, count - 2]] = 5
    x = dev.array(host)
    assert int(x.sum()) == 10
    assert int(x.max()) == 5
    assert int(x.argmax()) == count - 3
    assert bool(x.any())
    assert not bool(x.all())
    assert int(x.dot(x)) == 50
    assert float(x.mean()) == 10 / count


def test_every_reduction_fits_a_shape() -> None:
    for shape in (reductions._ON_GPU, reductions._ON_GPU._replace(group_size=128)):
        assert shape.holds(reductions._MOST_ELEMENTS)
    each = reductions._MOST_EACH
    blocks = -(-each // reductions._BLOCK)
    assert each + 2 * blocks + 1 <= LIMIT


@on_lavapipe
def test_the_conformance_suite(dev: ps.Device) -> None:
    """Its largest array, summed by one invocation that spins before."""
    total = Kernels(dev)["total"]
    x = dev.ones(_LARGE, np.uint32)
    assert total(x=x, n=_LARGE, spin=SLOW, a=1, threads=64).result() == _LARGE + 1


@on_lavapipe
def test_elementwise_with_a_loop_of_its_own(dev: ps.Device) -> None:
    """Elements that one invocation takes one after the other would share its turns."""
    operation = dev.elementwise(
        "uint sum = 0u; uint turns = i % 16384u < 8u ? 40000u : 1u;\n"
        "for (uint k = 0u; k < turns; ++k) sum += x[i]; y[i] = sum;",
        "in uint32 x, out uint32 y",
    )
    got = operation(dev.ones(2 * 16_384, np.uint32)).numpy()
    expected = np.where(np.arange(2 * 16_384) % 16_384 < 8, 40_000, 1)
    np.testing.assert_array_equal(got, expected)


@on_lavapipe
def test_elementwise_takes_more_groups_for_more_elements(
    dev: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elementwise, "_MOST_EACH", 3)
    operation = dev.elementwise("y[i] = x[i] + 1u", "in uint32 x, out uint32 y")
    count = 5 * 16_384 + 1
    launched: list[int] = []
    call = operation.kernel.__class__.__call__

    def listen(kernel: Any, *args: Any, threads: int, **named: Any) -> Any:
        launched.append(threads)
        return call(kernel, *args, threads=threads, **named)

    monkeypatch.setattr(operation.kernel.__class__, "__call__", listen)
    host = np.arange(count, dtype=np.uint32)
    np.testing.assert_array_equal(operation(dev.array(host)).numpy(), host + 1)
    assert launched == [-(-count // 3)]


@on_lavapipe
@pytest.mark.parametrize(
    ("variant", "count", "context", "heads", "head_size", "cache_type"),
    [
        ("cpu", 2, 100_000, 4, 8, "f32"), ("cpu", 2, 100_000, 4, 8, "f16"),
        ("cpu", 2, 200_000, 4, 8, "f16"), ("cpu", 2, 27_000, 4, 128, "f16"),
        ("gpu", 2, 50_000, 1, 254, "f16"), ("cpu", 1, 200_000, 4, 8, "f32"),
    ],
)  # fmt: skip
def test_attention(
    dev: ps.Device, variant: Any, count: int, context: int, heads: int, head_size: int,
    cache_type: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All rows of a long context count alike: the last tenth of them is 1, the others are 0."""
    monkeypatch.setattr("penstock.llm.layers._GPU_GROUPS", 1)
    layers = Layers(dev, variant=variant)
    cache = Cache.new(dev, context, heads, head_size, cache_type=cache_type)
    cache.keys.fill(0)
    values = np.zeros(cache.values.shape, cache.values.dtype)
    values[context - context // 10 :] = 0x3C003C00 if cache.halves else 1
    cache.values.write(values)
    state = dev.array(np.array([context - count, 0, 0, 0], np.uint32))
    q = dev.ones((count, heads * head_size))
    y = dev.full((count, heads * head_size), np.nan, np.float32)
    layers.attention(q, cache, state, y, count=count)
    np.testing.assert_allclose(y.numpy(), 0.1, rtol=1e-3)


@on_lavapipe
def test_rmsnorm(dev: ps.Device) -> None:
    layers = Layers(dev, variant="cpu")
    for count, n in ((9, 1 << 18), (1, 600_001)):
        y = dev.full((count, n), np.nan, np.float32)
        weight = vector(dev, np.full(n, 3), "F32")
        layers.rmsnorm(dev.full((count, n), 2, np.float32), weight, y, count=count, eps=0.0)
        assert y.min().result() == y.max().result() == pytest.approx(3, rel=1e-5)
    n = (1 << 22) + 1
    weight = Weight("w", "F32", 1, n, (Piece(dev.empty(n, np.uint32), 0, 0, 1),))
    with pytest.raises(ps.Unsupported, match="rows of 4,194,305; up to 4,194,304"):
        layers.rmsnorm(dev.empty((1, n)), weight, dev.empty((1, n)), count=1, eps=0.0)


@on_lavapipe
@pytest.mark.parametrize(
    ("way", "kind", "columns"),
    [
        ("subgroup", "F32", 1 << 20), ("subgroup", "F16", (1 << 20) + 3), ("alone", "F16", 1 << 19),
        ("alone", "Q4_K", 1 << 19), ("shared", "Q6_K", 1 << 21),
        ("rows", "BF16", 1 << 20), ("rows", "Q8_0", 1 << 20), ("rows", "Q4_0", 1 << 21),
    ],
)  # fmt: skip
def test_products(dev: ps.Device, way: str | None, kind: str, columns: int) -> None:
    rows = 3
    raw = encoded(kind, rows, columns, np.random.default_rng(0))
    weight = upload(dev, kind, raw)
    x = np.zeros((1, columns), np.float32)
    x[:, ::997] = 1
    x[:, -5:] = 1
    y = dev.full((1, rows), np.nan, np.float32)
    Products(dev, way=way).multiply(weight, dev.array(x), y, 1)
    matrix = decoded(kind, raw).astype(np.float64)
    slack = 2e-5 * (np.abs(x) @ np.abs(matrix).T)
    assert (np.abs(y.numpy() - x @ matrix.T) <= slack).all()


def test_products_through_windows_are_bounded() -> None:
    how = kernels.way("windowed", 8)
    columns = how.window  # a row of x fits a window, too
    for kind in KINDS:
        for tokens in how.tiles:
            unit = kernels.blocks_of(kind, how.steps).unit
            assert columns // unit <= kernels.units_each(kind, how, tokens)


@on_lavapipe
def test_penalties(dev: ps.Device) -> None:
    """A history of more tokens than one workgroup can loop over; the oldest is another."""
    size = 700_000
    sampler = Sampler(dev, 16, Sampling(penalty=2.0, last_n=size), variant="cpu")
    progress = DeviceState.new(dev, history=size)
    history = np.full(size, 3, np.uint32)
    history[0] = 7
    progress.history.write(history)
    progress.restart(size - 1)
    logits = dev.ones(16)
    sampler.sample(logits, progress, greedy=True)
    expected = np.ones(16, np.float32)
    expected[[3, 7]] = 0.5
    np.testing.assert_array_equal(logits.numpy(), expected)


@on_lavapipe
def test_sampling(dev: ps.Device) -> None:
    """Top-k keeps the first of equal logits: all of them have to be counted."""
    vocabulary = 80_000 * max(4, min(16, 2 * (os.cpu_count() or 1))) * 8
    sampler = Sampler(dev, vocabulary, Sampling(top_k=vocabulary - 1), variant="cpu")
    progress = DeviceState.new(dev)
    sampler.sample(dev.ones(vocabulary), progress)
    counted = sampler._histograms.numpy()[0, :, :, 0]
    assert counted.sum() == vocabulary
    assert progress.ring.numpy()[0] < vocabulary


@pytest.mark.parametrize("lanes", [4, 8, 64])
@pytest.mark.parametrize("shared", [False, True])
def test_sampling_is_bounded(lanes: int, shared: bool) -> None:
    from penstock.llm import sampling
    from penstock.llm.layers import Traits

    traits = Traits(shared, lanes, False, not shared, False, not shared, 2)
    for vocabulary in (1, 151_936, 262_144, sampling._MOST):
        shape = Shape.of(traits, vocabulary)
        of_block = shape.span + 1  # peaks, gather, sums
        of_blocks = -(-shape.blocks // lanes) + 1  # begin and greedy; draw twice
        assert of_block + 2 * of_blocks + lanes + 11 <= LIMIT  # draw
        assert 18 * of_blocks + 17 + 16 <= LIMIT  # begin
        bins = -(-2048 // lanes) * (shape.copies + 2) + 1
        assert 2 * bins + lanes + 33 <= LIMIT  # seek
        groups = shape.groups("sample_recount", shape.size)
        each = -(-shape.blocks // (groups * shape.size))
        assert each * (of_block + 1) + 1 <= LIMIT
