"""Transfers between host and device: the choice of a path, then the copy.

A write takes the cheapest path that keeps its place in the program (`choose_write`):

=========  =========================================================  ======  =====
path       when                                                       copies  waits
=========  =========================================================  ======  =====
direct     mapped memory, nothing pending touches the bytes           1       0
rename     the whole buffer is replaced while busy: a fresh backing   1       0
ordered    busy, large and borrowed: a copier thread copies when its  1       0
           predecessors are done, and work on the bytes waits for it
staged     busy otherwise, or not mapped: snapshot now, device copy   2       0
           in stream order
=========  =========================================================  ======  =====

(The fifth path, adopting the caller's memory, makes no transfer at all: see
`penstock.array.adoption`.)

An asynchronous read is *direct* when nothing pending writes the bytes, else *staged*: a device copy
in stream order. `read_now` and `view` block anyway, so they wait for the writers instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import accelerator
from penstock.array.copying import copy_on_device
from penstock.array.host_access import (
    Conflicts,
    at_once,
    capturing,
    check_host_memory,
    check_no_writable_view,
    check_not_capturing,
    check_source,
    check_views_of_others,
    conflicts_of,
    copy_now,
    emit_copy,
    flush,
    host_array,
    host_copy,
    host_memory_at_rest,
    is_mapped,
    is_readable,
    note_host_memory,
    stream_of,
)
from penstock.array.host_values import check_out, checked_source, fill_word, one_element
from penstock.array.staging import read_staged, write_staged
from penstock.array.view import HostView
from penstock.errors import ArgumentError, DtypeMismatch, ShapeMismatch
from penstock.ledger.hazards import Lane, Region
from penstock.memory.backing import Backing
from penstock.schedule.ordered_copies import Task
from penstock.schedule.pending import Pending
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.schedule.stream import Stream

MODES = ("auto", "direct", "rename", "staged", "ordered", "unmapped")
#: "auto" without renaming, to measure what renaming saves. It takes no path that "auto" does not.
FIXED = "fixed"

Host = npt.NDArray[Any]


class Case(NamedTuple):
    """Everything the choice of a write's path depends on."""

    mapped: bool
    busy: bool
    whole: bool  # the write replaces all of the buffer
    renamable: bool
    borrowed: bool
    large: bool  # a copy by a thread is cheaper than a second copy
    shown: bool = False  # a view shows bytes that the write replaces


def choose_write(mode: str, case: Case) -> tuple[str, str]:
    """The path of a write and why, in decision order; `mode` forces one where it is safe."""
    allowed = {
        "direct": case.mapped and not case.busy,
        "rename": case.mapped and case.whole and case.renamable and mode != FIXED,
        "ordered": case.mapped and case.borrowed and not case.shown,
        "staged": True,
    }
    if allowed.get(mode):
        return mode, "forced"
    forced = (
        "" if mode in ("auto", FIXED, "unmapped") else f", because {mode!r} is not possible here"
    )
    if not case.mapped:
        return "staged", f"memory is not mapped{forced}"
    if not case.busy:
        return "direct", f"nothing pending touches the bytes{forced}"
    if allowed["rename"]:
        return "rename", f"the whole busy buffer is replaced{forced}"
    if case.borrowed and case.large and case.shown:
        return "staged", f"busy, large and borrowed, but a view shows the bytes{forced}"
    if case.borrowed and case.large:
        return "ordered", f"busy, large and borrowed{forced}"
    return "staged", f"busy{forced}"


def choose_read(conflicts: Conflicts, *, behind: bool, readable: bool) -> tuple[str, str]:
    """The path of an asynchronous read and why. `behind`: a copy to the same `out=` comes first."""
    if conflicts.points or behind:
        return "staged", "busy"
    if not readable or conflicts.hidden:
        return "staged", "memory is not readable"
    return "direct", "nothing pending writes the bytes"


# Writes.


