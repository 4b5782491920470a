"""Matrix products: NumPy's values for every dtype, shape and stride, by every kernel."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.ops import products
from penstock.ops.product_plans import KIND_OF, Way, defines_of, every_variant
from penstock.ops.products import Products

DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
WAYS = ["lanes", "shared", "direct"]
SHAPES = [
    ((3,), (3,)), ((5, 7), (7,)), ((7,), (7, 5)), ((1, 1), (1, 1)), ((17, 9), (9, 33)),
    ((65, 70), (70, 66)), ((40, 5), (5, 3)), ((2, 3, 9, 5), (3, 5, 10)), ((4, 1, 3, 5), (6, 5, 3)),
    ((3, 300), (300,)), ((200,), (200, 70)), ((1, 700), (700, 1)), ((2, 0), (0, 3)),
    ((0, 2), (2, 3)),
    ((2, 1, 2, 1, 2, 3, 4), (2, 1, 2, 1, 4, 2)),
]  # fmt: skip


def named(dtype: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def random(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    rng, kind = np.random.default_rng([seed, *shape]), named(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.4
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    made = rng.standard_normal(shape)
    return (made + 1j * rng.standard_normal(shape) if kind.kind == "c" else made).astype(kind)


def supported(dev: ps.Device, dtype: str) -> bool:
    wide = dtype in ("float64", "complex128")
    return not wide or dev.info.driver != "vulkan" or "shaderFloat64" in dev.info.features


def check(got: ps.Array, a: Any, b: Any, function: Any = np.matmul) -> None:
    """Integers are exact; a float is off by no more than its additions may be."""
    dtype = a.dtype
    assert got.dtype == dtype
    if dtype.kind in "biu":
        np.testing.assert_array_equal(got.numpy(), function(a, b))
        return
    wide = np.complex128 if dtype.kind == "c" else np.float64
    one, other = a.astype(wide), b.astype(wide)
    exact, size = function(one, other), function(np.abs(one), np.abs(other))
    bits = {2: 8 if dtype.name == "bfloat16" else 11}
    eps = 2.0 ** -bits.get(dtype.itemsize, 24 if dtype.name in ("float32", "complex64") else 53)
    sums = max(eps, 2.0**-24) if dtype.itemsize == 2 else eps
    inner = a.shape[-1]
    if dtype.itemsize == 2:
        allowed = eps * np.abs(exact) + 2.0**-24 * (inner + 8) * size + 2.0**-24
    else:
        allowed = sums * (inner + 8) * size * (2 if dtype.kind == "c" else 1)
    found = got.numpy().astype(wide)
    assert found.shape == np.shape(exact)
    assert (np.abs(found - exact) <= allowed).all()


def of_way(dev: ps.Device, way: str) -> Products:
    """The products of a device, with one kernel for all but the thinnest."""
    made = Products(dev)
    made._way = made._way._replace(large=way)
    return made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_way(
    dtype: str, way: str, dev: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not supported(dev, dtype):
        x = dev.array(random(dtype, (2, 2)))
        with pytest.raises(ps.Unsupported, match=r"has no .* arithmetic .*; use"):
            of_way(dev, way).matmul(x, x)
        return
    monkeypatch.setattr(products, "_SMALL", 0)
    made = of_way(dev, way)
    for left, right in SHAPES:
        a, b = random(dtype, left), random(dtype, right, 1)
        check(made.matmul(dev.array(a), dev.array(b)), a, b)


@pytest.mark.parametrize("dtype", ["int16", "bfloat16", "complex64"])
def test_on_every_driver(dtype: str, any_device: ps.Device) -> None:
    made = Products(any_device)
    for left, right in (*SHAPES[:3], *SHAPES[5:8], ((70, 90), (90, 65)), ((3, 600), (600, 2))):
        a, b = random(dtype, left), random(dtype, right, 1)
        check(made.matmul(any_device.array(a), any_device.array(b)), a, b)
    a, b = random(dtype, (9, 4)), random(dtype, (9, 4), 1)
    product = np.matmul(a[:, None, :], b[:, :, None])[:, 0, 0]
    got = made.vecdot(any_device.array(a), any_device.array(b)).numpy()
    np.testing.assert_allclose(got.astype(product.dtype), product, rtol=0.05)


def slices(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    """For each dimension, the size to have before, and the slice that takes this one's size."""
    each = st.tuples(st.integers(0, 3), st.sampled_from([1, 2, -1, -3]))
    return st.tuples(*[each for _ in shape])


