"""Reductions and running sums along axes are NumPy's, for every dtype, shape and stride."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.dtypes import as_dtype
from penstock.ops.axes import Axes
from penstock.ops.axes_plan import Grid
from tests.conftest import simulated

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip
SHAPES: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((7,), 0), ((3000,), 0), ((33, 45), 0), ((33, 45), 1), ((33, 45), (0, 1)), ((64, 64), 0),
    ((5, 6, 7), (0, 2)), ((5, 6, 7), 1), ((2, 3, 4, 5, 2, 2), (0, 2, 4)), ((700, 3), 0),
    ((700, 3), 1), ((40, 1), 1), ((1, 40), 0), ((3, 0), 1), ((0, 3), 1), ((), None), ((4, 5), ()),
)  # fmt: skip
VIEWS = {
    "whole": lambda x: x,
    "reversed": lambda x: x[::-1] if x.ndim else x,
    "every second": lambda x: x[..., 1::2] if x.ndim else x,
    "transposed": lambda x: x.T,
}
WIDE = ("float64", "complex128")


def has(dev: ps.Device, dtype: str) -> bool:
    return dtype not in WIDE or "shaderFloat64" in dev.info.features or dev.info.driver != "vulkan"


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.7
    if kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if kind == "c" else real).astype(dtype)


def close(made: ps.Array, expected: Any, *, error: float = 0.0) -> None:
    got, wanted = made.numpy(), np.asarray(expected)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    if error:
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
        np.testing.assert_allclose(got, wanted, rtol=error, atol=error * float(scale))
    else:
        np.testing.assert_array_equal(got, wanted)


def check(dev: ps.Device, host: Any, x: ps.Array, axis: Any) -> None:
    """Every reduction of an array, against NumPy's in the widest dtype."""
    dtype, kind = host.dtype, host.dtype.kind
    exact = host.astype({"f": np.float64, "c": np.complex128}.get(kind, dtype))
    error = 4 * np.finfo(dtype).eps * 8 if kind in "fc" else 0.0
    with np.errstate(all="ignore"):
        total = exact.sum(axis).astype(host.sum(axis).dtype)
        close(x.sum(axis=axis, keepdims=False), total, error=error)
        if kind != "c" or host.size < 200:  # larger products are infinite
            made = exact.prod(axis).astype(host.prod(axis).dtype)
            close(dev.xp.prod(x, axis=axis), made, error=error * math.sqrt(max(1, host.size)))
        close(dev.xp.any(x, axis=axis), host.any(axis))
        close(dev.xp.all(x, axis=axis), host.all(axis))
        count = np.count_nonzero(host, axis) if host.ndim else np.int64(host != 0)
        close(dev.xp.count_nonzero(x, axis=axis), np.asarray(count, np.int64))
        if kind in "fc" and host.size:
            close(x.mean(axis=axis, keepdims=True), exact.mean(axis, keepdims=True).astype(dtype),
                  error=error)  # fmt: skip
            real = host.real.dtype
            close(x.var(axis=axis), exact.var(axis).astype(real), error=error)
            close(x.std(axis=axis, keepdims=True), exact.std(axis, keepdims=True).astype(real),
                  error=error)  # fmt: skip
        if kind != "c" and host.size:
            close(dev.xp.max(x, axis=axis), host.max(axis))
            close(x.min(axis=axis, keepdims=True), host.min(axis, keepdims=True))
            if axis is None or isinstance(axis, int):
                close(x.argmax(axis=axis, keepdims=True), host.argmax(axis, keepdims=True))
                close(dev.xp.argmin(x, axis=axis), host.argmin(axis))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dev: ps.Device, dtype: str) -> None:
    """One shape and view for each dtype: kernels take a while to make."""
    if not has(dev, dtype):
        with pytest.raises(ps.Unsupported, match="shaderFloat64"):
            dev.array(np.ones(3, dtype)).sum(axis=0)
        return
    number = DTYPES.index(dtype)
    if "llvmpipe" not in dev.name and number % 3:
        pytest.skip("every third dtype on a driver that compiles slowly")
    rng = np.random.default_rng(number)
    shape, axis = SHAPES[2:11][number % 9]
    view = [*VIEWS.values()][number % 4]
    host = values(rng, dtype, shape)
    check(dev, view(host), view(dev.array(host)), axis)


