"""What NumPy's users try: NumPy's own functions on arrays of a device, and methods by its names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.dtypes import as_dtype

A = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
Z = (A + 1j * A[::-1]).astype(np.complex64)

#: Each is called with a NumPy array and with an array of a device, and must give the same.
SAME: dict[str, Callable[[Any], Any]] = {
    "np.sum positional": lambda x: np.sum(x, 0),
    "np.sum": lambda x: np.sum(x, axis=(0, 1), keepdims=True),
    "np.max positional": lambda x: np.max(x, 1),
    "np.std ddof": lambda x: np.std(x, axis=0, ddof=1),
    "np.argmax": lambda x: np.argmax(x, 1),
    "np.sort": lambda x: np.sort(x, 0),
    "np.concatenate": lambda x: np.concatenate((x, x), 1),
    "np.stack": lambda x: np.stack([x, x], axis=2),
    "np.where": lambda x: np.where(x > 0, x, 0),
    "np.clip": lambda x: np.clip(x, -1, 1),
    "np.clip by keyword": lambda x: np.clip(x, a_min=-1, a_max=1),
    "np.round": lambda x: np.round(x, 1),
    "np.cumsum": lambda x: np.cumsum(x),
    "np.cumprod": lambda x: np.cumprod(x, axis=1),
    "np.squeeze": lambda x: np.squeeze(x[None]),
    "np.transpose": lambda x: np.transpose(x),
    "np.take": lambda x: np.take(x, [5, 0]),
    "np.repeat": lambda x: np.repeat(x, 2, axis=1),
    "np.roll": lambda x: np.roll(x, 1, 0),
    "np.diff": lambda x: np.diff(x, 1, 0),
    "np.trace": lambda x: np.trace(x),
    "np.copy": lambda x: np.copy(x),
    "np.shape": lambda x: np.array([*np.shape(x), np.ndim(x), np.size(x)]),
    "np.linalg": lambda x: np.linalg.matrix_norm(x),
    "np.fft": lambda x: np.abs(np.fft.rfft(x, axis=0)),
    "clip": lambda x: x.clip(max=0.5),
    "round": lambda x: (1000 * x).round(-2),
    "conj of real": lambda x: x.conj(),
    "imag of real": lambda x: x.imag,
    "diagonal": lambda x: x.diagonal(1),
    "diagonal of axes": lambda x: x[None].diagonal(0, 2, 1),
    "trace": lambda x: x.trace(),
    "searchsorted": lambda x: x.ravel()[:0].searchsorted(x.ravel()),
    "flatten": lambda x: x.T.flatten(),
    "tobytes": lambda x: np.frombuffer(x[:, 1].tobytes(), np.float32),
}


@pytest.mark.parametrize("what", SAME)
def test_as_in_numpy(what: str, dev: ps.Device) -> None:
    wanted, got = SAME[what](A), SAME[what](dev.array(A))
    assert got.shape == np.shape(wanted)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-4, atol=1e-5)


def test_parts_of_complex_numbers_share_their_bytes(dev: ps.Device) -> None:
    x, a = dev.array(Z), Z.copy()
    assert np.array_equal(x.conj().numpy(), a.conj())
    assert np.array_equal(x.conjugate().numpy(), a.conj())
    for y in (x, a):
        y.real[1] = 7
        y.imag[:, 2] = 0
    assert np.array_equal(x.numpy(), a)
    assert np.array_equal((x.imag[::2] * 2).numpy(), a.imag[::2] * 2)
    real = dev.array(A)
    assert real.real is real


def test_what_does_not_run_on_a_device_names_what_does(dev: ps.Device) -> None:
    x = dev.array(A)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: np.linalg.norm(x), r"np\.linalg\.norm does not run .* xp\.linalg\.vector_norm"),
        (lambda: np.dot(x, x), "x @ y"),
        (lambda: np.unique(x), r"xp\.unique_values"),
        (lambda: np.median(x), r"on the host: np\.median\(x\.numpy\(\)"),
        (lambda: np.sum(x, where=A > 0), r"dev\.xp\.sum, takes \(x, axis, dtype, keepdims\)"),
        (lambda: np.roll(x, 1, axis=0, wrong=1), "unexpected keyword"),
        (lambda: x.clip(0, 1, out=x), r"y\[\.\.\.\] = x\.clip"),
        (lambda: dev.array([1, 2]).round(-1), "decimals=-1"),
    ]
    for call, message in cases:
        with pytest.raises((ps.Unsupported, TypeError), match=message):
            call()


def test_habits_of_other_libraries(dev: ps.Device) -> None:
    x: Any = dev.array(A)
    for name, advice in (
        ("get", "x.numpy"),
        ("ptp", "x.max"),
        ("to", "x.to_device"),
        ("flat", "x.ravel"),
    ):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; use {advice}"):
            getattr(x, name)
    assert not hasattr(x, "nothing_like_it")
    for name in ("mean", "astype", "reshape", "tolist"):
        with pytest.raises(TypeError, match=rf"^Array\.{name}\(\) got an unexpected .* 'keepdim'"):
            getattr(x, name)(keepdim=True)
    with pytest.raises(ps.ShapeMismatch, match=r"not \(4, 3\) and \(3, 4\); .* use x @ y$"):
        x.T.dot(x)
    anything: Any = dev
    for name in ("arange", "sin", "where", "pi"):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; it is dev\.xp\.{name}$"):
            getattr(anything, name)
    for namespace in (dev.xp, dev.xp.linalg):
        with pytest.raises(AttributeError, match="has no 'sqrrt'") as caught:
            getattr(namespace, "sqrrt")  # noqa: B009
        assert (caught.value.name, caught.value.obj) == ("sqrrt", namespace)  # Python suggests
    for name in ("nothing_like_it", "__array_api_version__", "_repr_html_"):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'$"):
            getattr(anything, name)


def test_text_and_formats(dev: ps.Device) -> None:
    x = dev.array(A)
    assert str(x) == str(A)
    assert f"{x[0, 0]:.3f}" == f"{A[0, 0]:.3f}"
    assert str(x.max()) == f"{x.max()}" == str(A.max())  # a pending value is waited for
    assert "shape=(0, 3)" in repr(dev.zeros((0, 3)))
    huge = dev.ones(()).broadcast_to((10**6, 10**6))  # text reads what it shows alone
    assert str(huge).splitlines()[0] == repr(huge).splitlines()[0][6:].replace(",", "")
    with pytest.raises(ps.ArgumentError, match="is for one number"):
        f"{x:.3f}"


def test_axes_of_one_element_before_those_assigned_to(dev: ps.Device) -> None:
    x, a = dev.array(A), A.copy()
    x[0], a[0] = dev.array(A[1:2]), A[1:2]
    x[1, 2:], a[1, 2:] = A[None, :1, :2], A[None, :1, :2]
    assert np.array_equal(x.numpy(), a)
    with pytest.raises(ps.ShapeMismatch, match="broadcast"):
        x[0] = dev.array(A[1:])


def test_bad_ranges(dev: ps.Device) -> None:
    xp = dev.xp
    x = xp.arange(6.0)
    assert xp.linspace(x.min(), x[-1], 3).tolist() == [0, 2.5, 5]
    for bad in (np.nan, np.inf):
        with pytest.raises(ps.InvalidValue, match="bounds must be finite"):
            xp.arange(0, bad)
    with pytest.raises(ps.OutOfMemory):
        xp.arange(2**70)
    with pytest.raises(ps.ArgumentError, match="not str"):
        xp.linspace("a", 1, 3)
    for call in (lambda n: xp.linspace(0, 1, n), xp.eye, lambda n: xp.eye(3, k=n)):
        with pytest.raises(ps.ArgumentError, match=r"takes an integer, not 2\.5"):
            call(2.5)
    with pytest.raises(ps.ArgumentError, match="brings it to the device"):
        dev.random.default_rng(1).permutation(np.arange(3))
    with pytest.raises(ps.InvalidValue, match="larger than any float"):
        xp.linspace(0, 10**400, 3)


def test_numbers_that_an_array_is_made_of(dev: ps.Device) -> None:
    """Python's, NumPy's with their dtype, pending ones, and arrays without dimensions."""
    xp = dev.xp
    x = xp.arange(6.0)
    for number in (np.int8(5), np.array(5), x.argmax(), x[-1], x.max()):
        made = xp.full(2, number)
        assert made.tolist() == [5, 5]
        assert made.dtype == np.asarray(number).dtype
        assert xp.arange(number).tolist() == [0, 1, 2, 3, 4]
    for bad in ("a", None, np.datetime64("2020"), [1]):
        with pytest.raises(ps.ArgumentError, match="is not a number"):
            xp.full(2, bad)


#: Calls with an argument of a wrong type, and what the error names.
WRONG: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "roll": (lambda xp, x: xp.roll(x, 1.5), "roll takes an integer"),
    "tile": (lambda xp, x: xp.tile(x, None), "tile takes an integer"),
    "diff": (lambda xp, x: xp.diff(x, n="a"), "diff takes an integer"),
    "matrix_power": (lambda xp, x: xp.linalg.matrix_power(x[:, :3], 0.5), "takes an integer"),
    "diagonal": (lambda xp, x: x.diagonal(None), "diagonal, for an offset"),
    "cross": (lambda xp, x: xp.linalg.cross(x[:, :3], x[:, :3], axis="a"), "cross, for an axis"),
    "swapaxes": (lambda xp, x: x.swapaxes(0, 2), r"swapaxes\(0, 2\)"),
    "round": (lambda xp, x: x.round("a"), "round takes an integer"),
    "fft": (lambda xp, x: xp.fft.fft(x, n=2.5), "fft.fft"),
    "fftn": (lambda xp, x: xp.fft.fftn(x, s=2.5), "not 2.5"),
    "fftfreq": (lambda xp, x: xp.fft.fftfreq(2.5), "fft.fftfreq takes an integer"),
    "fftfreq of 0": (lambda xp, x: xp.fft.fftfreq(0), "n=0 samples; n is 1 or more"),
    "rfftfreq of -4": (lambda xp, x: xp.fft.rfftfreq(-4), "n=-4 samples"),
    "fftfreq of 10**400": (lambda xp, x: xp.fft.fftfreq(10**400), "asked for 40,000,.* bytes"),
    "rfftfreq of 10**400": (lambda xp, x: xp.fft.rfftfreq(10**400), "asked for 20,000,.* bytes"),
    "fftfreq of one place": (lambda xp, x: xp.fft.fftfreq(4, d=0), "samples d=0 apart"),
    "fftshift": (lambda xp, x: xp.fft.fftshift(x, axes=9), "axis 9"),
    "concat": (lambda xp, x: xp.concat(5), "concat takes a list of arrays, not 5"),
    "sum": (lambda xp, x: xp.sum(5), "sum takes an array of a device"),
    "mean": (lambda xp, x: xp.mean([1.0]), "mean takes an array of a device"),
    "argmax": (lambda xp, x: xp.argmax(None), "argmax takes an array of a device"),
    "clip": (lambda xp, x: xp.clip(5, 0, 1), "clip takes an array of a device"),
    "zeros_like": (lambda xp, x: xp.zeros_like(5), "zeros_like takes an array of a device"),
    "var": (lambda xp, x: xp.var(x, correction=10**400), "larger than any float"),
    "vector_norm": (lambda xp, x: xp.linalg.vector_norm(x, ord=None), "ord= is a number"),
    "vector_norm of arrays": (lambda xp, x: xp.linalg.vector_norm(x, ord=x), "ord= is a number"),
    "matrix_norm": (lambda xp, x: xp.linalg.matrix_norm(x, ord=x), "ord= is a number"),
    "matrix_norm of NumPy's": (lambda xp, x: xp.linalg.matrix_norm(x, ord=A), "ord= is a number"),
    "matrix_norm of a pending value": (
        lambda xp, x: xp.linalg.matrix_norm(x, ord=(x * 0).sum() + 3),
        "of order 3",
    ),
    "normal": (lambda xp, x: xp.device.random.default_rng(1).normal("a"), "loc= is a number"),
    "spawn": (lambda xp, x: xp.device.random.default_rng(1).spawn(10**30), "spawn of 1000"),
    "shuffle": (lambda xp, x: xp.device.random.default_rng(1).shuffle([1]), "shuffle takes"),
    "broadcast_shapes": (lambda xp, x: xp.broadcast_shapes(1.5), "a shape is"),
    "reshape": (lambda xp, x: xp.reshape(x, None, copy=False), "a shape is"),
    "65 dimensions": (lambda xp, x: x[(None,) * 63], "65 dimensions"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_named(what: str, dev: ps.Device) -> None:
    call, match = WRONG[what]
    with pytest.raises(ps.Error, match=match):
        call(dev.xp, dev.array(A))


def test_differences_of_more_than_there_are(dev: ps.Device) -> None:
    assert dev.xp.diff(dev.array(A), n=10**30).shape == (3, 0)


def test_what_no_element_can_equal(dev: ps.Device) -> None:
    x = dev.array(A)
    assert "a" not in x
    assert object() not in x
    assert A[1, 2].item() in x


def test_whole_reductions_of_any_dtype(dev: ps.Device) -> None:
    """Complex numbers and bfloat16 have no pending values: their reductions are arrays."""
    z = dev.array(Z)
    assert np.allclose(complex(z.sum()), Z.sum(), rtol=1e-5)
    assert np.allclose((z - z.mean()).numpy(), Z - Z.mean(), atol=1e-6)
    assert z.any()
    assert not (z * 0).any()
    small = dev.array(A).astype(as_dtype("bfloat16"))
    assert float(small.max()) == float(A.astype(small.dtype).max())
    with pytest.raises(ps.DtypeMismatch, match="no order"):
        z.max()
    assert round(dev.array(A).max(), 2) == round(A.max(), 2)
    assert dev.array(A).max().item() == A.max().item()


def test_numpys_names_of_the_namespace(dev: ps.Device) -> None:
    xp = dev.xp
    for part, name, advice in (
        (xp, "concatenate", "Use xp.concat"), (xp, "power", "Use xp.pow"),
        (xp, "unique", "Use xp.unique_values"), (xp, "random", "Use dev.random.default_rng"),
        (xp.linalg, "norm", "Use xp.linalg.vector_norm"), (xp, "histogram", "Array API standard"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=advice):
            getattr(part, name)
    (rows, columns), wanted = np.where(dev.array(A) > 0), np.where(A > 0)
    assert np.array_equal([rows.numpy(), columns.numpy()], wanted)
