"""Command buffers and the queues that run them.

Primary ones are recorded for one submission. Secondary ones are recorded once and executed by many.

Structures that a command needs are built once and reused; a command is a handful of foreign calls
with nothing allocated between them.

An exception may come right after any foreign call, from a signal handler. So what is remembered of
a command buffer is forgotten before the call that changes it; and where it must be known whether a
call was made, its result goes into a list by `list.extend(map(call, …))`, one step to Python.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.driver.holding import Submission, on_their_way
from penstock.driver.protocol import CopyRegions
from penstock.driver.vulkan.api import C, check, load
from penstock.driver.vulkan.clock import ROOM, Timestamps
from penstock.driver.vulkan.handles import Handle, create

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver
    from penstock.driver.vulkan.memory import VulkanMemory
    from penstock.driver.vulkan.program import DescriptorSet, VulkanProgram
    from penstock.driver.vulkan.timeline import VulkanTimeline

_INDIRECT, _TRANSFER, _COMPUTE_STAGE, _HOST = 0x2, 0x1000, 0x800, 0x4000
_ALL_COMMANDS = 0x10000
_SHADER_ACCESS, _TRANSFER_ACCESS = 0x20 | 0x40, 0x800 | 0x1000
_SHADER_WRITE, _TRANSFER_WRITE = 0x40, 0x1000
_INDIRECT_READ, _UNIFORM_READ = 0x1, 0x8
_HOST_READ, _HOST_WRITE = 0x2000, 0x4000
_GPU = _TRANSFER | _COMPUTE_STAGE | _INDIRECT
_GPU_ACCESS = _SHADER_ACCESS | _TRANSFER_ACCESS | _UNIFORM_READ | _INDIRECT_READ
_GPU_WRITE = _SHADER_WRITE | _TRANSFER_WRITE
_COMPUTE_FLAG = 0x20


class _Commands:
    """A command buffer. Recording again empties it."""

    def __init__(self, driver: VulkanDriver, pool: C, level: int, usage: int) -> None:
        ffi, lib = load()
        self._driver = driver
        info = ffi.new("VkCommandBufferAllocateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO
        info.commandPool = pool
        info.level = level
        info.commandBufferCount = 1
        self.out = ffi.new("VkCommandBuffer *")
        check(
            driver.call.vkAllocateCommandBuffers(driver.handle, info, self.out),
            "vkAllocateCommandBuffers",
        )
        self.command = self.out[0]
        self._begin = ffi.new("VkCommandBufferBeginInfo *")
        self._begin.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO
        self._begin.flags = usage
        self._between = _Barrier(driver, (_GPU, _GPU_WRITE), (_GPU, _GPU_ACCESS))
        self._program: VulkanProgram | None = None
        self._bindings: tuple[int, ...] | None = None
        self._pushed: bytes | None = None
        self._sets: list[DescriptorSet] = []
        call = driver.call
        self._vk_begin = call.vkBeginCommandBuffer
        self._vk_bind = call.vkCmdBindPipeline
        self._vk_push = call.vkCmdPushConstants
        self._vk_describe = call.vkCmdPushDescriptorSetWithTemplateKHR
        self._vk_dispatch = call.vkCmdDispatch
        self._vk_dispatch_indirect = call.vkCmdDispatchIndirect

    def begin(self) -> None:
        if self._sets:
            self._forget_sets()
        self._program = None
        result = self._vk_begin(self.command, self._begin)
        if result:
            check(result, "vkBeginCommandBuffer")

    def dispatch(
        self,
        program: VulkanProgram,
        bindings: tuple[int, ...],
        block: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        self._bind(program, bindings, block)
        self._vk_dispatch(self.command, *groups)

    def dispatch_indirect(
        self,
        program: VulkanProgram,
        bindings: tuple[int, ...],
        block: bytes,
        memory: VulkanMemory,
        offset: int,
    ) -> None:
        self._bind(program, bindings, block)
        self._vk_dispatch_indirect(self.command, memory.buffer, offset)

    def _bind(self, program: VulkanProgram, bindings: tuple[int, ...], block: bytes) -> None:
        command = self.command
        if program is not self._program:
            self._program = self._bindings = self._pushed = None
            self._vk_bind(command, 1, program.pipeline)
            self._program = program
        # A recording keeps what was set last, and a foreign call costs more than a comparison.
        if bindings != self._bindings:
            self._bindings = None
            if program.template:
                program.pack_into(program.infos, 0, *bindings)
                self._vk_describe(
                    command, program.template, program.layout, 0, program.infos_pointer
                )
            elif program.slots:
                self._bind_set(program, bindings)
            self._bindings = bindings
        if block and block != self._pushed:
            self._pushed = None
            self._vk_push(command, program.layout, _COMPUTE_FLAG, 0, len(block), block)
            self._pushed = block

    def copy(self, source: VulkanMemory, target: VulkanMemory, regions: CopyRegions) -> None:
        ffi, _ = load()
        self._driver.call.vkCmdCopyBuffer(
            self.command,
            source.buffer,
            target.buffer,
            len(regions),
            ffi.cast("VkBufferCopy *", ffi.from_buffer(regions)),
        )

    def fill(self, target: VulkanMemory, offset: int, nbytes: int, word: int) -> None:
        self._driver.call.vkCmdFillBuffer(self.command, target.buffer, offset, nbytes, word)

    def barrier(self) -> None:
        self._between.record(self.command)

    def _bind_set(self, program: VulkanProgram, bindings: tuple[int, ...]) -> None:
        ffi, _ = load()
        bound = program.descriptor_set(bindings)
        bound.uses += 1
        self._sets.append(bound)
        self._driver.call.vkCmdBindDescriptorSets(
            self.command,
            1,
            program.layout,
            0,
            1,
            ffi.new("VkDescriptorSet *", bound.handle),
            0,
            ffi.NULL,
        )

    def _forget_sets(self) -> None:
        for used in self._sets:
            used.uses -= 1
        self._sets.clear()


class VulkanReplayable(_Commands):
    """A secondary command buffer, which primary ones execute."""

    def __init__(self, driver: VulkanDriver) -> None:
        ffi, lib = load()
        level = lib.VK_COMMAND_BUFFER_LEVEL_SECONDARY
        usage = lib.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT
        super().__init__(driver, driver.replayable_pool(), level, usage)
        self._inherited = ffi.new("VkCommandBufferInheritanceInfo *")
        self._inherited.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO
        self._begin.pInheritanceInfo = self._inherited

    def end(self) -> None:
        check(self._driver.call.vkEndCommandBuffer(self.command), "vkEndCommandBuffer")

    def close(self) -> None:
        self._forget_sets()
        driver = self._driver
        driver.call.vkFreeCommandBuffers(driver.handle, driver.replayable_pool(), 1, self.out)


class VulkanRecording(_Commands):
    """A primary command buffer.

    Many submissions are a lone launch, and often the same one again: a program that launches and
    waits, in a loop. So the first launch is held back until it is known whether it stays alone; if
    so, and the command buffer has that very launch in it from the last time, it is used as it is.
    """

    def __init__(self, queue: VulkanQueue) -> None:
        _, lib = load()
        driver = queue.driver
        super().__init__(driver, queue.pool, lib.VK_COMMAND_BUFFER_LEVEL_PRIMARY, usage=0)
        self._to_host = _Barrier(driver, (_GPU, _GPU_WRITE), (_HOST, _HOST_READ))
        self._from_host = _Barrier(driver, (_HOST, _HOST_WRITE), (_GPU, _GPU_ACCESS))
        self._queue = queue
        self._times: Timestamps | None = None
        self._timed = False  # whether it takes the time, this time
        self._begun = self._ended = False
        self._unfinished = False  # whether the driver was told to begin, and not yet to end
        self._end_results: list[int] = []  # of `vkEndCommandBuffer`, if it was called
        self._held: tuple[Any, ...] | None = None  # the first launch
        self._published = False
        self._content: tuple[Any, ...] | None = None  # what is in the buffer if it is a lone launch

    def begin(self) -> None:
        self._begun = self._ended = self._published = self._timed = False
        self._held = None
        self._end_results.clear()

    def dispatch(
        self,
        program: VulkanProgram,
        bindings: tuple[int, ...],
        block: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        if not self._begun:
            if self._held is None:
                self._held = (program, bindings, block, groups)
                return
            self._really_begin()
        self._bind(program, bindings, block)
        self._vk_dispatch(self.command, *groups)

    def dispatch_indirect(
        self,
        program: VulkanProgram,
        bindings: tuple[int, ...],
        block: bytes,
        memory: VulkanMemory,
        offset: int,
    ) -> None:
        self._really_begin()
        super().dispatch_indirect(program, bindings, block, memory, offset)

    def copy(self, source: VulkanMemory, target: VulkanMemory, regions: CopyRegions) -> None:
        self._really_begin()
        super().copy(source, target, regions)

    def fill(self, target: VulkanMemory, offset: int, nbytes: int, word: int) -> None:
        self._really_begin()
        super().fill(target, offset, nbytes, word)

    def execute(self, replayable: VulkanReplayable, recorded: list[None]) -> None:
        self._really_begin()
        self._program = None  # what was bound before is not bound any more
        execute = self._driver.call.vkCmdExecuteCommands
        recorded.extend(map(execute, (self.command,), (1,), (replayable.out,)))

    def barrier(self) -> None:
        if not self._begun:
            self._really_begin()
        self._between.record(self.command)

    def mark(self, *, end: bool) -> int | None:
        if not self._driver.has_clock or (self._times is not None and self._times.count == ROOM):
            return None
        if not self._begun:
            self._really_begin()
        if self._times is None:
            self._times = Timestamps(self._driver)
            self._queue.timestamps.append(self._times)
        if not self._timed:
            self._times.begin(self.command)
            self._timed = True
        return self._times.mark(self.command, end=end)

    def ticks(self) -> list[int]:
        return [] if self._times is None or not self._timed else self._times.ticks()

    def publish(self) -> None:
        if self._begun:
            self._to_host.record(self.command)
        else:
            self._published = True

    def acquire(self) -> None:
        self._really_begin()
        self._from_host.record(self.command)

    def end(self) -> None:
        """Be ready to be submitted. May be called again when it, or the submission, failed."""
        if self._ended:
            return
        if not self._begun:
            content = (self._driver.generation, self._published, self._held)
            if content != self._content:
                self._really_begin()
                self._end()
                self._content = content
        else:
            self._end()
        self._ended = True

    def _end(self) -> None:
        results = self._end_results
        if not results:
            if self._timed and self._times is not None:
                self._times.end(self.command)
                self._to_host.record(self.command)
            results.extend(map(self._driver.call.vkEndCommandBuffer, (self.command,)))
        if results[0]:
            check(results.pop(), "vkEndCommandBuffer")
        self._unfinished = False

    def _really_begin(self) -> None:
        if not self._begun:
            self._content = None
            if self._unfinished:
                check(
                    self._driver.call.vkResetCommandBuffer(self.command, 0), "vkResetCommandBuffer"
                )
            self._unfinished = True
            super().begin()
            if self._held is not None:
                super().dispatch(*self._held)
            if self._published:
                self._to_host.record(self.command)
            self._begun = True


class VulkanQueue:
    """A stream's way to a `VkQueue`, with a command pool of its own."""

    def __init__(self, driver: VulkanDriver, handle: C) -> None:
        ffi, lib = load()
        self.driver = driver
        self.handle = handle
        self._pool = new_command_pool(driver)
        self.pool = self._pool.made
        self.timestamps: list[Timestamps] = []  # of its recordings
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
        if not backlog.queues and (not waits or on_their_way(waits)):
            self.issue(recording, waits, timeline, value)  # no other thread hands anything over
            return
        with backlog.lock:
            ready = timeline.issued >= value or (not self.held and on_their_way(waits))
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


