"""Memory of dropped arrays goes to later results of the same stream, while work still uses it."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from penstock.memory import pool
from tests.conftest import OpenDevice, simulated
from tests.kernels import slow_add

N = 256
NBYTES = 4 * N
ACTS = (
    "array", "array", "copy", "copy", "copy", "add", "drop", "drop", "drop", "read", "write", "view"
)  # fmt: skip


@pytest.mark.parametrize("transfers", ["auto", "staged", "unmapped"])
@pytest.mark.parametrize("seed", range(12))
def test_values_and_order(seed: int, transfers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random programs of copies, changes in place, reads and drops, on one stream or two."""
    rng = random.Random(seed)
    if seed % 3:  # else barriers, or waits of streams, are never worth it
        monkeypatch.setattr(pool, "_MUCH", NBYTES)
    if seed % 3 == 2:
        monkeypatch.setattr(pool, "_TOO_MUCH", NBYTES)
    handed_on = 0
    real = pool.Pool._hand_on

    def count(self: pool.Pool, backing: pool.Backing) -> pool.Backing:
        nonlocal handed_on
        handed_on += bool(backing.history.in_flight)
        return real(self, backing)

    monkeypatch.setattr(pool.Pool, "_hand_on", count)
    with simulated(seed, transfers=transfers) as dev:
        streams = [dev.default_stream, dev.stream()] if seed % 3 else [dev.default_stream]
        arrays = [dev.full(N, number, np.uint32) for number in range(2)]
        values = [0, 1]
        views: list[tuple[Any, int]] = []
        for _ in range(200):
            which, stream = rng.randrange(len(arrays)), rng.choice(streams)
            act = rng.choice(ACTS)
            if act == "array" and len(arrays) < 6:  # the device only reads it
                values.append(rng.randrange(1000))
                arrays.append(dev.array(np.full(N, values[-1], np.uint32)))
            elif act == "copy" and len(arrays) < 6:
                arrays.append(arrays[which].copy(stream))
                values.append(values[which])
            elif act == "add":
                slow_add(arrays[which], 1, stream, spin=0)
                values[which] += 1
            elif act == "drop" and len(arrays) > 1:
                del arrays[which], values[which]
            elif act == "read" and rng.random() < 0.2:
                assert set(arrays[which].numpy().tolist()) == {values[which]}
            elif act == "write":
                values[which] = rng.randrange(1000)
                arrays[which].write(np.full(N, values[which], np.uint32))
            elif act == "view" and transfers != "unmapped" and rng.random() < 0.2:
                views = [(arrays[which].view(), values[which])]
            for view, value in views:
                assert set(view.tolist()) == {value}
        for array, value in zip(arrays, values, strict=True):
            assert set(array.numpy().tolist()) == {value}
        views.clear()
    assert handed_on or seed % 3


def chain(x: ps.Array, turns: int) -> ps.Array:
    """Every result depends on the one before, which is dropped."""
    for _ in range(turns):
        x = x + 1
    return x


def test_a_chain_takes_memory_for_a_few_results(dev: ps.Device) -> None:
    start = dev.zeros(1 << 16)
    assert float(chain(start, 20)[5]) == 20  # compiles, and fills the pool
    before = dev.memory
    with ps.trace() as receipt:
        made = chain(start, 100)
        assert float(made[-1]) == 100
    assert receipt.launches == 100
    assert receipt.barriers <= 100 + receipt.submissions  # the data demands as many
    assert receipt.waits == 1
    assert dev.memory.reserved == before.reserved
    assert dev.memory.peak <= max(before.peak, before.reserved + (1 << 20))


