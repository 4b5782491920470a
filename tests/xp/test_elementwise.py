"""Elementwise functions and operators on the device, compared with NumPy.

How accurate each function is, over all floats, is tested with the shader library
(`tests/ops/test_arithmetic.py`). These tests are about dtypes, shapes, strides and cost.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.ops.arithmetic import FUNCTIONS, Function
from penstock.ops.operation_text import MOST_AXES
from tests.gate import held_until_waited

Host = npt.NDArray[Any]

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def has(dev: ps.Device, dtype: str) -> bool:
    return dev.operations.abilities.float64 or dtype not in ("float64", "complex128")


def values(dtype: str, size: int, seed: int = 0) -> Host:
    """Numbers of a dtype that no function overflows with."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    match kind.kind:
        case "b":
            return rng.random(size) < 0.5
        case "i" | "u":
            return rng.integers(max(np.iinfo(kind).min, -100), 100, size).astype(kind)
        case "f":
            return (rng.standard_normal(size) * 3).astype(kind)
    return (rng.standard_normal(size) + 1j * rng.standard_normal(size)).astype(kind)


def operands_of(function: Function, dtype: str, size: int) -> list[Host]:
    found = [values(dtype, size, seed) for seed in range(function.operands)]
    if function.condition:
        found[0] = values("bool", size, 7)
    if "shift" in function.name or (function.name == "pow" and found[0].dtype.kind in "iu"):
        found[1] = np.abs(found[1] % 6).astype(dtype)
    if function.name == "clip":
        found[1:] = [np.minimum(*found[1:]), np.maximum(*found[1:])]
    return found


