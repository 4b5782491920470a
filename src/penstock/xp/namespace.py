"""`dev.xp`: the functions and names of the Array API standard, for the arrays of one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.array import Array
from penstock.errors import ArgumentError, InvalidValue, ShapeMismatch
from penstock.launch.result import Result
from penstock.ops.arithmetic import FUNCTIONS
from penstock.xp import (
    construction,
    creation,
    dtypes,
    elementwise,
    fft,
    indexing,
    linalg,
    linear_algebra,
    manipulation,
    numpy_calls,
    searching,
    searching_order,
    sets,
    sorting,
    statistical,
    utility,
)
from penstock.xp.info import Info
from penstock.xp.promotion import NAMED, is_number
from penstock.xp.through_numpy import Extension

if TYPE_CHECKING:
    from penstock.device import Device

_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")


class Namespace:
    """The Array API standard 2025.12 on a device.

    Functions launch kernels and return at once; those that must wait say so. `dev.xp` is also what
    `x.__array_namespace__()` returns, for libraries that work with any arrays.
    """

    __array_api_version__ = "2025.12"

    e, pi, inf, nan, newaxis = np.e, np.pi, np.inf, np.nan, None

    asarray = construction.asarray
    from_dlpack = construction.from_dlpack
    empty, empty_like = construction.empty, construction.empty_like
    zeros, zeros_like = construction.zeros, construction.zeros_like
    ones, ones_like = construction.ones, construction.ones_like
    full, full_like = construction.full, construction.full_like

    astype, can_cast, isdtype = dtypes.astype, dtypes.can_cast, dtypes.isdtype
    finfo, iinfo, result_type = dtypes.finfo, dtypes.iinfo, dtypes.result_type
    broadcast_arrays, broadcast_to = dtypes.broadcast_arrays, dtypes.broadcast_to
    broadcast_shapes = dtypes.broadcast_shapes

    where, clip = elementwise.where, elementwise.clip

    sum, prod, mean = statistical.sum, statistical.prod, statistical.mean
    var, std = statistical.var, statistical.std
    min, max = statistical.min, statistical.max
    cumulative_sum, cumulative_prod = statistical.cumulative_sum, statistical.cumulative_prod
    argmin, argmax = searching.argmin, searching.argmax
    count_nonzero = searching.count_nonzero
    all, any, diff = utility.all, utility.any, utility.diff

    def __init__(self, device: Device) -> None:
        self.device = device
        self.__name__ = f"penstock.xp({device.name})"
        self.linalg = Extension(self, "linalg", linalg.FUNCTIONS)
        self.fft = Extension(self, "fft", fft.FUNCTIONS)

    def __array_namespace_info__(self) -> Info:
        """What the namespace can do on its device."""
        return Info(self)

    def of_version(self, version: str | None) -> Namespace:
        """The namespace itself, if it has a version of the standard; for `__array_namespace__`."""
        if version not in (None, *_VERSIONS):
            raise InvalidValue(f"api_version={version!r}; the namespace has {', '.join(_VERSIONS)}")
        return self

    # What the operators of arrays and NumPy's functions call.

    def operate(self, name: str, operands: tuple[Any, ...], out: Array | None = None) -> Any:
        """An operator: a function by name, or `NotImplemented` for operands of unknown types."""
        for each in operands:
            known = isinstance(each, Array | Result | np.ndarray | list | tuple)
            if not known and not is_number(each):
                if each is None:
                    raise ArgumentError(
                        f"{name} of an array and None; 'x is None' asks whether it is one"
                    )
                return NotImplemented
        if name in FUNCTIONS:
            return elementwise.compute(self, name, operands, out)
        made = getattr(self, name)(*operands)
        return made if out is None else _put(name, made, out)

    def operate_in_place(self, name: str, x: Array, other: Any) -> Any:
        """`x += other` and its kind."""
        if name not in FUNCTIONS:
            return _put(f"{name} in place", getattr(self, name)(x, other), x)
        return elementwise.in_place(self, name, x, other)

    call_ufunc, call_function = numpy_calls.call_ufunc, numpy_calls.call_function

    def __repr__(self) -> str:
        return f"<Array API of {self.device!r}>"

    def __getattr__(self, name: str) -> Any:
        """NumPy's names that the standard has not: the error names what does the same."""
        raise numpy_calls.no_attribute("dev.xp", name, self)


def _put(what: str, made: Array, out: Array) -> Array:
    """Copy a result to the array that was given for it; returns that array."""
    if made.shape != out.shape:
        raise ShapeMismatch(f"{what}: the result has shape {made.shape}, the array {out.shape}")
    out[...] = made
    return out


for _name, _value in {**elementwise.SIMPLE, **NAMED}.items():
    setattr(Namespace, _name, _value)
for _module in (
    creation, indexing, linear_algebra, manipulation, searching_order, sets, sorting
):  # fmt: skip
    for _name in _module.__all__:
        setattr(Namespace, _name, getattr(_module, _name))
