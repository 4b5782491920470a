"""What users hand to transfers, checked: nothing is cast, cut or bent silently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import (
    ArgumentError,
    DtypeMismatch,
    Error,
    InvalidValue,
    ReadOnly,
    ShapeMismatch,
)

if TYPE_CHECKING:
    from penstock.array import Array

Host = npt.NDArray[Any]


def checked_source(array: Array, source: npt.ArrayLike) -> Host:
    """The caller's data, checked. Lists and scalars are converted; arrays are never cast."""
    data = source if isinstance(source, np.ndarray) else as_array(source, array.dtype)
    if data.dtype != array.dtype:
        raise DtypeMismatch(
            f"array {array.name!r} is {array.dtype}, the source is {data.dtype}; nothing is cast "
            f"silently: pass source.astype({str(array.dtype)!r})"
        )
    if data.shape != array.shape:
        raise ShapeMismatch(
            f"array {array.name!r} has shape {array.shape}, the source has {data.shape}"
        )
    return data


def as_array(source: npt.ArrayLike, dtype: npt.DTypeLike | None) -> Host:
    """NumPy's array of a list or scalar, with our own errors."""
    try:
        found = np.asarray(source)
        if dtype is None or found.dtype == dtype:
            return found
        wanted = np.dtype(dtype)
        if wanted.kind in "iub" and found.dtype.kind in "fc" and found.size:
            raise DtypeMismatch(f"{wanted} cannot hold {found.dtype} without loss")
        if found.dtype.kind == "O" and wanted.kind in "fc":
            raise DtypeMismatch(f"cannot make an array of {wanted} from objects")
        return np.asarray(source, dtype)
    except Error:
        raise
    except OverflowError as error:
        raise InvalidValue(f"the source does not fit {dtype}: {error}") from error
    except (TypeError, ValueError) as error:
        kind = ShapeMismatch if "inhomogeneous" in str(error) else DtypeMismatch
        raise kind(f"cannot make an array of {dtype or 'one dtype'} from it: {error}") from error


def check_out(array: Array, out: Host) -> None:
    if not isinstance(out, np.ndarray):
        raise ArgumentError(f"out= takes a NumPy array, not {type(out).__name__}")
    if out.dtype != array.dtype:
        raise DtypeMismatch(f"array {array.name!r} is {array.dtype}, out is {out.dtype}")
    if out.shape != array.shape:
        raise ShapeMismatch(f"array {array.name!r} has shape {array.shape}, out has {out.shape}")
    if not out.flags.writeable:
        raise ReadOnly("out= is a read-only NumPy array")


def one_element(array: Array, value: Any) -> Host:
    """One element of the array's dtype; refuses what NumPy would have to bend."""
    try:
        with np.errstate(all="raise"):
            element = np.asarray(value)
            if element.shape != ():
                raise ShapeMismatch(f"fill() takes one value, not an array of {element.shape}")
            if element.dtype.kind == "O" and array.dtype.kind in "biufc":
                raise DtypeMismatch(f"cannot fill {array.dtype} with {value!r}")
            numbers = element.dtype.kind in "iub" and array.dtype.kind in "iu"
            if (
                isinstance(value, np.generic)
                and not numbers
                and not np.can_cast(element.dtype, array.dtype, "same_kind")
            ):
                raise DtypeMismatch(f"cannot fill {array.dtype} with {value!r} of {element.dtype}")
            if array.dtype.kind in "iu" and element.dtype.kind in "fc":
                raise DtypeMismatch(f"cannot fill {array.dtype} with {value!r}")
            if array.dtype.kind in "iu" and element.dtype.kind in "iub":
                value = int(element)  # so that NumPy refuses what does not fit
            return np.array(value, array.dtype)
    except (OverflowError, FloatingPointError) as error:
        raise InvalidValue(f"{value!r} does not fit {array.dtype}") from error
    except (TypeError, ValueError) as error:
        if isinstance(error, Error):
            raise
        raise DtypeMismatch(f"cannot fill {array.dtype} with {value!r}") from error


def fill_word(array: Array, element: Host) -> int | None:
    """The 4-byte word whose repetition fills the array, if the device can fill it so."""
    if not array.contiguous or array.region.lo % 4 or array.nbytes % 4:
        return None
    pattern = element.tobytes()
    if len(pattern) < 4:
        pattern *= 4 // len(pattern) if 4 % len(pattern) == 0 else 1
    if len(pattern) % 4 or pattern != pattern[:4] * (len(pattern) // 4):
        return None
    return int.from_bytes(pattern[:4], "little")
