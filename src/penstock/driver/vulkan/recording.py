"""Recordings for one submission each, and the queues that take them.

An exception may come right after any foreign call, from a signal handler; `commands` says what that
means for a command buffer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock import accelerator
from penstock.driver.holding import Submission, all_issued
from penstock.driver.protocol import CopyRegions
from penstock.driver.vulkan.api import C, check, load, native_object
from penstock.driver.vulkan.clock import TimestampPools
from penstock.driver.vulkan.commands import PrimaryCommands, VulkanReplayable
from penstock.driver.vulkan.handles import Handle, create

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver
    from penstock.driver.vulkan.memory import VulkanMemory
    from penstock.driver.vulkan.program import VulkanProgram
    from penstock.driver.vulkan.timeline import VulkanTimeline

_ALL_COMMANDS = 0x10000


@accelerator.share
class VulkanRecording:
    """A primary command buffer, which is not recorded anew if it would have the same in it.

    Many submissions are a lone launch, and often the same one again: a program that launches and
    waits, in a loop. So the first launch is held back until it is known whether it stays alone; if
    so, and the command buffer has that very launch in it from the last time, it is used as it is.
    Anything else starts the recording, and from there on goes to the command buffer.
    """

    __slots__ = (
        "_commands", "_content", "_driver", "_ended", "_first", "_published", "_started", "out",
    )  # fmt: skip

    def __init__(self, queue: VulkanQueue) -> None:
        self._driver = queue.driver
        self._commands = PrimaryCommands(queue.driver, queue.pool, queue.timestamps)
        self.out = self._commands.out
        self._first: tuple[Any, ...] | None = None  # the launch that is held back
        self._published = False  # whether what it writes is to be published
        self._started = False  # whether everything so far is in the command buffer
        self._ended = False
        #: What is in the command buffer from the last time, if that was a lone launch.
        self._content: tuple[Any, ...] | None = None

    def begin(self) -> None:
        self._started = self._ended = self._published = False
        self._first = None

    def _start(self) -> None:
        """Record what was held back. Interrupted, it can be called again."""
        commands = self._commands
        self._content = None
        commands.begin()
        if self._first is not None:
            commands.dispatch(*self._first)
        if self._published:
            commands.publish()
        self._started = True

    def dispatch(
        self,
        program: VulkanProgram,
        bindings: bytes,
        block: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        if not self._started:
            if self._first is None:
                self._first = (program, bindings, block, groups)
                return
            self._start()
        commands = self._commands
        commands.bind(program, bindings, block)
        x, y, z = groups
        commands.vk_dispatch(commands.command, x, y, z)

    def dispatch_indirect(
        self,
        program: VulkanProgram,
        bindings: bytes,
        block: bytes,
        memory: VulkanMemory,
        offset: int,
    ) -> None:
        self._recorder().dispatch_indirect(program, bindings, block, memory, offset)

    def copy(self, source: VulkanMemory, target: VulkanMemory, regions: CopyRegions) -> None:
        self._recorder().copy(source, target, regions)

    def fill(self, target: VulkanMemory, offset: int, nbytes: int, word: int) -> None:
        self._recorder().fill(target, offset, nbytes, word)

    def execute(self, replayable: VulkanReplayable, recorded: list[None]) -> None:
        self._recorder().execute(replayable, recorded)

    def barrier(self) -> None:
        if not self._started:
            self._start()
        self._commands.barrier()

    def acquire(self) -> None:
        self._recorder().acquire()

    def publish(self) -> None:
        if self._started:
            self._commands.publish()
        else:
            self._published = True

    def mark(self, *, end: bool) -> int | None:
        return self._recorder().mark(end=end) if self._driver.has_clock else None

    def ticks(self) -> list[int]:
        return self._commands.ticks()

    def end(self) -> None:
        """Be ready to be submitted. May be called again when it, or the submission, failed."""
        if self._ended:
            return
        content = None
        if not self._started:
            content = (self._driver.generation, self._published, self._first)
            if content != self._content:
                self._start()
        if self._started:
            self._commands.end()
            self._content = content
        self._ended = True

    def _recorder(self) -> PrimaryCommands:
        """The command buffer, for a command that is not held back."""
        if not self._started:
            self._start()
        return self._commands


@accelerator.share
class VulkanQueue:
    """A stream's way to a `VkQueue`, with a command pool of its own."""

    __slots__ = ("__dict__", "_results", "_submitting", "_waited", "native")

    def __init__(self, driver: VulkanDriver, handle: C) -> None:
        ffi, lib = load()
        self.driver = driver
        self.handle = handle
        self._pool = new_command_pool(driver)
        self.pool = self._pool.made
        self.timestamps: list[TimestampPools] = []  # of its recordings
        self._signal_semaphore = ffi.new("VkSemaphore *")
        self._signal_value = ffi.new("uint64_t *")
        self._times = ffi.new("VkTimelineSemaphoreSubmitInfo *")
        self._times.sType = lib.VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO
        self._times.signalSemaphoreValueCount = 1
        self._times.pSignalSemaphoreValues = self._signal_value
        self._info = ffi.new("VkSubmitInfo *")
        self._info.sType = lib.VK_STRUCTURE_TYPE_SUBMIT_INFO
        self._info.pNext = self._times
        self._info.commandBufferCount = 1
        self._info.signalSemaphoreCount = 1
        self._info.pSignalSemaphores = self._signal_semaphore
        self._room_for_waits(4)
        self._waited = 0  # how many waits the last submission had
        self.held: deque[Submission] = deque()
        self._submitting: tuple[VulkanTimeline, int] | None = None  # what was submitted last
        self._results: list[int] = []  # of `vkQueueSubmit` for it, if that was called
        self._arguments = ((handle,), (1,), (self._info,), (ffi.NULL,))
        self.native: Any = None
        if accelerator.is_native():
            self.native = native_object(
                accelerator.native.Queue,
                queue=handle,
                submit=driver.call.vkQueueSubmit,
                info=self._info,
                signal_semaphore=self._signal_semaphore,
                signal_value=self._signal_value,
            )

    def recordings(self, count: int) -> list[VulkanRecording]:
        self.driver.notify("recordings", 0)
        return [VulkanRecording(self) for _ in range(count)]

    def unlisted_recording(self) -> VulkanRecording:
        """One that the receipt does not hear of."""
        return VulkanRecording(self)

    def submit(
        self,
        recording: VulkanRecording,
        waits: Sequence[tuple[VulkanTimeline, int]],
        timeline: VulkanTimeline,
        value: int,
    ) -> None:
        backlog = self.driver.backlog
        if timeline.issued < value:
            recording.end()
        if not backlog.queues and (not waits or all_issued(waits)):
            self.issue(recording, waits, timeline, value)  # no other thread hands anything over
            return
        with backlog.lock:
            ready = timeline.issued >= value or (not self.held and all_issued(waits))
            if ready:
                self.issue(recording, waits, timeline, value)
        if not ready:
            backlog.hold(self, Submission(recording, tuple(waits), timeline, value))

    def issue(
        self,
        recording: VulkanRecording,
        waits: Sequence[tuple[VulkanTimeline, int]],
        timeline: VulkanTimeline,
        value: int,
    ) -> bool:
        if timeline.issued >= value:
            return True  # by a call that was interrupted
        if self._submitting != (timeline, value):
            self._results.clear()
            self._submitting = (timeline, value)
        if not self._results:
            self._fill_in(recording, waits, timeline, value)
            self._results.extend(map(self.driver.call.vkQueueSubmit, *self._arguments))
        if self._results[0]:
            check(self._results.pop(), "vkQueueSubmit")
        timeline.issued = value
        return True

    def _fill_in(
        self,
        recording: VulkanRecording,
        waits: Sequence[tuple[VulkanTimeline, int]],
        timeline: VulkanTimeline,
        value: int,
    ) -> None:
        """Say what to submit."""
        info = self._info
        if waits or self._waited:
            if len(waits) > self._wait_room:
                self._room_for_waits(2 * len(waits))
            for slot, (other, reached) in enumerate(waits):
                self._wait_semaphores[slot] = other.semaphore
                self._wait_values[slot] = reached
            self._waited = len(waits)
            info.waitSemaphoreCount = self._times.waitSemaphoreValueCount = self._waited
        info.pCommandBuffers = recording.out
        self._signal_semaphore[0] = timeline.semaphore
        self._signal_value[0] = value

    def close(self) -> None:
        for times in self.timestamps:
            times.close()
        self._pool.close()

    def _room_for_waits(self, count: int) -> None:
        ffi, _ = load()
        self._wait_room = count
        self._wait_semaphores = ffi.new("VkSemaphore[]", count)
        self._wait_values = ffi.new("uint64_t[]", count)
        self._wait_stages = ffi.new("VkPipelineStageFlags[]", [_ALL_COMMANDS] * count)
        self._info.pWaitSemaphores = self._wait_semaphores
        self._info.pWaitDstStageMask = self._wait_stages
        self._times.pWaitSemaphoreValues = self._wait_values


def new_command_pool(driver: VulkanDriver) -> Handle:
    ffi, lib = load()
    info = ffi.new("VkCommandPoolCreateInfo *")
    info.sType = lib.VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO
    info.flags = lib.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT
    info.queueFamilyIndex = driver.family
    return create(driver, "CommandPool", info)
