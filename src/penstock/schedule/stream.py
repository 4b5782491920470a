"""An ordered queue of work: launches, transfers, events.

Commands are recorded, and many share one submission. A recording is submitted when the device
would otherwise run dry, when the host or another stream needs its outcome, at an event or flush,
or when it has grown long. To tell whether the device has run dry costs a foreign call, and a
submission several, so the check is made at the first command after a pause and then at growing
distances, up to `_LONGEST` commands; `Pump` catches what is left when the program goes on to
do something else.

An exception may come between any two steps: a signal handler's `KeyboardInterrupt`, for one. So the
ledger is told of a command before the driver is, and submitting is a series of steps that can be
taken again from the first: an access that the ledger knows and the device never makes costs a wait
at worst, and a recording that was handed over is not handed over again.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import ArgumentError, Closed, OutOfMemory, Timeout
from penstock.handle import Closing
from penstock.ledger.hazards import ACCESS, Lane, Region, Use, collect_all, needs_of_lane, note_all
from penstock.memory.pool import Backing
from penstock.schedule.event import Event
from penstock.schedule.ordered_copies import Copier
from penstock.tracing import events
from penstock.tracing.device_times import Mark

if TYPE_CHECKING:
    from penstock.driver.protocol import CopyRegions, Recording
    from penstock.schedule.scheduler import Scheduler

_LONGEST = 128  # commands in one recording
_NEVER = 1 << 62
_RECORDINGS = 8  # made at a time; how many are in flight depends on chance
_DEEPEST = 256  # submissions in flight on one stream


class NoRoom(Exception):
    """A stream that has run too far ahead: to be waited for without the lock, and tried again."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream


