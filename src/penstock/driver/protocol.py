"""What a driver must provide: memory, programs, recordings, timelines. Nothing else.

A driver knows bytes and commands. It knows no arrays, keeps no hazards, decides no waits and
takes no locks: everything above it calls it under the device's lock, except `wait`, `signal` and
the copies of a `CopyingDriver`, which any thread may call at any time, and `Timeline.value`, which
is a plain poll.

Ordering, in full. Commands of one queue start in the order they were recorded and submitted, and
may overlap, finish out of order and see stale memory unless ordered by one of these:

=============  ====================================================================================
`barrier()`    everything earlier on this queue is complete, and its writes are visible to
               everything later on this queue
`publish()`    writes by everything earlier on this queue become visible to the host, once the host
               has seen the timeline value that the recording's submission signals, or one signalled
               by a submission that waited for it
`acquire()`    host writes made before a timeline value that the submission waited for become
               visible to everything later on this queue
submit waits   the submission starts after the timeline values are reached; device writes made
               before those signals are visible to it
submission     host writes made before the call to `submit`, and device writes whose timeline value
               the host had seen by then, are visible to the submission
=============  ====================================================================================

On memory that is not `coherent`, host writes additionally need `flush` before they count as made,
and host reads `invalidate` after the value was seen.

Lifetimes: a `Memory`, `TexelView`, `Program` or `Recording` must not be freed or recorded into
again before the timeline value of its last submission is reached. The layer above guarantees this.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from penstock.shader.interface import Interface
from penstock.shader.source import KernelSource, LoadedKernel

#: Regions of a copy: rows of (source offset, destination offset, byte count).
CopyRegions = npt.NDArray[np.uint64]

#: A buffer as a driver binds it: memory handle, offset, byte count. Vulkan takes it as it is. For
#: a texel buffer, the handle is that of a `TexelView`, which alone says what is bound.
PLACE = struct.Struct("=3Q")

#: Called by a driver with (what, bytes) whenever it creates something expensive. For objects that
#: exist only to give a trace the device's timestamps, `what` begins with "clock: ", and a third
#: argument is the time of `tracing.events.clock` before it was created.
Notify = Callable[..., None]


#: A kernel in Python, for drivers that cannot run the real one. It is called by keyword with its
#: arrays, as flat NumPy arrays to change in place, its scalars, and `threads`.
Reference = Callable[..., None]


@dataclass(frozen=True)
class DeviceInfo:
    """What is known about a device before it is opened."""

    index: int
    name: str
    kind: str  # "discrete", "integrated", "virtual", "cpu" or "other"
    driver: str  # "vulkan", …
    driver_info: str  # the vendor's own name and version
    api_version: str
    memory: int  # bytes of the largest device-local heap
    uma: bool  # the host can map, and reads through its caches, all device memory
    can_import: bool  # can work in ordinary host memory in place
    limits: Mapping[str, int | tuple[int, ...]] = field(repr=False)
    features: frozenset[str] = field(repr=False)
    #: Formats that texel buffers can have, by the names of `shader.texels`.
    texel_formats: frozenset[str] = field(default=frozenset(), repr=False)


class Memory(Protocol):
    """One driver allocation. Memory that can be mapped stays mapped as long as it lives."""

    handle: int
    nbytes: int
    address: int | None  # the host address, or None if it is not mapped
    cached: bool  # host reads are fast
    coherent: bool  # no flush and invalidate needed


class TexelView(Protocol):
    """Bytes of memory as texels of a format, as a texel buffer binds them."""

    handle: int


class Program(Protocol):
    """A kernel compiled for this device."""

    interface: Interface


class Timeline(Protocol):
    """A counter that submissions and the host raise, and that both can wait for."""

    def value(self) -> int:
        """The value reached so far. Raises `DeviceLost`."""
        ...

    def close(self) -> None: ...


class Commands(Protocol):
    """A list of commands. `begin` empties it for reuse."""

    def begin(self) -> None: ...

    def dispatch(
        self,
        program: Any,
        bindings: bytes,
        block: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        """Run a program with `block` as its push constants.

        `bindings` is a `PLACE` for each of the program's bindings, in a row.
        """
        ...

    def dispatch_indirect(
        self, program: Any, bindings: bytes, block: bytes, memory: Any, offset: int
    ) -> None:
        """Like `dispatch`, but reads the three group counts from memory when the command runs."""
        ...

    def copy(self, source: Any, target: Any, regions: CopyRegions) -> None:
        """Copy bytes. No region of the target may overlap one of the source."""
        ...

    def fill(self, target: Any, offset: int, nbytes: int, word: int) -> None:
        """Fill with a repeated 4-byte word. Offset and size are multiples of 4."""
        ...

    def barrier(self) -> None: ...


class Replayable(Commands, Protocol):
    """Commands that can be executed many times, even while an earlier execution is in flight."""

    def end(self) -> None:
        """Finish recording; nothing more is recorded until `begin`."""
        ...

    def mark(self, *, end: bool) -> int | None:
        """Record a timestamp, as `Recording.mark` does. Only if it was made `timed`."""
        ...

    def ticks(self) -> Sequence[int]:
        """The timestamps of its last execution, once that is complete."""
        ...

    def close(self) -> None:
        """Free it. No submission that executes it may be in flight."""
        ...


class Recording(Commands, Protocol):
    """The commands of one submission."""

    def execute(self, sequence: Any, recorded: list[None]) -> None:
        """Record all commands of a sequence, as if they were recorded here one by one.

        Appends to `recorded` in the same interpreter step, so that an interrupted caller knows
        whether the driver has the commands.
        """
        ...

    def publish(self) -> None: ...

    def acquire(self) -> None: ...

    def mark(self, *, end: bool) -> int | None:
        """Record a timestamp before a command, or at its end; its index, None without a clock."""
        ...

    def ticks(self) -> Sequence[int]:
        """The timestamps in ticks of the device's clock, once the recording is complete."""
        ...


