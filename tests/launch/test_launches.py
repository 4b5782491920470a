"""Launches: arguments of any size, what steady state costs, launches within launches."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.driver.protocol import PLACE
from penstock.launch import launch_memory
from tests.conftest import OpenDevice, simulated
from tests.kernels import (
    BLOCK_SUM,
    HEAD,
    SLOW_ADD,
    SLOW_COPY,
    block_sum,
    block_sum_of,
    first,
    kernel,
    new_kernel,
    saxpy,
    slow_add,
)

N = 1024


def blocks(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**32, (count, 100), dtype=np.uint32)


# Arguments that are too many for push constants.


def test_every_launch_in_flight_sees_its_own_block(any_device: ps.Device) -> None:
    count = 300 if any_device.info.driver == "sim" else 2000
    y = any_device.zeros(count, np.uint32)
    given = blocks(count)
    streams = [any_device.default_stream, any_device.stream(), any_device.stream()]
    one = np.empty(100, np.uint32)
    for at, block in enumerate(given):
        one[:] = block
        block_sum(y, at, one, streams[at % 3], spin=2000 if at < 3 else 0)
        one[:] = 0  # the caller may change it at once
    assert y.tolist() == [block_sum_of(block) for block in given]
    for stream in streams[1:]:
        stream.close()


def test_a_full_ring_grows_to_its_bound_and_then_waits(
    dev: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_memory, "_LARGEST", 64 * 512)  # 64 blocks of 412 bytes
    y = dev.zeros(500, np.uint32)
    given = blocks(500)
    with dev.kernel(BLOCK_SUM, name="block_sum") as run:

        def launch(at: int, spin: int = 0) -> None:
            run(y=y, at=at, n=1, spin=spin, block=given[at], groups=1)

        with ps.trace() as t, dev.default_stream.batch():
            launch(0, 1000)
            for at in range(1, 500):
                launch(at)
        ring = dev.default_stream.rings[run]
        assert len(ring._values) == 64
        assert all("every slot" in event.reason for event in t.of_kind("wait"))
        # A batch submits nothing by itself, so the ring must have been full every 64 launches.
        assert 1 <= t.waits <= 500 // 64
    assert y.tolist() == [block_sum_of(block) for block in given]


def test_a_ring_that_grows_into_other_memory_is_bound_there(open_device: OpenDevice) -> None:
    dev = open_device()
    y = dev.zeros(3000, np.uint32)
    given = blocks(3000)
    with new_kernel(dev, BLOCK_SUM, "block_sum") as run:
        homes = set()
        with dev.default_stream.batch():
            for at, block in enumerate(given):
                run(y=y, at=at, n=1, spin=0, block=block, groups=1)
                homes.add(dev.default_stream.rings[run]._memory)
    assert len(homes) > 1  # one ring of 2 MiB does not fit into the memory of its first
    assert y.tolist() == [block_sum_of(block) for block in given]


@pytest.mark.parametrize("seed", range(12))
def test_no_block_is_written_while_it_is_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_memory, "_LARGEST", 32 * 512)
    with simulated(seed) as dev:
        given = blocks(150, seed)
        y = dev.zeros(150, np.uint32)
        other = dev.stream()
        for at, block in enumerate(given):
            block_sum(y, at, block, other if at % 3 == 0 else None)
        assert y.tolist() == [block_sum_of(block) for block in given]


def test_without_the_guard_the_simulator_sees_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the test above can fail: a ring that looks at nothing is found out."""
    grow = launch_memory.ArgumentRing._grow
    monkeypatch.setattr(
        launch_memory.ArgumentRing, "_grow", lambda ring: ring._values or grow(ring)
    )
    found = 0
    for seed in range(6):
        with ps.Device(driver="sim", seed=seed) as dev:
            y = dev.zeros(150, np.uint32)
            for at, block in enumerate(blocks(150)):
                block_sum(y, at, block)
            dev.synchronize()
            found += any("race" in message for message in dev.messages)
    assert found


