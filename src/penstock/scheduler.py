"""What all parts of a device share: its lock, memory, streams, and every wait.

`Device` is the face; this is the machinery behind it. Everything recorded goes through a `Stream`,
everything the host waits for goes through `wait_for`, and everything that ends, ends here: arrays
dropped, views released, streams forgotten. Those ends may come in any thread in the middle of
anything, so they only leave a message, and `drain` acts on it at the next safe moment.

One lock guards it all. No thread waits for the device while it holds the lock, but for a stream
that has run too far ahead; and no copier needs the lock to get its copy done.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from penstock import tracing
from penstock.driver.protocol import Driver
from penstock.errors import (
    ArgumentError,
    Closed,
    DeviceLost,
    Error,
    ForkedDevice,
    OutOfMemory,
    ViewHeld,
)
from penstock.hazards import Lane, Region
from penstock.hostlane import HostLane
from penstock.hostmemory import HostMemory
from penstock.memory import Backing, MemoryStats, Pool, Shown
from penstock.pending import Pending
from penstock.pump import Pump
from penstock.sizes import Sizes
from penstock.stream import Stream
from penstock.timekeeper import Timekeeper

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.graph import Graph

_UNKNOWN: Mapping[Lane, str] = {}
_SLICE = 0.1  # seconds; waits wake this often, to hear of Ctrl-C and of a lost device
_CLOSE_TIMEOUT = 30.0  # seconds that closing gives a kernel to end

#: A view that ended: its memory, what the device had to respect of it, and what it left to do.
_Released = tuple[Backing, Shown | None, Callable[[], None] | None]

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
        self.lock: Any = threading.RLock()
        self.lost: DeviceLost | None = None
        self.closed = False
        self.recordings: dict[int, Graph] = {}  # while graphs are recorded, by thread
        limit = driver.info.limits["allocation"]
        assert isinstance(limit, int)
        clear = self._clear if clear_memory else None
        self.pool = Pool(driver, host=False, limit=limit, catch_up=self.catch_up, clear=clear)
        self.host_pool = Pool(driver, host=True, limit=limit, catch_up=self.catch_up, clear=clear)
        self.host_memory = HostMemory()
        self.exports = 0  # host views alive
        self.times = Timekeeper(driver)
        self.pump = Pump(self)
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._streams_made = 0
        self._streams_open = 0
        self._closing = False
        self._arrays_named = 0
        self._host_lanes = [HostLane(driver, "host copy 0")]
        self._idle_host_lanes = list(self._host_lanes)
        self._leaving: set[Backing] = set()  # adopted, dropped, perhaps still in use
        self._dropped: deque[Backing] = deque()
        self._view_lanes: list[HostLane] = []  # of writable views, not of copies
        self._idle_view_lanes: list[HostLane] = []
        self._held: dict[Lane, int] = {}  # writable views alive, by the thread that holds them
        self._released: deque[_Released] = deque()
        self._forgotten: deque[Stream] = deque()
        self._dropped_programs: deque[Any] = deque()
        self._dropped_graphs: deque[list[Any]] = deque()
        self._to_release: list[tuple[Callable[[], None], dict[Lane, int]]] = []
        self._torn_down = False
        self.done: Pending[None] = Pending(self, {}, "a transfer", value=None)
        _alive.add(self)
        tracing.tellers.add(self)

    def _clear(self, backing: Backing) -> None:
        """Have the device fill memory with zeros; whatever uses it next comes behind that."""
        stream = self.device.default_stream
        uses = ((backing.history, Region(0, backing.nbytes), True),)
        with stream.command(uses) as commands:
            commands.fill(backing.memory, backing.offset, backing.nbytes, 0)
        stream.note(uses, "clear")
        if tracing.active:
            tracing.emit("fill", "memory is cleared", nbytes=backing.nbytes, path="device")

    # State.

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

    def new_stream(self, name: str) -> Stream:
        made = Stream(self, self._streams_made, name or f"stream {self._streams_made}")
        self._streams_made += 1
        self._streams_open += 1
        self._streams.add(made)
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

    def publish_everything(self) -> dict[Lane, int]:
        """Have everything made visible to the host; when that is so."""
        for stream in self._all_streams():
            if stream.published < stream.lane.recorded:
                stream.publish()
        return {stream.lane: stream.published for stream in self._all_streams()}

    def poll(self) -> None:
        """Learn how far every stream has come."""
        try:
            for stream in tuple(self._streams):
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
        if not tracing.active:
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
        self._read_times()
        tracing.emit("wait", reason, start=start, seconds=seconds, awaited=awaited, **details)
        return done

    def tell_times(self, receipt: tracing.Trace, patience: float) -> None:
        """Tell a receipt when the device did what it did, once it is done.

        With patience, waits so many seconds for what is in flight; without, for nothing.
        """
        if self.closed or self.lost is not None:
            return
        with contextlib.suppress(Error):  # a receipt is not worth a failure
            with self.lock:
                streams = self._all_streams()
                points = {s.lane: owed for s in streams if (owed := s.times_owed(receipt))}
                if points:
                    self.poll()
            if points and patience:
                self.wait_for(points, patience, "the receipt is to have the device's times")
            self._read_times(asked=patience > 0)

    def _read_times(self, *, asked: bool = False) -> None:
        """Have times told as far as that needs no wait, or all that are known, if asked for."""
        with self.lock:
            resting = True
            for stream in self._all_streams():
                stream.read_times()
                resting = resting and stream.lane.complete == stream.lane.submitted
            if resting or asked:
                self.times.tell()

    def _check_own_views(self, points: dict[Lane, int]) -> None:
        """Raise if the calling thread would wait for itself to let go of a writable view."""
        with self.lock:
            self._drain_views()  # one that it has dropped is to be let go of, not waited for
        me = threading.get_ident()
        held = {
            lane.number: lane.submitted  # values before it are of views that are gone
            for lane, thread in tuple(self._held.items())
            if thread == me
        }
        lanes = {stream.lane.number: stream.lane for stream in self._all_streams()}
        reached: set[int] = set()
        waiting = [(lane.number, value) for lane, value in points.items()]
        while held and waiting:
            number, value = waiting.pop()
            if value >= held.get(number, value + 1):
                raise ViewHeld(
                    "this thread would wait for ever: what it waits for comes after work that "
                    "waits for a writable view of this thread's; drop the view first"
                )
            if number not in reached and number in lanes:
                reached.add(number)
                waiting += lanes[number].seen.items()

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

    def await_points(self, points: dict[Lane, int], timeout: float | None = None) -> bool:
        """Block until points whose work is submitted are reached. Takes no lock."""
        # Copies by this process are waited for without the driver: it would not know sooner.
        copies: list[tuple[Any, int]] = []
        timelines: list[tuple[Any, int]] = []
        for lane, value in points.items():
            if lane.is_host:
                copies.append((lane.owner, value))
            elif value > lane.complete:
                timelines.append((lane.owner.timeline, value))
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while copies or timelines:
                patience = _SLICE
                if deadline is not None:
                    patience = min(patience, max(0.0, deadline - time.monotonic()))
                if copies:
                    if copies[-1][0].wait(copies[-1][1], patience):
                        copies.pop()
                        continue
                elif self.driver.wait(timelines, int(patience * 1e9)):
                    break
                if self.lost is not None:
                    raise DeviceLost(str(self.lost))
                if deadline is not None and time.monotonic() >= deadline:
                    return False
        except DeviceLost as error:
            self.mark_lost(error)
            raise
        for lane, value in points.items():
            if value > lane.complete:
                lane.complete = value
                if tracing.active and not lane.is_host:
                    tracing.emit("done", "the host has waited", at=(lane.place, value, 0))
        return True

    def take_host_lane(self) -> HostLane:
        """A host lane for one copy by the calling thread."""
        if self._idle_host_lanes:
            return self._idle_host_lanes.pop()
        made = HostLane(self.driver, f"host copy {len(self._host_lanes)}")
        self._host_lanes.append(made)
        return made

    def host_copy_made(self, host: HostLane, value: int) -> None:
        """Tell of a host copy that is made, and take its lane back."""
        try:
            host.finish(value)
        except DeviceLost as error:
            self.mark_lost(error)
            raise
        self._idle_host_lanes.append(host)

    def submit_dry_streams(self) -> bool:
        """For the pump: submit where the device idles; whether anything is still recorded."""
        with self.lock:
            if self.closed or self.lost is not None:
                return False
            streams = tuple(self._streams)
            for stream in streams:
                try:
                    stream.submit_if_dry()
                except OutOfMemory:
                    continue  # stays recorded; whoever needs it tries again and hears of it
            self.drain()
            return any(stream.has_recorded for stream in streams)

    # Ends.

    def retire(self, backing: Backing) -> None:
        """A buffer gives its memory back; other buffers and work in flight may still use it."""
        backing.owners -= 1
        if backing.owners:
            return
        if backing.pool is not None:
            self.host_memory.remove(backing)
            backing.pool.retire(backing)
        else:
            self._leaving.add(backing)

    def buffer_dropped(self, backing: Backing) -> None:
        """From a finaliser: a buffer is gone."""
        self._dropped.append(backing)

    def hold_for_host(self) -> tuple[Lane, int]:
        """A writable view begins; the point at which device work may have its bytes again."""
        host = self._idle_view_lanes.pop() if self._idle_view_lanes else self._new_view_lane()
        self._held[host.lane] = threading.get_ident()
        return host.lane, host.start()

    def _new_view_lane(self) -> HostLane:
        made = HostLane(self.driver, f"writable view {len(self._view_lanes)}")
        self._view_lanes.append(made)
        return made

    def view_released(
        self, backing: Backing, shown: Shown | None, written: Callable[[], None] | None
    ) -> None:
        """From a finaliser: nothing shows this memory any more."""
        if shown is not None and written is None:
            self._let_go_of(shown)  # at once: another thread's work may be waiting for it
        self._released.append((backing, shown, written))
        if self.closed:
            self._tear_down()

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

    def retire_graph(self, variants: list[Any]) -> None:
        """Give a graph's commands back once everything recorded so far is done."""
        for variant in variants:
            variant.unpin()
            self._release_later(variant.release)

    def graph_dropped(self, variants: list[Any]) -> None:
        """From a finaliser: a graph is gone."""
        self._dropped_graphs.append(variants)

    def stream_forgotten(self, stream: Stream) -> None:
        """From a finaliser: nobody can add to this stream any more."""
        self._forgotten.append(stream)
        if self._closing:
            self.close()

    def stream_closed(self, stream: Stream) -> None:
        """A stream's own work is done; work of others may still refer to its timeline."""
        stream.read_times()
        self._streams.discard(stream)
        self._streams_open -= 1
        self._release_later(stream.release)

    def _release_later(self, release: Callable[[], None]) -> None:
        """Give something back once everything recorded so far, on any stream, is done."""
        points = {stream.lane: stream.lane.recorded for stream in self._all_streams()}
        self._to_release.append((release, points))

    def catch_up(self) -> None:
        """Learn what is done and what is gone, so that memory can be reused."""
        self.poll()
        self.drain()

    def drain(self) -> None:
        """Act on what finalisers left. Cheap when they left nothing."""
        self._drain_views()
        while self._dropped:
            self.retire(self._dropped.popleft())
        while self._dropped_programs:
            self.retire_program(self._dropped_programs.popleft())
        while self._dropped_graphs:
            self.retire_graph(self._dropped_graphs.popleft())
        for _ in range(len(self._forgotten) if self.lost is None else 0):
            stream = self._forgotten.popleft()
            if stream.is_done():
                self.stream_closed(stream)
            else:
                self._forgotten.append(stream)
        if self._leaving or self._to_release:
            self._let_go()

    def _drain_views(self) -> None:
        while self._released:
            backing, shown, written = self._released.popleft()
            backing.holds -= 1
            self.exports -= 1
            if shown is not None:
                backing.views.remove(shown)
            if written is not None:
                if not self.closed:
                    written()
                if shown is not None:
                    self._let_go_of(shown)

    def _let_go_of(self, shown: Shown) -> None:
        """The host is done with the bytes of a writable view; device work may have them."""
        if shown.release is not None and not self._torn_down:
            lane, value = shown.release
            del self._held[lane]
            try:
                lane.owner.finish(value)
            except Error as error:  # in a finaliser nobody would hear of it
                self.mark_lost(error)
            self._idle_view_lanes.append(lane.owner)

    def _let_go(self) -> None:
        """Free adopted memory, programs and streams that work in flight no longer uses."""
        self.poll()
        leaving, self._leaving = self._leaving, set()
        for backing in leaving:
            if backing.owners:
                continue  # adopted again meanwhile
            if backing.idle:
                self.host_memory.remove(backing)
                self.driver.free(backing.memory)
            else:
                self._leaving.add(backing)
        waiting, self._to_release = self._to_release, []
        for release, points in waiting:
            if all(value <= lane.complete for lane, value in points.items()):
                release()
            else:
                self._to_release.append((release, points))

    def _all_streams(self) -> set[Stream]:
        return {*self._streams, *self._forgotten}

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Finish all work, then release everything that no NumPy array shows any more."""
        if self._torn_down:  # or abandoned, and then not even the lock may be touched
            return
        with self.lock:
            if self.closed:
                return
            if len(self._all_streams()) < self._streams_open:
                # The garbage collector is taking device and streams together, and has hidden the
                # streams from us; as each of them is finalised, we are called again.
                self._closing = True
                return
            finished = False
            try:
                if self.lost is None:
                    finished = self.await_points(self.everything_recorded(), timeout)
                    self.poll()
                    self._read_times()
            except (DeviceLost, OutOfMemory):
                pass
            self.closed = True
            _alive.discard(self)
        self.pump.close()
        if finished or self.lost is not None:
            for stream in self._all_streams():
                stream.stop_copier()
            for host in self._host_lanes:
                host.abort()
            self._tear_down()

    def abandon(self) -> None:
        """Forget the device without touching it: this is a forked child, or a hung device."""
        self.closed = True
        self._torn_down = True
        self.lock = _ForkedLock(self.name)
        tracing.tellers.discard(self)

    def _tear_down(self) -> None:
        """Release the driver's objects, unless an exported array still needs its memory."""
        if self._torn_down or not self.lock.acquire(blocking=False):
            return
        try:
            self._drain_views()
            if self.exports:
                return
            self._torn_down = True
            self.driver.settle()
            for release, _ in self._to_release:
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
        finally:
            self.lock.release()


class _ForkedLock:
    """Stands in for the lock in a forked child, so that every use of the device says why not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> NoReturn:
        raise ForkedDevice(
            f"{self._name} was opened before this process was forked, and cannot be used here; "
            "open a Device in the child, or use the 'spawn' start method of multiprocessing"
        )

    def __exit__(self, *_: object) -> None: ...

    def acquire(self, blocking: bool = True) -> bool:
        return False


def _after_fork() -> None:
    for scheduler in list(_alive):
        scheduler.abandon()
    _alive.clear()


def _at_exit() -> None:
    for scheduler in list(_alive):
        scheduler.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
