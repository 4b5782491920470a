"""Scratch: one owner, one stream, allocated when needed, grown safely, released without fuss."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

import penstock as ps
from tests.conftest import OpenDevice, faults, simulated
from tests.kernels import slow_add, slow_copy
from tests.schedule.test_lifecycle import run_script

KIB = 1024


def settled(dev: ps.Device) -> int:
    gc.collect()
    dev.synchronize()
    return dev.memory.used


def test_nothing_is_allocated_until_it_is_needed(open_device: OpenDevice) -> None:
    dev = open_device()
    with ps.trace() as t:
        scratch = dev.scratch()
        scratch.reserve(0)
        scratch.release()
    assert (t.allocations, scratch.capacity, dev.memory.used) == (0, 0, 0)
    x = scratch.array(100, np.uint32)
    x.fill(3)
    assert (x.numpy() == 3).all()
    assert dev.memory.used >= scratch.capacity >= 400
    slow_add(x, 1, spin=0)
    with ps.trace() as t:
        for _ in range(200):
            assert scratch.array(100, np.uint32).buffer is x.buffer
            scratch.reserve(scratch.capacity)
            slow_add(scratch.array((10, 10), np.uint32).reshape(100), 1, spin=0)
    assert (t.allocations, t.waits, t.copies) == (0, 0, 0)
    assert (x.numpy() == 204).all()


def test_it_grows_geometrically(any_device: ps.Device) -> None:
    scratch = any_device.scratch()
    grown = 0
    before = 0
    for nbytes in range(1, 200_000, 1000):
        scratch.reserve(nbytes)
        assert scratch.capacity >= nbytes
        if scratch.capacity != before:
            assert scratch.capacity >= 2 * before
            grown += 1
            before = scratch.capacity
    assert grown <= 18  # doublings from 1 to 200,000
    scratch.reserve(1)
    assert scratch.capacity == before
    scratch.close()


def test_it_grows_while_it_is_in_use(any_device: ps.Device) -> None:
    """Work in flight finishes on the old memory, which comes back when it is done."""
    y = any_device.zeros(1024, np.uint32)
    scratch = any_device.scratch()
    used = settled(any_device)
    for value in range(8):
        x = scratch.array(1024, np.uint32)
        x.fill(value)
        slow_copy(x, y)
        with ps.trace() as t:
            scratch.reserve(2 * scratch.capacity)
        assert t.waits == 0
        with pytest.raises(ps.Closed):
            x.numpy()
        scratch.array(1024, np.uint32).fill(99)
        assert (y.numpy() == value).all()
    assert settled(any_device) == used + scratch.capacity
    scratch.release()
    assert settled(any_device) == used


@pytest.mark.parametrize("seed", range(10))
def test_what_is_in_there_moves_along(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with simulated(seed) as dev, dev.stream() as stream:
        scratch = dev.scratch(stream)
        content = np.zeros(0, np.uint32)
        for _ in range(8):
            size = int(rng.integers(1, 2000))
            x = scratch.array(max(size, content.size), np.uint32, keep=True)
            n = content.size
            assert (x[:n].numpy() == content).all()
            slow_add(x[:n] if n else x, 0, stream)
            fresh = rng.integers(0, 1000, x.size, dtype=np.uint32)
            x.write(fresh, stream if rng.random() < 0.5 else None)
            slow_add(x, 1, stream)
            content = fresh + 1
        scratch.reserve(100 * KIB, keep=True)
        assert (scratch.array(content.size, np.uint32).numpy() == content).all()


@pytest.mark.parametrize("keep", [False, True])
def test_a_grow_that_fails_changes_nothing(keep: bool) -> None:
    for number, fault in enumerate(faults(30)):
        with simulated(number, fault=fault) as dev:
            scratch = dev.scratch()
            x = scratch.array(1000, np.uint32)
            x.write(np.arange(1000, dtype=np.uint32))
            slow_add(x, 1)
            dev.synchronize()
            used, capacity = dev.memory.used, scratch.capacity
            fault.armed = True
            try:
                scratch.reserve(2_000_000, keep=keep)
            except ps.OutOfMemory:
                assert (scratch.capacity, dev.memory.used) == (capacity, used)
                assert not x.closed
                fault.armed = False
                slow_add(x, 1)
                slow_add(x, -1 % 2**32)
                assert (x.numpy() == np.arange(1, 1001)).all()
                scratch.reserve(2_000_000, keep=keep)
            fault.armed = False
            assert x.closed
            assert scratch.capacity >= 2_000_000
            if keep:
                assert (scratch.array(1000, np.uint32).numpy() == np.arange(1, 1001)).all()
            fault.armed = True


def test_where_twice_as_much_does_not_fit_what_is_needed_may() -> None:
    with simulated(1) as dev:
        scratch = dev.scratch()
        scratch.reserve(8 << 20)
        dev.scheduler.pool._limit = 12 << 20  # bytes in one piece
        with pytest.raises(ps.OutOfMemory):
            scratch.reserve(13 << 20)
        assert scratch.capacity == 8 << 20
        scratch.reserve(10 << 20)
        assert scratch.capacity == 10 << 20


def test_it_moves_to_a_new_owner(any_device: ps.Device) -> None:
    used = settled(any_device)
    scratch = any_device.scratch(name="mine")
    x = scratch.array(1000, np.uint32)
    x.fill(5)
    other = scratch.move()
    assert (scratch.capacity, other.capacity >= 4000, other.name) == (0, True, "mine")
    assert (other.array(1000, np.uint32).numpy() == 5).all()
    assert not x.closed
    scratch.release()  # it has nothing
    scratch.array(10).fill(1)  # and can be used again
    assert (other.array(1000, np.uint32).numpy() == 5).all()
    other.close()
    assert x.closed
    with pytest.raises(ps.Closed):
        other.array(1)
    with pytest.raises(ps.Closed):
        other.move()
    empty = any_device.scratch().move()
    assert empty.capacity == 0
    scratch.close()
    del x, other
    assert settled(any_device) == used


@pytest.mark.parametrize("end", ["release", "close", "with", "drop"])
def test_the_memory_comes_back(end: str, any_device: ps.Device) -> None:
    y = any_device.zeros(1024, np.uint32)
    used = settled(any_device)
    for _ in range(3):
        scratch = any_device.scratch()
        x = scratch.array(1024, np.uint32)
        x.fill(7)
        slow_copy(x, y)  # still under way
        del x
        if end == "with":
            with scratch:
                pass
        elif end == "drop":
            del scratch
        else:
            getattr(scratch, end)()
            getattr(scratch, end)()
        assert (y.numpy() == 7).all()
        assert settled(any_device) == used
    assert end in ("with", "drop") or scratch.capacity == 0


def test_an_array_outlives_a_scratch_that_is_forgotten(any_device: ps.Device) -> None:
    x = any_device.scratch().array(1024, np.uint32)
    gc.collect()
    x.fill(4)
    assert (x.numpy() == 4).all()
    x.close()


def test_releasing_never_raises(open_device: OpenDevice) -> None:
    dev = open_device()
    with dev.stream() as stream:
        orphan = dev.scratch(stream)
        orphan.reserve(KIB)
    with pytest.raises(ps.Closed, match="stream"):
        orphan.reserve(2 * orphan.capacity)
    orphan.release()
    scratch = dev.scratch()
    slow_add(scratch.array(1024, np.uint32), 1)
    dev.close()
    with pytest.raises(ps.Closed):
        scratch.array(2048)
    scratch.release()
    scratch.close()
    scratch.close()
    lost = False

    def fault(name: str, _: int) -> BaseException | None:
        return ps.DeviceLost("gone") if lost and name == "submit" else None

    with ps.Device(driver="sim", fault=fault) as sim:
        scratch = sim.scratch()
        x = scratch.array(1024, np.uint32)
        lost = True
        with pytest.raises(ps.DeviceLost):  # noqa: PT012
            slow_add(x, 1)
            sim.synchronize()
        with pytest.raises(ps.DeviceLost):
            scratch.reserve(1 << 20)
        scratch.release()
        scratch.close()


def test_a_forked_child_may_release(driver: str) -> None:
    done = run_script(
        f"""
        dev = ps.Device({driver!r})
        scratch = dev.scratch()
        x = scratch.array(16)
        x.fill(1)
        pid = os.fork()
        if pid == 0:
            try:
                scratch.array(1000)
            except ps.ForkedDevice:
                scratch.release()
                scratch.close()
                del scratch, x
                sys.exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert float(scratch.array(16)[0]) == 1.0
        print("end")
        """,
        **os.environ,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


def test_what_is_refused(any_device: ps.Device) -> None:
    scratch = any_device.scratch()
    for call, error in (
        (lambda: scratch.reserve(-1), ps.InvalidValue),
        (lambda: scratch.reserve(1.5), ps.ArgumentError),  # type: ignore[arg-type]
        (lambda: scratch.reserve("1"), ps.ArgumentError),  # type: ignore[arg-type]
        (lambda: scratch.reserve(1 << 60), ps.OutOfMemory),
        (lambda: scratch.array((-1, 2)), ps.Error),
        (lambda: scratch.array(1, object), ps.DtypeMismatch),
        (lambda: any_device.scratch(5), ps.ArgumentError),  # type: ignore[arg-type]
    ):
        with pytest.raises(error):
            call()
    assert scratch.capacity == 0
    with ps.Device(driver="sim") as other, pytest.raises(ps.ArgumentError, match="not a stream of"):
        any_device.scratch(other.default_stream)
