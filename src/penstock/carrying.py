"""NumPy arrays as arguments of a kernel: carried to the device, and back if it writes them.

Each gets a temporary array from the pool, so that from the second call on nothing is allocated.
Memory that the device can use in place (adopted, or from `host_empty`) is used in place. Whatever
the kernel writes is back in the caller's array when the call returns; that takes one wait, after
everything is queued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import adoption, transfer
from penstock.access import is_readable
from penstock.arguments import Slot, same_bytes
from penstock.array import Array
from penstock.dtypes import as_dtype
from penstock.errors import ArgumentError, DtypeMismatch, ReadOnly

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.stream import Stream

_WORK = 10_000  # steps to find out whether two arrays share memory

Host = npt.NDArray[Any]


class Carried(NamedTuple):
    """A NumPy array and the array that stands for it on the device."""

    host: Host
    array: Array
    back: bool  # the kernel writes it
    in_place: bool  # they are the same memory


def bring_in(
    device: Device, kernel: str, slot: Slot, host: Host, stream: Stream | None,
    carried: list[Carried],
) -> Array:  # fmt: skip
    """An array with the content of `host`, for a kernel to use; noted in `carried`."""
    label = f"{kernel}: argument {slot.name!r}"
    dtype = as_dtype(host.dtype)
    if slot.dtype is not None and not same_bytes(dtype, slot.dtype):
        raise DtypeMismatch(f"{label} must be {slot.dtype}, not {dtype}")
    if slot.writes:
        if not host.flags.writeable:
            raise ReadOnly(f"{label} is written by the kernel, and the NumPy array is read-only")
        if any(each.back and _share_memory(each.host, host) for each in carried):
            raise ArgumentError(f"{label}: two arguments that the kernel writes share memory")
    array = adoption.in_place(device, host, slot.alignment)
    in_place = array is not None
    if array is None:
        array = device.empty(host.shape, dtype, name=f"{slot.name} of {kernel}")
        array.write(host, stream)
    carried.append(Carried(host, array, slot.writes, in_place))
    return array


def bring_back(carried: list[Carried], stream: Stream, value: int) -> None:
    """Wait for the launch if the caller's memory has to do with it, and fill what it wrote."""
    if not any(each.back or each.in_place for each in carried):
        return
    scheduler = stream.scheduler
    copied = [each for each in carried if each.back and not each.in_place]
    # Where the host cannot read the memory itself, the device copies before the one wait.
    arriving = {
        number: transfer.read(each.array, stream, None)
        for number, each in enumerate(copied)
        if not is_readable(each.array.buffer)
    }
    points = {stream.lane: value}
    for pending in arriving.values():
        points.update(pending._points)
    scheduler.wait_for(points, None, "a kernel writes a NumPy array")
    for number, each in enumerate(copied):
        if number in arriving:
            np.copyto(each.host, arriving[number].result())
        else:
            transfer.read(each.array, stream, each.host)


def _share_memory(a: Host, b: Host) -> bool:
    """Whether two arrays have a byte in common; if that is hard to tell, they have."""
    try:
        return np.shares_memory(a, b, max_work=_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
