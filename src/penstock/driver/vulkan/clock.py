"""The device's clock: timestamps in recordings, and what they are on the host's clock.

What is made here is made for the receipt, which states it apart, as events of kind `clock`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np

from penstock.driver.vulkan.api import C, load
from penstock.driver.vulkan.handles import create
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
        self._handle = create(driver, "QueryPool", info)
        self._pool: C = self._handle.made
        self.count = 0
        self._copied: list[None] = []  # whether the recording has the copy of the times in it
        self._memory = VulkanMemory(driver, 8 * ROOM, host=True)
        assert self._memory.address is not None
        pointer = ffi.cast("void *", self._memory.address)
        self._ticks = np.frombuffer(ffi.buffer(pointer, 8 * ROOM), np.uint64)
        driver.notify("clock: memory and a query pool for timestamps", 8 * ROOM)

    def begin(self, command: C) -> None:
        """Forget the timestamps of the last time; recorded before any of this time."""
        self.count = 0
        self._copied.clear()
        self._driver.call.vkCmdResetQueryPool(command, self._pool, 0, ROOM)

    def mark(self, command: C, *, end: bool) -> int:
        """Take the time at this place: before a command, or at its end. Its number."""
        stage = _BOTTOM if end else _TOP
        self._driver.call.vkCmdWriteTimestamp(command, stage, self._pool, self.count)
        self.count += 1
        return self.count - 1

    def end(self, command: C) -> None:
        """Copy what was taken; recorded after all of it, and before a barrier for the host."""
        if self._copied:
            return  # by a call that was interrupted
        where = (self._memory.buffer, 0, 8, _RESULTS_64 | _RESULTS_WAIT)
        arguments = (command, self._pool, 0, self.count, *where)
        # One step to Python; see `penstock.driver.vulkan.commands`.
        self._copied.extend(starmap(self._driver.call.vkCmdCopyQueryPoolResults, (arguments,)))

    def ticks(self) -> list[int]:
        """All times of a recording that is done, as the device counts."""
        return [int(tick) for tick in self._ticks[: self.count]]

    def close(self) -> None:
        self._handle.close()
        self._memory.close()


class Clock:
    """Turns the device's ticks into seconds of `time.perf_counter`.

    How the clocks differ is found out with submissions that do nothing but take the time, begun
    when the first ticks are to be turned into seconds. They come after all that is in flight, so
    `learn` does not wait for them: it says what to wait for.
    """

    def __init__(self, driver: VulkanDriver, period: float) -> None:
        self._driver = driver
        self._period = period * 1e-9  # seconds of a tick
        self._offset: float | None = None
        self._asking: _Asking | None = None

    @property
    def known(self) -> bool:
        """Whether it is known how the clocks differ."""
        return self._offset is not None

    def learn(self) -> tuple[VulkanTimeline, int] | None:
        """Go on finding out; the point to wait for, None once it is known."""
        if self._offset is not None:
            return None
        if self._asking is None:
            self._asking = _Asking(self._driver)
        asking = self._asking
        point = asking.next_round()
        if point is None:
            self._offset = asking.difference(self._period)
            self.close()
        return point

    def seconds(self, ticks: Sequence[int]) -> list[float]:
        assert self._offset is not None
        return [tick * self._period + self._offset for tick in ticks]

    def close(self) -> None:
        """Give back what finding out took. Nothing of it may be in flight."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()


class _Asking:
    """Some rounds of asking the device for the time, one after the other."""

    def __init__(self, driver: VulkanDriver) -> None:
        driver.notify(f"clock: {_ROUNDS} submissions to compare it with the host's", 0)
        self._queue = driver.unlisted_queue(0)
        self._timeline = VulkanTimeline(driver)
        self._recording = self._queue.unlisted_recording()
        self._asked = 0  # rounds that were begun
        self._heard: list[tuple[float, float, int]] = []  # before, after, and the tick between
        self._before = 0.0

    def next_round(self) -> tuple[VulkanTimeline, int] | None:
        """Hear the answer of the last round, if it is there, and begin the next; None at the end.

        A recording is used again only once the device is done with it.
        """
        if self._asked > len(self._heard):
            self._ask()  # no second time, unless it was interrupted
            if self._timeline.value() < self._asked:
                return self._timeline, self._asked
            (tick,) = self._recording.ticks()
            self._heard.append((self._before, time.perf_counter(), tick))
        if len(self._heard) == _ROUNDS:
            return None
        self._recording.begin()
        self._recording.mark(end=False)
        self._before = time.perf_counter()
        self._asked = len(self._heard) + 1
        self._ask()
        return self._timeline, self._asked

    def _ask(self) -> None:
        self._queue.submit(self._recording, [], self._timeline, self._asked)

    def difference(self, period: float) -> float:
        """What to add to the device's seconds, by the quickest round."""
        before, after, tick = min(self._heard, key=lambda heard: heard[1] - heard[0])
        return (before + after) / 2 - tick * period

    def close(self) -> None:
        self._queue.close()
        self._timeline.close()
