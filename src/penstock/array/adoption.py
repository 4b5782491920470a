"""Arrays in host memory that the device uses in place: adopted arrays, `host_empty`, mapped files.

Every adoption makes a new buffer, with its own name and permission; buffers over the same memory
share one backing and so one ledger page (see `penstock.memory.host_memory`).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.array.buffer import Buffer
from penstock.array.view import HostView
from penstock.driver.protocol import Memory
from penstock.dtypes import Dtype, as_dtype
from penstock.errors import ArgumentError, CannotAdopt, CannotRead, InvalidValue, RoleViolation
from penstock.ledger.hazards import Lane, Region
from penstock.memory.backing import Backing, adopted_backing
from penstock.memory.layout import Layout
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.scheduler import Scheduler

Host = npt.NDArray[Any]


def adopt(device: Device, source: Host, name: str) -> Array:
    """An array over the caller's memory; see `Device.adopt`."""
    if not isinstance(source, np.ndarray):
        raise ArgumentError(f"adopt takes a NumPy array, not {type(source).__name__}")
    source = np.asarray(source)
    dtype = as_dtype(source.dtype)
    if not source.size:
        return device.empty(source.shape, dtype, name=name)
    scheduler = device.scheduler
    while True:
        with scheduler.lock:
            scheduler.check()
            scheduler.drain()
            adopted = _adopt(device, source, dtype, name)
        if isinstance(adopted, Array):
            return adopted
        reason = "part of the memory is still in flight from an earlier adoption"
        scheduler.wait_for(adopted, None, reason)


def _adopt(
    device: Device, source: Host, dtype: Dtype, name: str, *, may_be_sealed: bool = False
) -> Array | dict[Lane, int]:
    """The array over the caller's memory, or the points to wait for before it can be made.

    Over a sealed weight, the array is read-only.
    """
    scheduler = device.scheduler
    span = _span(source)
    address = source.__array_interface__["data"][0]
    found = _backing(device, source, address, address + span)
    if isinstance(found, dict):
        return found
    backing, offset = found
    region = Region(offset, offset + span)
    sealed = scheduler.host_memory.sealed(backing, region)
    if sealed is not None and source.flags.writeable and not may_be_sealed:
        raise RoleViolation(
            f"adopt() of writable memory of array {sealed.name!r}, which has the role "
            "'weight': a sealed weight is never written; adopt a read-only NumPy array of it"
        )
    buffer = Buffer(
        scheduler,
        backing,
        backing.nbytes,
        name or scheduler.new_name(),
        pinned=True,
        writable=bool(source.flags.writeable) and sealed is None,
    )
    buffer.whole = region
    scheduler.host_memory.add_buffer(buffer)
    if events.active:
        events.emit(
            "adopt", "the caller's memory is used in place", buffer=buffer.name,
            lo=offset, hi=offset + span, path="adopt",
        )  # fmt: skip
    return Array(buffer, Layout(offset, source.shape, source.strides, dtype.itemsize), dtype)


def in_place(device: Device, source: Host, alignment: int) -> Array | None:
    """An array over memory that the device already uses in place; None for other memory."""
    scheduler = device.scheduler
    with scheduler.lock:
        if not scheduler.host_memory or not source.size or not source.flags.c_contiguous:
            return None
        lo = source.__array_interface__["data"][0]
        hi = lo + source.nbytes
        for start, end, backing in scheduler.host_memory.overlapping(lo, hi):
            aligned = (backing.offset + lo - start) % alignment == 0
            if start <= lo and hi <= end and aligned:
                adopted = _adopt(device, source, as_dtype(source.dtype), "", may_be_sealed=True)
                assert isinstance(adopted, Array)  # never points: it lies within adopted memory
                return adopted
    return None


def host_empty(device: Device, shape: tuple[int, ...], dtype: Dtype) -> Host:
    """A NumPy array in memory that the device can use in place; see `Device.host_empty`."""
    nbytes = max(1, dtype.itemsize * math.prod(shape))
    scheduler = device.scheduler
    with scheduler.lock:
        scheduler.check()
        scheduler.drain()
        backing = scheduler.host_pool.allocate(nbytes)
        buffer = Buffer(scheduler, backing, nbytes, scheduler.new_name(), pinned=True)
        scheduler.host_memory.add(backing, nbytes)
        shown = HostView(scheduler, backing, Region(0, nbytes), write=True, owner=buffer)
    return shown.array(shape, dtype)


def from_file(
    device: Device, path: Path, dtype: Dtype, shape: tuple[int, ...], offset: int, name: str
) -> Array:
    """A part of a file as an array; see `Device.from_file`."""
    try:
        offset = operator.index(offset)
    except TypeError as error:
        raise ArgumentError(f"offset= is a number of bytes, not {offset!r}") from error
    name = name or path.name
    if not math.prod(shape):
        _map(path, dtype, shape, offset)  # raises if the file is missing or too short
        return device.empty(shape, dtype, name=name)
    part, shared = _map(path, dtype, shape, offset)
    try:
        return adopt(device, part, name)
    except CannotAdopt as error:
        reason = error
    if shared:
        # Other arrays over the shared mapping may prevent it; a new mapping has none.
        with contextlib.suppress(CannotAdopt, CannotRead):
            return adopt(device, _map(path, dtype, shape, offset, anew=True)[0], name)
    if events.active:
        events.emit("fallback", f"{path.name} is copied: {reason}", path="copy")
    copied = device.array(part, name=name)
    copied.buffer.make_read_only()
    return copied


