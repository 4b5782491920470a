"""NumPy arrays as arguments of a kernel: copied to the device, and back if the kernel writes them.

Each is copied to a temporary array, which its parameter keeps for the next call, so that from the
second call on nothing is allocated. Memory that the device can use in place (adopted, or from
`host_empty`) is used in place; a part of it that cannot be bound is copied, after the work in
flight that conflicts with the copy. When the call returns, the caller's array has what the kernel
wrote; that takes one wait, after everything is recorded.

Only one call at a time uses a temporary. So the host fills it without asking the ledger, once no
launch in flight uses it, and copies it back when the launch is complete. Where the host cannot
reach the memory, but the driver copies to it from the caller's (HIP), that copy takes its place.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array import adoption, transfer
from penstock.array.array import Array
from penstock.array.host_access import (
    check_not_sealed,
    emit_copy,
    flush,
    host_array,
    host_memory_at_rest,
    invalidate,
    is_mapped,
    is_readable,
)
from penstock.driver.protocol import as_copying
from penstock.dtypes import Dtype, as_dtype
from penstock.errors import ArgumentError, DeviceLost, DtypeMismatch, Error, ReadOnly
from penstock.launch.arguments import KernelParameter, how_to_convert, same_bytes
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.stream import Stream

_WORK = 10_000  # the bound on the search of np.shares_memory

Host = npt.NDArray[Any]

_LOOK_AT = 8  # temporaries to test for completion, least recently used first
_FEW, _MANY = 8, 256  # temporaries of one shape that a parameter keeps: large ones, small ones
_ROOM = 1 << 24  # bytes of small temporaries of one shape that a parameter keeps


class Carried(NamedTuple):
    """A NumPy argument and the device array that stands for it."""

    host: Host
    array: Array
    parameter: KernelParameter
    in_place: bool  # the device uses the caller's memory

    @property
    def back(self) -> bool:
        """Whether the kernel writes it."""
        return self.parameter.writes


def bring_in(
    device: Device, kernel: str, parameter: KernelParameter, host: Host, stream: Stream | None,
    carried: list[Carried],
) -> Array:  # fmt: skip
    """An array with the content of `host`, for a kernel to use; added to `carried`."""
    label = f"{kernel}: argument {parameter.name!r}"
    host = np.asarray(host)  # not a subclass, whose code could run during a copy
    dtype = as_dtype(host.dtype)
    if parameter.dtype is not None and not same_bytes(dtype, parameter.dtype):
        raise DtypeMismatch(
            f"{label} must be {parameter.dtype}, not {dtype}"
            f"{how_to_convert(parameter, host.shape, 'np')}"
        )
    if parameter.writes:
        device.scheduler.check_can_wait(stream)
        if not host.flags.writeable:
            raise ReadOnly(f"{label} is written by the kernel, and the NumPy array is read-only")
        if any(each.back and _share_memory(each.host, host) for each in carried):
            raise ArgumentError(f"{label}: two arguments that the kernel writes share memory")
        with device.scheduler.lock:
            check_not_sealed(device.scheduler, host, label)
    array = adoption.in_place(device, host, parameter.alignment)
    if array is not None:
        carried.append(Carried(host, array, parameter, in_place=True))
        return array
    scheduler = device.scheduler
    if parameter.writes:
        # Before the launch, so that a call launches nothing if it may not write the array back.
        with host_memory_at_rest(scheduler, host, write=True, what=label):
            pass
    array = _temporary(device, parameter, host.shape, dtype, f"{parameter.name} of {kernel}")
    carried.append(Carried(host, array, parameter, in_place=False))
    with host_memory_at_rest(scheduler, host, write=False, what=label) as adopted:
        if is_mapped(array.buffer):
            scheduler.shutdown.use(partial(_fill, array, host))
            return array
        if _by_driver(array, parameter, host) and _is_idle(array):
            scheduler.shutdown.use(partial(_copy_by_driver, array, host, back=False))
            return array
        # A large write may wait for room on the stream, whose work may wait for the end of this
        # block. So adopted memory is copied here and written after the block.
        source = host.copy() if adopted else host
    array.write(source, stream)
    return array


def bring_back(carried: list[Carried], stream: Stream, value: int) -> None:
    """Wait for a launch that reads or writes the caller's memory; copy back what it wrote."""
    _finish_recorded(carried, stream, value)
    with stream.scheduler.lock:
        for each in carried:
            if not each.in_place:
                spare = each.parameter.spare
                spare.append(each.array)
                if len(spare) > _kept(each.array.nbytes):
                    spare.pop(0)


def _finish_recorded(carried: list[Carried], stream: Stream, value: int) -> None:
    try:
        _finish(carried, stream, value)
    except Error:
        raise
    except BaseException:
        # The launch is recorded, so its results must reach the caller's arrays: finish, then raise.
        # A second interrupt stops this as well.
        _finish(carried, stream, value)
        raise