def write(
    array: Array, source: npt.ArrayLike, stream: Stream | None, borrow: bool
) -> Pending[None]:
    if isinstance(source, type(array)):
        return copy(array, source, stream)
    buffer = array.buffer
    scheduler = buffer.scheduler
    if stream is None and accelerator.native.write(array, source):
        return scheduler.done
    check_source(scheduler, source)
    data = checked_source(array, source)
    borrow = bool(borrow)
    if stream is not None:
        scheduler.stream_or_default(stream)
    with scheduler.lock:
        target = at_once(array, write=True)
        if target is not None:
            check_host_memory(scheduler, data, write=False, what="the source")
            np.copyto(target, data)
            events.count("copy", array.nbytes)
            return scheduler.done
    return scheduler.host_copies.carry_out(partial(_begin_write, array, data, stream, borrow))


def _begin_write(array: Array, data: Host, stream: Stream | None, borrow: bool) -> Pending[None]:
    """The part of a write under the lock; `carry_out` finishes the copies that it begins."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    what = f"write of {buffer.name}"
    on = stream_of(buffer, stream)
    buffer.check_write(array.region, "write()", by_host=True)
    if not array.size:
        return scheduler.done
    check_host_memory(scheduler, data, write=False, what="the source")
    if (graph := capturing(scheduler)) is not None:
        return graph.write(array, data, stream, what)
    conflicts = conflicts_of(array, write=True)
    check_no_writable_view(buffer, conflicts)
    case = Case(
        mapped=is_mapped(buffer),
        busy=conflicts.busy,
        whole=array.contiguous and array.is_whole,
        renamable=buffer.can_rename,
        borrowed=borrow,
        large=array.nbytes >= scheduler.sizes.ordered,
        shown=bool(conflicts.views),
    )
    path, why = choose_write(scheduler.transfers, case)
    if path == "staged":
        return write_staged(array, data, on, why, what)
    if path == "ordered":
        return _write_ordered(array, data, on, conflicts.points, why, what)
    if path == "rename":
        fresh = buffer.new_backing()
        target = host_array(array, fresh)
        fill_it = partial(copy_now, array, fresh, target, data, write=True, path=path, why=why)
        if array.nbytes <= scheduler.sizes.under_lock:
            fill_it()
            buffer.rename(why, fresh)
            buffer.wrote(array.region)
        else:
            scheduler.host_copies.begun.append(RenamedWrite(array, data, fresh, fill_it, why))
        return scheduler.done
    backing = buffer.backing
    buffer.wrote(array.region)
    host_copy(array, backing, host_array(array, backing), data, write=True, path=path, why=why)
    return scheduler.done


class RenamedWrite:
    """A large write to a fresh backing, which replaces the buffer's once it is filled."""

    __slots__ = ("_array", "_data", "_fill_it", "_fresh", "_old", "_why")

    def __init__(
        self, array: Array, data: Host, fresh: Backing, fill_it: Callable[[], None], why: str
    ) -> None:
        self._array = array
        self._data = data
        self._old = array.buffer.backing
        self._fresh = fresh
        self._fill_it = fill_it
        self._why = why

    def finish(self) -> bool:
        """Fill the backing without the lock; False if another thread changed the buffer since."""
        array = self._array
        buffer = array.buffer
        scheduler = buffer.scheduler
        with host_memory_at_rest(scheduler, self._data, write=False, what="the source"):
            scheduler.shutdown.use(self._fill_it)
        with scheduler.lock:
            scheduler.check()
            buffer.check()
            buffer.check_write(array.region, "write()", by_host=True)
            # A writable view that another thread took meanwhile writes to the old backing, and
            # those writes must not be lost.
            held = any(view.writable for view in buffer.views_of(array.region))
            if buffer.backing is self._old and buffer.can_rename and not held:
                buffer.rename(self._why, self._fresh)
                buffer.wrote(array.region)
                return True
            scheduler.retire(self._fresh)
        return False

    def abandon(self) -> None:
        """Do nothing: no work waits for the copy, and a dropped backing returns to its pool."""


