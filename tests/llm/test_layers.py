"""Norms and rotation against float64 NumPy, in both variants, eager and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import penstock as ps
from penstock.llm.device_state import DeviceState
from penstock.llm.kv_cache import Cache
from penstock.llm.layers import Layers
from penstock.llm.shaders import every_kernel
from penstock.shader.glsl import compile_glsl
from tests.llm import references as reference
from tests.llm.references import Host, normal, rope_angles, stored, vector

COUNTS = (1, 2, 3, 5, 8, 33)
EPS = 1e-6


@pytest.mark.parametrize(("kind", "first"), [("F32", 0), ("F32", 6), ("F16", 2), ("BF16", 4)])
def test_rmsnorm(layers: Layers, kind: str, first: int) -> None:
    dev = layers.device
    for count, n in zip((*COUNTS, 1), (1024, 64, 7, 130, 256, 33, 1), strict=True):
        x, w = normal(count, n), normal(n)
        y = dev.full((count, n), np.nan, "float32")
        layers.rmsnorm(dev.array(x), vector(dev, w, kind, first), y, count=count, eps=EPS)
        expected = reference.rmsnorm(x, stored(w, kind), EPS)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [64, 65])  # a row that begins where a device can bind it, or not
def test_rmsnorm_of_one_row_among_others(layers: Layers, n: int) -> None:
    dev = layers.device
    x, w = normal(9, n), normal(n)
    y = dev.full((3, n), 7, "float32")
    layers.rmsnorm(dev.array(x), vector(dev, w, "F32"), y, count=1, eps=EPS, first=8)
    expected = reference.rmsnorm(x[8:], stored(w, "F32"), EPS)
    np.testing.assert_allclose(y.numpy()[:1], expected, rtol=1e-5, atol=1e-6)
    assert (y.numpy()[1:] == 7).all()


def test_rmsnorm_keeps_small_numbers_apart_from_eps(layers: Layers) -> None:
    dev = layers.device
    x = normal(1, 64) * 1e-4
    y = dev.zeros((1, 64))
    layers.rmsnorm(dev.array(x), vector(dev, np.ones(64), "F32"), y, count=1, eps=0.5)
    np.testing.assert_allclose(y.numpy(), reference.rmsnorm(x, np.ones(64), 0.5), rtol=1e-5)


class Rotation(NamedTuple):
    heads: int
    kv_heads: int
    head_size: int
    rope_dims: int
    count: int
    position: int
    context: int
    layout: str
    norm: str | None
    cache: str

    def run(self, layers: Layers) -> None:
        """Rotate random heads, and compare everything that is written with NumPy."""
        dev = layers.device
        sizes = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (normal(self.count, n, self.head_size) for n in sizes)
        weights = normal(2, self.head_size)
        cache = Cache.new(dev, self.context, self.kv_heads, self.head_size, cache_type=self.cache)
        shape = (self.context, self.kv_heads, self.head_size)
        before = [reference.fill(cache, plane, normal(*shape)) for plane in _planes(cache)]
        angles = rope_angles(self.context, self.rope_dims, 1e4)
        state = dev.array(np.array([self.position, 0, 0, 0], np.uint32))
        q_out = dev.full((self.count, self.heads * self.head_size), np.nan, "float32")
        norms = {}
        if self.norm is not None:
            names = ("q_norm", "k_norm")
            norms = {n: vector(dev, w, self.norm, 2) for n, w in zip(names, weights, strict=True)}
        flat = [dev.array(a.reshape(self.count, -1)) for a in (q, k, v)]
        layers.rope_store(
            *flat, q_out, cache, dev.array(angles), state, count=self.count, layout=self.layout,
            eps=EPS, **norms,
        )  # type: ignore[arg-type]  # fmt: skip

        if self.norm is not None:
            q, k = (
                reference.rmsnorm(a, stored(w, self.norm), EPS)
                for a, w in zip((q, k), weights, strict=True)
            )
        rows = np.arange(self.position, self.position + self.count)
        turned = angles[np.minimum(rows, self.context - 1)]
        expected = reference.rotate(q, turned, self.layout)
        np.testing.assert_allclose(q_out.numpy().reshape(q.shape), expected, atol=2e-6, rtol=1e-5)

        fits = rows < self.context
        for plane, old, new in zip(
            _planes(cache), before, (reference.rotate(k, turned, self.layout), v), strict=True
        ):
            old[rows[fits]] = new[fits]
            found = reference.plane(cache, plane)
            if self.cache == "q8_0":
                found, old = found[rows[fits]], old[rows[fits]]
                np.testing.assert_array_less(np.abs(found - old), _byte_bound(old))
                continue
            near = 1e-3 if self.cache == "f16" else 2e-6
            np.testing.assert_allclose(found, old, atol=near, rtol=near)


def _byte_bound(exact: Host, slack: float = 2e-6) -> Host:
    """What rounding to bytes costs: half of a factor, which is a 127th of 32 elements' largest."""
    peaks = np.abs(exact.reshape(*exact.shape[:-1], -1, 32)).max(-1, keepdims=True)
    half_factors = (peaks / 127 * (1 + 2**-10) + 2**-24) / 2
    bound = np.broadcast_to(half_factors, (*peaks.shape[:-1], 32)).reshape(exact.shape)
    return np.asarray(bound + 1e-5 * np.abs(exact) + slack)


