"""Command buffers, recorded command by command.

Primary ones are recorded for one submission. Secondary ones are recorded once and executed by many.

Structures that a command needs are built once and reused; a command is a handful of foreign calls
with nothing allocated between them.

An exception may come right after any foreign call, from a signal handler. So what is remembered of
a command buffer is forgotten before the call that changes it; and where it must be known whether a
call was made, its result goes into a list by `list.extend(map(call, …))`, one step to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import accelerator
from penstock.driver.protocol import CopyRegions
from penstock.driver.vulkan.api import C, check, load, native_object
from penstock.driver.vulkan.clock import TimestampPools, Timestamps
from penstock.driver.vulkan.layout import COMPUTE

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver
    from penstock.driver.vulkan.memory import VulkanMemory
    from penstock.driver.vulkan.program import DescriptorSet, VulkanProgram

_INDIRECT, _TRANSFER, _COMPUTE_STAGE, _HOST = 0x2, 0x1000, 0x800, 0x4000
_SHADER_ACCESS, _TRANSFER_ACCESS = 0x20 | 0x40, 0x800 | 0x1000
_SHADER_WRITE, _TRANSFER_WRITE = 0x40, 0x1000
_INDIRECT_READ, _UNIFORM_READ = 0x1, 0x8
_HOST_READ, _HOST_WRITE = 0x2000, 0x4000
_GPU = _TRANSFER | _COMPUTE_STAGE | _INDIRECT
_GPU_ACCESS = _SHADER_ACCESS | _TRANSFER_ACCESS | _UNIFORM_READ | _INDIRECT_READ
_GPU_WRITE = _SHADER_WRITE | _TRANSFER_WRITE


@accelerator.share
class Commands:
    """A command buffer. Recording again empties it."""

    __slots__ = ("__dict__", "_bindings", "_program", "_pushed", "_sets", "native")

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
        self._between = _Barrier(driver, self.command, (_GPU, _GPU_WRITE), (_GPU, _GPU_ACCESS))
        self._to_host = _Barrier(driver, self.command, (_GPU, _GPU_WRITE), (_HOST, _HOST_READ))
        self.barrier = self._between.record
        self._program: VulkanProgram | None = None
        self._bindings: bytes | None = None
        self._pushed: bytes | None = None
        self._sets: list[DescriptorSet] = []
        call = driver.call
        self._vk_begin = call.vkBeginCommandBuffer
        self._vk_bind = call.vkCmdBindPipeline
        self._vk_push = call.vkCmdPushConstants
        self._vk_describe = call.vkCmdPushDescriptorSetWithTemplateKHR
        self.vk_dispatch = call.vkCmdDispatch
        self.vk_dispatch_indirect = call.vkCmdDispatchIndirect
        self.native: Any = None

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
        bindings: bytes,
        block: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        self.bind(program, bindings, block)
        x, y, z = groups
        self.vk_dispatch(self.command, x, y, z)

    def dispatch_indirect(
        self,
        program: VulkanProgram,
        bindings: bytes,
        block: bytes,
        memory: VulkanMemory,
        offset: int,
    ) -> None:
        self.bind(program, bindings, block)
        self.vk_dispatch_indirect(self.command, memory.buffer, offset)

    def bind(self, program: VulkanProgram, bindings: bytes, block: bytes) -> None:
        """Bind what is not bound yet: the program, its buffers, its push constants."""
        command = self.command
        if program is not self._program:
            if self._program is None or program.layout is not self._program.layout:
                self._bindings = self._pushed = None
            self._program = None
            self._vk_bind(command, 1, program.pipeline)
            self._program = program
        # A recording keeps what was set last, and a foreign call costs more than a comparison.
        if bindings != self._bindings:
            self._bindings = None
            layout = program.layout
            if layout.pushes:
                self._vk_describe(command, layout.template, layout.pipeline, 0, bindings)
            elif program.slots:
                self._bind_set(program, bindings)
            self._bindings = bindings
        if block and block != self._pushed:
            self._pushed = None
            self._vk_push(command, program.layout.pipeline, COMPUTE, 0, len(block), block)
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

    def _bind_set(self, program: VulkanProgram, bindings: bytes) -> None:
        ffi, _ = load()
        bound = program.descriptor_set(bindings)
        bound.uses += 1
        self._sets.append(bound)
        self._driver.call.vkCmdBindDescriptorSets(
            self.command,
            1,
            program.layout.pipeline,
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


class VulkanReplayable(Commands):
    """A secondary command buffer, which primary ones execute."""

    def __init__(self, driver: VulkanDriver, *, timed: bool) -> None:
        ffi, lib = load()
        level = lib.VK_COMMAND_BUFFER_LEVEL_SECONDARY
        usage = lib.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT
        super().__init__(driver, driver.replayable_pool(), level, usage)
        self._inherited = ffi.new("VkCommandBufferInheritanceInfo *")
        self._inherited.sType = lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO
        self._begin.pInheritanceInfo = self._inherited
        self._pools = TimestampPools(driver) if timed else None

    def begin(self) -> None:
        super().begin()
        if self._pools is not None:
            self._pools.begin()

    def mark(self, *, end: bool) -> int | None:
        if self._pools is None:
            return None
        return self._pools.current(self.command).mark(self.command, end=end)

    def ticks(self) -> list[int]:
        return [] if self._pools is None else self._pools.ticks()

    def end(self) -> None:
        if self._pools is not None:
            self._pools.end(self.command)
            self._to_host.record()
        check(self._driver.call.vkEndCommandBuffer(self.command), "vkEndCommandBuffer")

    def close(self) -> None:
        if self._pools is not None:
            self._pools.close()
        self._forget_sets()
        driver = self._driver
        driver.call.vkFreeCommandBuffers(driver.handle, driver.replayable_pool(), 1, self.out)


@accelerator.share
class PrimaryCommands(Commands):
    """A primary command buffer, which a queue runs."""

    __slots__ = ("_end_results", "_timed", "_times", "_unfinished")

    def __init__(self, driver: VulkanDriver, pool: C, timestamps: list[TimestampPools]) -> None:
        """`timestamps` is the queue's list, which gets those that this one takes."""
        _, lib = load()
        super().__init__(driver, pool, lib.VK_COMMAND_BUFFER_LEVEL_PRIMARY, usage=0)
        self._from_host = _Barrier(driver, self.command, (_HOST, _HOST_WRITE), (_GPU, _GPU_ACCESS))
        self._queue_timestamps = timestamps
        self._pools: TimestampPools | None = None
        self._times: Timestamps | None = None  # the pool that is in use
        self._timed = False  # whether it takes the time, this time
        self._unfinished = False  # whether the driver was told to begin, and not yet to end
        self._end_results: list[int] = []  # of `vkEndCommandBuffer`, if it was called
        if accelerator.is_native():
            self.native = native_object(
                accelerator.native.Recorder,
                command=self.command,
                commands=self.out,
                between=self._between.info,
                to_host=self._to_host.info,
                info=self._begin,
                begin=self._vk_begin,
                end=driver.call.vkEndCommandBuffer,
                bind=self._vk_bind,
                push=self._vk_push,
                describe=self._vk_describe,
                dispatch=self.vk_dispatch,
                barrier=driver.call.vkCmdPipelineBarrier2,
            )

    def begin(self) -> None:
        self._timed = False
        self._end_results.clear()
        if self._unfinished:
            check(self._driver.call.vkResetCommandBuffer(self.command, 0), "vkResetCommandBuffer")
        self._unfinished = True
        super().begin()

    def execute(self, replayable: VulkanReplayable, recorded: list[None]) -> None:
        self._program = None  # what was bound before is not bound any more
        execute = self._driver.call.vkCmdExecuteCommands
        recorded.extend(map(execute, (self.command,), (1,), (replayable.out,)))

    def publish(self) -> None:
        self._to_host.record()

    def acquire(self) -> None:
        self._from_host.record()

    def mark(self, *, end: bool) -> int | None:
        if self._pools is None:
            self._pools = TimestampPools(self._driver)
            self._queue_timestamps.append(self._pools)
        if not self._timed:
            self._pools.begin()
            self._timed = True
        self._times = self._pools.current(self.command)
        return self._times.mark(self.command, end=end)

    def ticks(self) -> list[int]:
        return [] if self._pools is None or not self._timed else self._pools.ticks()

    def end(self) -> None:
        """Be ready to be submitted. May be called again when it failed."""
        results = self._end_results
        if not results:
            if self._timed and self._pools is not None:
                self._pools.end(self.command)
                self._to_host.record()
            results.extend(map(self._driver.call.vkEndCommandBuffer, (self.command,)))
        if results[0]:
            check(results.pop(), "vkEndCommandBuffer")
        self._unfinished = False


