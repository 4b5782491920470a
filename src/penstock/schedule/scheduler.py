"""What all parts of a device share: its lock, memory and streams, and every wait of the host.

`Device` is the public interface; this is the implementation. Every command is recorded through a
`Stream`, and every wait of the host goes through `wait_for`. The parts have their own modules:

| module | attribute | what |
|---|---|---|
| `finalisers` | `ended` | messages of finalisers, which `drain` acts on under the lock |
| `retirement` | `retirement` | what is freed once no work in flight uses it |
| `host_copies` | `host_copies` | copies by threads of the program, without the lock |
| `host_views` | `views` | NumPy arrays that show device memory, and who holds writable ones |
| `idle_submission` | `idle_submitter` | submits what is recorded when the device would idle |
| `receipt_times` | `times` | device timestamps for receipts |
| `shutdown` | `shutdown` | closing, forks, and what keeps a closed device's memory alive |

One lock guards it all. No thread waits for the device, a copy or a view while it holds the lock,
and no copier needs the lock to make its copy. A thread that holds it cannot take it again: code
that runs in the middle of a call (a signal handler, a finaliser, a weak reference's callback) and
uses the device gets `Reentered`, and the call that it interrupted continues undisturbed.

An exception may come after any step (`KeyboardInterrupt` from a signal handler). So what may have
to be undone is noted before it is done, in containers whose `add` and `discard` can be repeated.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import accelerator
from penstock.driver.protocol import Driver
from penstock.errors import ArgumentError, Closed, DeviceLost, Error, Reentered
from penstock.handle import Block
from penstock.ledger.hazards import Lane, Region
from penstock.locks import DeviceLock, if_free
from penstock.memory.backing import Backing, Hold, Owner
from penstock.memory.host_memory import HostMemory
from penstock.memory.pool import MemoryStats, Pool, stats_of
from penstock.schedule import host_views
from penstock.schedule.finalisers import FinaliserQueue
from penstock.schedule.host_copies import HostCopies
from penstock.schedule.host_views import HostViews
from penstock.schedule.idle_submission import IdleSubmitter
from penstock.schedule.pending import Pending
from penstock.schedule.receipt_times import ReceiptTimes
from penstock.schedule.retirement import Retirement
from penstock.schedule.shutdown import Guest, Shutdown
from penstock.schedule.stream import Stream
from penstock.schedule.thresholds import Sizes
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.graph.graph import Graph

_UNKNOWN: Mapping[Lane, str] = {}
_SLICE = 0.1  # seconds; waits wake this often, to notice Ctrl-C and a lost or closed device


@accelerator.share
class Scheduler:
    """Owns the driver and everything made from it. Made and closed by its `Device`."""

    __slots__ = (
        "__dict__", "__weakref__", "ended", "host_memory", "is_locked_here", "mutex", "plain",
        "ready", "shutdown", "sizes", "transfers", "views",
    )  # fmt: skip

    def __init__(
        self, device: Device, driver: Driver, transfers: str, *, clear_memory: bool = False
    ) -> None:
        self.device = device
        self.driver = driver
        self.transfers = transfers
        self.sizes = Sizes()
        self.name = driver.info.name
        self.mutex = DeviceLock()
        #: Whether the calling thread holds the lock.
        self.is_locked_here: Callable[[], bool] = self.mutex._is_owned
        self.lost: DeviceLost | None = None
        self.closed = False
        #: While graphs are recorded: by thread, the graph and the `with` block that records it.
        self.captures: dict[int, tuple[Graph, Block[Graph]]] = {}
        self.ready = self.plain = False  # kept by `note_state`
        self.host_memory = HostMemory()
        self.host_copies = HostCopies(self)
        self.views = HostViews(self)
        acts: dict[type, Callable[[Any], None]] = {}
        self.ended = FinaliserQueue(acts)
        self.retirement = Retirement(driver, self.host_memory, self.stream_lanes, self.ended.leave)
        acts |= {
            Hold: self.views.end,
            Owner: self.release,
            Backing: self.retire,  # dropped before it had an owner, or together with it
            tuple: self.host_copies.finish,  # a host lane, and the value of an ended copy
            **self.retirement.acts,
        }
        limit: Any = driver.info.limits["allocation"]
        pool = partial(
            Pool, driver, limit=limit, catch_up=self.catch_up, lanes=self.stream_lanes,
            publish=self.publish_everything, leave=self.ended.leave,
            clear=self._clear if clear_memory else None,
        )  # fmt: skip
        self.pool = pool(host=False)
        self.host_pool = pool(host=True)
        self.times = ReceiptTimes(self)
        self.idle_submitter = IdleSubmitter(self)
        #: Streams that are alive and not released. A callback in C removes each when it ends.
        self._streams: set[weakref.ref[Stream]] = set()
        #: Streams that are closed or dropped, but not released yet.
        self._forgotten: deque[Stream] = deque()
        self._streams_made = 0
        self._arrays_named = 0
        self.done: Pending[None] = Pending(self, {}, "a transfer", value=None)
        self.shutdown = Shutdown(self)  # from here on it is closed at exit, and told of traces
        self.note_state()

    def _clear(self, backing: Backing) -> None:
        """Have the device fill memory with zeros; the ledger orders later work after that."""
        stream = self.device.default_stream
        uses = ((backing.history, Region(0, backing.nbytes), True),)
        stream.begin(uses, "clear").fill(backing.memory, backing.offset, backing.nbytes, 0)
        if events.active:
            events.emit("fill", "clearing", nbytes=backing.nbytes, path="device", at=stream.here())
        stream.end()

    # State.

    @property
    def lock(self) -> Any:
        """The device's lock, for a `with` statement. A thread that holds it gets `Reentered`."""
        if self.is_locked_here():
            raise Reentered(
                f"{self.name} is used by code that runs in the middle of another of its calls: a "
                "signal handler, a finaliser or a weak reference's callback. Set a flag there, and "
                "use the device after the call has returned"
            )
        return self.mutex

    def check(self) -> None:
        """Raise unless the device can be used."""
        if self.closed:
            raise Closed(f"{self.name} is closed")
        if self.lost is not None:
            raise DeviceLost(str(self.lost))

    def note_state(self) -> None:
        """Keep `ready`: a launch has nothing to ask about the device; `plain`: no trace, either."""
        was = None
        while was != (
            now := (not (self.closed or self.lost or self.captures), not events.recording)
        ):
            was = now  # and look again: another thread may have changed it meanwhile
            self.ready, self.plain = now[0], all(now)

    def mark_lost(self, error: BaseException) -> None:
        """Make everything pending, and everything new, raise `DeviceLost` from now on."""
        if self.lost is None:
            self.lost = DeviceLost(f"{self.name} was lost: {error}")
            self.note_state()

    def note_failure(self, error: BaseException) -> None:
        if isinstance(error, DeviceLost):
            self.mark_lost(error)

    def stream_or_default(self, stream: Stream | None) -> Stream:
        """The given stream, checked to be open and of this device; or the default one."""
        if stream is None:
            return self.device.default_stream
        if not isinstance(stream, Stream):
            raise ArgumentError(f"stream={stream!r} is not a stream of {self.device}")
        if stream.scheduler is not self:
            raise ArgumentError(
                f"{stream.name} of {stream.scheduler.device} is not a stream of {self.device}"
            )
        if stream.closed:
            raise Closed(f"{stream.name} is closed")
        return stream

    def admit(self, stream: Stream | None) -> Stream:
        """`stream_or_default`, once that stream has room for more. Takes the lock; may wait."""
        found = self.stream_or_default(stream)
        if found.deep:
            found.make_room()
        return found

    def new_stream(self, name: str) -> Stream:
        self.drain()  # releases the queues of closed streams
        made = Stream(self, self._streams_made, name or f"stream {self._streams_made}")
        self._streams_made += 1
        made.known = weakref.ref(made, self._streams.discard)
        self._streams.add(made.known)
        return made

    def new_name(self) -> str:
        """A name for an array that the user did not name."""
        self._arrays_named += 1
        return f"array {self._arrays_named}"

    def memory_stats(self) -> MemoryStats:
        self.drain()
        return stats_of((self.pool, self.host_pool), adopted=self.host_memory.imported_bytes)

    def trim(self) -> int:
        self.drain()
        return self.pool.trim() + self.host_pool.trim()

    def flush(self, memory: Any, lo: int, hi: int) -> None:
        """Make host writes visible to the device, on memory that is not coherent."""
        if not memory.coherent:
            self.driver.flush(memory, lo, hi)

    def invalidate(self, memory: Any, lo: int, hi: int) -> None:
        """Make device writes visible to the host, on memory that is not coherent."""
        if not memory.coherent:
            self.driver.invalidate(memory, lo, hi)

    # Waiting.

    def everything_recorded(self) -> dict[Lane, int]:
        """Submit everything, oldest stream first; returns the points at which all is done."""
        points: dict[Lane, int] = {}
        for stream in sorted(self.all_streams(), key=lambda stream: stream.lane.number):
            stream.ensure_submitted(stream.lane.recorded)
            for lane, value in stream.points().items():
                points[lane] = max(value, points.get(lane, 0))
        for host in self.host_copies.lanes.made:
            if host.lane.complete < host.lane.submitted:
                points[host.lane] = host.lane.submitted
        return points

    def stream_lanes(self) -> list[Lane]:
        return [stream.lane for stream in self.all_streams()]

    def publish_everything(self) -> dict[Lane, int]:
        """Make all recorded writes host-visible; returns the points at which they are."""
        for stream in self.all_streams():
            if stream.published < stream.lane.recorded:
                stream.publish()
        return {stream.lane: stream.published for stream in self.all_streams()}

    def poll(self) -> None:
        """Ask the driver how far every stream has come."""
        for stream in self.living_streams():
            stream.poll()

    def reached(self, points: dict[Lane, int]) -> bool:
        """Whether all points are reached. Submits what they need, and does not wait."""
        if all(value <= lane.complete for lane, value in points.items()):
            return True
        with self.lock:
            self.check()
            try:
                self.drain_ended_locked()
                for lane, value in points.items():
                    lane.owner.ensure_submitted(value)
                    lane.owner.poll()
            except DeviceLost as error:
                self.mark_lost(error)
                raise
            return all(value <= lane.complete for lane, value in points.items())

    def wait_for(
        self, points: dict[Lane, int], timeout: float | None, reason: str,
        works: Mapping[Lane, str] = _UNKNOWN, **details: Any,
    ) -> bool:  # fmt: skip
        """Block the host until all points are reached; returns False after `timeout` seconds.

        For the receipt, `works` names the work that is waited for on each lane, where known.
        """
        over = submitted = True
        for lane, value in points.items():
            lane.owner.host_waits()
            over = over and value <= lane.complete
            submitted = submitted and value <= lane.submitted
        if over:
            return True
        if self.views.held:
            with self.lock:
                self.check_own_views(points)
        if not events.active:
            if not submitted or self.closed or self.lost is not None:
                self._submit_for(points)
            if timeout is None and accelerator.native.wait(self, points):
                return True
            return self.await_points(points, timeout)
        if self.reached(points):
            return True  # no wait, so none on the receipt
        left = {lane: value for lane, value in points.items() if value > lane.complete}
        start = events.clock()
        done, seconds = self.await_points(left, timeout), events.clock() - start
        awaited = tuple((lane.place, value, works.get(lane, "")) for lane, value in left.items())
        with contextlib.suppress(Error):  # a receipt is not worth a failure
            self.times.deliver_known_times()
        events.emit("wait", reason, start=start, seconds=seconds, awaited=awaited, **details)
        return done

    def check_can_wait(self, stream: Stream | None) -> None:
        """Raise if a wait for all work of a stream would wait for a view of the calling thread."""
        if self.views.held:
            with self.lock:
                self.check_own_views(self.stream_or_default(stream).points())

    def check_own_views(self, points: dict[Lane, int]) -> None:
        """Raise if a wait for these points would wait for a view of the calling thread."""
        self.drain_ended_locked()  # a view that the thread has dropped does not count
        self.views.check_own(points)

    def _submit_for(self, points: dict[Lane, int]) -> None:
        """Submit everything that these points need."""
        with self.lock:
            self.check()
            try:
                for lane, value in points.items():
                    if value > lane.submitted:
                        lane.owner.ensure_submitted(value)
            except DeviceLost as error:
                self.mark_lost(error)
                raise

    def await_points(
        self, points: dict[Lane, int], timeout: float | None = None, *, closing: bool = False
    ) -> bool:
        """Block until points whose work is submitted are reached. The caller holds no lock.

        Raises `Closed` once the device is closed, except to the waits of `close` (`closing`).
        """
        assert not self.is_locked_here(), "a wait under the device's lock"
        # A copier waits for no lock: the thread that releases its stream has it, and joins it.
        if self.ended.left:  # the work waited for may itself wait for these
            if_free(self.lock, self.drain_ended_locked) if closing else self.drain_ended()
        begun = time.monotonic()
        deadline = None if timeout is None else begun + timeout
        warned = False
        guest = Guest(points)
        try:
            self.shutdown.guests.add(guest)
            # Waits for host copies do not go through the driver: their threads report to the lane.
            copies, timelines = list[tuple[Any, int]](), list[tuple[Any, int]]()
            for lane, value in points.items():
                if lane.is_host:
                    copies.append((lane.owner, value))
                elif value > lane.complete:
                    timelines.append((lane.owner.timeline, value))
            while copies or timelines:
                if self.shutdown.over and not closing:
                    raise Closed(f"{self.name} was closed while this thread waited for it")
                patience = _SLICE
                if deadline is not None:
                    patience = min(patience, max(0.0, deadline - time.monotonic()))
                if copies:
                    if copies[-1][0].wait(copies[-1][1], patience):
                        copies.pop()
                        continue
                    if copies[-1][0].aborted and self.lost is None:
                        if not closing:
                            raise Closed(f"{self.name} was closed before a copy was made")
                        copies.pop()
                        continue
                elif self.driver.wait(timelines, int(patience * 1e9)):
                    break
                if self.lost is not None:
                    raise DeviceLost(str(self.lost))
                if self.ended.left:  # left by an interrupted call
                    if_free(self.lock, self.drain_ended_locked) if closing else self.drain_ended()
                now = time.monotonic()
                if self.views.held and not warned and now - begun > host_views.LONG:
                    warned = True
                    with self.lock:
                        holders = self.views.holders_before(points)
                    host_views.warn_of_holders(holders)
                if deadline is not None and now >= deadline:
                    return False
        except DeviceLost as error:
            self.mark_lost(error)
            raise
        finally:
            self.shutdown.guests.discard(guest)
            if self.shutdown.over:
                self.shutdown.tear_down()
        for lane, value in points.items():
            if value > lane.complete:
                lane.reach(value)
                if events.active and not lane.is_host:
                    events.emit("done", "the host waited for it", at=(lane.place, value, 0))
        return True

    # Ends.

    def release(self, owner: Owner) -> None:
        """Take a buffer's memory back; other buffers may still use it. May be repeated."""
        backing = owner.backing
        if owner in backing.owners:
            if len(backing.owners) == 1:
                self.retire(backing)
            backing.owners.discard(owner)

    def retire(self, backing: Backing) -> None:
        """Take back memory that no buffer uses, but work in flight may. May be repeated."""
        if backing.pool is not None:
            self.host_memory.remove(backing)
            backing.pool.retire(backing)
        else:
            self.retirement.adopted.add(backing)

    def try_locked(self, act: Callable[[], None]) -> None:
        """Call `act` under the lock if it is free, else wake the idle submitter. Never waits."""
        if self.is_locked_here():
            return
        try:
            if self.mutex.acquire(blocking=False):
                act()
            else:
                self.idle_submitter.hurry()
        finally:
            try:  # noqa: SIM105 (the first call here must be the one that cannot be interrupted)
                self.mutex.release()
            except RuntimeError:
                pass  # it was not free

    def stream_forgotten(self, stream: Stream) -> None:
        """Note, from a finaliser, that a stream was dropped."""
        self.release_when_done(stream)
        self.shutdown.stream_finalised()

    def release_when_done(self, stream: Stream) -> None:
        """Release a stream's queue at the first `drain` that finds its work done."""
        self._forgotten.append(stream)

    def _stream_closed(self, stream: Stream) -> None:
        """Release a stream whose work is done, once no other work waits for its timeline.

        An interrupted call can be repeated.
        """
        stream.read_times()
        self._streams.discard(stream.known)
        self.retirement.free_later(stream.lane, stream.release)

    def catch_up(self) -> None:
        """Poll all streams and act on what has ended, so that memory can be reused."""
        self.poll()
        self.drain()

    def drain(self) -> None:
        """Act on what has ended. Cheap when nothing has."""
        if self.ended.left:
            self.drain_ended_locked()
        for _ in range(len(self._forgotten) if self.lost is None else 0):
            stream = self._forgotten[0]
            if stream.is_done():
                self._stream_closed(stream)
                self._forgotten.popleft()
            else:
                self._forgotten.rotate(-1)
        if self.retirement:
            self.poll()
            awaited = {lane for guest in self.shutdown.guests.copy() for lane in guest.points}
            self.retirement.free_what_is_done(awaited)

    def drain_ended(self) -> None:
        """Act on the messages of finalisers and interrupted calls. Takes the lock."""
        with self.lock:
            self.drain_ended_locked()

    def drain_ended_locked(self) -> None:
        try:
            self.ended.drain()
        except DeviceLost as error:
            self.mark_lost(error)
            raise

    def drain_ended_quietly(self) -> None:
        """`drain_ended_locked` for finalisers; a message that fails is acted on again later."""
        try:
            self.ended.drain()
        except Error as error:
            self.note_failure(error)

    def living_streams(self) -> list[Stream]:
        """All streams but those whose finaliser has begun, oldest first."""
        # `copy` allocates all its memory before it iterates; else the collector may change the set.
        living = [stream for each in self._streams.copy() if (stream := each()) is not None]
        return sorted(living, key=lambda stream: stream.lane.number)

    def all_streams(self) -> set[Stream]:
        return {*self.living_streams(), *self._forgotten.copy()}  # copied: finalisers append

    def has_hidden_streams(self) -> bool:
        """Whether the garbage collector has cleared weak references to streams not yet finalised.

        It then collects the scheduler together with them: otherwise the references' callback would
        have removed them from `_streams`.
        """
        seen = {stream.known for stream in self._forgotten.copy()}
        return any(known() is None for known in self._streams - seen)
