"""Checks that a device has the features and limits that a kernel needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.driver.protocol import DeviceInfo
from penstock.errors import InvalidSpirv, Unsupported
from penstock.shader.interface import Binding, Interface

#: Names of a call's own arguments, which no kernel argument may have.
_RESERVED = frozenset({"stream", "threads", "groups"})

#: SPIR-V capabilities that need a device feature, by the feature's Vulkan name.
_FEATURES = {
    "Float16": "shaderFloat16",
    "Float64": "shaderFloat64",
    "Int8": "shaderInt8",
    "Int16": "shaderInt16",
    "Int64": "shaderInt64",
    "Int64Atomics": "shaderBufferInt64Atomics",
    "StorageBuffer16BitAccess": "storageBuffer16BitAccess",
    "UniformAndStorageBuffer16BitAccess": "uniformAndStorageBuffer16BitAccess",
    "StoragePushConstant16": "storagePushConstant16",
    "StorageBuffer8BitAccess": "storageBuffer8BitAccess",
    "UniformAndStorageBuffer8BitAccess": "uniformAndStorageBuffer8BitAccess",
    "StoragePushConstant8": "storagePushConstant8",
    "VariablePointersStorageBuffer": "variablePointersStorageBuffer",
    "VariablePointers": "variablePointers",
    "VulkanMemoryModel": "vulkanMemoryModel",
    "VulkanMemoryModelDeviceScope": "vulkanMemoryModelDeviceScope",
    **dict.fromkeys(
        (
            "DotProduct",
            "DotProductInputAll",
            "DotProductInput4x8Bit",
            "DotProductInput4x8BitPacked",
        ),
        "shaderIntegerDotProduct",
    ),
    "SignedZeroInfNanPreserveFloat16": "shaderSignedZeroInfNanPreserveFloat16",
    "SignedZeroInfNanPreserveFloat32": "shaderSignedZeroInfNanPreserveFloat32",
    "SignedZeroInfNanPreserveFloat64": "shaderSignedZeroInfNanPreserveFloat64",
    "GroupNonUniform": "subgroupBasic",
    "GroupNonUniformVote": "subgroupVote",
    "GroupNonUniformArithmetic": "subgroupArithmetic",
    "GroupNonUniformBallot": "subgroupBallot",
    "GroupNonUniformShuffle": "subgroupShuffle",
    "GroupNonUniformShuffleRelative": "subgroupShuffleRelative",
    "GroupNonUniformClustered": "subgroupClustered",
    "GroupNonUniformQuad": "subgroupQuad",
}


def check_limits(name: str, interface: Interface, info: DeviceInfo) -> None:
    """Raise unless the device has what the kernel needs and its argument names are usable."""
    missing = [
        f"{capability} ({_FEATURES[capability]})" if capability in _FEATURES else capability
        for capability in sorted(interface.capabilities)
        if _FEATURES.get(capability) not in info.features
    ]
    if missing:
        raise Unsupported(f"{name} needs features that {info.name} lacks: {', '.join(missing)}")
    kinds = Counter(binding.kind for binding in interface.bindings)
    for count, limit, what in (
        (kinds["storage"] + kinds["uniform"], "bindings", "buffers"),
        (kinds["uniform"], "uniform_bindings", "uniform blocks"),
        (kinds["uniform_texel"], "texel_bindings", "texel buffers that it only reads"),
        (kinds["storage_texel"], "storage_texel_bindings", "texel buffers that are images"),
        (interface.shared_size, "shared_memory", "bytes of shared memory"),
    ):
        if count and count > info.limits[limit]:  # type: ignore[operator]
            raise Unsupported(f"{name} uses {count} {what}; {info.name} has {info.limits[limit]}")
    for binding in interface.bindings:
        if binding.is_texel:
            _check_format(name, binding, info)
            continue
        limit = "uniform_range" if binding.kind == "uniform" else "binding_range"
        if binding.min_size > info.limits[limit]:  # type: ignore[operator]
            raise Unsupported(
                f"{name}: {binding.name!r} takes {binding.min_size:,} bytes or more; "
                f"{info.name} binds at most {info.limits[limit]:,} of that kind"
            )
    arrays = [b.name for b in interface.bindings if b.purpose == "array"]
    names = arrays + [m.name for m in interface.push]
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise InvalidSpirv(
            f"{name} has two arguments named {twice[0]!r}; give one of them another name"
        )
    clash = _RESERVED & set(names)
    if clash:
        raise InvalidSpirv(
            f"{name} has an argument named {', '.join(sorted(clash))!r}, which a call uses "
            "for itself; give it another name"
        )
    other = [b.name for b in interface.bindings if b.set]
    if other:
        raise Unsupported(f"{name}: {other[0]!r} is in another descriptor set than 0")


def _check_format(name: str, binding: Binding, info: DeviceInfo) -> None:
    """Raise unless the device supports the format of a texel buffer."""
    if binding.format and binding.format not in info.texel_formats:
        raise Unsupported(
            f"{name}: {binding.name!r} has texels of {binding.format}; {info.name} supports "
            f"{', '.join(sorted(info.texel_formats)) or 'none'}"
        )


def local_size(
    name: str, interface: Interface, info: DeviceInfo, chosen: Mapping[int, bytes]
) -> tuple[int, int, int]:
    """The workgroup size, with the specialization constants applied."""
    sizes = [
        int.from_bytes(chosen[number], "little")
        if number is not None and number in chosen
        else size
        for size, number in zip(interface.local_size, interface.local_size_ids, strict=True)
    ]
    limits = info.limits
    most: Any = limits["group_size"]
    if any(n > m or n < 1 for n, m in zip(sizes, most, strict=True)) or (
        sizes[0] * sizes[1] * sizes[2] > limits["group_invocations"]  # type: ignore[operator]
    ):
        raise Unsupported(
            f"{name} has groups of {tuple(sizes)}; {info.name} allows up to "
            f"{most} and {limits['group_invocations']} in all"
        )
    return sizes[0], sizes[1], sizes[2]
