"""Compute pipelines, and the binding of buffers to them.

If the device supports push descriptors, bindings are recorded directly. Otherwise each distinct
combination of bindings gets a descriptor set, which is kept for reuse, and rewritten only when no
recording that uses it can still be in flight.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock import accelerator
from penstock.driver.protocol import PLACE
from penstock.driver.vulkan.api import C, check, load, native_object
from penstock.driver.vulkan.layout import COMPUTE, TEXELS, layout_of
from penstock.errors import InvalidSpirv
from penstock.shader.interface import Interface

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver

_SETS_PER_POOL = 64
_SETS_KEPT = 1024


class DescriptorSet:
    """A descriptor set, and the number of unfinished recordings that use it."""

    __slots__ = ("handle", "uses")

    def __init__(self, handle: C) -> None:
        self.handle = handle
        self.uses = 0


@accelerator.share
class VulkanProgram:
    """A pipeline, and the descriptor sets that bind its buffers where they cannot be pushed."""

    __slots__ = ("__dict__", "__weakref__", "native")

    def __init__(
        self,
        driver: VulkanDriver,
        code: bytes,
        interface: Interface,
        constants: Mapping[int, bytes],
    ) -> None:
        ffi, _ = load()
        self._driver = driver
        self.interface = interface
        self.slots = len(interface.bindings)
        self.layout = layout_of(driver, interface)
        self.pipeline = ffi.NULL
        self._pools: list[C] = []
        self._free: list[DescriptorSet] = []
        self._stale: list[DescriptorSet] = []
        self._sets: OrderedDict[bytes, DescriptorSet] = OrderedDict()
        try:
            self._make_pipeline(code, constants)
            if self.slots and not self.layout.pushes:
                self._grow()
            self.native = self._native_program()
        except BaseException:
            self.close()
            raise

    def _native_program(self) -> Any:
        """The same for the native step, if it can bind what the program needs; else None."""
        if not accelerator.is_native() or (self.slots and not self.layout.pushes):
            return None
        return native_object(
            accelerator.native.Program,
            pipeline=self.pipeline,
            layout=self.layout.pipeline,
            template=self.layout.template,
            slots=self.slots,
        )

    def descriptor_set(self, bindings: bytes) -> DescriptorSet:
        """A descriptor set with exactly these bindings."""
        found = self._sets.get(bindings)
        if found is not None:
            self._sets.move_to_end(bindings)
            return found
        fresh = self._unused_set()
        self._write(fresh, bindings)
        self._sets[bindings] = fresh
        return fresh

    def drop_sets(self) -> None:
        """Forget all bindings, because a buffer or view that they may refer to is about to go."""
        self._stale += self._sets.values()
        self._sets.clear()

    def close(self) -> None:
        ffi, _ = load()
        call, handle = self._driver.call, self._driver.handle
        for pool in self._pools:
            call.vkDestroyDescriptorPool(handle, pool, ffi.NULL)
        call.vkDestroyPipeline(handle, self.pipeline, ffi.NULL)

    def _make_pipeline(self, code: bytes, constants: Mapping[int, bytes]) -> None:
        ffi, lib = load()
        driver = self._driver
        words = ffi.from_buffer(code)
        module = ffi.new("VkShaderModuleCreateInfo *")
        module.sType = lib.VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO
        module.codeSize = len(code)
        module.pCode = ffi.cast("uint32_t *", words)
        out = ffi.new("VkShaderModule *")
        check(
            driver.call.vkCreateShaderModule(driver.handle, module, ffi.NULL, out),
            "vkCreateShaderModule",
        )
        entry = ffi.new("char[]", self.interface.entry.encode())
        info = ffi.new("VkComputePipelineCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO
        info.layout = self.layout.pipeline
        info.stage.sType = lib.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO
        info.stage.stage = COMPUTE
        info.stage.module = out[0]
        info.stage.pName = entry
        data = ffi.from_buffer(b"".join(constants.values()) or b"\0")
        entries = ffi.new("VkSpecializationMapEntry[]", max(1, len(constants)))
        offset = 0
        for slot, (number, value) in enumerate(constants.items()):
            entries[slot].constantID = number
            entries[slot].offset = offset
            entries[slot].size = len(value)
            offset += len(value)
        special = ffi.new("VkSpecializationInfo *")
        special.mapEntryCount = len(constants)
        special.pMapEntries = entries
        special.dataSize = offset
        special.pData = data
        info.stage.pSpecializationInfo = special
        made = ffi.new("VkPipeline *")
        result = driver.call.vkCreateComputePipelines(
            driver.handle, ffi.NULL, 1, info, ffi.NULL, made
        )
        driver.call.vkDestroyShaderModule(driver.handle, out[0], ffi.NULL)
        if result == -13:
            raise InvalidSpirv("the driver's compiler rejects this kernel (VK_ERROR_UNKNOWN)")
        check(result, "vkCreateComputePipelines")
        self.pipeline = made[0]

    def _unused_set(self) -> DescriptorSet:
        if not self._free and self._stale:
            self._free = [s for s in self._stale if s.uses == 0]
            self._stale = [s for s in self._stale if s.uses]
        if not self._free and len(self._sets) >= _SETS_KEPT:
            oldest = [key for key, s in self._sets.items() if s.uses == 0][: _SETS_KEPT // 2]
            self._free = [self._sets.pop(key) for key in oldest]
        if not self._free:
            self._grow()
        return self._free.pop()

    def _grow(self) -> None:
        ffi, lib = load()
        driver = self._driver
        types = [kind for _, kind in self.layout.slots]
        kinds = sorted(set(types))
        sizes = ffi.new("VkDescriptorPoolSize[]", len(kinds))
        for slot, kind in enumerate(kinds):
            sizes[slot].type = kind
            sizes[slot].descriptorCount = _SETS_PER_POOL * types.count(kind)
        info = ffi.new("VkDescriptorPoolCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO
        info.maxSets = _SETS_PER_POOL
        info.poolSizeCount = len(kinds)
        info.pPoolSizes = sizes
        pool = ffi.new("VkDescriptorPool *")
        check(
            driver.call.vkCreateDescriptorPool(driver.handle, info, ffi.NULL, pool),
            "vkCreateDescriptorPool",
        )
        self._pools.append(pool[0])
        driver.notify("descriptor pool", 0)
        request = ffi.new("VkDescriptorSetAllocateInfo *")
        request.sType = lib.VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO
        request.descriptorPool = pool[0]
        request.descriptorSetCount = _SETS_PER_POOL
        layouts = ffi.new("VkDescriptorSetLayout[]", [self.layout.set] * _SETS_PER_POOL)
        request.pSetLayouts = layouts
        out = ffi.new("VkDescriptorSet[]", _SETS_PER_POOL)
        check(
            driver.call.vkAllocateDescriptorSets(driver.handle, request, out),
            "vkAllocateDescriptorSets",
        )
        self._free += [DescriptorSet(out[i]) for i in range(_SETS_PER_POOL)]

    def _write(self, target: DescriptorSet, bindings: bytes) -> None:
        ffi, lib = load()
        content = ffi.from_buffer(bindings)  # kept until the call below has read it
        infos = ffi.cast("VkDescriptorBufferInfo *", content)
        views = ffi.cast("VkBufferView *", content)
        writes = ffi.new("VkWriteDescriptorSet[]", self.slots)
        for slot, (binding, kind) in enumerate(self.layout.slots):
            writes[slot].sType = lib.VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET
            writes[slot].dstSet = target.handle
            writes[slot].dstBinding = binding
            writes[slot].descriptorCount = 1
            writes[slot].descriptorType = kind
            if kind in TEXELS:
                writes[slot].pTexelBufferView = views + PLACE.size // 8 * slot
            else:
                writes[slot].pBufferInfo = infos + slot
        self._driver.call.vkUpdateDescriptorSets(
            self._driver.handle, self.slots, writes, 0, ffi.NULL
        )
