"""The device's clock: timestamps in recordings, and their conversion to the host's clock.

Objects made here serve only tracing. Receipts list them separately, as events of kind `clock`.
"""

from __future__ import annotations

import time
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import accelerator
from penstock.driver.alignment import ROUNDS, Alignment
from penstock.driver.vulkan.api import C, check, load, native_object
from penstock.driver.vulkan.handles import create
from penstock.driver.vulkan.memory import VulkanMemory
from penstock.driver.vulkan.timeline import VulkanTimeline
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.driver.vulkan.driver import VulkanDriver

_TOP, _BOTTOM = 0x1, 0x2000  # stages: before a command starts; after all before are complete
_RESULTS_64, _RESULTS_WAIT = 0x1, 0x2
ROOM = 512  # timestamps in one pool


@accelerator.share
class Timestamps:
    """A pool of timestamps of one command buffer, which may have several: see `TimestampPools`.

    The command buffer ends by copying them to host-visible memory. Asking the driver for query
    results instead may wait for all work in flight, as it does with lavapipe.
    """

    __slots__ = (
        "_copied", "_driver", "_handle", "_memory", "_pool", "_ticks", "base", "count", "native",
    )  # fmt: skip

    def __init__(self, driver: VulkanDriver) -> None:
        ffi, lib = load()
        start = events.clock()
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
        self.base = 0  # how many timestamps are in the pools before this one
        self.count = 0  # how many there are, with those
        self._copied: list[None] = []  # not empty once the copy is recorded
        self._memory = VulkanMemory(driver, 8 * ROOM, host=True)
        assert self._memory.address is not None
        pointer = ffi.cast("void *", self._memory.address)
        self._ticks = np.frombuffer(ffi.buffer(pointer, 8 * ROOM), np.uint64)
        driver.notify("clock: memory and a query pool for timestamps", 8 * ROOM, start)

    def begin(self, command: C, base: int) -> None:
        """Reset the queries of the previous use. Recorded before any timestamp."""
        self.base = self.count = base
        self._copied.clear()
        self._driver.call.vkCmdResetQueryPool(command, self._pool, 0, ROOM)

    def mark(self, command: C, *, end: bool) -> int:
        """Record a timestamp here, before a command or at its end; returns its index."""
        stage = _BOTTOM if end else _TOP
        query = self.count - self.base
        self._driver.call.vkCmdWriteTimestamp(command, stage, self._pool, query)
        self.count += 1
        return self.count - 1

    def end(self, command: C) -> None:
        """Copy the timestamps. Recorded after all of them, and before the barrier for the host."""
        if self._copied:
            return  # an interrupted call has recorded it already
        where = (self._memory.buffer, 0, 8, _RESULTS_64 | _RESULTS_WAIT)
        arguments = (command, self._pool, 0, self.count - self.base, *where)
        # One interpreter step; see `penstock.driver.vulkan.commands`.
        self._copied.extend(starmap(self._driver.call.vkCmdCopyQueryPoolResults, (arguments,)))

    def ticks(self) -> list[int]:
        """All timestamps of a completed recording, in ticks."""
        return [int(tick) for tick in self._ticks[: self.count - self.base]]

    def close(self) -> None:
        self._handle.close()
        self._memory.close()


class TimestampPools:
    """All timestamps of one command buffer: as many pools as it needs. Kept when it is reused."""

    def __init__(self, driver: VulkanDriver) -> None:
        self._driver = driver
        self._pools: list[Timestamps] = []
        self._used = 0  # the first of them, in this use of the command buffer

    def begin(self) -> None:
        """Forget the timestamps of the previous use."""
        self._used = 0

    def current(self, command: C) -> Timestamps:
        """The pool that the next timestamp goes to."""
        if self._used:
            pool = self._pools[self._used - 1]
            if pool.count - pool.base < ROOM:
                return pool
        base = self._pools[self._used - 1].count if self._used else 0
        if self._used == len(self._pools):
            self._pools.append(Timestamps(self._driver))
        pool = self._pools[self._used]
        pool.begin(command, base)
        self._used += 1
        return pool

    def end(self, command: C) -> None:
        for pool in self._pools[: self._used]:
            pool.end(command)

    def ticks(self) -> list[int]:
        return [tick for pool in self._pools[: self._used] for tick in pool.ticks()]

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


