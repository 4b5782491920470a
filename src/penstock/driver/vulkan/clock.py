"""The device's clock: timestamps in recordings, and what they are on the host's clock.

What is made here is made for the receipt, which states it apart, as events of kind `clock`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.driver.vulkan.api import C, check, load
from penstock.driver.vulkan.memory import VulkanMemory
from penstock.driver.vulkan.timeline import VulkanTimeline

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver

_TOP, _BOTTOM = 0x1, 0x2000  # stages: when a command may begin, when all before are done
_RESULTS_64, _RESULTS_WAIT = 0x1, 0x2
_ROUNDS = 5  # of finding out how the clocks differ; the quickest counts
ROOM = 512  # timestamps in one recording


class Timestamps:
    """The timestamps of one recording.

    The recording itself ends with copying them to memory that the host reads: to ask the driver for
    them may wait for all that is in flight, as it does with lavapipe.
    """

    def __init__(self, driver: VulkanDriver) -> None:
        ffi, lib = load()
        self._driver = driver
        info = ffi.new("VkQueryPoolCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO
        info.queryType = lib.VK_QUERY_TYPE_TIMESTAMP
        info.queryCount = ROOM
        out = ffi.new("VkQueryPool *")
        check(
            driver.call.vkCreateQueryPool(driver.handle, info, ffi.NULL, out), "vkCreateQueryPool"
        )
        self._pool: C = out[0]
        self.count = 0
        self._memory = VulkanMemory(driver, 8 * ROOM, host=True)
        assert self._memory.address is not None
        pointer = ffi.cast("void *", self._memory.address)
        self._ticks = np.frombuffer(ffi.buffer(pointer, 8 * ROOM), np.uint64)
        driver.notify("clock: memory and a query pool for timestamps", 8 * ROOM)

    def begin(self, command: C) -> None:
        """Forget the timestamps of the last time; recorded before any of this time."""
        self.count = 0
        self._driver.call.vkCmdResetQueryPool(command, self._pool, 0, ROOM)

    def mark(self, command: C, *, end: bool) -> int:
        """Take the time at this place: before a command, or at its end. Its number."""
        stage = _BOTTOM if end else _TOP
        self._driver.call.vkCmdWriteTimestamp(command, stage, self._pool, self.count)
        self.count += 1
        return self.count - 1

    def end(self, command: C) -> None:
        """Copy what was taken; recorded after all of it, and before a barrier for the host."""
        self._driver.call.vkCmdCopyQueryPoolResults(
            command, self._pool, 0, self.count, self._memory.buffer, 0, 8,
            _RESULTS_64 | _RESULTS_WAIT,
        )  # fmt: skip

    def ticks(self) -> list[int]:
        """All times of a recording that is done, as the device counts."""
        return [int(tick) for tick in self._ticks[: self.count]]

    def close(self) -> None:
        ffi, _ = load()
        self._driver.call.vkDestroyQueryPool(self._driver.handle, self._pool, ffi.NULL)
        self._memory.close()


class Clock:
    """Turns the device's ticks into seconds of `time.perf_counter`.

    How the clocks differ is found out with a submission that does nothing but take the time, made
    when the first ticks are turned into seconds: it comes after all that is in flight.
    """

    def __init__(self, driver: VulkanDriver, period: float) -> None:
        self._driver = driver
        self._period = period * 1e-9  # seconds of a tick
        self._offset: float | None = None

    @property
    def known(self) -> bool:
        """Whether it is known how the clocks differ."""
        return self._offset is not None

    def seconds(self, ticks: Sequence[int]) -> list[float]:
        if self._offset is None:
            self._offset = self._compare()
        return [tick * self._period + self._offset for tick in ticks]

    def _compare(self) -> float:
        """What to add to the device's seconds."""
        self._driver.notify(f"clock: {_ROUNDS} submissions to compare it with the host's", 0)
        queue = self._driver.unlisted_queue(0)
        timeline = VulkanTimeline(self._driver)
        recording = queue.unlisted_recording()
        found = []
        for value in range(1, _ROUNDS + 1):
            recording.begin()
            recording.mark(end=False)
            before = time.perf_counter()
            queue.submit(recording, [], timeline, value)
            self._driver.wait([(timeline, value)], 10**10)
            after = time.perf_counter()
            (tick,) = recording.ticks()
            found.append((after - before, (before + after) / 2 - tick * self._period))
        queue.close()
        timeline.close()
        return min(found)[1]
