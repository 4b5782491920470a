"""Closing, forgetting, threads, forks and the end of the interpreter."""

from __future__ import annotations

import asyncio
import builtins
import copy
import dis
import gc
import importlib
import os
import pickle
import pkgutil
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.conftest import OpenDevice
from tests.gate import held
from tests.kernels import SLOW_ADD, new_kernel, slow_add, slow_copy

N = 1024


def run_script(body: str, **env: str) -> subprocess.CompletedProcess[str]:
    script = "import os, sys\nimport numpy as np\nimport penstock as ps\n" + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
    )


def test_everything_closes_and_says_so(open_device: OpenDevice) -> None:
    dev = open_device()
    x = dev.ones(N, np.uint32)
    stream = dev.stream()
    slow_add(x, 1, stream)
    event = stream.record()
    stream.close()
    stream.close()
    assert event.done
    with pytest.raises(ps.Closed):
        stream.flush()
    with pytest.raises(ps.Closed):
        slow_add(x, 1, stream)
    y = x.copy()
    with x:
        pass
    with pytest.raises(ps.Closed, match="array"):
        x.numpy()
    kernel = dev.kernel(SLOW_ADD)
    kernel.close()
    with pytest.raises(ps.Closed, match="kernel"):
        kernel(x=y, n=1, spin=0, add=1, threads=1)
    dev.close()
    dev.close()
    for use in (
        y.numpy,
        y.read,
        lambda: y.fill(1),
        dev.stream,
        dev.synchronize,
        lambda: dev.zeros(1),
        lambda: dev.kernel(SLOW_ADD),
    ):
        with pytest.raises(ps.Closed):
            use()


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}


@pytest.mark.parametrize("way", COPIES)
def test_handles_are_not_copied(way: str, open_device: OpenDevice) -> None:
    dev = open_device()
    x = dev.ones(N, np.uint32)
    stream, kernel, result = dev.stream(), dev.kernel(SLOW_ADD), x.sum()
    double = dev.elementwise("x[i] = 2 * x[i]", "inout uint32 x")
    with dev.record() as graph:
        double(x)
    with ps.trace() as trace:
        event, pending = stream.record(), x.read()
    handles = (
        dev, stream, kernel, result, double, graph, trace, event, pending, dev.scratch(),
    )  # fmt: skip
    for handle in handles:
        name = type(handle).__name__
        with pytest.raises(ps.ArgumentError, match=f"a {name} cannot be copied or pickled"):
            COPIES[way](handle)
        with pytest.raises(TypeError):
            COPIES[way]([handle] if way != "copy" else handle)
    # All of them are as they were.
    assert result.result() == N
    assert (pending.result() == 1).all()
    graph.replay()
    kernel(x=x, n=N, spin=0, add=1, threads=N, stream=stream)
    event.wait()
    assert (x.numpy() == 3).all()
    assert not dev.closed
    assert copy.copy(dev.info) == copy.deepcopy(dev.info) == dev.info
    assert pickle.loads(pickle.dumps(dev.memory)) == dev.memory


def test_close_finishes_work_and_values_stay(open_device: OpenDevice) -> None:
    dev = open_device()
    x = dev.ones(N, np.uint32)
    h = dev.host_empty(N, np.uint32)
    h[:] = 5
    slow_add(x, 1)
    read = x.read()
    slow_add(dev.adopt(h), 1)
    event = dev.default_stream.record()
    view = dev.full(N, 9, np.uint32).view()
    dev.close()
    assert event.done
    assert (read.result() == 2).all()
    assert (h == 6).all()
    assert (view == 9).all()
    part = h[10:20]
    del h, view, read
    gc.collect()
    assert (part == 6).all()


def test_arrays_dropped_in_flight_do_their_work(open_device: OpenDevice) -> None:
    dev = open_device()
    y = dev.zeros(N, np.uint32)
    x = dev.full(N, 4, np.uint32)
    slow_copy(x, y)
    del x
    gc.collect()
    assert (y.numpy() == 4).all()


def test_a_forgotten_stream_does_its_work_and_is_released(open_device: OpenDevice) -> None:
    dev = open_device()
    x = dev.zeros(N, np.uint32)
    for _ in range(20):
        stream = dev.stream()
        slow_add(x, 1, stream, spin=100)
        del stream
    assert (x.numpy() == 20).all()
    x.close()
    del x
    gc.collect()
    dev.zeros(1)  # a safe moment to act on what was forgotten
    dev.synchronize()
    dev.zeros(1)
    assert len(dev.scheduler.all_streams()) <= 3


