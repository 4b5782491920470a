"""Vulkan objects that are destroyed exactly once, even if their creation is interrupted.

A signal handler may raise right after any foreign call. So an object is registered before the
driver creates it, and objects that are left when the device closes are destroyed then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.driver.vulkan.api import C, check, load

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver


class Handle:
    """One object: the place where the driver stores its handle, and how to destroy it."""

    __slots__ = ("_destroyed", "driver", "out", "what")

    def __init__(self, driver: VulkanDriver, what: str) -> None:
        ffi, _ = load()
        self.driver = driver
        self._destroyed: list[None] = []
        self.what = what
        self.out = ffi.new(f"Vk{what} *")
        driver.handles[self] = None

    @property
    def made(self) -> C:
        """The handle; null if the object was not created."""
        return self.out[0]

    def close(self) -> None:
        """Destroy the object, if it was created and not yet destroyed. No work may use it."""
        ffi, _ = load()
        driver = self.driver
        if self.out[0] and not self._destroyed:
            memory = self.what == "DeviceMemory"
            destroy = getattr(driver.call, "vkFreeMemory" if memory else f"vkDestroy{self.what}")
            # One interpreter step: the call is made, and that is noted.
            arguments = ((driver.handle,), (self.out[0],), (ffi.NULL,))
            self._destroyed.extend(map(destroy, *arguments))
        driver.handles.pop(self, None)


def create(driver: VulkanDriver, what: str, info: C) -> Handle:
    """Create an object: `create(driver, "Semaphore", info)` calls `vkCreateSemaphore`."""
    handle = Handle(driver, what)
    make(handle, info)
    return handle


def make(handle: Handle, info: C) -> None:
    """Have the driver create the object of a handle."""
    ffi, _ = load()
    driver, what = handle.driver, handle.what
    call = "vkAllocateMemory" if what == "DeviceMemory" else f"vkCreate{what}"
    check(getattr(driver.call, call)(driver.handle, info, ffi.NULL, handle.out), call)
