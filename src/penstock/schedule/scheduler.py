"""What all parts of a device share: its lock, memory, streams, and every wait.

`Device` is the face; this is the machinery behind it. Everything recorded goes through a `Stream`,
everything the host waits for goes through `wait_for`, and everything that ends, ends here: arrays
dropped, views released, streams forgotten. Those ends may come in any thread in the middle of
anything, so they only leave a message, and `drain` acts on it at the next safe moment.

One lock guards it all. No thread waits for the device, a copy or a view while it holds the lock,
and no copier needs the lock to get its copy done. A thread that holds it cannot take it again: code
that runs in the middle of a call (a signal handler, a finaliser, a weak reference's callback) and
uses the device gets `Reentered`, and the call in whose middle it ran goes on undisturbed.

An exception may come after any step (`KeyboardInterrupt` from a signal handler). So what has to be
undone is written down before it is done, in containers whose `add` and `discard` can be repeated.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from penstock.driver.protocol import Driver
from penstock.errors import (
    ArgumentError,
    Closed,
    DeviceLost,
    Error,
    ForkedDevice,
    OutOfMemory,
    Reentered,
    ViewHeld,
)
from penstock.handle import Block
from penstock.ledger.hazards import Lane, Region
from penstock.memory.host_memory import HostMemory
from penstock.memory.pool import Backing, Hold, MemoryStats, Owner, Pool, Shown, is_own
from penstock.schedule.host_lane import HostLane
from penstock.schedule.idle_submission import Pump
from penstock.schedule.pending import Pending
from penstock.schedule.stream import NoRoom, Stream
from penstock.schedule.thresholds import Sizes
from penstock.tracing import events
from penstock.tracing.device_times import Timekeeper

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.graph.graph import Graph

T = TypeVar("T")
_UNKNOWN: Mapping[Lane, str] = {}
_SLICE = 0.1  # seconds; waits wake this often, to hear of Ctrl-C and of a lost or closed device
_MOMENT = 0.05  # seconds that a wait on the receipt may take longer, to learn the device's clock
_TICK = 0.001
_LONG = 10.0  # seconds, after which a wait for a view of another thread's gives a warning
_CLOSE_TIMEOUT = 30.0  # seconds that closing gives a kernel to end
_LEAVE_TIMEOUT = 5.0  # seconds that it then gives other threads to notice

#: What gives something back, the points that must be reached first, and the lane that it is of.
_ToRelease = tuple[Callable[[], None], list[tuple[weakref.ref[Lane], int]], Lane | None]

_alive: weakref.WeakSet[Scheduler] = weakref.WeakSet()


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
        limit = driver.info.limits["allocation"]
        assert isinstance(limit, int)
        clear = self._clear if clear_memory else None
        pool = partial(
            Pool, driver, limit=limit, catch_up=self.catch_up, lanes=self.stream_lanes,
            publish=self.publish_everything, clear=clear,
        )  # fmt: skip
        self.pool = pool(host=False)
        self.host_pool = pool(host=True)
        self.host_memory = HostMemory()
        self.exports: set[Hold] = set()  # host views alive
        self.guests: set[Guest] = set()  # threads that use the driver or its memory unlocked
        self.times = Timekeeper(driver)
        self.pump = Pump(self)
        #: Streams that are alive and not released. Each goes by a callback in C when it ends.
        self._streams: set[weakref.ref[Stream]] = set()
        self._streams_made = 0
        self._closing = False  # as soon as the garbage collector lets us
        self._over = False  # whether `close` has waited for what there was to wait for
        self._resting = False  # and whether nothing runs any more
        self._arrays_named = 0
        self._host_lanes = [HostLane(driver, "host copy 0")]
        self._idle_host_lanes = dict.fromkeys(self._host_lanes)  # the last one in goes first
        #: Host copies that are made, or never will be, and that the device is yet to be told of.
        self.copies_made: deque[tuple[HostLane, int]] = deque()
        #: What the call that has the lock has begun and is to finish without it: `carry_out`.
        self.begun: list[Any] = []
        #: What interrupted calls left to be done under the lock; each can be called again.
        self.left_over: deque[Callable[[], None]] = deque()
        self.leaving: set[Backing] = set()  # adopted, dropped, perhaps still in use
        self.buffers_ended: deque[Owner] = deque()
        self._view_lanes: list[HostLane] = []  # of writable views, not of copies
        self._idle_view_lanes: dict[HostLane, None] = {}
        self._held: dict[Lane, int] = {}  # writable views alive, by the thread that holds them
        self.views_ended: deque[Hold] = deque()
        self._forgotten: deque[Stream] = deque()
        self._dropped_programs: deque[Any] = deque()
        self._graphs: set[GraphEnd] = set()  # that have not given their commands back
        self._graphs_ended: deque[GraphEnd] = deque()
        self._to_release: list[_ToRelease] = []
        self._torn_down = False
        self.done: Pending[None] = Pending(self, {}, "a transfer", value=None)
        _alive.add(self)
        events.tellers.add(self)

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

    def check_over(self) -> None:
        """For a guest that has just come: raise if it comes too late."""
        if self._over:
            raise Closed(f"{self.name} is closed")

    def guest_left(self) -> None:
        """Tear a closed device down if this thread was the last to use it."""
        if self._over:
            self._tear_down()

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

    def carry_out(self, begin: Callable[[], T]) -> T:
        """Call `begin` under the lock, then `finish` what it has put on `begun` without the lock.

        `begin` is called again if the stream that it uses had to be given room, or if `finish` says
        that another thread came in between. If an exception stops the thread before the end,
        `abandon` of all that is on `begun` lets go of the device work that waits for it.
        """
        begun: list[Any] = []
        try:
            while True:
                try:
                    with self.lock:
                        self.begun = begun
                        outcome = begin()
                except NoRoom as full:
                    stream = full.stream
                else:
                    if not begun or all(each.finish() for each in begun):
                        return outcome
                    begun.clear()
                    continue
                stream.make_room()
        finally:
            if begun:
                for each in begun:
                    each.abandon()
                begun.clear()  # they keep the caller's arrays alive
                if self.left_over or self.copies_made:
                    self.tell_of_copies()

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
        pools = (self.pool, self.host_pool)
        for pool in pools:
            pool.reap()
        reserved = sum(pool.reserved for pool in pools)
        used = sum(pool.used for pool in pools)
        pending = sum(pool.pending for pool in pools)
        return MemoryStats(
            reserved=reserved,
            used=used,
            pending=pending,
            free=reserved - used - pending,
            adopted=self.host_memory.imported_bytes,
            peak=sum(pool.peak for pool in pools),
            allocations=sum(pool.allocations for pool in pools),
        )

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
        for stream in self._all_streams():
            stream.ensure_submitted(stream.lane.recorded)
            for lane, value in stream.points().items():
                points[lane] = max(value, points.get(lane, 0))
        for host in self._host_lanes:
            if host.lane.complete < host.lane.submitted:
                points[host.lane] = host.lane.submitted
        return points

    def stream_lanes(self) -> list[Lane]:
        return [stream.lane for stream in self._all_streams()]

    def publish_everything(self) -> dict[Lane, int]:
        """Have everything made visible to the host; when that is so."""
        for stream in self._all_streams():
            if stream.published < stream.lane.recorded:
                stream.publish()
        return {stream.lane: stream.published for stream in self._all_streams()}

    def poll(self) -> None:
        """Learn how far every stream has come."""
        try:
            for stream in self._living_streams():
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
                self._tell_of_copies()
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
            lane.owner.rest()
            over = over and value <= lane.complete
            submitted = submitted and value <= lane.submitted
        if over:
            return True
        if self._held:
            self._check_own_views(points)
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
            self._read_times()
        events.emit("wait", reason, start=start, seconds=seconds, awaited=awaited, **details)
        return done

    def tell_times(self, collector: events.Collector, patience: float) -> None:
        """Tell a receipt when the device did what it did, once it is done.

        With patience, waits that many seconds for what is in flight; without, for nothing.
        """
        if self.closed or self.lost is not None or self.is_locked_here():
            return
        deadline = time.monotonic() + patience
        with contextlib.suppress(Error):  # a receipt is not worth a failure
            with self.lock:
                streams = self._all_streams()
                points = {s.lane: owed for s in streams if (owed := s.times_owed(collector))}
                if points:
                    self.poll()
            if points and patience:
                self.wait_for(points, patience, "the receipt is to have the device's times")
            self._read_times(deadline if patience else 0.0)

    def _read_times(self, deadline: float = 0.0) -> None:
        """Have times told as far as that takes no wait, or only one until the deadline."""
        with self.lock:
            resting = True
            for stream in self._all_streams():
                stream.read_times()
                resting = resting and stream.lane.complete == stream.lane.submitted
        if not self.times.owed or not (resting or deadline):
            return
        # How the clocks compare is asked of the device, once, and takes it a moment.
        if self._learn_time(deadline or time.monotonic() + _MOMENT):
            with self.lock:
                self.times.tell()

    def _learn_time(self, deadline: float) -> bool:
        """Find out how the device's clock and the host's compare; whether that is known."""
        while True:
            with self.lock:
                if self._over or self.lost is not None:
                    return False
                point = self.driver.learn_time()
            if point is None:
                return True
            guest = Guest(())
            try:
                self.guests.add(guest)
                self.check_over()
                if not self.driver.wait([point], _nanoseconds(deadline)):
                    return False
            finally:
                self.guests.discard(guest)
                self.guest_left()

    def check_can_wait(self, stream: Stream | None) -> None:
        """Raise if a wait for all work of a stream would wait for a view of the caller's own."""
        if self._held:
            with self.lock:
                self._check_own_views_locked(self.stream_or_default(stream).points())

    def _check_own_views(self, points: dict[Lane, int]) -> None:
        """Raise if the calling thread would wait for itself to let go of a writable view."""
        with self.lock:
            self._check_own_views_locked(points)

    def _check_own_views_locked(self, points: dict[Lane, int]) -> None:
        self._drain_views()  # one that it has dropped is to be let go of, not waited for
        if any(is_own(thread) for thread in self._holders_before(points)):
            raise ViewHeld(
                "this thread would wait for ever: what it waits for comes after work that waits "
                "for a writable view of this thread's, or of one that has ended; drop the view "
                "first"
            )

    def _holders_before(self, points: dict[Lane, int]) -> set[int]:
        """The threads whose writable views must end before these points are reached."""
        held = {
            lane.number: (lane.submitted, thread)  # values before it are of views that are gone
            for lane, thread in tuple(self._held.items())
        }
        streams = self._all_streams()
        lanes = {at.number: at for stream in streams for at in (stream.lane, stream.copier.lane)}
        reached: set[int] = set()
        found: set[int] = set()
        waiting = [(lane.number, value) for lane, value in points.items()]
        while waiting:
            number, value = waiting.pop()
            if number in held and value >= held[number][0]:
                found.add(held[number][1])
            if number not in reached and number in lanes:
                reached.add(number)
                waiting += lanes[number].seen.items()
        return found

    def _warn_of_views(self, points: dict[Lane, int]) -> None:
        """A wait takes long: say so if writable views of other threads are why."""
        with self.lock:
            threads = self._holders_before(points)
        names = [each.name for each in threading.enumerate() if each.ident in threads]
        if names:
            warnings.warn(
                f"waiting for more than {_LONG:.0f} s for work that waits for a writable view made "
                f"by thread {', '.join(names)}; drop the view (del it and all its slices) in the "
                "thread that has it now",
                RuntimeWarning,
                stacklevel=2,
            )

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
        if self.copies_made or self.left_over or self.views_ended:
            self.tell_of_copies()  # what it waits for may wait for these
        begun = time.monotonic()
        deadline = None if timeout is None else begun + timeout
        warned = False
        guest = Guest(points)
        try:
            self.guests.add(guest)
            # Copies by this process are waited for without the driver: it would not know sooner.
            copies: list[tuple[Any, int]] = []
            timelines: list[tuple[Any, int]] = []
            for lane, value in points.items():
                if lane.is_host:
                    copies.append((lane.owner, value))
                elif value > lane.complete:
                    timelines.append((lane.owner.timeline, value))
            while copies or timelines:
                if self._over and not closing:
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
                if self.copies_made or self.left_over or self.views_ended:
                    self.tell_of_copies()  # an interrupted call did not get to it
                now = time.monotonic()
                if self._held and not warned and now - begun > _LONG:
                    warned = True
                    self._warn_of_views(points)
                if deadline is not None and now >= deadline:
                    return False
        except DeviceLost as error:
            self.mark_lost(error)
            raise
        finally:
            self.guests.discard(guest)
            if self._over:
                self._tear_down()
        for lane, value in points.items():
            if value > lane.complete:
                lane.complete = value
                if events.active and not lane.is_host:
                    events.emit("done", "the host has waited", at=(lane.place, value, 0))
        return True

    def take_host_lane(self) -> HostLane:
        """A host lane for one copy by the calling thread."""
        if self._idle_host_lanes:
            return self._idle_host_lanes.popitem()[0]
        made = HostLane(self.driver, f"host copy {len(self._host_lanes)}")
        self._host_lanes.append(made)
        return made

    def host_copy_made(self, host: HostLane, value: int) -> None:
        """Tell of a host copy that is made, and take its lane back."""
        self.copies_made.append((host, value))
        self.tell_of_copies()

    def tell_of_copies(self) -> None:
        """Tell the device of host copies that are made, and views that ended. Takes the lock."""
        with self.lock:
            self._tell_of_copies()
            self._drain_views()

    def _tell_of_copies(self) -> None:
        """Signal what host copies are made. Interrupted, it is all done again the next time."""
        try:
            while self.left_over:
                self.left_over[0]()
                self.left_over.popleft()
            while self.copies_made:
                host, value = self.copies_made[0]
                host.finish(value)
                if host.lane.submitted == value:
                    self._idle_host_lanes[host] = None
                self.copies_made.popleft()
        except DeviceLost as error:
            self.mark_lost(error)
            self.left_over.clear()
            self.copies_made.clear()
            raise

    def submit_dry_streams(self) -> bool:
        """For the pump: submit where the device idles; whether anything is still recorded."""
        with self.lock:
            if self.closed or self.lost is not None:
                return False
            streams = self._living_streams()
            for stream in streams:
                try:
                    stream.submit_if_dry()
                except OutOfMemory:
                    continue  # stays recorded; whoever needs it tries again and hears of it
            self.drain()
            return any(stream.has_recorded for stream in streams)

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
            self.leaving.add(backing)

    def next_view_lane(self) -> tuple[Lane, int]:
        """The point at which device work may have the bytes of the next writable view again."""
        idle = self._idle_view_lanes
        host = next(reversed(idle)) if idle else self._new_view_lane()
        return host.lane, host.lane.submitted + 1

    def hold_for_host(self, lane: Lane, value: int) -> None:
        """A writable view begins, which ends at this point."""
        self._idle_view_lanes.pop(lane.owner, None)
        self._held[lane] = threading.get_ident()
        lane.submitted = value

    def _new_view_lane(self) -> HostLane:
        made = HostLane(self.driver, f"writable view {len(self._view_lanes)}")
        self._view_lanes.append(made)
        self._idle_view_lanes[made] = None
        return made

    def view_ended(self, hold: Hold) -> None:
        """From a finaliser: nothing shows this memory any more."""
        self.views_ended.append(hold)
        if self._torn_down:
            return
        self._try_locked(self._drain_views)  # at once: another thread's work may be waiting for it
        if self._over:
            self._tear_down()

    def _try_locked(self, act: Callable[[], None]) -> None:
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

    def retire_program(self, program: Any) -> None:
        """Give a program back once everything recorded so far is done."""
        self._release_later(partial(self.driver.forget, program))

    def forget_rings(self, kernel: Any) -> None:
        """A kernel is closed: no stream needs to keep its arguments any more."""
        for stream in self._all_streams():
            stream.rings.pop(kernel, None)

    def program_dropped(self, program: Any) -> None:
        """From a finaliser: a kernel is gone."""
        self._dropped_programs.append(program)

    def expect_end(self, graph: Graph, variants: dict[Any, deque[Any]]) -> GraphEnd:
        """Have a graph's commands given back when it is dropped."""
        end = GraphEnd(graph, self._graphs_ended.append)
        end.variants = variants
        self._graphs.add(end)
        return end

    def retire_graph(self, end: GraphEnd) -> None:
        """Give a graph's commands back. Interrupted, it can be called again."""
        self.retire_variants([variant for kept in end.variants.values() for variant in kept])
        end.variants.clear()
        self._graphs.discard(end)

    def retire_variants(self, variants: list[Any]) -> None:
        """Give commands back once everything recorded so far is done."""
        for variant in variants:
            variant.unpin()
            self._release_later(variant.release)

    def stream_forgotten(self, stream: Stream) -> None:
        """From a finaliser: nobody can add to this stream any more."""
        self.release_when_done(stream)
        if self._closing:
            self.close()

    def release_when_done(self, stream: Stream) -> None:
        """Give a stream's queue back at the first `drain` that finds its work done."""
        self._forgotten.append(stream)

    def _stream_closed(self, stream: Stream) -> None:
        """A stream's own work is done; work of others may still refer to its timeline.

        Interrupted, it can be called again.
        """
        stream.read_times()
        self._streams.discard(stream.known)
        if all(lane is not stream.lane for _, _, lane in self._to_release):
            self._release_later(stream.release, stream.lane)

    def _release_later(self, release: Callable[[], None], lane: Lane | None = None) -> None:
        """Give something back once everything recorded so far, on any stream, is done.

        A lane's own things go when no thread waits for the lane any more, either.
        """
        # Weakly, or the streams could not be forgotten: one that is was done before it was closed.
        lanes = [stream.lane for stream in self._all_streams()]
        points = [(weakref.ref(at), at.recorded) for at in lanes if at.recorded > at.complete]
        self._to_release.append((release, points, lane))

    def catch_up(self) -> None:
        """Learn what is done and what is gone, so that memory can be reused."""
        self.poll()
        self.drain()

    def drain(self) -> None:
        """Act on what finalisers left. Cheap when they left nothing."""
        if self.copies_made or self.left_over:
            self._tell_of_copies()
        self._drain_views()
        while self.buffers_ended:
            self.release(self.buffers_ended[0])
            self.buffers_ended.popleft()
        while self._dropped_programs:
            self.retire_program(self._dropped_programs.popleft())
        while self._graphs_ended:
            self.retire_graph(self._graphs_ended[0])
            self._graphs_ended.popleft()
        for _ in range(len(self._forgotten) if self.lost is None else 0):
            stream = self._forgotten[0]
            if stream.is_done():
                self._stream_closed(stream)
                self._forgotten.popleft()
            else:
                self._forgotten.rotate(-1)
        if self.leaving or self._to_release:
            self._let_go()

    def _drain_views(self) -> None:
        """Forget views that ended. Each is told of twice, and may be forgotten again and again."""
        while self.views_ended:
            hold = self.views_ended[0]
            backing, shown = hold.backing, hold.shown
            if hold.written is not None:
                # Before the device may have the bytes, and not again after that.
                if not self._torn_down:
                    hold.written()
                hold.written = None
            if shown is not None:
                backing.views = [view for view in backing.views if view is not shown]
                self._let_go_of(shown)
            backing.holds.discard(hold)
            self.exports.discard(hold)
            self.views_ended.popleft()

    def _let_go_of(self, shown: Shown) -> None:
        """The host is done with the bytes of a writable view; device work may have them."""
        if shown.release is None or self._torn_down:
            return
        lane, value = shown.release
        if lane.submitted > value:
            return  # it was let go of before, and the lane is another view's by now
        try:
            lane.owner.finish(value)
        except Error as error:  # Python drops exceptions of a finaliser
            self.mark_lost(error)
        self._held.pop(lane, None)
        self._idle_view_lanes[lane.owner] = None

    def _let_go(self) -> None:
        """Free adopted memory, programs and streams that work in flight no longer uses."""
        self.poll()
        for backing in tuple(self.leaving):
            if backing.owners:
                self.leaving.discard(backing)  # adopted again meanwhile
            elif backing.idle:
                self.host_memory.remove(backing)
                self.leaving.discard(backing)
                self.driver.free(backing.memory)
        awaited = {lane for guest in tuple(self.guests) for lane in guest.points}
        for waiting in tuple(self._to_release):
            release, points, lane = waiting
            if lane not in awaited and all(_reached(at(), value) for at, value in points):
                self._to_release.remove(waiting)
                release()

    def _living_streams(self) -> list[Stream]:
        """All but those that are in their finaliser, or have been."""
        return [stream for known in tuple(self._streams) if (stream := known()) is not None]

    def _all_streams(self) -> set[Stream]:
        return {*self._living_streams(), *self._forgotten}

    def _hidden_streams(self) -> bool:
        """Whether the garbage collector is yet to finalise streams that cannot be seen any more.

        It takes us with them, or else the callback would have told of their end.
        """
        seen = {stream.known for stream in self._forgotten}
        return any(known() is None for known in self._streams - seen)

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Finish all work, then release everything that no NumPy array shows any more.

        Interrupted, it can be called again. Raises `ViewHeld`, and closes nothing, if work waits
        for a writable view of the calling thread's: that would never end.
        """
        if self._over:  # or abandoned, and then not even the lock may be touched
            return
        points: dict[Lane, int] | None = None
        with self.lock:
            if self._hidden_streams():
                # The garbage collector is taking device and streams together, and has hidden the
                # streams from us; as each of them is finalised, we are called again.
                self._closing = True
                return
            with contextlib.suppress(DeviceLost, OutOfMemory):
                if self.lost is None:
                    self._tell_of_copies()
                    points = self.everything_recorded()
            if self._held and points:
                self._check_own_views_locked(points)
            self.closed = True  # from here on nothing new begins
        finished = False
        with contextlib.suppress(DeviceLost, OutOfMemory):
            if points is not None:
                finished = self.await_points(points, timeout, closing=True)
                self._read_times(time.monotonic() + _LEAVE_TIMEOUT)
        self._resting = finished or self.lost is not None
        self._over = True  # from here on no wait goes on
        _alive.discard(self)
        self.pump.close()
        if self._resting:
            for stream in self._all_streams():
                stream.stop_copier()
            for host in self._host_lanes:
                host.abort()
            self._dismiss_guests()
            self._tear_down()

    def _dismiss_guests(self) -> None:
        """Wait for other threads to notice that it is over; the last one to leave tears down."""
        me = threading.get_ident()
        until = time.monotonic() + _LEAVE_TIMEOUT
        while any(guest.thread != me for guest in tuple(self.guests)) and time.monotonic() < until:
            time.sleep(_TICK)

    def abandon(self) -> None:
        """Forget the device without touching it: this is a forked child, or a hung device."""
        self.closed = self._over = True
        self._torn_down = True
        self.is_locked_here = partial(_refuse_forked, self.name)
        events.tellers.discard(self)

    def _tear_down(self) -> None:
        """Release the driver's objects, unless an exported array or a thread still needs them."""
        if self._resting and not self._torn_down:
            self._try_locked(self._tear_down_now)

    def _tear_down_now(self) -> None:
        self._drain_views()
        if self.exports or self.guests or self._torn_down:
            return
        self._torn_down = True
        self.driver.settle()
        for release, _, _ in self._to_release:
            release()
        for stream in self._all_streams():
            stream.release()
        for host in (*self._host_lanes, *self._view_lanes):
            host.close()
        for backing in self.host_memory.imported():
            self.driver.free(backing.memory)
        self.pool.close()
        self.host_pool.close()
        self.driver.close()