class Stream(Closing):
    """Work that takes effect in the order it was called. Made by `Device.stream`."""

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
            self._spare: list[Recording] = list(self.queue.recordings(_RECORDINGS))
            undo.pop_all()
        self.lane = Lane(name, self, device=scheduler.name)
        #: By kernel, the ring of its large argument blocks. Here and not with the kernel, because
        #: the ledger of a ring's memory keeps the stream.
        self.rings: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._open: Recording | None = None
        self._open_value = 0  # the lane's value once the open recording is complete
        self._sealed = False  # whether the open recording is being submitted
        self.deep = False  # whether the caller is to wait (`make_room`) before the next command
        self._must_publish = False  # whether the host may look at what the recording writes
        self.published = 0  # the value up to which everything is visible to the host
        self._count = 0
        self._check_at = 1
        self._next_check = 1
        self._in_flight: deque[tuple[Recording, int]] = deque()
        self._waits: dict[Lane, int] = {}
        #: For the receipt: where commands of the recording take the time, and of those in flight.
        self._begun_at: int | None = None
        self._marks: list[Mark] = []
        self._marked: dict[int, tuple[Recording, list[Mark]]] = {}
        self._batches: set[object] = set()  # that are open
        self._closed = False

    # What users call.

    def record(self) -> Event:
        """An event that is done when everything called on this stream so far is done."""
        with self.scheduler.lock:
            self._check()
            self.submit()
            return Event(self.scheduler, self.points(), self.name)

    def wait(self, event: Event) -> None:
        """Let everything called on this stream from now on wait for `event`, on the device."""
        if not isinstance(event, Event):
            raise ArgumentError(f"Stream.wait takes an Event, not {type(event).__name__}")
        with self.scheduler.lock:
            self._check()
            if event._scheduler is not self.scheduler:
                raise ArgumentError(
                    f"the event is of {event._scheduler.device}, the stream of "
                    f"{self.scheduler.device}; wait for it on the host with event.wait()"
                )
            self.wait_for_lanes(event.points_left())

    def flush(self) -> None:
        """Hand everything recorded so far to the device. Does not wait."""
        with self.scheduler.lock:
            self._check()
            self.submit()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Let everything in the `with` block share one submission, as far as its order allows.

        The device gets it all at the end of the block, not piece by piece: worth it for a known
        burst of small launches. Waiting inside the block for its work submits it early.
        """
        this_one = object()
        try:
            with self.scheduler.lock:
                self._check()
                self._batches.add(this_one)
                self._next_check = _NEVER
            yield
        finally:
            self._batches.discard(this_one)
            with self.scheduler.lock:
                if not self._batches:
                    self._next_check = self._check_at
                    # Out of memory: it stays recorded, and whoever needs it tries again.
                    with contextlib.suppress(OutOfMemory):
                        self.submit_if_dry()

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until everything called on this stream so far is done."""
        scheduler = self.scheduler
        with scheduler.lock:
            self._check()
            if self._open is not None:
                self._submit("its end is waited for")
            points = self.points()
        if points and not scheduler.wait_for(points, timeout, f"synchronize() of {self.name}"):
            raise Timeout(f"{self.name} was not done within {timeout} s; the work goes on")

    def close(self) -> None:
        """Take no more work, wait for what there is, then give the queue back. Safe to call twice.

        If the wait fails, the queue is given back when the work is done.
        """
        scheduler = self.scheduler
        if self.closed or scheduler.closed:  # without the lock, which a forked child must not touch
            return
        points: dict[Lane, int] = {}
        with scheduler.lock:
            if self._closed or scheduler.closed:
                return
            scheduler.release_when_done(self)
            self._closed = True
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
        # May run in any thread, in the middle of anything: only leave a message.
        if not getattr(self, "_closed", True):
            self.scheduler.stream_forgotten(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.lane.recorded - self.lane.complete} pending"
        return f"<Stream {self.name} of {self.scheduler.name}: {state}>"

    # What the launcher and the transfers call, under the device's lock.

    def begin(self, uses: Iterable[Use], what: str) -> Recording:
        """A recording in which a command with these accesses comes next, and then `end`.

        The ledger knows of the accesses from here on, at the value `recorded`.
        """
        lane = self.lane
        barrier, waits = needs_of_lane(lane, uses)
        if waits:
            self.wait_for_lanes(waits)
        recording = self._open
        if recording is None or self._sealed:
            recording = self._start()
        if barrier:
            recording.barrier()
            if events.active:
                self._tell_barrier(uses)
            lane.epoch += 1
        if events.timing:
            self._begun_at = recording.mark(end=False)
        if lane.appended:
            self._forget_appended()
        note_all(uses, lane, self._open_value, what)
        if not self._must_publish:
            for history, _, write in uses:
                if write and not history.device_only:
                    self._must_publish = True
                    break
        return recording

    def end(self) -> int:
        """The command is in the recording; the value its completion will have."""
        value = self._open_value
        if self.lane.appended:
            self._mark_appended()
        if events.timing:
            self._take_time()
        self._count += 1
        if self._count >= self._next_check:
            self._consider_submitting()
        return value

    def _forget_appended(self) -> None:
        """A command failed: what it was to append does not count as written."""
        for history, _ in self.lane.appended:
            history.renew_writes()
        self.lane.appended.clear()

    def _mark_appended(self) -> None:
        """Rows of append-only arrays count as written now that the command is recorded."""
        appended = self.lane.appended
        try:
            for history, region in appended:
                history.mark(region)
        except BaseException:
            for history, region in appended:  # all that the command writes, or nothing
                history.mark(region)
            raise
        appended.clear()

    def _tell_barrier(self, uses: Iterable[Use]) -> None:
        """Put on the receipt what a barrier is for."""
        lane = self.lane
        behind = next(a for a in collect_all(uses) if a.lane is lane and a.epoch >= lane.epoch)
        why = (f"after {ACCESS}", *behind.facts)
        events.emit("barrier", why, path="device", at=self.here())

    def here(self) -> events.At:
        """Where the next command comes, for the receipt."""
        lane = self.lane
        return (lane.place, self._open_value, self._count + 1)

    def _take_time(self) -> None:
        """For the receipt: when the device is done with the command just recorded."""
        start, self._begun_at = self._begun_at, None
        if start is not None and self._open is not None:
            end = self._open.mark(end=True)
            if end is not None:
                self._marks.append((events.timing, self.here(), start, end))

    def read_times(self) -> None:
        """For receipts: have the device's times read of what is done by now."""
        for value in [value for value in self._marked if value <= self.lane.complete]:
            self.scheduler.times.read(*self._marked.pop(value))

    def times_owed(self, receipt: events.Collector) -> int:
        """The value that makes all times for a receipt known; 0 if they are."""
        if any(receipt in mark[0] for mark in self._marks):
            return self.lane.recorded
        owed = (v for v, (_, marks) in self._marked.items() if any(receipt in m[0] for m in marks))
        return max(owed, default=0)

    def copy(
        self, source: Backing, source_region: Region, target: Backing, target_region: Region,
        regions: CopyRegions, what: str, of: tuple[str, Region],
    ) -> int:  # fmt: skip
        """Record a copy on the device; the value its completion will have.

        `of` is what the copy is about, for the receipt: the name of a buffer, and bytes of it.
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
        """`flush`, under the lock."""
        self._submit("flush")

    def expect_result(self) -> None:
        """The next command writes something for the host that none of its uses tells."""
        self._must_publish = True

    def publish(self) -> None:
        """Make everything so far visible to the host, once `published` is reached."""
        if self._open is None or self._sealed:
            self._start()
        self._must_publish = True
        self._submit("the host looks at what was not meant for it")

    def wait_for_lanes(self, points: dict[Lane, int]) -> None:
        """Let what is recorded from here on wait for these points, on the device."""
        lane = self.lane
        self._submit("the next work waits for another stream or the host")
        for other, value in points.items():
            if other is lane:
                continue
            other.owner.ensure_submitted(value)
            self._waits[other] = max(value, self._waits.get(other, 0))
            lane.seen[other.number] = max(value, lane.seen.get(other.number, 0))

    def points(self) -> dict[Lane, int]:
        """What must be reached for everything called so far to be done."""
        points: dict[Lane, int] = {}
        if self._waits:
            points = {lane: value for lane, value in self._waits.items() if value > lane.complete}
        lane = self.lane
        recorded = self.recorded
        if recorded > lane.complete:
            points[lane] = recorded
        copies = self.copier.lane
        if copies.submitted > copies.complete:
            points[copies] = copies.submitted
        return points

    def ensure_submitted(self, value: int) -> None:
        if value > self.lane.submitted:
            self._submit("its outcome is needed")

    def poll(self) -> None:
        """Learn how far the device has come."""
        lane = self.lane
        if lane.complete < lane.submitted:
            try:
                reached = self.timeline.value()
            except BaseException as error:
                self.scheduler.note_failure(error)  # whoever looked: it may be a thread of ours
                raise
            if events.active and reached > lane.complete:
                events.emit("done", "the host has looked", at=(lane.place, reached, 0))
            lane.complete = reached

    @property
    def recorded(self) -> int:
        """The value that everything recorded so far will have reached."""
        return self.lane.submitted if self._open is None else self._open_value

    @property
    def has_recorded(self) -> bool:
        return self._open is not None

    def submit_if_dry(self) -> None:
        """Hand over what is recorded if the device has nothing else of this stream to do."""
        if self._open is not None and not self._batches:
            self.poll()
            if self.lane.complete == self.lane.submitted:
                self._submit("the device would run dry")

    def rest(self) -> None:
        """The host wants an outcome: what it calls next should reach the device at once."""
        self._check_at = 1
        self._next_check = _NEVER if self._batches else 1

    def is_done(self) -> bool:
        """For a stream nobody can use any more: whether its work is done, and it can be closed."""
        self._submit("the stream was forgotten")
        self._publish_the_rest()
        self.poll()
        done = not self.points()
        self._closed = self._closed or done
        return done

    def _publish_the_rest(self) -> None:
        """Nobody could ask for it any more once the stream is gone."""
        if self.published < self.lane.recorded:
            self.publish()

    def stop_copier(self) -> None:
        """End the copier's thread; its tasks are done, or never will be."""
        self.copier.stop()
        self.copier.abort()

    def release(self) -> None:
        """Give back driver objects. Nothing may be in flight."""
        self.copier.close()
        self._in_flight.clear()
        self._spare.clear()
        self.queue.close()
        self.timeline.close()

    def _start(self) -> Recording:
        if self._sealed:
            self._submit("an earlier submission failed")
        if self._in_flight:
            self._collect_spare()
        if not self._spare:
            self._spare += self.queue.recordings(_RECORDINGS)
        self._open_value = self.lane.submitted + 1
        self._count = 0
        recording = self._spare.pop()
        try:
            recording.begin()
            if self._waits and any(lane.is_host for lane in self._waits):
                recording.acquire()
                if events.active:
                    events.emit(
                        "barrier", "the device may look at a host copy", path="host", at=self.here()
                    )
        except BaseException as error:
            self._spare.append(recording)
            self.scheduler.note_failure(error)
            raise
        self._next_check = _NEVER if self._batches else self._check_at
        self._open = recording
        if self._check_at > 1:
            self.scheduler.pump.wake()
        return recording

    def _submit(self, reason: str) -> None:
        """Hand the open recording over. Interrupted or failed, it is all done again the next time.

        Every step may be repeated: the queue takes a submission of the same value once only, and
        the recording counts as open until everything about it is written down.
        """
        recording = self._open
        if recording is None:
            self._sealed = False
            return
        lane = self.lane
        value = self._open_value
        if not self._sealed:
            if self._must_publish:
                recording.publish()
                self.published = value
                if events.active:
                    why = "the host may look at what was written"
                    events.emit("barrier", why, path="host", at=self.here())
            self._sealed = True
            self._must_publish = False
        waits: list[tuple[Any, int]] = []
        if self._waits:
            waits = [
                (other.owner.timeline, reached)
                for other, reached in self._waits.items()
                if reached > other.complete
            ]
        awaited: tuple[events.Awaited, ...] = ()
        start = 0.0
        if events.active:
            awaited = tuple(
                (other.place, reached, "")
                for other, reached in self._waits.items()
                if reached > other.complete
            )
            start = time.perf_counter()
        try:
            self.queue.submit(recording, waits, self.timeline, value)
        except BaseException as error:
            self.scheduler.note_failure(error)
            raise
        in_flight = self._in_flight
        if not in_flight or in_flight[-1][1] != value:
            in_flight.append((recording, value))
        if self._marks:
            self._marked[value] = (recording, self._marks)
            self._marks = []
        if self._waits:
            self._waits.clear()
        lane.submitted = value
        self._open = None
        self._sealed = False
        self.deep = len(in_flight) >= _DEEPEST
        if events.active:
            count = self._count
            words = "%d command on %s: %s" if count == 1 else "%d commands on %s: %s"
            events.emit(
                "submission", (words, count, self.name, reason), start=start,
                seconds=events.since(start), at=(lane.place, value, 0), awaited=awaited,
            )  # fmt: skip

    def _consider_submitting(self) -> None:
        self.poll()
        lane = self.lane
        dry = lane.complete == lane.submitted
        if not dry and self._count < _LONGEST:
            self._next_check = min(2 * self._count, _LONGEST)
            self.scheduler.pump.wake()
            return
        # A device that is dry again and again is faster than the host: hand it more at a time.
        self._check_at = min(2 * self._count, _LONGEST) if dry else 1
        try:
            self._submit("the device would run dry" if dry else "the recording is long")
        except OutOfMemory:
            # The command is recorded and will be submitted with the next; the caller who needs
            # its outcome gets the error, if it lasts.
            self._next_check = 1

    def need_room(self) -> None:
        """Raise `NoRoom` if the caller is to wait before it records anything."""
        if self.deep:
            raise NoRoom(self)

    def make_room(self) -> None:
        """Block while too many submissions are in flight. Called without the lock."""
        scheduler = self.scheduler
        with scheduler.lock:
            self._check()
            self._collect_spare()
            points = {self.lane: self._in_flight[0][1]} if self.deep else {}
        scheduler.wait_for(points, None, f"{_DEEPEST} submissions in flight", path="bound")
        self.deep = False

    def _collect_spare(self) -> None:
        """Take recordings back that are complete."""
        self.poll()
        complete = self.lane.complete
        in_flight = self._in_flight
        if self._marked:
            self.read_times()
        while in_flight and in_flight[0][1] <= complete:
            self._spare.append(in_flight.popleft()[0])
        self.deep = len(in_flight) >= _DEEPEST

    def _check(self) -> None:
        self.scheduler.check()
        if self._closed:
            raise Closed(f"{self.name} is closed")
