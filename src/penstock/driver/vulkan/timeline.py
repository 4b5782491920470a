"""Timeline semaphores, the only synchronization object that this driver uses."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import accelerator
from penstock.driver.vulkan.api import C, check, load, native_object
from penstock.driver.vulkan.handles import Handle, create

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver

SPENT = 8  # semaphores of closed timelines that are not destroyed yet
_MOMENT = 1e-4  # seconds to poll before sleeping: about the cost of sleeping and waking
_let_others_run = getattr(os, "sched_yield", partial(time.sleep, 0))


@accelerator.share
class VulkanTimeline:
    """A timeline semaphore that starts at 0. The code that made it closes it."""

    __slots__ = (
        "_driver", "_handle", "_results", "_signalling", "_value", "device", "get", "issued",
        "native", "semaphore",
    )  # fmt: skip

    def __init__(self, driver: VulkanDriver) -> None:
        ffi, lib = load()
        kind = ffi.new("VkSemaphoreTypeCreateInfo *")
        kind.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO
        kind.semaphoreType = lib.VK_SEMAPHORE_TYPE_TIMELINE
        info = ffi.new("VkSemaphoreCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO
        info.pNext = kind
        self._handle = create(driver, "Semaphore", info)
        self.semaphore = self._handle.made
        self.issued = 0
        self._driver = driver
        self.device = driver.handle
        self.get = driver.call.vkGetSemaphoreCounterValue
        self.native: Any = None
        if accelerator.is_native():
            self.native = native_object(
                accelerator.native.Timeline,
                device=self.device,
                semaphore=self.semaphore,
                get=self.get,
                wait=driver.call.vkWaitSemaphores,
            )
        self._value = ffi.new("uint64_t *")
        self._signalling = 0  # the last value that the host signalled
        self._results: list[int] = []  # of `vkSignalSemaphore` for that value, if called

    def value(self) -> int:
        """The value reached so far."""
        result = self.get(self.device, self.semaphore, self._value)
        if result:
            check(result, "vkGetSemaphoreCounterValue")
        return int(self._value[0])

    def signal(self, value: int) -> None:
        """Raise it from the host. An interrupted call may be repeated."""
        ffi, lib = load()
        if self._signalling != value:
            self._results.clear()
            self._signalling = value
        if not self._results:
            info = ffi.new("VkSemaphoreSignalInfo *")
            info.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO
            info.semaphore = self.semaphore
            info.value = value
            # One interpreter step; see `penstock.driver.vulkan.commands`.
            self._results.extend(map(self._driver.call.vkSignalSemaphore, (self.device,), (info,)))
        if self._results[0]:
            check(self._results.pop(), "vkSignalSemaphore")
        self.issued = value

    def close(self) -> None:
        """Destroy the semaphore, or have it destroyed later. All work that uses it is complete."""
        if self.issued:
            self._driver.spent.add(self._handle)
        else:
            self._handle.close()


class SpentSemaphores:
    """The last few semaphores of closed timelines, which are destroyed later than the others.

    The driver may still hold what complete work used. Where Mesa executes submissions in a thread
    of its own, that thread signals the end of a submission, and only then lets go of the semaphores
    that the submission waited for. Destroying one of them in between crashed the process. Once the
    thread has executed the work of streams that were closed later, it has let go of them.
    """

    def __init__(self) -> None:
        self._kept: deque[Handle] = deque()  # oldest first

    def add(self, semaphore: Handle) -> None:
        """Keep one, and destroy the oldest if there are many.

        Those left are destroyed with the device, as everything in `VulkanDriver.handles`.
        """
        self._kept.append(semaphore)
        if len(self._kept) > SPENT:
            self._kept.popleft().close()


class WaitInfo:
    """Reusable arguments of `vkWaitSemaphores`. Used by one thread at a time."""

    def __init__(self) -> None:
        ffi, lib = load()
        self._info = ffi.new("VkSemaphoreWaitInfo *")
        self._info.sType = lib.VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO
        self._room = 0
        self._reached = ffi.new("uint64_t *")

    def comes_soon(self, timeline: VulkanTimeline, value: int) -> bool:
        """Poll for the value for a moment, which is faster than sleeping and being woken.

        Yields the core between polls, because the driver's own thread may need it.
        """
        get, device, semaphore, reached = (
            timeline.get, timeline.device, timeline.semaphore, self._reached,
        )  # fmt: skip
        until = time.perf_counter() + _MOMENT
        while True:
            result = get(device, semaphore, reached)
            if result:
                check(result, "vkGetSemaphoreCounterValue")
            if reached[0] >= value:
                return True
            if time.perf_counter() >= until:
                return False
            _let_others_run()

    def of(self, points: Sequence[tuple[VulkanTimeline, int]]) -> C:
        if len(points) > self._room:
            ffi, _ = load()
            self._room = len(points)
            self._semaphores = ffi.new("VkSemaphore[]", self._room)
            self._values = ffi.new("uint64_t[]", self._room)
            self._info.pSemaphores = self._semaphores
            self._info.pValues = self._values
        for slot, (timeline, value) in enumerate(points):
            self._semaphores[slot] = timeline.semaphore
            self._values[slot] = value
        self._info.semaphoreCount = len(points)
        return self._info
