"""Transfers through staging blocks: host-visible pool memory between the host and the array.

The device copies between block and array in stream order, so the host waits for nothing and the
transfer keeps its place in the program. A write fills its blocks now, so the caller may change its
array afterwards; a read hands its block out as the result, or copies it to the caller's array.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.host_access import (
    emit_copy,
    is_memory_of,
    note_host_memory,
)
from penstock.array.view import HostView
from penstock.errors import Closed, DeviceLost
from penstock.ledger.hazards import Lane, Region
from penstock.memory.backing import Backing
from penstock.memory.copy_rows import packed_array, packed_rows, pieces
from penstock.schedule.ordered_copies import Task
from penstock.schedule.pending import Pending
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.schedule.host_lane import HostLane
    from penstock.schedule.stream import Stream

Host = npt.NDArray[Any]


def write_staged(array: Array, data: Host, stream: Stream, why: str, what: str) -> Pending[None]:
    """Copy to staging blocks now, and from there on the device, in stream order.

    Data that does not fit the blocks reuses them in turn (`Turns`). All its device copies are
    recorded now; each waits for the host's copy to its block, which is made without the lock.
    """
    stream.need_room()
    scheduler = array.buffer.scheduler
    target = array.buffer.backing_for(
        stream, array.region, what, write=True, reads=False, overwrite=array.is_whole
    )
    if array.nbytes > scheduler.sizes.staging_block:
        value = _write_in_parts(array, data, stream, target, why, what)
    else:
        block = scheduler.host_pool.allocate(array.nbytes)
        try:
            staged = Staged(array, data, block, why)
            staged.fill()
            value = staged.record(stream, target, what)
        finally:
            scheduler.host_pool.retire(block)
    return Pending(scheduler, {stream.lane: value}, what, value=None)


def _write_in_parts(
    array: Array, data: Host, stream: Stream, target: Backing, why: str, what: str
) -> int:
    """`write_staged` of data that needs several blocks; returns the value of its last copy."""
    scheduler = array.buffer.scheduler
    sizes = scheduler.sizes
    if is_memory_of(data, scheduler, target, array.region):
        # Source and target overlap: the device would overwrite parts that the host has yet to read.
        # NumPy assigns as if it had read the whole source first.
        data = data.copy()
    parts = pieces(array, data, sizes.staging_block)
    # Allocates all blocks before the first copy, so that the write cannot run out of memory later.
    blocks: list[Backing] = []
    try:
        while len(blocks) < min(len(parts), sizes.staging_blocks):
            blocks.append(scheduler.host_pool.allocate(max(p.nbytes for p, _ in parts)))
        staged = [Staged(*part, blocks[i % len(blocks)], why) for i, part in enumerate(parts)]
        if len(parts) > len(blocks):
            turns = Turns(stream, target, staged, len(blocks), what)
            value = turns.start()
            host = turns.host.lane
            note_host_memory(scheduler, data, False, host, host.submitted, what)
        else:
            for each in staged:
                each.fill()
                value = each.record(stream, target, what)
                stream.submit()
    finally:
        for block in blocks:
            scheduler.host_pool.retire(block)
    return value


def read_staged(
    array: Array, stream: Stream, out: Host | None, what: str, why: str
) -> Pending[Host]:
    stream.need_room()
    scheduler = array.buffer.scheduler
    source = array.buffer.backing_for(stream, array.region, what, write=False)
    block = scheduler.host_pool.allocate(array.nbytes)
    packed = Region(0, array.nbytes)
    try:
        rows = packed_rows(array, source, block, to_device=False)
        about = (array.name, array.region)
        value = stream.copy(source, array.region, block, packed, rows, f"{what}: {why}", about)
        shown = HostView(scheduler, block, packed, write=True)
    finally:
        scheduler.host_pool.retire(block)

    def finish() -> Host:
        scheduler.invalidate(block.memory, block.offset, block.offset + array.nbytes)
        return shown.array(array.shape, array.dtype)

    def finish_locked() -> Host:
        with scheduler.lock:
            return finish()

    if out is None:
        return Pending(scheduler, {stream.lane: value}, what, finish_locked)

    def copy_out() -> None:
        np.copyto(np.asarray(out), finish())

    stream.submit()
    copier = stream.copier
    small = array.nbytes <= scheduler.sizes.under_lock
    task = Task({stream.lane: value}, copy_out, can_help=small, nbytes=array.nbytes)
    try:
        ready = copier.add(task)
        if events.active:
            at = (copier.lane.place, ready, 0)
            emit_copy(array, "staged", "to the caller's array", at=at)
        note_host_memory(scheduler, out, True, copier.lane, ready, what)
    except BaseException:
        task.cancelled = True
        raise
    return Pending(scheduler, {copier.lane: ready}, what, value=out)


class Staged(NamedTuple):
    """A part of a write, its content, and its staging block."""

    part: Array
    content: Host
    block: Backing
    why: str

    def fill(self, at: events.At = events.NOWHERE) -> None:
        """Copy the content to the block, on the host; `at` is for the receipt."""
        start = events.clock() if events.active else 0.0
        part, block = self.part, self.block
        np.copyto(packed_array(part, block), self.content)
        part.buffer.scheduler.flush(block.memory, block.offset, block.offset + part.nbytes)
        if events.active:
            emit_copy(part, "staged", f"snapshot: {self.why}", start, at)

    def record(self, stream: Stream, target: Backing, what: str) -> int:
        """Record the device copy from the block to the array; returns the value of its end."""
        part = self.part
        rows = packed_rows(part, target, self.block, to_device=True)
        about = (part.name, part.region)
        return stream.copy(self.block, self.packed, target, part.region, rows, what, about)

    @property
    def packed(self) -> Region:
        return Region(0, self.part.nbytes)


class Turns:
    """A staged write of more parts than there are blocks, which they use in turns.

    The device copy of part `i` waits for a host lane's value, which the caller's thread signals
    once it has filled the block. Before it fills the block, the thread waits for the device copy of
    part `i - blocks`. So every part has its place in the stream before the lock is released. If the
    caller's thread is interrupted, the stream's copier fills the rest, from a copy of the content.
    """

    def __init__(
        self, stream: Stream, target: Backing, staged: list[Staged], blocks: int, what: str
    ) -> None:
        self._recorded: list[tuple[int, int]] = []  # by part, the values of host and device copy
        self._filled = 0  # parts that are filled, or left to the copier
        self._stream = stream
        self._scheduler = stream.scheduler
        self._target = target
        self._staged = staged
        self._blocks = blocks
        self._what = what
        self._failure: BaseException | None = None  # what `start` raised while recording
        self.host = stream.scheduler.host_copies.take_lane()
        stream.scheduler.host_copies.begun.append(self)

    def abandon(self) -> None:
        if self._filled < len(self._recorded):
            self._scheduler.ended.leave(self._leave_to_copier)

    __del__ = abandon

    def start(self) -> int:
        """Record all parts; returns the value of the last device copy.

        If that fails, the parts recorded so far still get their content, and `finish` raises.
        """
        stream, host = self._stream, self.host
        try:
            for each in self._staged:
                filled = host.start()
                # From here on the block will be filled and signalled, even if the rest fails.
                self._recorded.append((filled, stream.recorded + 1))
                each.block.history.note(each.packed, True, host.lane, filled, self._what)
                copied = each.record(stream, self._target, self._what)
                self._recorded[-1] = (filled, copied)
                stream.submit()
        except BaseException as error:
            self._failure = error
        return self._recorded[-1][1] if self._recorded else 0

    def finish(self) -> bool:
        """Fill the blocks. Called without the lock."""
        scheduler = self._scheduler
        room = self._blocks * scheduler.sizes.staging_block
        full = f"{room:,} bytes of one write in staging memory"
        try:
            while self._filled < len(self._recorded):
                points = self._leaves_block(self._filled)
                scheduler.wait_for(points, None, full, path="bound")
                part, done = self._staged[self._filled], self._recorded[self._filled][0]
                scheduler.shutdown.use(partial(_fill_and_signal, part, self.host, done))
                self._filled += 1
        except (Closed, DeviceLost) as error:
            scheduler.note_failure(error)
            self._filled = len(self._recorded)
            self.host.abort()
            raise
        scheduler.host_copies.report_done(self.host, self.host.lane.submitted)
        if self._failure is not None:
            raise self._failure
        return True

    def _leaves_block(self, number: int) -> dict[Lane, int]:
        """The point at which the device has copied the part that used the block before."""
        if number < self._blocks:
            return {}
        return {self._stream.lane: self._recorded[number - self._blocks][1]}

    def _leave_to_copier(self) -> None:
        if self._scheduler.lost is not None or self._scheduler.shutdown.over:
            return  # no work will use the rest
        while self._filled < len(self._recorded):
            number = self._filled
            each = self._staged[number]
            done = self._recorded[number][0]
            if self.host.lane.complete >= done:
                self.host.finish(done)  # it is filled, but perhaps not yet signalled
            else:
                after = self._leaves_block(number)
                for value in after.values():
                    self._stream.ensure_submitted(value)  # an earlier attempt may have failed
                part = each._replace(content=each.content.copy())
                fill = partial(_fill_and_signal, part, self.host, done)
                self._stream.copier.add(Task(after, fill))
            self._filled += 1


def _fill_and_signal(part: Staged, host: HostLane, value: int) -> None:
    part.fill((host.lane.place, value, 0))
    host.finish(value)
