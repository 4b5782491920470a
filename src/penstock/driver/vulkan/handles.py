"""Vulkan objects, each destroyed once: a call that makes or destroys one may be interrupted.

An exception may come right after any foreign call, from a signal handler. So an object's place is
written down before the driver is asked to make it, and what is left when the device closes is
destroyed then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.driver.vulkan.api import C, check, load

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver


class Handle:
    """One object: where the driver puts its handle, and what destroys it."""

    __slots__ = ("_destroyed", "_driver", "out", "what")

    def __init__(self, driver: VulkanDriver, what: str) -> None:
        ffi, _ = load()
        self._driver = driver
        self._destroyed: list[None] = []
        self.what = what
        self.out = ffi.new(f"Vk{what} *")
        driver.handles[self] = None

    @property
    def made(self) -> C:
        """The handle; null if the object was not made."""
        return self.out[0]

    def close(self) -> None:
        """Destroy the object, if it was made and is still there. Nothing may use it."""
        ffi, _ = load()
        driver = self._driver
        if self.out[0] and not self._destroyed:
            memory = self.what == "DeviceMemory"
            destroy = getattr(driver.call, "vkFreeMemory" if memory else f"vkDestroy{self.what}")
            # One step to Python: called, and noted that it was.
            arguments = ((driver.handle,), (self.out[0],), (ffi.NULL,))
            self._destroyed.extend(map(destroy, *arguments))
        driver.handles.pop(self, None)


def create(driver: VulkanDriver, what: str, info: C) -> Handle:
    """Make an object: `create(driver, "Semaphore", info)` calls `vkCreateSemaphore`."""
    ffi, _ = load()
    handle = Handle(driver, what)
    call = "vkAllocateMemory" if what == "DeviceMemory" else f"vkCreate{what}"
    check(getattr(driver.call, call)(driver.handle, info, ffi.NULL, handle.out), call)
    return handle