def test_a_host_that_finds_its_value_done_has_the_next_launch_submitted_at_once(
    open_device: OpenDevice,
) -> None:
    dev = open_device()
    x, stream = dev.zeros(N, np.uint32), dev.default_stream
    slow_add(x, 1, spin=0)
    dev.synchronize()
    stream._policy.first_look = 64  # as after many launches without a host wait
    slow_add(x, 1, spin=0)
    stream.flush()
    while stream.timeline.value() < stream.lane.submitted:
        time.sleep(0.001)
    with ps.trace() as t:
        assert (x.numpy() == 2).all()
        slow_add(x, 1, spin=0)
    t.expect(waits=0, submissions=1)


def test_a_stream_with_a_ring_can_be_forgotten(any_device: ps.Device) -> None:
    y = any_device.zeros(1, np.uint32)
    streams = len(any_device.scheduler.all_streams())
    for _ in range(20):
        stream = any_device.stream()
        block_sum(y, 0, blocks(1)[0], stream)
        del stream
    y.numpy()
    y.close()
    del y
    for _ in range(2):
        assert any_device.memory.pending == 0  # nor has the ledger of what was given back
        gc.collect()
        any_device.synchronize()
    assert len(any_device.scheduler.all_streams()) <= streams + 2


def test_a_closed_kernel_gives_its_memory_back(any_device: ps.Device) -> None:
    y = any_device.zeros(1, np.uint32)
    any_device.synchronize()
    used = any_device.memory.used
    run = new_kernel(any_device, BLOCK_SUM, reference=lambda **_: None)
    other = any_device.stream()
    for stream in (None, other):
        run(y=y, at=0, n=1, spin=0, block=blocks(1)[0], groups=1, stream=stream)
    if any_device.info.driver != "hip":  # which passes so little with the launch itself
        assert any_device.memory.used > used
    run.close()
    any_device.synchronize()
    assert any_device.memory.used == used
    other.close()


# Arrays that share a buffer.


def test_two_arguments_of_one_buffer_stay_one_memory(any_device: ps.Device) -> None:
    """Also if the launch has to make way for a view, which gives the buffer other memory."""
    run = new_kernel(
        any_device,
        """
        layout(local_size_x = 1) in;
        layout(binding = 0) readonly buffer X { uint x[]; };
        layout(binding = 1) writeonly buffer Y { uint y[]; };
        void main() { y[0] = x[0] + 1; }
        """,
        reference=lambda x, y, threads: y.__setitem__(0, x[0] + 1),
        hip=("in uint32 x, out uint32 y", 1, "y[0] = x[0] + 1;"),
    )
    x = any_device.array(np.arange(16, dtype=np.uint32))
    bound: list[tuple[int, ...]] = []
    for groups in (1, any_device.ones(3, np.uint32)):
        shown = x.view()
        before = shown.copy()
        with pytest.MonkeyPatch.context() as patch:
            _note_bindings(any_device, patch, bound)
            run(x=x, y=x, groups=groups)
        assert (shown == before).all()
        del shown
    assert len(bound) == 2
    assert all(x == y for x, y in bound)
    assert x[0].item() == 2


def _note_bindings(dev: ps.Device, patch: pytest.MonkeyPatch, to: list[list[Any]]) -> None:
    recording = type(dev.default_stream._batch.recording)

    def noting(original: Any) -> Any:
        def dispatch(self: Any, program: Any, bindings: Any, *rest: Any) -> None:
            to.append([place[:2] for place in PLACE.iter_unpack(bindings)])
            original(self, program, bindings, *rest)

        return dispatch

    for name in ("dispatch", "dispatch_indirect"):
        patch.setattr(recording, name, noting(getattr(recording, name)))


# Launches that begin while another is being called.


