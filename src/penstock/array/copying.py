"""Copies between arrays of one device: by the driver, or by a kernel.

The driver copies contiguous runs, one region each. Layouts with many short runs, such as that of a
transposed array, are copied by a kernel (`penstock.ops.moves`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.array.host_access import capturing, stream_of
from penstock.ledger.hazards import Region
from penstock.memory.backing import Backing
from penstock.memory.copy_rows import copy_rows, in_short_runs, packed_rows
from penstock.schedule.pending import Pending

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.schedule.stream import Stream


def copy_on_device(array: Array, source: Array, stream: Stream | None) -> Pending[None]:
    """Copy one array into another of the same shape, dtype and device, in stream order."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    what = f"copy of {source.name} to {array.name}"
    if in_short_runs(source.layout) or in_short_runs(array.layout):
        return _copy_by_kernel(array, source, stream, what)
    scheduler.admit(stream)
    with scheduler.lock:
        on = stream_of(buffer, stream)
        source.buffer.check()
        buffer.check_write(array.region, "copy_from()")
        if not array.size:
            return scheduler.done
        if (graph := capturing(scheduler)) is not None:
            return graph.copy(array, source, stream, what)
        alone = source.buffer is not buffer
        target = buffer.backing_for(
            on, array.region, what, write=True, reads=not alone, overwrite=alone and array.is_whole
        )
        origin = source.buffer.backing_for(on, source.region, what, write=False)
        if origin is target and source.region.overlaps(array.region):
            value = _copy_overlapping(array, source, on, target, what)
        else:
            rows = copy_rows(source, origin, array, target)
            about = (array.name, array.region)
            value = on.copy(origin, source.region, target, array.region, rows, what, about)
        return Pending(scheduler, {on.lane: value}, what, value=None)


def _copy_by_kernel(array: Array, source: Array, stream: Stream | None, what: str) -> Pending[None]:
    """Copy between layouts that a driver's copy would move in too many regions."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    with scheduler.lock:
        on = stream_of(buffer, stream)
        source.buffer.check()
        buffer.check_write(array.region, "copy_from()")
    array.device.moves.copy(array, source, stream)
    with scheduler.lock:
        if (graph := capturing(scheduler)) is not None:
            return graph.recorded(what)
        return Pending(scheduler, {on.lane: on.recorded}, what, value=None)


def _copy_overlapping(
    array: Array, source: Array, stream: Stream, backing: Backing, what: str
) -> int:
    """Copy through temporary memory, so that the whole source is read first, as NumPy does."""
    pool = array.buffer.scheduler.pool
    between = pool.allocate(array.nbytes)
    try:
        packed = Region(0, array.nbytes)
        rows = packed_rows(source, backing, between, to_device=False)
        about = (source.name, source.region)
        stream.copy(backing, source.region, between, packed, rows, what, about)
        rows = packed_rows(array, backing, between, to_device=True)
        about = (array.name, array.region)
        return stream.copy(between, packed, backing, array.region, rows, what, about)
    finally:
        pool.retire(between)
