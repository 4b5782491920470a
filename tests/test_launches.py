"""Launches: arguments of any size, what steady state costs, launches within launches."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from conftest import simulated
from kernels import BLOCK_SUM, block_sum, block_sum_of

import penstock as ps
from penstock import slots

N = 1024


def blocks(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**32, (count, 100), dtype=np.uint32)


# Arguments that are too many for push constants.


def test_every_launch_in_flight_sees_its_own_block(each: ps.Device) -> None:
    count = 300 if each.info.driver == "sim" else 2000
    y = each.zeros(count, np.uint32)
    given = blocks(count)
    streams = [each.default_stream, each.stream(), each.stream()]
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
    monkeypatch.setattr(slots, "_LARGEST", 64 * 512)  # 64 blocks of 412 bytes
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


@pytest.mark.parametrize("seed", range(12))
def test_no_block_is_written_while_it_is_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_LARGEST", 32 * 512)
    with simulated(seed) as dev:
        given = blocks(150, seed)
        y = dev.zeros(150, np.uint32)
        other = dev.stream()
        for at, block in enumerate(given):
            block_sum(y, at, block, other if at % 3 == 0 else None)
        assert y.tolist() == [block_sum_of(block) for block in given]


def test_without_the_guard_the_simulator_sees_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the test above can fail: a ring that looks at nothing is found out."""
    monkeypatch.setattr(slots.ArgumentRing, "_make_room", lambda *_: None)
    found = 0
    for seed in range(6):
        with ps.Device(driver="sim", seed=seed) as dev:
            y = dev.zeros(150, np.uint32)
            for at, block in enumerate(blocks(150)):
                block_sum(y, at, block)
            dev.synchronize()
            found += any("race" in message for message in dev.messages)
    assert found


def test_a_stream_with_a_ring_can_be_forgotten(each: ps.Device) -> None:
    y = each.zeros(1, np.uint32)
    streams = len(each.scheduler._all_streams())
    for _ in range(20):
        stream = each.stream()
        block_sum(y, 0, blocks(1)[0], stream)
        del stream
    y.numpy()
    y.close()
    del y
    for _ in range(2):
        assert each.memory.pending == 0  # nor has the ledger of what was given back
        gc.collect()
        each.synchronize()
    assert len(each.scheduler._all_streams()) <= streams + 2


def test_a_closed_kernel_gives_its_memory_back(each: ps.Device) -> None:
    y = each.zeros(1, np.uint32)
    each.synchronize()
    used = each.memory.used
    run = each.kernel(BLOCK_SUM, reference=lambda **_: None)
    other = each.stream()
    for stream in (None, other):
        run(y=y, at=0, n=1, spin=0, block=blocks(1)[0], groups=1, stream=stream)
    assert each.memory.used > used
    run.close()
    each.synchronize()
    assert each.memory.used == used
    other.close()


# Arrays that share a buffer.


def test_two_arguments_of_one_buffer_stay_one_memory(each: ps.Device) -> None:
    """Also if the launch has to make way for a view, which gives the buffer other memory."""
    run = each.kernel(
        """
        layout(local_size_x = 1) in;
        layout(binding = 0) readonly buffer X { uint x[]; };
        layout(binding = 1) writeonly buffer Y { uint y[]; };
        void main() { y[0] = x[0] + 1; }
        """,
        reference=lambda x, y, threads: y.__setitem__(0, x[0] + 1),
    )
    x = each.array(np.arange(16, dtype=np.uint32))
    bound: list[tuple[int, ...]] = []
    for groups in (1, each.ones(3, np.uint32)):
        shown = x.view()
        before = shown.copy()
        with pytest.MonkeyPatch.context() as patch:
            _note_bindings(each, patch, bound)
            run(x=x, y=x, groups=groups)
        assert (shown == before).all()
        del shown
    assert len(bound) == 2
    assert all(each[0:2] == each[3:5] for each in bound)
    assert x[0].item() == 2


def _note_bindings(dev: ps.Device, patch: pytest.MonkeyPatch, to: list[tuple[int, ...]]) -> None:
    recording = type(dev.default_stream._spare[0])

    def noting(original: Any) -> Any:
        def dispatch(self: Any, program: Any, bindings: Any, *rest: Any) -> None:
            to.append(bindings)
            original(self, program, bindings, *rest)

        return dispatch

    for name in ("dispatch", "dispatch_indirect"):
        patch.setattr(recording, name, noting(getattr(recording, name)))
