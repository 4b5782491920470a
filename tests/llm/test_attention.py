"""Attention against float64 NumPy, in both variants, eager and replayed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import penstock as ps
from penstock.llm.device_state import DeviceState
from penstock.llm.kv_cache import Cache
from penstock.llm.layers import Layers
from tests.llm import references as reference
from tests.llm.conftest import layers_of
from tests.llm.references import Host, normal, rope_angles


class Case(NamedTuple):
    heads: int
    kv_heads: int
    head_size: int
    counts: tuple[int, ...]
    positions: tuple[int, ...]
    context: int
    cache: str
    splits: int | None = None


CASES = [
    Case(16, 8, 128, (1,), (0, 1, 17, 130), 131, "f16"),
    Case(16, 8, 128, (1,), (191, 192, 383, 384, 599), 600, "f16"),
    Case(16, 8, 128, (5,), (0, 17), 64, "f32"),
    Case(9, 3, 64, (1,), (0, 15, 16, 63), 64, "f32"),
    Case(12, 1, 80, (1,), (0, 40), 41, "f16"),
    Case(4, 2, 64, (1,), (0, 1, 17, 300), 301, "f32", 3),
    Case(4, 2, 64, (2, 33), (0, 60), 93, "f16"),
    Case(6, 3, 80, (3,), (1, 17, 47), 50, "f16"),
    Case(6, 3, 80, (1,), (0, 49), 50, "f32", 2),
    Case(8, 1, 96, (1, 8), (0, 17), 25, "f16", 4),
    Case(8, 1, 8, (8,), (17, 250), 258, "f32"),
    Case(1, 1, 8, (1, 33), (0, 3), 37, "f16"),
    Case(4, 2, 256, (2,), (17,), 19, "f16"),
    Case(3, 1, 256, (40,), (0, 70), 110, "f32", 2),
    Case(4, 2, 64, (33,), (200, 1000), 1100, "f16"),
    Case(6, 3, 6, (2,), (0, 5), 7, "f16"),
]


def compare(y: Host, expected: Host) -> None:
    np.testing.assert_allclose(y.reshape(expected.shape), expected, atol=5e-6, rtol=2e-5)


def filled(dev: ps.Device, case: Case) -> tuple[Cache, Host, Host]:
    cache = Cache.new(dev, case.context, case.kv_heads, case.head_size, cache_type=case.cache)
    shape = (case.context, case.kv_heads, case.head_size)
    keys = reference.fill(cache, cache.keys, normal(*shape))
    return cache, keys, reference.fill(cache, cache.values, normal(*shape))


@pytest.mark.parametrize("variant", ["cpu", "windows", "gpu"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[:5]}-{c.context}-{c.cache}-{c.splits}")
def test_attention(dev: ps.Device, variant: str, case: Case) -> None:
    layers = layers_of(dev, variant, case.splits)
    cache, keys, values = filled(dev, case)
    state = dev.zeros(4, np.uint32)
    for count in case.counts:
        q = normal(count, case.heads, case.head_size)
        there = dev.array(q.reshape(count, -1))
        for position in case.positions:
            state.write(np.array([position, 0, 0, 0], np.uint32))
            y = dev.full((count + 1, there.shape[1]), 7, "float32")
            expected = reference.attention(q, keys, values, position)
            for reach in (None, layers.reach(there, cache, position + count, count=count)):
                layers.attention(there, cache, state, y, count=count, reach=reach)
                compare(y.numpy()[:count], expected)
                assert (y.numpy()[count:] == 7).all()
                y[:count].fill(0)


@pytest.mark.parametrize(
    "case", [case for case in CASES if max(case.counts) > 1], ids=lambda c: f"{c[:5]}-{c.splits}"
)
def test_attention_with_a_workgroup_for_each_query(dev: ps.Device, case: Case) -> None:
    test_attention(dev, "shared", case)


#: Attention over bytes: through texel buffers, by lanes, in shared memory, in tiles.
OF_BYTES = [
    ("llvmpipe", "cpu", Case(16, 8, 128, (1,), (0, 17, 130), 140, "q8_0")),
    ("llvmpipe", "cpu", Case(6, 3, 96, (1, 9), (0, 40), 50, "q8_0")),
    ("llvmpipe", "windows", Case(4, 1, 64, (1,), (0, 17, 60), 64, "q8_0")),
    ("llvmpipe", "cpu", Case(4, 2, 32, (3,), (0, 17), 25, "q8_0", 3)),
    ("llvmpipe", "gpu", Case(3, 1, 256, (1, 40), (0, 70), 110, "q8_0")),
    ("SwiftShader", "cpu", Case(4, 1, 64, (2,), (0, 60), 64, "q8_0")),
    ("SwiftShader", "gpu", Case(6, 3, 96, (1, 3), (0, 47), 50, "q8_0")),
]


@pytest.mark.parametrize(
    ("driver", "variant", "case"), OF_BYTES, indirect=["driver"], ids=lambda c: str(c)[:40]
)
def test_attention_over_bytes(dev: ps.Device, variant: str, case: Case) -> None:
    test_attention(dev, variant, case)


def test_attention_reaches_as_far_as_it_must(dev: ps.Device) -> None:
    case = Case(16, 8, 128, (1,), (0, 191, 192, 383, 384, 700, 1199), 1200, "f16")
    layers = layers_of(dev, "windows", None)
    cache, _, _ = filled(dev, case)
    q = dev.zeros((1, 16 * 128))
    reaches = [layers.reach(q, cache, rows, count=1) for rows in range(1, case.context + 1)]
    assert all(reach >= rows for rows, reach in enumerate(reaches, 1))
    assert sorted(reaches) == reaches
    assert len(set(reaches)) <= 4
    assert reaches[-1] == case.context
    assert layers.reach(q, cache, 1, count=2) == case.context
    if layers.traits.windows:
        assert reaches[0] < case.context
    if layers_of(dev, "cpu").traits.texels:  # a launch reads the rows that there are
        assert layers_of(dev, "cpu").reach(q, cache, 1, count=1) == case.context


def attended(layers: Layers, cache: Cache, q: Host, position: int) -> Host:
    """What the queries, (tokens, heads, size), give from that position on."""
    dev, count = layers.device, len(q)
    flat = dev.array(q.reshape(count, -1))
    y = dev.zeros(flat.shape)
    state = dev.array(np.array([position, 0, 0, 0], np.uint32))
    layers.attention(flat, cache, state, y, count=count)
    return y.numpy()


def test_rows_not_yet_in_view_do_not_matter(layers: Layers) -> None:
    """What lies behind the position may be anything: left over, or never written."""
    cache, keys, values = filled(layers.device, Case(4, 2, 64, (2,), (9,), 93, "f16"))
    for plane in (cache.keys, cache.values):
        plane[11:].fill(0x7E007E00)  # NaN, twice
    for count in (2, 1):
        q, position = normal(count, 4, 64), 11 - count
        found = attended(layers, cache, q, position)
        compare(found, reference.attention(q, keys, values, position))


def test_scores_may_be_large(layers: Layers) -> None:
    """Of scores in the thousands the exponential of none is finite in float32."""
    cache, keys, values = filled(layers.device, Case(4, 2, 64, (2,), (60,), 93, "f16"))
    q = 1000 * normal(2, 4, 64)
    found = attended(layers, cache, q, 60).reshape(q.shape)
    np.testing.assert_allclose(found, reference.attention(q, keys, values, 60), atol=2e-3)


def test_position_past_the_context_sees_all_of_it(layers: Layers) -> None:
    cache, keys, values = filled(layers.device, Case(4, 2, 64, (2,), (95,), 93, "f16"))
    q = normal(2, 4, 64)
    compare(attended(layers, cache, q, 95), reference.attention(q, keys, values, 95))


def test_many_queries_are_cut_into_launches(layers: Layers) -> None:
    """More than fit a uniform block, with a last launch of another size."""
    cache, keys, values = filled(layers.device, Case(16, 8, 128, (19,), (3,), 64, "f32"))
    q = normal(19, 16, 128)
    compare(attended(layers, cache, q, 3), reference.attention(q, keys, values, 3))


@pytest.mark.parametrize("splits", [None, 3])
def test_recorded_steps_see_ever_more_rows(
    dev: ps.Device, variant: str, splits: int | None
) -> None:
    """One graph: rotate, store, attend, advance. The position is never the host's."""
    layers = layers_of(dev, variant, splits)
    heads, kv_heads, size, context, steps = 4, 2, 64, 24, 22
    cache = Cache.new(dev, context, kv_heads, size, cache_type="f32")
    progress = DeviceState.new(dev)
    angles = rope_angles(context, size, 1e4)
    q, k, v = (normal(steps, n, size) for n in (heads, kv_heads, kv_heads))
    there = [dev.zeros((1, n * size)) for n in (heads, kv_heads, kv_heads)]
    turned, y = dev.zeros((1, heads * size)), dev.zeros((1, heads * size))
    table = dev.array(angles)
    with dev.record() as graph:
        layers.rope_store(*there, turned, cache, table, progress.state, count=1)
        layers.attention(turned, cache, progress.state, y, count=1)
        layers.advance(progress.state, count=1)

    keys = np.zeros((context, kv_heads, size))
    values = np.zeros_like(keys)
    for step in range(steps):
        for array, all_steps in zip(there, (q, k, v), strict=True):
            array.write(all_steps[step].reshape(1, -1))
        graph.replay()
        now = angles[step : step + 1]
        keys[step] = reference.rotate(k[step : step + 1], now, "halves")[0]
        values[step] = v[step]
        expected = reference.rotate(q[step : step + 1], now, "halves")
        compare(y.numpy(), reference.attention(expected, keys, values, step))