def test_streams_may_end_while_they_are_looked_through(dev: ps.Device) -> None:
    """The garbage collector may run at any allocation, and then streams end there."""
    others = [dev.stream() for _ in range(20)]  # small tuples are not allocated anew
    before = gc.get_threshold()
    try:
        for allocations in range(30):
            gc.collect(1)
            gc.disable()
            cycle: list[Any] = [dev.stream() for _ in range(3)]
            cycle.append(cycle)
            del cycle
            gc.set_threshold(gc.get_count()[0] + allocations)
            gc.enable()
            assert {*others} < {*dev.scheduler.living_streams()}
            gc.set_threshold(*before)
    finally:
        gc.enable()
        gc.set_threshold(*before)


def test_a_forgotten_device_is_released(driver: str) -> None:
    dev = ps.Device(driver)
    slow_add(dev.zeros(N, np.uint32), 1)
    gone = weakref.ref(dev)
    from tests import kernels

    kernels._kernels.pop(dev)
    del dev
    gc.collect()
    assert gone() is None


def test_threads_share_a_device(threaded_device: ps.Device) -> None:
    dev = threaded_device
    total = dev.zeros(N, np.uint32)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            stream = dev.stream() if seed % 2 else dev.default_stream
            own = dev.zeros(N, np.uint32)
            mirror = np.zeros(N, np.uint32)
            for _ in range(40):
                lo = int(rng.integers(0, N - 64))
                part = rng.integers(0, 1000, 64, dtype=np.uint32)
                own[lo : lo + 64].write(part, stream=stream)
                mirror[lo : lo + 64] = part
                slow_add(own, 1, stream, spin=10)
                mirror += 1
                slow_add(total, 1, stream, spin=0)
                if rng.random() < 0.2:
                    assert (own.read(stream=stream).result() == mirror).all()
            assert (own.numpy() == mirror).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert (total.numpy() == 240).all()


def test_large_copies_of_other_threads_are_whole(threaded_device: ps.Device) -> None:
    """A large host copy is made without the lock; work on the same bytes is ordered against it."""
    dev = threaded_device
    big = dev.zeros(4 << 20, np.uint32)
    seen = dev.zeros(4 << 20, np.uint32)
    stop = threading.Event()

    def write() -> None:
        value = 0
        while not stop.is_set():
            value += 1
            big.write(np.full(4 << 20, value, np.uint32))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            seen.copy_from(big)
            content = seen.numpy()
            assert (content == content[0]).all()
    finally:
        stop.set()
        writer.join()


def test_asyncio(dev: ps.Device) -> None:
    async def one(value: int) -> int:
        x = dev.full(N, value, np.uint32)
        stream = dev.stream()
        slow_add(x, 1, stream)
        await stream.record()
        slow_add(x, 1, stream)
        return int((await x.read(stream=stream))[0])

    async def many() -> list[int]:
        return await asyncio.gather(*(one(value) for value in range(8)))

    assert asyncio.run(many()) == [value + 2 for value in range(8)]


def test_timeouts_leave_the_work_going(dev: ps.Device) -> None:
    x = dev.zeros(N, np.uint32)
    with held(dev.default_stream):
        slow_add(x, 1, spin=0)
        read = x.read()
        with pytest.raises(ps.Timeout) as error:
            read.result(timeout=0.001)
        assert isinstance(error.value, TimeoutError)
        with pytest.raises(ps.Timeout):
            dev.synchronize(0.001)
    assert (read.result() == 1).all()


def test_recorded_work_runs_without_being_asked_for(dev: ps.Device) -> None:
    """The device is never left idle while work is waiting, even if the program does not call."""
    x, y = dev.zeros(N, np.uint32), dev.zeros(N, np.uint32)
    dev.synchronize()
    slow_add(x, 1)
    slow_add(y, 1, spin=0)
    slow_add(y, 1, spin=0)
    lane = dev.default_stream.lane
    deadline = time.monotonic() + 20
    while dev.default_stream.has_recorded and time.monotonic() < deadline:
        time.sleep(0.002)
    assert not dev.default_stream.has_recorded
    assert lane.submitted == lane.recorded


