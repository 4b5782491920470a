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

(The fifth path, adopting the caller's memory, makes no transfer at all: see
`penstock.array.adoption`.)

A read mirrors it: *direct* when nothing pending writes the bytes, else *staged*, a device copy in
stream order. `read_now` and `view`, which block by nature, wait for the writers instead.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.host_access import (
    at_once,
    capturing,
    check_host_memory,
    check_not_capturing,
    check_source,
    check_view,
    check_views_of_others,
    copy_now,
    emit_copy,
    flush,
    host_array,
    host_copy,
    host_memory_at_rest,
    invalidate,
    is_mapped,
    is_memory_of,
    is_readable,
    note_host_memory,
    pending_conflicts,
    stream_of,
    touch,
    views_shown,
    wait_for_conflicts,
)
from penstock.array.host_values import check_out, checked_source, fill_word, one_element
from penstock.array.view import HostView
from penstock.errors import (
    ArgumentError,
    Closed,
    DeviceLost,
    DtypeMismatch,
    Error,
    InvalidValue,
    ShapeMismatch,
)
from penstock.ledger.hazards import Lane, Region
from penstock.ledger.roles import AppendHistory
from penstock.memory.copy_rows import copy_rows, packed_array, packed_layout, packed_rows, pieces
from penstock.memory.pool import Backing
from penstock.schedule.ordered_copies import Task
from penstock.schedule.pending import Pending
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.schedule.host_lane import HostLane
    from penstock.schedule.stream import Stream

MODES = ("auto", "direct", "rename", "staged", "ordered", "unmapped")
#: "auto" without renaming, for measuring what that is worth. It goes no way that MODES do not go.
FIXED = "fixed"

Host = npt.NDArray[Any]


class Case(NamedTuple):
    """Everything the choice of a write's path depends on."""

    mapped: bool
    busy: bool
    whole: bool  # the write replaces all of the buffer
    renamable: bool
    borrowed: bool
    large: bool  # so that a thread is cheaper than a second copy