class Queue(Protocol):
    """Where recordings go to run, in order."""

    def recordings(self, count: int) -> Sequence[Recording]:
        """Create recordings; they live as long as the queue."""
        ...

    def submit(
        self, recording: Any, waits: Sequence[tuple[Any, int]], timeline: Any, value: int
    ) -> None:
        """Run the recording after `waits`; when it and all before it on this queue are complete,
        raise `timeline` to `value`.

        The waits do not delay other queues, even if they share a hardware queue. If the call fails,
        nothing has been submitted and it may be repeated. It may also be repeated after an
        exception from a signal handler interrupted it: each value is submitted only once.
        """
        ...

    def close(self) -> None: ...


class Driver(Protocol):
    """An opened device."""

    info: DeviceInfo
    queue_count: int
    inline: bool  #: whether it is an `InlineDriver`
    copies: bool  #: whether it is a `CopyingDriver`
    #: Whether it reports accesses that nothing orders. Then it takes all that a kernel binds for
    #: accessed, and so does the ledger (`Array.words`).
    checks_accesses: bool
    #: The language of kernels that `load` accepts: "spirv" (and GLSL), or "hip". It also selects
    #: the form of Penstock's own kernels.
    language: str

    @property
    def messages(self) -> list[str]:
        """Errors in how the driver was used, as far as it detects them."""
        ...

    def allocate(self, nbytes: int, *, host: bool) -> Memory:
        """Allocate memory. `host` requests memory that is mapped and fast for the host to read."""
        ...

    def import_host(self, address: int, nbytes: int) -> Memory:
        """Make whole pages of host memory usable in place."""
        ...

    def free(self, memory: Any) -> None:
        """Free memory that no work uses, and its views. May be called again, if interrupted."""
        ...

    def texel_view(self, memory: Any, offset: int, nbytes: int, texel: str) -> TexelView:
        """View bytes of memory as texels of a format, a name in `info.texel_formats`.

        `offset` is a multiple of the limit "texel_alignment".
        """
        ...

    def drop_view(self, view: Any) -> None:
        """Free a view that no work uses. May be called again, also after its memory was freed."""
        ...

    def flush(self, memory: Any, lo: int, hi: int) -> None: ...

    def invalidate(self, memory: Any, lo: int, hi: int) -> None: ...

    def load(self, source: KernelSource) -> LoadedKernel:
        """Compile a kernel, or take its compiled code, and determine its interface."""
        ...

    def program(
        self,
        code: bytes,
        interface: Interface,
        constants: Mapping[int, bytes],
        reference: Reference | None,
    ) -> Program:
        """Make a program of compiled code.

        Threads call it without the device's lock, several at once and while others use the device,
        unless the driver is an `InlineDriver`. The driver is not closed meanwhile.
        """
        ...

    def forget(self, program: Any) -> None: ...

    def queue(self, index: int) -> Queue: ...

    def replayable(self, *, timed: bool = False) -> Replayable:
        """A sequence of commands; a `timed` one may contain timestamps.

        Only one execution of a timed one may be in flight.
        """
        ...

    def timeline(self) -> Timeline: ...

    @property
    def has_clock(self) -> bool:
        """Whether recordings take timestamps."""
        ...

    @property
    def clock_method(self) -> str:
        """How its clock is compared with the host's, as a phrase for the receipt."""
        ...

    @property
    def clock_error(self) -> float | None:
        """By how many seconds `seconds` may be off; None before `knows_time`."""
        ...

    @property
    def knows_time(self) -> bool:
        """Whether the offset of the device's clock is known, so that `seconds` may be called."""
        ...

    def learn_time(self) -> tuple[Any, int] | None:
        """Start or continue to measure the offset of the device's clock, without waiting.

        Returns the point to wait for before the next call; None once the offset is known.
        """
        ...

    def seconds(self, ticks: Sequence[int]) -> Sequence[float]:
        """Convert ticks to seconds of the host's clock. Requires `knows_time`."""
        ...

    def wait(self, points: Sequence[tuple[Any, int]], timeout_ns: int) -> bool:
        """Block until all timelines reach their values; False on timeout."""
        ...

    def signal(self, timeline: Any, value: int) -> None:
        """Raise a timeline from the host. An interrupted call may be made again."""
        ...

    def settle(self) -> None:
        """Block until nothing runs any more, or the device is lost. Never raises."""
        ...

    def close(self) -> None: ...


