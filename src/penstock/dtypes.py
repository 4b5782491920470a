"""Checks and normalizes the dtypes, shapes, counts, numbers and names that users pass."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import ArgumentError, DtypeMismatch, InvalidValue

Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
_MOST_DIMENSIONS = 64
Dtype: TypeAlias = np.dtype[Any]


def as_dtype(dtype: npt.DTypeLike) -> Dtype:
    """A NumPy dtype of fixed size in native byte order. Accepts names such as "bfloat16", too."""
    if isinstance(dtype, str) and dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        dtype = getattr(ml_dtypes, dtype)
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise DtypeMismatch(f"{dtype!r} is not a dtype") from error
    if kind.hasobject or kind.itemsize == 0 or kind.kind in "SUT":
        raise DtypeMismatch(
            f"arrays of dtype {kind} cannot live on a device; use numbers, bool or a struct of them"
        )
    if kind.subdtype is not None:
        raise DtypeMismatch(f"{kind} is an array in itself; put its dimensions into the shape")
    if not kind.isnative:
        raise DtypeMismatch(
            f"dtype {kind} is of the other byte order; convert with "
            "x.astype(x.dtype.newbyteorder('='))"
        )
    return kind


def as_shape(shape: Shape) -> tuple[int, ...]:
    """A shape as a tuple, from a number or a sequence of numbers, as in NumPy."""
    dims = as_integers(shape)
    check_dimensions(len(dims))
    if any(n < 0 for n in dims):
        raise InvalidValue(f"shape {dims} has a negative dimension")
    return dims


def check_dimensions(count: int) -> None:
    """Raise if an array would have more dimensions than NumPy supports."""
    if count > _MOST_DIMENSIONS:
        raise InvalidValue(f"{count} dimensions; NumPy and so Penstock has {_MOST_DIMENSIONS}")


def as_integers(shape: Shape) -> tuple[int, ...]:
    """The integers of a shape; one may still be unknown (-1). May wait for pending values."""
    try:
        if isinstance(shape, Sequence | np.ndarray):
            return tuple(operator.index(n) for n in shape)
        return (operator.index(shape),)
    except TypeError as error:
        raise ArgumentError(f"a shape is an int or a tuple of ints, not {shape!r}") from error


def as_integer(value: Any, what: str) -> int:
    """An integer, such as a count. Waits for a pending value."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise ArgumentError(f"{what} takes an integer, not {value!r}") from error


def as_float(value: Any, what: str) -> float:
    """A real number as a float. Waits for a pending value."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{what} is a number, not {value!r}") from error
    except OverflowError as error:
        raise InvalidValue(f"{what} is larger than any float") from error


def as_name(name: Any) -> str:
    """Check the name of an array or a stream, which errors and receipts use."""
    if not isinstance(name, str):
        raise ArgumentError(f"name= is text, not {name!r}")
    return name


def as_counts(
    given: Any, what: str, index: Callable[[Any], int] = operator.index
) -> tuple[int, int, int]:
    """Counts in three dimensions. May run the caller's code, so call it without the lock."""
    sizes = given if isinstance(given, (tuple, list)) else (given,)
    try:
        counts = [n if type(n) is int else index(n) for n in sizes]
    except TypeError as error:
        raise ArgumentError(
            f"{what}= is an int or a tuple of up to three, not {given!r}"
        ) from error
    if not 1 <= len(counts) <= 3 or any(n < 0 for n in counts):
        raise InvalidValue(f"{what}={given!r} must be one to three numbers, none negative")
    counts += [1] * (3 - len(counts))
    return counts[0], counts[1], counts[2]


def exactly(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Convert to an array of this dtype and shape; raises where NumPy would cast or broadcast."""
    data = np.asarray(value)
    if data.shape != shape:
        raise ValueError(f"its shape is {data.shape}")
    whole = data.dtype.kind in "iub"
    if dtype.kind in "iu":
        if not whole:
            raise TypeError(f"its dtype is {data.dtype}")
        info = np.iinfo(dtype)
        if data.size and not (info.min <= int(data.min()) and int(data.max()) <= info.max):
            raise OverflowError(f"{dtype} holds {info.min} to {info.max}")
    elif not whole and data.dtype.kind != "f":
        raise TypeError(f"its dtype is {data.dtype}")
    with np.errstate(over="ignore"):
        exact = data.astype(dtype)
    if dtype.kind == "f" and not np.array_equal(np.isfinite(exact), np.isfinite(data)):
        raise OverflowError(f"too large for {dtype}")
    return exact
