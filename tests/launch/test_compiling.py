"""Threads make kernels without the device's lock: other threads use, free and close meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.schedule import shutdown
from tests.interrupts import at_point, chosen, interrupt, points
from tests.kernels import BLOCK_SUM, SAXPY


class Gate:
    """The driver's compiler, which begins when a test lets it."""

    def __init__(self, device: ps.Device) -> None:
        driver: Any = device.scheduler.driver
        self._compile = driver.call.vkCreateComputePipelines
        driver.call.vkCreateComputePipelines = self._wait
        self.reached = threading.Semaphore(0)
        self.open = threading.Event()
        self.error = 0  # what the compiler is to return instead of compiling

    def _wait(self, *arguments: Any) -> int:
        self.reached.release()
        self.open.wait()
        return self.error or int(self._compile(*arguments))


@pytest.fixture
def own(dev: ps.Device) -> Iterator[ps.Device]:
    """A device that a test may close; the tests are about Vulkan's lists of programs."""
    with ps.Device(dev.info.index) as device:
        yield device


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def compiling(
    device: ps.Device, pool: ThreadPoolExecutor, *sources: str
) -> tuple[Gate, list[Future[ps.Kernel]]]:
    """Threads that have each reached the driver's compiler."""
    gate = Gate(device)
    found = [pool.submit(device.kernel, source) for source in sources]
    for _ in found:
        assert gate.reached.acquire(timeout=60)
    return gate, found


def test_a_device_is_used_while_a_thread_compiles(own: ps.Device, pool: ThreadPoolExecutor) -> None:
    saxpy = own.kernel(SAXPY)
    gate, (coming,) = compiling(own, pool, BLOCK_SUM)
    x, y = own.full(64, 2.0, np.float32), own.full(64, 1.0, np.float32)
    saxpy(x=x, y=y, a=3.0, n=64, threads=64)
    assert (y.numpy() == 7).all()
    gate.open.set()
    coming.result().close()


def test_a_program_may_come_while_memory_is_freed(own: ps.Device, pool: ThreadPoolExecutor) -> None:
    """All programs forget their bindings then: the new one is added in the middle of that."""
    driver: Any = own.scheduler.driver
    earlier = own.kernel(SAXPY)
    gate, (coming,) = compiling(own, pool, BLOCK_SUM)
    before = len(driver._programs)
    drop = earlier.program.drop_sets

    def drop_and_let_the_other_come() -> None:
        gate.open.set()
        while len(driver._programs) == before:
            pass
        drop()

    earlier.program.drop_sets = drop_and_let_the_other_come
    with own.scheduler.lock:
        driver._forget_bindings()
    assert coming.result().program in driver._programs


def test_closing_waits_for_a_thread_that_compiles(own: ps.Device, pool: ThreadPoolExecutor) -> None:
    gate, coming = compiling(own, pool, SAXPY, BLOCK_SUM)
    closed = pool.submit(own.close)
    while not own.scheduler.shutdown.over:
        pass
    assert not own.scheduler.shutdown.torn_down
    gate.open.set()
    closed.result()
    for one in coming:
        check_ended(one)
    assert own.scheduler.shutdown.torn_down


def test_a_compilation_that_outlasts_closing_tears_the_device_down(
    own: ps.Device, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "_LEAVE_TIMEOUT", 0.0)
    gate, coming = compiling(own, pool, SAXPY, BLOCK_SUM)
    own.close()
    assert not own.scheduler.shutdown.torn_down
    gate.open.set()
    for one in coming:
        check_ended(one)
    assert own.scheduler.shutdown.torn_down


def check_ended(coming: Future[ps.Kernel]) -> None:
    """What was being compiled when the device was closed can be closed, and dropped."""
    with contextlib.suppress(ps.Closed):
        coming.result().close()


def test_a_compilation_that_fails_leaves_the_others(
    own: ps.Device, pool: ThreadPoolExecutor
) -> None:
    gate, (coming,) = compiling(own, pool, SAXPY)
    gate.error = -13
    gate.open.set()
    with pytest.raises(ps.InvalidSpirv):
        coming.result()
    gate.error = 0
    assert own.kernel(SAXPY).name


def test_a_child_forked_while_a_thread_compiles(own: ps.Device, pool: ThreadPoolExecutor) -> None:
    gate, (coming,) = compiling(own, pool, SAXPY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, at a fork
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)  # a child that hangs ends, and fails the test
        try:
            own.kernel(SAXPY)
        except ps.ForkedDevice:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.open.set()
    assert coming.result().name


def test_an_interrupt_while_a_kernel_is_made(own: ps.Device) -> None:
    def make() -> None:
        own.kernel(BLOCK_SUM).close()

    make()
    for number in chosen(points(make)):
        at_point(number, interrupt, make)
        assert not own.scheduler.shutdown.guests
    make()


def test_threads_that_compile_launch_and_free_at_once(
    own: ps.Device, pool: ThreadPoolExecutor
) -> None:
    def make() -> None:
        for _ in range(10):
            own.kernel(SAXPY).close()

    def free() -> None:
        saxpy = own.kernel(SAXPY)
        for size in range(64, 640, 64):
            x, y = own.full(size, 2.0, np.float32), own.zeros(size, np.float32)
            saxpy(x=x, y=y, a=3.0, n=size, threads=size)
            assert (y.numpy() == 6).all()
            with own.scheduler.lock:
                own.scheduler.driver._forget_bindings()  # type: ignore[attr-defined]

    act: list[Callable[[], None]] = [make, free, make, free]
    for one in [pool.submit(each) for each in act]:
        one.result()
