"""An opened Vulkan device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from penstock import accelerator
from penstock.driver.holding import Backlog
from penstock.driver.importing import import_noted
from penstock.driver.protocol import Notify, Reference
from penstock.driver.vulkan.api import C, Instance, check, instance, load
from penstock.driver.vulkan.clock import Clock
from penstock.driver.vulkan.commands import VulkanReplayable
from penstock.driver.vulkan.handles import Handle
from penstock.driver.vulkan.layout import Key, Layout
from penstock.driver.vulkan.memory import VulkanMemory
from penstock.driver.vulkan.physical import (
    CALIBRATED,
    DOT_PRODUCT,
    HOST_IMPORT,
    PUSH_DESCRIPTOR,
    ROBUSTNESS,
    PhysicalDevice,
)
from penstock.driver.vulkan.program import VulkanProgram
from penstock.driver.vulkan.recording import VulkanQueue, new_command_pool
from penstock.driver.vulkan.texels import VulkanTexelView
from penstock.driver.vulkan.timeline import SpentSemaphores, VulkanTimeline, WaitInfo
from penstock.errors import CannotAdopt, NoDevice
from penstock.shader.interface import Interface
from penstock.shader.source import KernelSource, LoadedKernel, load_spirv

_DEVICE_TIME = 0  # the time domain of the device's own timestamps

_DEVICE_FUNCTIONS = [
    "vkGetDeviceQueue",
    "vkDeviceWaitIdle",
    "vkDestroyDevice",
    "vkAllocateMemory",
    "vkFreeMemory",
    "vkMapMemory",
    "vkCreateBuffer",
    "vkDestroyBuffer",
    "vkCreateBufferView",
    "vkDestroyBufferView",
    "vkGetBufferMemoryRequirements",
    "vkBindBufferMemory",
    "vkFlushMappedMemoryRanges",
    "vkInvalidateMappedMemoryRanges",
    "vkCreateSemaphore",
    "vkDestroySemaphore",
    "vkGetSemaphoreCounterValue",
    "vkWaitSemaphores",
    "vkSignalSemaphore",
    "vkCreateShaderModule",
    "vkDestroyShaderModule",
    "vkCreateDescriptorSetLayout",
    "vkDestroyDescriptorSetLayout",
    "vkCreatePipelineLayout",
    "vkDestroyPipelineLayout",
    "vkCreateComputePipelines",
    "vkDestroyPipeline",
    "vkCreateDescriptorUpdateTemplate",
    "vkDestroyDescriptorUpdateTemplate",
    "vkCreateDescriptorPool",
    "vkDestroyDescriptorPool",
    "vkAllocateDescriptorSets",
    "vkUpdateDescriptorSets",
    "vkCreateCommandPool",
    "vkDestroyCommandPool",
    "vkAllocateCommandBuffers",
    "vkFreeCommandBuffers",
    "vkResetCommandBuffer",
    "vkCreateQueryPool",
    "vkDestroyQueryPool",
    "vkCmdCopyQueryPoolResults",
    "vkCmdResetQueryPool",
    "vkCmdWriteTimestamp",
    "vkBeginCommandBuffer",
    "vkEndCommandBuffer",
    "vkQueueSubmit",
    "vkCmdPipelineBarrier",
    "vkCmdPipelineBarrier2",
    "vkCmdBindPipeline",
    "vkCmdBindDescriptorSets",
    "vkCmdPushConstants",
    "vkCmdDispatch",
    "vkCmdDispatchIndirect",
    "vkCmdExecuteCommands",
    "vkCmdCopyBuffer",
    "vkCmdFillBuffer",
    "vkCmdPushDescriptorSetWithTemplateKHR",
    "vkGetCalibratedTimestampsEXT",
    "vkGetMemoryHostPointerPropertiesEXT",
]


@accelerator.share
class VulkanDriver:
    """An opened Vulkan device. Owns the `VkDevice`; everything made from it is closed before it."""

    __slots__ = ("__dict__", "__weakref__", "backlog", "generation")

    inline = False
    copies = False
    language = "spirv"

    def __init__(self, index: int, notify: Notify, *, validate: bool = False) -> None:
        ffi, lib = load()
        self.notify = notify
        self.instance: Instance = instance(validate)
        self.checks_accesses = self.instance.validates
        usable = [p for p in map(PhysicalDevice, self.instance.physical_devices()) if p.usable]
        if not 0 <= index < len(usable):
            raise NoDevice(f"no Vulkan device number {index}; there are {len(usable)}")
        physical = usable[index]
        self.info = physical.info(index)
        self.memory_types = physical.memory_types
        self.family = physical.family
        self.queue_count = physical.queue_count
        self.atom = int(physical.properties.properties.limits.nonCoherentAtomSize)
        self.push_descriptors = int(physical.push_descriptor.maxPushDescriptors)
        self._programs: set[VulkanProgram] = set()
        self.layouts: dict[Key, Layout] = {}  #: of all programs so far; see `layout_of`
        self._spare_waits: list[WaitInfo] = []
        self.spent = SpentSemaphores()
        self.backlog = Backlog()
        self.handles: dict[Handle, None] = {}  # everything made from it, oldest first
        self._replayable_pool: Handle | None = None
        period = float(physical.properties.properties.limits.timestampPeriod)
        self.has_clock = bool(physical.properties.properties.limits.timestampComputeAndGraphics)
        self.clock = Clock(self, period)
        self.generation = 0  # raised when something is freed: commands recorded before are stale
        self.calibrated = self.has_clock and _DEVICE_TIME in physical.time_domains(self.instance)
        self.clock_method = (
            "calibrated timestamps" if self.calibrated else "bounded by submission and completion"
        )
        optional = (PUSH_DESCRIPTOR, HOST_IMPORT, ROBUSTNESS, DOT_PRODUCT, CALIBRATED)
        wanted = [extension for extension in optional if extension in physical.extensions]
        names = [ffi.new("char[]", name.encode()) for name in wanted]
        name_array = ffi.new("char *[]", names or [ffi.NULL])
        priorities = ffi.new("float[]", [1.0] * self.queue_count)
        queues = ffi.new("VkDeviceQueueCreateInfo *")
        queues.sType = lib.VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO
        queues.queueFamilyIndex = self.family
        queues.queueCount = self.queue_count
        queues.pQueuePriorities = priorities
        features, parts = physical.feature_chain(physical.features)
        create = ffi.new("VkDeviceCreateInfo *")
        create.sType = lib.VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO
        create.pNext = features
        create.queueCreateInfoCount = 1
        create.pQueueCreateInfos = queues
        create.enabledExtensionCount = len(wanted)
        create.ppEnabledExtensionNames = name_array
        out = ffi.new("VkDevice *")
        check(lib.vkCreateDevice(physical.handle, create, ffi.NULL, out), "vkCreateDevice")
        del parts
        self.handle = out[0]
        self.call = self._functions()

    def allocate(self, nbytes: int, *, host: bool) -> VulkanMemory:
        memory = VulkanMemory(self, nbytes, host=host)
        self.notify("memory", nbytes)
        return memory

    def import_host(self, address: int, nbytes: int) -> VulkanMemory:
        if not self.info.can_import:
            raise CannotAdopt(
                f"{self.info.name} cannot import host memory ({HOST_IMPORT} is missing); use an "
                "array from dev.host_empty, or dev.array to copy"
            )
        return import_noted(partial(VulkanMemory, self, imported=address), nbytes, self.notify)

    def free(self, memory: VulkanMemory) -> None:
        self._forget_bindings()
        memory.close()

    def texel_view(
        self, memory: VulkanMemory, offset: int, nbytes: int, texel: str
    ) -> VulkanTexelView:
        view = VulkanTexelView(self, memory, offset, nbytes, texel)
        self.notify(f"view of texels ({texel})", 0)
        return view

    def drop_view(self, view: VulkanTexelView) -> None:
        self._forget_bindings()
        view.close()

    def _forget_bindings(self) -> None:
        """Note that a handle is about to become invalid, and may come again for another object."""
        self.generation += 1
        for program in self._programs.copy():  # another thread may add one meanwhile: see `program`
            program.drop_sets()

    def flush(self, memory: VulkanMemory, lo: int, hi: int) -> None:
        result = self.call.vkFlushMappedMemoryRanges(self.handle, 1, memory.range(lo, hi))
        check(result, "vkFlushMappedMemoryRanges")

    def invalidate(self, memory: VulkanMemory, lo: int, hi: int) -> None:
        result = self.call.vkInvalidateMappedMemoryRanges(self.handle, 1, memory.range(lo, hi))
        check(result, "vkInvalidateMappedMemoryRanges")

    def load(self, source: KernelSource) -> LoadedKernel:
        return load_spirv(source, self.info.limits)

    def program(
        self,
        code: bytes,
        interface: Interface,
        constants: Mapping[int, bytes],
        reference: Reference | None,
    ) -> VulkanProgram:
        # Without the device's lock. The layouts, the handles and the set of programs each change in
        # one step of the interpreter, and the threads that go through them copy them first.
        made = VulkanProgram(self, code, interface, constants)
        self._programs.add(made)
        return made

    def forget(self, program: VulkanProgram) -> None:
        self.generation += 1
        self._programs.discard(program)
        program.close()

    def queue(self, index: int) -> VulkanQueue:
        self.notify("queue", 0)
        return self.unlisted_queue(index)

    def unlisted_queue(self, index: int) -> VulkanQueue:
        """A queue that is not reported to traces."""
        ffi, _ = load()
        out = ffi.new("VkQueue *")
        self.call.vkGetDeviceQueue(self.handle, self.family, index % self.queue_count, out)
        return VulkanQueue(self, out[0])

    @property
    def knows_time(self) -> bool:
        return self.clock.known

    @property
    def clock_error(self) -> float | None:
        return self.clock.alignment.error

    def learn_time(self) -> tuple[VulkanTimeline, int] | None:
        return self.clock.learn()

    def seconds(self, ticks: Sequence[int]) -> list[float]:
        return self.clock.alignment.seconds(ticks)

    def replayable(self, *, timed: bool = False) -> VulkanReplayable:
        self.notify("clock: a graph with timestamps" if timed else "replayable", 0)
        return VulkanReplayable(self, timed=timed)

    def replayable_pool(self) -> C:
        """The command pool of replayable command buffers, made on first use."""
        if self._replayable_pool is None:
            self._replayable_pool = new_command_pool(self)
        return self._replayable_pool.made

    def timeline(self) -> VulkanTimeline:
        self.notify("timeline", 0)
        return VulkanTimeline(self)

    def wait(self, points: Sequence[tuple[VulkanTimeline, int]], timeout_ns: int) -> bool:
        if self.backlog.queues:
            self.backlog.hand_over()  # retry submissions that failed for lack of memory
        # Structures are reused. Several threads may wait at once, so each takes its own.
        waiting = self._spare_waits.pop() if self._spare_waits else WaitInfo()
        if timeout_ns and len(points) == 1 and waiting.comes_soon(*points[0]):
            self._spare_waits.append(waiting)
            return True
        result = self.call.vkWaitSemaphores(self.handle, waiting.of(points), timeout_ns)
        self._spare_waits.append(waiting)
        if result == 0:
            return True
        check(result, "vkWaitSemaphores")
        self.backlog.refuse_if_stuck(points)
        return False

    def signal(self, timeline: VulkanTimeline, value: int) -> None:
        timeline.signal(value)
        if self.backlog.queues:
            self.backlog.hand_over()

    def settle(self) -> None:
        self.backlog.clear()
        self.call.vkDeviceWaitIdle(self.handle)  # returns at once if it is lost

    def close(self) -> None:
        ffi, _ = load()
        self.clock.close()
        for program in list(self._programs):
            self.forget(program)
        for handle in reversed(list(self.handles)):
            handle.close()
        self.call.vkDestroyDevice(self.handle, ffi.NULL)

    @property
    def messages(self) -> list[str]:
        """The validation layer's messages, if it is enabled."""
        return self.instance.messages

    def _functions(self) -> Any:
        """Every device-level function, looked up once."""
        ffi, lib = load()
        pointers = {
            name: lib.vkGetDeviceProcAddr(self.handle, name.encode()) for name in _DEVICE_FUNCTIONS
        }
        if "synchronization2" not in self.info.features:
            pointers["vkCmdPipelineBarrier2"] = ffi.NULL
        return SimpleNamespace(
            **{
                name: ffi.cast(f"PFN_{name}", pointer) if pointer else None
                for name, pointer in pointers.items()
            }
        )