class InlineDriver(Driver, Protocol):
    """A driver that runs in the caller's thread.

    The layer above starts no threads for it. Instead it registers actors with `attend`, which the
    driver calls at times of its choice, and it waits with `run_until`. The timelines have an
    attribute `reached`: their value, read without running anything.
    """

    def attend(self, actor: Callable[[], bool]) -> None:
        """Call `actor` from time to time; it returns whether it did anything."""
        ...

    def leave(self, actor: Callable[[], bool]) -> None:
        """Stop calling `actor`."""
        ...

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Run device work and actors until the condition holds."""
        ...


def as_inline(driver: Driver) -> InlineDriver | None:
    """The driver, if it runs in the caller's thread."""
    return cast(InlineDriver, driver) if driver.inline else None


class CopyingDriver(Driver, Protocol):
    """A driver that copies between any host memory and its own, in the caller's thread.

    No work in flight may use the bytes. The call takes as long as the copy and waits for no other
    work. Work submitted after it sees the bytes that it copied in; it copies out the writes of
    published work whose timeline value the host has seen.
    """

    def copy_in(self, memory: Any, offset: int, address: int, nbytes: int) -> None:
        """Copy from a host address to memory."""
        ...

    def copy_out(self, memory: Any, offset: int, address: int, nbytes: int) -> None:
        """Copy from memory to a host address."""
        ...


def as_copying(driver: Driver) -> CopyingDriver | None:
    """The driver, if it copies between host memory and its own."""
    return cast(CopyingDriver, driver) if driver.copies else None


class OpenOptions(NamedTuple):
    """What `Device` passes to the driver that it opens; a driver ignores what it does not have."""

    which: str | int | None
    notify: Notify
    validate: bool = False
    mapped: bool = True  #: for the simulator: whether device memory is host-visible
    seed: int = 0
    fault: Callable[[str, int], BaseException | None] | None = None