class _Barrier:
    """A memory barrier, built once. Each side is (stages, accesses).

    `vkCmdPipelineBarrier2` takes two arguments where the older call takes ten, and a foreign call
    costs by the argument; so it is used wherever the device has it.
    """

    def __init__(
        self, driver: VulkanDriver, source: tuple[int, int], target: tuple[int, int]
    ) -> None:
        ffi, lib = load()
        if driver.call.vkCmdPipelineBarrier2 is None:
            self._old = _old_barrier(source[1], target[1])
            self._stages = source[0], target[0]
            self._call = driver.call.vkCmdPipelineBarrier
            self.record = self._record_old  # type: ignore[method-assign]
            return
        self._barrier = ffi.new("VkMemoryBarrier2 *")
        self._barrier.sType = lib.VK_STRUCTURE_TYPE_MEMORY_BARRIER_2
        self._barrier.srcStageMask, self._barrier.srcAccessMask = source
        self._barrier.dstStageMask, self._barrier.dstAccessMask = target
        self._info = ffi.new("VkDependencyInfo *")
        self._info.sType = lib.VK_STRUCTURE_TYPE_DEPENDENCY_INFO
        self._info.memoryBarrierCount = 1
        self._info.pMemoryBarriers = self._barrier
        self._call = driver.call.vkCmdPipelineBarrier2

    def record(self, command: C) -> None:
        self._call(command, self._info)

    def _record_old(self, command: C) -> None:
        ffi, _ = load()
        null = ffi.NULL
        self._call(command, *self._stages, 0, 1, self._old, 0, null, 0, null)


def _old_barrier(source: int, target: int) -> C:
    ffi, lib = load()
    barrier = ffi.new("VkMemoryBarrier *")
    barrier.sType = lib.VK_STRUCTURE_TYPE_MEMORY_BARRIER
    barrier.srcAccessMask = source
    barrier.dstAccessMask = target
    return barrier
