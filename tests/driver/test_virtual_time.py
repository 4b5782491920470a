"""Virtual time: the simulator's clock, and its own account of when it was busy."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.driver.sim import VirtualTime, virtual_time
from penstock.driver.sim.virtual_time import COPY_RATE, TICK
from tests.conftest import simulated
from tests.kernels import HEAD

STEP = (
    HEAD
    + """
layout(std430, binding = 0) buffer X { float x[]; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < x.length()) x[i] += 1; }
"""
)
N = 64


@contextlib.contextmanager
def timed(seed: int, **options: Any) -> Iterator[tuple[ps.Device, VirtualTime, ps.Kernel]]:
    """A simulated device in virtual time, its clock, and a kernel that adds 1."""
    with simulated(seed) as dev:
        driver: Any = dev.scheduler.driver
        with virtual_time(driver, **options) as clock:
            yield dev, clock, dev.kernel(STEP, reference=_step)


def _step(x: Any, threads: Any) -> None:
    x += 1


def union(intervals: list[tuple[float, float]]) -> float:
    """How long at least one of them lasts."""
    total = end = 0.0
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def intervals(t: ps.Trace) -> list[tuple[float, float]]:
    """When the device ran each command of a trace."""
    return [
        (event.device_start, event.device_start + event.device_seconds)
        for event in t.events
        if event.device_start is not None and event.device_seconds is not None
    ]


def run(seed: int) -> tuple[ps.Trace, float]:
    """A random program on several streams: its trace, and how long the machine was busy."""
    chance = random.Random(seed)
    with timed(seed) as (dev, clock, kernel):
        streams = [dev.default_stream, dev.stream(), dev.stream()]
        arrays = [dev.zeros(N) for _ in range(4)]
        large = dev.zeros(1 << 19)  # from 1 MiB on, a borrowed write is ordered
        with dev.record() as graph:
            for array in arrays[:2]:
                kernel(x=array, threads=N)
        dev.synchronize()
        before = clock.busy
        with ps.trace() as t:
            for _ in range(30):
                array, stream = chance.choice(arrays), chance.choice(streams)
                acts = [
                    partial(clock.sleep, chance.choice([1e-5, 1e-3])),
                    array.read,
                    partial(array.write, np.ones(N, np.float32), stream=stream),
                    lambda stream=stream: stream.wait(chance.choice(streams).record()),
                    partial(graph.replay, stream=stream),
                    partial(kernel, x=large, threads=N, stream=stream),
                    partial(
                        large[: 3 << 17].write, np.ones(3 << 17, np.float32), stream=stream,
                        borrow=True,
                    ),
                    *[partial(kernel, x=array, threads=N, stream=stream)] * 4,
                ]  # fmt: skip
                chance.choice(acts)()
            dev.synchronize()
        t.wait_for_times()
        return t, clock.busy - before


@pytest.mark.parametrize("seed", range(24))
def test_the_times_of_commands_add_up_to_what_the_machine_was_busy(seed: int) -> None:
    t, busy = run(seed)
    assert intervals(t)
    assert union(intervals(t)) == busy  # exactly


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_gives_the_same_times_again(seed: int) -> None:
    said = []
    for t, _ in (run(seed), run(seed)):
        same = {"thread_id": 0, "stream_id": 0, "awaited": ()}
        said.append([event._replace(**same) for event in t.events])  # type: ignore[arg-type]
    assert said[0] == said[1]


def test_the_host_sleeps_while_the_device_works() -> None:
    with timed(1, command=1e-3) as (dev, clock, kernel):
        x = dev.zeros(N)
        dev.synchronize()
        with ps.trace() as t:
            kernel(x=x, threads=N)
            clock.sleep(5e-3)
            kernel(x=x, threads=N)
            dev.synchronize()
        first, second = t.of_kind("launch")
        assert first.device_seconds == second.device_seconds == round(1e-3 / TICK) * TICK
        assert second.start - first.start > 5e-3
        assert first.device_start is not None
        assert first.start < first.device_start < first.device_start + 1e-3 < second.start
        (wait,) = t.of_kind("wait")
        assert 1e-3 - 10 * TICK < wait.seconds < 1e-3 + 10 * TICK  # until the second is complete


def test_a_reference_says_how_long_its_kernel_takes() -> None:
    with timed(2) as (dev, clock, _):
        slow = dev.kernel(STEP, reference=lambda x, threads: clock.takes(0.25))
        x = dev.zeros(N)
        with ps.trace() as t:
            slow(x=x, threads=N)
            dev.synchronize()
        assert [event.device_seconds for event in t.of_kind("launch")] == [0.25]


def test_a_host_copy_takes_its_time() -> None:
    with timed(3) as (dev, _, _kernel):
        x = dev.zeros(1 << 16)
        with ps.trace() as t:
            x.write(np.ones(1 << 16, np.float32))
        (copy,) = t.of_kind("copy")
        assert copy.seconds >= (4 << 16) / COPY_RATE * TICK


def test_the_clock_is_the_hosts_again_afterwards() -> None:
    with timed(4) as (dev, _, kernel), ps.trace() as t:
        kernel(x=dev.zeros(N), threads=N)
    assert t.clocks[dev.name].how == "virtual time"
    assert t.clock_error == 0
    with simulated(4) as dev:
        kernel = dev.kernel(STEP, reference=_step)
        with ps.trace() as t:
            kernel(x=dev.zeros(N), threads=N)
            dev.synchronize()
        assert t.of_kind("launch")[0].device_start is None
        assert not t.clocks[dev.name].has_times
        assert t.clock_error is None


def test_a_trace_keeps_its_clock() -> None:
    with simulated(5) as dev, ps.trace():
        driver: Any = dev.scheduler.driver
        with pytest.raises(AssertionError, match="clock of an active trace"), virtual_time(driver):
            pass
        assert driver.machine.time is None
