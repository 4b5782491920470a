"""No kernel of Penstock's own loops longer than every driver lets it.

lavapipe ends all loops of an invocation after 65,535 turns together, nested or one after the other,
and counts one turn more for each loop than its body runs. What a kernel computes is then wrong
without an error. So each kernel is launched such that no invocation needs that many turns.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.conformance.generator import _LARGE
from penstock.conformance.kernels import SLOW, Kernels
from penstock.llm import kernels, mixture, routing
from penstock.llm.delta_layers import Activations, DeltaLayers
from penstock.llm.delta_net import DeltaNet
from penstock.llm.device_state import DeviceState
from penstock.llm.kinds import KINDS
from penstock.llm.layers import Cache, Layers, Traits
from penstock.llm.mixture import Mixture, check_mixture
from penstock.llm.products import Products
from penstock.llm.recurrent_memory import Sizes
from penstock.llm.sampling import Sampler, Shape
from penstock.llm.sampling_settings import Sampling
from penstock.llm.weights import Piece, Weight
from penstock.ops import elementwise, reductions
from penstock.ops.axes_plan import Grid, plan, walk_of
from tests.llm.references import vector
from tests.llm.weight_builders import decoded, encoded, upload

SOURCES = Path(ps.__file__).parent
LIMIT = 65_535
NO_LOOP = "no loop"
BOUNDED = "test_programs_are_given_enough_groups: `Programs.groups` bounds the turns"

#: Every shader that is shipped: the test below whose sizes took more turns than LIMIT, or why no
#: size does.
TURNS = {
    "bench/shaders/pick.comp": NO_LOOP,
    "bench/shaders/saxpy.comp": NO_LOOP,
    "bench/shaders/touch.comp": NO_LOOP,
    "graph/shaders/advance.comp": NO_LOOP,
    "graph/shaders/advance.hip": NO_LOOP,
    "cli/shaders/saxpy.comp": NO_LOOP,
    "ops/shaders/axes.comp": "test_reductions_along_axes",
    "ops/shaders/axes.hip": "test_every_plan_is_bounded",
    "ops/shaders/axes_elements.glsl": NO_LOOP,
    "ops/shaders/axes_numbers.hip": NO_LOOP,
    "ops/shaders/axes_numbers.glsl": NO_LOOP,
    "ops/shaders/scan.comp": "test_running_sums",
    "ops/shaders/changes.glsl": BOUNDED,
    "ops/shaders/combine.glsl": BOUNDED,
    "ops/shaders/gaps.glsl": BOUNDED,
    "ops/shaders/index.glsl": NO_LOOP,
    "ops/shaders/keys.glsl": NO_LOOP,
    "ops/shaders/move.glsl": BOUNDED,
    "ops/shaders/place.glsl": NO_LOOP,
    "ops/shaders/place_table.glsl": "test_moves_of_many_axes",
    "ops/shaders/peek.glsl": NO_LOOP,
    "ops/shaders/radix.glsl": "at most 8,192 elements and 256 digits for an invocation",
    "ops/shaders/ramp.glsl": BOUNDED,
    "ops/shaders/ramp32.glsl": BOUNDED,
    "ops/shaders/ramp64.glsl": BOUNDED,
    "ops/shaders/rowsort.glsl": BOUNDED,
    "ops/shaders/scan.glsl": "at most 4,096 words for an invocation",
    "ops/shaders/search.glsl": BOUNDED,
    "ops/shaders/select.glsl": "at most 32,768 elements for an invocation",
    "ops/shaders/unravel.glsl": BOUNDED,
    "ops/shaders/product.glsl": NO_LOOP,
    "ops/shaders/product.hip": "`MOST_EACH` products, as in the shaders",
    "ops/shaders/product_direct.comp": "test_products_of_long_rows",
    "ops/shaders/product_finish.comp": "a turn for each segment of up to four elements; an "
    "operand of 64 MiB, half of what lavapipe binds, has at most 512",
    "ops/shaders/product_lanes.comp": "test_products_of_long_rows",
    "ops/shaders/product_pack.comp": "test_products_of_long_rows",
    "ops/shaders/product_shared.comp": "`MOST_EACH` products, 8 or 16 at a turn",
    "ops/shaders/random.comp": "1,024 blocks (`_MOST_EACH`), which draw twice on average",
    "ops/shaders/random.hip": "as random.comp",
    "ops/shaders/repeat.glsl": NO_LOOP,
    "ops/shaders/scan.hip": "chunks of at most 60,000 elements; jobs share that",
    "ops/shaders/reduction.comp": "test_reductions",
    "ops/shaders/reduction.hip": "16,384 elements of 2^31 for a thread of 512 groups of 256",
    "llm/shaders/advance.comp": NO_LOOP,
    "llm/shaders/attention_gate.comp": NO_LOOP,
    "llm/shaders/attention_join.comp": "test_attention: a turn for each share; windows of at least "
    "32 KiB, six to a share, make 21,846 shares of the 4 GiB that can be bound",
    "llm/shaders/attention_lanes.comp": "test_attention",
    "llm/shaders/attention_rows.comp": "test_attention",
    "llm/shaders/attention_shared.comp": "test_attention",
    "llm/shaders/attention_tiles.comp": "test_attention",
    "llm/shaders/attention_token.comp": "test_attention",
    "llm/shaders/attention_windows.comp": "a window of 64 KiB has 4096 words of 16 bytes: at most "
    "512 blocks of 8 rows, 12 turns each",
    "llm/shaders/bias.comp": NO_LOOP,
    "llm/shaders/blocks.glsl": NO_LOOP,
    "llm/shaders/cache.glsl": NO_LOOP,
    "llm/shaders/cache_texels.glsl": NO_LOOP,
    "llm/shaders/cut.glsl": NO_LOOP,
    "llm/shaders/delta.glsl": NO_LOOP,
    "llm/shaders/delta_convolve.comp": "test_delta_layers: a turn for each token of a batch",
    "llm/shaders/delta_factors.comp": "32 turns: a chunk, twice",
    "llm/shaders/delta_normalize.comp": "a head of up to 1,024 numbers, twice",
    "llm/shaders/delta_output.comp": "a head of up to 1,024 numbers, twice",
    "llm/shaders/delta_pairs.comp": "a head of up to 256 quads, and up to 4,096 value heads",
    "llm/shaders/delta_scan.comp": "test_delta_layers",
    "llm/shaders/embed.comp": "an invocation decodes one unit of up to 128 weights",
    "llm/shaders/finish.glsl": NO_LOOP,
    "llm/shaders/gate.comp": NO_LOOP,
    "llm/shaders/group.glsl": "a turn for each subgroup of up to 256 invocations, or 8 of a tree",
    "llm/shaders/input.glsl": NO_LOOP,
    "llm/shaders/largest.glsl": NO_LOOP,
    "llm/shaders/mix.comp": "a turn for each of up to 64 experts of a token",
    "llm/shaders/packed.glsl": NO_LOOP,
    "llm/shaders/packed_tiles.comp": "test_products_in_tiles",
    "llm/shaders/packed_vector.comp": "test_products_by_vectors_are_bounded",
    "llm/shaders/product.comp": "test_products",
    "llm/shaders/product_rows.comp": "test_products",
    "llm/shaders/product_tiles.comp": "test_products_in_tiles",
    "llm/shaders/product_vector.comp": "test_products_by_vectors_are_bounded",
    "llm/shaders/quads.glsl": NO_LOOP,
    "llm/shaders/quantize.comp": "two loops over the eight invocations of 32 columns",
    "llm/shaders/remember.comp": NO_LOOP,
    "llm/shaders/repeat.glsl": NO_LOOP,
    "llm/shaders/rmsnorm.comp": "test_rmsnorm",
    "llm/shaders/rope_store.comp": "loops over a head, of up to 256 elements",
    "llm/shaders/route.comp": "test_routing_is_bounded",
    "llm/shaders/route_tiles.comp": "test_routing_is_bounded",
    "llm/shaders/sample_begin.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_bias.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_draw.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_frequency.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_gather.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_greedy.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_masses.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_peaks.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_penalise.comp": "test_penalties",
    "llm/shaders/sample_ranks.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_recount.comp": "test_sampling",
    "llm/shaders/sample_seek.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_sums.comp": "test_sampling_is_bounded",
    "llm/shaders/sample_tally.comp": NO_LOOP,
    "llm/shaders/sampling.glsl": NO_LOOP,
    "llm/shaders/share.glsl": NO_LOOP,
    "llm/shaders/steps.glsl": NO_LOOP,
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
def test_programs_are_given_enough_groups(dev: ps.Device) -> None:
    programs = dev.moves.programs
    for count in (1, 5000, 1 << 25, 1 << 31):
        for turns in (1, 6, 16, 6000):
            groups = programs.groups(count, turns)
            assert -(-count // groups // programs.lanes) * turns <= LIMIT, (count, turns)
    # A copy whose packed words are 4,096 turns of each invocation, with a loop in each.
    host = np.arange(1 << 24, dtype=np.uint32).astype(np.uint8).reshape(1 << 12, 1 << 12)
    np.testing.assert_array_equal(dev.array(host).T.copy().numpy(), host.T)


@on_lavapipe
def test_moves_of_many_axes(dev: ps.Device) -> None:
    """Each of 2^24 bytes takes a turn for each of 24 axes: in 512 groups, 100,000 in all."""
    host = np.random.default_rng(0).integers(0, 256, 1 << 24, np.uint8).reshape((2,) * 24)
    made = dev.array(host).T.copy().numpy()
    assert np.array_equal(made, host.T)


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


@on_lavapipe
def test_products_of_long_rows(dev: ps.Device) -> None:
    """Rows that no invocation can go through in one loop: by lanes, along k, and across columns."""
    inner = 600_000
    ones = dev.ones((1, inner))
    for rows, columns in ((1, 1), (3, 4), (9, 9)):
        left, right = ones.broadcast_to((rows, inner)), ones.T.broadcast_to((inner, columns))
        got = dev.products.matmul(left, right).numpy()
        np.testing.assert_array_equal(got, np.full((rows, columns), inner, np.float32))


def test_every_reduction_fits_a_shape() -> None:
    for shape in (reductions._ON_GPU, reductions._ON_GPU._replace(group_size=128)):
        assert shape.holds(reductions._MOST_ELEMENTS)
    each = reductions._MOST_EACH
    blocks = -(-each // reductions._BLOCK)
    assert each + 2 * blocks + 1 <= LIMIT


@on_lavapipe
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((20_000_000,), 0), ((1_000_000, 20), 0), ((20, 1_000_000), 0), ((20, 1_000_000), 1),
     ((2, 10_000_000), 1), ((10_000_000, 2), 1), ((200, 5, 200, 100), (0, 2))],
)  # fmt: skip
def test_reductions_along_axes(dev: ps.Device, shape: Any, axis: Any) -> None:
    x = dev.ones(shape, np.uint8)
    axes = axis if isinstance(axis, tuple) else (axis,)
    for part in (x, x[..., ::2]):
        count = np.prod([part.shape[each] for each in axes])
        assert np.all(part.sum(axis=axis).numpy() == count)


@pytest.mark.parametrize("on_cpu", [False, True])
def test_every_plan_is_bounded(on_cpu: bool) -> None:
    grid = Grid(on_cpu, 8 if on_cpu else 256, 512, 128 if on_cpu else 1 << 15)
    rng = np.random.default_rng(0)
    for _ in range(3000):
        left, sizes = 2.0**31, []
        for _ in range(rng.integers(1, 9)):
            sizes.append(int(2 ** rng.uniform(0, np.log2(left))))
            left /= sizes[-1]
        strides = np.cumprod([1, *sizes[::-1]])[-2::-1] * 4
        reduced = frozenset(np.flatnonzero(rng.random(len(sizes)) < 0.5).tolist())
        walk = walk_of(0, tuple(sizes), tuple(strides.tolist()), reduced, ordered=False)
        if max(len(walk.kept), len(walk.reduced)) > 4:
            continue
        of_parts = bool(rng.random() < 0.3)
        how = plan(walk, 4, grid, of_parts=of_parts)
        blocks = how.steps_each if of_parts else -(-how.steps_each // 16)
        of_job = how.rows_each * (how.steps_each + 2 * blocks + 1 + 2 * 4) + 2
        assert -(-how.span // grid.group_size) * of_job + 1 <= LIMIT
        assert how.groups[0] * how.span >= how.jobs
        assert how.rows_each * how.row_splits >= how.rows


@on_lavapipe
@pytest.mark.parametrize(
    ("shape", "axis"), [((10_000_000,), 0), ((1_000_000, 8), 0), ((2, 1_000_000), 1)]
)
def test_running_sums(dev: ps.Device, shape: Any, axis: int) -> None:
    made = dev.ones(shape, np.float32 if len(shape) == 1 else np.uint8).cumsum(axis=axis)
    last = made[(slice(None),) * axis + (slice(-1, None),)]
    assert np.all(last.numpy() == shape[axis])


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
        ("gpu", 2, 50_000, 1, 254, "f16"), ("gpu", 2, 100_000, 1, 256, "f16"),
        ("cpu", 1, 200_000, 4, 8, "f32"), ("cpu", 1, 600_000, 2, 8, "f16"),
        ("cpu", 1, 400_000, 1, 32, "q8_0"), ("gpu", 2, 60_000, 1, 256, "q8_0"),
    ],
)  # fmt: skip
def test_attention(
    dev: ps.Device, variant: Any, count: int, context: int, heads: int, head_size: int,
    cache_type: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All rows of a long context count alike: the last tenth of them is 1, the others are 0."""
    monkeypatch.setattr("penstock.llm.attention_kernels._GPU_GROUPS", 1)
    monkeypatch.setattr("penstock.llm.tiled_attention._GROUPS", 1)
    layers = Layers(dev, variant=variant)
    cache = Cache.new(dev, context, heads, head_size, cache_type=cache_type)
    cache.keys.fill(0)
    values = np.zeros(cache.values.shape, cache.values.dtype)
    values[context - context // 10 :] = {"f32": 1, "f16": 0x3C003C00, "q8_0": 0x01010101}[
        cache_type
    ]
    if cache_type == "q8_0":
        values[:, heads * head_size // 4 :] = 0x3C003C00  # factors
    cache.values.write(values)
    state = dev.array(np.array([context - count, 0, 0, 0], np.uint32))
    q = dev.ones((count, heads * head_size))
    y = dev.full((count, heads * head_size), np.nan, np.float32)
    layers.attention(q, cache, state, y, count=count)
    np.testing.assert_allclose(y.numpy(), 0.1, rtol=1e-3)


@on_lavapipe
def test_delta_layers(dev: ps.Device) -> None:
    """A long batch, in which each token writes a part of its value; the state never fades."""
    count, net = 20_000, DeltaNet(frozenset({0}), 1, 1, 128, 1, 2)
    delta = DeltaLayers(dev, net, Traits.of(dev, "cpu"))
    acts = Activations.new(dev, net, count)
    sizes = Sizes.of(net)
    memory, state = dev.zeros((sizes.slots, sizes.slot)), dev.zeros(4, np.uint32)
    acts.mixed.fill(1)
    acts.writes.fill(-8)
    acts.fades.fill(-100)
    flat, zeros = vector(dev, np.ones(net.channels * 2), "F32"), vector(dev, np.zeros(1), "F32")
    taps = dataclasses.replace(flat, rows=net.channels, columns=2)
    delta.convolve(acts, taps, memory, state, count=count)
    delta.scan(acts, zeros, zeros, memory, state, count=count)
    values = np.full(count, 2 / (1 + np.exp(-2)))
    values[0] = 1 / (1 + np.exp(-1))  # there is no token before it
    known, expected = 0.0, np.empty(count)
    for token, value in enumerate(values):
        known += (value - known) / (1 + np.exp(8))
        expected[token] = known * 128**-0.5
    np.testing.assert_allclose(acts.y.numpy(force=True)[:, 0], expected, rtol=1e-3)


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
    multiply_long_rows(dev, way, kind, columns, 1)


@on_lavapipe
@pytest.mark.parametrize("way", ["tiles", "packed"])
def test_products_in_tiles(dev: ps.Device, way: str) -> None:
    """Two million columns are 65,536 slices."""
    multiply_long_rows(dev, way, "Q8_0", 1 << 21, 9)


def multiply_long_rows(
    dev: ps.Device, way: str | None, kind: str, columns: int, count: int
) -> None:
    rows = 3
    raw = encoded(kind, rows, columns, np.random.default_rng(0))
    weight = upload(dev, kind, raw)
    x = np.zeros((count, columns), np.float32)
    x[:, ::997] = 1
    x[:, -5:] = 1
    y = dev.full((count, rows), np.nan, np.float32)
    Products(dev, way=way).multiply(weight, dev.array(x), y, count)
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
def test_products_by_vectors_are_bounded(dev: ps.Device) -> None:
    """Rows that take more turns than that are multiplied another way."""
    products = Products(dev, way="vector")._for_gpus
    how = kernels.way("vector", 8)
    piece = Piece(dev.empty(4, np.uint32), 0, 0, 1)
    for kind in KINDS:
        steps, quads = kernels.steps_of(kind, how)
        in_turn = 4 * quads * (1 if kind == "F32" else 2) * how.group_size
        unit = kernels.blocks_of(kind, how.steps).unit
        assert unit == 4 * quads * steps
        for turns in (kernels.MOST_TURNS - 16, LIMIT):
            weight = Weight("w", kind, 1, turns * in_turn // unit * unit, (piece,))
            assert products.fits(how, weight, 1) == (turns < kernels.MOST_TURNS)


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
        groups = shape.groups("sample_bias", shape.size)  # and frequency
        assert -(-vocabulary // (groups * shape.size)) + 1 <= LIMIT
        of_rank = of_blocks + -(-shape.span // lanes) + 2
        assert 2 * of_blocks + shape.ranks_each * of_rank + 1 <= LIMIT


@on_lavapipe
def test_routing_is_bounded(dev: ps.Device) -> None:
    """As many experts, choices and tokens as a model may have, on the fewest lanes."""
    most = Mixture(mixture._MOST_EXPERTS, mixture._MOST_CHOSEN, 1, normalized=False)
    check_mixture("the largest", most)
    each = most.experts // 4 + 1  # SwiftShader has subgroups of 4
    assert (most.chosen + 1) * (each + 1) + most.chosen // 4 + 1 + 2 * 64 <= LIMIT  # route
    pairs = routing.most_tokens(most) * most.chosen
    assert (
        2 * (pairs + 1) + pairs + 4 <= LIMIT
    )  # route_tiles: two scans, and all rows in tiles of 1
    assert pairs == routing.MOST_ROWS
    room = routing.Room(dev, most, routing.most_tokens(most))
    logits = np.random.default_rng(0).standard_normal((room.tokens, most.experts), np.float32)
    routing.Routing(dev).route(dev.array(logits), most, room, room.tokens)
    places = room.places.numpy(force=True)
    assert np.array_equal(np.sort(places), np.arange(pairs))
