"""matmul, tensordot and vecdot of the namespace: promotion, axes, operators, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import penstock as ps


def close(got: ps.Array, wanted: Any, tolerance: float = 1e-4) -> None:
    assert got.shape == np.shape(wanted)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=tolerance, atol=tolerance)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    made = np.random.default_rng(shape).integers(-9, 9, shape).astype(dtype)
    return made + made[::-1] * dtype(1j) if np.dtype(dtype).kind == "c" else made


def test_operators(dev: ps.Device) -> None:
    a, b = numbers(3, 4), numbers(4, 5)
    x, y = dev.array(a), dev.array(b)
    close(x @ y, a @ b)
    close(dev.xp.matmul(x, y), a @ b)
    close(np.matmul(x, y), a @ b)
    square = dev.array(numbers(4, 4))
    wanted = a @ square.numpy()
    x @= square
    close(x, wanted)
    assert np.matmul(square, square, out=square) is square  # which is read before it is written
    close(square, numbers(4, 4) @ numbers(4, 4))
    column = dev.ones(4)
    with pytest.raises(ps.ShapeMismatch, match=r"matmul: the result has shape \(4,\)"):
        np.matmul(square, column, out=square)
    with pytest.raises(ps.ShapeMismatch, match=r"in place: the result has shape \(4,\)"):
        square @= column


def test_promotion(dev: ps.Device) -> None:
    a, b = numbers(3, 4, dtype=np.int8), numbers(4, 2)
    made = dev.array(a) @ dev.array(b)
    assert made.dtype == np.float32
    close(made, a @ b)
    made = dev.array(a) @ dev.array(b.astype(np.int32))
    assert made.dtype == np.int32
    close(made, a @ b)
    with pytest.raises(ps.ArgumentError, match="matmul takes arrays"):
        dev.xp.matmul(dev.array(a), 3)
    with pytest.raises(ps.DtypeMismatch, match="int64 and uint64"):
        dev.xp.matmul(dev.ones((2, 2), np.int64), dev.ones((2, 2), np.uint64))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.complex64])
@pytest.mark.parametrize(
    ("left", "right", "axes"),
    [
        ((3, 4), (4, 5), 1), ((3, 4), (3, 4), 2), ((3,), (4,), 0), ((), (2, 3), 0),
        ((2, 3, 4), (4, 3, 5), ([1, 2], [1, 0])), ((2, 3, 4), (5, 4), ((-1,), (-1,))),
        ((2, 0), (0, 3), 1), ((2, 3), (3, 0), 1),
    ],
)  # fmt: skip
def test_tensordot(
    dtype: Any, left: tuple[int, ...], right: tuple[int, ...], axes: Any, dev: ps.Device
) -> None:
    a, b = numbers(*left, dtype=dtype) if left else dtype(3), numbers(*right, dtype=dtype)
    made = dev.xp.tensordot(dev.array(np.asarray(a, dtype)), dev.array(b), axes=axes)
    assert made.dtype == dtype
    close(made, np.tensordot(a, b, axes=axes))


def test_vecdot(dev: ps.Device) -> None:
    a, b = numbers(2, 5, 3), numbers(5, 3)
    close(dev.xp.vecdot(dev.array(a), dev.array(b)), np.vecdot(a, b))
    close(dev.xp.vecdot(dev.array(a), dev.array(b), axis=-2), np.vecdot(a, b, axis=-2))
    c, d = numbers(4, 3, dtype=np.complex64), numbers(4, 3, dtype=np.complex64) * 2j
    close(dev.xp.vecdot(dev.array(c), dev.array(d)), np.vecdot(c, d))


def test_transposes_are_views(dev: ps.Device) -> None:
    x = dev.array(numbers(2, 3, 4))
    with ps.trace() as trace:
        made = dev.xp.matrix_transpose(x)
    trace.expect(launches=0, copies=0)
    close(made, x.numpy().swapaxes(-1, -2))
    with pytest.raises(ps.ShapeMismatch, match="no matrix"):
        dev.xp.matrix_transpose(x[0, 0])


def test_errors(dev: ps.Device) -> None:
    xp, x = dev.xp, dev.ones((2, 3))
    with pytest.raises(ps.ShapeMismatch, match="whose sizes differ"):
        xp.tensordot(x, x, axes=1)
    with pytest.raises(ps.ShapeMismatch, match="over 3 axes"):
        xp.tensordot(x, x, axes=3)
    for axes in (2.0, (1,), (0, 0)):
        with pytest.raises(ps.ArgumentError, match="the axes of each array"):
            xp.tensordot(x, x, axes=axes)
    with pytest.raises(ps.ShapeMismatch, match="axis 2 of"):
        xp.vecdot(x, x, axis=2)
    with pytest.raises(ps.ShapeMismatch, match="whose sizes differ"):
        xp.vecdot(x, dev.ones((3, 2)))
    assert math.isfinite(float(xp.vecdot(x[0], x[1])))
