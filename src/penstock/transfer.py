"""How bytes travel between host and device: one decision each way, then the doing.

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

(The fifth path, adopting the caller's memory, makes no transfer at all: see `penstock.adoption`.)

A read mirrors it: *direct* when nothing pending writes the bytes, else *staged*, a device copy in
stream order. `read_now` and `view`, which block by nature, wait for the writers instead.

Small host copies are made under the device's lock. Large ones are not: they take a host lane, so
that work of other threads on the same bytes is ordered against them like against any other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import tracing
from penstock.errors import (
    ArgumentError,
    Closed,
    DtypeMismatch,
    Error,
    InvalidValue,
    ReadOnly,
    ShapeMismatch,
    Unsupported,
    ViewHeld,
)
from penstock.hazards import Access, Lane, Region, needs_of_host
from penstock.layout import Layout, contiguous_strides, row_offsets
from penstock.memory import Backing
from penstock.pending import Pending
from penstock.view import HostView

if TYPE_CHECKING:
    from penstock.array import Array
    from penstock.buffer import Buffer
    from penstock.driver.protocol import Regions
    from penstock.scheduler import Scheduler
    from penstock.stream import Stream

MODES = ("auto", "direct", "rename", "staged", "ordered", "unmapped")

_UNDER_LOCK = 256 << 10  # bytes; a larger host copy is made without holding the lock
_ORDERED = 1 << 20  # bytes; below, a second copy is cheaper than a thread
_STAGING_BLOCK = 16 << 20
_STAGING_BLOCKS = 4  # in flight for one write; a larger write waits for the first of them
_POOLED_RESULT = 4 << 20  # bytes; larger results go to memory that is kept warm

Host = npt.NDArray[Any]


class Case(NamedTuple):
    """Everything the choice of a write's path depends on."""

    mapped: bool
    busy: bool
    whole: bool  # the write replaces all of the buffer
    renamable: bool
    borrowed: bool
    nbytes: int


def choose_write(mode: str, case: Case) -> tuple[str, str]:
    """The path of a write and why, in decision order; `mode` forces one where it is safe."""
    allowed = {
        "direct": case.mapped and not case.busy,
        "rename": case.mapped and case.whole and case.renamable,
        "ordered": case.mapped and case.borrowed,
        "staged": True,
    }
    if allowed.get(mode):
        return mode, "forced"
    forced = "" if mode in ("auto", "unmapped") else f", because {mode!r} is not possible here"
    if not case.mapped:
        return "staged", f"memory is not mapped{forced}"
    if not case.busy:
        return "direct", f"nothing pending touches the bytes{forced}"
    if allowed["rename"]:
        return "rename", f"the whole busy buffer is replaced{forced}"
    if case.borrowed and case.nbytes >= _ORDERED:
        return "ordered", f"busy, large and borrowed{forced}"
    return "staged", f"busy{forced}"


# Writes.


def write(
    array: Array, source: npt.ArrayLike, stream: Stream | None, borrow: bool
) -> Pending[None]:
    data = _source(array, source)
    buffer = array.buffer
    scheduler = buffer.scheduler
    what = f"write of {buffer.name}"
    with scheduler.lock:
        on = stream_of(buffer, stream)
        buffer.check_writable("write()")
        if not array.size:
            return Pending(scheduler, {}, what, value=None)
        points = _pending_conflicts(buffer, array.region, write=True)
        shown = _views_shown(buffer, array.region)
        case = Case(
            mapped=_mapped(buffer),
            busy=bool(points) or shown,
            whole=array.contiguous and array.nbytes == buffer.nbytes,
            renamable=buffer.can_rename,
            borrowed=borrow,
            nbytes=array.nbytes,
        )
        path, why = choose_write(scheduler.transfers, case)
        if shown and path == "ordered":
            path, why = "staged", f"{why}, but a view shows the bytes"
        if path == "staged":
            return _write_staged(array, data, on, why, what)
        if path == "ordered":
            return _write_ordered(array, data, on, points, why, what)
        if path == "rename":
            buffer.rename(why)
        backing = buffer.backing
        target = _host_array(array, backing)
        copy = _host_copy(array, backing, target, data, write=True, path=path, why=why)
    copy()
    return Pending(scheduler, {}, what, value=None)