@pytest.mark.many_kernels
@pytest.mark.parametrize("view", VIEWS)
def test_every_shape(dev: ps.Device, view: str) -> None:
    rng = np.random.default_rng(5)
    for shape, axis in SHAPES:
        host = values(rng, "float32", shape)
        seen, x = VIEWS[view](host), VIEWS[view](dev.array(host))
        exact, size = seen.sum(axis, dtype=np.float64), np.abs(seen).sum(axis, dtype=np.float64)
        made = x.sum(axis=axis, keepdims=False)
        assert (made.shape, made.dtype) == (exact.shape, np.float32)
        assert np.all(np.abs(made.numpy() - exact) <= 3e-7 * size)
        if seen.size:
            close(dev.xp.max(x, axis=axis), seen.max(axis))


def test_running_sums_of_views_with_more_axes_than_a_kernel_walks(dev: ps.Device) -> None:
    host = np.arange(7 * 5 * 3 * 2 * 5, dtype=np.int32).reshape(7, 5, 3, 2, 5)
    x = dev.array(host)[::2, ::-2, ::2, ::-1].broadcast_to((3, 4, 3, 2, 2, 5))
    seen = np.broadcast_to(host[::2, ::-2, ::2, ::-1], (3, 4, 3, 2, 2, 5))
    for axis in range(6):
        close(x.cumsum(axis=axis), seen.cumsum(axis))


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_view(dev: ps.Device, data: st.DataObject) -> None:
    """Slices, reversals, permutations and broadcasts, reduced along any axes."""
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    host = (np.arange(math.prod(shape)) * 7919 % 1000).astype(np.int32).reshape(shape)
    x = dev.array(host)
    index = tuple(
        slice(None, None, data.draw(st.sampled_from((1, 1, 2, 3, -1, -2)))) for _ in shape
    )
    host, x = host[index], x[index]
    if data.draw(st.booleans()):
        host, x = host.T, x.T
    if data.draw(st.booleans()):
        wide = (data.draw(st.integers(1, 5)), *host.shape)
        host, x = np.broadcast_to(host, wide), x.broadcast_to(wide)
    axes = data.draw(st.sets(st.integers(-host.ndim, host.ndim - 1)))
    axis = tuple({each % host.ndim for each in axes})
    close(x.sum(axis=axis), host.sum(axis))
    close(x.max(axis=axis), host.max(axis))
    one = data.draw(st.integers(0, host.ndim - 1))
    close(x.argmin(axis=one), host.argmin(one))
    close(x.cumsum(axis=one), host.cumsum(one))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_special_values(dev: ps.Device, dtype: str) -> None:
    if not has(dev, dtype):
        pytest.skip(f"{dev.name} has no {dtype}")
    kind = as_dtype(dtype)
    rows = [
        [1, np.nan, 2, -np.inf], [np.inf, 1, np.inf, 0], [np.inf, -np.inf, 0, 0],
        [-0.0, 0.0, -0.0, 0.0], [5, 5, -7, -7], [-np.inf] * 4, [np.nan, 1, np.nan, 2],
    ]  # fmt: skip
    host = np.array(rows).astype(kind)
    for seen, x in ((host, dev.array(host)), (host.T, dev.array(host.T.copy()).T.T)):
        for axis in (0, 1):
            with np.errstate(all="ignore"):
                sums = seen.astype(np.float64).sum(axis)
            np.testing.assert_array_equal(x.sum(axis=axis).numpy().astype(float), sums)
            for name in ("min", "max", "argmin", "argmax"):
                expected = getattr(seen.astype(np.float64), name)(axis)
                got = getattr(x, name)(axis=axis).numpy()
                np.testing.assert_array_equal(got.astype(float), expected, name)


def test_sums_overflow_to_infinity_and_wrap(dev: ps.Device) -> None:
    large = dev.full((100, 4), 3e38, np.float32)
    assert np.all(np.isposinf(large.sum(axis=0).numpy()))
    assert np.all(np.isposinf(large.T.sum(axis=1).numpy()))
    top = np.full((3, 5), np.iinfo(np.int64).max)
    with np.errstate(all="ignore"):
        close(dev.array(top).sum(axis=0), top.sum(0))
        close(dev.array(top).prod(axis=1), top.prod(1))