class Clock:
    """Converts the device's ticks to seconds of `time.perf_counter`.

    With `VK_EXT_calibrated_timestamps` the driver is asked for the device's time. Without, the
    offset is measured with submissions that only record a timestamp, made when ticks are to be
    converted. They run after all work in flight, so `learn` does not wait for them: it returns the
    point to wait for.
    """

    def __init__(self, driver: VulkanDriver, period: float) -> None:
        self._driver = driver
        self.alignment = Alignment(period * 1e-9)
        self._asking: _Asking | None = None
        self._spent: list[_Asking] = []  # of earlier series

    @property
    def known(self) -> bool:
        """Whether ticks can be converted; where that takes no wait, after a measurement."""
        if not self.alignment.fresh and self._driver.calibrated:
            self._calibrate()
        return self.alignment.fresh

    def learn(self) -> tuple[VulkanTimeline, int] | None:
        """Take the next step of a measurement; see `Driver.learn_time`."""
        if self.known or self._driver.calibrated:
            return None
        if self._asking is None:
            self._asking = self._spent.pop() if self._spent else _Asking(self._driver)
            self._asking.start()
        asking = self._asking
        point = asking.next_round()
        if point is None:
            self.alignment.measured(asking.heard)
            # What it was measured with stays until the device is closed: another thread may still
            # be waiting for the last round.
            self._asking = None
            self._spent.append(asking)
        return point

    def _calibrate(self) -> None:
        """Ask the driver for the device's time, between two looks at the host's."""
        ffi, lib = load()
        driver = self._driver
        info = ffi.new("VkCalibratedTimestampInfoEXT *")
        info.sType = lib.VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT
        info.timeDomain = lib.VK_TIME_DOMAIN_DEVICE_EXT
        tick, deviation = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        ask, series = driver.call.vkGetCalibratedTimestampsEXT, []
        for _ in range(ROUNDS):
            before = time.perf_counter()
            result = ask(driver.handle, 1, info, tick, deviation)
            series.append((before, time.perf_counter(), int(tick[0])))
            check(result, "vkGetCalibratedTimestampsEXT")
        self.alignment.measured(series)

    def close(self) -> None:
        """Free the objects used for measuring. None of their submissions may be in flight."""
        for asking in (*self._spent, *filter(None, [self._asking])):
            asking.close()
        self._spent, self._asking = [], None


class _Asking:
    """A series of measurements: submissions with one timestamp each, one after another."""

    def __init__(self, driver: VulkanDriver) -> None:
        self._driver = driver
        self._queue = driver.unlisted_queue(0)
        self._timeline = VulkanTimeline(driver)
        self._recording = self._queue.unlisted_recording()
        self._value = 0  # that the timeline reaches with the last round
        self._asked = 0  # rounds started
        self.heard: list[tuple[float, float, int]] = []  # host time before and after; tick
        self._before = 0.0

    def start(self) -> None:
        """Begin a series. The one before it is over."""
        self._driver.notify(f"clock: {ROUNDS} submissions to compare it with the host's", 0)
        self._asked, self.heard = 0, []

    def next_round(self) -> tuple[VulkanTimeline, int] | None:
        """Read the last round's timestamp if it is complete, and start the next round.

        Returns the point to wait for, None after the last round. A recording is reused only once
        its submission is complete.
        """
        if self._asked > len(self.heard):
            self._ask()  # repeated only if it was interrupted
            if self._timeline.value() < self._value:
                return self._timeline, self._value
            (tick,) = self._recording.ticks()
            self.heard.append((self._before, time.perf_counter(), tick))
        if len(self.heard) == ROUNDS:
            return None
        self._recording.begin()
        self._recording.mark(end=False)
        self._before = time.perf_counter()
        self._value, self._asked = self._value + 1, len(self.heard) + 1
        self._ask()
        return self._timeline, self._value

    def _ask(self) -> None:
        self._queue.submit(self._recording, [], self._timeline, self._value)

    def close(self) -> None:
        self._queue.close()
        self._timeline.close()