class _Barrier:
    """A memory barrier for one command buffer, built once. Each side is (stages, accesses).

    `vkCmdPipelineBarrier2` takes two arguments where the older call takes ten, and a foreign call
    costs by the argument; so it is used wherever the device has it.
    """

    def __init__(
        self, driver: VulkanDriver, command: C, source: tuple[int, int], target: tuple[int, int]
    ) -> None:
        #: Puts the barrier into the command buffer.
        self.record: Callable[[], None]
        #: The `VkDependencyInfo`, if the device takes one.
        self.info: C | None = None
        ffi, lib = load()
        call = driver.call
        if call.vkCmdPipelineBarrier2 is None:
            self._barrier = _old_barrier(source[1], target[1])
            stages, none = (source[0], target[0]), (0, ffi.NULL)
            self.record = partial(
                call.vkCmdPipelineBarrier, command, *stages, 0, 1, self._barrier, *none, *none
            )
            return
        self._barrier = ffi.new("VkMemoryBarrier2 *")
        self._barrier.sType = lib.VK_STRUCTURE_TYPE_MEMORY_BARRIER_2
        self._barrier.srcStageMask, self._barrier.srcAccessMask = source
        self._barrier.dstStageMask, self._barrier.dstAccessMask = target
        info = ffi.new("VkDependencyInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_DEPENDENCY_INFO
        info.memoryBarrierCount = 1
        info.pMemoryBarriers = self._barrier
        self.info = info
        self.record = partial(call.vkCmdPipelineBarrier2, command, info)


def _old_barrier(source: int, target: int) -> C:
    ffi, lib = load()
    barrier = ffi.new("VkMemoryBarrier *")
    barrier.sType = lib.VK_STRUCTURE_TYPE_MEMORY_BARRIER
    barrier.srcAccessMask = source
    barrier.dstAccessMask = target
    return barrier
