"""Finding, describing and opening Vulkan devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from penstock import accelerator
from penstock.driver.holding import Backlog
from penstock.driver.importing import import_noted
from penstock.driver.protocol import DeviceInfo, Notify, Reference
from penstock.driver.vulkan.api import C, Instance, check, instance, listing, load, text
from penstock.driver.vulkan.clock import Clock
from penstock.driver.vulkan.commands import VulkanReplayable
from penstock.driver.vulkan.handles import Handle
from penstock.driver.vulkan.layout import Key, Layout
from penstock.driver.vulkan.memory import MemoryTypes, VulkanMemory
from penstock.driver.vulkan.program import VulkanProgram
from penstock.driver.vulkan.recording import VulkanQueue, new_command_pool
from penstock.driver.vulkan.texels import VulkanTexelView, supported_formats
from penstock.driver.vulkan.timeline import VulkanTimeline, WaitInfo
from penstock.errors import CannotAdopt, NoDevice
from penstock.shader.source import KernelSource, LoadedKernel, load_spirv
from penstock.shader.spirv import Interface

_KINDS = {0: "other", 1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}
_COMPUTE_QUEUE = 0x2
_COMPUTE_STAGE = 0x20
_MAX_QUEUES = 4
_VULKAN_1_2, _VULKAN_1_3 = (1 << 22 | minor << 12 for minor in (2, 3))
_PUSH_DESCRIPTOR = "VK_KHR_push_descriptor"
_HOST_IMPORT = "VK_EXT_external_memory_host"
_ROBUSTNESS = "VK_EXT_robustness2"
_DOT_PRODUCT = "VK_KHR_shader_integer_dot_product"
_CALIBRATED = "VK_EXT_calibrated_timestamps"
_DEVICE_TIME = 0  # the time domain of the device's own timestamps

#: By structure: optional features, enabled where the device supports them.
_FEATURES = {
    "VkPhysicalDeviceFeatures": (
        "robustBufferAccess",
        "shaderFloat64",
        "shaderInt64",
        "shaderInt16",
    ),
    "VkPhysicalDeviceVulkan11Features": (
        "storageBuffer16BitAccess",
        "uniformAndStorageBuffer16BitAccess",
        "storagePushConstant16",
        "variablePointersStorageBuffer",
        "variablePointers",
    ),
    "VkPhysicalDeviceVulkan12Features": (
        "storageBuffer8BitAccess",
        "uniformAndStorageBuffer8BitAccess",
        "storagePushConstant8",
        "shaderBufferInt64Atomics",
        "shaderFloat16",
        "shaderInt8",
        "shaderSubgroupExtendedTypes",
        "scalarBlockLayout",
        "timelineSemaphore",
        "vulkanMemoryModel",
        "vulkanMemoryModelDeviceScope",
    ),
    "VkPhysicalDeviceSynchronization2Features": ("synchronization2",),
    "VkPhysicalDeviceRobustness2FeaturesEXT": ("robustBufferAccess2",),
    "VkPhysicalDeviceShaderIntegerDotProductFeatures": ("shaderIntegerDotProduct",),
}

#: Groups of subgroup operations, in the order of their bits.
_SUBGROUP = (
    "subgroupBasic", "subgroupVote", "subgroupArithmetic", "subgroupBallot", "subgroupShuffle",
    "subgroupShuffleRelative", "subgroupClustered", "subgroupQuad",
)  # fmt: skip

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


def enumerate_devices(validate: bool = False) -> list[DeviceInfo]:
    """Every Vulkan device that can run Penstock."""
    found = [_Physical(handle) for handle in instance(validate).physical_devices()]
    usable = [physical for physical in found if physical.usable]
    return [physical.info(index) for index, physical in enumerate(usable)]


class _Physical:
    """A physical device and what it reports about itself."""

    def __init__(self, handle: C) -> None:
        ffi, lib = load()
        self.handle = handle
        self.host_import = ffi.new("VkPhysicalDeviceExternalMemoryHostPropertiesEXT *")
        self.host_import.sType = (
            lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT
        )
        self.vulkan11 = ffi.new("VkPhysicalDeviceVulkan11Properties *")
        self.vulkan11.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES
        self.vulkan12 = ffi.new("VkPhysicalDeviceVulkan12Properties *")
        self.vulkan12.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES
        self.properties = ffi.new("VkPhysicalDeviceProperties2 *")
        self.properties.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2
        extensions = listing(
            lib.vkEnumerateDeviceExtensionProperties, "VkExtensionProperties", handle, ffi.NULL
        )
        self.extensions = {text(extension.extensionName) for extension in extensions}
        lib.vkGetPhysicalDeviceProperties(handle, ffi.addressof(self.properties.properties))
        self.version = int(self.properties.properties.apiVersion)
        self.usable = self.version >= _VULKAN_1_2
        if not self.usable:
            return
        self.properties.pNext = self.vulkan11
        self.vulkan11.pNext = self.vulkan12
        self.push_descriptor = ffi.new("VkPhysicalDevicePushDescriptorPropertiesKHR *")
        self.push_descriptor.sType = (
            lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PUSH_DESCRIPTOR_PROPERTIES_KHR
        )
        if _HOST_IMPORT in self.extensions:
            self.vulkan12.pNext = self.host_import
        if _PUSH_DESCRIPTOR in self.extensions:
            self.push_descriptor.pNext = self.vulkan12.pNext
            self.vulkan12.pNext = self.push_descriptor
        lib.vkGetPhysicalDeviceProperties2(handle, self.properties)
        memory = ffi.new("VkPhysicalDeviceMemoryProperties *")
        lib.vkGetPhysicalDeviceMemoryProperties(handle, memory)
        self.memory_types = MemoryTypes(memory)
        self.features = self._supported()
        self.family, self.queue_count = self._compute_family()
        self.usable = self.family is not None and "timelineSemaphore" in self.features

    def info(self, index: int) -> DeviceInfo:
        properties = self.properties.properties
        limits = properties.limits
        return DeviceInfo(
            index=index,
            name=text(properties.deviceName),
            kind=_KINDS.get(properties.deviceType, "other"),
            driver="vulkan",
            driver_info=f"{text(self.vulkan12.driverName)} {text(self.vulkan12.driverInfo)}",
            api_version=".".join(
                str(part)
                for part in (self.version >> 22, self.version >> 12 & 0x3FF, self.version & 0xFFF)
            ),
            memory=self.memory_types.main_heap_size,
            uma=self.memory_types.uma,
            can_import=_HOST_IMPORT in self.extensions,
            limits={
                "allocation": int(self.vulkan11.maxMemoryAllocationSize),
                "binding_alignment": int(limits.minStorageBufferOffsetAlignment),
                "binding_range": int(limits.maxStorageBufferRange),
                "bindings": int(limits.maxPerStageDescriptorStorageBuffers),
                "group_count": tuple(int(n) for n in limits.maxComputeWorkGroupCount),
                "group_invocations": int(limits.maxComputeWorkGroupInvocations),
                "group_size": tuple(int(n) for n in limits.maxComputeWorkGroupSize),
                "import_alignment": int(self.host_import.minImportedHostPointerAlignment),
                "push_constants": int(limits.maxPushConstantsSize),
                "shared_memory": int(limits.maxComputeSharedMemorySize),
                "storage_texel_bindings": int(limits.maxPerStageDescriptorStorageImages),
                "subgroup_size": int(self.vulkan11.subgroupSize),
                "texel_alignment": int(limits.minTexelBufferOffsetAlignment),
                "texel_bindings": int(limits.maxPerStageDescriptorSampledImages),
                "texel_elements": int(limits.maxTexelBufferElements),
                "uniform_alignment": max(
                    int(limits.minUniformBufferOffsetAlignment),
                    int(limits.minStorageBufferOffsetAlignment),
                ),
                "uniform_bindings": int(limits.maxPerStageDescriptorUniformBuffers),
                "uniform_range": int(limits.maxUniformBufferRange),
            },
            features=self.features,
            texel_formats=supported_formats(self.handle),
        )

    def feature_chain(self, wanted: frozenset[str] | None) -> tuple[C, list[C]]:
        """A chain of feature structures to query, or (with `wanted`) to enable; and its owners."""
        ffi, lib = load()
        twelve = ffi.new("VkPhysicalDeviceVulkan12Features *")
        twelve.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES
        eleven = ffi.new("VkPhysicalDeviceVulkan11Features *")
        eleven.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES
        eleven.pNext = twelve
        sync = ffi.new("VkPhysicalDeviceSynchronization2Features *")
        sync.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SYNCHRONIZATION_2_FEATURES
        if self.version >= _VULKAN_1_3:
            twelve.pNext = sync
        root = ffi.new("VkPhysicalDeviceFeatures2 *")
        root.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2
        root.pNext = eleven
        robust = ffi.new("VkPhysicalDeviceRobustness2FeaturesEXT *")
        robust.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ROBUSTNESS_2_FEATURES_EXT
        if _ROBUSTNESS in self.extensions:
            robust.pNext = root.pNext
            root.pNext = robust
        dots = ffi.new("VkPhysicalDeviceShaderIntegerDotProductFeatures *")
        dots.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES
        if self.version >= _VULKAN_1_3 or _DOT_PRODUCT in self.extensions:
            dots.pNext = root.pNext
            root.pNext = dots
        parts = [root.features, eleven, twelve, sync, robust, dots]
        if wanted is not None:
            for part, names in zip(parts, _FEATURES.values(), strict=True):
                for name in names:
                    setattr(part, name, name in wanted)
        return root, parts

    def _supported(self) -> frozenset[str]:
        _, lib = load()
        root, parts = self.feature_chain(None)
        lib.vkGetPhysicalDeviceFeatures2(self.handle, root)
        features = {
            name
            for part, names in zip(parts, _FEATURES.values(), strict=True)
            for name in names
            if getattr(part, name)
        }
        if self.vulkan11.subgroupSupportedStages & _COMPUTE_STAGE:
            operations = int(self.vulkan11.subgroupSupportedOperations)
            features |= {name for bit, name in enumerate(_SUBGROUP) if operations >> bit & 1}
        return frozenset(features)

    def time_domains(self, instance: Instance) -> list[int]:
        """The clocks that the driver can be asked for, besides timestamps in recordings."""
        if _CALIBRATED not in self.extensions:
            return []
        ask = instance.function("vkGetPhysicalDeviceCalibrateableTimeDomainsEXT")
        return [int(each) for each in listing(ask, "VkTimeDomainEXT", self.handle)]

    def _compute_family(self) -> tuple[int | None, int]:
        _, lib = load()
        families = listing(
            lib.vkGetPhysicalDeviceQueueFamilyProperties, "VkQueueFamilyProperties", self.handle
        )
        for index, family in enumerate(families):
            if family.queueFlags & _COMPUTE_QUEUE:
                return index, min(int(family.queueCount), _MAX_QUEUES)
        return None, 0


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
        usable = [p for p in map(_Physical, self.instance.physical_devices()) if p.usable]
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
        optional = (_PUSH_DESCRIPTOR, _HOST_IMPORT, _ROBUSTNESS, _DOT_PRODUCT, _CALIBRATED)
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
                f"{self.info.name} cannot import host memory ({_HOST_IMPORT} is missing); use an "
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
        for program in self._programs:
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