def _write_staged(array: Array, data: Host, stream: Stream, why: str, what: str) -> Pending[None]:
    scheduler = array.buffer.scheduler
    pieces = _pieces(array, data)
    target = array.buffer.backing_for(stream, array.region, True, what)
    # All blocks before the first copy: past this nothing can run out of memory half-way.
    blocks: list[Backing] = []
    try:
        while len(blocks) < min(len(pieces), _STAGING_BLOCKS):
            blocks.append(scheduler.host_pool.allocate(max(p.nbytes for p, _ in pieces)))
        value = 0
        for number, (part, content) in enumerate(pieces):
            block = blocks[number % len(blocks)]
            if number >= len(blocks):
                points = block.history.pending()
                scheduler.wait_for(points, None, "a large write fills the staging ring")
            snapshot = _packed(part, block)
            np.copyto(snapshot, content)
            _flush(scheduler, block, 0, part.nbytes)
            if tracing.active:
                _emit_copy(part, "staged", f"snapshot: {why}")
            rows = _rows(part.layout, target, block, to_device=True)
            packed = Region(0, part.nbytes)
            value = stream.copy(block, packed, target, part.region, rows, what)
            if len(pieces) > 1:
                stream.flush()
    finally:
        for block in blocks:
            scheduler.host_pool.retire(block)
    return Pending(scheduler, {stream.lane: value}, what, value=None)


def _write_ordered(
    array: Array, data: Host, stream: Stream, points: dict[Lane, int], why: str, what: str
) -> Pending[None]:
    scheduler = array.buffer.scheduler
    backing = array.buffer.backing
    for lane, value in points.items():
        lane.owner.ensure_submitted(value)
    copier = stream.copier_of()
    target = _host_array(array, backing)

    def copy() -> None:
        np.copyto(target, data)
        _flush(scheduler, backing, array.region.lo, array.region.hi)

    if tracing.active:
        _emit_copy(array, "ordered", why)
    value = copier.add(points, copy)
    backing.history.note(array.region, True, copier.lane, value, what)
    return Pending(scheduler, {copier.lane: value}, what, value=None)


