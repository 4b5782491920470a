"""The operators of arrays: `x + y`, `x == y`, `x[i] += 1` and the like, on the device.

Each is a function of the device's namespace (`penstock.xp`), reached through the device, because
imports point down only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from penstock.array.array import Array


class Operators:
    """What Python's operators do to an array. Nothing waits but the truth of an array."""

    __slots__ = ()

    def _operate(self, name: str, *operands: Any) -> Array:
        xp = cast("Array", self).device.xp
        return cast("Array", xp.operate(name, operands))

    def _in_place(self, name: str, other: Any) -> Array:
        xp = cast("Array", self).device.xp
        return cast("Array", xp.operate_in_place(name, cast("Array", self), other))

    # Arithmetic.

    def __add__(self, other: Any) -> Array:
        return self._operate("add", self, other)

    def __radd__(self, other: Any) -> Array:
        return self._operate("add", other, self)

    def __iadd__(self, other: Any) -> Array:
        return self._in_place("add", other)

    def __sub__(self, other: Any) -> Array:
        return self._operate("subtract", self, other)

    def __rsub__(self, other: Any) -> Array:
        return self._operate("subtract", other, self)

    def __isub__(self, other: Any) -> Array:
        return self._in_place("subtract", other)

    def __mul__(self, other: Any) -> Array:
        return self._operate("multiply", self, other)

    def __rmul__(self, other: Any) -> Array:
        return self._operate("multiply", other, self)

    def __imul__(self, other: Any) -> Array:
        return self._in_place("multiply", other)

    def __truediv__(self, other: Any) -> Array:
        return self._operate("divide", self, other)

    def __rtruediv__(self, other: Any) -> Array:
        return self._operate("divide", other, self)

    def __itruediv__(self, other: Any) -> Array:
        return self._in_place("divide", other)

    def __floordiv__(self, other: Any) -> Array:
        return self._operate("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Array:
        return self._operate("floor_divide", other, self)

    def __ifloordiv__(self, other: Any) -> Array:
        return self._in_place("floor_divide", other)

    def __mod__(self, other: Any) -> Array:
        return self._operate("remainder", self, other)

    def __rmod__(self, other: Any) -> Array:
        return self._operate("remainder", other, self)

    def __imod__(self, other: Any) -> Array:
        return self._in_place("remainder", other)

    def __divmod__(self, other: Any) -> tuple[Array, Array]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Array, Array]:
        return other // self, other % self

    def __pow__(self, other: Any) -> Array:
        return self._operate("pow", self, other)

    def __rpow__(self, other: Any) -> Array:
        return self._operate("pow", other, self)

    def __ipow__(self, other: Any) -> Array:
        return self._in_place("pow", other)

    def __matmul__(self, other: Any) -> Array:
        return self._operate("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Array:
        return self._operate("matmul", other, self)

    def __imatmul__(self, other: Any) -> Array:
        return self._in_place("matmul", other)

    def __neg__(self) -> Array:
        return self._operate("negative", self)

    def __pos__(self) -> Array:
        return self._operate("positive", self)

    def __abs__(self) -> Array:
        return self._operate("abs", self)

    # Bits.

    def __and__(self, other: Any) -> Array:
        return self._operate("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Array:
        return self._operate("bitwise_and", other, self)

    def __iand__(self, other: Any) -> Array:
        return self._in_place("bitwise_and", other)

    def __or__(self, other: Any) -> Array:
        return self._operate("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Array:
        return self._operate("bitwise_or", other, self)

    def __ior__(self, other: Any) -> Array:
        return self._in_place("bitwise_or", other)

    def __xor__(self, other: Any) -> Array:
        return self._operate("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Array:
        return self._operate("bitwise_xor", other, self)

    def __ixor__(self, other: Any) -> Array:
        return self._in_place("bitwise_xor", other)

    def __lshift__(self, other: Any) -> Array:
        return self._operate("bitwise_left_shift", self, other)

    def __rlshift__(self, other: Any) -> Array:
        return self._operate("bitwise_left_shift", other, self)

    def __ilshift__(self, other: Any) -> Array:
        return self._in_place("bitwise_left_shift", other)

    def __rshift__(self, other: Any) -> Array:
        return self._operate("bitwise_right_shift", self, other)

    def __rrshift__(self, other: Any) -> Array:
        return self._operate("bitwise_right_shift", other, self)

    def __irshift__(self, other: Any) -> Array:
        return self._in_place("bitwise_right_shift", other)

    def __invert__(self) -> Array:
        return self._operate("bitwise_invert", self)

    # Comparisons. As in NumPy, they compare elements; `is` asks whether two names are one array.

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Array:  # type: ignore[override]
        return self._operate("equal", self, other)

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        return self._operate("not_equal", self, other)

    def __lt__(self, other: Any) -> Array:
        return self._operate("less", self, other)

    def __le__(self, other: Any) -> Array:
        return self._operate("less_equal", self, other)

    def __gt__(self, other: Any) -> Array:
        return self._operate("greater", self, other)

    def __ge__(self, other: Any) -> Array:
        return self._operate("greater_equal", self, other)

    def __contains__(self, value: object) -> bool:
        """Whether an element equals the value. Waits for it."""
        equal: Any = self._operate("equal", self, value)
        return equal is not NotImplemented and bool(equal.any())

    # Other libraries.

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        """The functions for this array, by the Array API standard: `device.xp`."""
        return cast("Array", self).device.xp.of_version(api_version)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """`np.add(x, y)` and the like, and operators with a NumPy array on the left."""
        return cast("Array", self).device.xp.call_ufunc(ufunc, method, inputs, options)

    def __array_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """`np.concatenate([x, y])` and the like."""
        return cast("Array", self).device.xp.call_function(function, arguments, options)