def assert_close(found: ps.Array, wanted: Host) -> None:
    content = found.numpy()
    assert content.dtype == wanted.dtype
    assert content.shape == wanted.shape
    if wanted.dtype.kind in "fc":
        eps = np.finfo(wanted.dtype).eps
        np.testing.assert_allclose(content, wanted, rtol=40 * float(eps), atol=40 * float(eps))
    else:
        np.testing.assert_array_equal(content, wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_numpys(name: str, dev: ps.Device) -> None:
    """In two of the dtypes each, in turn: contiguous, and through strides."""
    function = FUNCTIONS[name]
    kinds = [d for d in DTYPES if np.dtype(d).kind in function.kinds and has(dev, d)]
    start = list(FUNCTIONS).index(name)
    if "llvmpipe" not in dev.name and start % 3:
        pytest.skip("every third function on a driver that compiles slowly")
    for turn in range(2):
        dtype = kinds[(start + turn * (1 + len(kinds) // 2)) % len(kinds)]
        host = operands_of(function, dtype, 37)
        with np.errstate(all="ignore"):
            wanted = np.asarray(function.reference(*host))
        arrays = [dev.array(np.repeat(each, 1 + turn))[:: 1 + turn] for each in host]
        with ps.trace() as t:
            found = getattr(dev.xp, name)(*arrays)
        assert (t.launches, t.waits, t.copies) == (1, 0, 0)
        assert_close(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_adds_and_compares(dtype: str, dev: ps.Device) -> None:
    if not has(dev, dtype):
        pytest.skip("the device has no double precision")
    if "llvmpipe" not in dev.name and dtype not in ("uint8", "float32"):
        pytest.skip("two of the dtypes on a driver that compiles slowly")
    x, y = values(dtype, 1000), values(dtype, 1000, 1)
    for k in (0, 1, 3):  # aligned, and not
        a, b = dev.array(x)[k:], dev.array(y)[: 1000 - k]
        assert_close(a + b, x[k:] + y[: 1000 - k])
        assert_close(a == b, x[k:] == y[: 1000 - k])


OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@pytest.mark.parametrize("sign", OPERATORS)
def test_operators_take_arrays_and_numbers_on_either_side(sign: str, dev: ps.Device) -> None:
    operate = OPERATORS[sign]
    host = np.abs(values("float32", 21)) + np.float32(0.5)
    x = dev.array(host)
    for left, right in ((x, x[::-1]), (x, 2.5), (3, x), (np.float32(1.5), x)):
        pair = [each.numpy() if isinstance(each, ps.Array) else each for each in (left, right)]
        assert_close(operate(left, right), operate(*pair))


@pytest.mark.parametrize("sign", ["&", "|", "^", "<<", ">>", "~", "-", "+", "abs"])
def test_bits_and_signs(sign: str, dev: ps.Device) -> None:
    host = values("int16", 33)
    x = dev.array(host)
    two = {
        "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
        ">>": operator.rshift,
    }  # fmt: skip
    one = {"~": operator.invert, "-": operator.neg, "+": operator.pos, "abs": operator.abs}
    if sign in two:
        other = np.abs(host) % 5
        assert_close(two[sign](x, dev.array(other)), two[sign](host, other))
        assert_close(two[sign](x, 3), two[sign](host, 3))
    else:
        assert_close(one[sign](x), one[sign](host))


# Promotion.


def test_promotion_is_numpys_but_for_python_floats_and_uint64(dev: ps.Device) -> None:
    for one, other in itertools.product(DTYPES, repeat=2):
        if not (has(dev, one) and has(dev, other)):
            continue
        wanted = np.result_type(one, other)
        if np.dtype(one).kind + np.dtype(other).kind in ("iu", "ui") and wanted.kind == "f":
            with pytest.raises(ps.DtypeMismatch, match="no common integer dtype"):
                dev.xp.result_type(np.dtype(one), np.dtype(other))
            continue
        assert dev.xp.result_type(np.dtype(one), np.dtype(other)) == wanted
    x = dev.ones(3, np.int32)
    assert (x + 1).dtype == np.int32
    assert (x + 1.5).dtype == (x / 2).dtype == dev.xp.sin(x).dtype == np.float32
    assert (dev.ones(3, np.float16) * 2.5).dtype == np.float16
    assert (dev.ones(3) * 1j).dtype == np.complex64
    assert ((x > 0) * dev.ones(3)).dtype == np.float32
    assert dev.xp.where(x > 0, 1.5, 0).dtype == np.float32


def test_mixed_dtypes_are_converted_as_they_are_read(dev: ps.Device) -> None:
    small, large = values("int8", 50), values("float32", 50)
    with ps.trace() as t:
        found = dev.array(small).astype(np.float16) + dev.array(large)
    assert t.launches == 2
    assert_close(found, small.astype(np.float16) + large)
    if has(dev, "float64"):
        assert_close(dev.array(small) * dev.array(values("int64", 50)), small * values("int64", 50))
        assert_close(dev.array(values("int32", 50)) + dev.array(large), values("int32", 50) + large)


# Shapes and strides.


@st.composite
def strided(
    draw: st.DrawFn,
) -> tuple[tuple[int, ...], list[tuple[Any, ...]], list[tuple[int, ...]]]:
    """A shape, and for each of two operands an index that makes a view, and its axes' order."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=4)))
    indices, orders = [], []
    for _ in range(2):
        indices.append(
            tuple(
                draw(st.sampled_from([slice(None), slice(None, None, -1), slice(0, 1)]))
                for _ in shape
            )
        )
        orders.append(tuple(draw(st.permutations(range(len(shape))))))
    return shape, indices, orders


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=strided(), dtype=st.sampled_from(["float32", "int8", "int16"]))
def test_any_strides_broadcast(case: Any, dtype: str, dev: ps.Device) -> None:
    shape, indices, orders = case
    views = []
    for number, (index, order) in enumerate(zip(indices, orders, strict=True)):
        # Laid out with its axes in another order, so that the view has its strides permuted.
        laid = values(dtype, int(np.prod(shape)), number).reshape([shape[axis] for axis in order])
        back = np.argsort(order) if order else ()
        host = laid.transpose(tuple(back))[index]
        x = dev.array(laid)
        layout = x.layout._replace(
            shape=tuple(x.shape[axis] for axis in back),
            strides=tuple(x.strides[axis] for axis in back),
        )
        views.append((host, x.seen(layout)[index]))
    (a, x), (b, y) = views
    with np.errstate(all="ignore"):
        assert_close(x * y, a * b)
    assert_close(x[..., None] - y, a[..., None] - b) if a.ndim == b.ndim == 1 else None


def test_empty_and_zero_dimensional(dev: ps.Device) -> None:
    assert (dev.ones((3, 0)) + dev.ones(1)).shape == (3, 0)
    assert_close(dev.array(np.float32(2)) * dev.array(np.float32(3)), np.array(np.float32(6)))
    assert_close(dev.array(np.float32(2)) * dev.ones((2, 2)), np.full((2, 2), 2, np.float32))


def test_many_axes(dev: ps.Device) -> None:
    host = values("float32", 2**9).reshape((2,) * 9)
    x = dev.array(host)
    order = (8, 1, 6, 3, 4, 5, 2, 7, 0)
    layout = x.layout._replace(
        shape=tuple(x.shape[a] for a in order), strides=tuple(x.strides[a] for a in order)
    )
    assert len(order) > MOST_AXES
    assert_close(x.seen(layout) + x, host.transpose(order) + host)
    column, row = values("int16", 2**9).reshape((2, 1) * 9), host.reshape((1, 2) * 9)
    assert_close(dev.array(column) * dev.array(row), column * row)


@pytest.mark.many_kernels
def test_arrays_larger_than_a_binding(open_device: Any) -> None:
    dev = open_device()
    dev.operations._most_bytes = 4096
    for dtype in ("float32", "int8"):
        host = values(dtype, 6000).reshape(60, 100)
        x = dev.array(host)
        with ps.trace() as t:
            found = x + x[::-1]
        assert t.launches > 1
        assert_close(found, host + host[::-1])
        assert_close(x.T * 2, host.T * 2)


# In place.


def test_in_place(dev: ps.Device) -> None:
    host = values("int8", 101)
    x = dev.array(host)
    same = x
    x += 3
    assert x is same
    x[10:20] *= 2  # a view that starts and ends within words
    x[1::3] -= x[::3][:34]
    x[5:] += x[:-5]  # overlapping: as if the right side were computed first
    host += 3
    host[10:20] *= 2
    host[1::3] -= host[::3][:34]
    host[5:] += host[:-5].copy()
    assert_close(x, host)
    y = dev.array(values("float32", 8))
    before = y.numpy()
    y[2:4] = dev.xp.exp(y[2:4])
    before[2:4] = np.exp(before[2:4])
    assert_close(y, before)


def test_in_place_is_refused_if_dtype_or_shape_would_change(dev: ps.Device) -> None:
    x = dev.ones(3, np.int32)
    with pytest.raises(ps.DtypeMismatch, match="the result is float32, the array int32"):
        x += 1.5
    with pytest.raises(ps.ShapeMismatch, match="does not broadcast"):
        x += dev.ones((2, 3), np.int32)
    with pytest.raises(ps.ReadOnly):
        x.broadcast_to((2, 3)).__iadd__(1)
    with pytest.raises(ps.RoleViolation, match="sealed"):
        dev.array([1, 2], role="weight").__iadd__(1)
    assert_close(x, np.ones(3, np.int32))


# Errors.


def test_what_is_refused(dev: ps.Device) -> None:
    x = dev.ones(4)
    bad: list[tuple[Any, type[Exception], str]] = [
        (lambda: x + np.ones(4), ps.ArgumentError, r"not ndarray; .*: dev\.asarray\(a\)$"),
        (lambda: x @ np.ones(4), ps.ArgumentError, r"not ndarray; dev\.asarray\(a\) makes one$"),
        (
            lambda: x + [1, 2, 3, 4],  # noqa: RUF005
            ps.ArgumentError,
            r"not list; dev\.asarray\(a\) makes it an array$",
        ),
        (lambda: x + None, ps.ArgumentError, "is None"),
        (lambda: x + dev.ones(3), ps.ShapeMismatch, r"\(4,\) and \(3,\)"),
        (lambda: x & x, ps.DtypeMismatch, "bitwise_and takes bool and integer"),
        (lambda: dev.ones(2, np.complex64) < 1, ps.DtypeMismatch, "less takes"),
        (lambda: dev.ones(2, np.uint8) + 300, ps.InvalidValue, "300 does not fit uint8"),
        (lambda: np.add.reduce(x), ps.Unsupported, r"np\.add\.reduce"),
        (lambda: np.frexp(x), ps.Unsupported, r"np\.frexp\(x\.numpy"),
        (lambda: x + object(), TypeError, "unsupported operand"),
        (lambda: bool(x), ps.ShapeMismatch, "ambiguous"),
    ]
    for call, kind, words in bad:
        with pytest.raises(kind, match=words):
            call()
    if not has(dev, "float64"):
        with pytest.raises(ps.Unsupported, match="no float64 arithmetic"):
            dev.xp.zeros(3, dtype=np.float64)


def test_numpys_functions_run_on_the_device(dev: ps.Device) -> None:
    x = dev.array([0.5, 1.0, 2.0])
    with ps.trace() as t:
        found = np.add(np.sin(x), np.arctan2(x, 2.0))
    assert isinstance(found, ps.Array)
    assert (t.waits, t.copies) == (0, 0)
    host = x.numpy()
    assert_close(found, np.sin(host) + np.arctan2(host, np.float32(2)))


@pytest.mark.many_kernels
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float32", "complex64"])
def test_operands_and_results_start_anywhere(dev: ps.Device, dtype: str) -> None:
    """Units are loaded and stored whole, from where the driver lets them start."""
    host, other = values(dtype, 80), values(dtype, 80, seed=1)
    x, y = dev.array(host), dev.array(other)
    for start in (0, 1, 2, 3, 6, 13):
        for size in (1, 4, 5, 16, 31, 48):
            part = slice(start, start + size)
            assert_close(x[part] + y[:size], host[part] + other[:size])
            assert_close(y[part] == x[:size], other[part] == host[:size])
            assert_close(y[part].astype("complex64"), other[part].astype("complex64"))
    for start, size in ((0, 5), (4, 16), (3, 13), (16, 64), (77, 3)):
        wanted = host.copy()
        wanted[start : start + size] *= other[:size]
        changed = dev.array(host)
        changed[start : start + size] *= y[:size]
        assert_close(changed, wanted)  # and no byte beside them


# Cost and order.


def test_the_steady_state_is_free(dev: ps.Device) -> None:
    x = dev.array(values("float32", 4096))
    for _ in range(3):
        y = x * 2 + 1
        y.numpy()
    with held_until_waited(dev.default_stream), ps.trace() as t:
        for _ in range(5):
            y = x * 2 + 1
        y.numpy()
    assert t.launches == 10
    assert t.waits == 1
    assert_close(y, x.numpy() * 2 + 1)


def test_a_view_counts_for_its_own_bytes(driver: str) -> None:
    """A kernel that binds more than a view reads nothing that others are writing."""
    with ps.Device(driver) as dev:  # the validation layer takes a binding for an access
        x = dev.array(values("float32", 64))
        with ps.trace() as t:
            y = x[1:5] + x[9:13]
        (launch,) = [event for event in t.events if event.kind == "launch"]
        assert launch.nbytes == 16 * 3
        assert_close(y, x.numpy()[1:5] + x.numpy()[9:13])


def test_a_pending_value_is_a_number(dev: ps.Device) -> None:
    """It waits for the value; the array of `xp.mean` does not."""
    host = values("float32", 50)
    x = dev.array(host)
    assert_close(x - x.mean(), host - host.mean())
    assert_close(x.max() - x, host.max() - host)
    with ps.trace() as t:
        centred = x - dev.xp.mean(x)
    assert t.waits == 0
    assert_close(centred, host - host.mean())


def test_on_the_simulator() -> None:
    with ps.Device(driver="sim", seed=5) as dev:
        host = values("float32", 24).reshape(4, 6)
        x = dev.array(host)
        y = (x[::-1, 1:] * 2 - x[:, :5]) > 0.5
        assert_close(y, (host[::-1, 1:] * 2 - host[:, :5]) > 0.5)
        z = dev.array(values("int8", 9))
        z[2:7] += 1
        wanted = values("int8", 9)
        wanted[2:7] += 1
        assert_close(z, wanted)
        assert not dev.messages


def test_in_a_graph(dev: ps.Device) -> None:
    x, y = dev.array(values("float32", 32)), dev.empty(32)
    with dev.record(x=x) as graph:
        y[...] = x * 2 + 1
    other = dev.array(values("float32", 32, 9))
    graph.replay()
    assert_close(y, x.numpy() * 2 + 1)
    graph.replay(x=other)
    assert_close(y, other.numpy() * 2 + 1)
