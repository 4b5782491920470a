"""The device works in the host's own memory: adopted arrays, `host_empty`, mapped files.

Memory that is adopted twice, whole or in part, must be one buffer, or the ledger could not see
that two arrays are the same bytes. So every piece of host memory a device uses is registered by
address, and adopting within a registered piece gives an array of the buffer that is there.
"""

from __future__ import annotations

import mmap
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock import tracing
from penstock.array import Array
from penstock.buffer import Buffer
from penstock.dtypes import Dtype, as_dtype
from penstock.errors import ArgumentError, CannotAdopt, InvalidValue
from penstock.hazards import Region
from penstock.layout import Layout
from penstock.memory import Backing, adopted_backing
from penstock.view import HostView

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.scheduler import Scheduler

Host = npt.NDArray[Any]


class Registry:
    """Which buffers are which host memory. Used under the device's lock."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, weakref.ref[Buffer]]] = []

    def add(self, lo: int, buffer: Buffer) -> None:
        self._entries.append((lo, lo + buffer.nbytes, weakref.ref(buffer)))

    def overlapping(self, lo: int, hi: int) -> list[tuple[int, Buffer]]:
        """The living buffers that share a byte with lo to hi, and where they start."""
        self._entries = [e for e in self._entries if (b := e[2]()) is not None and not b.closed]
        found = [(start, ref()) for start, end, ref in self._entries if start < hi and lo < end]
        return [(start, buffer) for start, buffer in found if buffer is not None]


def adopt(device: Device, source: Host, name: str) -> Array:
    """An array over the caller's memory; see `Device.adopt`."""
    if not isinstance(source, np.ndarray):
        raise ArgumentError(f"adopt takes a NumPy array, not {type(source).__name__}")
    dtype = as_dtype(source.dtype)
    if not source.size:
        return device.empty(source.shape, dtype, name=name)
    if any(n > 1 and s <= 0 for n, s in zip(source.shape, source.strides, strict=True)):
        raise CannotAdopt(
            f"an array with strides {source.strides} repeats or reverses its elements; "
            "adopt the array it is a view of"
        )
    address = source.__array_interface__["data"][0]
    span = 1 + sum((n - 1) * s for n, s in zip(source.shape, source.strides, strict=True))
    span += dtype.itemsize - 1
    scheduler = device.scheduler
    with scheduler.lock:
        scheduler.check()
        scheduler.drain()
        back = _bring_back(device, address, address + span)
        there = device.adopted.overlapping(address, address + span)
        if there:
            start, buffer = there[0]
            if len(there) > 1 or address < start or address + span > start + buffer.nbytes:
                raise CannotAdopt(
                    f"part of this memory is already adopted as array {buffer.name!r}, which "
                    "does not contain all of it; adopt the enclosing array first, and slice that"
                )
            offset = address - start
            buffer.name = name or buffer.name
            del back  # kept until here, where it is found among the adopted
        else:
            _check_alignment(scheduler, address)
            buffer, offset = _import(device, address, span, source, name), 0
        if tracing.active:
            tracing.emit(
                "adopt", "the caller's memory is used in place", buffer=buffer.name,
                lo=offset, hi=offset + span, path="adopt",
            )  # fmt: skip
    return Array(buffer, Layout(offset, source.shape, source.strides, dtype.itemsize), dtype)


def host_empty(device: Device, shape: tuple[int, ...], dtype: Dtype) -> Host:
    """A NumPy array in memory that the device can use too; see `Device.host_empty`."""
    nbytes = max(1, dtype.itemsize * int(np.prod(shape, dtype=object)))
    scheduler = device.scheduler
    with scheduler.lock:
        scheduler.check()
        scheduler.drain()
        backing = scheduler.host_pool.allocate(nbytes)
        buffer = Buffer(scheduler, backing, nbytes, scheduler.new_name(), pinned=True)
        device.adopted.add(backing.memory.address + backing.offset, buffer)
        shown = HostView(scheduler, backing, Region(0, nbytes), write=True, owner=buffer)
    return shown.array(shape, dtype)


def from_file(
    device: Device, path: Path, dtype: Dtype, shape: tuple[int, ...], offset: int, name: str
) -> Array:
    """A part of a file as an array; see `Device.from_file`."""
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=object))
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if offset < 0 or offset + nbytes > size:
            raise InvalidValue(
                f"{path}: {shape} of {dtype} at offset {offset} needs bytes up to "
                f"{offset + nbytes:,}, the file has {size:,}"
            )
        if not nbytes:
            return device.empty(shape, dtype, name=name or path.name)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    whole = np.frombuffer(mapped, np.uint8)
    part = np.ndarray(shape, dtype, buffer=whole, offset=offset)
    try:
        return adopt(device, part, name or path.name)
    except CannotAdopt as error:
        if tracing.active:
            tracing.emit("fallback", f"{path.name} is copied: {error}", path="copy")
        return device.array(part, name=name or path.name)


def _bring_back(device: Device, lo: int, hi: int) -> Buffer | None:
    """A buffer for memory that was adopted and dropped, but that work in flight still uses.

    Its history must not be lost: whoever adopts the memory again is ordered after that work.
    """
    scheduler = device.scheduler
    entry = scheduler.reclaim(lo, hi)
    if entry is None:
        return None
    backing, kept = entry
    return _adopted_buffer(device, backing, kept, scheduler.new_name())


def _import(device: Device, address: int, span: int, source: Host, name: str) -> Buffer:
    """Import the whole pages around the caller's bytes."""
    scheduler = device.scheduler
    page = device.info.limits["import_alignment"]
    assert isinstance(page, int)
    page = max(page, mmap.PAGESIZE)
    lo = address // page * page
    hi = -(-(address + span) // page) * page
    memory = scheduler.driver.import_host(lo, hi - lo)
    backing = adopted_backing(memory, address - lo, span)
    scheduler.adopted_bytes += span
    return _adopted_buffer(device, backing, source, name or scheduler.new_name())


def _adopted_buffer(device: Device, backing: Backing, source: Host, name: str) -> Buffer:
    writable = bool(source.flags.writeable)
    buffer = Buffer(
        device.scheduler, backing, backing.nbytes, name,
        pinned=True, writable=writable, kept=source,
    )  # fmt: skip
    device.adopted.add(backing.memory.address + backing.offset, buffer)
    return buffer


def _check_alignment(scheduler: Scheduler, address: int) -> None:
    needed = scheduler.driver.info.limits["binding_alignment"]
    assert isinstance(needed, int)
    if address % needed:
        raise CannotAdopt(
            f"the array starts at address {address:#x}, and kernels on {scheduler.name} need "
            f"arrays to start at a multiple of {needed} bytes; make the array with "
            "dev.host_empty(shape, dtype), or copy with dev.array(x)"
        )
