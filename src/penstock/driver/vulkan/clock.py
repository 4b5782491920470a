"""The device's clock: timestamps in recordings, and their conversion to the host's clock.

Objects made here serve only tracing. Receipts list them separately, as events of kind `clock`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import accelerator
from penstock.driver.vulkan.api import C, load, native_object
from penstock.driver.vulkan.handles import create
from penstock.driver.vulkan.memory import VulkanMemory
from penstock.driver.vulkan.timeline import VulkanTimeline

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver

_TOP, _BOTTOM = 0x1, 0x2000  # stages: before a command starts; after all before are complete
_RESULTS_64, _RESULTS_WAIT = 0x1, 0x2
_ROUNDS = 5  # measurements of the clocks' offset; the fastest one counts
ROOM = 512  # timestamps in one recording


@accelerator.share
class Timestamps:
    """The timestamps of one recording.

    The recording ends by copying them to host-visible memory. Asking the driver for query results
    instead may wait for all work in flight, as it does with lavapipe.
    """

    __slots__ = ("_copied", "_driver", "_handle", "_memory", "_pool", "_ticks", "count", "native")

    def __init__(self, driver: VulkanDriver) -> None:
        ffi, lib = load()
        self._driver = driver
        info = ffi.new("VkQueryPoolCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO
        info.queryType = lib.VK_QUERY_TYPE_TIMESTAMP
        info.queryCount = ROOM
        self._handle = create(driver, "QueryPool", info)
        self._pool: C = self._handle.made
        self.native: Any = None
        if accelerator.is_native():
            write = driver.call.vkCmdWriteTimestamp
            self.native = native_object(accelerator.native.Stamps, pool=self._pool, write=write)
        self.count = 0
        self._copied: list[None] = []  # not empty once the copy is recorded
        self._memory = VulkanMemory(driver, 8 * ROOM, host=True)
        assert self._memory.address is not None
        pointer = ffi.cast("void *", self._memory.address)
        self._ticks = np.frombuffer(ffi.buffer(pointer, 8 * ROOM), np.uint64)
        driver.notify("clock: memory and a query pool for timestamps", 8 * ROOM)

    def begin(self, command: C) -> None:
        """Reset the queries of the previous use. Recorded before any timestamp."""
        self.count = 0
        self._copied.clear()
        self._driver.call.vkCmdResetQueryPool(command, self._pool, 0, ROOM)

    def mark(self, command: C, *, end: bool) -> int:
        """Record a timestamp here, before a command or at its end; returns its index."""
        stage = _BOTTOM if end else _TOP
        self._driver.call.vkCmdWriteTimestamp(command, stage, self._pool, self.count)
        self.count += 1
        return self.count - 1

    def end(self, command: C) -> None:
        """Copy the timestamps. Recorded after all of them, and before the barrier for the host."""
        if self._copied:
            return  # an interrupted call has recorded it already
        where = (self._memory.buffer, 0, 8, _RESULTS_64 | _RESULTS_WAIT)
        arguments = (command, self._pool, 0, self.count, *where)
        # One interpreter step; see `penstock.driver.vulkan.commands`.
        self._copied.extend(starmap(self._driver.call.vkCmdCopyQueryPoolResults, (arguments,)))

    def ticks(self) -> list[int]:
        """All timestamps of a completed recording, in ticks."""
        return [int(tick) for tick in self._ticks[: self.count]]

    def close(self) -> None:
        self._handle.close()
        self._memory.close()


class Clock:
    """Converts the device's ticks to seconds of `time.perf_counter`.

    The offset between the clocks is measured with submissions that only record a timestamp, made
    when the first ticks are to be converted. They run after all work in flight, so `learn` does not
    wait for them: it returns the point to wait for.
    """

    def __init__(self, driver: VulkanDriver, period: float) -> None:
        self._driver = driver
        self._period = period * 1e-9  # seconds per tick
        self._offset: float | None = None
        self._asking: _Asking | None = None

    @property
    def known(self) -> bool:
        """Whether the offset between the clocks is known."""
        return self._offset is not None

    def learn(self) -> tuple[VulkanTimeline, int] | None:
        """Continue measuring; returns the point to wait for, None once the offset is known."""
        if self._offset is not None:
            return None
        if self._asking is None:
            self._asking = _Asking(self._driver)
        asking = self._asking
        point = asking.next_round()
        if point is None:
            # What it was measured with stays until the device is closed: another thread may still
            # be waiting for the last round.
            self._offset = asking.difference(self._period)
        return point

    def seconds(self, ticks: Sequence[int]) -> list[float]:
        assert self._offset is not None
        return [tick * self._period + self._offset for tick in ticks]

    def close(self) -> None:
        """Free the objects used for measuring. None of their submissions may be in flight."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()


class _Asking:
    """A series of measurements: submissions with one timestamp each, one after another."""

    def __init__(self, driver: VulkanDriver) -> None:
        driver.notify(f"clock: {_ROUNDS} submissions to compare it with the host's", 0)
        self._queue = driver.unlisted_queue(0)
        self._timeline = VulkanTimeline(driver)
        self._recording = self._queue.unlisted_recording()
        self._asked = 0  # rounds started
        self._heard: list[tuple[float, float, int]] = []  # host time before and after; tick
        self._before = 0.0

    def next_round(self) -> tuple[VulkanTimeline, int] | None:
        """Read the last round's timestamp if it is complete, and start the next round.

        Returns the point to wait for, None after the last round. A recording is reused only once
        its submission is complete.
        """
        if self._asked > len(self._heard):
            self._ask()  # repeated only if it was interrupted
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
        """The offset to add to the device's seconds, from the fastest round."""
        before, after, tick = min(self._heard, key=lambda heard: heard[1] - heard[0])
        return (before + after) / 2 - tick * period

    def close(self) -> None:
        self._queue.close()
        self._timeline.close()
