"""Events: the runtime emits one to every active trace, at the moment something happens.

With no trace active, the only cost is testing the empty tuple `active`. With one, an event costs
about a microsecond: `emit` gathers only what would be lost later, as one plain tuple. `receipt`
formats reasons and source lines when they are read.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from penstock import accelerator
from penstock.locks import RLock
from penstock.tracing.source_lines import line_in_words

if TYPE_CHECKING:
    from penstock.tracing.device_times import DeviceClock

#: Held while receivers change. Reentrant: a finaliser may end a trace meanwhile.
activation = RLock()
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
#: Parts of the package that use the runtime as any program would; their lines are user code.
_APPLICATIONS = (f"{_PACKAGE}cli{os.sep}demo.py",)
_STARTS = ("<frozen runpy>", contextlib.__file__)  # runs `python -m`; calls users' blocks
_local = threading.local()


class Recipient(Protocol):
    """A receiver of events: a `Trace`, which keeps them, or a `Counts`, which counts them."""

    counts_only: bool


class Collector(Recipient, Protocol):
    """A receiver that keeps the events: a `Trace`."""

    wants_times: bool
    wants_kernels: bool  #: events and times of the commands inside replayed graphs
    records: list[Any]  #: as `emit` leaves them
    times: deque[tuple[tuple[int, ...], tuple[float, float]]]  #: see `device_times`
    noted_clocks: dict[str, DeviceClock]  #: by the name of a device


class VirtualClock(Protocol):
    """A clock that a simulated device moves on, in place of the host's."""

    def __call__(self) -> float:
        """The time in seconds, more than 0."""
        ...

    def copied(self, nbytes: int) -> None:
        """Let the time pass that a host copy of `nbytes` bytes takes."""
        ...


class Counter(Recipient, Protocol):
    """A receiver that counts the events: a `Counts`."""

    def add(self, kind: str, nbytes: int, reason: Reason) -> None: ...


class TimeSource(Protocol):
    """The part of a device that a trace uses: it delivers device timestamps."""

    def deliver_times(self, collector: Collector, patience: float) -> None:
        """Call `device_times` for all work that completes within `patience` seconds."""
        ...

    def note_traces(self) -> None:
        """The first trace has become active, or the last one has ended, or neither."""
        ...

    def note_clock(self, receipts: Iterable[Collector]) -> None:
        """Tell receipts of the device's clock, in `Collector.noted_clocks`."""
        ...


#: The clock of all events, in seconds. `use_clock` replaces it.
clock: Callable[[], float] = time.perf_counter
_virtual: VirtualClock | None = None
#: The receivers of events now.
active: tuple[Recipient, ...] = ()
#: Those of them that keep the events: only for them need a reason be put into words.
recording: tuple[Collector, ...] = ()
#: Those of them that only count. The native step counts for them what it does itself.
counting: tuple[Counter, ...] = ()
#: Those of them that want the device's timestamps.
timing: tuple[Collector, ...] = ()
#: Those that also want the commands inside replayed graphs.
detailed: tuple[Collector, ...] = ()
#: Devices that may still have timestamps to deliver, also to a trace that has ended.
time_sources: weakref.WeakSet[TimeSource] = weakref.WeakSet()

#: A line of work as the receipt names it: device, stream, and a process-wide unique number.
Place = tuple[str, str, int]
#: A point on it: the place, the submission, and the command in it (0: the whole submission).
At = tuple[Place, int, int]
#: A command inside a replayed graph: the point of the replay, and the number of the command in it.
InnerAt = tuple[Place, int, int, int]
#: A point that was waited for: place, submission, and the work at that point if it is known.
Awaited = tuple[Place, int, str]
#: Text, or a format and its arguments, formatted when the reason is read.
Reason = str | tuple[Any, ...]

NOWHERE: At = (("", "", -1), 0, 0)


def use_clock(virtual: VirtualClock | None) -> None:
    """Take the time of events from a virtual clock, or with None from the host's again.

    Only while no trace is active: all times of a trace are of one clock.
    """
    global clock, _virtual
    assert not recording, "the clock of an active trace is replaced"
    clock, _virtual = virtual or time.perf_counter, virtual


def activate(recipients: tuple[Any, ...]) -> None:
    """Replace the active receivers. The caller holds `activation`."""
    global active, recording, counting, timing, detailed
    active = recipients
    recording = tuple(each for each in recipients if not each.counts_only)
    counting = tuple(each for each in recipients if each.counts_only)
    timing = tuple(each for each in recording if each.wants_times)
    detailed = tuple(each for each in recording if each.wants_kernels)
    accelerator.native.note_traces(bool(recording))
    accelerator.native.note_counting(bool(counting))
    for device in living_sources():
        device.note_traces()


