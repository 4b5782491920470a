"""What all parts of a device share: its lock, memory, streams, and every wait.

`Device` is the face; this is the machinery behind it. Everything recorded goes through a `Stream`,
and everything the host waits for through `wait_for`. The parts have modules of their own:

| module | attribute | what |
|---|---|---|
| `finalisers` | `ended` | messages of finalisers, which `drain` acts on at the next safe moment |
| `retirement` | `retirement` | what is freed once work in flight is done with it |
| `host_copies` | `host_copies` | copies by threads of the program, without the lock |
| `host_views` | `views` | NumPy arrays that show device memory, and who holds writable ones |
| `idle_submission` | `pump` | submits what is recorded when the device would idle |
| `receipt_times` | `times` | device times for receipts |
| `shutdown` | `shutdown` | closing, forks, and what keeps a closed device's memory |

One lock guards it all. No thread waits for the device, a copy or a view while it holds the lock,
and no copier needs the lock to get its copy done. A thread that holds it cannot take it again: code
that runs in the middle of a call (a signal handler, a finaliser, a weak reference's callback) and
uses the device gets `Reentered`, and the call in whose middle it ran goes on undisturbed.

An exception may come after any step (`KeyboardInterrupt` from a signal handler). So what has to be
undone is written down before it is done, in containers whose `add` and `discard` can be repeated.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.driver.protocol import Driver
from penstock.errors import ArgumentError, Closed, DeviceLost, Error, Reentered
from penstock.handle import Block
from penstock.ledger.hazards import Lane, Region
from penstock.memory.host_memory import HostMemory
from penstock.memory.pool import Backing, Hold, MemoryStats, Owner, Pool, stats_of
from penstock.schedule import host_views
from penstock.schedule.finalisers import FinaliserQueue
from penstock.schedule.host_copies import HostCopies
from penstock.schedule.host_views import HostViews
from penstock.schedule.idle_submission import Pump
from penstock.schedule.pending import Pending
from penstock.schedule.receipt_times import ReceiptTimes
from penstock.schedule.retirement import GraphEnd, Retirement
from penstock.schedule.shutdown import Guest, Shutdown
from penstock.schedule.stream import Stream
from penstock.schedule.thresholds import Sizes
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.graph.graph import Graph

_UNKNOWN: Mapping[Lane, str] = {}
_SLICE = 0.1  # seconds; waits wake this often, to hear of Ctrl-C and of a lost or closed device


class Scheduler:
    """Owns the driver and everything made from it. Made and closed by its `Device`."""

    def __init__(
        self, device: Device, driver: Driver, transfers: str, *, clear_memory: bool = False
    ) -> None:
        self.device = device
        self.driver = driver
        self.transfers = transfers
        self.sizes = Sizes()
        self.name = driver.info.name
        self._mutex: Any = threading.RLock()
        #: Whether the calling thread holds the lock.
        self.is_locked_here: Callable[[], bool] = self._mutex._is_owned  # type: ignore[attr-defined]
        self.lost: DeviceLost | None = None
        self.closed = False
        #: While graphs are recorded: by thread, the graph and the `with` block that records it.
        self.captures: dict[int, tuple[Graph, Block[Graph]]] = {}
        self.host_memory = HostMemory()
        self.host_copies = HostCopies(self)
        self.views = HostViews(self)
        self.retirement = Retirement(driver, self.host_memory, self.stream_lanes)
        self.ended = FinaliserQueue(
            {
                Hold: self.views.end,
                Owner: self.release,
                Backing: self.retire,  # dropped before it had an owner, or with it
                GraphEnd: self.retirement.retire_graph,
                tuple: self.host_copies.finish,  # a host lane, and its value that is reached
            }
        )
        limit = driver.info.limits["allocation"]
        assert isinstance(limit, int)
        pool = partial(
            Pool, driver, limit=limit, catch_up=self.catch_up, lanes=self.stream_lanes,
            publish=self.publish_everything, leave=self.ended.leave,
            clear=self._clear if clear_memory else None,
        )  # fmt: skip
        self.pool = pool(host=False)
        self.host_pool = pool(host=True)
        self.times = ReceiptTimes(self)
        self.pump = Pump(self)
        #: Streams that are alive and not released. Each goes by a callback in C when it ends.
        self._streams: set[weakref.ref[Stream]] = set()
        #: Streams that are closed or dropped, and not released yet.
        self._forgotten: deque[Stream] = deque()
        self._streams_made = 0
        self._arrays_named = 0
        self.done: Pending[None] = Pending(self, {}, "a transfer", value=None)
        self.shutdown = Shutdown(self)  # last: the interpreter's exit closes it from here on

    def _clear(self, backing: Backing) -> None:
        """Have the device fill memory with zeros; whatever uses it next comes behind that."""
        stream = self.device.default_stream
        uses = ((backing.history, Region(0, backing.nbytes), True),)
        commands = stream.begin(uses, "clear")
        commands.fill(backing.memory, backing.offset, backing.nbytes, 0)
        stream.end()
        if events.active:
            events.emit("fill", "memory is cleared", nbytes=backing.nbytes, path="device")

    # State.

    @property
    def lock(self) -> Any:
        """What to hold, with `with`, to look at or change anything; never twice in one thread."""
        if self.is_locked_here():
            raise Reentered(
                f"{self.name} is used by code that runs in the middle of another of its calls: a "
                "signal handler, a finaliser or a callback of a weak reference; let that leave a "
                "note, and use the device once the call has returned"
            )
        return self._mutex

    def check(self) -> None:
        """Raise unless the device can be used."""
        if self.closed:
            raise Closed(f"{self.name} is closed")
        if self.lost is not None:
            raise DeviceLost(str(self.lost))

    def mark_lost(self, error: BaseException) -> None:
        """From now on everything pending, and everything new, raises `DeviceLost`."""
        if self.lost is None:
            self.lost = DeviceLost(f"{self.name} was lost: {error}")

    def note_failure(self, error: BaseException) -> None:
        if isinstance(error, DeviceLost):
            self.mark_lost(error)

    def stream_or_default(self, stream: Stream | None) -> Stream:
        """The stream to work on, after checking that it is open and of this device."""
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
        """The stream to work on, once it has room for more. Takes the lock, and may wait."""
        found = self.stream_or_default(stream)
        if found.deep:
            found.make_room()
        return found

    def new_stream(self, name: str) -> Stream:
        self.drain()  # streams that were closed make room for it
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
        """Make host writes count, on memory where they do not by themselves."""
        if not memory.coherent:
            self.driver.flush(memory, lo, hi)

    def invalidate(self, memory: Any, lo: int, hi: int) -> None:
        """Let the host see device writes, on memory where it does not by itself."""
        if not memory.coherent:
            self.driver.invalidate(memory, lo, hi)

    # Waiting.

    def everything_recorded(self) -> dict[Lane, int]:
        """Submit everything, and tell when it is done."""
        points: dict[Lane, int] = {}
        for stream in self.all_streams():
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
        """Have everything made visible to the host; when that is so."""
        for stream in self.all_streams():
            if stream.published < stream.lane.recorded:
                stream.publish()
        return {stream.lane: stream.published for stream in self.all_streams()}

    def poll(self) -> None:
        """Learn how far every stream has come."""
        try:
            for stream in self.living_streams():
                stream.poll()
        except DeviceLost as error:
            self.mark_lost(error)
            raise

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
        """Block the host until all points are reached; False when `timeout` seconds ran out.

        `works` names what is waited for on each lane, where that is known, for the receipt.
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
            return self.await_points(points, timeout)
        if self.reached(points):
            return True  # no wait, so none on the receipt
        left = {lane: value for lane, value in points.items() if value > lane.complete}
        start = time.perf_counter()
        done = self.await_points(left, timeout)
        seconds = time.perf_counter() - start
        awaited = tuple((lane.place, value, works.get(lane, "")) for lane, value in left.items())
        with contextlib.suppress(Error):  # a receipt is not worth a failure
            self.times.deliver_known_times()
        events.emit("wait", reason, start=start, seconds=seconds, awaited=awaited, **details)
        return done

    def check_can_wait(self, stream: Stream | None) -> None:
        """Raise if a wait for all work of a stream would wait for a view of the caller's own."""
        if self.views.held:
            with self.lock:
                self.check_own_views(self.stream_or_default(stream).points())

    def check_own_views(self, points: dict[Lane, int]) -> None:
        """Raise if a wait for these points would wait for a view of the caller's own."""
        self.drain_ended_locked()  # a view that the thread has dropped does not count
        self.views.check_own(points)

    def _submit_for(self, points: dict[Lane, int]) -> None:
        """Have everything submitted that these points need."""
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
        """Block until points whose work is submitted are reached. Takes no lock.

        Once the device is closed, raises `Closed`, but for what its closing itself waits for.
        """
        assert not self.is_locked_here(), "a wait under the device's lock"
        if self.ended.left:
            self.drain_ended()  # what it waits for may wait for these
        begun = time.monotonic()
        deadline = None if timeout is None else begun + timeout
        warned = False
        guest = Guest(points)
        try:
            self.shutdown.guests.add(guest)
            # Copies by this process are waited for without the driver: it would not know sooner.
            copies: list[tuple[Any, int]] = []
            timelines: list[tuple[Any, int]] = []
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
                if self.ended.left:
                    self.drain_ended()  # an interrupted call did not get to it
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
                lane.complete = value
                if events.active and not lane.is_host:
                    events.emit("done", "the host has waited", at=(lane.place, value, 0))
        return True

    # Ends.

    def release(self, owner: Owner) -> None:
        """A buffer gives its memory back; other buffers may still use it. May be called again."""
        backing = owner.backing
        if owner in backing.owners:
            if len(backing.owners) == 1:
                self.retire(backing)
            backing.owners.discard(owner)

    def retire(self, backing: Backing) -> None:
        """No buffer uses this memory; work in flight may. May be called again."""
        if backing.pool is not None:
            self.host_memory.remove(backing)
            backing.pool.retire(backing)
        else:
            self.retirement.adopted.add(backing)

    def try_locked(self, act: Callable[[], None]) -> None:
        """Act under the lock if it is free, from a finaliser; else others will, in a moment."""
        if self.is_locked_here():
            return
        try:
            if self._mutex.acquire(blocking=False):
                act()
            else:
                self.pump.hurry()
        finally:
            try:  # noqa: SIM105 (the first call here must be the one that cannot be interrupted)
                self._mutex.release()
            except RuntimeError:
                pass  # it was not free

    def forget_rings(self, kernel: Any) -> None:
        """A kernel is closed: no stream needs to keep its arguments any more."""
        for stream in self.all_streams():
            stream.rings.pop(kernel, None)

    def program_dropped(self, program: Any) -> None:
        """From a finaliser: a kernel is gone."""
        self.ended.leave(partial(self.retirement.retire_program, program))

    def stream_forgotten(self, stream: Stream) -> None:
        """From a finaliser: the stream was dropped, and takes no more work."""
        self.release_when_done(stream)
        self.shutdown.stream_finalised()

    def release_when_done(self, stream: Stream) -> None:
        """Give a stream's queue back at the first `drain` that finds its work done."""
        self._forgotten.append(stream)

    def _stream_closed(self, stream: Stream) -> None:
        """A stream's own work is done; work of others may still refer to its timeline.

        Interrupted, it can be called again.
        """
        stream.read_times()
        self._streams.discard(stream.known)
        self.retirement.free_later(stream.lane, stream.release)

    def catch_up(self) -> None:
        """Learn what is done and what is gone, so that memory can be reused."""
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
        """Act on what finalisers and interrupted calls left. Takes the lock."""
        with self.lock:
            self.drain_ended_locked()

    def drain_ended_locked(self) -> None:
        try:
            self.ended.drain()
        except DeviceLost as error:
            self.mark_lost(error)
            raise

    def drain_ended_quietly(self) -> None:
        """For a finaliser, whose exceptions Python drops; what failed is tried again."""
        try:
            self.ended.drain()
        except Error as error:
            self.note_failure(error)

    def living_streams(self) -> list[Stream]:
        """All but those that are in their finaliser, or have been."""
        # A copy takes its memory before it looks at the set. Others take some in between, where the
        # garbage collector may run, and streams end.
        return [stream for known in self._streams.copy() if (stream := known()) is not None]

    def all_streams(self) -> set[Stream]:
        return {*self.living_streams(), *self._forgotten}

    def has_hidden_streams(self) -> bool:
        """Whether the garbage collector is yet to finalise streams that cannot be seen any more.

        It takes us with them, or else the callback would have told of their end.
        """
        seen = {stream.known for stream in self._forgotten}
        return any(known() is None for known in self._streams - seen)