def choose_write(mode: str, case: Case) -> tuple[str, str]:
    """The path of a write and why, in decision order; `mode` forces one where it is safe."""
    allowed = {
        "direct": case.mapped and not case.busy,
        "rename": case.mapped and case.whole and case.renamable and mode != FIXED,
        "ordered": case.mapped and case.borrowed,
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
    if case.borrowed and case.large:
        return "ordered", f"busy, large and borrowed{forced}"
    return "staged", f"busy{forced}"


# Writes.


def write(
    array: Array, source: npt.ArrayLike, stream: Stream | None, borrow: bool
) -> Pending[None]:
    if isinstance(source, type(array)):
        return copy(array, source, stream)
    buffer = array.buffer
    scheduler = buffer.scheduler
    check_source(scheduler, source)
    data = checked_source(array, source)
    borrow = bool(borrow)
    if stream is not None:
        scheduler.stream_or_default(stream)
    with scheduler.lock:
        target = at_once(array, write=True) if buffer.writable else None
        if target is not None:
            check_host_memory(scheduler, data, write=False, what="the source")
            np.copyto(target, data)
            return scheduler.done
    return scheduler.carry_out(partial(_begin_write, array, data, stream, borrow))


def _begin_write(
    array: Array, data: Host, stream: Stream | None, borrow: bool
) -> Callable[[], Pending[None]]:
    """What of a write is done under the lock; what it answers does the rest, without it."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    what = f"write of {buffer.name}"
    on = stream_of(buffer, stream)
    buffer.check_write(array.region, "write()", by_host=True)
    if not array.size:
        return lambda: scheduler.done
    check_host_memory(scheduler, data, write=False, what="the source")
    if (graph := capturing(scheduler)) is not None:
        recorded = graph.write(array, data, stream, what)
        return lambda: recorded
    points = pending_conflicts(buffer, array.region, write=True)
    shown = views_shown(buffer, array.region)
    busy = bool(points) or shown or buffer.backing.hidden
    case = Case(
        mapped=is_mapped(buffer),
        busy=busy,
        whole=array.contiguous and array.is_whole,
        renamable=buffer.can_rename,
        borrowed=borrow,
        large=array.nbytes >= scheduler.sizes.ordered,
    )
    path, why = choose_write(scheduler.transfers, case)
    if shown and path == "ordered":
        path, why = "staged", f"{why}, but a view shows the bytes"
    if path == "staged":
        return _write_staged(array, data, on, why, what)
    if path == "ordered":
        pending = _write_ordered(array, data, on, points, why, what)
        return lambda: pending
    backing = buffer.backing
    if path == "rename":
        fresh = buffer.new_backing()
        target = host_array(array, fresh)
        fill_it = partial(copy_now, array, fresh, target, data, write=True, path=path, why=why)
        if array.nbytes <= scheduler.sizes.under_lock:
            fill_it()
            buffer.rename(why, fresh)
            buffer.wrote(array.region)
            return lambda: scheduler.done
        again = partial(write, array, data, stream, borrow)
        return partial(_write_renamed, array, data, backing, fresh, fill_it, why, again)
    target = host_array(array, backing)
    buffer.wrote(array.region)
    copy = host_copy(array, backing, target, data, write=True, path=path, why=why)

    def finish() -> Pending[None]:
        copy()
        return scheduler.done

    return finish


def _write_renamed(
    array: Array, data: Host, old: Backing, fresh: Backing, fill_it: Callable[[], None], why: str,
    again: Callable[[], Pending[None]],
) -> Pending[None]:  # fmt: skip
    """Fill fresh memory, then give it to the buffer; `again` if another thread came in between."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    with host_memory_at_rest(scheduler, data, write=False, what="the source"):
        touch(scheduler, fill_it)
    with scheduler.lock:
        scheduler.check()
        buffer.check()
        buffer.check_write(array.region, "write()", by_host=True)
        # What is written through a view that another thread has taken meanwhile must count.
        held = any(view.writable for view in buffer.views_of(array.region))
        if buffer.backing is old and buffer.can_rename and not held:
            buffer.rename(why, fresh)
            buffer.wrote(array.region)
            return scheduler.done
        scheduler.retire(fresh)
    return again()


def _write_staged(
    array: Array, data: Host, stream: Stream, why: str, what: str
) -> Callable[[], Pending[None]]:
    """Copy to staging blocks now, and from there on the device, in stream order.

    More data than the blocks hold goes through them in turns. All of its device copies are recorded
    at once, each behind the host's copy to its block, which is made without the lock.
    """
    stream.need_room()
    scheduler = array.buffer.scheduler
    sizes = scheduler.sizes
    target = array.buffer.backing_for(
        stream, array.region, what, write=True, reads=False, overwrite=array.is_whole
    )
    if array.nbytes > sizes.staging_block and is_memory_of(data, scheduler, target, array.region):
        # The device would write the first parts before the host has read the last ones. NumPy
        # assigns as if it had read the whole source first.
        data = data.copy()
    parts = pieces(array, data, sizes.staging_block)
    # All blocks before the first copy: past this nothing can run out of memory half-way.
    blocks: list[Backing] = []
    try:
        while len(blocks) < min(len(parts), sizes.staging_blocks):
            blocks.append(scheduler.host_pool.allocate(max(p.nbytes for p, _ in parts)))
        staged = [Staged(*part, blocks[i % len(blocks)], why) for i, part in enumerate(parts)]
        if len(parts) > len(blocks):
            finish = Turns(stream, target, staged, len(blocks), what).start()
            host = finish.host.lane
            note_host_memory(scheduler, data, False, host, host.submitted, what)
            return finish
        value = 0
        for each in staged:
            each.fill()
            value = each.record(stream, target, what)
            if len(parts) > 1:
                stream.submit()
    finally:
        for block in blocks:
            scheduler.host_pool.retire(block)
    pending: Pending[None] = Pending(scheduler, {stream.lane: value}, what, value=None)
    return lambda: pending


class Staged(NamedTuple):
    """A part of a write, its content, and the block that it goes through."""

    part: Array
    content: Host
    block: Backing
    why: str

    def fill(self) -> None:
        """Copy the content to the block, by the host."""
        start = time.perf_counter() if events.active else 0.0
        np.copyto(packed_array(self.part, self.block), self.content)
        flush(self.part.buffer.scheduler, self.block, packed_layout(self.part.layout))
        if events.active:
            emit_copy(self.part, "staged", f"snapshot: {self.why}", start)

    def record(self, stream: Stream, target: Backing, what: str) -> int:
        """Have the device copy the block to its place; the value of that."""
        part = self.part
        rows = packed_rows(part.layout, target, self.block, to_device=True)
        about = (part.name, part.region)
        return stream.copy(self.block, self.packed, target, part.region, rows, what, about)

    @property
    def packed(self) -> Region:
        return Region(0, self.part.nbytes)


class Turns:
    """A staged write of more parts than there are blocks, which they use in turns.

    Part `i` waits on the device for a host lane's value, which the caller's thread signals once it
    has filled the block; that thread waits for part `i - blocks` to have left the block. So every
    part has its place in the stream before the lock is let go of. If the caller's thread is
    interrupted, the stream's copier fills the rest, from a copy of it.
    """

    def __init__(
        self, stream: Stream, target: Backing, staged: list[Staged], blocks: int, what: str
    ) -> None:
        self._recorded: list[tuple[int, int]] = []  # by part, the values of host and device copy
        self._filled = 0  # parts that are, or that the copier will see to
        self._stream = stream
        self._scheduler = stream.scheduler
        self._target = target
        self._staged = staged
        self._blocks = blocks
        self._what = what
        self._failure: BaseException | None = None  # of the recording
        self.host = stream.scheduler.take_host_lane()
        stream.scheduler.begun.append(self)

    def abandon(self) -> None:
        if self._filled < len(self._recorded):
            self._scheduler.left_over.append(self._leave_to_copier)

    __del__ = abandon

    def start(self) -> Turns:
        """Record all parts. If that fails, those that are recorded still get their content."""
        stream, host = self._stream, self.host
        try:
            for each in self._staged:
                filled = host.start()
                # From here on the block is filled, and said to be, whatever comes of the rest.
                self._recorded.append((filled, stream.recorded + 1))
                each.block.history.note(each.packed, True, host.lane, filled, self._what)
                copied = each.record(stream, self._target, self._what)
                self._recorded[-1] = (filled, copied)
                stream.submit()
        except BaseException as error:
            self._failure = error
        return self

    def __call__(self) -> Pending[None]:
        """Fill the parts; called without the lock."""
        scheduler = self._scheduler
        room = self._blocks * scheduler.sizes.staging_block
        full = f"{room:,} bytes of one write in staging memory"
        try:
            while self._filled < len(self._recorded):
                points = self._leaves_block(self._filled)
                scheduler.wait_for(points, None, full, path="bound")
                part, done = self._staged[self._filled], self._recorded[self._filled][0]
                touch(scheduler, partial(_fill_and_tell, part, self.host, done))
                self._filled += 1
        except (Closed, DeviceLost) as error:
            scheduler.note_failure(error)
            self._filled = len(self._recorded)
            self.host.abort()
            raise
        scheduler.host_copy_made(self.host, self.host.lane.submitted)
        if self._failure is not None:
            raise self._failure
        points = {self._stream.lane: self._recorded[-1][1]}
        return Pending(scheduler, points, self._what, value=None)

    def _leaves_block(self, number: int) -> dict[Lane, int]:
        """When the part that had the block before is copied."""
        if number < self._blocks:
            return {}
        return {self._stream.lane: self._recorded[number - self._blocks][1]}

    def _leave_to_copier(self) -> None:
        while self._filled < len(self._recorded):
            number = self._filled
            each = self._staged[number]
            done = self._recorded[number][0]
            if self.host.lane.complete >= done:
                self.host.finish(done)  # it is filled; the device may not have been told
            else:
                after = self._leaves_block(number)
                for value in after.values():
                    self._stream.ensure_submitted(value)  # if an earlier attempt to has failed
                part = each._replace(content=each.content.copy())
                tell = partial(_fill_and_tell, part, self.host, done)
                self._stream.copier.add(Task(after, tell))
            self._filled += 1


def _fill_and_tell(part: Staged, host: HostLane, value: int) -> None:
    part.fill()
    host.finish(value)


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

    if events.active:
        emit_copy(array, "ordered", why)
    task = Task(points, copy_now)
    try:
        value = copier.add(task)
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
    what = f"fill of {buffer.name}"
    return scheduler.carry_out(partial(_begin_fill, array, value, element, stream, what))


def fill_locked(array: Array, value: Any, stream: Stream | None) -> None:
    """`fill` a small array, under the lock, now and not in a graph that is being recorded."""
    on = stream_of(array.buffer, stream)
    _fill_now(array, one_element(array, value), on, f"fill of {array.name}", patient=False)


def move_counter(
    history: AppendHistory, rows: int, stream: Stream | None, note: Callable[[], None]
) -> None:
    """Set the counter of an append-only array, and have the host `note` it. Under the lock."""
    history.uncertain = True
    try:
        fill_locked(history.counter, rows, stream)
        note()
    except BaseException:
        # Whether it is noted or not, the counter is to say the same.
        with contextlib.suppress(Error):
            settle_counter(history, stream)
        raise


def settle_counter(history: AppendHistory, stream: Stream | None) -> None:
    """Set the counter right, if an exception has left in doubt what it says. Under the lock."""
    if history.uncertain:
        fill_locked(history.counter, history.told, stream)
        history.uncertain = False


def _begin_fill(
    array: Array, value: Any, element: Host, stream: Stream | None, what: str
) -> Callable[[], Pending[None]]:
    buffer = array.buffer
    scheduler = buffer.scheduler
    on = stream_of(buffer, stream)
    buffer.check_write(array.region, "fill()", by_host=True)
    if not array.size:
        return lambda: scheduler.done
    graph = capturing(scheduler)
    if graph is None:
        return _fill_now(array, element, on, what, patient=True)
    word = fill_word(array, element)
    if word is None:
        recorded = graph.write(array, np.broadcast_to(element, array.shape), stream, what)
    else:
        recorded = graph.fill(array, word, value, stream, what)
    return lambda: recorded


def _fill_now(
    array: Array, element: Host, on: Stream, what: str, *, patient: bool
) -> Callable[[], Pending[None]]:
    """`patient` callers try again if the stream has no room."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    busy = (
        buffer.backing.hidden
        or pending_conflicts(buffer, array.region, True)
        or views_shown(buffer, array.region)
    )
    if is_mapped(buffer) and not busy and array.nbytes <= scheduler.sizes.under_lock:
        start = time.perf_counter() if events.active else 0.0
        host_array(array, buffer.backing)[...] = element
        flush(scheduler, buffer.backing, array.layout)
        buffer.wrote(array.region)
        if events.active:
            _emit_fill(array, "direct", start=start, seconds=events.since(start))
        return lambda: scheduler.done
    word = fill_word(array, element)
    if word is None:
        return _write_staged(array, np.broadcast_to(element, array.shape), on, "fill pattern", what)
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
    pending: Pending[None] = Pending(scheduler, {on.lane: on.end()}, what, value=None)
    return lambda: pending


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
    buffer = array.buffer
    scheduler = buffer.scheduler
    what = f"copy of {source.name} to {array.name}"
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
            rows = copy_rows(source.layout, origin, array.layout, target)
            about = (array.name, array.region)
            value = on.copy(origin, source.region, target, array.region, rows, what, about)
        return Pending(scheduler, {on.lane: value}, what, value=None)


def _copy_overlapping(
    array: Array, source: Array, stream: Stream, backing: Backing, what: str
) -> int:
    """As if through a temporary, as NumPy does it: so through a temporary."""
    pool = array.buffer.scheduler.pool
    between = pool.allocate(array.nbytes)
    try:
        packed = Region(0, array.nbytes)
        rows = packed_rows(source.layout, backing, between, to_device=False)
        about = (source.name, source.region)
        stream.copy(backing, source.region, between, packed, rows, what, about)
        rows = packed_rows(array.layout, backing, between, to_device=True)
        about = (array.name, array.region)
        return stream.copy(between, packed, backing, array.region, rows, what, about)
    finally:
        pool.retire(between)


# Reads.


def read(array: Array, stream: Stream | None, out: Host | None) -> Pending[Host]:
    buffer = array.buffer
    scheduler = buffer.scheduler
    what = f"read of {buffer.name}"
    if out is not None:
        check_out(array, out)
    if stream is not None:
        scheduler.stream_or_default(stream)
    return scheduler.carry_out(partial(_begin_read, array, stream, out, what))


def _begin_read(
    array: Array, stream: Stream | None, out: Host | None, what: str
) -> Callable[[], Pending[Host]]:
    """What of a read is done under the lock; what it answers does the rest, without it."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    if scheduler.captures:
        check_not_capturing(scheduler, f"a {what}")
    on = stream_of(buffer, stream)
    if not array.size:
        empty = np.empty(array.shape, array.dtype) if out is None else out
        return lambda: Pending(scheduler, {}, what, value=empty)
    behind = out is not None and check_host_memory(
        scheduler, out, write=True, what="out=", behind=on.copier.lane
    )
    views_shown(buffer, array.region)  # raises for a writable one: its holder may be writing
    busy = pending_conflicts(buffer, array.region, write=False)
    if busy or behind or not is_readable(buffer) or buffer.backing.hidden:
        why = "busy" if busy or behind else "memory is not readable"
        pending = _read_staged(array, on, out, what, why)
        return lambda: pending
    return _read_direct(array, out, what, "nothing pending writes the bytes")


def _read_direct(
    array: Array, out: Host | None, what: str, why: str
) -> Callable[[], Pending[Host]]:
    backing = array.buffer.backing
    result = _result(array) if out is None else out
    source = host_array(array, backing)
    plain = np.asarray(result)  # of no class of the caller's, whose code could run in the copy
    copy = host_copy(array, backing, plain, source, write=False, path="direct", why=why)

    def finish() -> Pending[Host]:
        copy()
        return Pending(array.buffer.scheduler, {}, what, value=result)

    return finish


def _read_staged(
    array: Array, stream: Stream, out: Host | None, what: str, why: str
) -> Pending[Host]:
    stream.need_room()
    scheduler = array.buffer.scheduler
    source = array.buffer.backing_for(stream, array.region, what, write=False)
    block = scheduler.host_pool.allocate(array.nbytes)
    packed = Region(0, array.nbytes)
    try:
        rows = packed_rows(array.layout, source, block, to_device=False)
        about = (array.name, array.region)
        value = stream.copy(source, array.region, block, packed, rows, f"{what}: {why}", about)
        shown = HostView(scheduler, block, packed, write=True)
    finally:
        scheduler.host_pool.retire(block)

    def finish() -> Host:
        invalidate(scheduler, block, packed_layout(array.layout))
        return shown.array(array.shape, array.dtype)

    def finish_locked() -> Host:
        with scheduler.lock:
            return finish()

    if out is None:
        return Pending(scheduler, {stream.lane: value}, what, finish_locked)

    def copy_out() -> None:
        np.copyto(np.asarray(out), finish())

    stream.submit()
    if events.active:
        emit_copy(array, "staged", "to the caller's array")
    copier = stream.copier
    task = Task({stream.lane: value}, copy_out)
    try:
        ready = copier.add(task)
        note_host_memory(scheduler, out, True, copier.lane, ready, what)
    except BaseException:
        task.cancelled = True
        raise
    return Pending(scheduler, {copier.lane: ready}, what, value=out)


def read_now(array: Array) -> Host:
    """The content, after waiting for exactly the work that writes it."""
    buffer = array.buffer
    scheduler = buffer.scheduler
    if scheduler.captures:
        check_not_capturing(scheduler, f"a read of {buffer.name}")
    quick = _copy_at_once(array)
    if quick is not None:
        return quick
    wait_for_conflicts(array, write=False, what="the host reads")
    quick = _copy_at_once(array)
    if quick is not None:
        return quick
    return scheduler.carry_out(partial(_begin_read_now, array)).result()


def _begin_read_now(array: Array) -> Callable[[], Pending[Host]]:
    buffer = array.buffer
    buffer.scheduler.check()
    buffer.check()
    # Another thread may have written meanwhile; a read in stream order settles that.
    again = array.size and pending_conflicts(buffer, array.region, write=False)
    if not array.size or again or not is_readable(buffer):
        return _begin_read(array, None, None, f"read of {buffer.name}")
    check_views_of_others(buffer, array.region, "numpy()")
    what = f"read of {buffer.name}"
    return _read_direct(array, None, what, "the work that writes the bytes is done")


def _copy_at_once(array: Array) -> Host | None:
    buffer = array.buffer
    with buffer.scheduler.lock:
        if not buffer.backing.memory.cached:
            return None
        seen = at_once(array, write=False)
        return None if seen is None else seen.copy()


def view(array: Array, mode: str, undo: list[Callable[[], None]]) -> Host:
    """A tracked NumPy array over the device's bytes.

    `undo` gets what to call if an exception keeps it from the caller.
    """
    if mode not in ("r", "w", "rw"):
        raise InvalidValue(f"view mode {mode!r}; choose 'r', 'w' or 'rw'")
    buffer = array.buffer
    scheduler = buffer.scheduler
    write = mode != "r"
    check_not_capturing(scheduler, f"a view of {buffer.name}")
    while True:
        wait_for_conflicts(array, write=write, what=f"the host views ({mode})")
        with scheduler.lock:
            scheduler.check()
            buffer.check()
            check_view(array, mode)
            if not array.size:  # nothing to track, and nothing that the device must respect
                nothing = np.empty(array.shape, array.dtype)
                nothing.flags.writeable = write
                return nothing
            if pending_conflicts(buffer, array.region, write):
                continue
            backing = buffer.backing
            invalidate(scheduler, backing, array.layout)
            span = Region(array.region.lo, array.region.hi)
            written = None
            if write and not backing.memory.coherent:
                written = partial(flush, scheduler, backing, array.layout)
            shown = HostView(
                scheduler, backing, span, write=write, respected=True, written=written,
                owner=buffer,
            )  # fmt: skip
            made = shown.array(array.shape, array.dtype, array.strides)
            if write:
                buffer.wrote(array.region, undo)
            return made


def _result(array: Array) -> Host:
    """Memory for a result: large ones from the pool, whose pages are warm the second time."""
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
