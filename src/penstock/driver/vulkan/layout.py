"""How programs take their buffers and push constants: shared by all that take them alike.

What is bound for one program stays bound for the next one with the same layout, so a recording that
goes from one to the other binds the pipeline alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.driver.protocol import PLACE
from penstock.driver.vulkan.api import C, load
from penstock.driver.vulkan.handles import create
from penstock.shader.interface import Interface

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver

COMPUTE = 0x20  # the stage
#: By kind of binding: the VkDescriptorType.
_DESCRIPTORS = {"uniform_texel": 4, "storage_texel": 5, "uniform": 6, "storage": 7}
TEXELS = (4, 5)  #: of these, the ones that are views of texels
#: What programs with the same layout agree in: binding and VkDescriptorType of each slot; bytes of
#: push constants; whether bindings are recorded directly, instead of kept in descriptor sets.
Key = tuple[tuple[tuple[int, int], ...], int, bool]


def layout_of(driver: VulkanDriver, interface: Interface) -> Layout:
    """The layout of programs with this interface. It stays until the device closes."""
    slots = tuple([(each.binding, _DESCRIPTORS[each.kind]) for each in interface.bindings])
    key = (slots, interface.push_size, 0 < len(slots) <= driver.push_descriptors)
    found = driver.layouts.get(key)
    if found is None:
        found = driver.layouts.setdefault(key, Layout(driver, key))
    return found


class Layout:
    """A pipeline layout, that of its descriptor set, and the template that pushes descriptors."""

    def __init__(self, driver: VulkanDriver, key: Key) -> None:
        ffi, _ = load()
        self.slots, self._push_size, self.pushes = key
        self._driver = driver
        self.set: C = self._make_set()
        self.pipeline: C = self._make_pipeline()
        self.template: C = self._make_template() if self.pushes else ffi.NULL

    def _make_set(self) -> C:
        ffi, lib = load()
        bindings = ffi.new("VkDescriptorSetLayoutBinding[]", max(1, len(self.slots)))
        for each, (binding, kind) in zip(bindings, self.slots, strict=False):
            each.binding = binding
            each.descriptorType = kind
            each.descriptorCount = 1
            each.stageFlags = COMPUTE
        info = ffi.new("VkDescriptorSetLayoutCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO
        info.bindingCount = len(self.slots)
        info.pBindings = bindings
        if self.pushes:
            info.flags = lib.VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR
        return create(self._driver, "DescriptorSetLayout", info).made

    def _make_pipeline(self) -> C:
        ffi, lib = load()
        info = ffi.new("VkPipelineLayoutCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO
        sets = ffi.new("VkDescriptorSetLayout *", self.set)
        info.setLayoutCount = 1
        info.pSetLayouts = sets
        push = ffi.new("VkPushConstantRange *")
        push.stageFlags = COMPUTE
        push.size = self._push_size
        info.pushConstantRangeCount = 1 if self._push_size else 0
        info.pPushConstantRanges = push
        return create(self._driver, "PipelineLayout", info).made

    def _make_template(self) -> C:
        ffi, lib = load()
        entries = ffi.new("VkDescriptorUpdateTemplateEntry[]", len(self.slots))
        for slot, (binding, kind) in enumerate(self.slots):
            entries[slot].dstBinding = binding
            entries[slot].descriptorCount = 1
            entries[slot].descriptorType = kind
            entries[slot].offset = PLACE.size * slot
            entries[slot].stride = PLACE.size
        info = ffi.new("VkDescriptorUpdateTemplateCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_DESCRIPTOR_UPDATE_TEMPLATE_CREATE_INFO
        info.descriptorUpdateEntryCount = len(self.slots)
        info.pDescriptorUpdateEntries = entries
        info.templateType = lib.VK_DESCRIPTOR_UPDATE_TEMPLATE_TYPE_PUSH_DESCRIPTORS_KHR
        info.pipelineBindPoint = lib.VK_PIPELINE_BIND_POINT_COMPUTE
        info.pipelineLayout = self.pipeline
        return create(self._driver, "DescriptorUpdateTemplate", info).made