class Launching:
    """A number that launches a kernel when it is looked at."""

    def __init__(self, value: int, launch: Callable[[], Any]) -> None:
        self.value = value
        self.launch = launch

    def __index__(self) -> int:
        self.launch()
        return self.value

    def __float__(self) -> float:
        return float(self.__index__())

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.array(self.__index__())


def test_a_launch_while_push_constants_are_packed(any_device: ps.Device) -> None:
    x, y, z = any_device.ones(N), any_device.zeros(N), any_device.zeros(N)
    run = saxpy(any_device)
    adopted = any_device.adopt(any_device.host_empty(N))  # numbers might be in such memory

    def inner() -> None:
        run(x=x, y=z, a=100.0, n=N, threads=N)
        y.write(y.numpy() + 1000)  # which may rename it

    for _ in range(3):
        run(x=x, y=y, a=1.0, n=Launching(N, inner), threads=N)
        run(x=x, y=y, a=Launching(2, inner), n=N, threads=N)
    assert (z.numpy() == 600).all()
    assert (y.numpy() == 6009).all()
    adopted.close()


def test_a_launch_while_a_large_block_is_packed(any_device: ps.Device) -> None:
    y = any_device.zeros(80, np.uint32)
    given = blocks(80)
    for at in range(0, 80, 2):
        number = Launching(at, lambda at=at: block_sum(y, at + 1, given[at + 1]))
        block_sum(y, number, given[at])  # type: ignore[arg-type]
    assert y.tolist() == [block_sum_of(block) for block in given]


def test_a_result_as_an_argument(any_device: ps.Device) -> None:
    """It is waited for, outside of the lock."""
    x = any_device.full(1, 5, np.uint32)
    assert first(x, first(x, first(x, 1))).result() == 16
    some = any_device.ones(3, np.uint32)
    assert first(x, first(x, 1, groups=some), groups=some).result() == 11


def test_a_finaliser_that_launches(any_device: ps.Device) -> None:
    y = any_device.zeros(100, np.uint32)
    given = blocks(100)

    class Last(Launching):
        """Which is gone when it is packed."""

        def __del__(self) -> None:
            block_sum(y, self.value + 1, given[self.value + 1])

    for at in range(0, 100, 2):
        block_sum(y, Last(at, lambda: None), given[at])  # type: ignore[arg-type]
    assert y.tolist() == [block_sum_of(block) for block in given]


# Groups that the device decides.


def test_the_counts_are_those_of_their_place_in_the_program(any_device: ps.Device) -> None:
    x = any_device.zeros(8 * 64, np.uint32)
    counts = any_device.zeros(4, np.uint32)[:3]
    run = new_kernel(
        any_device,
        HEAD + "layout(binding = 0) buffer X { uint x[]; }; void main() {"
        " x[gl_GlobalInvocationID.x] += 1; }",
        reference=lambda x, threads: x[: threads[0]].__iadd__(np.uint32(1)),
        hip=("inout uint32 x", 64, "x[i] += 1;"),
    )
    expected = np.zeros(8 * 64, np.uint32)
    with any_device.stream() as other:
        for groups in (1, 0, 8, 3, 0, 5):
            counts.write(np.array([groups, 1, 1], np.uint32), other)
            slow_add(counts[:1], 0, other)
            run(x=x, groups=counts, stream=other if groups % 2 else None)
            counts.write(np.array([8, 8, 8], np.uint32))  # the host does not change it any more
            expected[: 64 * groups] += 1
    assert (x.numpy() == expected).all()


def test_bad_counts(any_device: ps.Device) -> None:
    x = any_device.zeros(N, np.uint32)
    counts = any_device.zeros(8, np.uint32)
    closed = any_device.ones(3, np.uint32)
    closed.close()
    for bad, error in (
        ({"groups": counts}, ps.ShapeMismatch),
        ({"groups": counts[:2]}, ps.ShapeMismatch),
        ({"groups": counts[:6:2]}, ps.ShapeMismatch),
        ({"groups": any_device.zeros(3)}, ps.DtypeMismatch),
        ({"groups": counts[:3], "threads": 3}, ps.ArgumentError),
        ({"groups": closed}, ps.Closed),
        ({"groups": np.ones(3, np.uint32)}, ps.ArgumentError),
    ):
        with pytest.raises(error):
            kernel(any_device, SLOW_ADD)(x=x, n=1, spin=0, add=1, **bad)
    with ps.Device(driver="sim") as other, pytest.raises(ps.ArgumentError):
        first(x, 1, groups=other.ones(3, np.uint32))
    assert (x.numpy() == 0).all()