def fill(array: Array, value: Any, stream: Stream | None) -> Pending[None]:
    """Set every element: by the host if that is quick and allowed, else by the device."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    element = _element(array, value)
    what = f"fill of {buffer.name}"
    with scheduler.lock:
        on = stream_of(buffer, stream)
        buffer.check_writable("fill()")
        if not array.size:
            return Pending(scheduler, {}, what, value=None)
        busy = _pending_conflicts(buffer, array.region, True) or _views_shown(buffer, array.region)
        if _mapped(buffer) and not busy and array.nbytes <= _UNDER_LOCK:
            _host_array(array, buffer.backing)[...] = element
            _flush(scheduler, buffer.backing, array.region.lo, array.region.hi)
            if tracing.active:
                _emit_fill(array, "direct")
            return Pending(scheduler, {}, what, value=None)
        word = _fill_word(array, element)
        if word is None:
            return _write_staged(
                array, np.broadcast_to(element, array.shape), on, "fill pattern", what
            )
        backing = buffer.backing_for(on, array.region, True, what)
        uses = ((backing, array.region, True),)
        offset = backing.offset + array.region.lo
        on.begin(uses).fill(backing.memory, offset, array.nbytes, word)
        if tracing.active:
            _emit_fill(array, "device")
        return Pending(scheduler, {on.lane: on.note(uses, what)}, what, value=None)


def copy(array: Array, source: Array, stream: Stream | None) -> Pending[None]:
    """Copy array to array, on the device."""
    from penstock.array import Array as ArrayType

    if not isinstance(source, ArrayType):
        raise ArgumentError(
            f"copy_from takes an Array, not {type(source).__name__}; for host memory use write()"
        )
    if source.dtype != array.dtype:
        raise DtypeMismatch(f"cannot copy {source.dtype} into {array.dtype}: nothing is cast")
    if source.shape != array.shape:
        raise ShapeMismatch(f"cannot copy shape {source.shape} into shape {array.shape}")
    if source.buffer.scheduler is not array.buffer.scheduler:
        return write(array, read_now(source), stream, borrow=True)
    buffer = array.buffer
    scheduler = buffer.scheduler
    what = f"copy of {source.name} to {array.name}"
    with scheduler.lock:
        on = stream_of(buffer, stream)
        source.buffer.check()
        buffer.check_writable("copy_from()")
        if not array.size:
            return Pending(scheduler, {}, what, value=None)
        target = buffer.backing_for(on, array.region, True, what)
        origin = source.buffer.backing_for(on, source.region, False, what)
        if origin is target and source.region.overlaps(array.region):
            value = _copy_overlapping(array, source, on, target, what)
        else:
            rows = _regions(source.layout, origin, array.layout, target)
            value = on.copy(origin, source.region, target, array.region, rows, what)
        return Pending(scheduler, {on.lane: value}, what, value=None)


def _copy_overlapping(
    array: Array, source: Array, stream: Stream, backing: Backing, what: str
) -> int:
    """As if through a temporary, as NumPy does it: so through a temporary."""
    pool = array.buffer.scheduler.pool
    between = pool.allocate(array.nbytes)
    try:
        packed = Region(0, array.nbytes)
        rows = _rows(source.layout, backing, between, to_device=False)
        stream.copy(backing, source.region, between, packed, rows, what)
        rows = _rows(array.layout, backing, between, to_device=True)
        return stream.copy(between, packed, backing, array.region, rows, what)
    finally:
        pool.retire(between)


# Reads.


def read(array: Array, stream: Stream | None, out: Host | None) -> Pending[Host]:
    buffer = array.buffer
    scheduler = buffer.scheduler
    what = f"read of {buffer.name}"
    if out is not None:
        _check_out(array, out)
    with scheduler.lock:
        on = stream_of(buffer, stream)
        if not array.size:
            empty = np.empty(array.shape, array.dtype) if out is None else out
            return Pending(scheduler, {}, what, value=empty)
        busy = _pending_conflicts(buffer, array.region, write=False)
        if busy or not _readable(buffer):
            return _read_staged(array, on, out, what, "busy" if busy else "memory is not readable")
        result = _result(array) if out is None else out
        copy = _read_direct(array, result, "nothing pending writes the bytes")
    copy()
    return Pending(scheduler, {}, what, value=result)


def _read_direct(array: Array, result: Host, why: str) -> Callable[[], None]:
    backing = array.buffer.backing
    source = _host_array(array, backing)
    return _host_copy(array, backing, result, source, write=False, path="direct", why=why)


def _read_staged(
    array: Array, stream: Stream, out: Host | None, what: str, why: str
) -> Pending[Host]:
    scheduler = array.buffer.scheduler
    source = array.buffer.backing_for(stream, array.region, False, what)
    block = scheduler.host_pool.allocate(array.nbytes)
    packed = Region(0, array.nbytes)
    try:
        rows = _rows(array.layout, source, block, to_device=False)
        value = stream.copy(source, array.region, block, packed, rows, f"{what}: {why}")
        shown = HostView(scheduler, block, packed, write=True)
    finally:
        scheduler.host_pool.retire(block)

    def finish() -> Host:
        _invalidate(scheduler, block, 0, array.nbytes)
        return shown.array(array.shape, array.dtype)

    if out is None:
        return Pending(scheduler, {stream.lane: value}, what, finish)

    def copy_out() -> None:
        np.copyto(out, finish())

    stream.flush()
    if tracing.active:
        _emit_copy(array, "staged", "to the caller's array")
    copier = stream.copier_of()
    ready = copier.add({stream.lane: value}, copy_out)
    return Pending(scheduler, {copier.lane: ready}, what, value=out)


def read_now(array: Array) -> Host:
    """The content, after waiting for exactly the work that writes it."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    _wait_for_conflicts(array, write=False, what="the host reads")
    with scheduler.lock:
        buffer.check()
        # Another thread may have written meanwhile; a read in stream order settles that.
        again = array.size and _pending_conflicts(buffer, array.region, write=False)
        if not array.size or again or not _readable(buffer):
            arriving = read(array, None, None)
        else:
            arriving = None
            result = _result(array)
            copy = _read_direct(array, result, "the work that writes the bytes is done")
    if arriving is not None:
        return arriving.result()
    copy()
    return result