@pytest.mark.parametrize(("shape", "axis"), [((40, 20_000), 1), ((20_001, 41), 0)])
def test_sums_are_as_exact_as_numpys(dev: ps.Device, shape: Any, axis: int) -> None:
    """Against exact sums: on the whole, no larger errors than NumPy's pairwise sums of lines."""
    host = (np.random.default_rng(1).random(shape) + 0.1).astype(np.float32)
    lines = np.moveaxis(host, axis, -1)
    exact = np.array([math.fsum(line.tolist()) for line in lines])
    ours = dev.array(host).sum(axis=axis).numpy() - exact
    theirs = np.array([float(np.ascontiguousarray(line).sum()) for line in lines]) - exact
    assert np.sqrt((ours**2).mean()) <= 1.1 * np.sqrt((theirs**2).mean())
    assert np.abs(ours).max() <= 1.5 * np.spacing(np.float32(exact.max()))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_small_64_bit_integers_as_floats(any_device: ps.Device, dtype: str) -> None:
    """Small negative integers are near 2**32 in their low word, which a float does not hold."""
    a = np.array([[3, 1, 2, 7], [2**33 + 5, 11, 2**31, 4]], dtype)
    a = -a if dtype == "int64" else a
    xp, x = any_device.xp, any_device.array(a)
    np.testing.assert_allclose(xp.mean(x, axis=1).numpy(), a.mean(1), rtol=1e-6)
    np.testing.assert_allclose(xp.var(x, axis=1).numpy(), a.var(1), rtol=1e-5)
    np.testing.assert_allclose(xp.sum(x, axis=0, dtype=xp.float32).numpy(), a.sum(0), rtol=1e-6)
    running = xp.cumulative_sum(x, axis=1, dtype=xp.float32).numpy()
    np.testing.assert_allclose(running, a.cumsum(1), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_variances_are_stable(dev: ps.Device, axis: int) -> None:
    """A large offset: the sum of squares less the square of the sum would have no digit right."""
    rng = np.random.default_rng(2)
    host = (rng.integers(0, 64, (500, 400)) + 1_000_000).astype(np.float32)
    expected = host.astype(np.float64).var(axis, ddof=1)
    made = dev.xp.var(dev.array(host), axis=axis, correction=1)
    np.testing.assert_allclose(made.numpy(), expected, rtol=2e-3)


def test_dtypes_of_results(dev: ps.Device) -> None:
    x = dev.array(np.array([[100, 100], [100, 27]], np.int8))
    assert x.sum(axis=0).dtype == np.int64
    assert dev.xp.sum(x, dtype=np.int8).tolist() == np.int64(327).astype(np.int8)
    assert x.sum(axis=1, dtype=np.float32).tolist() == [200.0, 127.0]
    assert dev.xp.prod(x, dtype=np.uint8).dtype == np.uint8
    assert dev.xp.sum(dev.ones(3, np.uint16)).dtype == np.uint64
    assert dev.xp.cumulative_sum(dev.ones(3, np.float16)).dtype == np.float16
    assert dev.xp.argmax(x, axis=0).dtype == dev.xp.count_nonzero(x).dtype == np.int64
    assert x.mean(axis=0).dtype == (np.float64 if has(dev, "float64") else np.float32)
    assert dev.xp.mean(x).dtype == np.float32


def test_without_elements(dev: ps.Device) -> None:
    x = dev.zeros((0, 3))
    assert dev.xp.sum(x, axis=0).tolist() == [0, 0, 0]
    assert dev.xp.prod(x).tolist() == 1
    assert np.isnan(dev.xp.mean(x, axis=0).numpy()).all()
    assert np.isnan(dev.xp.std(x).item())
    assert dev.xp.all(x).item()
    assert not dev.xp.any(x).item()
    assert dev.xp.max(x, axis=1).shape == (0,)
    assert dev.xp.cumulative_sum(x, axis=0, include_initial=True).tolist() == [[0, 0, 0]]
    for name in ("min", "max", "argmin", "argmax"):
        with pytest.raises(ps.InvalidValue, match=f"{name} along axes of array"):
            getattr(dev.xp, name)(x, axis=0)


def test_errors_say_what_to_do(dev: ps.Device) -> None:
    x = dev.ones((2, 3))
    with pytest.raises(ps.InvalidValue, match="axis 2 of an array with 2 axes"):
        x.sum(axis=2)
    with pytest.raises(ps.InvalidValue, match="names an axis twice"):
        x.sum(axis=(0, -2))
    with pytest.raises(ps.ArgumentError, match="an axis is an integer"):
        x.sum(axis=1.5)
    with pytest.raises(ps.ArgumentError, match="give one axis"):
        x.argmax(axis=(0, 1))
    with pytest.raises(ps.Unsupported, match="out=: the result is a new array"):
        x.sum(axis=0, out=x)
    with pytest.raises(ps.DtypeMismatch, match="complex numbers have no order"):
        dev.ones(3, np.complex64).max(axis=0)
    with pytest.raises(ps.DtypeMismatch, match=r"xp\.real"):
        dev.xp.sum(dev.ones(3, np.complex64), dtype=np.float32)
    with pytest.raises(ps.ArgumentError, match="needs axis="):
        dev.xp.cumulative_sum(x)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "complex64", "float64"])
