"""The capabilities that a module declares, by the names of what a device must support."""

from __future__ import annotations


def needed(declared: set[int], widths: list[int]) -> frozenset[str]:
    """The names of the capabilities among `declared` that not every Vulkan device has.

    `widths` are those of the floats whose signed zeros, infinities and NaN the kernel preserves.
    """
    numbers = declared - _FREE_CAPABILITIES
    names = {_CAPABILITIES.get(number, f"capability {number}") for number in numbers}
    if _PRESERVE_NAME in names:
        # A device has it for floats of some widths; the execution modes say for which it is used.
        names.remove(_PRESERVE_NAME)
        names |= {f"{_PRESERVE_NAME}Float{width}" for width in widths or [32]}
    return frozenset(names)


_PRESERVE_NAME = "SignedZeroInfNanPreserve"
#: What every Vulkan device has: Matrix, Shader, SampledBuffer, ImageBuffer, ImageQuery, and
#: StorageImageExtendedFormats, as what a device supports is listed by format.
_FREE_CAPABILITIES = frozenset((0, 1, 46, 47, 49, 50))
_CAPABILITIES = {
    9: "Float16",
    10: "Float64",
    11: "Int64",
    12: "Int64Atomics",
    22: "Int16",
    28: "UniformBufferArrayDynamicIndexing",
    30: "StorageBufferArrayDynamicIndexing",
    39: "Int8",
    55: "StorageImageReadWithoutFormat",
    56: "StorageImageWriteWithoutFormat",
    61: "GroupNonUniform",
    62: "GroupNonUniformVote",
    63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot",
    65: "GroupNonUniformShuffle",
    66: "GroupNonUniformShuffleRelative",
    67: "GroupNonUniformClustered",
    68: "GroupNonUniformQuad",
    4423: "SubgroupBallotKHR",
    4428: "WorkgroupMemoryExplicitLayoutKHR",
    4429: "WorkgroupMemoryExplicitLayout8BitAccessKHR",
    4430: "WorkgroupMemoryExplicitLayout16BitAccessKHR",
    4431: "SubgroupVoteKHR",
    4433: "StorageBuffer16BitAccess",
    4434: "UniformAndStorageBuffer16BitAccess",
    4435: "StoragePushConstant16",
    4441: "VariablePointersStorageBuffer",
    4442: "VariablePointers",
    4448: "StorageBuffer8BitAccess",
    4449: "UniformAndStorageBuffer8BitAccess",
    4450: "StoragePushConstant8",
    4464: "DenormPreserve",
    4465: "DenormFlushToZero",
    4466: _PRESERVE_NAME,
    4467: "RoundingModeRTE",
    4468: "RoundingModeRTZ",
    5055: "ShaderClockKHR",
    5116: "BFloat16TypeKHR",
    5117: "BFloat16DotProductKHR",
    5118: "BFloat16CooperativeMatrixKHR",
    5297: "GroupNonUniformPartitionedNV",
    5301: "ShaderNonUniform",
    5302: "RuntimeDescriptorArray",
    5345: "VulkanMemoryModel",
    5346: "VulkanMemoryModelDeviceScope",
    5347: "PhysicalStorageBufferAddresses",
    5357: "CooperativeMatrixNV",
    5612: "AtomicFloat32MinMaxEXT",
    5613: "AtomicFloat64MinMaxEXT",
    5616: "AtomicFloat16MinMaxEXT",
    5629: "ExpectAssumeKHR",
    6016: "DotProductInputAll",
    6017: "DotProductInput4x8Bit",
    6018: "DotProductInput4x8BitPacked",
    6019: "DotProduct",
    6022: "CooperativeMatrixKHR",
    6026: "GroupNonUniformRotateKHR",
    6033: "AtomicFloat32AddEXT",
    6034: "AtomicFloat64AddEXT",
    6095: "AtomicFloat16AddEXT",
}