def bring_back_carried(
    carried: list[tuple[Host, Array, KernelParameter]], stream: Stream, value: int
) -> None:
    """`bring_back` for a call that the native step has made; it keeps the temporaries."""
    _finish_recorded([Carried(*each, in_place=False) for each in carried], stream, value)


def _finish(carried: list[Carried], stream: Stream, value: int) -> None:
    scheduler = stream.scheduler
    if any(each.back or each.in_place for each in carried):
        copied = [each for each in carried if each.back and not each.in_place]
        # Where the host cannot read the memory directly, the driver copies it after the wait, or
        # the device before it.
        arriving = {
            number: transfer.read(each.array, stream, None)
            for number, each in enumerate(copied)
            if not is_readable(each.array.buffer)
            and not _by_driver(each.array, each.parameter, each.host)
        }
        points = {stream.lane: value}
        for pending in arriving.values():
            points.update(pending._points)
        scheduler.wait_for(points, None, "a kernel writes a NumPy array")
        for number, each in enumerate(copied):
            what = f"argument {each.parameter.name!r}"
            with host_memory_at_rest(scheduler, each.host, write=True, what=what):
                if number in arriving:
                    start = events.clock() if events.active else 0.0
                    np.copyto(each.host, arriving[number].result())
                    if events.active:
                        emit_copy(each.array, "staged", "to the caller's array", start)
                elif is_readable(each.array.buffer):
                    scheduler.shutdown.use(partial(_empty, each))
                else:
                    copy = partial(_copy_by_driver, each.array, each.host, back=True)
                    scheduler.shutdown.use(copy)


def _temporary(
    device: Device, parameter: KernelParameter, shape: tuple[int, ...], dtype: Dtype, name: str
) -> Array:
    """An array that no call and no launch in flight uses.

    Bounds the memory of a program that launches with new data repeatedly and never waits: blocks
    until the oldest temporary is idle once `_kept` of this shape are in flight.
    """
    scheduler = device.scheduler
    with scheduler.lock:
        fitting = [
            number
            for number, array in enumerate(parameter.spare)
            if array.shape == shape and array.dtype == dtype
        ]
        for number in fitting[:_LOOK_AT]:
            history = parameter.spare[number].buffer.backing.history
            for lane in history.pending():
                lane.owner.poll()
            if not history.pending():
                return parameter.spare.pop(number)
        oldest = None
        if fitting and len(fitting) >= _kept(parameter.spare[fitting[0]].nbytes):
            oldest = parameter.spare.pop(fitting[0])
    if oldest is None:
        return device.empty(shape, dtype, name=name)
    points = oldest.buffer.backing.history.pending()
    full = f"{len(fitting)} copies of argument {name} in flight"
    scheduler.wait_for(points, None, full, buffer=name, path="bound")
    return oldest


def _kept(nbytes: int) -> int:
    """How many temporaries of this size a parameter keeps, and may have in flight."""
    return max(_FEW, min(_ROOM // max(1, nbytes), _MANY))


def _fill(array: Array, host: Host) -> None:
    backing = array.buffer.backing
    start = events.clock() if events.active else 0.0
    np.copyto(host_array(array, backing), host)
    flush(array.buffer.scheduler, backing, array.layout)
    if events.active:
        emit_copy(array, "direct", "a NumPy argument", start)


def _empty(each: Carried) -> None:
    array = each.array
    backing = array.buffer.backing
    start = events.clock() if events.active else 0.0
    invalidate(array.buffer.scheduler, backing, array.layout)
    np.copyto(each.host, host_array(array, backing))
    if events.active:
        emit_copy(array, "direct", "a NumPy argument", start)


def _by_driver(array: Array, parameter: KernelParameter, host: Host) -> bool:
    """Whether the driver copies between the caller's memory and a temporary, once each way.

    The calling thread waits for such a copy, so a small one that nothing else waits for is made in
    stream order instead.
    """
    scheduler = array.buffer.scheduler
    waits = parameter.writes or host.nbytes >= scheduler.sizes.driver_copy
    return scheduler.driver.copies and waits and host.flags.c_contiguous


def _is_idle(array: Array) -> bool:
    """Whether no work in flight uses a temporary. A new one may still have to be cleared."""
    with array.buffer.scheduler.lock:
        return not array.buffer.backing.history.pending()


def _copy_by_driver(array: Array, host: Host, *, back: bool) -> None:
    scheduler = array.buffer.scheduler
    driver = as_copying(scheduler.driver)
    assert driver is not None
    backing = array.buffer.backing
    copy = driver.copy_out if back else driver.copy_in
    offset = backing.offset + array.layout.offset
    start = events.clock() if events.active else 0.0
    try:
        copy(backing.memory, offset, host.__array_interface__["data"][0], host.nbytes)
    except DeviceLost as error:
        scheduler.mark_lost(error)
        raise
    if events.active:
        emit_copy(array, "direct", "a NumPy argument", start)


def _share_memory(a: Host, b: Host) -> bool:
    """Whether two arrays share a byte; True if that takes too long to find out."""
    try:
        return np.shares_memory(a, b, max_work=_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