def test_running(dev: ps.Device, dtype: str) -> None:
    if "llvmpipe" not in dev.name and dtype not in ("uint64", "float32"):
        pytest.skip("two dtypes on a driver that compiles slowly")
    if not has(dev, dtype):
        pytest.skip(f"{dev.name} has no {dtype}")
    rng = np.random.default_rng(3)
    for shape, axis in (((9,), 0), ((20_001,), 0), ((33, 45), 0), ((33, 45), 1), ((5, 6, 7), 1),
                        ((8000, 3), 0)):  # fmt: skip
        host = values(rng, dtype, shape)
        wide = host.astype({"f": np.float64, "c": np.complex128}.get(host.dtype.kind, host.dtype))
        x = dev.array(host)
        for view in (VIEWS["whole"], VIEWS["reversed"]):
            kind = host.cumsum().dtype
            expected = view(wide).cumsum(axis).astype(kind)
            error = 40 * np.finfo(dtype).eps if host.dtype.kind in "fc" else 0.0
            close(view(x).cumsum(axis=axis), expected, error=error)
            edge = np.zeros_like(expected[(*(slice(None),) * axis, slice(0, 1))])
            made = dev.xp.cumulative_sum(view(x), axis=axis, include_initial=True)
            close(made, np.concatenate([edge, expected], axis), error=error)
        with np.errstate(all="ignore"):
            if host.dtype.kind in "iu":
                close(x.cumprod(axis=axis), host.cumprod(axis))
    assert dev.array(np.eye(2, dtype=dtype)).T.cumsum().tolist() == [1, 1, 1, 2]


def test_nothing_waits(dev: ps.Device) -> None:
    x = dev.ones((300, 200))
    x.sum(axis=0), x.var(axis=1), x.cumsum(axis=0), x.argmax(axis=1), x.prod()
    with ps.trace() as receipt:
        x.sum(axis=0), x.var(axis=1), x.cumsum(axis=0), x.argmax(axis=1), x.prod()
        dev.xp.mean(x.T, axis=0), dev.xp.any(x)
    receipt.expect(waits=0, copies=0)


def test_in_the_way_of_gpus(dev: ps.Device) -> None:
    """Neighbours take interleaved parts of an output. (Both drivers here are of CPUs.)"""
    axes = Axes(dev)
    axes.grid = Grid(False, 64, 1 << 14, 1 << 12)
    rng = np.random.default_rng(6)
    for shape, axis in (((70_001,), 0), ((40, 501), 1), ((501, 40), 0), ((9, 64, 300), (0, 2))):
        host = rng.integers(-100, 100, shape, np.int32)
        reduced = axis if isinstance(axis, tuple) else (axis,)
        x = dev.array(host)
        close(axes.sum(x, reduced, np.dtype(np.int64), None), host.sum(axis))
        if len(reduced) == 1:
            index = axes.extreme_index(x, reduced, smallest=True, stream=None)
            close(index, host.argmin(axis))


def test_results_that_no_binding_holds(dev: ps.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed in pieces; here, of at most 1 KiB."""
    monkeypatch.setattr(dev.axes, "_most_bytes", 1024)
    host = np.random.default_rng(7).standard_normal((201, 3, 17)).astype(np.float32)
    x = dev.array(host)
    close(x.max(axis=1), host.max(1))
    close(x.T.argmax(axis=1), host.T.argmax(1))
    close((x > 0).any(axis=1), (host > 0).any(1))
    close(x.var(axis=1), host.astype(np.float64).var(1).astype(np.float32), error=1e-6)


def test_a_graph_records_them(dev: ps.Device) -> None:
    x = dev.ones((50, 40))
    y = dev.empty(40)
    with dev.record() as graph:
        y.copy_from(x.sum(axis=0))
    x.fill(3)
    graph.replay()
    assert np.all(y.numpy() == 150)


def test_differences(dev: ps.Device) -> None:
    host = np.array([[1, 4, 9, 16], [2, 3, 5, 7]], np.float32)
    x = dev.array(host)
    for axis in (0, 1, -1):
        close(dev.xp.diff(x, axis=axis), np.diff(host, axis=axis))
    close(dev.xp.diff(x, n=2), np.diff(host, n=2))
    with pytest.raises(ps.InvalidValue, match="n=-1"):
        dev.xp.diff(x, n=-1)


def test_on_the_simulator() -> None:
    with simulated(3) as dev:
        rng = np.random.default_rng(4)
        for dtype in ("int8", "float32", "complex128", "bool", "float16"):
            for shape, axis in SHAPES[:9]:
                host = values(rng, dtype, shape)
                check(dev, host.T, dev.array(host).T, axis)
        host = values(rng, "int16", (6, 7))
        close(dev.array(host)[::2].cumsum(axis=1), host[::2].cumsum(1))