def _planes(cache: Cache) -> tuple[ps.Array, ps.Array]:
    return cache.keys, cache.values


@pytest.mark.parametrize(
    "rotation",
    [
        Rotation(16, 8, 128, 128, 1, 17, 40, "halves", "F32", "f16"),
        Rotation(16, 8, 128, 128, 33, 1, 34, "adjacent", "BF16", "f32"),
        Rotation(4, 2, 64, 64, 5, 0, 19, "adjacent", None, "f16"),
        Rotation(6, 3, 80, 40, 3, 1, 21, "halves", "F16", "f16"),
        Rotation(8, 1, 96, 24, 8, 17, 25, "adjacent", "F32", "f16"),
        Rotation(1, 1, 8, 8, 2, 0, 2, "halves", None, "f32"),
        Rotation(6, 3, 6, 6, 2, 3, 9, "halves", None, "f16"),  # the halves of a head are odd
        Rotation(4, 2, 8, 8, 5, 17, 19, "halves", None, "f16"),  # three tokens do not fit
        Rotation(4, 2, 8, 8, 1, 19, 19, "halves", None, "f32"),  # none does
        Rotation(2, 1, 16, 2, 1, 2, 3, "halves", None, "f32"),  # hardly anything is turned
        Rotation(16, 8, 128, 128, 1, 17, 40, "halves", "F32", "q8_0"),
        Rotation(4, 2, 64, 64, 5, 17, 19, "adjacent", None, "q8_0"),  # three tokens do not fit
        Rotation(6, 3, 96, 40, 3, 1, 21, "halves", "BF16", "q8_0"),  # an odd number of factors
    ],
    ids=lambda r: "-".join(map(str, r)),
)
def test_rope_store(layers: Layers, rotation: Rotation) -> None:
    rotation.run(layers)


def test_bytes_of_extreme_values(layers: Layers) -> None:
    """Zeros stay zeros, small values keep the bound, and large ones become the largest there is."""
    dev = layers.device
    peaks = np.array([0, 1e-9, 1e-5, 1e-2, 1, 6e4, 8e6, 1e9], np.float32)
    v = (normal(8, 32).clip(-1, 1) * peaks[:, None]).reshape(2, 2 * 64)
    cache = Cache.new(dev, 19, 2, 64, cache_type="q8_0")
    for plane in _planes(cache):
        plane.fill(0)
    arrays = [dev.zeros((2, 4 * 64)), dev.zeros((2, 2 * 64)), dev.array(v), dev.empty((2, 4 * 64))]
    angles, state = dev.array(rope_angles(19, 64, 1e4)), dev.zeros(4, np.uint32)
    layers.rope_store(*arrays, cache, angles, state, count=2, layout="adjacent")
    found = reference.plane(cache, cache.values)[:2].reshape(8, 32)
    wanted = v.reshape(8, 32).clip(-127 * 65504, 127 * 65504)
    assert (np.abs(found - wanted) <= _byte_bound(wanted, 0)).all()
    assert (found[0] == 0).all()
    assert (reference.plane(cache, cache.keys)[:2] == 0).all()