@pytest.mark.parametrize("error", [ps.Error("once"), MemoryError()])
def test_an_error_does_not_end_the_thread_that_submits(
    open_device: OpenDevice, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = open_device()
    x = dev.zeros(N, np.uint32)
    slow_add(x, 1)
    slow_add(x, 1, spin=0)
    scheduler, failed = dev.scheduler, threading.Event()
    real = scheduler.idle_submitter.submit_dry_streams

    def fail_once(given: Any) -> bool:
        if failed.is_set():
            return real(given)
        failed.set()
        raise error

    monkeypatch.setattr(scheduler.idle_submitter, "submit_dry_streams", fail_once)
    assert failed.wait(20)
    slow_add(x, 1, spin=0)
    deadline = time.monotonic() + 20
    while dev.default_stream.has_recorded and time.monotonic() < deadline:
        time.sleep(0.002)
    assert not dev.default_stream.has_recorded


def test_exit_with_work_pending(driver: str) -> None:
    done = run_script(
        f"""
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from tests.kernels import slow_add
        dev = ps.Device({driver!r})
        x = dev.zeros(1024, np.uint32)
        h = dev.host_empty(1024, np.uint32)
        stream = dev.stream()
        for _ in range(10):
            slow_add(x, 1, stream)
            slow_add(dev.adopt(h), 1)
            x.write(np.zeros(1024, np.uint32), borrow=True)
            read = x.read(stream=stream)
        view = x.view()
        print("end")
        """
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


def test_finalisers_need_no_globals() -> None:
    """At the end of the interpreter a finaliser may run when its module's globals are gone."""
    modules = pkgutil.walk_packages(ps.__path__, "penstock.")
    names = [each.name for each in modules if not each.name.endswith("__main__")]
    finalisers = {
        function
        for name in names
        for kind in vars(importlib.import_module(name)).values()
        if isinstance(kind, type) and (function := vars(kind).get("__del__")) is not None
    }
    assert len(finalisers) > 5
    for function in finalisers:
        used = {
            each.argval for each in dis.get_instructions(function) if each.opname == "LOAD_GLOBAL"
        }
        assert used <= vars(builtins).keys(), (function, used)


def test_a_forked_child_is_told(driver: str) -> None:
    done = run_script(
        f"""
        dev = ps.Device({driver!r})
        x = dev.ones(16)
        pid = os.fork()
        if pid == 0:
            for use in (x.numpy, dev.synchronize, lambda: dev.zeros(1), lambda: x.fill(1)):
                try:
                    use()
                except ps.ForkedDevice as error:
                    assert "fork" in str(error)
                else:
                    os._exit(1)
            with ps.Device({driver!r}) as own:
                assert float(own.ones(1)[0]) == 1.0
            del x
            sys.exit(0)
        status = os.waitpid(pid, 0)[1]
        assert status == 0, status
        assert float(x[0]) == 1.0
        print("end")
        """
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


def test_a_lost_device_tells_everyone(
    open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = open_device()
    x, big = dev.zeros(N, np.uint32), dev.zeros(1 << 20, np.uint32)
    with held(dev.default_stream):
        slow_add(x, 1, spin=0)
        slow_copy(big[:N], x, spin=0)
        pending: list[Any] = [
            x.read(),
            x.read(out=np.zeros(N, np.uint32)),
            big[: 1 << 19].write(np.zeros(1 << 19, np.uint32), borrow=True),
            dev.default_stream.record(),
        ]
        driver: Any = dev.scheduler.driver

        def lose(*_: Any) -> Any:
            raise ps.DeviceLost("gone")

        monkeypatch.setattr(driver, "wait", lose)
        monkeypatch.setattr(type(dev.default_stream.timeline), "value", lose)
        failures: list[object] = []

        def use(one: Any) -> None:
            try:
                one.wait(10)
                failures.append(one)
            except ps.DeviceLost:
                pass

        threads = [threading.Thread(target=use, args=(one,)) for one in pending]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert not failures
        with pytest.raises(ps.DeviceLost):
            dev.zeros(1)
    monkeypatch.undo()
    dev.close()


def test_a_finaliser_in_the_middle_of_a_command_is_refused(
    any_device: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the garbage collector ran it between the barrier and the launch that needs it."""
    dev = any_device
    run = new_kernel(dev, SLOW_ADD, "slow_add")
    run._retire()  # the native step has no such moment
    x, y = dev.zeros(8, np.uint32), dev.zeros(8, np.uint32)
    run(x=x, n=8, spin=0, add=1, threads=8)
    dev.synchronize()
    refused: list[BaseException] = []

    def finalise() -> None:
        for use in (
            lambda: run(x=y, n=8, spin=0, add=1, threads=8),
            lambda: y[1:].copy_from(y[:-1]),
            lambda: dev.default_stream.flush(),
        ):
            try:
                use()
            except ps.Reentered as error:
                refused.append(error)

    def dispatch(self: Any, *given: Any) -> None:
        finalise()
        real(self, *given)

    with dev.default_stream.batch():
        run(x=x, n=8, spin=0, add=1, threads=8)
        recordings = type(dev.default_stream._batch.recording)
        real = recordings.dispatch
        with monkeypatch.context() as patch:
            patch.setattr(recordings, "dispatch", dispatch)
            run(x=x, n=8, spin=0, add=1, threads=8)
        run(x=y, n=8, spin=0, add=5, threads=8)
    assert len(refused) == 3
    assert (x.numpy() == 3).all()
    assert (y.numpy() == 5).all()
