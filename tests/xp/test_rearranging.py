"""Functions of the standard that make and rearrange arrays, compared with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.conftest import DRIVERS
from tests.ops.arrays import assert_same, values, waits_of

SHAPE = (3, 4, 5)


@pytest.fixture(params=["bool", "int16", "float32", "complex64"])
def host(request: pytest.FixtureRequest) -> Any:
    return values(request.param, SHAPE, most=9)


def test_joining(host: Any, dev: ps.Device) -> None:
    xp, x = dev.xp, dev.array(host)
    assert_same(xp.concat([x, x[:, ::2]], axis=1), np.concatenate([host, host[:, ::2]], 1))
    assert_same(xp.concat([x, x.T], axis=None), np.concatenate([host, host.T], None))
    assert_same(xp.stack([x.T, x.T], axis=-1), np.stack([host.T, host.T], -1))
    for got, wanted in zip(xp.unstack(x, axis=1), np.moveaxis(host, 1, 0), strict=True):
        assert_same(got, wanted)
    with pytest.raises(ps.ShapeMismatch, match="concat"):
        xp.concat([x, x[:, 1:]], axis=0)


def test_repeating(host: Any, dev: ps.Device) -> None:
    xp, x = dev.xp, dev.array(host)
    for times in ((2, 1, 3), (2, 1, 1, 3), (3,), (0, 2)):
        assert_same(xp.tile(x, times), np.tile(host, times))
    assert_same(xp.repeat(x, 3, axis=1), np.repeat(host, 3, 1))
    assert_same(x.repeat(2), host.repeat(2))
    assert_same(x.repeat([1, 0, 2], 0), host.repeat([1, 0, 2], 0))
    with pytest.raises(ps.ShapeMismatch, match="repeats for an axis"):
        xp.repeat(x, dev.array([1, 2]), axis=0)


def test_repeats_on_the_device(dev: ps.Device) -> None:
    host = values("float32", SHAPE)
    times = np.array([2, 0, 3])
    x, own = dev.array(host), dev.array(times)
    (reason,) = waits_of(dev, lambda: dev.xp.repeat(x, own, axis=0))
    assert "number of repeated elements" in reason
    assert_same(dev.xp.repeat(x, own, axis=0), np.repeat(host, times, 0))
    for bad in ([2, -1, 1], [1 << 32, 1, 1], [1 << 31, 1 << 31, 3], [1 << 31]):
        with pytest.raises(ps.InvalidValue, match="their sum is below"):
            dev.xp.repeat(x, dev.array(np.array(bad)), axis=0)


def test_rolling(host: Any, dev: ps.Device) -> None:
    x = dev.array(host)
    for shift, axis in ((2, None), (-3, 0), ((1, 2), (0, 2)), ((1, 1), (1, 1)), (7, 1), (0, 0)):
        assert_same(dev.xp.roll(x, shift, axis=axis), np.roll(host, shift, axis))


@pytest.mark.parametrize("any_device", [*DRIVERS, "simulator"], indirect=True)
def test_triangles(host: Any, any_device: ps.Device) -> None:
    x, xp = any_device.array(host), any_device.xp
    for k in (-9, 0, 2):
        assert_same(xp.tril(x, k=k), np.tril(host, k))
        assert_same(xp.triu(x.T, k=k), np.triu(host.T, k))
        assert_same(xp.eye(3, 5, k=k, dtype=host.dtype), np.eye(3, 5, k, dtype=host.dtype))


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32", "int64", "complex128", "f4,f4,f4"])
@pytest.mark.parametrize("shift", [0, 1, 2, 4])
@pytest.mark.parametrize("any_device", [*DRIVERS, "simulator"], indirect=True)
def test_triangles_at_any_address(any_device: ps.Device, dtype: str, shift: int) -> None:
    kind = np.dtype(dtype)
    raw = np.random.default_rng(1).integers(0, 50, shift + 12 * kind.itemsize, np.uint8)
    host = raw[shift:].view(kind).reshape(3, 4)
    x, xp = any_device.array(raw)[shift:].reinterpret(kind).reshape(3, 4), any_device.xp
    assert_same(xp.tril(x), np.tril(host))
    assert_same(xp.triu(x[::-1].T, k=1), np.triu(host[::-1].T, 1))


def test_views(host: Any, dev: ps.Device) -> None:
    xp, x = dev.xp, dev.array(host)
    for got, wanted in (
        (xp.flip(x), np.flip(host)),
        (xp.flip(x, axis=(0, -1)), np.flip(host, (0, -1))),
        (xp.moveaxis(x, (0, 1), (-1, 0)), np.moveaxis(host, (0, 1), (-1, 0))),
        (xp.permute_dims(x, (2, 0, 1)), host.transpose(2, 0, 1)),
        (xp.expand_dims(x, axis=(0, -1)), np.expand_dims(host, (0, -1))),
        (xp.squeeze(x[:1], axis=0), host[0]),
        (x[:1, :, :1].squeeze(), host[:1, :, :1].squeeze()),
        (x.transpose(), host.T),
        (x.transpose(1, 0, 2), host.transpose(1, 0, 2)),
        (x.swapaxes(0, -1), host.swapaxes(0, -1)),
    ):
        assert got.buffer is x.buffer
        assert_same(got, wanted)
    assert x.flatten().buffer is not x.buffer
    with pytest.raises(ps.InvalidValue, match="squeeze of axis 1"):
        xp.squeeze(x, axis=1)


def test_grids(host: Any, dev: ps.Device) -> None:
    x = dev.array(host)
    axes, own = (host[0, 0], host[0, :, 0], host[:, 0, 0]), (x[0, 0], x[0, :, 0], x[:, 0, 0])
    for indexing in ("xy", "ij"):
        made = dev.xp.meshgrid(*own, indexing=indexing)
        for got, wanted in zip(made, np.meshgrid(*axes, indexing=indexing), strict=True):
            assert_same(got, wanted)


@pytest.mark.parametrize("given", [(5,), (2, 9, 3), (9, 2, -2), (0,), (5, 2), (-3, 4)])
def test_arange(given: tuple[int, ...], dev: ps.Device) -> None:
    for dtype in ("int64", "int8", "uint32"):
        assert_same(dev.xp.arange(*given, dtype=dtype), np.arange(*given).astype(dtype))
    got = dev.xp.arange(*(float(n) for n in given)).numpy()
    np.testing.assert_array_equal(got, np.arange(*given).astype(np.float32))


@pytest.mark.parametrize("num", [0, 1, 2, 1001])
def test_linspace(num: int, dev: ps.Device) -> None:
    exact = "shaderFloat64" in dev.info.features
    for endpoint in (True, False):
        got = dev.xp.linspace(-1, 2.3, num, endpoint=endpoint).numpy()
        wanted = np.linspace(-1, 2.3, num, endpoint=endpoint).astype(np.float32)
        if exact:
            np.testing.assert_array_equal(got, wanted)
        else:
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
        if num > 1:
            assert (got[0], got[-1] if endpoint else wanted[-1]) == (wanted[0], wanted[-1])
        turned = dev.xp.linspace(1j, 2.5, num, endpoint=endpoint).numpy()
        expected = np.linspace(1j, 2.5, num, endpoint=endpoint)
        np.testing.assert_allclose(turned, expected, rtol=1e-6, atol=1e-6)
