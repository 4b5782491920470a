"""Threads that are started once, and those of a device, if Ctrl-C comes while they are started."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import penstock as ps
from penstock import background
from penstock.background import Background, NoThread
from penstock.schedule import idle_submission, ordered_copies
from tests.conftest import HAS_VALIDATION
from tests.interrupts import at_point, interrupt
from tests.kernels import slow_add

N = 64
#: Where the threads are started and called.
_FILES = tuple(
    str(module.__file__) for module in (threading, background, idle_submission, ordered_copies)
)


def happens(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def interrupted_everywhere(
    prepared: Callable[[], contextlib.AbstractContextManager[Attempt]],
) -> int:
    """Interrupt a call at each of its points in turn; how many there are."""
    number, place = 0, "before the first"
    while place:
        number += 1
        with prepared() as attempt:
            _, place = at_point(number, interrupt, attempt.run, within=_FILES)
            try:
                attempt.check()
            except AssertionError as error:
                error.add_note(f"at point {number}: {place}")
                raise
    return number - 1


class Attempt:
    """A call to interrupt, and what must hold after that."""

    def run(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError


class Starting(Attempt):
    """The thread runs once, however often and however far it was started before."""

    def __init__(self) -> None:
        self.thread, self.began, self.leave = Background(), [], threading.Event()

    def _wait(self) -> None:
        self.began.append(threading.get_ident())
        self.leave.wait()

    def run(self) -> None:
        self.thread.start(self._wait, "a thread")

    def check(self) -> None:
        self.run()
        self.run()
        assert happens(lambda: len(self.began) > 0)
        self.leave.set()
        self.thread.join()
        assert len(self.began) == 1


def test_it_runs_once_whatever_interrupts_its_start() -> None:
    assert interrupted_everywhere(lambda: contextlib.nullcontext(Starting())) > 10


def test_it_does_not_wait_for_itself() -> None:
    thread, joined = Background(), threading.Event()

    def run() -> None:
        thread.join()
        joined.set()

    assert not thread.begun
    thread.start(run, "a thread")
    assert thread.begun
    assert joined.wait(20)
    thread.join()


def test_calls_that_get_no_thread_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, began = Background(), threading.Event()
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(NoThread):
                thread.start(began.set, "a thread")
        assert not thread.begun
        thread.join()


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


class Submitting(Attempt):
    """Work that a program leaves recorded is submitted, if the call before was interrupted."""

    def __init__(self, dev: ps.Device) -> None:
        self.dev, self.x = dev, dev.zeros(N, np.uint32)
        slow_add(self.x, 0, spin=0)
        dev.synchronize()

    def run(self) -> None:
        slow_add(self.x, 1)
        slow_add(self.x, 1, spin=0)

    def check(self) -> None:
        self.run()
        assert happens(lambda: not self.dev.default_stream.has_recorded)


class Copying(Attempt):
    """A copy in stream order is made, if the copy before was interrupted."""

    def __init__(self, dev: ps.Device) -> None:
        self.x = dev.zeros(N, np.uint32)
        slow_add(self.x, 1)

    def run(self) -> None:
        self.x.write(np.full(N, 7, np.uint32), borrow=True)

    def check(self) -> None:
        self.x.write(np.full(N, 9, np.uint32), borrow=True)
        slow_add(self.x, 1, spin=0)
        assert set(self.x.read().result(timeout=20).tolist()) == {10}


@pytest.mark.parametrize("attempt", [Submitting, Copying])
def test_an_interrupt_does_not_stop_the_threads_of_a_device(
    driver: str, attempt: Callable[[ps.Device], Attempt]
) -> None:
    @contextlib.contextmanager
    def prepared() -> Iterator[Attempt]:
        with ps.Device(driver, validate=HAS_VALIDATION, transfers="ordered") as dev:
            yield attempt(dev)

    assert interrupted_everywhere(prepared) > 10


class Closing(Attempt):
    """A device whose closing was interrupted is closed by the next call, and keeps nothing."""

    def __init__(self, dev: ps.Device) -> None:
        self.dev = dev
        x = dev.zeros(N, np.uint32)
        slow_add(x, 1)
        x.write(np.full(N, 7, np.uint32), borrow=True)
        self.threads = [dev.default_stream.copier._thread, dev.scheduler.idle_submitter._thread]

    def run(self) -> None:
        self.dev.close()

    def check(self) -> None:
        self.run()
        assert self.dev.scheduler.shutdown.torn_down
        assert not any(each.is_alive() for thread in self.threads for each in thread._threads)


def test_an_interrupted_close_is_completed_by_the_next(driver: str) -> None:
    @contextlib.contextmanager
    def prepared() -> Iterator[Attempt]:
        yield Closing(ps.Device(driver, transfers="ordered"))

    assert interrupted_everywhere(prepared) > 10


def test_without_another_thread_the_rest_goes_on(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier cannot start; the thread that submits tries again, and so does the next call."""

    with ps.Device(driver, validate=HAS_VALIDATION, transfers="ordered") as dev:
        x = dev.zeros(N, np.uint32)
        Submitting(dev).run()
        stream = dev.default_stream
        assert happens(lambda: not stream.has_recorded)
        with monkeypatch.context() as context:
            context.setattr(threading.Thread, "start", refuse)
            slow_add(x, 1)
            pending = x.read(out=np.empty(N, np.uint32))
            time.sleep(0.1)  # some turns of the thread that submits
        Submitting(dev).check()
        assert (pending.result(timeout=20) == 1).all()


def test_what_a_signal_handler_raises_is_not_taken_for_a_lack_of_threads(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Overtime(RuntimeError):
        pass

    def strike(_: threading.Thread) -> None:
        monkeypatch.undo()
        raise Overtime

    with ps.Device(driver, validate=HAS_VALIDATION) as dev:
        submitting = Submitting(dev)
        monkeypatch.setattr(threading.Thread, "start", strike)
        with pytest.raises(Overtime):
            submitting.run()
        submitting.check()
