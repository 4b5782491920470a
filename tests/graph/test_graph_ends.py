"""Graphs: views that are held, failures, and the end of what they use."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.conftest import OpenDevice, faults, simulated
from tests.kernels import (
    FIRST,
    SLOW_ADD,
    block_sum,
    block_sum_of,
    first,
    new_kernel,
    slow_add,
    slow_copy,
)
from tests.schedule.test_lifecycle import run_script

N = 64


def arrays(dev: ps.Device, *values: int) -> list[ps.Array]:
    made = [dev.full(N, value, np.uint32) for value in values]
    dev.synchronize()
    return made


# Host access to what a graph uses.


def test_a_host_write_does_not_rename(any_device: ps.Device) -> None:
    x, y = arrays(any_device, 1, 0)
    with any_device.record() as g:
        slow_copy(x, y)
    g.replay()
    before = x.buffer.backing
    for value in range(2, 6):
        g.replay()
        with ps.trace() as t:
            x.write(np.full(N, value, np.uint32))  # while it is read
        assert (t.renames, t.waits) == (0, 0)
        g.replay()
        assert (y.numpy() == value).all()
    assert x.buffer.backing is before
    g.close()
    any_device.synchronize()
    slow_copy(x, y, spin=0)
    x.write(np.full(N, 9, np.uint32))
    assert (x.numpy() == 9).all()


def test_a_host_read_waits_for_replays_that_write_only(any_device: ps.Device) -> None:
    x, y = arrays(any_device, 1, 0)
    with any_device.record() as g:
        slow_copy(x, y)
    g.replay()
    g.replay()
    with ps.trace() as t:
        assert (x.numpy() == 1).all()
    assert t.waits == 0
    assert (y.numpy() == 1).all()


def test_views_that_are_held(any_device: ps.Device) -> None:
    x, y, z = arrays(any_device, 1, 2, 3)
    with any_device.record() as g:
        z.fill(9)
        slow_copy(x, y, spin=0)
    for _ in range(2):  # before it is encoded, and after
        shown = y.view()
        with pytest.raises(ps.ViewHeld):
            g.replay()
        assert (shown == 2).all()
        assert (z.numpy() == 3).all()  # nothing was done
        del shown
        writable = x.view("rw")
        with pytest.raises(ps.ViewHeld):
            g.replay()
        writable[:] = 5
        del writable
        assert (z.numpy() == 3).all()
        g.replay()
        assert (y.numpy() == 5).all()
        y.fill(2)
        z.fill(3)
    reading = x.view()
    g.replay()  # which only reads it
    assert (reading == 5).all()


# Failures change nothing.


def test_running_out_of_memory_changes_nothing() -> None:
    for number, fault in enumerate(faults(60)):
        with simulated(number, fault=fault) as dev:
            x, y = arrays(dev, 1, 0)
            big = dev.zeros(270_000, np.uint32)
            with dev.record(add=1, block=np.ones(100, np.uint32)) as g:
                slow_add(x, g["add"])  # type: ignore[arg-type]
                block_sum(y, 0, g["block"])  # type: ignore[arg-type]
                big[8:].copy_from(big[:-8])  # through memory of the graph's own
                big[0].fill(7)
                first(x, 10)
            first(x, 0).result()
            used = dev.memory.used
            fault.armed = True
            done = 0
            for add in (1, 1, 2):
                for _ in range(3):
                    before = x[0].item() if not fault.reached else None
                    try:
                        r = g.replay(add=add)
                    except ps.OutOfMemory:
                        if before is not None:
                            assert _again(x[0].item) == before
                        continue
                    done += add
                    assert _again(r.result) == 1 + done + 10
                    break
            assert _again(x.numpy)[0] == 1 + done == 5
            assert y[0].item() == block_sum_of(np.ones(100))
            assert big[:32].tolist() == [7, *[0] * 7, 7, *[0] * 7, 7, *[0] * 15]
            g.close()
            del g, r
            dev.synchronize()
            assert dev.memory.used == used


def _again(call: Callable[[], Any]) -> Any:
    """The value; submitting may run out of memory, too, and is then tried again."""
    for _ in range(3):
        with contextlib.suppress(ps.OutOfMemory):
            return call()
    raise AssertionError("out of memory for good")


@pytest.mark.parametrize("call", ["begin", "submit", "wait"])
def test_a_lost_device_says_so(call: str) -> None:
    lost = False

    def fault(name: str, number: int) -> BaseException | None:
        return ps.DeviceLost("gone") if lost and name == call else None

    with ps.Device(driver="sim", seed=2, fault=fault) as dev:
        (x,) = arrays(dev, 1)
        with dev.record() as g:
            first(x, 1)
        g.replay().result()
        lost = True
        with pytest.raises(ps.DeviceLost):
            g.replay().result()
        for _ in range(2):
            with pytest.raises(ps.DeviceLost):
                g.replay()
        g.close()


# Ends of life.


def test_everything_may_end_in_any_order(open_device: OpenDevice) -> None:
    orders = itertools.permutations(("graph", "kernel", "array", "stream"))
    for order in itertools.islice(orders, 0, None, 3):
        dev = open_device()
        (x,) = arrays(dev, 1)
        stream = dev.stream()
        run = dev.kernel(SLOW_ADD, name="add")
        with dev.record() as g:
            run(x=x, n=N, spin=20_000, add=1, threads=N)
        for on in (None, stream):
            g.replay(on)
        last = x.read()
        things: dict[str, Any] = {"graph": g, "kernel": run, "array": x, "stream": stream}
        del g, run, x
        for number, name in enumerate(order):
            if number % 2:
                things.pop(name).close()
            else:
                del things[name]
                gc.collect()
            if "graph" in things and number:
                with contextlib.suppress(ps.Closed):
                    things["graph"].replay()
        assert (last.result() == 3).all()
        dev.close()
        del stream
    gc.collect()


def test_a_closed_thing_says_so(any_device: ps.Device) -> None:
    run = new_kernel(any_device, SLOW_ADD, "add")
    x, y = arrays(any_device, 1, 1)
    with any_device.record(y=y) as g:
        run(x=x, n=N, spin=0, add=1, threads=N)
        y.fill(1)
    g.replay()
    y.close()
    with pytest.raises(ps.Closed, match="array"):
        g.replay()
    (other,) = arrays(any_device, 0)
    g.replay(y=other)
    with any_device.stream() as stream:
        pass
    with pytest.raises(ps.Closed, match="stream"):
        g.replay(stream, y=other)
    run.close()
    with pytest.raises(ps.Closed, match="kernel add"):
        g.replay(y=other)
    g.close()
    g.close()
    with pytest.raises(ps.Closed, match="graph"):
        g.replay()
    assert (x.numpy() == 3).all()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_memory_comes_back(end: str, any_device: ps.Device) -> None:
    x, y = arrays(any_device, 1, 0)
    run = new_kernel(any_device, FIRST)
    used = 0
    for _ in range(3):
        with any_device.record(y=y) as g:
            y.write(np.arange(N, dtype=np.uint32))
            y[8:].copy_from(y[:-8])
            block_sum(y, 0, np.ones(100, np.uint32))
            run(x=x, n=1, spin=0, add=1, groups=1)
        unread = [g.replay(y=any_device.zeros(N, np.uint32)) for _ in range(20)]
        assert unread[3].result() == 2
        if end == "close":
            g.close()
        del g
        gc.collect()
        assert [r.result() for r in unread] == [2] * 20
        del unread
        gc.collect()
        any_device.synchronize()
        used = used or any_device.memory.used  # the kernel keeps its slots
        assert any_device.memory.used == used
    assert not y.buffer.graphs


def test_arrays_that_a_graph_uses_may_be_dropped(any_device: ps.Device) -> None:
    x, y = arrays(any_device, 3, 0)
    with any_device.record() as g:
        slow_copy(x, y, spin=0)
    del x
    gc.collect()
    g.replay()
    assert (y.numpy() == 3).all()


IN_FLIGHT = f"""
    sys.path.insert(0, {str(Path(__file__).parents[2])!r})
    from tests.kernels import block_sum, first, slow_add
    dev = ps.Device({{driver!r}})
    x = dev.zeros(64, np.uint32)
    with dev.record(add=1) as g:
        slow_add(x, g["add"])
        block_sum(x, 0, np.ones(100, np.uint32))
        first(x, 1)
    results = [g.replay(add=i % 3) for i in range(40)] + [first(x, 2) for _ in range(40)]
