"""Device memory: few allocations, reuse only after the last use, statistics, running out."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.memory.pool import size_class
from tests.conftest import OpenDevice, leave_to_python
from tests.kernels import slow_add, slow_copy


@given(st.integers(1, 1 << 40))
def test_size_classes_waste_little(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes
    assert size % 256 == 0
    assert size == 256 or size < max(nbytes * 1.25, nbytes + 256)
    assert size_class(size) == size


def test_many_arrays_share_few_allocations(open_device: OpenDevice) -> None:
    dev = open_device()
    arrays = [dev.full(100, i, np.uint32) for i in range(500)]
    assert dev.memory.allocations <= 2
    assert all(int(x[0]) == i for i, x in enumerate(arrays))
    used = dev.memory.used
    del arrays[:250]
    assert dev.memory.used <= used / 2 + 1024


def test_memory_in_use_is_not_reused(open_device: OpenDevice) -> None:
    dev = open_device()
    y = dev.zeros(1024, np.uint32)
    for round_ in range(8):
        x = dev.full(1024, round_, np.uint32)
        slow_copy(x, y, spin=20_000)
        del x  # still being read
        for _ in range(4):
            dev.full(1024, 99, np.uint32)  # would land on it
        assert (y.numpy() == round_).all()
    dev.synchronize()
    assert dev.memory.pending == 0


def test_steady_use_and_drop_stays_flat(open_device: OpenDevice) -> None:
    dev = open_device()
    rng = np.random.default_rng(1)

    def churn(rounds: int) -> None:
        for number in range(rounds):
            x = dev.zeros(int(rng.integers(1, 50_000)), np.uint32)
            slow_add(x, 1, spin=0)
            x.read()
            if number % 10 == 0:  # else how far the host runs ahead would be measured, too
                dev.synchronize()
        dev.synchronize()
        gc.collect()

    churn(600)
    reserved = dev.memory.reserved
    churn(600)
    after = dev.memory
    assert after.reserved <= reserved * 1.25
    assert after.pending == 0


def test_trim_gives_memory_back(open_device: OpenDevice) -> None:
    dev = open_device()
    x = dev.zeros(40 << 20, np.uint8)
    dev.synchronize()
    before = dev.memory.reserved
    del x
    assert dev.trim() >= 40 << 20
    assert dev.memory.reserved <= before - (40 << 20)
    y = dev.ones(10)
    assert float(y[3]) == 1.0


def test_running_out_tries_again_after_releasing_caches(
    open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = open_device()
    dev.zeros(20 << 20, np.uint8).close()
    dev.synchronize()
    driver: Any = dev.scheduler.driver
    real, calls = driver.allocate, []

    def fail_once(nbytes: int, *, host: bool) -> Any:
        calls.append(nbytes)
        if len(calls) == 1:
            raise ps.OutOfMemory("full")
        return real(nbytes, host=host)

    monkeypatch.setattr(driver, "allocate", fail_once)
    x = dev.zeros(48 << 20, np.uint8)
    assert len(calls) == 2
    x.close()

    def fail(nbytes: int, *, host: bool) -> Any:
        raise ps.OutOfMemory("full")

    monkeypatch.setattr(driver, "allocate", fail)
    before = dev.memory
    with pytest.raises(ps.OutOfMemory, match=r"asked for 104,857,600 bytes.*in use.*free") as e:
        dev.empty(100 << 20, np.uint8)
    assert isinstance(e.value, MemoryError)
    assert dev.memory.used == before.used


def test_a_failed_staged_write_changes_nothing(
    open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = open_device(transfers="staged")
    x = dev.full(1 << 20, 7, np.uint32)
    dev.synchronize()
    driver: Any = dev.scheduler.driver

    def fail(nbytes: int, *, host: bool) -> Any:
        raise ps.OutOfMemory("full")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "allocate", fail)
        with pytest.raises(ps.OutOfMemory):
            x.write(np.zeros(1 << 20, np.uint32))
    assert (x.numpy() == 7).all()
    x.write(np.full(1 << 20, 8, np.uint32))
    assert (x.numpy() == 8).all()


def test_a_failed_submission_loses_nothing(
    open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = open_device()
    x = dev.full(1024, 0, np.uint32)
    dev.synchronize()
    queue: Any = dev.default_stream.queue
    leave_to_python(dev)

    def fail(*_: Any) -> None:
        raise ps.OutOfMemory("full")

    with monkeypatch.context() as patch:
        patch.setattr(queue, "submit", fail)
        slow_add(x, 1, spin=0)  # recorded, not submitted: not an error yet
        with pytest.raises(ps.OutOfMemory):
            x.numpy()
        with pytest.raises(ps.OutOfMemory):
            slow_add(x, 100, spin=0)  # cannot be recorded behind it: nothing happens
        with pytest.raises(ps.OutOfMemory):
            dev.default_stream.record()
    slow_add(x, 1, spin=0)
    assert (x.numpy() == 2).all()


def test_help_explains_every_figure() -> None:
    explained = re.findall(r"^- `(\w+)`: \w", inspect.getdoc(ps.MemoryStats) or "", re.M)
    assert explained == [field.name for field in dataclasses.fields(ps.MemoryStats)]
