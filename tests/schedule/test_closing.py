"""Closing in the middle of other threads' calls, and waits that hold nothing back meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.schedule import host_views
from penstock.schedule.thresholds import Sizes
from tests.conftest import OpenDevice, _installed
from tests.gate import held, hold
from tests.kernels import SLOW_ADD, block_sum, block_sum_of, kernel, slow_add

N = 64


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread that works, and what became of it: a value or an exception."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def join(thread: threading.Thread) -> None:
    thread.join(60)
    assert not thread.is_alive(), "it hangs"


@pytest.mark.parametrize("any_device", ["llvmpipe", "HIP"], indirect=True)
def test_a_copier_does_not_wait_for_the_lock(any_device: ps.Device) -> None:
    # The thread that releases a stream has the lock, and joins the stream's copier, which may still
    # have a copy that another thread has made.
    scheduler = any_device.scheduler
    dropped = any_device.zeros(N)
    with scheduler.lock:
        del dropped
        assert scheduler.ended.left, "nothing that would need the lock"
        copier, outcome = in_thread(lambda: scheduler.await_points({}, closing=True))
        copier.join(20)
        assert outcome == [True]


RACE = """
import random, sys, threading
import numpy as np
import penstock as ps
from tests.kernels import SLOW_ADD, kernel, slow_add

def work(dev, x, mine, kind):
    if kind == 0:
        slow_add(x, 1, spin=10)
        assert len(set(x.numpy().tolist())) == 1
    elif kind == 1:
        slow_add(x, 1, spin=10)
        assert len(set(x.read().result().tolist())) == 1
    elif kind == 2:
        kernel(dev, SLOW_ADD, "slow_add")(x=mine, n=mine.size, spin=10, add=1, threads=mine.size)
        assert len(set(mine.tolist())) == 1
    elif kind == 3:
        with dev.stream() as stream:
            slow_add(x, 1, stream, spin=10)
            stream.record().wait()
    else:
        big = dev.array(np.ones(1 << 18, np.float32))
        big.write(np.zeros(1 << 18, np.float32))
        big.numpy()

def loop(dev, x, kind, started, errors):
    mine = np.zeros(64, np.uint32)
    try:
        while True:
            work(dev, x, mine, kind)
            started.release()
    except ps.Closed:
        pass
    except BaseException as error:
        errors.append(error)
        started.release()

for round in range(int(sys.argv[2])):
    chance = random.Random(round)
    dev = ps.Device(sys.argv[1])
    x = dev.zeros(64, np.uint32)
    slow_add(x, 1, spin=0)
    started, errors = threading.Semaphore(0), []
    threads = [
        threading.Thread(target=loop, args=(dev, x, kind, started, errors), daemon=True)
        for kind in chance.sample(range(5), 3)
    ]
    for thread in threads:
        thread.start()
    for _ in range(chance.randrange(12)):
        started.acquire()
    dev.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    assert not errors, errors
