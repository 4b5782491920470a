"""The native step over a driver in Python: the calls of HIP are the same, and so are failures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock import accelerator
from penstock.driver.hip.timeline import HipTimeline
from penstock.schedule.idle_submission import IdleSubmitter
from tests.hip.standin import LOST, OUT_OF_MEMORY, StandIn
from tests.interrupts import at_point, chosen, interrupt, points
from tests.kernels import FIRST, SLOW_ADD, SLOW_COPY, new_kernel

N = 64
INVALID = 1
LONG = 10**6  # microseconds that nothing happens unasked

needs_native = pytest.mark.skipif(not accelerator.is_native(), reason=accelerator.status)


class Launches:
    """A kernel that adds one, a kernel that returns the first element, and an array for both."""

    def __init__(self, device: ps.Device) -> None:
        self.device = device
        self.x = device.zeros(N, np.uint32)
        self._add, self._first = new_kernel(device, SLOW_ADD), new_kernel(device, FIRST)
        for _ in range(2):
            self.add()
            assert self.first().result() == self.x[0].item()
        device.synchronize()

    def add(self) -> None:
        self._add(x=self.x, n=N, spin=0, add=1, threads=N)

    def first(self) -> ps.Result:
        result: ps.Result = self._first(x=self.x, n=1, spin=0, add=0, groups=1)
        return result


@pytest.fixture
def launches(hip: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    # Without the thread that polls, and may hold the lock, when it happens to run.
    monkeypatch.setattr(IdleSubmitter, "wake", lambda self: None)
    with ps.Device(driver="hip") as device:
        yield Launches(device)
        hip.fail("", 0, 0)
        hip.set("patience", 0)


@needs_native
def test_launches_are_native(launches: Launches) -> None:
    before = accelerator.launches()
    launches.add()
    assert launches.first().result() == 3
    made, left = accelerator.launches()
    assert (made - before[0], left - before[1]) == (2, 0)


def test_a_result_is_waited_for(hip: StandIn, launches: Launches) -> None:
    hip.set("patience", LONG)
    for count in range(3, 10):
        launches.add()
        assert launches.first().result() == count


@pytest.mark.parametrize("call", ["hipModuleLaunchKernel", "hipEventRecord"])
def test_a_loss_when_a_launch_is_submitted(call: str, hip: StandIn, launches: Launches) -> None:
    hip.fail(call, 1, LOST)
    with pytest.raises(ps.DeviceLost):
        launches.add()
    assert launches.device.scheduler.lost is not None


@pytest.mark.parametrize("number", [1, 2])
def test_a_loss_when_a_launch_looks_how_far_the_device_is(
    number: int, hip: StandIn, launches: Launches
) -> None:
    """First to reuse recordings, then to see whether the device has run dry."""
    hip.set("patience", LONG)
    launches.add()
    launches.device.default_stream.host_waits()  # so that it looks at the first launch
    hip.fail("hipEventQuery", number, LOST)
    with pytest.raises(ps.DeviceLost):
        launches.add()
    assert launches.device.scheduler.lost is not None


def test_a_loss_when_a_result_is_waited_for(hip: StandIn, launches: Launches) -> None:
    result = launches.first()
    hip.fail("hipEventQuery", 1, LOST)
    with pytest.raises(ps.DeviceLost):
        result.result()
    assert launches.device.scheduler.lost is not None
    assert not launches.device.scheduler.shutdown.guests


def test_without_memory_to_submit_a_launch_the_next_one_tries_again(
    hip: StandIn, launches: Launches
) -> None:
    hip.fail("hipModuleLaunchKernel", 1, OUT_OF_MEMORY)
    launches.add()
    assert hip.failed
    hip.forget()
    launches.add()
    assert hip.counts["hipModuleLaunchKernel"], "it is tried again at once"
    assert launches.x[0].item() == 4


def test_another_error_of_a_submission_is_raised(hip: StandIn, launches: Launches) -> None:
    hip.fail("hipModuleLaunchKernel", 1, INVALID)
    with pytest.raises(ps.Error, match="hipErrorInvalidValue"):
        launches.add()
    launches.add()
    assert launches.x[0].item() == 4, "the command stayed recorded"


def test_an_interrupt_is_raised_and_breaks_nothing(launches: Launches) -> None:
    def call() -> None:
        launches.add()
        assert launches.first().result() == launches.x[0].item()

    call()
    expected = launches.x[0].item()
    for number in chosen(points(call), 7):
        _, place = at_point(number, interrupt, call)
        found = launches.x[0].item()
        assert found in (expected, expected + 1), place
        call()
        expected = found + 1
        assert (launches.x.numpy() == expected).all()


def test_an_interrupt_during_the_search_for_a_temporary_is_raised(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = new_kernel(launches.device, SLOW_COPY)
    host = np.arange(N, dtype=np.uint32)

    def call() -> None:
        copy(x=host, y=launches.x, n=N, spin=0, threads=N)

    value, asked = HipTimeline.value, 0
    monkeypatch.setattr(HipTimeline, "value", lambda timeline: 0)  # nothing is done
    for _ in range(3):
        call()
    spare = copy.parameters[0].spare
    before = list(spare)
    assert len(spare) == 3, "so that it would ask again after the interrupt"

    def interrupted(timeline: HipTimeline) -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise KeyboardInterrupt
        return value(timeline)

    monkeypatch.setattr(HipTimeline, "value", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert asked == 1
    assert spare == before
    call()
    assert (launches.x.numpy() == host).all()


_PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from penstock.schedule.idle_submission import IdleSubmitter
from tests.hip.standin import StandIn
from tests.kernels import FIRST, SLOW_ADD, new_kernel

IdleSubmitter.wake = lambda self: None  # a thread that submits when it happens to run
library = StandIn(Path(sys.argv[1]))
with library.chosen(prompt=1), library.device() as device:
    add, first = new_kernel(device, SLOW_ADD), new_kernel(device, FIRST)
    x, y = device.zeros(64, np.uint32), device.zeros(64, np.uint32)
    streams = None, device.stream()
    library.forget()
    for number in range(300):
        on = streams[number % 7 == 3]
        array = y if number % 3 else x
        if number % 5 == 4:
            print(first(x=array, n=1, spin=0, add=number, groups=1, stream=on).result())
        else:
            add(x=array, n=64, spin=0, add=number, threads=64, stream=on)
        if number % 31 == 30:
            print(x.numpy()[0], y.numpy()[0])
        if number % 50 == 49:
            device.synchronize()
    print(*library.calls, sep="\\n")
    streams[1].close()
"""


@needs_native
def test_every_call_of_hip_is_the_one_that_python_makes(standin_library: StandIn) -> None:
    said = []
    for native in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(standin_library.path)],
            capture_output=True, text=True, check=False, timeout=120,
            env={**os.environ, "PENSTOCK_NATIVE": native}, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    assert said[0] == said[1]
    assert said[0].count("hipModuleLaunchKernel") == 300
