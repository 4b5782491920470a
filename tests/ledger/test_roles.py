"""Roles: each contract is checked, costs nothing it should not, and is never less safe."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from penstock.memory.pool import size_class
from tests.conftest import OpenDevice, faults, simulated
from tests.gate import held, held_until_waited
from tests.kernels import slow_add, slow_copy

Host = npt.NDArray[Any]

N = 256
SEEDS = 40


def counted() -> Host:
    return np.arange(N, dtype=np.uint32)


def host_barriers(t: ps.Trace) -> int:
    return sum(event.path == "host" for event in t.of_kind("barrier"))


# Weights.


def test_a_weight_is_read_without_waiting_while_kernels_read_it(dev: ps.Device) -> None:
    w = dev.array(counted(), role="weight", name="w")
    y = dev.zeros(N, np.uint32)
    with ps.trace() as t:
        slow_copy(w, y)
        assert w.view()[7] == 7
        assert w.numpy()[8] == 8
        assert int(w[9]) == 9
        assert np.asarray(w)[10] == 10
        assert "255" in str(w)
        assert w.read().result()[11] == 11
        assert np.from_dlpack(w)[12] == 12
        assert pickle.loads(pickle.dumps(w))[13] == 13
    assert t.waits == 0
    assert (y.numpy() == counted()).all()


def test_a_sealed_weight_is_never_written(any_device: ps.Device) -> None:
    device = any_device
    w = device.zeros(N, np.uint32, role="weight", name="w")
    slow_add(w, 5, spin=0)  # not sealed yet
    assert w.seal() is w
    assert w.role == "weight"
    attempts = {
        "kernel slow_add": lambda: slow_add(w, 1, spin=0),
        "kernel slow_copy": lambda: slow_copy(device.ones(N, np.uint32), w, spin=0),
        "write()": lambda: w.write(counted()),
        "fill()": lambda: w.fill(1),
        "copy_from()": lambda: w.copy_from(device.ones(N, np.uint32)),
        "view('rw')": lambda: w.view("rw"),
        "fill() ": lambda: w[4:8].fill(1),
    }
    for what, attempt in attempts.items():
        with pytest.raises(ps.RoleViolation, match=r"bytes \d+:\d+ of array 'w'.*'weight'") as info:
            attempt()
        assert what.strip() in str(info.value)
    assert (w.numpy() == 5).all()


def test_sealing_is_noticed_by_a_kernel_that_wrote_the_array_before(any_device: ps.Device) -> None:
    device = any_device
    w = device.zeros(N, np.uint32)
    for _ in range(3):
        slow_add(w, 1, spin=0)
    w.seal()
    with pytest.raises(ps.RoleViolation):
        slow_add(w, 1, spin=0)
    with device.record(), pytest.raises(ps.RoleViolation):
        slow_add(w, 1, spin=0)
    assert (w.numpy() == 3).all()


def test_sealing_is_noticed_by_a_graph(any_device: ps.Device) -> None:
    device = any_device
    w = device.zeros(N, np.uint32, name="w")
    with device.record() as g:
        slow_add(w, 1, spin=0)
    g.replay()
    w.seal()
    with pytest.raises(ps.RoleViolation, match="'w'"):
        g.replay()
    assert (w.numpy() == 1).all()


# Append.


def test_appended_rows_are_read_without_waiting_for_the_append_in_flight(dev: ps.Device) -> None:
    log = dev.empty((32, N), np.uint32, role="append", name="log")
    source = dev.array(counted())
    slow_copy(source, log[0], spin=0)
    assert (log[0].numpy() == counted()).all()  # the first look makes it visible, for good
    with held_until_waited(dev.default_stream), ps.trace() as t:
        slow_copy(source, log[1], spin=0)
        assert (log[:1].numpy() == counted()).all()
        assert log[0].view()[3] == 3
        assert t.waits == 0
        assert (log[1].numpy() == counted()).all()
        assert t.waits == 1
    assert log.length == 2


def test_bytes_are_appended_once(any_device: ps.Device) -> None:
    device = any_device
    log = device.empty((8, N), np.uint32, role="append", name="log")
    source = device.ones(N, np.uint32)
    assert log.length == 0
    slow_copy(source, log[0], spin=0)
    log[1].write(counted())
    log[2:4].fill(7)
    assert log.length == 4
    for attempt in (
        lambda: slow_copy(source, log[3], spin=0),
        lambda: log[0].write(counted()),
        lambda: log[3:5].fill(0),
        lambda: log[1].copy_from(source),
        lambda: log[2].view("w"),
    ):
        with pytest.raises(ps.RoleViolation, match=r"'log'.*'append'.*written already"):
            attempt()
    assert log.length == 4
    slow_copy(source, log[4], spin=0)
    assert (log.numpy()[:5, 0] == [1, 0, 7, 7, 1]).all()
    log.reset()
    assert log.length == 0
    log[0].fill(9)
    assert (log.length, log.numpy()[0, 0]) == (1, 9)


def test_what_is_appended_after_a_reset_is_known(any_device: ps.Device) -> None:
    device = any_device
    log, source = device.zeros(N, np.uint32, role="append"), device.ones(N, np.uint32)
    for _ in range(3):
        slow_copy(source, log, spin=0)  # every time the very same bytes, by the same kernel
        assert log.length == N
        with pytest.raises(ps.RoleViolation):
            slow_copy(source, log, spin=0)
        log.reset()
        assert log.length == 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_length_is_of_rows_appended_in_any_order(order: tuple[int, ...]) -> None:
    with simulated(0) as device:
        log = device.zeros((4, N), np.uint32, role="append")
        for count in range(4):
            log[order[count]].fill(1)
            written = {*order[: count + 1]}
            assert log.length == min({*range(5)} - written)
            assert log[2:].length == min({2, 3, 4} - written) - 2


def test_every_head_of_a_cache_grows(any_device: ps.Device) -> None:
    device = any_device
    cache = device.zeros((4, 16, 8), np.uint32, role="append")
    for position in range(16):
        cache[:, position].write(np.full((4, 8), position, np.uint32))
        assert cache.length == position + 1
        with pytest.raises(ps.RoleViolation):
            cache[:, position].fill(0)
        with pytest.raises(ps.RoleViolation):
            cache[2, position].fill(0)
    assert (cache.numpy() == np.arange(16)[None, :, None]).all()


@pytest.mark.parametrize("shape", [(4, 5), (4, 3, 5), (2, 4, 3), (2, 3, 4, 5)], ids=str)
def test_every_axis_of_an_array_may_grow(shape: tuple[int, ...]) -> None:
    """Rows that lie in many pieces are still written once each, and counted."""
    for axis, count in enumerate(shape):
        with simulated(axis) as dev:
            log = dev.empty(shape, np.uint32, role="append")
            expected = np.empty(shape, np.uint32)
            for position in range(count):
                index = (slice(None),) * axis + (position,)
                log[index].fill(position)
                expected[index] = position
                assert log.length == position + 1
                with pytest.raises(ps.RoleViolation, match="written already"):
                    log[index].fill(0)
            assert (log.numpy() == expected).all()


def test_what_was_appended_stays_known_through_a_rename(any_device: ps.Device) -> None:
    device = any_device
    log = device.zeros((4, N), np.uint32, role="append")
    log[0].write(counted())
    held = log[:2].view()
    slow_copy(device.ones(N, np.uint32), log[1], spin=0)
    assert (held[1] == 0).all()
    assert (log.numpy()[1] == 1).all()
    assert log.length == 2
    with pytest.raises(ps.RoleViolation):
        log[0].fill(0)


def test_a_failed_append_may_be_tried_again() -> None:
    broken = [False]

    def fault(name: str, count: int) -> BaseException | None:
        return ps.OutOfMemory("no") if broken[0] and name == "begin" else None

    device = ps.Device(driver="sim", fault=fault)
    log = device.zeros((4, N), np.uint32, role="append")
    source = device.ones(N, np.uint32)
    device.synchronize()
    broken[0] = True
    with pytest.raises(ps.OutOfMemory):
        slow_copy(source, log[0], spin=0)
    broken[0] = False
    assert log.length == 0
    slow_copy(source, log[0], spin=0)
    assert log.length == 1


def test_length_is_of_append_only_arrays(any_device: ps.Device) -> None:
    device = any_device
    x = device.zeros(4)
    with pytest.raises(ps.RoleViolation, match="not 'append'"):
        _ = x.length
    with pytest.raises(ps.RoleViolation, match="not 'append'"):
        x.reset()


# Scratch.


def test_scratch_is_not_for_the_host(any_device: ps.Device) -> None:
    device = any_device
    s = device.zeros(N, np.uint32, role="scratch", name="s")
    slow_add(s, 3, spin=0)
    for attempt in (s.numpy, s.read, s.view, lambda: np.asarray(s), lambda: s[3].item(),
                    lambda: np.from_dlpack(s), lambda: pickle.dumps(s)):  # fmt: skip
        with pytest.raises(ps.RoleViolation, match=r"'s'.*'scratch'.*force=True"):
            attempt()
    assert "uint32" in str(s)
    y = device.zeros(N, np.uint32)
    slow_copy(s, y, spin=0)
    assert (y.numpy() == 3).all()
    assert (s.read(force=True).result() == 3).all()
    assert (s.numpy(force=True) == 3).all()
    assert (s.view(force=True) == 3).all()
    assert (copy.deepcopy(s).numpy() == 3).all()


def test_submissions_show_the_host_only_what_it_may_see(any_device: ps.Device) -> None:
    device = any_device
    w = device.array(counted(), role="weight")
    s = device.zeros(N, np.uint32, role="scratch")
    log = device.empty((4, N), np.uint32, role="append")
    y = device.zeros(N, np.uint32)
    device.synchronize()
    with ps.trace() as t:
        slow_copy(w, s, spin=0)
        slow_copy(s, log[0], spin=0)
        device.default_stream.flush()
    assert host_barriers(t) == 0
    with ps.trace() as t:
        slow_copy(s, y, spin=0)
        device.default_stream.flush()
    assert host_barriers(t) == 1
    assert (y.numpy() == counted()).all()


@pytest.mark.parametrize("role", ["append", "scratch"])
def test_looking_at_what_the_device_never_wrote_waits_for_nothing(
    role: Any, any_device: ps.Device
) -> None:
    device = any_device
    fresh = device.array(counted(), role=role)
    y = device.zeros(N, np.uint32)
    with held_until_waited(device.default_stream), ps.trace() as t:
        slow_add(y, 1, spin=0)
        assert (fresh.numpy(force=True) == counted()).all()
        assert (fresh.view(force=True) == counted()).all()
        t.expect(waits=0)
    if role == "scratch":  # and what is written later is still made visible when it is looked at
        slow_add(fresh, 1, spin=0)
        assert (fresh.numpy(force=True) == counted() + 1).all()


def take_what_is_idle(device: ps.Device) -> list[ps.Array]:
    """All idle memory in which an array of N would fit; the next gets memory that is in use."""
    device.synchronize()
    pool, taken = device.scheduler.pool, []
    pool.reap()
    while pool._free_of(size_class(4 * N)):
        taken.append(device.empty(N, np.uint32))
    return taken


def count_up(y: ps.Array, made: Any = None, stream: ps.Stream | None = None) -> ps.Array:
    """y += 1, by way of a scratch array; the array."""
    t: ps.Array = (made or y.device.empty)(N, np.uint32, role="scratch")
    slow_copy(y, t, stream, spin=0)
    slow_add(t, 1, stream, spin=0)
    slow_copy(t, y, stream, spin=0)
    return t


@pytest.mark.parametrize("made", ["empty", "zeros"])
def test_scratch_arrays_follow_each_other_in_the_same_memory(
    made: str, any_device: ps.Device
) -> None:
    device = any_device
    y = device.zeros(N, np.uint32)
    count = 1000 if device.scheduler.driver.inline and made == "empty" else 200
    make = getattr(device, made)
    total = 0
    for times in (count, 100):
        taken = take_what_is_idle(device)
        with held(device.default_stream), ps.trace() as t:
            count_up(y, make)
            before = device.memory
            for _ in range(times - 1):
                count_up(y, make)
            after = device.memory
        assert t.waits == 0
        assert after.used + after.pending == before.used + before.pending
        assert (after.reserved, after.allocations) == (before.reserved, before.allocations)
        del taken
        total += times
        assert (y.numpy() == total).all()
    assert t.allocations == 0  # the second time, there are recordings enough, too


def test_another_stream_waits_on_the_device_for_scratch(any_device: ps.Device) -> None:
    device = any_device
    y, z = device.zeros(N, np.uint32), device.full(N, 6, np.uint32)
    taken = take_what_is_idle(device)
    with device.stream() as other:
        with held(device.default_stream):
            backing = count_up(y).buffer.backing
            with ps.trace() as t:
                assert count_up(z, stream=other).buffer.backing is backing
                other.flush()
            assert t.waits == 0
            awaited = {p.stream_id for each in t.of_kind("submission") for p in each.awaited}
            assert device.default_stream.lane.number in awaited
        assert (y.numpy() == 1).all()
        assert (z.numpy() == 7).all()
    del taken


def test_only_scratch_gets_memory_that_is_in_use(any_device: ps.Device) -> None:
    device = any_device
    y = device.zeros(N, np.uint32)
    roles: list[Any] = ["generic", "append", "output"]
    taken = take_what_is_idle(device)
    with held(device.default_stream):
        backing = count_up(y).buffer.backing
        others = [device.empty(N, np.uint32, role=role) for role in roles]
        others.append(device.array(counted(), role="scratch"))  # the host writes it at once
        assert all(not each.buffer.backing.history.pending() for each in others)
        assert device.empty(16 * N, np.uint32, role="scratch").buffer.backing is not backing
        assert device.empty(N, np.uint32, role="scratch").buffer.backing is backing
    del taken
    assert (y.numpy() == 1).all()


def test_scratch_that_someone_still_has_is_not_handed_on(any_device: ps.Device) -> None:
    device = any_device
    y = device.zeros(N, np.uint32)
    t = count_up(y)
    shown, view = t.buffer.backing, t.view(force=True)
    recorded = device.empty(N, np.uint32, role="scratch")
    with device.record() as graph:
        slow_copy(y, recorded, spin=0)
        slow_add(recorded, 1, spin=0)
        slow_copy(recorded, y, spin=0)
    graph.replay()
    encoded = recorded.buffer.backing
    with held(device.default_stream):
        slow_copy(t, device.empty(N, np.uint32), spin=0)
        graph.replay()
        del t
        recorded.close()
        for _ in range(3):
            made = device.empty(N, np.uint32, role="scratch")
            made.fill(9)
            assert made.buffer.backing not in (shown, encoded)
    device.synchronize()
    assert (view == 1).all()
    assert (y.numpy() == 3).all()
    graph.close()


def test_scratch_that_cannot_be_made_changes_nothing() -> None:
    for fault in faults(40):
        with simulated(3, fault=fault) as device:
            y = device.zeros(N, np.uint32)
            with held(device.default_stream):
                count_up(y)
                fault.armed = True
                for _ in range(4):
                    with contextlib.suppress(ps.OutOfMemory):
                        device.zeros(N, np.uint32, role="scratch")
                fault.armed = False
                count_up(y)
            assert (y.numpy() == 2).all()
        fault.armed = True


# Outputs.


def test_reading_an_output_does_not_hold_back_the_next_step(dev: ps.Device) -> None:
    out = dev.empty(N, np.uint32, role="output", name="out")
    first, second = dev.array(counted()), dev.full(N, 9, np.uint32)
    slow_copy(first, out, spin=0)
    shown = out.view()
    dev.synchronize()
    with ps.trace() as t:
        slow_copy(second, out)
        assert (shown == counted()).all()
    assert (t.waits, t.copies, t.renames) == (0, 0, 1)
    assert (out.numpy() == 9).all()
    assert (shown == counted()).all()


def in_place(o: ps.Array) -> None:
    slow_add(o, 1, spin=0)


def from_its_other_half(o: ps.Array) -> None:
    slow_copy(o[: N // 2], o[N // 2 :], spin=0)


def onto_itself(o: ps.Array) -> None:
    o.copy_from(o[::1])


def onto_its_other_half(o: ps.Array) -> None:
    o[N // 2 :].copy_from(o[: N // 2])


def backwards(o: ps.Array) -> None:
    o.copy_from(o[::-1])


@pytest.mark.parametrize(
    "change",
    [in_place, from_its_other_half, onto_itself, onto_its_other_half, backwards],
    ids=lambda change: change.__name__,
)
def test_what_reads_an_output_finds_it_there_while_the_host_looks_at_it(
    change: Callable[[ps.Array], None], any_device: ps.Device
) -> None:
    start = counted() % 3 + 1
    expected = any_device.array(start)
    change(expected)
    out = any_device.empty(N, np.uint32, role="output", name="out")
    for _ in range(2):  # the second time in memory that held something else before
        slow_copy(any_device.array(start), out, spin=0)
        shown = out.view()
        change(out)
        assert (out.numpy() == expected.numpy()).all()
        assert (shown == start).all()
        shown = None
        any_device.full(N, 9, np.uint32, role="output").close()


def test_outputs_are_double_buffered_without_allocating(dev: ps.Device) -> None:
    out = dev.empty(N, np.uint32, role="output")
    source = dev.array(counted())

    def step() -> None:
        slow_copy(source, out, spin=0)
        assert out.view()[5] == 5

    held = None
    for _ in range(4):
        step()
        held = out.view()
    with ps.trace() as t:
        for _ in range(20):
            step()
            held = out.view()
    assert held is not None
    assert (t.allocations, t.copies) == (0, 0)


def test_an_output_is_written_by_the_device_only(any_device: ps.Device) -> None:
    device = any_device
    out = device.zeros(N, np.uint32, role="output", name="out")
    for attempt in (lambda: out.write(counted()), lambda: out.fill(1), lambda: out.view("rw")):
        with pytest.raises(ps.RoleViolation, match=r"'out'.*'output'.*device only"):
            attempt()
    out.copy_from(device.array(counted()))
    assert (out.numpy() == counted()).all()


def test_unknown_roles_are_refused(any_device: ps.Device) -> None:
    device = any_device
    with pytest.raises(ps.InvalidValue, match=r"'wait'.*weight"):
        device.zeros(4, role="wait")  # type: ignore[arg-type]


# Never less safe.


def schedules() -> Iterator[ps.Device]:
    for seed in range(SEEDS):
        with ps.Device(driver="sim", seed=seed) as device:
            yield device
            assert not device.messages, device.messages[0]


def test_roles_are_as_safe_as_the_ledger_under_every_schedule() -> None:
    for device in schedules():
        other = device.stream()
        w = device.array(counted(), role="weight")
        s = device.empty(N, np.uint32, role="scratch")
        log = device.empty((4, N), np.uint32, role="append")
        out = device.empty(N, np.uint32, role="output")
        slow_copy(w, s, spin=0)
        slow_copy(s, log[0], other, spin=0)
        slow_copy(log[0], out, spin=0)
        slow_add(s, 1, other, spin=0)
        slow_copy(s, log[1], spin=0)
        assert (log[0].numpy() == counted()).all()
        shown = out.view()
        slow_copy(log[1], out, other, spin=0)
        assert (shown == counted()).all()
        assert (out.numpy() == counted() + 1).all()
        assert (s.numpy(force=True) == counted() + 1).all()
        log[2].write(counted())
        slow_copy(log[2], out, other, spin=0)
        assert (out.read(other).result() == counted()).all()


def test_roles_work_where_memory_is_not_mapped(shared_device: OpenDevice) -> None:
    device = shared_device(transfers="unmapped")
    w = device.array(counted(), role="weight")
    log = device.empty((2, N), np.uint32, role="append")
    slow_copy(w, log[0], spin=0)
    log[1].write(counted())
    assert (log.numpy() == counted()).all()
    with pytest.raises(ps.RoleViolation):
        log[1].fill(0)


def test_reads_of_a_weight_in_many_slices_are_one_to_the_ledger(any_device: ps.Device) -> None:
    device = any_device
    weight = device.array(np.arange(64 * N, dtype=np.uint32).reshape(64, N), role="weight")
    target = device.zeros((64, N), np.uint32)
    for row in range(64):
        slow_copy(weight[row], target[row], spin=0)
    assert len(weight.buffer.backing.history.reads) == 1
    with device.record() as graph:
        for row in range(64):
            slow_copy(weight[row], target[63 - row], spin=0)
    graph.replay()
    assert len(weight.buffer.backing.history.reads) == 1
    weight.close()  # in use until the replay is done
    assert (target.numpy()[::-1].ravel() == np.arange(64 * N)).all()