def test_results_that_depend_on_nothing_are_bounded_by_barriers(
    open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MUCH", 4 << 20)
    dev = open_device()
    x = dev.ones(1 << 18)  # 1 MiB
    with ps.trace() as receipt, dev.default_stream.batch():  # all of it is in flight
        for _ in range(60):
            x + 1
        assert dev.memory.reserved < 24 << 20
    assert receipt.waits == 0
    assert 5 < receipt.barriers < 40
    assert float((x + 1)[7]) == 2


def test_results_that_two_streams_use_are_bounded_by_waits_on_the_device(
    open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_TOO_MUCH", 4 << 20)
    dev = open_device()
    other = dev.stream()
    x = dev.full(1 << 18, 1, np.uint32)  # 1 MiB
    with ps.trace() as receipt:
        for _ in range(60):
            made = x.copy()
            slow_add(made, 1, other, spin=200)
        assert dev.memory.reserved < 24 << 20
    assert receipt.waits == 0
    assert set(made.numpy().tolist()) == {2}


def test_a_result_does_not_wait_for_a_view_that_another_stream_waits_for(
    dev: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that holds the view may wait for the result."""
    monkeypatch.setattr(pool, "_TOO_MUCH", 0)
    x, shown = dev.zeros(N, np.uint32), dev.zeros(N, np.uint32)
    dev.synchronize()
    results: SimpleQueue[ps.Array] = SimpleQueue()
    held = threading.Event()

    def hold() -> npt.NDArray[Any]:
        view = shown.view("rw")
        held.set()
        content = results.get().numpy()
        del view
        return content

    with ThreadPoolExecutor(1) as pool_of_one, dev.stream() as other:
        content = pool_of_one.submit(hold)
        held.wait()
        dropped = [shown.copy(other) for _ in range(3)]
        other.flush()
        del dropped
        results.put(x.copy())
        assert (content.result() == 0).all()


def test_a_stream_gets_no_memory_that_another_one_uses() -> None:
    """It would have to wait for the other."""
    with simulated(0) as dev, dev.stream() as other, other.batch():
        x = dev.ones(N, np.uint32)
        dropped = x.copy(other)
        for stream in (None, other):  # barriers, behind which its memory costs nothing
            mine = dev.zeros(2 * N, np.uint32)
            slow_add(mine, 1, stream, spin=0)
            slow_add(mine, 1, stream, spin=0)
        place = dropped.buffer.backing.offset
        del dropped
        assert not dev.new_result(N, np.uint32).buffer.backing.history.in_flight
        own = dev.new_result(N, np.uint32, other)
        assert own.buffer.backing.history.in_flight
        assert own.buffer.backing.offset == place


def test_what_a_view_shows_stays(dev: ps.Device) -> None:
    x = dev.full(N, 3, np.uint32)
    made = x.copy()
    seen = made.view()
    del made
    for _ in range(10):
        slow_add(x, 1)
        x.copy()
    dev.synchronize()
    assert set(seen.tolist()) == {3}


def test_results_of_a_device_that_clears_memory(open_device: OpenDevice) -> None:
    dev = open_device(clear_memory=True)
    x = dev.full(N, 3, np.uint32)
    for _ in range(10):
        slow_add(x, 1)
        made = dev.new_result(N, np.uint32)
        assert not made.numpy().any()
        made.copy_from(x)
        del made
    assert set(x.copy().numpy().tolist()) == {13}


def test_out_of_memory_waits_for_what_was_dropped(
    open_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = open_device()
    driver: Any = dev.scheduler.driver
    real, most = driver.allocate, dev.memory.reserved + (100 << 20)

    def limited(nbytes: int, *, host: bool) -> Any:
        if dev.scheduler.pool.reserved + nbytes > most:
            raise ps.OutOfMemory("full")
        return real(nbytes, host=host)

    monkeypatch.setattr(driver, "allocate", limited)
    with ps.trace() as receipt:
        for number in range(12):
            x = dev.empty(6 << 20)  # 24 MiB, which the host or the device might write
            x.fill(number)
        assert float(x[-1]) == 11
    assert set(receipt.bounds_met) == {"memory of dropped arrays in flight, and there is no other"}
    held = [x, *(dev.empty(6 << 20) for _ in range(2))]
    with pytest.raises(ps.OutOfMemory, match="Close arrays you no longer need"):
        held += [dev.empty(6 << 20) for _ in range(4)]
