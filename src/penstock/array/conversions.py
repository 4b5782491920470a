"""What an array is converted to: numbers, lists, bytes, text, NumPy arrays, DLPack.

All of these need values on the host, so they wait for the work that writes them.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from penstock.array import text
from penstock.errors import ArgumentError, DtypeMismatch, InvalidValue, ShapeMismatch

if TYPE_CHECKING:
    from penstock.array.array import Array

Host = npt.NDArray[Any]

_DLPACK_CPU = (1, 0)


class Conversions:
    """What an array inherits. Everything waits, as `numpy()` does."""

    __slots__ = ()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Host:
        """For `np.asarray(x)`: a copy, or with `copy=False` a view like `view("r")`."""
        me = cast("Array", self)
        if copy is False:
            if dtype is not None and np.dtype(dtype) != me.dtype:
                raise InvalidValue(
                    f"array {me.name!r} is {me.dtype}; converting it to {np.dtype(dtype)} "
                    "takes a copy, which copy=False forbids"
                )
            return me.view("r")
        content = me.numpy()
        return content if dtype is None else content.astype(dtype, copy=False)

    def item(self, *index: Any) -> Any:
        """The one element, or the one at `index`, as a Python number."""
        me = cast("Array", self)
        if index:
            return me[index].item()
        if me.size != 1:
            raise ShapeMismatch(f"only an array of one element has an item; this has {me.size}")
        return me.numpy().item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers, or one number. Waits for them."""
        return cast("Array", self).numpy().tolist()

    def tobytes(self) -> bytes:
        """The content as bytes, in C order. Blocks until the work that writes it is done."""
        return cast("Array", self).numpy().tobytes()

    def __bool__(self) -> bool:
        size = cast("Array", self).size
        if size != 1:
            raise ShapeMismatch(
                f"the truth of an array of {size} elements is ambiguous; use x.any() or x.all()"
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        value = self.item()
        if not isinstance(value, int):
            dtype = cast("Array", self).dtype
            raise DtypeMismatch(f"an array of {dtype} is not an index")
        return value

    def __int__(self) -> int:
        return int(self.item())

    def __repr__(self) -> str:
        """The values as NumPy shows them, with dtype and device. Waits for what is shown."""
        return text.shown(cast("Array", self))

    def __str__(self) -> str:
        """The values, as NumPy prints them; for scratch and closed arrays, the `repr`."""
        return text.printed(cast("Array", self))

    def __format__(self, spec: str) -> str:
        """The text; of one element without dimensions, as its number is formatted."""
        return text.formatted(cast("Array", self), spec)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the bytes to another library, as if by `view()`; with `copy`, a copy of them.

        DLPack before 1.0 cannot mark memory as read-only, so a library that uses it gets a writable
        view, and device work on the bytes waits until the library drops it.
        """
        me = cast("Array", self)
        if dl_device is not None and _pair("dl_device", dl_device) != self.__dlpack_device__():
            raise BufferError(f"array {me.name!r} can be exported for the CPU only")
        marks = max_version is not None and _pair("max_version", max_version) >= (1, 0)
        version = (1, 0) if marks else None
        if copy:
            return me.numpy().__dlpack__(max_version=version)
        shown = me.view("r" if marks else "rw")
        return shown.__dlpack__(max_version=version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CPU


def _pair(name: str, given: Any) -> tuple[int, int]:
    """The two integers of an argument of `__dlpack__`."""
    try:
        first, second = map(operator.index, given)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"__dlpack__: {name}= is a tuple of two integers such as (1, 0), or None, not {given!r}"
        ) from error
    return first, second