class GraphEnd(weakref.ref[Any]):
    """Tells of the end of a graph, as `Hold` does of that of a view, and has its commands."""

    __slots__ = ("variants",)

    variants: dict[Any, deque[Any]]


class Guest:
    """A thread that uses the driver, or memory of the driver's, without the device's lock.

    While it is among the scheduler's guests, the device is not torn down, and the lanes that it
    waits for are not released. The last guest to leave tears a closed device down.
    """

    __slots__ = ("points", "thread")

    def __init__(self, points: Collection[Lane] = ()) -> None:
        self.points = points
        self.thread = threading.get_ident()


def _refuse_forked(name: str) -> NoReturn:
    raise ForkedDevice(
        f"{name} was opened before this process was forked, and cannot be used here; "
        "open a Device in the child, or use the 'spawn' start method of multiprocessing"
    )


def _reached(lane: Lane | None, value: int) -> bool:
    return lane is None or value <= lane.complete


def _nanoseconds(deadline: float) -> int:
    """How long it is until a deadline."""
    return max(0, int((deadline - time.monotonic()) * 1e9))


def _after_fork() -> None:
    for scheduler in list(_alive):
        scheduler.abandon()
    _alive.clear()


def _at_exit() -> None:
    for scheduler in list(_alive):
        with contextlib.suppress(Error):  # a view of this thread's is in the way
            scheduler.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
