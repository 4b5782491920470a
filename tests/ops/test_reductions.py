"""Reductions: NumPy's values for every dtype and size, at no cost until the value is asked for."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.ops.axes_kernels import reads_texels
from penstock.ops.reductions import Reductions
from tests.conftest import OpenDevice
from tests.gate import held_until_waited
from tests.kernels import slow_add

DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64",
]  # fmt: skip
OPERATIONS = ["sum", "mean", "min", "max", "argmin", "argmax", "any", "all", "dot"]
SIZES = [1, 2, 3, 7, 64, 255, 2049, 10_001]
LARGE = (1 << 20) + 3


def random(dtype: Any, *shape: int, seed: int = 0) -> Any:
    """Numbers of the whole range of an integer dtype, or about 0; half of them repeat."""
    rng, kind = np.random.default_rng([seed, *shape]), np.dtype(dtype)
    if kind.kind == "f":
        made = rng.standard_normal(shape).astype(kind)
    elif kind.kind == "b":
        made = rng.random(shape) < 0.5
    else:
        info = np.iinfo(kind)
        made = rng.integers(info.min, info.max, shape, kind, endpoint=True)
    return np.where(rng.random(shape) < 0.5, made, made.flat[0]) if made.size else made


def reduced(operation: str, x: Any, **options: Any) -> Any:
    """A reduction of a device's array or of NumPy's."""
    with np.errstate(all="ignore"):
        return x.dot(x, **options) if operation == "dot" else getattr(x, operation)(**options)


def check(operation: str, x: ps.Array, host: Any) -> None:
    if host.dtype == np.float64 and operation in ("sum", "mean", "dot"):  # noqa: SIM102
        if "shaderFloat64" not in x.device.info.features:
            with pytest.raises(ps.Unsupported, match=rf"shaderFloat64.*numpy\(\)\.{operation}"):
                reduced(operation, x)
            return
    result = reduced(operation, x)
    assert type(result) is ps.Result
    got, wanted = result.result(), reduced(operation, host)
    assert got.dtype == wanted.dtype
    if operation == "mean" or (host.dtype.kind == "f" and operation in ("sum", "dot")):
        exact = host.astype(np.float64)
        terms = exact * exact if operation == "dot" else exact
        count = host.size if operation == "mean" else 1
        allowed = 4 * np.finfo(got.dtype).eps * np.abs(terms).sum() / count
        np.testing.assert_allclose(got, terms.sum() / count, rtol=0, atol=allowed)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_size(dtype: str, operation: str, dev: ps.Device) -> None:
    for size in SIZES:
        host = random(dtype, size)
        check(operation, dev.array(host), host)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_large_arrays(operation: str, dev: ps.Device) -> None:
    host = random("float32", LARGE)
    check(operation, dev.array(host), host)


@pytest.fixture
def tree_device(open_device: OpenDevice) -> ps.Device:
    """A CPU driver that is reduced on as a GPU is: with a tree in shared memory."""
    dev = open_device()
    dev.info = replace(dev.info, kind="discrete")
    dev.reductions = Reductions(dev)
    return dev


def test_the_shape_for_gpus(tree_device: ps.Device) -> None:
    cases = {
        "sum": ("uint8", "float16", "float32", "float64"), "mean": ("int64",), "dot": ("float32",),
        "max": ("int16", "float64"), "argmin": ("float32", "int64"), "all": ("bool",),
    }  # fmt: skip
    for operation, dtypes in cases.items():
        for dtype in dtypes:
            for size in (1, 255, 5000, 70_001):
                host = random(dtype, size)
                check(operation, tree_device.array(host), host)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_are_equal_not_the_same_object(dtype: str) -> None:
    """An unpickled array has a dtype object of its own, and so has one with metadata."""
    host = random(dtype, 5)
    with ps.Device(driver="sim") as dev:
        for operation in OPERATIONS:
            check(operation, dev.array(pickle.loads(pickle.dumps(host))), host)
            dev.reductions = Reductions(dev)  # no kernel is compiled already
            labelled = np.dtype(dtype, metadata={"unit": "m"})
            check(operation, dev.array(host).reinterpret(labelled), host)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_simulator(dtype: str) -> None:
    with ps.Device(driver="sim", seed=DTYPES.index(dtype)) as dev:
        for size in (1, 5, 1000):
            host = random(dtype, size)
            for operation in OPERATIONS:
                check(operation, dev.array(host), host)
            check(
                "sum" if dtype == "int8" else "max", dev.array(host)[size // 2 :], host[size // 2 :]
            )
        assert not dev.messages


@pytest.fixture(scope="module")
def devices() -> Iterator[list[ps.Device]]:
    opened = [ps.Device(info.index) for info in ps.devices() if info.kind == "cpu"]
    yield opened
    for device in opened:
        device.close()


SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 1e-7, 6e-8, 65504.0]


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    values=st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=40),
)
def test_nan_infinity_and_zeros(devices: list[ps.Device], dtype: str, values: list[float]) -> None:
    host = np.array(values, dtype)
    for dev in devices:
        x = dev.array(host)
        for operation in ("min", "max", "argmin", "argmax", "any", "all"):
            np.testing.assert_array_equal(reduced(operation, x).result(), reduced(operation, host))
        if dtype != "float64":
            for operation in ("sum", "mean"):
                got, wanted = reduced(operation, x).result(), reduced(operation, host)
                np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=1e-2)


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    size=st.integers(1, 3000),
    start=st.integers(0, 40),
    step=st.integers(1, 3),
)
def test_slices(devices: list[ps.Device], dtype: str, size: int, start: int, step: int) -> None:
    host = random(dtype, size + start)[start::step]
    for dev in devices:
        x = dev.array(random(dtype, size + start))[start::step]
        for operation in ("min", "argmax", "all"):
            check(operation, x, host)
        check("dot" if dtype != "float64" else "max", x, host)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_sign_of_zero(zero: float, dev: ps.Device) -> None:
    x = dev.full(5, zero, np.float32)
    for operation in ("min", "max"):
        assert np.signbit(reduced(operation, x).result()) == np.signbit(zero)


def test_sums_are_accurate(dev: ps.Device) -> None:
    host = np.random.default_rng(1).random(LARGE).astype(np.float32)
    exact = host.sum(dtype=np.float64)
    assert abs(float(dev.array(host).sum()) - exact) <= 2 * np.spacing(np.float32(exact))
    half = dev.array(np.full(100_000, 0.5, np.float16))
    assert half.mean().result() == np.float16(0.5)
    assert half.sum().result() == np.float16(50_000)
    assert np.isinf(dev.full(100_000, 1, np.float16).sum().result())


def test_integers_do_not_overflow_where_numpys_do_not(dev: ps.Device) -> None:
    for dtype in ("int32", "uint32", "int64", "uint64"):
        info = np.iinfo(dtype)
        for value in (info.min, info.max):
            host = np.full(1001, value, dtype)
            x = dev.array(host)
            assert x.sum().result() == host.sum()
            assert x.mean().result() == host.mean()


@pytest.mark.parametrize("dtype", ["bool", "int16", "uint64", "float16", "float32"])
def test_arrays_of_no_elements(dtype: str, dev: ps.Device) -> None:
    x, host = dev.empty(0, dtype), np.empty(0, dtype)
    for operation in ("sum", "any", "all", "dot"):
        got = reduced(operation, x).result()
        assert got == reduced(operation, host)
        assert got.dtype == reduced(operation, host).dtype
    assert np.isnan(x.mean().result())
    for operation in ("min", "max", "argmin", "argmax"):
        with pytest.raises(ValueError, match=f"{operation} of array .* has no elements"):
            reduced(operation, x)


def test_shapes_and_layouts(dev: ps.Device) -> None:
    host = random("int16", 30, 41)
    base = dev.array(host)
    for view in (
        lambda a: a, lambda a: a.T, lambda a: a[3], lambda a: a[:, 3], lambda a: a[1:, 2:9],
        lambda a: a[::-1], lambda a: a[5:6, 7:8], lambda a: a[3, 4],
    ):  # fmt: skip
        for operation in ("sum", "max", "argmin", "mean", "any"):
            check(operation, view(base), view(host))
    check("sum", dev.array(host[0]).broadcast_to((5, 41)), np.broadcast_to(host[0], (5, 41)))
    odd = dev.array(np.arange(33, dtype=np.uint8))[1:].reinterpret(np.float32)
    check("max", odd, odd.numpy())


def test_dot_of_slices_that_start_differently(dev: ps.Device) -> None:
    for dtype in ("int8", "float16", "int64", "float32"):
        a, b = random(dtype, 999), random(dtype, 999, seed=1)
        got = dev.array(a)[3:800].dot(dev.array(b)[10:807]).result()
        np.testing.assert_allclose(got, a[3:800].dot(b[10:807]), rtol=1e-2, atol=1e-1)


def test_numpys_functions_find_them(dev: ps.Device) -> None:
    x = dev.array(np.arange(5.0, dtype=np.float32))
    for function, value in ((np.sum, 10), (np.mean, 2), (np.max, 4), (np.argmax, 4), (np.any, 1)):
        found: Any = function(x)  # type: ignore[operator]
        assert isinstance(found, ps.Array)
        assert found.item() == value


# Cost and order.


def test_steady_state_is_free_until_the_value_is_asked_for(dev: ps.Device) -> None:
    x = dev.array(random("float32", 5000))
    odd = dev.array(random("uint8", 5001))
    for operation in ("sum", "argmax", "mean"):
        for array in (x, odd, odd[7:]):
            reduced(operation, array).result()
    for operation in ("sum", "argmax", "mean"):
        for array in (x, odd, odd[7:]):
            with held_until_waited(dev.default_stream):
                with ps.trace() as t:
                    result = reduced(operation, array)
                assert (t.launches, t.allocations, t.copies, t.waits) == (1, 0, 0, 0)
                with ps.trace() as t:
                    result.result()
                    float(result)
                assert (t.launches, t.allocations, t.copies, t.waits) == (0, 0, 0, 1)


def test_results_in_flight_are_read_in_any_order(dev: ps.Device) -> None:
    x = dev.zeros(1000, np.uint32)
    results = []
    for step in range(1, 41):
        slow_add(x, 1, spin=100)
        results.append((x.sum(), x.max(), step))
    for total, largest, step in results[::-2] + results[::2]:
        assert (total.result(), largest.result()) == (1000 * step, step)
    assert x.sum() > 39_999
    assert x.max() + 1 == 41


def test_the_same_array_gives_the_same_bits(dev: ps.Device) -> None:
    x = dev.array(random("float32", 100_003))
    for operation in ("sum", "mean", "dot"):
        assert len({reduced(operation, x).result().tobytes() for _ in range(20)}) == 1


def test_streams(dev: ps.Device) -> None:
    streams = [dev.stream() for _ in range(3)]
    arrays = [dev.array(random("int32", 20_000, seed=n)) for n in range(3)]
    results = [
        (reduced(operation, x, stream=stream), reduced(operation, x.numpy()))
        for _ in range(5)
        for operation in ("sum", "argmin")
        for x, stream in zip(arrays, streams, strict=True)
    ]
    assert all(result.result() == value for result, value in results)
    x = arrays[0][:500]
    with ps.trace() as t:
        total = x[::2].sum(stream=streams[1])
    assert t.waits == 0
    assert total == x.numpy()[::2].sum()


def test_threads(threaded_device: ps.Device) -> None:
    dev = threaded_device
    hosts = [random("int32", 5000, seed=n) for n in range(4)]
    wrong: list[Any] = []

    def work(host: Any) -> None:
        x = dev.array(host)
        for _ in range(30):
            results = [x.sum(), x.max(), x.argmin()]
            if [int(r) for r in results] != [host.sum(), host.max(), host.argmin()]:
                wrong.append(host)

    threads = [threading.Thread(target=work, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_recording(dev: ps.Device) -> None:
    hosts = [random("float32", 3000, seed=n) for n in range(2)]
    x, other = (dev.array(host) for host in hosts)
    with dev.record(x=x) as g:
        x.argmax()
    assert g.replay().result() == hosts[0].argmax()
    assert g.replay(x=other).result() == hosts[1].argmax()
    with dev.record() as g:
        pending = x[1:].max()
        x[::100].min()
        dev.empty(0).sum()
    with pytest.raises(ps.NotWhileRecording, match="is recorded"):
        pending.result()
    x.fill(3)
    assert g.replay().result() == (3, 3, 0)


def test_recorded_arrays_may_be_replaced_whatever_their_size(dev: ps.Device) -> None:
    hosts = [random("uint8", 103, seed=n) for n in range(2)]
    x, other = (dev.array(host) for host in hosts)
    with dev.record(x=x) as g:
        x.sum()
    assert g.replay().result() == hosts[0].sum()
    assert g.replay(x=other).result() == hosts[1].sum()


def test_a_view_of_the_bytes_next_to_them_does_not_matter(dev: ps.Device) -> None:
    base = dev.array(np.arange(100, dtype=np.uint8))
    view = base[:3].view("rw")
    assert base[3:].sum() == 4947
    view[:] = 200
    assert base[3:].max() == 99


# What is refused.


def test_what_is_refused(dev: ps.Device) -> None:
    x, y = dev.ones(4), dev.ones(4)
    bad: list[tuple[Any, Any, str]] = [
        (lambda: x.max(out=y), ps.Unsupported, "max with out="),  # type: ignore[arg-type]
        (lambda: x.dot(np.ones(4)), ps.ArgumentError, "dot takes an Array, not ndarray"),  # type: ignore[arg-type]
        (lambda: x.dot(dev.ones(4, np.int32)), ps.DtypeMismatch, "float32 and int32"),
        (lambda: x.dot(dev.ones(5)), ps.ShapeMismatch, r"\(4,\) and \(5,\)"),
        (lambda: dev.ones((2, 2)).dot(dev.ones((2, 2))), ps.ShapeMismatch, "one dimension"),
        (lambda: dev.ones(4, np.complex64).max(), ps.DtypeMismatch, "no order"),
        (lambda: dev.zeros(4, "m8[s]").max(), ps.DtypeMismatch, r"x\.numpy\(\)\.max\(\)"),
        (lambda: x.sum(stream=3), ps.ArgumentError, "not a stream"),  # type: ignore[arg-type]
    ]
    for call, kind, words in bad:
        with pytest.raises(kind, match=words):
            call()
    y.close()
    with pytest.raises(ps.Closed, match="is closed"):
        y.sum()


def test_more_bytes_than_can_be_bound(open_device: OpenDevice) -> None:
    dev = open_device()
    dev.info = replace(dev.info, limits={**dev.info.limits, "binding_range": 4096})
    x = dev.array(np.arange(-1000, 1048, dtype=np.int32))
    if reads_texels(dev):  # which may be larger
        assert (x.sum(), x.mean(), x.min(), x.argmax()) == (24 * 2048 - 1024, 23.5, -1000, 2047)
    with pytest.raises(ps.Unsupported, match=r"8,192 bytes.*at most 4,096.*slices"):
        x.dot(x)
    assert x[:1024].dot(x[:1024]) == int((np.arange(-1000, 24) ** 2).sum())
