"""The device's lock in C: one thread has it, and releases it; no sleeper is forgotten."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import accelerator
from penstock.locks import DeviceLock

pytestmark = pytest.mark.skipif(not accelerator.is_native(), reason="the native step is not built")
LONGEST = 20.0  # seconds; a thread that takes longer sleeps for ever


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Let threads take turns far more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(*works: Callable[[], None]) -> None:
    """Run each in a thread; none may fail or sleep for ever."""
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    until = time.monotonic() + LONGEST
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a sleeper was not woken"
    assert not failed, failed


@pytest.mark.parametrize("threads", [2, 5])
def test_one_thread_at_a_time(threads: int) -> None:
    lock = DeviceLock()
    count = inside = 0

    def work() -> None:
        nonlocal count, inside
        for _ in range(3_000):
            with lock:
                inside += 1
                before = count
                assert inside == 1
                count = before + 1
                inside -= 1

    in_threads(*[work] * threads)
    assert count == 3_000 * threads
    assert not lock._is_owned()


def test_a_sleeper_is_woken_again_and_again() -> None:
    lock, turn = DeviceLock(), [0]

    def alternate(me: int) -> None:
        for _ in range(200):
            while True:
                with lock:
                    time.sleep(1e-5)  # so that the other sleeps
                    if turn[0] == me:
                        turn[0] = 1 - me
                        break
                time.sleep(1e-5)  # so that the other can take it

    in_threads(lambda: alternate(0), lambda: alternate(1))


def test_only_its_owner_releases_it() -> None:
    lock = DeviceLock()
    with pytest.raises(RuntimeError, match="does not have the lock"):
        lock.release()
    with lock:
        assert lock._is_owned()
        with pytest.raises(RuntimeError, match="already"):
            lock.acquire()

        def elsewhere() -> None:
            assert not lock._is_owned()
            assert lock.acquire(blocking=False) is False
            with pytest.raises(RuntimeError, match="does not have the lock"):
                lock.release()

        in_threads(elsewhere)
        assert lock._is_owned()
    assert lock.acquire(blocking=False) is True
    lock.release()


@pytest.mark.parametrize("wrong", [{"timeout": 1}, {"blocking": True, "timeout": 1}])
def test_other_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="blocking="):
        DeviceLock().acquire(**wrong)
    with pytest.raises(TypeError, match="no arguments"):
        DeviceLock(1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_signal_handler_ends_the_wait_if_it_raises() -> None:
    lock = DeviceLock()
    taken, release = threading.Event(), threading.Event()
    calls: list[int] = []

    def handle(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError
        assert len(calls) < 10, "the wait went on"

    def hold() -> None:
        with lock:
            taken.set()
            release.wait()

    def let_go() -> None:
        if not release.wait(LONGEST / 4):
            release.set()  # or a lock that ignores the handler would hang the test

    helpers = [threading.Thread(target=each, daemon=True) for each in (hold, let_go)]
    for helper in helpers:
        helper.start()
    taken.wait()
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        with pytest.raises(InterruptedError):
            lock.acquire()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        release.set()
        for helper in helpers:
            helper.join()
    assert len(calls) == 3
    assert not lock._is_owned()
    in_threads(lambda: lock.acquire())