print("all ended")
"""


@pytest.mark.parametrize("driver", ["llvmpipe", "SwiftShader"])
def test_closing_ends_what_other_threads_are_in(driver: str) -> None:
    """In a process of its own: what goes wrong here crashes or hangs it."""
    command = [sys.executable, "-X", "faulthandler", "-c", RACE, _installed(driver), "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all ended" in done.stdout


@pytest.mark.parametrize(
    "wait",
    [
        lambda dev, x: x.numpy().tolist(),
        lambda dev, x: x.read().result().tolist(),
        lambda dev, x: dev.synchronize(),
        lambda dev, x: dev.default_stream.record().wait(),
        lambda dev, x: int(x.sum()),
        lambda dev, x: x.view("r").tolist(),
    ],
)
def test_a_wait_returns_when_the_device_is_closed(driver: str, wait: Any) -> None:
    dev = ps.Device(driver)
    x = dev.zeros(N, np.uint32)
    x.sum()
    let_go = hold(dev.default_stream)
    slow_add(x, 1, spin=0)
    waiting, outcome = in_thread(lambda: wait(dev, x))
    while not dev.scheduler.shutdown.guests:
        assert waiting.is_alive()
    closing, _ = in_thread(dev.close)
    while not dev.closed:
        assert closing.is_alive()
    with pytest.raises(ps.Closed):
        dev.zeros(1)
    let_go()
    join(waiting)
    join(closing)
    (found,) = outcome
    assert isinstance(found, ps.Closed) or found in (None, N, [1] * N)


def test_work_that_waits_for_the_closers_own_view_is_an_error(driver: str) -> None:
    dev = ps.Device(driver)
    x = dev.zeros(N, np.uint32)
    view = x.view("rw")
    other, outcome = in_thread(lambda: slow_add(x, 1, spin=0))
    join(other)
    assert outcome == [None]
    with pytest.raises(ps.ViewHeld, match="drop the view"):
        dev.close()
    assert not dev.closed
    view[:] = 4
    del view
    assert set(x.numpy().tolist()) == {5}
    dev.close()


class Holder:
    """Another thread that holds a writable view, and uses the device before it lets go."""

    def __init__(self, dev: ps.Device, x: ps.Array) -> None:
        self._go = threading.Event()
        holds = threading.Event()
        stream = dev.stream()

        def work() -> list[Any]:
            view = x.view("rw")
            holds.set()
            assert self._go.wait(60)
            seen: list[Any] = dev.full(4, 7, np.uint32).numpy().tolist()
            slow_add(dev.zeros(4, np.uint32), 1, stream, spin=0)
            del view
            return seen

        self.thread, self._outcome = in_thread(work)
        assert holds.wait(60)

    def end(self) -> None:
        join(self.thread)
        assert self._outcome == [[7] * 4]

    def let_go_once(self, waiting: Callable[[], bool]) -> threading.Thread:
        def watch() -> None:
            while not waiting():
                time.sleep(0.001)
            self._go.set()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread


def _many_submissions(dev: ps.Device, other: ps.Array) -> None:
    for _ in range(300):
        slow_add(other, 1, spin=0)
        dev.default_stream.flush()


def _large_staged_write(dev: ps.Device, other: ps.Array) -> None:
    dev.scheduler.sizes = Sizes(staging_block=1024, staging_blocks=2)
    big = dev.zeros(8192, np.uint32)
    slow_add(big, 1, spin=0)  # on the stream that waits, so that the write has to be staged
    big[1:].write(np.arange(8191, dtype=np.uint32))
    assert big.tolist() == [1, *range(8191)]


def _many_arguments(dev: ps.Device, other: ps.Array) -> None:
    block = np.arange(100, dtype=np.uint32)
    with dev.default_stream.batch():
        for _ in range(40_000 // 4):
            block_sum(other, 0, block)
    other.fill(0)


@pytest.mark.parametrize("work", [_many_submissions, _large_staged_write, _many_arguments])
def test_a_thread_that_has_run_ahead_keeps_no_other_waiting(
    open_device: OpenDevice, work: Callable[[ps.Device, ps.Array], None]
) -> None:
    """It waits for work that waits for a view; the thread that holds the view goes on."""
    dev = ps.Device(open_device().name)
    x, other = dev.zeros(N, np.uint32), dev.zeros(N, np.uint32)
    slow_add(x, 0, spin=0)
    dev.synchronize()
    holder = Holder(dev, x)
    slow_add(x, 1, spin=0)  # waits for the view, and the rest of the stream behind it
    me = threading.get_ident()
    guests = dev.scheduler.shutdown.guests
    watch = holder.let_go_once(lambda: any(guest.thread == me for guest in tuple(guests)))
    work(dev, other)
    dev.synchronize()
    holder.end()
    join(watch)
    assert set(x.numpy().tolist()) == {1}
    dev.close()


def test_arguments_are_right_after_a_wait_for_room(open_device: OpenDevice) -> None:
    dev = open_device()
    y = dev.zeros(1, np.uint32)
    block = np.arange(100, dtype=np.uint32)
    for _ in range(50):
        block_sum(y, 0, block)
    assert y[0].item() == block_sum_of(block)


def test_a_wait_under_the_lock_is_found(any_device: ps.Device) -> None:
    x = any_device.zeros(N, np.uint32)
    slow_add(x, 1, spin=0)
    event = any_device.default_stream.record()
    with any_device.scheduler.lock, pytest.raises(AssertionError, match="under the device's lock"):
        any_device.scheduler.await_points(event._points or {any_device.default_stream.lane: 1})
    event.wait()


def test_times_are_waited_for_no_longer_than_asked(open_device: OpenDevice) -> None:
    dev = open_device()
    x = dev.zeros(N, np.uint32)
    run = kernel(dev, SLOW_ADD, "slow_add")
    with held(dev.default_stream):
        with ps.trace() as receipt:
            run(x=x, n=N, spin=0, add=1, threads=N)
        receipt.wait_for_times(0.01)
        receipt.wait_for_times(0.01)
        assert all(event.device_seconds is None for event in receipt.of_kind("launch"))
        # And nothing is held back by it.
        thread, outcome = in_thread(lambda: dev.full(4, 3).tolist())
        join(thread)
        assert outcome == [[3.0] * 4]
    dev.synchronize()
    receipt.wait_for_times()
    (launch,) = receipt.of_kind("launch")
    assert launch.device_seconds is not None or not dev.scheduler.driver.has_clock


def test_closed_streams_do_not_pile_up(open_device: OpenDevice) -> None:
    dev = open_device()
    x = dev.zeros(N, np.uint32)

    def objects() -> int:
        return len(dev.scheduler.driver.handles)  # type: ignore[attr-defined]

    def turn() -> None:
        with dev.stream() as stream:
            slow_add(x, 1, stream, spin=0)

    for _ in range(5):
        turn()
    before = objects()
    for _ in range(100):
        turn()
    assert objects() <= before + 10
    assert set(x.numpy().tolist()) == {105}


def busy_stream(device: ps.Device) -> tuple[ps.Stream, ps.Array]:
    """A stream with a launch on it, and the array to which that adds 1."""
    x = device.zeros(N, np.uint32)
    stream = device.stream()
    slow_add(x, 1, stream)
    return stream, x


def test_a_stream_that_is_being_closed_takes_no_work(
    any_device: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came between the wait and the end would lose its queue while it runs."""
    scheduler = any_device.scheduler
    stream, x = busy_stream(any_device)
    wait_for = scheduler.wait_for

    def late(points: Any, timeout: float | None, reason: str, *more: Any, **details: Any) -> bool:
        over = wait_for(points, timeout, reason, *more, **details)
        if "close()" in reason:
            with pytest.raises(ps.Closed):
                slow_add(x, 1, stream)
        return over

    monkeypatch.setattr(scheduler, "wait_for", late)
    stream.close()
    assert (x.numpy() == 1).all()


