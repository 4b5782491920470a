"""The extensions linalg and fft: NumPy's values, the standard's dtypes, one wait or none."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.xp.namespace import Namespace
from tests.gate import held_until_waited

LINALG = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv",
    "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv",
    "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip
FFT = [
    "fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn", "irfftn", "hfft", "ihfft",
    "fftfreq", "rfftfreq", "fftshift", "ifftshift",
]  # fmt: skip
DTYPES = ["float32", "float64", "complex64", "complex128"]

with_sums = pytest.mark.skipif(not hasattr(Namespace, "sum"), reason="the namespace has no sum")


def numbers(dtype: str, *shape: int) -> Any:
    rng = np.random.default_rng(shape)
    made = rng.standard_normal(shape)
    return (made + 1j * rng.standard_normal(shape) if "c" in dtype else made).astype(dtype)


def close(got: ps.Array, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    tolerance = 1e-10 if wanted.dtype.name in ("float64", "complex128") else 2e-3
    np.testing.assert_allclose(got.numpy(), wanted, rtol=tolerance, atol=tolerance)


def test_every_name_of_the_standard(dev: ps.Device) -> None:
    for extension, names in ((dev.xp.linalg, LINALG), (dev.xp.fft, FFT)):
        for name in names:
            parameters = [*inspect.signature(getattr(extension, name)).parameters.values()]
            assert parameters[0].kind is inspect.Parameter.POSITIONAL_ONLY
            assert "xp" not in [each.name for each in parameters]
            assert getattr(extension, name).__doc__
    assert dev.xp.linalg.matmul(dev.ones((2, 2)), dev.ones((2, 2))).numpy().tolist() == [[2, 2]] * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_decompositions(dtype: str, dev: ps.Device) -> None:
    linalg = dev.xp.linalg
    a = numbers(dtype, 2, 4, 4)
    hermitian = a @ a.conj().swapaxes(-1, -2) + 4 * np.eye(4, dtype=dtype)
    tall, b = numbers(dtype, 2, 5, 3), numbers(dtype, 2, 4, 3)
    x, h, t = dev.array(a), dev.array(hermitian), dev.array(tall)
    close(linalg.inv(x), np.linalg.inv(a))
    close(linalg.det(x), np.linalg.det(a))
    close(linalg.solve(x, dev.array(b)), np.linalg.solve(a, b))
    close(linalg.solve(x[0], dev.array(b[0, :, 0])), np.linalg.solve(a[0], b[0, :, 0]))
    close(linalg.cholesky(h), np.linalg.cholesky(hermitian))
    close(linalg.cholesky(h, upper=True), np.linalg.cholesky(hermitian, upper=True))
    close(linalg.eigvalsh(h), np.linalg.eigvalsh(hermitian))
    close(linalg.svdvals(t), np.linalg.svd(tall, compute_uv=False))
    close(linalg.pinv(t), np.linalg.pinv(tall))
    close(linalg.matrix_rank(t), np.linalg.matrix_rank(tall))
    assert linalg.matrix_rank(dev.array(np.ones((3, 3), dtype))).item() == 1
    sign, size = linalg.slogdet(x)
    close(sign, np.linalg.slogdet(a).sign)
    close(size, np.linalg.slogdet(a).logabsdet)
    values, vectors = linalg.eigh(h)
    close(vectors, hermitian @ vectors.numpy() / values.numpy()[..., None, :])
    for mode in ("reduced", "complete"):
        found = linalg.qr(t, mode=mode)
        np.testing.assert_allclose(found.Q.numpy() @ found.R.numpy(), tall, atol=1e-4)
    for full in (False, True):
        u, s, vh = linalg.svd(t, full_matrices=full)
        product = u.numpy()[..., :3] * s.numpy()[..., None, :] @ vh.numpy()
        np.testing.assert_allclose(product, tall, atol=1e-4)
    complex_ = "complex128" if dtype in ("float64", "complex128") else "complex64"
    values, vectors = linalg.eig(x)
    assert values.dtype == vectors.dtype == complex_
    close(vectors, (a @ vectors.numpy() / values.numpy()[..., None, :]).astype(complex_))
    assert linalg.eigvals(h).dtype == complex_


@pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)
def test_what_runs_on_the_device(dev: ps.Device) -> None:
    """Launches, no host copies, and no wait."""
    linalg = dev.xp.linalg
    a, v = numbers("float32", 2, 4, 4), numbers("float32", 5, 3)
    x, y = dev.array(a), dev.array(v)
    with held_until_waited(dev.default_stream), ps.trace() as trace:
        cross = linalg.cross(y, 2 * y + 1)
        outer = linalg.outer(y[0], y[1])
        power = linalg.matrix_power(x, 5)
        one = linalg.matrix_power(x, 0)
        diagonals = [linalg.diagonal(x[0, :, :3], offset=n) for n in range(-4, 5)]
    assert not trace.waits
    assert {event.path for event in trace.events if event.kind == "copy"} <= {"device"}
    close(cross, np.cross(v, 2 * v + 1))
    close(outer, np.outer(v[0], v[1]))
    close(power, np.linalg.matrix_power(a, 5))
    close(one, np.broadcast_to(np.eye(4, dtype=np.float32), a.shape))
    for n, found in enumerate(diagonals, -4):
        close(found, np.diagonal(a[0, :, :3], n))
    close(linalg.matrix_power(x, -2), np.linalg.matrix_power(np.linalg.inv(a), 2))
    close(linalg.cross(y.T, 3 * y.T + 2, axis=0), np.cross(v.T, 3 * v.T + 2, axis=0))
    three = dev.array(numbers("float32", 3))
    close(linalg.cross(y, three), np.cross(v, three.numpy()))


@with_sums
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_norms_and_traces(dtype: str, dev: ps.Device) -> None:
    linalg = dev.xp.linalg
    a = numbers(dtype, 3, 4, 5)
    x = dev.array(a)
    for order in (0, 1, 2, 3, 0.5, np.inf, -np.inf, -1):
        for axis in (None, 0, (1, 2)):
            for keepdims in (False, True):
                wanted = np.linalg.vector_norm(a, axis=axis, keepdims=keepdims, ord=order)
                close(linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=order), wanted)
    for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        for keepdims in (False, True):
            wanted = np.linalg.matrix_norm(a, keepdims=keepdims, ord=order)
            close(linalg.matrix_norm(x, keepdims=keepdims, ord=order), wanted)
    for order in (x.size - dev.ones(59).sum(), np.array(1), dev.ones(())):  # as NumPy's numbers
        close(linalg.matrix_norm(x, ord=order), np.linalg.matrix_norm(a, ord=1))
        close(linalg.vector_norm(x, ord=order), np.linalg.vector_norm(a, ord=1))
    close(linalg.trace(x, offset=1), np.linalg.trace(a, offset=1))
    small = dev.array(np.full((3, 3), 100, np.int8))
    assert linalg.trace(small).item() == 300


def test_numpy_is_waited_for_once(dev: ps.Device) -> None:
    host = numbers("float32", 4, 4)
    x, y = dev.array(host), dev.array(host)
    for function in (
        lambda: dev.xp.linalg.inv(x @ y),
        lambda: dev.xp.linalg.solve(x @ y, y @ x),
        lambda: dev.xp.fft.fft(x @ y),
    ):
        with held_until_waited(dev.default_stream), ps.trace() as trace:
            function()
        assert trace.waits == 1
        reason = next(event for event in trace.events if event.kind == "wait")
        assert "test_linalg.py" in reason.where


def test_arrays_are_free_again(dev: ps.Device) -> None:
    """NumPy's views end with the call: device work writes the same bytes afterwards."""
    x = dev.array(numbers("float32", 4, 4))
    dev.xp.linalg.svd(x)
    with ps.trace() as trace:
        x.fill(1)
    trace.expect(renames=0, waits=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_transforms(dtype: str, dev: ps.Device) -> None:
    fft = dev.xp.fft
    a = numbers(dtype, 3, 8)
    x = dev.array(a)
    for name in ("fft", "ifft", "hfft", "irfft"):
        for options in ({}, {"n": 5}, {"axis": 0}, {"norm": "ortho"}, {"n": 9, "norm": "forward"}):
            close(getattr(fft, name)(x, **options), getattr(np.fft, name)(a, **options))
    for name in ("fftn", "ifftn", "irfftn"):
        for options in ({}, {"axes": (0, 1)}, {"s": (4, 6), "axes": (0, 1)}, {"axes": (1,)}):
            close(getattr(fft, name)(x, **options), getattr(np.fft, name)(a, **options))
    if "c" in dtype:
        with pytest.raises(ps.DtypeMismatch, match=r"takes real numbers"):
            fft.rfft(x)
        return
    for name in ("rfft", "rfftn", "ihfft"):
        close(getattr(fft, name)(x), getattr(np.fft, name)(a))


def test_shifts_and_frequencies(dev: ps.Device) -> None:
    fft, a = dev.xp.fft, numbers("float32", 3, 4)
    for axes in (None, 0, (0, 1)):
        close(fft.fftshift(dev.array(a), axes=axes), np.fft.fftshift(a, axes))
        close(fft.ifftshift(dev.array(a), axes=axes), np.fft.ifftshift(a, axes))
    close(fft.fftfreq(5, d=0.1), np.fft.fftfreq(5, 0.1).astype(np.float32))
    close(fft.rfftfreq(6), np.fft.rfftfreq(6).astype(np.float32))


def test_errors(dev: ps.Device) -> None:
    linalg, x = dev.xp.linalg, dev.ones((2, 3))
    with pytest.raises(ps.ShapeMismatch, match="no square matrix"):
        linalg.inv(x)
    with pytest.raises(ps.InvalidValue, match=r"linalg.inv: Singular"):
        linalg.inv(dev.zeros((2, 2)))
    with pytest.raises(ps.DtypeMismatch, match="float16"):
        linalg.svd(dev.ones((2, 2), np.float16))
    with pytest.raises(ps.ShapeMismatch, match=r"linalg\.solve"):
        linalg.solve(dev.ones((2, 2)), x.T)
    with pytest.raises(ps.ArgumentError, match="ndarray"):
        linalg.det(np.ones((2, 2)))
    with pytest.raises(ps.InvalidValue, match="order"):
        linalg.matrix_norm(x, ord="trace")
    with pytest.raises(ps.InvalidValue, match="norm='none'"):
        dev.xp.fft.fft(x, norm="none")
    assert linalg.det(dev.array(np.array([[1, 2], [3, 4]]))).item() == pytest.approx(-2)