def strided(dev: ps.Device, host: Any, steps: Any, order: Any) -> ps.Array:
    """An array on the device with the content of `host`, at odd offsets, steps and order."""
    shape = [host.shape[axis] for axis in order]
    larger = [
        start + max(0, n - 1) * abs(step) + 1 for n, (start, step) in zip(shape, steps, strict=True)
    ]
    base = np.zeros(larger, host.dtype)
    index = tuple(
        slice(start, start + n * step, step)
        if step > 0
        else slice(start + (n - 1) * -step, start - 1 if start else None, step)
        if n
        else slice(0, 0)
        for n, (start, step) in zip(shape, steps, strict=True)
    )
    base[index] = host.transpose(order)
    part = dev.array(base)[index]
    back = np.argsort(order)
    layout = part.layout._replace(
        shape=tuple(part.shape[axis] for axis in back),
        strides=tuple(part.strides[axis] for axis in back),
    )
    return part.seen(layout)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_strides(dev: ps.Device, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([each for each in DTYPES if supported(dev, each)]))
    rows, inner, columns = (data.draw(st.integers(0, 40)) for _ in range(3))
    batch = data.draw(st.sampled_from([(), (2,), (3, 2)]))
    shapes = ((*batch, rows, inner), (*batch[1:], inner, columns))
    hosts, arrays = [], []
    for number, shape in enumerate(shapes):
        host = random(dtype, shape, number)
        order = data.draw(st.permutations(range(len(shape))))
        arrays.append(strided(dev, host, data.draw(slices(shape)), order))
        hosts.append(host)
    way = data.draw(st.sampled_from(WAYS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_SMALL", data.draw(st.sampled_from([0, 1 << 17])))
        check(of_way(dev, way).matmul(*arrays), *hosts)


@pytest.mark.parametrize(("dtype", "limit"), [("int8", 4096), ("float16", 8192), ("int64", 8192)])
def test_larger_than_a_binding(dtype: str, limit: int, dev: ps.Device) -> None:
    """Pieces of batches, rows, columns and sums, each launched on its own."""
    made = Products(dev)
    made._range = limit
    for left, right in (
        ((3, 9, 21), (3, 21, 5)),
        ((1, 601), (601, 1)),
        ((7, 33), (33, 41)),
        ((1, 3), (3, 140)),
    ):
        a, b = random(dtype, left), random(dtype, right, 1)
        check(made.matmul(dev.array(a), dev.array(b)), a, b)


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8"])
def test_long_sums_are_divided(dtype: str, dev: ps.Device) -> None:
    """More products than a loop may have turns, in few sums."""
    made = Products(dev)
    for left, right in (((1, 300_000), (300_000, 1)), ((4, 70_000), (70_000, 4))):
        a, b = random(dtype, left), random(dtype, right, 1)
        check(made.matmul(dev.array(a), dev.array(b)), a, b)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "complex64"])
