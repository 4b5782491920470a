"""Methods of arrays that rearrange elements, with NumPy's names: `sort`, `take`, `squeeze`, …

They call the functions of the device's namespace (`dev.xp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from penstock.dtypes import as_integer
from penstock.errors import BadIndex, Unsupported

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.device import Device


class Rearranging:
    """What an array inherits. Everything runs on the device; only `nonzero` waits, once."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def device(self) -> Device: ...

        @property
        def ndim(self) -> int: ...

        shape: tuple[int, ...]

    def sort(self, axis: int = -1, kind: str | None = None, order: None = None) -> None:
        """Sort the array itself along an axis, NaN last. Every `kind` is stable."""
        _only_plain("sort", order=order)
        me = cast("Array", self)
        me.check_written("sort()")
        me.copy_from(self.device.xp.sort(me, axis=axis))

    def argsort(self, axis: int | None = -1, kind: str | None = None, order: None = None) -> Array:
        """The indices (int64) that sort the array along an axis; flat, if `axis` is None."""
        _only_plain("argsort", order=order)
        me = cast("Array", self)
        x, along = (me.reshape(-1), 0) if axis is None else (me, axis)
        return cast("Array", self.device.xp.argsort(x, axis=along))

    def take(
        self, indices: Any, axis: int | None = None, out: None = None, mode: str = "raise"
    ) -> Array:
        """The elements at some indices along an axis, or of the flat array.

        Indices on the device are kept within bounds, as with `mode="clip"`, but that negative ones
        count from the end; those of the host raise `BadIndex`.
        """
        _only_plain("take", out=out)
        if mode != "raise":
            raise Unsupported(f"take with mode={mode!r}; bring the indices within bounds first")
        me = cast("Array", self)
        x, along = (me.reshape(-1), 0) if axis is None else (me, axis)
        return cast("Array", self.device.xp.take(x, indices, axis=along))

    def repeat(self, repeats: Any, axis: int | None = None) -> Array:
        """Each element several times in a row; flat, if `axis` is None."""
        return cast("Array", self.device.xp.repeat(self, repeats, axis=axis))

    def nonzero(self) -> tuple[Array, ...]:
        """The indices of the elements that are not zero. Waits for their number."""
        return cast("tuple[Array, ...]", self.device.xp.nonzero(self))

    def ravel(self) -> Array:
        """The same bytes in one dimension."""
        return cast("Array", self).reshape(-1)

    def flatten(self) -> Array:
        """A copy in one dimension."""
        return cast("Array", self).copy().reshape(-1)

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> Array:
        """The same bytes without axes of one element: all of them, or those given."""
        gone = tuple(at for at, n in enumerate(self.shape) if n == 1) if axis is None else axis
        return cast("Array", self.device.xp.squeeze(self, axis=gone))

    def transpose(self, *axes: Any) -> Array:
        """The same bytes with the axes in another order; without arguments, the opposite one."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return cast("Array", self.device.xp.permute_dims(self, order or None))

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """The same bytes with two axes exchanged."""
        places = [*range(self.ndim)]
        one, other = (as_integer(axis, "swapaxes") for axis in (axis1, axis2))
        if not all(-self.ndim <= axis < self.ndim for axis in (one, other)):
            raise BadIndex(f"swapaxes({one}, {other}) of an array of {self.ndim} dimensions")
        places[one], places[other] = places[other], places[one]
        return cast("Array", self.device.xp.permute_dims(self, tuple(places)))


def _only_plain(what: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise Unsupported(f"{what} with {name}={value!r} does not run on a device")