#: The mapped files in use, by device, inode, time of change and size. Each mapping keeps a file
#: descriptor open, so arrays of one file share a mapping.
_mapped: WeakValueDictionary[tuple[int, ...], mmap.mmap] = WeakValueDictionary()


def _map(
    path: Path, dtype: Dtype, shape: tuple[int, ...], offset: int, *, anew: bool = False
) -> tuple[Host, bool]:
    """A part of a file as a read-only NumPy array, and whether it shares a mapping with others."""
    nbytes = dtype.itemsize * math.prod(shape)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if offset < 0 or offset + nbytes > size:
                raise InvalidValue(
                    f"{path}: {shape} of {dtype} at offset {offset} needs bytes up to "
                    f"{offset + nbytes:,}, the file has {size:,}"
                )
            if not nbytes:
                return np.empty(shape, dtype), False
            found = os.fstat(file.fileno())
            key = (found.st_dev, found.st_ino, found.st_mtime_ns, size)
            mapped = None if anew else _mapped.get(key)
            shared = mapped is not None
            if mapped is None:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if not anew:
                _mapped[key] = mapped
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise CannotRead(f"{path} cannot be read: {error}") from error
    whole = np.frombuffer(mapped, np.uint8)
    return np.ndarray(shape, dtype, buffer=whole, offset=offset), shared


def from_dlpack(device: Device, source: Any, name: str) -> Array:
    """Another library's array, in place if possible; see `Device.from_dlpack`."""
    if isinstance(source, Array) and source.device is device:
        return source
    if not hasattr(source, "__dlpack__"):
        raise ArgumentError(f"{type(source).__name__} does not support DLPack; use dev.array")
    try:
        host = np.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{type(source).__name__} cannot be shared with the host through DLPack ({error}); "
            f"{_how_to_share(source)}"
        ) from error
    try:
        return adopt(device, host, name)
    except CannotAdopt as error:
        if events.active:
            events.emit("fallback", f"{type(source).__name__} is copied: {error}", path="copy")
    return device.array(host, name=name)


def _how_to_share(source: Any) -> str:
    """Advice for another library's array that NumPy cannot import through DLPack."""
    dtype = str(getattr(source, "dtype", "")).rpartition(".")[2]
    if getattr(source, "requires_grad", False):
        return "pass x.detach(), which does not take part in gradients"
    if dtype.startswith(("bfloat16", "float8")):
        whole = "uint16" if dtype == "bfloat16" else "uint8"
        return (
            f"NumPy does not import {dtype} through DLPack: pass its bits, x.view({whole}), and "
            f"call reinterpret({dtype!r}) on the array"
        )
    try:
        on_cpu = source.__dlpack_device__()[0] == 1  # kDLCPU
    except Exception:  # the other library's code may raise anything; the advice stays the same
        on_cpu = False
    return "copy it to a NumPy array and use dev.array" if on_cpu else "move it to the CPU first"


def _span(source: Host) -> int:
    """The bytes from an array's first to its last; raises if elements overlap or are reversed."""
    span = source.itemsize
    for stride, count in sorted(zip(source.strides, source.shape, strict=True)):
        if count > 1:
            if stride < span:
                raise CannotAdopt(
                    f"an array with strides {source.strides} repeats or reverses its elements; "
                    "adopt the array it is a view of"
                )
            span += (count - 1) * stride
    return span


def _backing(
    device: Device, source: Host, lo: int, hi: int
) -> tuple[Backing, int] | dict[Lane, int]:
    """The backing over this memory, registered or new, and the memory's offset in it.

    Or, if part of it was adopted before and is still in flight, the points at which it no longer
    is.
    """
    scheduler = device.scheduler
    for start, end, backing in scheduler.host_memory.overlapping(lo, hi):
        if start <= lo and hi <= end:
            return backing, lo - start
        if backing.owners:
            raise CannotAdopt(
                "part of this memory is already adopted as an array that does not contain all of "
                "it; adopt the enclosing array first, and slice that"
            )
        if backing.holds:
            raise CannotAdopt(
                "a live view shows part of this memory through a closed array that does not "
                "contain all of it; drop the view (del it and all its slices) first"
            )
        if pending := backing.history.pending():
            return pending
        # The old backing is idle now. It must be removed before a new one covers the same bytes:
        # two ledger pages for one byte could not order their work against each other.
        scheduler.drain()
    _check_alignment(scheduler, lo)
    page: Any = device.info.limits["import_alignment"]
    page = max(page, mmap.PAGESIZE)
    first, last = lo // page * page, -(-hi // page) * page
    imported: list[Memory] = []
    try:
        # One interpreter step imports the memory and stores the result, so an interrupt cannot
        # come in between.
        imported.extend(map(scheduler.driver.import_host, (first,), (last - first,)))
        backing = adopted_backing(imported[0], lo - first, hi - lo, source)
    except BaseException:
        for memory in imported:
            scheduler.driver.free(memory)
        raise
    # Right after, with no call in between: if no buffer takes it, because of an exception, the next
    # `drain` frees it.
    scheduler.retirement.adopted.add(backing)
    scheduler.host_memory.add(backing, hi - lo)
    return backing, 0


def _check_alignment(scheduler: Scheduler, address: int) -> None:
    needed: Any = scheduler.driver.info.limits["binding_alignment"]
    if address % needed:
        raise CannotAdopt(
            f"the array starts at address {address:#x}, and kernels on {scheduler.name} need "
            f"arrays to start at a multiple of {needed} bytes; make the array with "
            "dev.host_empty(shape, dtype), or copy with dev.array(x)"
        )
