"""The elementwise functions of the standard, made from the table in `penstock.ops.arithmetic`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.array import Array
from penstock.dtypes import Dtype
from penstock.errors import DtypeMismatch, ShapeMismatch
from penstock.ops.arithmetic import FUNCTIONS, Function
from penstock.xp.axes import check_arrays
from penstock.xp.promotion import (
    DEFAULT_FLOAT,
    as_number,
    common_of_numbers,
    is_number,
    operands,
)

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace

_BOOL = np.dtype(np.bool_)
_KINDS = {"b": "bool", "i": "integer", "u": "unsigned integer", "f": "float", "c": "complex"}


def compute(xp: Namespace, name: str, values: tuple[Any, ...], out: Array | None = None) -> Array:
    """A function of arrays and numbers, in the dtype that the standard's tables give."""
    function = FUNCTIONS[name]
    device = xp.device
    if function.condition and all(map(is_number, values[1:])):
        given, dtype = list(values[1:]), common_of_numbers(values[1:])
    else:
        given, dtype = operands(device, name, values[1:] if function.condition else values)
    dtype = _computed_in(function, dtype)
    typed = [each if isinstance(each, Array) else as_number(each, dtype, name) for each in given]
    if function.condition:
        typed.insert(0, values[0])
    result = result_dtype(function, dtype)
    return device.operations.apply(name, typed, dtype, result, out=out)


def _computed_in(function: Function, dtype: Dtype) -> Dtype:
    kind = "f" if dtype.name == "bfloat16" else dtype.kind
    if kind in function.kinds:
        return dtype
    if kind in "iu" and "f" in function.kinds:
        return DEFAULT_FLOAT  # as NumPy does, in the default float
    wanted = " and ".join(_KINDS[each] for each in function.kinds if each != "u")
    raise DtypeMismatch(
        f"{function.name} takes {wanted} arrays, not {dtype}; convert with astype()"
    )


def result_dtype(function: Function, dtype: Dtype) -> Dtype:
    """The dtype of a function's result, when it computes in `dtype`."""
    if function.result == "bool":
        return _BOOL
    if function.result == "real" and dtype.kind == "c":
        return np.dtype(np.float64 if dtype.itemsize == 16 else np.float32)
    return dtype


def in_place(xp: Namespace, name: str, x: Array, other: Any) -> Array:
    """`x += other` and its kind: the result has the dtype and shape of `x`, or it raises."""
    _, dtype = operands(xp.device, name, (x, other))
    function = FUNCTIONS[name]
    result = result_dtype(function, _computed_in(function, dtype))
    if result != x.dtype:
        raise DtypeMismatch(
            f"{name} in place: the result is {result}, the array {x.dtype}; write x = {name}(x, …)"
        )
    if isinstance(other, Array) and not _fits(other.shape, x.shape):
        raise ShapeMismatch(f"{name} in place: {other.shape} does not broadcast to {x.shape}")
    x.check_written(f"{name} in place")
    return compute(xp, name, (x, other), out=x)


def _fits(shape: tuple[int, ...], goal: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(goal), strict=False)
    return len(shape) <= len(goal) and all(n in (1, m) for n, m in pairs)


def _function(function: Function) -> Callable[..., Array]:
    names = ["x"] if function.operands == 1 else ["x1", "x2"]
    name = function.name

    def call(xp: Namespace, *values: Any) -> Array:
        if len(values) != len(names):
            raise TypeError(
                f"{name}() takes {len(names)} positional arguments, {len(values)} were given"
            )
        return compute(xp, name, values)

    positional = inspect.Parameter.POSITIONAL_ONLY
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(each, positional) for each in ("xp", *names)]
    )
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{name}` of each element."
    return call


#: Every function with one or two operands, by name; `clip`, `where` and `round` are below.
SIMPLE: dict[str, Callable[..., Array]] = {
    each.name: _function(each) for each in FUNCTIONS.values() if each.operands < 3
}


def where(xp: Namespace, condition: Any, x1: Any, x2: Any, /) -> Array:
    """Elements of `x1` where the condition is true, and of `x2` elsewhere."""
    if not isinstance(condition, Array) or condition.dtype != _BOOL:
        kind = f"of {condition.dtype}" if isinstance(condition, Array) else f"{condition!r}"
        raise DtypeMismatch(
            f"where: the condition is an array of bool, not {kind}; a comparison makes one: x != 0"
        )
    return compute(xp, "where", (condition, x1, x2))


def clip(xp: Namespace, x: Array, /, min: Any = None, max: Any = None) -> Array:
    """Each element, or the bound that it lies beyond; NaN stays NaN."""
    check_arrays(xp, "clip", x)
    if min is None and max is None:
        return xp.positive(x) if x.dtype != _BOOL else x.copy()
    dtype = x.dtype
    if min is None:
        return _of_dtype(xp, "minimum", x, max, dtype)
    if max is None:
        return _of_dtype(xp, "maximum", x, min, dtype)
    return compute(xp, "clip", (x, min, max))


def _of_dtype(xp: Namespace, name: str, x: Array, bound: Any, dtype: Dtype) -> Array:
    return compute(xp, name, (x, bound))