def _write_ordered(
    array: Array, data: Host, stream: Stream, points: dict[Lane, int], why: str, what: str
) -> Pending[None]:
    scheduler = array.buffer.scheduler
    backing = array.buffer.backing
    for lane, value in points.items():
        lane.owner.ensure_submitted(value)
    copier = stream.copier
    target = host_array(array, backing)

    def copy_now() -> None:
        np.copyto(target, data)
        flush(scheduler, backing, array.layout)

    task = Task(points, copy_now, nbytes=array.nbytes)
    try:
        value = copier.add(task)
        if events.active:
            emit_copy(array, "ordered", why, at=(copier.lane.place, value, 0))
        backing.history.note(array.region, True, copier.lane, value, what)
        note_host_memory(scheduler, data, False, copier.lane, value, what)
    except BaseException:
        task.cancelled = True
        raise
    return Pending(scheduler, {copier.lane: value}, what, value=None)


def fill(array: Array, value: Any, stream: Stream | None) -> Pending[None]:
    """Set every element: by the host if that is quick and allowed, else by the device."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    check_source(scheduler, value)
    element = one_element(array, value)
    if stream is not None:
        scheduler.stream_or_default(stream)
    with scheduler.lock:
        target = at_once(array, write=True)
        if target is not None:
            target[...] = element
            events.count("fill", array.nbytes)
            return scheduler.done
    what = f"fill of {buffer.name}"
    begin = partial(_begin_fill, array, value, element, stream, what)
    return scheduler.host_copies.carry_out(begin)


def fill_locked(array: Array, value: Any, stream: Stream | None) -> None:
    """`fill` a small array now, even while a graph is recorded. The caller holds the lock."""
    on = stream_of(array.buffer, stream)
    _fill_now(array, one_element(array, value), on, f"fill of {array.name}", patient=False)


def _begin_fill(
    array: Array, value: Any, element: Host, stream: Stream | None, what: str
) -> Pending[None]:
    buffer = array.buffer
    scheduler = buffer.scheduler
    on = stream_of(buffer, stream)
    buffer.check_write(array.region, "fill()", by_host=True)
    if not array.size:
        return scheduler.done
    graph = capturing(scheduler)
    if graph is None:
        return _fill_now(array, element, on, what, patient=True)
    word = fill_word(array, element)
    if word is None:
        return graph.write(array, np.broadcast_to(element, array.shape), stream, what)
    return graph.fill(array, word, value, stream, what)


def _fill_now(
    array: Array, element: Host, on: Stream, what: str, *, patient: bool
) -> Pending[None]:
    """Fill outside of a graph. `patient` callers handle `NoRoom`."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    conflicts = conflicts_of(array, write=True)
    if not conflicts.hidden and not conflicts.points:
        check_no_writable_view(buffer, conflicts)  # else the fill is made by the device, after it
    if is_mapped(buffer) and array.nbytes <= scheduler.sizes.under_lock and not conflicts.busy:
        start = events.clock() if events.active else 0.0
        host_array(array, buffer.backing)[...] = element
        flush(scheduler, buffer.backing, array.layout)
        buffer.wrote(array.region)
        if events.active:
            seconds = events.since(start, array.nbytes)
            _emit_fill(array, "direct", start=start, seconds=seconds)
        return scheduler.done
    word = fill_word(array, element)
    if word is None:
        return write_staged(array, np.broadcast_to(element, array.shape), on, "fill pattern", what)
    if patient:
        on.need_room()
    backing = buffer.backing_for(
        on, array.region, what, write=True, reads=False, overwrite=array.is_whole
    )
    uses = ((backing.history, array.region, True),)
    offset = backing.offset + array.region.lo
    on.begin(uses, what).fill(backing.memory, offset, array.nbytes, word)
    if events.active:
        _emit_fill(array, "device", at=on.here())
    return Pending(scheduler, {on.lane: on.end()}, what, value=None)


def copy(array: Array, source: Array, stream: Stream | None) -> Pending[None]:
    """Copy array to array, on the device."""
    if not isinstance(source, type(array)):
        raise ArgumentError(
            f"copy_from takes an Array, not {type(source).__name__}; for host memory use write()"
        )
    if source.dtype != array.dtype:
        raise DtypeMismatch(f"cannot copy {source.dtype} into {array.dtype}: nothing is cast")
    if source.shape != array.shape:
        raise ShapeMismatch(f"cannot copy shape {source.shape} into shape {array.shape}")
    if source.buffer.scheduler is not array.buffer.scheduler:
        return write(array, read_now(source), stream, borrow=True)
    return copy_on_device(array, source, stream)


