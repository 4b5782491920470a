"""Vulkan's physical devices: which can run Penstock, and what each reports about itself."""

from __future__ import annotations

from penstock.driver.protocol import DeviceInfo
from penstock.driver.vulkan.api import C, Instance, instance, listing, load, text
from penstock.driver.vulkan.memory import MemoryTypes
from penstock.driver.vulkan.texels import supported_formats

_KINDS = {0: "other", 1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}
_COMPUTE_QUEUE = 0x2
_COMPUTE_STAGE = 0x20
_MAX_QUEUES = 4
_VULKAN_1_2, _VULKAN_1_3 = (1 << 22 | minor << 12 for minor in (2, 3))
PUSH_DESCRIPTOR = "VK_KHR_push_descriptor"
HOST_IMPORT = "VK_EXT_external_memory_host"
ROBUSTNESS = "VK_EXT_robustness2"
DOT_PRODUCT = "VK_KHR_shader_integer_dot_product"
CALIBRATED = "VK_EXT_calibrated_timestamps"

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

#: Properties of Vulkan 1.2 that say what a shader may ask for, as features do.
_FLOAT_CONTROLS = tuple(f"shaderSignedZeroInfNanPreserveFloat{width}" for width in (16, 32, 64))


def enumerate_devices(validate: bool = False) -> list[DeviceInfo]:
    """Every Vulkan device that can run Penstock."""
    found = [PhysicalDevice(handle) for handle in instance(validate).physical_devices()]
    usable = [physical for physical in found if physical.usable]
    return [physical.info(index) for index, physical in enumerate(usable)]


class PhysicalDevice:
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
        if HOST_IMPORT in self.extensions:
            self.vulkan12.pNext = self.host_import
        if PUSH_DESCRIPTOR in self.extensions:
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
            can_import=HOST_IMPORT in self.extensions,
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
        if ROBUSTNESS in self.extensions:
            robust.pNext = root.pNext
            root.pNext = robust
        dots = ffi.new("VkPhysicalDeviceShaderIntegerDotProductFeatures *")
        dots.sType = lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES
        if self.version >= _VULKAN_1_3 or DOT_PRODUCT in self.extensions:
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
        features |= {name for name in _FLOAT_CONTROLS if getattr(self.vulkan12, name)}
        return frozenset(features)

    def time_domains(self, instance: Instance) -> list[int]:
        """The clocks that the driver can be asked for, besides timestamps in recordings."""
        if CALIBRATED not in self.extensions:
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
