"""Methods of arrays that reduce elements, with NumPy's names: `sum`, `argmax`, `cumsum`, …

They have NumPy's arguments, dtypes and rules. Without arguments they reduce the whole array and
return a pending value, and only its use waits. With an axis, a dtype or `keepdims` they return an
array. `out` must be None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt

from penstock.errors import Unsupported

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.launch.result import Result
    from penstock.schedule.stream import Stream

Axes = int | tuple[int, ...] | None


class Reducing:
    """What an array inherits. Everything runs on the device; nothing waits."""

    __slots__ = ()

    def sum(
        self, axis: Axes = None, dtype: npt.DTypeLike | None = None, out: None = None,
        keepdims: bool | None = None, *, stream: Stream | None = None,
    ) -> Any:  # fmt: skip
        """The sum of all elements, or along axes; integers are summed in 64 bits."""
        return self._reduce("sum", stream, out, axis=axis, dtype=dtype, keepdims=keepdims)

    def prod(
        self, axis: Axes = None, dtype: npt.DTypeLike | None = None, out: None = None,
        keepdims: bool | None = None, *, stream: Stream | None = None,
    ) -> Array:  # fmt: skip
        """The product of all elements, or along axes, as an array; integers in 64 bits."""
        return self._along("prod", stream, out, axis=axis, dtype=dtype, keepdims=keepdims)

    def mean(
        self, axis: Axes = None, dtype: npt.DTypeLike | None = None, out: None = None,
        keepdims: bool | None = None, *, stream: Stream | None = None,
    ) -> Any:  # fmt: skip
        """The mean of all elements, or along axes; that of integers is a float64."""
        return self._reduce("mean", stream, out, axis=axis, dtype=dtype, keepdims=keepdims)

    def var(
        self, axis: Axes = None, dtype: npt.DTypeLike | None = None, out: None = None,
        ddof: float = 0, keepdims: bool | None = None, *, stream: Stream | None = None,
    ) -> Array:  # fmt: skip
        """The variance of all elements, or along axes, as an array; `ddof` lessens the divisor."""
        return self._along(
            "var", stream, out, axis=axis, dtype=dtype, correction=ddof, keepdims=keepdims
        )

    def std(
        self, axis: Axes = None, dtype: npt.DTypeLike | None = None, out: None = None,
        ddof: float = 0, keepdims: bool | None = None, *, stream: Stream | None = None,
    ) -> Array:  # fmt: skip
        """The root of the variance of all elements, or along axes, as an array."""
        return self._along(
            "std", stream, out, axis=axis, dtype=dtype, correction=ddof, keepdims=keepdims
        )

    def min(
        self, axis: Axes = None, out: None = None, keepdims: bool | None = None, *,
        stream: Stream | None = None,
    ) -> Any:  # fmt: skip
        """The smallest element, of all or along axes, or NaN if there is one."""
        return self._reduce("min", stream, out, axis=axis, keepdims=keepdims)

    def max(
        self, axis: Axes = None, out: None = None, keepdims: bool | None = None, *,
        stream: Stream | None = None,
    ) -> Any:  # fmt: skip
        """The largest element, of all or along axes, or NaN if there is one."""
        return self._reduce("max", stream, out, axis=axis, keepdims=keepdims)

    def argmin(
        self, axis: int | None = None, out: None = None, *, keepdims: bool | None = None,
        stream: Stream | None = None,
    ) -> Any:  # fmt: skip
        """The index of the first smallest element, or of the first NaN: along an axis, or flat."""
        return self._reduce("argmin", stream, out, axis=axis, keepdims=keepdims)

    def argmax(
        self, axis: int | None = None, out: None = None, *, keepdims: bool | None = None,
        stream: Stream | None = None,
    ) -> Any:  # fmt: skip
        """The index of the first largest element, or of the first NaN: along an axis, or flat."""
        return self._reduce("argmax", stream, out, axis=axis, keepdims=keepdims)

    def any(
        self, axis: Axes = None, out: None = None, keepdims: bool | None = None, *,
        stream: Stream | None = None,
    ) -> Any:  # fmt: skip
        """Whether any element is true, of all or along axes."""
        return self._reduce("any", stream, out, axis=axis, keepdims=keepdims)

    def all(
        self, axis: Axes = None, out: None = None, keepdims: bool | None = None, *,
        stream: Stream | None = None,
    ) -> Any:  # fmt: skip
        """Whether all elements are true, of all or along axes."""
        return self._reduce("all", stream, out, axis=axis, keepdims=keepdims)

    def cumsum(
        self, axis: int | None = None, dtype: npt.DTypeLike | None = None, out: None = None, *,
        stream: Stream | None = None,
    ) -> Array:  # fmt: skip
        """Running sums along an axis, or of the flat array, as an array."""
        return self._along("cumsum", stream, out, axis=axis, dtype=dtype)

    def cumprod(
        self, axis: int | None = None, dtype: npt.DTypeLike | None = None, out: None = None, *,
        stream: Stream | None = None,
    ) -> Array:  # fmt: skip
        """Running products along an axis, or of the flat array, as an array."""
        return self._along("cumprod", stream, out, axis=axis, dtype=dtype)

    def dot(self, y: Array, *, stream: Stream | None = None) -> Result:
        """The inner product with another array of one dimension and the same dtype."""
        me = cast("Array", self)
        return me.device.reductions.dot(me, y, stream)

    def _reduce(self, operation: str, stream: Stream | None, out: None, **given: Any) -> Any:
        for value in given.values():
            if value is not None:
                return self._along(operation, stream, out, **given)
        _check_out(operation, out)
        me = cast("Array", self)
        return me.device.reductions.reduce(operation, me, stream=stream)

    def _along(self, operation: str, stream: Stream | None, out: None, **given: Any) -> Array:
        _check_out(operation, out)
        me = cast("Array", self)
        return me.device.reductions.along(operation, me, stream, **given)


def _check_out(operation: str, out: object) -> None:
    if out is not None:
        raise Unsupported(
            f"{operation} with out=: the result is a new array; y[...] = x.{operation}(…) copies it"
        )