# Reads.


def read(array: Array, stream: Stream | None, out: Host | None) -> Pending[Host]:
    buffer = array.buffer
    scheduler = buffer.scheduler
    what = f"read of {buffer.name}"
    if out is not None:
        check_out(array, out)
    if stream is not None:
        scheduler.stream_or_default(stream)
    with scheduler.lock:
        seen = None if out is not None and scheduler.host_memory else at_once(array, write=False)
        if seen is not None:
            if out is None:
                out = seen.copy()
            else:
                np.copyto(np.asarray(out), seen)
            return Pending(scheduler, {}, what, value=out)
    return scheduler.host_copies.carry_out(partial(_begin_read, array, stream, out, what))


def _begin_read(
    array: Array, stream: Stream | None, out: Host | None, what: str, *, waited: bool = False
) -> Pending[Host]:
    """The part of a read under the lock; `carry_out` finishes the copies that it begins.

    A caller that has `waited` for the writers reads the bytes directly, even if it holds a writable
    view of them. If another thread has begun a write meanwhile, the read is made in stream order.
    """
    buffer = array.buffer
    scheduler = buffer.scheduler
    if scheduler.captures:
        check_not_capturing(scheduler, f"a {what}")
    on = stream_of(buffer, stream)
    if not array.size:
        return Pending(scheduler, {}, what, value=_result(array) if out is None else out)
    behind = out is not None and check_host_memory(
        scheduler, out, write=True, what="out=", behind=on.copier.lane
    )
    conflicts = conflicts_of(array, write=False)
    readable = is_readable(buffer)
    if waited and readable and not conflicts.points:
        check_views_of_others(buffer, conflicts, "numpy()")
        return _read_direct(array, out, what, "the work that writes the bytes is done")
    check_no_writable_view(buffer, conflicts)  # its holder may be writing
    path, why = choose_read(conflicts, behind=behind, readable=readable)
    if path == "staged":
        return read_staged(array, on, out, what, why)
    return _read_direct(array, out, what, why)


def _read_direct(array: Array, out: Host | None, what: str, why: str) -> Pending[Host]:
    backing = array.buffer.backing
    result = _result(array) if out is None else out
    source = host_array(array, backing)
    plain = np.asarray(result)  # not a subclass, whose code could run during the copy
    host_copy(array, backing, plain, source, write=False, path="direct", why=why)
    return Pending(array.buffer.scheduler, {}, what, value=result)


def read_now(array: Array) -> Host:
    """The content, after waiting for exactly the work that writes it."""
    found: Host | None = accelerator.native.read(array)
    if found is not None:
        return found
    buffer = array.buffer
    scheduler = buffer.scheduler
    if scheduler.captures:
        check_not_capturing(scheduler, f"a read of {buffer.name}")
    with scheduler.lock:
        seen = at_once(array, write=False)
        if seen is not None:
            return seen.copy()
        scheduler.check()
        buffer.check()
        wait = conflicts_of(array, write=False).wait("the host reads", buffer.name)
    if wait is not None:
        wait()
        with scheduler.lock:
            seen = at_once(array, write=False)
            if seen is not None:
                return seen.copy()
    what = f"read of {buffer.name}"
    begin = partial(_begin_read, array, None, None, what, waited=True)
    return scheduler.host_copies.carry_out(begin).result()


def _result(array: Array) -> Host:
    """Memory for a result; for a large one from the pool, whose pages need no new page faults."""
    scheduler = array.buffer.scheduler
    if array.nbytes < scheduler.sizes.pooled_result:
        return np.empty(array.shape, array.dtype)
    scheduler.drain()
    block = scheduler.host_pool.allocate(array.nbytes)
    shown = HostView(scheduler, block, Region(0, array.nbytes), write=True)
    scheduler.host_pool.retire(block)
    return shown.array(array.shape, array.dtype)


def _emit_fill(array: Array, path: str, **details: Any) -> None:
    region = array.region
    events.emit(
        "fill", "fill()", buffer=array.name, lo=region.lo, hi=region.hi, path=path, **details
    )
