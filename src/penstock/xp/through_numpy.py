"""Functions that NumPy computes on the host, because a kernel of theirs is not worth its code.

NumPy reads the device's own bytes (`Array.view`), which waits once for the work that writes them,
and the receipt names the caller's line; the result is written to new arrays of the device. Only the
extensions `linalg` and `fft` do this.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import Dtype
from penstock.errors import ArgumentError, DtypeMismatch, InvalidValue
from penstock.xp.axes import check_arrays
from penstock.xp.numpy_calls import no_attribute
from penstock.xp.promotion import DEFAULT_FLOAT

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace

Host = npt.NDArray[Any]


class Extension:
    """A part of the standard with a name of its own, such as `xp.linalg`."""

    def __init__(self, xp: Namespace, name: str, functions: tuple[Callable[..., Any], ...]) -> None:
        self.__name__ = f"{xp.__name__}.{name}"
        for function in functions:
            setattr(self, function.__name__, MethodType(function, xp))

    def __repr__(self) -> str:
        return f"<{self.__name__}>"

    def __getattr__(self, name: str) -> Any:
        """NumPy's names that the standard has not: the error names what does the same."""
        raise no_attribute(self.__name__, name, self)


def as_floats(xp: Namespace, what: str, x: Array, *, small: bool = False) -> Array:
    """An array of floats that NumPy's functions take; integers become the default float.

    With `small`, also of those that only the device computes with.
    """
    check_arrays(xp, what, x)
    if x.dtype.kind in "iu":
        return xp.device.operations.cast(x, DEFAULT_FLOAT)
    known = ("float32", "float64", "complex64", "complex128")
    if x.dtype.name not in (*known, *(("float16", "bfloat16") if small else ())):
        raise DtypeMismatch(f"{what} of {x.dtype}; convert it first: x.astype('float32')")
    return x


def on_host(
    xp: Namespace, what: str, function: Callable[..., Any], *arrays: Array
) -> tuple[Array, ...]:
    """Call a function of NumPy arrays, which returns one or several, on the bytes of arrays."""
    # The operand that was computed last is most often the second, and its wait is for both.
    views = [x.view() for x in reversed(arrays)][::-1]
    try:
        found = function(*views)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise InvalidValue(f"{what}: {error}") from error
    except (OverflowError, TypeError) as error:
        raise ArgumentError(f"{what}: {error}") from error
    finally:
        views.clear()  # the device may write the bytes again
    several = found if isinstance(found, tuple) else (found,)
    return tuple(xp.device.array(np.asarray(each, order="C")) for each in several)


def complex_of(dtype: Dtype) -> Dtype:
    """The complex dtype with the precision of a float one."""
    return np.dtype(np.complex128 if dtype.name in ("float64", "complex128") else np.complex64)


def real_of(dtype: Dtype) -> Dtype:
    """The real dtype with the precision of a complex one."""
    return np.dtype(np.float64 if dtype.name in ("float64", "complex128") else np.float32)