def test_a_stream_whose_close_is_cut_short_ends_by_itself(
    any_device: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = any_device.scheduler
    stream, x = busy_stream(any_device)

    def interrupt(*_: Any, **__: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stream.close()
    assert stream.closed
    stream.close()
    assert (x.numpy() == 1).all()
    any_device.synchronize()
    scheduler.catch_up()
    assert stream not in scheduler.all_streams()


def test_a_copy_behind_the_callers_own_view_is_an_error(open_device: OpenDevice) -> None:
    """The copier waits for work that waits for the view, so a wait for the copier never ends."""
    dev = open_device()
    x, z = dev.zeros(1 << 19, np.float32), dev.zeros(1 << 19, np.float32)
    add = dev.elementwise("y[i] = y[i] + x[i]", "in float32 x, inout float32 y", name="add")
    add(x, z)
    held_here = x.view("rw")
    thread, outcome = in_thread(lambda: add(x, z))
    join(thread)
    assert outcome == [None]
    read = z.read(out=np.empty(1 << 19, np.float32))
    written = z[: 1 << 18].write(np.ones(1 << 18, np.float32), borrow=True)
    for pending in (read, written):
        with pytest.raises(ps.ViewHeld, match="forever"):
            pending.result()
    del held_here
    assert (read.result() == 0).all()
    written.result()
    assert (z.numpy()[: 1 << 18] == 1).all()


def test_a_view_of_an_ended_thread_belongs_to_everybody(any_device: ps.Device) -> None:
    x = any_device.zeros(N, np.uint32)
    thread, views = in_thread(lambda: x.view("rw"))
    join(thread)
    views[0][:] = 5
    with pytest.raises(ps.ViewHeld, match="ended"):
        slow_add(x, 1)
    assert (x.numpy() == 5).all()
    views.clear()
    slow_add(x, 1)
    assert (x.numpy() == 6).all()


def test_a_long_wait_for_a_view_of_another_thread_gives_a_warning(
    open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view can be handed on by a thread that lives: then only the user knows who has it."""
    monkeypatch.setattr(host_views, "LONG", 0.2)
    dev = open_device()
    x = dev.zeros(N, np.uint32)
    made, drop = threading.Event(), threading.Event()

    def hold_it() -> None:
        view = x.view("rw")
        made.set()
        drop.wait(60)
        del view

    thread, _ = in_thread(hold_it)
    thread.name = "the holder"
    assert made.wait(60)
    slow_add(x, 1)
    waiting = dev.default_stream.record()
    with pytest.warns(RuntimeWarning, match="made by thread the holder"):
        assert not _within(waiting, 1.0)
    drop.set()
    join(thread)
    assert (x.numpy() == 1).all()


def _within(event: ps.Event, seconds: float) -> bool:
    try:
        event.wait(seconds)
    except ps.Timeout:
        return False
    return True