def test_recorded_steps_move_along_the_cache(layers: Layers) -> None:
    """What differs from step to step is in device memory: the same graph fills row after row."""
    dev = layers.device
    count, steps, context = 2, 4, 7
    cache = Cache.new(dev, context, 2, 8, cache_type="f32")
    progress = DeviceState.new(dev)
    angles = rope_angles(context, 8, 1e4)
    q, k, v = normal(count, 4, 8), normal(count, 2, 8), normal(count, 2, 8)
    q_out = dev.zeros((count, 32))
    flat = [dev.array(a.reshape(count, -1)) for a in (q, k, v)]
    there = dev.array(angles)
    with dev.record() as graph:
        layers.rope_store(*flat, q_out, cache, there, progress.state, count=count)
        layers.advance(progress.state, count=count)
    for _ in range(steps):
        graph.replay()

    expected = np.zeros((context, 2, 8))
    for step in range(steps):
        rows = np.arange(step * count, (step + 1) * count)
        rotated = reference.rotate(k, angles[np.minimum(rows, context - 1)], "halves")
        expected[rows[rows < context]] = rotated[rows < context]
    np.testing.assert_allclose(reference.plane(cache, cache.keys), expected, atol=2e-6)
    assert progress.state.numpy()[0] == count * steps


def test_history_holds_what_was_read(dev: ps.Device) -> None:
    layers = Layers(dev)
    progress = DeviceState.new(dev, batch=8, history=5, ring=1)
    progress.tokens.write(np.arange(10, 18, dtype=np.uint32))
    progress.restart(3)
    layers.remember(progress.tokens, progress.history, progress.state, count=3)
    assert progress.history.numpy().tolist() == [12, 0, 0, 10, 11]
    layers.remember(progress.tokens, progress.history, progress.state, count=8)
    assert progress.history.numpy().tolist() == [17, 13, 14, 15, 16]  # positions 6 to 10


def _norm(layers: Layers, x: ps.Array, count: int, size: int = 16) -> None:
    layers.rmsnorm(x, vector(layers.device, np.ones(size), "F32"), x, count=count, eps=EPS)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x, la: _norm(la, x, count=4), ps.ShapeMismatch, "4 rows"),
        (lambda x, la: _norm(la, x, count=0), ps.InvalidValue, "count=0"),
        (
            lambda x, la: la.rope_store(x, x, x, x, Cache.new(la.device, 4, 1, 8), x, x, count=1),
            ps.ShapeMismatch,
            "1 rows of 8",
        ),
        (lambda x, la: Cache.new(la.device, 4, 1, 7), ps.Unsupported, "heads of 7"),
        (lambda x, la: Cache.new(la.device, 4, 1, 8, cache_type="q8"), ps.InvalidValue, "'q8'"),
        (lambda x, la: Layers(la.device, variant="tpu"), ps.InvalidValue, "'tpu'"),
        (
            lambda x, la: la.attention(x, Cache.new(la.device, 4, 3, 8), x, x, count=1),
            ps.ShapeMismatch,
            "3 heads of 8",
        ),
        (lambda x, la: _norm(la, x, count=1, size=7), ps.ShapeMismatch, "wanted are 1 × 16"),
        (lambda x, la: DeviceState.new(la.device, ring=0), ps.InvalidValue, "ring=0"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    dev: ps.Device, call: Callable[[ps.Array, Layers], object], error: type[ps.Error], says: str
) -> None:
    with pytest.raises(error, match=says):
        call(dev.zeros((3, 16)), Layers(dev))


def test_every_kernel_compiles(request: pytest.FixtureRequest) -> None:
    variants = every_kernel()
    assert {v.path.name for v in variants} == {
        p.name for p in variants[0].path.parent.glob("*.comp")
    }
    step = 1 if request.config.getoption("--whole") else 7  # a wheel has them all, and its test
    for name, path, defines, _ in variants[::step]:
        assert compile_glsl(path.read_text(), name=name, defines=defines, include_dir=path.parent)
