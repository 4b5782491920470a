"""Recordings, and the HIP streams that run them.

HIP has no command buffers: a recording is a list of calls. Submitting it issues them to a stream
one by one, followed by an event. A stream runs its commands strictly in order and makes their
writes visible to the next, so barriers cost nothing here.

A HIP stream can wait only for an event that is already recorded, so a submission that waits for the
host cannot be issued. It is held (`penstock.driver.holding`), and the thread that satisfies the
last of its waits issues it.

HIP cannot read the group counts of a launch from device memory either. So the counts are copied to
the host in stream order, and the launch and all later commands are held until they have arrived.

A sequence is captured once, as a HIP graph, and replayed with one call. If it contains an indirect
launch, it is issued command by command instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.driver.hip.api import ffi
from penstock.driver.holding import Submission, all_issued
from penstock.driver.protocol import CopyRegions

if TYPE_CHECKING:
    from penstock.driver.hip.clock import Base
    from penstock.driver.hip.driver import HipDriver
    from penstock.driver.hip.memory import HipMemory
    from penstock.driver.hip.program import HipProgram
    from penstock.driver.hip.timeline import HipTimeline

_NON_BLOCKING = 0x1  # no implicit synchronization with the default stream
_RELAXED = 2  # a capture does not restrict the calls of other threads
_COPY_DEFAULT = 4  # HIP infers the direction from the addresses

#: A command: a function that issues it, and its arguments. If the function returns False, the
#: command must be issued again later.
Command = tuple[Callable[..., bool | None], tuple[Any, ...]]


class _Commands:
    """A list of commands."""

    def __init__(self, driver: HipDriver) -> None:
        self._driver = driver
        self._launch = driver.launch
        self.commands: list[Command] = []
        self.counted = False  # whether it contains an indirect launch
        self.base: Base | None = None  # with which its timestamps are compared
        self._stamps: list[int] = []  # events that take the time

    def begin(self) -> None:
        self.commands = []
        self.counted = False
        if self._stamps:
            self._driver.clock.give_back(self._stamps)
            self._stamps = []
        self.base = None

    def mark(self, *, end: bool) -> int | None:
        clock = self._driver.clock
        if self.base is None:
            self.base = clock.base()
        event = clock.take()
        self._stamps.append(event)
        self.commands.append((self._driver.stamp, (event,)))
        return len(self._stamps) - 1

    def ticks(self) -> list[int]:
        return [] if self.base is None else self._driver.clock.ticks(self.base, self._stamps)

    def dispatch(
        self,
        program: HipProgram,
        bindings: bytes,
        block: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        self.commands.append((self._launch, (program, bindings, block, groups)))

    def dispatch_indirect(
        self,
        program: HipProgram,
        bindings: bytes,
        block: bytes,
        memory: HipMemory,
        offset: int,
    ) -> None:
        self.commands.append((self._driver.look_at_counts, (memory.handle + offset,)))
        self.commands.append((self._driver.launch_counted, (program, bindings, block)))
        self.counted = True

    def copy(self, source: HipMemory, target: HipMemory, regions: CopyRegions) -> None:
        rows = (regions + np.array([source.handle, target.handle, 0], np.uint64)).tolist()
        pitched = _pitched(rows)
        if pitched is not None:
            self.commands.append((self._driver.copy_rows, pitched))
            return
        copy = self._driver.copy
        self.commands += [(copy, (to, origin, size)) for origin, to, size in rows]

    def fill(self, target: HipMemory, offset: int, nbytes: int, word: int) -> None:
        signed = word - (1 << 32) if word >> 31 else word
        command = (target.handle + offset, signed, nbytes // 4)
        self.commands.append((self._driver.fill, command))

    def barrier(self) -> None:
        """Nothing to do: a stream runs its commands in order."""


class HipReplayable(_Commands):
    """A sequence of commands, captured as a HIP graph.

    A timed one is not captured: an event takes the time in a stream only, so its commands are
    issued one by one.
    """

    def __init__(self, driver: HipDriver, *, timed: bool = False) -> None:
        super().__init__(driver)
        self.timed = timed
        self.executable = 0
        self._last = 0  # the stream of its last replay
        self._event = 0

    def end(self) -> None:
        """Capture the commands. An existing executable graph of the same topology is updated."""
        if self.counted or self.timed:
            return
        driver = self._driver
        graph = driver.capture(self.commands)
        try:
            if self.executable:
                ignored = ffi.new("handle *"), ffi.new("int *")
                if driver.call.hipGraphExecUpdate(self.executable, graph, *ignored) == 0:
                    return
                driver.call.hipGraphExecDestroy(self.executable)
                self.executable = 0
            out = ffi.new("handle *")
            result = driver.call.hipGraphInstantiate(out, graph, ffi.NULL, ffi.NULL, 0)
            driver.hip.check(result, "hipGraphInstantiate")
            self.executable = int(out[0])
        finally:
            driver.call.hipGraphDestroy(graph)

    def replay(self, stream: int) -> None:
        """Launch it on a stream, ordered after its last replay if that was on another stream."""
        if not self.commands:
            return
        driver = self._driver
        if self._last and self._last != stream:
            if not self._event:
                self._event = driver.events.take()
            driver.must(driver.call.hipEventRecord(self._event, self._last), "hipEventRecord")
            result = driver.call.hipStreamWaitEvent(stream, self._event, 0)
            driver.must(result, "hipStreamWaitEvent")
        result = driver.once(driver.call.hipGraphLaunch, (self.executable, stream))
        driver.must(result, "hipGraphLaunch")
        self._last = stream
        driver.replayed_on.setdefault(stream, set()).add(self)

    def forget_stream(self) -> None:
        """Forget the stream of its last replay: it is destroyed, and its work is complete."""
        self._last = 0

    def close(self) -> None:
        driver = self._driver
        if self._event:
            driver.events.give_back(self._event)
            self._event = 0
        driver.clock.give_back(self._stamps)
        self._stamps = []
        for replayed in driver.replayed_on.values():
            replayed.discard(self)
        if self.executable:
            driver.call.hipGraphExecDestroy(self.executable)
            self.executable = 0


class HipRecording(_Commands):
    """The commands of one submission, and how many of them have been issued.

    If a call fails, or an exception from a signal handler interrupts it, submitting again continues
    where it stopped.
    """

    def __init__(self, driver: HipDriver) -> None:
        super().__init__(driver)
        self.issued = 0
        self.results: list[int] = []  # by command: the result of the call that must not be repeated
        self.waited = 0
        self.event = 0

    def begin(self) -> None:
        super().begin()
        self.issued = self.waited = 0
        self.results.clear()

    def execute(self, sequence: HipReplayable, recorded: list[None]) -> None:
        if sequence.timed:
            sequence.base = self._driver.clock.base()  # one shortly before this execution
        if sequence.counted or sequence.timed:
            self.commands += sequence.commands
            self.counted = self.counted or sequence.counted
        else:
            self.commands += [(self._driver.replay, (sequence,))]
        recorded += [None]  # no call since the commands were added, so no exception in between

    def publish(self) -> None:
        """Nothing to do: the event after every submission publishes its writes."""

    def acquire(self) -> None:
        """Nothing to do: memory is coherent, and waiting work is issued only after the host's
        signal.
        """


class HipQueue:
    """A HIP stream."""

    def __init__(self, driver: HipDriver) -> None:
        self.driver = driver
        out = ffi.new("handle *")
        result = driver.call.hipStreamCreateWithFlags(out, _NON_BLOCKING)
        driver.hip.check(result, "hipStreamCreateWithFlags")
        self.stream = int(out[0])
        self.held: deque[Submission] = deque()

    def recordings(self, count: int) -> list[HipRecording]:
        self.driver.notify("recordings", 0)
        return [HipRecording(self.driver) for _ in range(count)]

    def submit(
        self,
        recording: HipRecording,
        waits: Sequence[tuple[HipTimeline, int]],
        timeline: HipTimeline,
        value: int,
    ) -> None:
        driver = self.driver
        with driver.issuing:
            ready = timeline.issued >= value or (not self.held and (not waits or all_issued(waits)))
            if not ready or not self.issue(recording, waits, timeline, value):
                driver.backlog.hold(self, Submission(recording, tuple(waits), timeline, value))
                if ready or recording.counted:
                    driver.attend_to_held()

    def issue(
        self,
        recording: HipRecording,
        waits: Sequence[tuple[HipTimeline, int]],
        timeline: HipTimeline,
        value: int,
    ) -> bool:
        """Issue a submission, or the rest of it; False if part of it must be held."""
        if timeline.issued >= value:
            return True  # an interrupted call has issued it already
        driver, stream = self.driver, self.stream
        if driver.several:
            driver.select()
        if not recording.event:
            recording.event = driver.events.take()
        while recording.waited < len(waits):
            other, reached = waits[recording.waited]
            event = other.event_for(reached)
            if event is not None:
                driver.must(driver.call.hipStreamWaitEvent(stream, event, 0), "hipStreamWaitEvent")
            recording.waited += 1
        results = recording.results
        driver.handing_over = recording
        for issue, arguments in islice(recording.commands, recording.issued, None):
            if issue(stream, *arguments) is False:
                return False
            if len(results) == recording.issued:
                results.append(0)  # a command without a HIP call
            recording.issued += 1
        event = recording.event
        result = driver.call.hipEventRecord(event, stream)
        if result:
            driver.failed(result, "hipEventRecord")
        recording.event = 0
        timeline.will_raise(value, event)
        return True

    def close(self) -> None:
        driver = self.driver
        for replayable in driver.replayed_on.pop(self.stream, ()):
            replayable.forget_stream()
        driver.call.hipStreamDestroy(self.stream)


def _pitched(rows: list[list[int]]) -> tuple[int, ...] | None:
    """The arguments of one 2D copy, if the rows have equal lengths and constant pitches."""
    if len(rows) < 2:
        return None
    (source, target, width), (next_source, next_target, _) = rows[:2]
    source_pitch, target_pitch = next_source - source, next_target - target
    even = all(
        row == [source + number * source_pitch, target + number * target_pitch, width]
        for number, row in enumerate(rows)
    )
    if not even or source_pitch < width or target_pitch < width:
        return None
    return (target, target_pitch, source, source_pitch, width, len(rows))