def view(array: Array, mode: str) -> Host:
    """A tracked NumPy array over the device's bytes."""
    if mode not in ("r", "w", "rw"):
        raise InvalidValue(f"view mode {mode!r}; choose 'r', 'w' or 'rw'")
    buffer = array.buffer
    scheduler = buffer.scheduler
    write = mode != "r"
    while True:
        _wait_for_conflicts(array, write=write, what=f"the host views ({mode})")
        with scheduler.lock:
            buffer.check()
            if not _mapped(buffer):
                raise Unsupported(
                    f"the memory of {scheduler.name} is not mapped; use numpy() and write()"
                )
            if write:
                buffer.check_writable(f"view({mode!r})")
                if _views_shown(buffer, array.region):
                    raise ViewHeld(
                        f"another view of array {buffer.name!r} still shows bytes "
                        f"{array.region.lo}:{array.region.hi}; drop it before writing them"
                    )
            if array.size and _pending_conflicts(buffer, array.region, write):
                continue
            if any(stride < 0 for stride in array.strides):
                raise Unsupported("a view of a reversed slice; reverse the view instead")
            backing = buffer.backing
            _invalidate(scheduler, backing, array.region.lo, array.region.hi)
            span = Region(array.region.lo, max(array.region.hi, array.region.lo + 1))
            shown = HostView(scheduler, backing, span, write=write, respected=True, owner=buffer)
            strides = array.strides if array.size else None
            return shown.array(array.shape, array.dtype, strides)


# The pieces they share.


def stream_of(buffer: Buffer, stream: Stream | None) -> Stream:
    """The stream to work on, after checking that everything is open and belongs together."""
    buffer.scheduler.check()
    buffer.check()
    if stream is None:
        return buffer.device.default_stream
    if getattr(stream, "scheduler", None) is not buffer.scheduler:
        raise ArgumentError(f"stream={stream!r} is not a stream of {buffer.device}")
    if stream.closed:
        raise Closed(f"{stream.name} is closed")
    return stream


def _host_copy(
    array: Array, backing: Backing, target: Host, source: Host, *, write: bool, path: str, why: str
) -> Callable[[], None]:
    """Copy at once if that is quick; else take a host lane. Call the outcome without the lock."""
    scheduler, region = array.buffer.scheduler, array.region

    def copy() -> None:
        if not write:
            _invalidate(scheduler, backing, region.lo, region.hi)
        start = time.perf_counter() if tracing.active else 0.0
        np.copyto(target, source)
        if tracing.active:
            _emit_copy(array, path, why, start=start, seconds=time.perf_counter() - start)
        if write:
            _flush(scheduler, backing, region.lo, region.hi)

    if array.nbytes <= _UNDER_LOCK:
        copy()
        return _nothing
    host = scheduler.take_host_lane()
    value = host.start()
    verb = "write" if write else "read"
    backing.history.note(region, write, host.lane, value, f"a host {verb}")

    def copy_and_tell() -> None:
        try:
            copy()
        finally:
            host.finish(value)
            scheduler.return_host_lane(host)

    return copy_and_tell


def _nothing() -> None:
    """The copy is made already."""


def _pending_conflicts(buffer: Buffer, region: Region, write: bool) -> dict[Lane, int]:
    """What the host would have to wait for before it may touch these bytes."""
    found: list[Access] = []
    buffer.backing.history.collect(region, write, found)
    if not found:
        return {}
    for access in found:
        access.lane.owner.poll()
    return needs_of_host(found)


def _wait_for_conflicts(array: Array, *, write: bool, what: str) -> None:
    """Block until the host may touch the array's bytes. Takes the lock, waits without it."""
    buffer, region = array.buffer, array.region
    scheduler = buffer.scheduler
    with scheduler.lock:
        scheduler.check()
        buffer.check()
        if not array.size:
            return
        found: list[Access] = []
        buffer.backing.history.collect(region, write, found)
        if not found or not (points := needs_of_host(found)):
            return
        reason = f"{what} what is in flight: {_latest(found)!r}" if tracing.active else what
    scheduler.wait_for(points, None, reason, buffer=buffer.name, lo=region.lo, hi=region.hi)


