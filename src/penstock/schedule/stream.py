"""An ordered queue of work: launches, transfers, events.

A stream records commands into a `Batch` and submits it as a whole; `submit_policy` decides when.

An exception may come between any two steps, such as a signal handler's `KeyboardInterrupt`. So the
ledger notes a command before the driver records it: an access that is noted but never made costs a
wait at worst. And submitting is a series of steps that can be repeated from the first: a batch that
the queue has accepted is not submitted again.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock import accelerator
from penstock.errors import ArgumentError, Closed, OutOfMemory, Timeout
from penstock.handle import Closing
from penstock.ledger.hazards import Lane, Region, Use, needs_of_lane, note_all, works_in
from penstock.memory.backing import Backing
from penstock.schedule.batch import Batch
from penstock.schedule.event import Event
from penstock.schedule.ordered_copies import Copier
from penstock.schedule.submit_policy import DEEPEST, NoRoom, SubmitPolicy
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.driver.protocol import CopyRegions, Recording, Replayable
    from penstock.schedule.scheduler import Scheduler
    from penstock.tracing.device_times import Mark

accelerator.share(OutOfMemory)
_RECORDINGS = 8  # recordings to allocate at once


@accelerator.share
class Stream(Closing):
    """Work that takes effect in the order it was called. Made by `Device.stream`."""

    __slots__ = (
        "__dict__", "__weakref__", "_batch", "_closed", "_in_flight", "_policy", "_spare", "_waits",
        "copies", "deep", "lane", "plain", "published", "queue", "scheduler", "timeline",
    )  # fmt: skip

    #: How the scheduler knows it, once it does.
    known: weakref.ref[Stream] | None = None

    def __init__(self, scheduler: Scheduler, index: int, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        with contextlib.ExitStack() as undo:
            self.timeline = scheduler.driver.timeline()
            undo.callback(self.timeline.close)
            self.queue = scheduler.driver.queue(index)
            undo.callback(self.queue.close)
            self.copier = Copier(scheduler, f"host copies of {name}")
            undo.callback(self.copier.close)
            self.copies = self.copier.lane
            self.lane = Lane(name, self, device=scheduler.name)
            self._spare = self._new_batches()
            undo.pop_all()
        #: By kernel: the ring of its large argument blocks. The stream has it, not the kernel,
        #: because the ledger page of a ring's memory keeps the stream alive.
        self.rings: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._batch = self._spare[-1]  # that is open or sealed, or was submitted last
        self._in_flight: list[Batch] = []  # oldest first
        self._waits: dict[Lane, int] = {}  # what the next submission waits for, on the device
        self._awaited_works: dict[Lane, str] = {}  # for receipts: `works_in` of its first command
        self._policy = SubmitPolicy()
        self.deep = False  # whether the caller must `make_room` before the next command
        self.published = 0  # all writes up to this value are host-visible once it is reached
        self._closed = False
        self.plain = True  # kept by `_note_state`

    # The public interface.

    def record(self) -> Event:
        """An event that is done when everything called on this stream so far is done."""
        with self.scheduler.lock:
            self._check()
            self.submit()
            return Event(self.scheduler, self.points(), self.name)

    def wait(self, event: Event) -> None:
        """Make later work on this stream wait for `event`, on the device. Does not block."""
        if not isinstance(event, Event):
            raise ArgumentError(f"Stream.wait takes an Event, not {type(event).__name__}")
        with self.scheduler.lock:
            self._check()
            if event._scheduler is not self.scheduler:
                raise ArgumentError(
                    f"the event belongs to {event._scheduler.device}, the stream to "
                    f"{self.scheduler.device}; wait for it on the host with event.wait()"
                )
            points = event.points_left()
            self.wait_for_lanes(points)
            if events.active and points:
                awaited = tuple((lane.place, value, "") for lane, value in points.items())
                here = (self.lane.place, self.lane.submitted + 1, 0)
                events.emit("order", "later work waits for an event", at=here, awaited=awaited)

    def flush(self) -> None:
        """Submit everything recorded so far to the device. Does not wait."""
        with self.scheduler.lock:
            self._check()
            self.submit()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Submit everything in the `with` block together at its end, as far as its order allows.

        This pays off for a known burst of small launches. A wait inside the block for its work
        submits that work early.
        """
        block = object()
        try:
            with self.scheduler.lock:
                self._check()
                self._policy.put_off(block, self._batch)
            yield
        finally:
            self._policy.resume(block)
            with self.scheduler.lock:
                self._policy.opened(self._batch)
                # If out of memory, the batch stays recorded; the next call that needs it retries.
                with contextlib.suppress(OutOfMemory):
                    self.submit_if_dry()

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until everything called on this stream so far is done."""
        if timeout is None and accelerator.native.synchronize(self):
            return
        scheduler = self.scheduler
        with scheduler.lock:
            self._check()
            self._submit("synchronize() waits for it")
            points = self.points()
        if points and not scheduler.wait_for(points, timeout, f"synchronize() of {self.name}"):
            raise Timeout(f"{self.name} was not done within {timeout} s; the work continues")

    def close(self) -> None:
        """Accept no more work, wait for the work in flight, then release the queue.

        If the wait fails, the queue is released when the work is done. Safe to call twice.
        """
        scheduler = self.scheduler
        if self.closed or scheduler.closed:  # without the lock, which a forked child must not use
            return
        points: dict[Lane, int] = {}
        with scheduler.lock:
            if self._closed or scheduler.closed:
                return
            scheduler.release_when_done(self)
            self._closed = True
            self._note_state()
            if scheduler.lost is None:  # else its driver objects go with the device
                self._publish_the_rest()
                points = self.points()
        if points:
            scheduler.wait_for(points, None, f"close() of {self.name}")
        with scheduler.lock:
            scheduler.drain()

    @property
    def closed(self) -> bool:
        return self._closed

    def __del__(self) -> None:
        # May run in any thread, in the middle of any call: only leave a message.
        if not getattr(self, "_closed", True):
            self.scheduler.stream_forgotten(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.lane.recorded - self.lane.complete} pending"
        return f"<Stream {self.name} of {self.scheduler.name}: {state}>"

    # For launches and transfers; the caller holds the device's lock.

    def begin(self, uses: Iterable[Use], what: str) -> Recording:
        """Return the recording into which the caller records one command, and then calls `end`.

        `uses` are the command's accesses; the ledger has them from here on, at value `recorded`.
        """
        lane = self.lane
        behind, waits = needs_of_lane(lane, uses)
        if waits:
            self.wait_for_lanes(waits)
        batch = self._batch
        if not batch.open:
            if self._waits and events.active:
                self._awaited_works = works_in(self._waits, uses)
            batch = self._start()
        recording = batch.recording
        if behind:
            recording.barrier()
            if events.active:
                batch.emit_barrier(behind)
            lane.epoch += 1
        batch.began = recording.mark(end=False) if events.timing else None
        if lane.appended:
            lane.forget_appended()
        note_all(uses, lane, batch.value, what)
        if not batch.must_publish:
            for history, _, write in uses:
                if write and not history.device_only:
                    batch.must_publish = True
                    break
        return recording

    def end(self) -> int:
        """Note that the command is recorded; returns the lane's value when it is complete."""
        batch = self._batch
        if self.lane.appended:
            self.lane.mark_appended()
        if batch.began is not None:  # whether or not a trace has begun or ended since
            batch.end_timing(batch.began)
        batch.count += 1
        if batch.count >= batch.look_at:
            self._consider_submitting(batch)
        return batch.value

    def here(self) -> events.At:
        """The position of the next command, for the receipt."""
        return self._batch.here()

    def time_inner(self, commands: Replayable, marks: list[Mark]) -> None:
        """For receipts: have timestamps inside a graph read that the next command replays."""
        self._batch.inner.append((commands, marks))

    def read_times(self) -> None:
        """For receipts: read the timestamps of the batches known to be complete."""
        for batch in self._in_flight:
            if batch.marks and batch.value <= self.lane.complete:
                batch.read_times(self.scheduler.times)

    def times_owed(self, receipt: events.Collector) -> int:
        """The value at which a receipt can have all its timestamps; 0 if none are missing."""
        batches = (*self._in_flight, self._batch)
        return max((each.value for each in batches if each.is_timed_for(receipt)), default=0)

    def copy(
        self, source: Backing, source_region: Region, target: Backing, target_region: Region,
        regions: CopyRegions, what: str, of: tuple[str, Region],
    ) -> int:  # fmt: skip
        """Record a copy on the device; returns the lane's value when it is complete.

        `of` is for the receipt: the name of the buffer that is copied, and its bytes.
        """
        uses = ((source.history, source_region, False), (target.history, target_region, True))
        self.begin(uses, what).copy(source.memory, target.memory, regions)
        if events.active:
            events.emit(
                "copy", what, nbytes=int(regions[:, 2].sum()), buffer=of[0], lo=of[1].lo,
                hi=of[1].hi, path="device", at=self.here(),
            )  # fmt: skip
        return self.end()

    def submit(self) -> None:
        """`flush`, for a caller that holds the lock."""
        self._submit("flush")

    def expect_result(self) -> None:
        """Note that the next command writes a result for the host, which is not in its `uses`."""
        self._batch.must_publish = True

    def publish(self) -> None:
        """Make all writes recorded so far host-visible, as of the value `published`."""
        batch = self._batch if self._batch.open else self._start()
        batch.must_publish = True
        self._submit("device writes are made host-visible")

    def wait_for_lanes(self, points: dict[Lane, int]) -> None:
        """Make what is recorded from here on wait for these points, on the device."""
        lane = self.lane
        self._submit("the next work waits for another stream or the host")
        for other, value in points.items():
            if other is lane:
                continue
            other.owner.ensure_submitted(value)
            self._waits[other] = max(value, self._waits.get(other, 0))
            lane.seen[other.number] = max(value, lane.seen.get(other.number, 0))

    def points(self) -> dict[Lane, int]:
        """The points at which everything called on this stream so far is done."""
        points: dict[Lane, int] = {}
        if self._waits:
            points = {lane: value for lane, value in self._waits.items() if value > lane.complete}
        lane = self.lane
        recorded = self.recorded
        if recorded > lane.complete:
            points[lane] = recorded
        copies = self.copies
        if copies.submitted > copies.complete:
            points[copies] = copies.submitted
        return points

    def ensure_submitted(self, value: int) -> None:
        if value > self.lane.submitted:
            self._submit("its result is needed")

    def poll(self) -> None:
        """Ask the driver how far the device has come on this stream."""
        lane = self.lane
        if lane.complete < lane.submitted and not accelerator.native.poll(self):
            try:
                reached = self.timeline.value()
            except BaseException as error:
                self.scheduler.note_failure(error)  # also in a thread of the runtime
                raise
            if events.active and reached > lane.complete:
                events.emit("done", "the host polled the stream", at=(lane.place, reached, 0))
            lane.reach(reached)

    @property
    def recorded(self) -> int:
        """The lane's value when everything recorded so far is complete."""
        return self._batch.value

    @property
    def has_recorded(self) -> bool:
        """Whether anything is recorded and not submitted."""
        return self._batch.value > self.lane.submitted

    def submit_if_dry(self) -> None:
        """Submit what is recorded if the device has completed everything else of this stream."""
        if self.has_recorded and not self._policy.puts_off:
            self.poll()
            if self.lane.complete == self.lane.submitted:
                self._submit("the device would run dry")

    def host_waits(self) -> None:
        """Have the next command submitted at once, because the host is about to wait."""
        self._policy.host_waits(self._batch)

    def is_done(self) -> bool:
        """Whether all work is done, so that a closed or dropped stream can be released."""
        self._submit("the stream was closed or dropped")
        self.copier.hand_over()
        self._publish_the_rest()
        self.poll()
        done = not self.points()
        self._closed = self._closed or done
        self._note_state()
        return done

    def _publish_the_rest(self) -> None:
        """Publish all writes: once the stream is released, nothing can publish them any more."""
        if self.published < self.lane.recorded:
            self.publish()

    def stop_copier(self) -> None:
        """End the copier's thread after its tasks, and release work that waits for the rest."""
        self.copier.stop()
        self.copier.abort()

    def release(self) -> None:
        """Destroy the driver's objects. Nothing may be in flight."""
        self.copier.close()
        self._in_flight.clear()
        self._spare.clear()
        self.queue.close()
        self.timeline.close()

    def _new_batches(self) -> list[Batch]:
        return [Batch(recording, self.lane) for recording in self.queue.recordings(_RECORDINGS)]

    def _start(self) -> Batch:
        """Open a batch."""
        started: Batch | None = accelerator.native.start(self)
        if started is not None:
            return started
        if self.has_recorded:
            self._submit("an earlier submission failed")
        if self._in_flight:
            self._collect_spare()
        if not self._spare:
            self._spare += self._new_batches()
        behind_host = bool(self._waits) and any(lane.is_host for lane in self._waits)
        batch = self._spare.pop()
        try:
            batch.recording.begin()
            if behind_host:
                batch.recording.acquire()
            self._policy.opened(batch)
        except BaseException as error:
            self._spare.append(batch)
            self.scheduler.note_failure(error)
            raise
        # No call, and so no interrupt, from here on: `batch` may already be `self._batch`, as the
        # batch submitted last, and must not be seen half open.
        batch.value = self.lane.submitted + 1
        batch.count = 0
        batch.must_publish = False
        batch.open = True
        self._batch = batch
        if behind_host and events.active:
            why = "makes a host copy visible to the device"
            events.emit("barrier", why, path="host", at=batch.here())
        if self._policy.first_look > 1:
            self.scheduler.idle_submitter.wake()
        return batch

    def _submit(self, reason: str) -> None:
        """Submit what is recorded. If interrupted or failed, the next call does it all again.

        Every step can be repeated: the queue accepts a submission of the same value once only, and
        the batch counts as not submitted until `lane.submitted` is set.
        """
        if accelerator.native.submit(self):
            return
        batch, lane = self._batch, self.lane
        value = batch.value
        if value == lane.submitted:
            return
        if batch.open:
            if batch.must_publish:
                batch.recording.publish()
                self.published = value
                if events.active:
                    why = "makes device writes visible to the host"
                    events.emit("barrier", why, path="host", at=batch.here())
            batch.open = False
        ahead = [(other, at) for other, at in self._waits.items() if at > other.complete]
        waits = [(other.owner.timeline, at) for other, at in ahead]
        start = events.clock() if events.active else 0.0
        try:
            self.queue.submit(batch.recording, waits, self.timeline, value)
        except BaseException as error:
            self.scheduler.note_failure(error)
            raise
        in_flight = self._in_flight
        if not in_flight or in_flight[-1] is not batch:
            in_flight.append(batch)
        if self._waits:
            self._waits.clear()
        lane.submitted = value
        self._note_state()
        if events.active:
            count = batch.count
            words = "%d command on %s: %s" if count == 1 else "%d commands on %s: %s"
            works = self._awaited_works
            awaited = tuple((other.place, at, works.pop(other, "")) for other, at in ahead)
            events.emit(
                "submission", (words, count, self.name, reason), start=start,
                seconds=events.since(start), at=(lane.place, value, 0), awaited=awaited,
            )  # fmt: skip

    def _consider_submitting(self, batch: Batch) -> None:
        self.poll()
        lane = self.lane
        reason = self._policy.reason_to_submit(batch, dry=lane.complete == lane.submitted)
        if not reason:
            self.scheduler.idle_submitter.wake()
            return
        try:
            self._submit(reason)
        except OutOfMemory:
            # The command stays recorded, and the next one tries to submit both. If that fails too,
            # the call that needs the result raises.
            batch.look_at = 1

    def need_room(self) -> None:
        """Raise `NoRoom` if too many submissions are in flight to record another command."""
        if self.deep:
            raise NoRoom(self)

    def make_room(self) -> None:
        """Block while too many submissions are in flight. Called without the lock."""
        scheduler = self.scheduler
        with scheduler.lock:
            self._check()
            self._collect_spare()
            points = {self.lane: self._in_flight[0].value} if self.deep else {}
        scheduler.wait_for(points, None, f"{DEEPEST} submissions in flight", path="bound")
        with scheduler.lock:
            self._check()
            self._collect_spare()

    def _collect_spare(self) -> None:
        """Move complete batches from `_in_flight` to `_spare`."""
        self.poll()
        complete = self.lane.complete
        in_flight = self._in_flight
        while in_flight and in_flight[0].value <= complete:
            if in_flight[0].marks:
                in_flight[0].read_times(self.scheduler.times)
            self._spare.append(in_flight.pop(0))
        self._note_state()

    def _note_state(self) -> None:
        """Keep `deep`, and `plain`: whether the next launch has nothing about the stream to ask."""
        self.deep = len(self._in_flight) >= DEEPEST
        self.plain = not (self.deep or self._closed)

    def _check(self) -> None:
        self.scheduler.check()
        if self._closed:
            raise Closed(f"{self.name} is closed")
