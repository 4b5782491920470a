"""Which dtypes, shapes and names an array may have."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import ArgumentError, DtypeMismatch, InvalidValue

Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
_MOST_DIMENSIONS = 64
Dtype: TypeAlias = np.dtype[Any]


def as_dtype(dtype: npt.DTypeLike) -> Dtype:
    """A NumPy dtype of fixed size in native byte order; "bfloat16" and the like by name too."""
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
    """A shape as NumPy takes it: a number or a sequence of numbers."""
    dims = as_integers(shape)
    if len(dims) > _MOST_DIMENSIONS:
        raise InvalidValue(f"{len(dims)} dimensions; NumPy and so Penstock has {_MOST_DIMENSIONS}")
    if any(n < 0 for n in dims):
        raise InvalidValue(f"shape {dims} has a negative dimension")
    return dims


def as_integers(shape: Shape) -> tuple[int, ...]:
    """The numbers that make a shape, of which one may yet be unknown. May wait for them."""
    try:
        if isinstance(shape, Sequence | np.ndarray):
            return tuple(operator.index(n) for n in shape)
        return (operator.index(shape),)
    except TypeError as error:
        raise ArgumentError(f"a shape is an int or a tuple of ints, not {shape!r}") from error


def as_name(name: Any) -> str:
    """What errors and receipts are to call an array or a stream."""
    if not isinstance(name, str):
        raise ArgumentError(f"name= is text, not {name!r}")
    return name
