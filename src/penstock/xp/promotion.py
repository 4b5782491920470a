"""The dtypes that functions compute in and return, by the tables of the Array API standard.

Where the standard leaves a mixture open (bools, integers and floats), the dtype is NumPy's, except
that a signed integer and a uint64 do not mix. Python numbers take the dtype of the arrays beside
them. NumPy's scalars have a dtype of their own, like arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.array.array import Array
from penstock.dtypes import Dtype, as_dtype
from penstock.errors import ArgumentError, DtypeMismatch, InvalidValue
from penstock.launch.result import Result
from penstock.ops.elements import DTYPES
from penstock.ops.result_operands import on_device

if TYPE_CHECKING:
    from penstock.device import Device

#: Dtypes of the standard, by name, and the two smaller floats.
NAMED: dict[str, Dtype] = {name: np.dtype(name) for name in DTYPES if name not in ("bfloat16",)}
#: The default of integers. The default of floats is float32 on every device, so that a program
#: computes the same everywhere; that of complex numbers follows from it.
DEFAULT_INT = np.dtype(np.int64)
DEFAULT_UINT = np.dtype(np.uint64)
DEFAULT_FLOAT = np.dtype(np.float32)
DEFAULT_COMPLEX = np.dtype(np.complex64)

_PYTHON = (bool, int, float, complex)


def is_number(value: Any) -> bool:
    """Whether a value is a Python or NumPy number, which functions take beside arrays."""
    return isinstance(value, (*_PYTHON, np.number, np.bool_))


def number_of(value: Any) -> Any:
    """A value as a number, if it is one: pending, or an array without dimensions. Waits for it."""
    found = value.result() if isinstance(value, Result) else value
    return (
        np.asarray(found)[()]
        if isinstance(found, Array | np.ndarray) and not found.shape
        else found
    )


def default_dtype(value: Any) -> Dtype:
    """The dtype of an array that is made from a number alone: that of NumPy's scalars is theirs."""
    match value:
        case bool():
            return np.dtype(np.bool_)
        case int():
            return DEFAULT_INT
        case float():
            return DEFAULT_FLOAT
        case complex():
            return DEFAULT_COMPLEX
        case np.number() | np.bool_():
            return as_dtype(value.dtype)
    raise ArgumentError(f"{value!r} is not a number")


def common_of_numbers(values: Sequence[Any]) -> Dtype:
    """The dtype of numbers alone: the default of the highest kind among them."""
    typed = [each.dtype for each in values if isinstance(each, np.generic)]
    dtype = common(*typed) if typed else default_dtype(values[0])
    for each in values:
        if not isinstance(each, np.generic):
            dtype = with_number(dtype, each)
    return dtype


@cache
def common(*dtypes: Dtype) -> Dtype:
    """The dtype that values of some dtypes are computed in together."""
    first, *others = dtypes
    for other in others:
        first = _two(first, other)
    return first


def _two(one: Dtype, other: Dtype) -> Dtype:
    if one == other:
        return one
    kinds = {one.kind, other.kind}
    if kinds == {"i", "u"} and np.dtype(np.uint64) in (one, other):
        raise DtypeMismatch(
            f"{one} and {other} have no common integer dtype; convert one of them: "
            "x.astype('int64') or x.astype('uint64')"
        )
    try:
        return np.result_type(one, other)
    except TypeError as error:
        raise DtypeMismatch(
            f"{one} and {other} have no common dtype; convert one of them with astype()"
        ) from error


def with_number(dtype: Dtype, value: Any) -> Dtype:
    """The dtype of an array's elements computed with a Python number, which adapts to it."""
    kind = "f" if dtype.name == "bfloat16" else dtype.kind
    if isinstance(value, bool):
        return dtype
    if isinstance(value, int):
        return DEFAULT_INT if kind == "b" else dtype
    if isinstance(value, float):
        return dtype if kind in "fc" else DEFAULT_FLOAT
    if kind == "f":
        return np.dtype(np.complex128 if dtype.itemsize == 8 else np.complex64)
    return dtype if kind == "c" else DEFAULT_COMPLEX


def as_number(value: Any, dtype: Dtype, what: str) -> np.generic:
    """A Python or NumPy number in the dtype of a computation; raises if it does not fit."""
    if isinstance(value, int | np.integer) and dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        if not bounds.min <= int(value) <= bounds.max:
            raise InvalidValue(f"{what}: {value} does not fit {dtype}; convert the array first")
    if isinstance(value, float) and abs(value) < 6e4:  # every float dtype holds it
        return cast(np.generic, dtype.type(value))
    with np.errstate(all="ignore"):
        try:
            made: np.generic = dtype.type(value)
        except OverflowError:
            # An integer beyond the range of floats.
            made = dtype.type(float("inf") if value > 0 else float("-inf"))
    return made


def operands(device: Device, what: str, values: Sequence[Any]) -> tuple[list[Array | Any], Dtype]:
    """The arguments of a function, checked, and the dtype that they have in common."""
    found: list[Dtype] = []
    given = [_as_operand(each, device) for each in values]
    for index, value in enumerate(given):
        if isinstance(value, Array):
            if value.device is not device:
                raise ArgumentError(
                    f"{what}: an array is on {value.device}, another on {device}; copy one over "
                    "with to_device()"
                )
            found.append(value.dtype)
        elif _has_dtype(value) or isinstance(values[index], Result):
            found.append(value.dtype)
        elif not is_number(value):
            advice = ""
            if isinstance(value, np.ndarray):
                advice = "; bring it to the device first: dev.asarray(a)"
            elif isinstance(value, list | tuple):
                advice = "; dev.asarray(a) makes it an array"
            raise ArgumentError(
                f"{what} takes arrays and numbers, not {type(value).__name__}{advice}"
            )
    if not found:
        raise ArgumentError(f"{what} takes at least one array, not only numbers")
    dtype = common(*found)
    for value, source in zip(given, values, strict=True):
        if isinstance(value, _PYTHON) and not isinstance(source, Result):
            dtype = with_number(dtype, value)
    return given, dtype


def _has_dtype(value: Any) -> bool:
    """Whether a value is a scalar of NumPy that is no Python number."""
    return isinstance(value, np.number | np.bool_) and not isinstance(value, _PYTHON)


def _as_operand(value: Any, device: Device) -> Any:
    """A pending value as an array, or else its number; the number that NumPy made an array of."""
    if isinstance(value, Result):
        found = on_device(value, device)
        return value.result() if found is None else found
    return value[()] if isinstance(value, np.ndarray) and not value.shape else value
