"""Arrays from values: `asarray`, `zeros` and their kind, by the Array API standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import Dtype, Shape, as_dtype
from penstock.errors import ArgumentError, InvalidValue
from penstock.xp.axes import check_arrays
from penstock.xp.promotion import DEFAULT_FLOAT, default_dtype, number_of

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.xp.namespace import Namespace


def checked_dtype(xp: Namespace, dtype: npt.DTypeLike | None, default: Dtype) -> Dtype:
    """A dtype that the device computes with; `default` if none is given."""
    if dtype is None:
        return default
    found = as_dtype(dtype)
    xp.device.operations.abilities.check(found.name, xp.device.info)
    return found


def check_device(xp: Namespace, device: Device | None) -> None:
    """Raise unless `device` is None or the one that the namespace is for."""
    if device is not None and device is not xp.device:
        raise ArgumentError(
            f"device={device!r}: this namespace is that of {xp.device!r}; use device.xp of the "
            "other one, or x.to_device()"
        )


def asarray(
    xp: Namespace,
    obj: Any,
    /,
    *,
    dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
    copy: bool | None = None,
) -> Array:
    """An array of numbers, lists, NumPy arrays, or anything with `__dlpack__` or a buffer.

    An array of this device is returned as it is, unless a copy or another dtype is asked for.
    Everything else is copied to the device. Values that `dtype` cannot hold raise.
    """
    check_device(xp, device)
    if isinstance(obj, Array):
        if obj.device is not xp.device:
            raise ArgumentError(
                f"asarray: the array is on {obj.device}; obj.to_device(device) copies it"
            )
        if dtype is not None and as_dtype(dtype) != obj.dtype:
            if copy is False:
                raise InvalidValue(
                    f"asarray: {obj.dtype} becomes {as_dtype(dtype)} only by a copy, which "
                    "copy=False forbids"
                )
            return xp.astype(obj, as_dtype(dtype))
        return obj.copy() if copy else obj
    if copy is False:
        if hasattr(obj, "__dlpack__"):
            return xp.device.from_dlpack(obj)
        raise InvalidValue("asarray: values come to the device by a copy, which copy=False forbids")
    if not isinstance(obj, np.ndarray | np.generic) and hasattr(obj, "__dlpack__"):
        obj = np.from_dlpack(obj)
    made = xp.device.array(obj, None if dtype is None else as_dtype(dtype))
    xp.device.operations.abilities.check(made.dtype.name, xp.device.info)
    return made


def from_dlpack(
    xp: Namespace, x: Any, /, *, device: Device | None = None, copy: bool | None = None
) -> Array:
    """Another library's array: in place where the device can, else copied once."""
    check_device(xp, device)
    if isinstance(x, Array) and x.device is xp.device:
        return x.copy() if copy else x
    made = xp.device.from_dlpack(x)
    return made.copy() if copy else made


def empty(
    xp: Namespace, shape: Shape, *, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """An array of undefined content."""
    check_device(xp, device)
    return xp.device.empty(shape, checked_dtype(xp, dtype, DEFAULT_FLOAT))


def zeros(
    xp: Namespace, shape: Shape, *, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """An array of zeros."""
    check_device(xp, device)
    return xp.device.zeros(shape, checked_dtype(xp, dtype, DEFAULT_FLOAT))


def ones(
    xp: Namespace, shape: Shape, *, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """An array of ones."""
    check_device(xp, device)
    return xp.device.ones(shape, checked_dtype(xp, dtype, DEFAULT_FLOAT))


def full(
    xp: Namespace, shape: Shape, fill_value: Any, *, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """An array filled with one value; a pending one, or an array's, is waited for."""
    check_device(xp, device)
    value = number_of(fill_value)
    kind = checked_dtype(xp, dtype, default_dtype(value))
    return xp.device.full(shape, value, kind)


def empty_like(
    xp: Namespace, x: Array, /, *, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """An array of undefined content, with the shape and dtype of another."""
    check_arrays(xp, "empty_like", x)
    return empty(xp, x.shape, dtype=x.dtype if dtype is None else dtype, device=device)


def zeros_like(
    xp: Namespace, x: Array, /, *, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """An array of zeros, with the shape and dtype of another."""
    check_arrays(xp, "zeros_like", x)
    return zeros(xp, x.shape, dtype=x.dtype if dtype is None else dtype, device=device)


def ones_like(
    xp: Namespace, x: Array, /, *, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """An array of ones, with the shape and dtype of another."""
    check_arrays(xp, "ones_like", x)
    return ones(xp, x.shape, dtype=x.dtype if dtype is None else dtype, device=device)


def full_like(
    xp: Namespace, x: Array, /, fill_value: Any, *, dtype: npt.DTypeLike | None = None,
    device: Device | None = None,
) -> Array:  # fmt: skip
    """An array filled with one value, with the shape and dtype of another."""
    check_arrays(xp, "full_like", x)
    return full(xp, x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device)