def test_vecdot(dtype: str, dev: ps.Device) -> None:
    def function(a: Any, b: Any) -> Any:
        return (a[..., None, :] @ b[..., :, None])[..., 0, 0]

    made = Products(dev)
    cases = [
        ((3,), (3,)),
        ((5, 3), (5, 3)),
        ((4, 5, 3), (5, 3)),
        ((2, 0), (2, 0)),
        ((9, 200), (200,)),
    ]
    for left, right in cases:
        a, b = random(dtype, left), random(dtype, right, 1)
        check(made.vecdot(dev.array(a), dev.array(b)), a, b, function)
    a, b = random(dtype, (3, 7)), random(dtype, (3, 7), 1)
    check(made.vecdot(dev.array(a).T, dev.array(b).T), a.T, b.T, function)


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
def test_every_kernel_is_shipped(dev: ps.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wheel compiles has all that is used; nothing is launched."""
    shipped = [*every_variant()]
    used: list[Any] = []

    def note(self: Products, shader: str, dtype: Any, defines: dict[str, Any], **_: object) -> None:
        used.append((shader, defines_of(KIND_OF[dtype.compute], self._abilities.int64, defines)))

    monkeypatch.setattr(Products, "_kernel", note)
    monkeypatch.setattr(products, "_call", lambda *_, **__: None)
    for way in WAYS:
        made = of_way(dev, way)
        for small, dtype, (left, right) in itertools.product((0, 1 << 17), DTYPES, SHAPES):
            monkeypatch.setattr(products, "_SMALL", small)
            a, b = dev.empty(left, named(dtype)), dev.empty(right, named(dtype))
            made.matmul(a, b)
            made.vecdot(a, a)
    assert {shader for shader, _ in used} == {shader for shader, _ in shipped}
    assert not [each for each in used if each not in shipped]


def test_special_values(dev: ps.Device) -> None:
    """NaN and infinities reach only the sums that they belong to; padding adds none."""
    for way in WAYS:
        a = np.ones((33, 5), np.float32)
        b = np.ones((5, 33), np.float32)
        a[3, 2], a[4, 1], b[2, 7] = np.nan, np.inf, -np.inf
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(products, "_SMALL", 0)
            got = of_way(dev, way).matmul(dev.array(a), dev.array(b)).numpy()
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got, a @ b)


def test_rounding_to_smaller_floats(dev: ps.Device) -> None:
    """Sums are rounded once, to the nearest element and of two to the even one."""
    exact = np.array(
        [0, 1, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 65504, 65519.9, 65520, 1e6, 2.0**-24, 2.0**-25,
         1.5 * 2.0**-24, 6e-5, 6.1e-5, -3e-6, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3e38, 3.4e38],
        np.float64,
    )  # fmt: skip
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        with np.errstate(all="ignore"):
            big = (exact.astype(np.float32) / 2).astype(dtype)
        a, b = big[:, None], np.ones((1, 1), dtype) * dtype.type(2)
        with np.errstate(all="ignore"):
            wanted = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
        got = Products(dev).matmul(dev.array(a), dev.array(b)).numpy()
        np.testing.assert_array_equal(got.view(np.uint16), wanted.view(np.uint16))
    parts = np.array([[1, 2.0**-11], [1, 3 * 2.0**-11], [2048, 1], [2048, 3]], np.float16)
    ones = np.ones((2, 1), np.float16)
    got = Products(dev).matmul(dev.array(parts), dev.array(ones)).numpy()
    wanted = parts.astype(np.float32).sum(axis=1, keepdims=True).astype(np.float16)
    np.testing.assert_array_equal(got, wanted)


def test_nothing_waits_and_nothing_is_copied(dev: ps.Device) -> None:
    made = Products(dev)
    a, b = dev.ones((128, 100)), dev.ones((100, 90))
    made.matmul(a, b)
    dev.synchronize()
    with ps.trace() as trace:
        made.matmul(a, b)
    trace.expect(waits=0, copies=0)
    with ps.trace() as trace:
        made.matmul(a[:4, :4], b[:4, :4])
    trace.expect(waits=0, copies=0, launches=1)


def test_a_recorded_product(dev: ps.Device) -> None:
    made = Products(dev)
    host = random("float32", (70, 70))
    a, other = dev.array(host), dev.array(2 * host)
    made.matmul(a, a)
    with dev.record(a=a) as graph:
        out = made.matmul(a, a)
    graph.replay()
    check(out, host, host)
    graph.replay(a=other)
    check(out, 2 * host, 2 * host)


def test_errors(dev: ps.Device) -> None:
    made = Products(dev)
    x = dev.ones((2, 3))
    with pytest.raises(ps.ShapeMismatch, match=r"last dimension of the first, 3, is not the last"):
        made.matmul(x, x)
    with pytest.raises(ps.ShapeMismatch, match="without dimensions"):
        made.matmul(x, dev.full((), 1.0))
    with pytest.raises(ps.ShapeMismatch, match="cannot be broadcast"):
        made.matmul(dev.ones((2, 2, 2)), dev.ones((3, 2, 2)))
    with pytest.raises(ps.DtypeMismatch, match="float32 and int32"):
        made.matmul(x, dev.ones((3, 2), np.int32))
    with pytest.raises(ps.ArgumentError, match="ndarray"):
        made.matmul(x, np.ones((3, 2)))  # type: ignore[arg-type]
    with pytest.raises(ps.ShapeMismatch, match="last dimensions"):
        made.vecdot(x, dev.ones(2))


def test_the_way_of_a_device(dev: ps.Device) -> None:
    assert Way.of(dev).large == "lanes"