"""


def test_a_forked_child_is_told(driver: str) -> None:
    done = run_script(
        IN_FLIGHT.format(driver=driver)
        + """
    pid = os.fork()
    if pid == 0:
        for use in (g.replay, results[0].result, lambda: float(results[50]), lambda: first(x, 1)):
            try:
                use()
            except ps.ForkedDevice:
                continue
            os._exit(1)
        del g, results, x
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert results[-1] == 5052
    print("end")
    """
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


def test_exit_with_replays_in_flight(driver: str) -> None:
    done = run_script(IN_FLIGHT.format(driver=driver) + "    print('end')\n")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


def test_threads_replay_one_graph(threaded_device: ps.Device) -> None:
    dev = threaded_device
    (x,) = arrays(dev, 5)
    total = dev.zeros(N, np.uint32)
    with dev.record(add=0) as g:
        slow_add(total, g["add"], spin=0)  # type: ignore[arg-type]
        first(x, g["add"])  # type: ignore[arg-type]
    wrong: list[object] = []

    def work(number: int) -> None:
        stream = dev.stream() if number % 2 else None
        for i in range(60):
            r = g.replay(stream, add=i % 20)
            if i % 3 and r.result() != 5 + i % 20:
                wrong.append((number, i, r.result()))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert (total.numpy() == 4 * 3 * sum(range(20))).all()


def test_what_a_closed_graph_used_may_get_other_memory(any_device: ps.Device) -> None:
    x = any_device.zeros(64, np.uint32)
    with any_device.record() as g:
        slow_add(x, 1, spin=0)
    g.replay()
    shown = x.view()
    with pytest.raises(ps.ViewHeld, match="a graph uses it"):
        slow_add(x, 1, spin=0)
    g.close()
    slow_add(x, 1, spin=0)
    assert (shown == 1).all()
    assert (x.numpy() == 2).all()
