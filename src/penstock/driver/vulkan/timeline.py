"""Timeline semaphores: the one synchronisation object this driver uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.driver.vulkan.api import check, load

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver


class VulkanTimeline:
    """A `VkSemaphore` of timeline type that starts at 0. Owned by whoever made it."""

    __slots__ = ("_driver", "_get", "_value", "semaphore")

    def __init__(self, driver: VulkanDriver) -> None:
        ffi, lib = load()
        kind = ffi.new("VkSemaphoreTypeCreateInfo *")
        kind.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO
        kind.semaphoreType = lib.VK_SEMAPHORE_TYPE_TIMELINE
        info = ffi.new("VkSemaphoreCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO
        info.pNext = kind
        out = ffi.new("VkSemaphore *")
        check(
            driver.call.vkCreateSemaphore(driver.handle, info, ffi.NULL, out), "vkCreateSemaphore"
        )
        self.semaphore = out[0]
        self._driver = driver
        self._get = driver.call.vkGetSemaphoreCounterValue
        self._value = ffi.new("uint64_t *")

    def value(self) -> int:
        """The value reached so far."""
        result = self._get(self._driver.handle, self.semaphore, self._value)
        if result:
            check(result, "vkGetSemaphoreCounterValue")
        return int(self._value[0])

    def close(self) -> None:
        ffi, _ = load()
        self._driver.call.vkDestroySemaphore(self._driver.handle, self.semaphore, ffi.NULL)
