"""Methods of arrays that compute with elements, with NumPy's names: `clip`, `round`, `real`, …

They call the functions of the device's namespace (`dev.xp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from penstock.dtypes import as_float, as_integer
from penstock.errors import Unsupported

if TYPE_CHECKING:
    from penstock.array.array import Array

#: Methods and attributes of CuPy's, PyTorch's and NumPy's arrays, and what to use here.
_HABITS = {
    "cpu": "x.numpy()",
    "cuda": "x.to_device(device)",
    "data": "x.view()",
    "detach": "x itself",
    "flags": "x.strides",
    "flat": "x.ravel()",
    "get": "x.numpy()",
    "partition": "x.sort()",
    "permute": "x.transpose(axes)",
    "ptp": "x.max() - x.min()",
    "put": "x[indices] = values",
    "resize": "x.reshape(shape)",
    "set": "x.write(source), or x[...] = source",
    "to": "x.to_device(device) or x.astype(dtype)",
    "toDlpack": "x.__dlpack__()",
    "unsqueeze": "x[None] or dev.xp.expand_dims(x, axis)",
}


class ElementMethods:
    """What an array inherits. Everything runs on the device; nothing waits."""

    __slots__ = ()

    def astype(self, dtype: npt.DTypeLike, *, copy: bool = True) -> Array:
        """The elements converted to another dtype on the device; see `dev.xp.astype`."""
        me = cast("Array", self)
        return me.device.xp.astype(me, dtype, copy=copy)

    def clip(self, min: Any = None, max: Any = None, out: None = None) -> Array:
        """Each element, or the bound that it lies beyond."""
        _no_out("clip", out)
        me = cast("Array", self)
        return me.device.xp.clip(me, min, max)

    def round(self, decimals: int = 0, out: None = None) -> Array:
        """The elements rounded, halves to even, as NumPy rounds them."""
        _no_out("round", out)
        me = cast("Array", self)
        xp = me.device.xp
        decimals = as_integer(decimals, "round")
        if not decimals or (decimals > 0 and me.dtype.kind in "iu"):
            return cast("Array", xp.round(me))
        if me.dtype.kind in "iu":
            raise Unsupported(f"round of {me.dtype} with decimals={decimals}; convert it to floats")
        scale = as_float(10 ** min(abs(decimals), 999), "round: a power of ten")
        if decimals > 0:
            return cast("Array", xp.round(me * scale) / scale)
        return cast("Array", xp.round(me / scale) * scale)

    def conj(self) -> Array:
        """The complex conjugates; of real numbers, the array itself."""
        me = cast("Array", self)
        return cast("Array", me.device.xp.conj(me)) if me.dtype.kind == "c" else me

    def conjugate(self) -> Array:
        """The same as `conj`."""
        return self.conj()

    @property
    def real(self) -> Array:
        """The real parts: the same bytes, so that writing them changes the array."""
        me = cast("Array", self)
        return _part(me, 0) if me.dtype.kind == "c" else me

    @property
    def imag(self) -> Array:
        """The imaginary parts: the same bytes; of real numbers, new zeros."""
        me = cast("Array", self)
        return _part(me, 1) if me.dtype.kind == "c" else me.device.zeros(me.shape, me.dtype)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """The same bytes along the diagonals of two axes."""
        xp, matrices = _matrices(cast("Array", self), axis1, axis2)
        return cast("Array", xp.linalg.diagonal(matrices, offset=offset))

    def trace(
        self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: npt.DTypeLike | None = None,
        out: None = None,
    ) -> Array:  # fmt: skip
        """The sums along the diagonals of two axes, as an array."""
        _no_out("trace", out)
        xp, matrices = _matrices(cast("Array", self), axis1, axis2)
        return cast("Array", xp.linalg.trace(matrices, offset=offset, dtype=dtype))

    def searchsorted(
        self, v: Any, side: Literal["left", "right"] = "left", sorter: Array | None = None
    ) -> Array:
        """Where each of `v` would be inserted into the array, which is sorted: indices (int64)."""
        me = cast("Array", self)
        return cast("Array", me.device.xp.searchsorted(me, v, side=side, sorter=sorter))

    if not TYPE_CHECKING:  # a type checker would take it for every name

        def __getattr__(self, name: str) -> Any:
            """Habits from other libraries: the error names what does the same here."""
            advice = f"; use {_HABITS[name]}" if name in _HABITS else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{advice}",
                name=name, obj=self,
            )  # fmt: skip


def _part(x: Array, number: int) -> Array:
    """The real (0) or imaginary (1) parts of complex numbers, in place."""
    x.buffer.check()
    size = x.itemsize // 2
    layout = x.layout._replace(offset=x.layout.offset + number * size, itemsize=size)
    return x.seen(layout, np.dtype(f"f{size}"))


def _matrices(x: Array, axis1: int, axis2: int) -> tuple[Any, Array]:
    """The namespace, and a view of x with two axes as the last."""
    return x.device.xp, cast("Array", x.device.xp.moveaxis(x, (axis1, axis2), (-2, -1)))


def _no_out(what: str, out: object) -> None:
    if out is not None:
        raise Unsupported(f"{what} with out=: the result is a new array; y[...] = x.{what}(…)")
