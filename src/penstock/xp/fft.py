"""`xp.fft`: Fourier transforms by the Array API standard.

The transforms are NumPy's, on the device's own bytes: each waits once (`xp.through_numpy`). They
keep the precision of their input: float32 gives complex64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import as_float, as_integer, as_shape
from penstock.errors import DtypeMismatch, InvalidValue
from penstock.xp.axes import axes_of
from penstock.xp.construction import check_device, checked_dtype
from penstock.xp.promotion import DEFAULT_FLOAT
from penstock.xp.through_numpy import Host, as_floats, complex_of, on_host, real_of

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.xp.namespace import Namespace

Norm = Literal["backward", "ortho", "forward"]
Axes = Sequence[int] | None


def fft(
    xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> Array:
    """The transform along an axis. Waits once."""
    return _transform(xp, np.fft.fft, x, n, axis, norm)


def ifft(
    xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> Array:
    """The inverse of `fft`. Waits once."""
    return _transform(xp, np.fft.ifft, x, n, axis, norm)


def fftn(
    xp: Namespace, x: Array, /, *, s: Sequence[int] | None = None, axes: Axes = None,
    norm: Norm = "backward",
) -> Array:  # fmt: skip
    """The transform along several axes. Waits once."""
    return _transform(xp, np.fft.fftn, x, s, axes, norm)


def ifftn(
    xp: Namespace, x: Array, /, *, s: Sequence[int] | None = None, axes: Axes = None,
    norm: Norm = "backward",
) -> Array:  # fmt: skip
    """The inverse of `fftn`. Waits once."""
    return _transform(xp, np.fft.ifftn, x, s, axes, norm)


def rfft(
    xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> Array:
    """The first half of the transform of real numbers; the other half mirrors it. Waits once."""
    return _transform(xp, np.fft.rfft, x, n, axis, norm, takes="real")


def irfft(
    xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> Array:
    """The inverse of `rfft`. Waits once."""
    return _transform(xp, np.fft.irfft, x, n, axis, norm, returns="real")


def rfftn(
    xp: Namespace, x: Array, /, *, s: Sequence[int] | None = None, axes: Axes = None,
    norm: Norm = "backward",
) -> Array:  # fmt: skip
    """The transform of real numbers along several axes, halved along the last. Waits once."""
    return _transform(xp, np.fft.rfftn, x, s, axes, norm, takes="real")


def irfftn(
    xp: Namespace, x: Array, /, *, s: Sequence[int] | None = None, axes: Axes = None,
    norm: Norm = "backward",
) -> Array:  # fmt: skip
    """The inverse of `rfftn`. Waits once."""
    return _transform(xp, np.fft.irfftn, x, s, axes, norm, returns="real")


def hfft(
    xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> Array:
    """The transform, real, of one half of numbers that mirror each other. Waits once."""
    return _transform(xp, np.fft.hfft, x, n, axis, norm, returns="real")


def ihfft(
    xp: Namespace, x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward"
) -> Array:
    """The inverse of `hfft`. Waits once."""
    return _transform(xp, np.fft.ihfft, x, n, axis, norm, takes="real")


def fftfreq(
    xp: Namespace, n: int, /, *, d: float = 1.0, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """The frequencies of `fft`'s elements, for samples `d` apart."""
    return _frequencies(xp, np.fft.fftfreq, n, d, dtype, device)


def rfftfreq(
    xp: Namespace, n: int, /, *, d: float = 1.0, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """The frequencies of `rfft`'s elements, for samples `d` apart."""
    return _frequencies(xp, np.fft.rfftfreq, n, d, dtype, device)


def fftshift(xp: Namespace, x: Array, /, *, axes: int | Axes = None) -> Array:
    """The frequency 0 in the middle instead of first. Runs on the device."""
    every = _axes(x, axes)
    made: Array = xp.roll(x, tuple(x.shape[axis] // 2 for axis in every), axis=every)
    return made


def ifftshift(xp: Namespace, x: Array, /, *, axes: int | Axes = None) -> Array:
    """The inverse of `fftshift`. Runs on the device."""
    every = _axes(x, axes)
    made: Array = xp.roll(x, tuple(-(x.shape[axis] // 2) for axis in every), axis=every)
    return made


def _axes(x: Array, axes: int | Axes) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(x.ndim))
    return axes_of(tuple(axes) if isinstance(axes, Sequence) else axes, x.ndim, "fftshift")


def _transform(
    xp: Namespace, function: Callable[..., Host], x: Array, size: Any, axis: Any, norm: Norm, *,
    takes: str = "any", returns: str = "complex",
) -> Array:  # fmt: skip
    name = f"fft.{function.__name__}"
    if norm not in ("backward", "ortho", "forward"):
        raise InvalidValue(f"{name} with norm={norm!r}; choose 'backward', 'ortho' or 'forward'")
    x = as_floats(xp, name, x)
    if takes == "real" and x.dtype.kind == "c":
        raise DtypeMismatch(f"{name} takes real numbers, not {x.dtype}; use xp.real(x), or fft")
    kind = real_of(x.dtype) if returns == "real" else complex_of(x.dtype)
    if size is not None and axis is None:
        axis = tuple(range(x.ndim - len(as_shape(size)), x.ndim))

    def transformed(a: Host) -> Host:
        return function(a, size, axis, norm).astype(kind, copy=False)

    return on_host(xp, name, transformed, x)[0]


def _frequencies(
    xp: Namespace, function: Callable[..., Host], n: int, d: float, dtype: npt.DTypeLike | None,
    device: Device | None,
) -> Array:  # fmt: skip
    check_device(xp, device)
    kind = checked_dtype(xp, dtype, DEFAULT_FLOAT)
    if kind.kind != "f":
        raise DtypeMismatch(f"fft.{function.__name__} of {kind}; frequencies are floats")
    name = f"fft.{function.__name__}"
    count, spacing = as_integer(n, name), as_float(d, f"{name}: d=")
    if count < 1:
        raise InvalidValue(f"{name} of n={count} samples; n is 1 or more")
    if not spacing:
        raise InvalidValue(f"{name} of samples d=0 apart; d is their distance, not 0")
    size = count if function is np.fft.fftfreq else count // 2 + 1
    made = xp.device.empty(size, kind)  # first: if there is no room, nothing is computed
    made.write(function(count, spacing).astype(kind))
    return made


FUNCTIONS = (
    fft, ifft, fftn, ifftn, rfft, irfft, rfftn, irfftn, hfft, ihfft, fftfreq, rfftfreq, fftshift,
    ifftshift,
)  # fmt: skip