def _latest(found: list[Access]) -> Access:
    return max((a for a in found if a.pending), key=lambda a: a.value)


def _views_shown(buffer: Buffer, region: Region) -> bool:
    """Whether a live read-only view shows any of these bytes; raises for a writable one."""
    if not buffer.backing.views:
        return False
    buffer.scheduler.drain()
    shown = [view for view in buffer.backing.views if view[0].overlaps(region)]
    if any(writable for _, writable in shown):
        raise ViewHeld(
            f"a live writable view shows bytes {region.lo}:{region.hi} of array {buffer.name!r}; "
            "drop it (del it and all its slices) before writing them otherwise"
        )
    return bool(shown)


def _mapped(buffer: Buffer) -> bool:
    return buffer.backing.mapped and buffer.scheduler.transfers != "unmapped"


def _readable(buffer: Buffer) -> bool:
    """Whether the host should read the memory itself: uncached memory is slow to read."""
    return _mapped(buffer) and buffer.backing.memory.cached


def _source(array: Array, source: npt.ArrayLike) -> Host:
    """The caller's data, checked. Lists and scalars are converted; arrays are never cast."""
    data = source if isinstance(source, np.ndarray) else np.asarray(source, array.dtype)
    if data.dtype != array.dtype:
        raise DtypeMismatch(
            f"array {array.name!r} is {array.dtype}, the source is {data.dtype}; nothing is cast "
            f"silently: pass source.astype({str(array.dtype)!r})"
        )
    if data.shape != array.shape:
        raise ShapeMismatch(
            f"array {array.name!r} has shape {array.shape}, the source has {data.shape}"
        )
    return data


def _check_out(array: Array, out: Host) -> None:
    if not isinstance(out, np.ndarray):
        raise ArgumentError(f"out= takes a NumPy array, not {type(out).__name__}")
    if out.dtype != array.dtype:
        raise DtypeMismatch(f"array {array.name!r} is {array.dtype}, out is {out.dtype}")
    if out.shape != array.shape:
        raise ShapeMismatch(f"array {array.name!r} has shape {array.shape}, out has {out.shape}")
    if not out.flags.writeable:
        raise ReadOnly("out= is a read-only NumPy array")


def _element(array: Array, value: Any) -> Host:
    """One element of the array's dtype; refuses what NumPy would have to bend."""
    try:
        with np.errstate(all="raise"):
            element = np.asarray(value)
            if element.shape != ():
                raise ShapeMismatch(f"fill() takes one value, not an array of {element.shape}")
            if isinstance(value, np.generic) and not np.can_cast(
                element.dtype, array.dtype, "same_kind"
            ):
                raise DtypeMismatch(f"cannot fill {array.dtype} with {value!r} of {element.dtype}")
            if array.dtype.kind in "iu" and element.dtype.kind in "fc":
                raise DtypeMismatch(f"cannot fill {array.dtype} with {value!r}")
            return np.array(value, array.dtype)
    except (OverflowError, FloatingPointError) as error:
        raise InvalidValue(f"{value!r} does not fit {array.dtype}") from error
    except (TypeError, ValueError) as error:
        if isinstance(error, Error):
            raise
        raise DtypeMismatch(f"cannot fill {array.dtype} with {value!r}") from error


