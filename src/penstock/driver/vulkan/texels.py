"""Texel buffers: formats by Vulkan's names, and views of memory in one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.driver.vulkan.api import C, load
from penstock.driver.vulkan.handles import Handle, make
from penstock.shader.texels import FORMATS, TexelFormat

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver
    from penstock.driver.vulkan.memory import VulkanMemory

_UNIFORM_TEXEL, _STORAGE_TEXEL = 0x8, 0x10  # bits of VkFormatFeatureFlags
_PACKED = {
    "r11f_g11f_b10f": "B10G11R11_UFLOAT_PACK32",
    "rgb10_a2": "A2B10G10R10_UNORM_PACK32",
    "rgb10_a2ui": "A2B10G10R10_UINT_PACK32",
}
_NUMBERS = {"f": "SFLOAT", "ui": "UINT", "i": "SINT", "_snorm": "SNORM"}


class VulkanTexelView:
    """Bytes of memory as texels of a format. Lives until `close`, or until the memory is freed."""

    __slots__ = ("_memory", "_view", "handle")

    def __init__(
        self, driver: VulkanDriver, memory: VulkanMemory, offset: int, nbytes: int, texel: str
    ) -> None:
        ffi, lib = load()
        info = ffi.new("VkBufferViewCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO
        info.buffer = memory.buffer
        info.format = vulkan_format(FORMATS[texel])
        info.offset = offset
        info.range = nbytes
        self._memory = memory
        self._view = Handle(driver, "BufferView")
        memory.views[self._view] = (
            None  # before it is made: whatever comes, it goes with its memory
        )
        make(self._view, info)
        self.handle = int(ffi.cast("uintptr_t", self._view.made))

    def close(self) -> None:
        self._view.close()
        self._memory.views.pop(self._view, None)


def vulkan_format(texel: TexelFormat) -> int:
    """The `VkFormat` of a texel format."""
    _, lib = load()
    name = _PACKED.get(texel.name)
    if name is None:
        bits = 8 * texel.dtype.itemsize
        numbers = next((n for end, n in _NUMBERS.items() if texel.name.endswith(end)), "UNORM")
        name = "".join(f"{letter}{bits}" for letter in "RGBA"[: texel.count]) + f"_{numbers}"
    return int(getattr(lib, f"VK_FORMAT_{name}"))


def supported_formats(physical: C) -> frozenset[str]:
    """The formats that a device supports.

    All memory may be bound as either kind of texel buffer, and Vulkan makes no view of it in a
    format that is supported for only one of them.
    """
    ffi, lib = load()
    both = _UNIFORM_TEXEL | _STORAGE_TEXEL
    found = set()
    for texel in FORMATS.values():
        properties = ffi.new("VkFormatProperties *")
        lib.vkGetPhysicalDeviceFormatProperties(physical, vulkan_format(texel), properties)
        if properties.bufferFeatures & both == both:
            found.add(texel.name)
    return frozenset(found)
