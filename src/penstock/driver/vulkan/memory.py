"""Device memory: a `VkDeviceMemory`, mapped if possible, with one `VkBuffer` that spans it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.driver.vulkan.api import C, check, load
from penstock.driver.vulkan.handles import Handle, create
from penstock.errors import CannotAdopt

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver

_DEVICE_LOCAL, _VISIBLE, _COHERENT, _CACHED = 1, 2, 4, 8
_HOST_ALLOCATION = 0x80
_WHOLE_SIZE = (1 << 64) - 1


class VulkanMemory:
    """Lives until `close`; no work may use it by then."""

    __slots__ = (
        "_buffer",
        "_driver",
        "_memory",
        "address",
        "buffer",
        "cached",
        "coherent",
        "device_memory",
        "handle",
        "imported",
        "nbytes",
        "views",
    )

    def __init__(
        self,
        driver: VulkanDriver,
        nbytes: int,
        *,
        host: bool = False,
        imported: int | None = None,
    ) -> None:
        ffi, lib = load()
        self._driver = driver
        self.nbytes = nbytes
        self.address = imported
        self.imported = imported is not None
        self.views: dict[Handle, None] = {}  # of its bytes as texels; destroyed before the buffer
        self._buffer = _buffer(driver, nbytes, self.imported)
        self._memory: Handle | None = None
        self.buffer = self._buffer.made
        self.handle = int(ffi.cast("uintptr_t", self.buffer))
        try:
            needs = ffi.new("VkMemoryRequirements *")
            driver.call.vkGetBufferMemoryRequirements(driver.handle, self.buffer, needs)
            info = ffi.new("VkMemoryAllocateInfo *")
            info.sType = lib.VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO
            info.allocationSize = nbytes if self.imported else needs.size
            if imported is None:
                index = driver.memory_types.pick(needs.memoryTypeBits, host=host)
            else:
                pages = ffi.new("VkImportMemoryHostPointerInfoEXT *")
                pages.sType = lib.VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT
                pages.handleType = _HOST_ALLOCATION
                pages.pHostPointer = ffi.cast("void *", imported)
                info.pNext = pages
                index = _import_type(driver, imported, needs.memoryTypeBits)
            info.memoryTypeIndex = index
            flags = driver.memory_types.flags[index]
            self.cached = bool(flags & _CACHED)
            self.coherent = bool(flags & _COHERENT)
            self._memory = create(driver, "DeviceMemory", info)
            self.device_memory = memory = self._memory.made
            check(
                driver.call.vkBindBufferMemory(driver.handle, self.buffer, memory, 0),
                "vkBindBufferMemory",
            )
            if imported is None and flags & _VISIBLE:
                pointer = ffi.new("void **")
                check(
                    driver.call.vkMapMemory(driver.handle, memory, 0, needs.size, 0, pointer),
                    "vkMapMemory",
                )
                self.address = int(ffi.cast("uintptr_t", pointer[0]))
        except BaseException:
            self.close()
            raise

    def range(self, lo: int, hi: int) -> C:
        """The bytes lo to hi, widened to the alignment of `vkFlushMappedMemoryRanges`."""
        ffi, lib = load()
        atom = self._driver.atom
        part = ffi.new("VkMappedMemoryRange *")
        part.sType = lib.VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE
        part.memory = self.device_memory
        part.offset = lo // atom * atom
        end = -(-hi // atom) * atom
        part.size = _WHOLE_SIZE if end >= self.nbytes else end - part.offset
        return part

    def close(self) -> None:
        for view in tuple(self.views):
            view.close()
        self.views.clear()
        self._buffer.close()
        if self._memory is not None:
            self._memory.close()


class MemoryTypes:
    """Chooses among the device's memory types."""

    def __init__(self, properties: C) -> None:
        count = properties.memoryTypeCount
        self.flags = [int(properties.memoryTypes[i].propertyFlags) for i in range(count)]
        self._heap = [int(properties.memoryTypes[i].heapIndex) for i in range(count)]
        sizes = {
            heap: int(properties.memoryHeaps[heap].size)
            for heap, flags in zip(self._heap, self.flags, strict=True)
            if flags & _DEVICE_LOCAL
        }
        # A device without heaps (such as a null device) can be listed, but not used.
        self.main_heap = max(sizes, key=lambda heap: sizes[heap], default=-1)
        self.main_heap_size = sizes.get(self.main_heap, 0)
        wanted = _DEVICE_LOCAL | _VISIBLE | _CACHED
        self.uma = any(
            flags & wanted == wanted and heap == self.main_heap
            for flags, heap in zip(self.flags, self._heap, strict=True)
        )

    def pick(self, allowed: int, *, host: bool) -> int:
        """The best type among the `allowed` bits: for fast host reads, or for the device."""

        def rank(index: int) -> tuple[int, ...]:
            flags = self.flags[index]
            visible, cached = bool(flags & _VISIBLE), bool(flags & _CACHED)
            coherent = bool(flags & _COHERENT)
            # Coherent before cached: on non-coherent memory, flushing a host write would also write
            # back stale neighbouring bytes, over what the device wrote there. Every device has a
            # coherent type.
            mapped = visible and coherent
            if host:
                return (mapped, cached, bool(flags & _DEVICE_LOCAL))
            main = self._heap[index] == self.main_heap and bool(flags & _DEVICE_LOCAL)
            return (main, mapped and cached, mapped)

        return max((i for i in range(len(self.flags)) if allowed >> i & 1), key=rank)


def _buffer(driver: VulkanDriver, nbytes: int, imported: bool) -> Handle:
    ffi, lib = load()
    info = ffi.new("VkBufferCreateInfo *")
    info.sType = lib.VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO
    info.size = nbytes
    info.usage = (
        lib.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        | lib.VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT
        | lib.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT
        | lib.VK_BUFFER_USAGE_STORAGE_TEXEL_BUFFER_BIT
        | lib.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
        | lib.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        | lib.VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT
    )
    external = ffi.new("VkExternalMemoryBufferCreateInfo *")
    if imported:
        external.sType = lib.VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO
        external.handleTypes = _HOST_ALLOCATION
        info.pNext = external
    return create(driver, "Buffer", info)


def _import_type(driver: VulkanDriver, address: int, allowed: int) -> int:
    ffi, lib = load()
    properties = ffi.new("VkMemoryHostPointerPropertiesEXT *")
    properties.sType = lib.VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT
    result = driver.call.vkGetMemoryHostPointerPropertiesEXT(
        driver.handle, _HOST_ALLOCATION, ffi.cast("void *", address), properties
    )
    usable = int(properties.memoryTypeBits) & allowed if result == 0 else 0
    if not usable:
        raise CannotAdopt(
            f"the driver refuses to import the host memory at {address:#x} (code {result}); "
            "use an array from dev.host_empty, or dev.array to copy"
        )
    return driver.memory_types.pick(usable, host=True)