def _fill_word(array: Array, element: Host) -> int | None:
    """The 4-byte word whose repetition fills the array, if the device can fill it so."""
    if not array.contiguous or array.region.lo % 4 or array.nbytes % 4:
        return None
    pattern = element.tobytes()
    if len(pattern) < 4:
        pattern *= 4 // len(pattern) if 4 % len(pattern) == 0 else 1
    if len(pattern) % 4 or pattern != pattern[:4] * (len(pattern) // 4):
        return None
    return int.from_bytes(pattern[:4], "little")


def _result(array: Array) -> Host:
    """Memory for a result: large ones from the pool, whose pages are warm the second time."""
    if array.nbytes < _POOLED_RESULT:
        return np.empty(array.shape, array.dtype)
    scheduler = array.buffer.scheduler
    scheduler.drain()
    block = scheduler.host_pool.allocate(array.nbytes)
    shown = HostView(scheduler, block, Region(0, array.nbytes), write=True)
    scheduler.host_pool.retire(block)
    return shown.array(array.shape, array.dtype)


def _host_array(array: Array, backing: Backing) -> Host:
    """The array's bytes as the host sees them in `backing`. Untracked: never leaves transfers."""
    layout = array.layout
    return np.ndarray(
        layout.shape,
        array.dtype,
        buffer=backing.chunk.bytes,
        offset=backing.offset + layout.offset,
        strides=layout.strides,
    )


def _packed(array: Array, block: Backing) -> Host:
    """A staging block as a contiguous array of the same shape and dtype."""
    return np.ndarray(array.shape, array.dtype, buffer=block.chunk.bytes, offset=block.offset)


def _pieces(array: Array, data: Host) -> list[tuple[Array, Host]]:
    """Array and data in pieces that each fit a staging block, split along the first axes."""
    if array.nbytes <= _STAGING_BLOCK:
        return [(array, data)]
    if len(array) == 1:
        return _pieces(array[0], data[0])
    step = max(1, _STAGING_BLOCK * len(array) // array.nbytes)
    pieces: list[tuple[Array, Host]] = []
    for start in range(0, len(array), step):
        pieces += _pieces(array[start : start + step], data[start : start + step])
    return pieces


def _rows(layout: Layout, array: Backing, packed: Backing, *, to_device: bool) -> Regions:
    """Copy regions between an array's layout and the same elements packed in another backing."""
    return _regions(layout, array, _packed_layout(layout), packed, reverse=to_device)


def _packed_layout(layout: Layout) -> Layout:
    strides = contiguous_strides(layout.shape, layout.itemsize)
    return Layout(0, layout.shape, strides, layout.itemsize)


def _regions(
    source: Layout, origin: Backing, target: Layout, goal: Backing, *, reverse: bool = False
) -> Regions:
    """Copy regions from one layout to another of the same shape, run by run."""
    width, starts = row_offsets(source)
    goal_width, goal_starts = row_offsets(target)
    if goal_width != width:
        # Cut the longer runs into pieces of the shorter ones; one always divides the other.
        short = min(width, goal_width)
        starts = _cut(starts, width, short)
        goal_starts = _cut(goal_starts, goal_width, short)
        width = short
    rows = np.empty((len(starts), 3), np.uint64)
    rows[:, 1 if reverse else 0] = starts + origin.offset
    rows[:, 0 if reverse else 1] = goal_starts + goal.offset
    rows[:, 2] = width
    return rows


def _cut(starts: npt.NDArray[np.int64], width: int, short: int) -> npt.NDArray[np.int64]:
    return (starts[:, None] + np.arange(0, width, short)[None, :]).ravel()


def _flush(scheduler: Scheduler, backing: Backing, lo: int, hi: int) -> None:
    """Make host writes count, on memory where they do not by themselves."""
    if not backing.memory.coherent:
        scheduler.driver.flush(backing.memory, backing.offset + lo, backing.offset + hi)


def _invalidate(scheduler: Scheduler, backing: Backing, lo: int, hi: int) -> None:
    """Let the host see device writes, on memory where it does not by itself."""
    if not backing.memory.coherent:
        scheduler.driver.invalidate(backing.memory, backing.offset + lo, backing.offset + hi)


def _emit_copy(array: Array, path: str, why: str, **details: Any) -> None:
    region = array.region
    tracing.emit(
        "copy", why, nbytes=array.nbytes, buffer=array.name, lo=region.lo, hi=region.hi,
        path=path, **details,
    )  # fmt: skip


def _emit_fill(array: Array, path: str) -> None:
    region = array.region
    tracing.emit("fill", "fill()", buffer=array.name, lo=region.lo, hi=region.hi, path=path)