def begin(recipient: Recipient) -> None:
    """Let a receiver get events from now on."""
    try:
        with activation:
            activate((*active, recipient))
    except BaseException:  # from a signal handler: its `__exit__` will not be called
        end(recipient)
        raise


def end(recipient: Recipient) -> None:
    """Let a receiver get no more events."""
    with activation:
        activate(tuple(each for each in active if each is not recipient))


def count(kind: str, nbytes: int) -> None:
    """Count a transfer that is not emitted, because no trace is active. One of no bytes is none."""
    if nbytes:
        for counter in counting:
            counter.add(kind, nbytes, "")


def living_sources() -> list[TimeSource]:
    """The devices among `time_sources`, whatever other threads open or drop meanwhile."""
    while True:
        try:
            return list(time_sources)
        except RuntimeError:  # the set changed in the middle
            continue


def emit(
    kind: str,
    reason: Reason,
    *,
    nbytes: int = 0,
    buffer: str = "",
    lo: int = 0,
    hi: int = 0,
    path: str = "",
    start: float = 0.0,
    seconds: float = 0.0,
    at: At | InnerAt = NOWHERE,
    awaited: tuple[Awaited, ...] = (),
    to: tuple[Collector, ...] | None = None,
) -> None:
    """Add an event to every active trace, and count it; or add it only to the traces in `to`.

    Callers test `active` first: tracing off costs nothing.

    `reason` may be a format and its arguments, which must be immutable. A record holds only plain
    values, so that the garbage collector stops tracking it at its first pass. The native step does
    the same for the events of a launch (`native/trace.c`).
    """
    if to is None:
        for counter in counting:
            counter.add(kind, nbytes, reason)
        to = recording
    if not to:
        return
    try:
        thread = _local.thread
    except AttributeError:
        thread = _introduce_thread()
    frame: FrameType | None = sys._getframe(1)
    code, instruction = None, 0
    while frame is not None:
        asked = frame.f_code
        name = asked.co_filename
        is_user = _is_user.get(name)
        if is_user is None:
            is_user = _judge(name)
        if is_user:
            if name != threading.__file__:
                code, instruction = asked, frame.f_lasti
            break
        frame = frame.f_back
    record = (
        kind, reason, nbytes, buffer, lo, hi, path, start or clock(), seconds,
        code, instruction, thread, at, awaited,
    )  # fmt: skip
    for collector in to:
        collector.records.append(record)


def compiled(kernel: str, what: str, path: str, start: float) -> None:
    """Put on the receipt that a kernel was compiled since `start`; see `since`.

    `path` is "source" for the compiler of its language, "driver" for the driver's.
    """
    if active and start:
        emit("compile", f"kernel {kernel}: {what}", path=path, start=start, seconds=since(start))


def device_times(
    at: At | InnerAt, start: float, seconds: float, collectors: Iterable[Collector]
) -> None:
    """Deliver the device's timestamps of the command (or the submission) `at`.

    Called at any time after the event, with the traces that were active when it was emitted.
    """
    key = (at[0][2], *at[1:])
    for collector in collectors:
        collector.times.append((key, (start, seconds)))


def since(start: float, copied: int = 0) -> float:
    """Seconds since `start`, in which the host copied `copied` bytes.

    0 if `start` is 0, which means that no trace was active then.
    """
    if not start:
        return 0.0
    if copied and _virtual is not None:
        _virtual.copied(copied)
    return clock() - start


def user_line() -> str:
    """File and line of the code that called into Penstock."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if _judge(name):
            # The runtime's own threads have no user code below them.
            return "" if name == threading.__file__ else line_in_words(name, frame.f_lineno)
        frame = frame.f_back
    return ""


#: By file name, whether its code is the user's (and not the runtime's).
_is_user: dict[str, bool] = {}


def _judge(name: str) -> bool:
    own = name.startswith(_PACKAGE) or name in _STARTS or _is_command(name) or _is_numpy(name)
    _is_user[name] = not own or name.startswith(_APPLICATIONS)
    return _is_user[name]


def _is_command(name: str) -> bool:
    """Whether it is the script that starts `penstock`, which no user wrote."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return name == program and os.path.splitext(os.path.basename(name))[0] == "penstock"


def _is_numpy(name: str) -> bool:
    """Whether it is code of NumPy's, which calls the operators and functions of arrays."""
    file = getattr(sys.modules.get("numpy"), "__file__", None)
    return file is not None and name.startswith(f"{os.path.dirname(file)}{os.sep}")


def _introduce_thread() -> tuple[str, int]:
    _local.thread = (threading.current_thread().name, threading.get_native_id())
    thread: tuple[str, int] = _local.thread
    return thread


def _after_fork() -> None:
    """In a forked child: the thread that may hold the lock is not in it."""
    global activation
    activation = RLock()


accelerator.native.share_events(globals(), threading.__file__)
os.register_at_fork(after_in_child=_after_fork)