# From the second identical launch on.


def _step(dev: ps.Device, what: str) -> tuple[Callable[[], Any], int]:
    """A step to repeat, and how often it may wait."""
    x, y = dev.full(N, 5, np.uint32), dev.zeros(N, np.uint32)
    given = blocks(1)[0]
    host, other = np.ones(N, np.uint32), np.ones(N, np.uint32)
    streams = [dev.stream(), dev.stream()]
    nothing = dev.kernel(HEAD + "void main() {}", reference=lambda threads: None)
    steps: dict[str, tuple[Callable[[], Any], int]] = {
        "no arguments": (lambda: nothing(groups=1), 0),
        "scalars": (lambda: slow_add(x, 1, spin=0), 0),
        "a large block": (lambda: block_sum(y, 0, given), 0),
        "a result": (lambda: first(x, 1).result(), 1),
        "a result dropped unread": (lambda: first(x, 1), 0),
        "a NumPy array in": (lambda: _copy(dev, host, y), 0),
        "NumPy arrays in and out": (lambda: _copy(dev, host, other), 1),
        "everything": (lambda: [block_sum(y, 0, given), _copy(dev, host, other), first(x, 1)], 1),
        "several streams": (
            lambda: [
                [block_sum(y, 0, given, s), first(x, 1, s), slow_add(y, 1, s, 0)] for s in streams
            ],
            0,
        ),
        "counts of the device": (lambda: first(x, 1, groups=counts), 0),
    }
    counts = dev.ones(3, np.uint32)
    return steps[what]


def _copy(dev: ps.Device, x: Any, y: Any) -> None:
    kernel(dev, SLOW_COPY)(x=x, y=y, n=N, spin=0, threads=N)


STEPS = ["no arguments", "scalars", "a large block", "a result", "a result dropped unread",
         "a NumPy array in", "NumPy arrays in and out", "everything", "several streams",
         "counts of the device"]  # fmt: skip


@pytest.mark.parametrize("what", STEPS)
def test_steady_state_is_free(what: str, dev: ps.Device) -> None:
    step, waits = _step(dev, what)
    copies = set()
    for _ in range(10):  # it is warm once there is a slot, described, for all that are in flight
        with ps.trace() as t:
            for _ in range(200):
                step()
        dev.synchronize()
        assert t.waits <= 200 * waits
        assert {event.path for event in t.of_kind("copy")} <= {"direct"}
        copies.add(t.copies)
        if not t.allocations:
            break
    assert t.allocations == 0, "\n".join(map(str, t.of_kind("allocation")))
    assert len(copies) == 1


def test_steady_state_of_threads(threaded_device: ps.Device) -> None:
    dev = threaded_device
    together = threading.Barrier(4)
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            y, given = dev.zeros(N, np.uint32), blocks(1, number)[0]
            for _ in range(6):
                together.wait(60)
                for at in range(50):
                    block_sum(y, at, given)
                    assert first(y[:1], 1).result() == block_sum_of(given) + 1
                together.wait(60)
        except BaseException as error:
            failures.append(error)
            together.abort()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    allocations = []
    for _ in range(6):
        with ps.trace() as t:
            together.wait(60)
            together.wait(60)
        assert t.waits <= 3 * 50
        allocations.append(t.allocations)
    for worker in workers:
        worker.join()
    assert not failures, failures
    assert 0 in allocations  # how many are in flight, and so how many slots, is up to chance
