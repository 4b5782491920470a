"""Results: a value per launch, each with a place of its own until it is read or dropped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import operator
import random
import threading
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.launch.launch_memory import ResultMemory
from tests.conftest import OpenDevice, simulated
from tests.gate import held, held_until_waited
from tests.kernels import FIRST, SLOW, count, first, new_kernel, slow_add
from tests.launch.test_kernel import EXTENSIONS, ONE, SCALARS, make

N = 1024


@pytest.fixture
def x(any_device: ps.Device) -> ps.Array:
    return any_device.array(np.arange(N, dtype=np.uint32) + 5)


# What a result can be.


@pytest.mark.parametrize("name", SCALARS)
def test_scalars_of_every_kind(name: str, dev: ps.Device) -> None:
    dtype, needs = SCALARS[name]
    k = make(
        dev,
        f"""{EXTENSIONS}{ONE}
        layout(binding = 0, scalar) buffer Result {{ {name} value; }};
        layout(push_constant) uniform P {{ {name} a; }};
        void main() {{ value = a; }}
        """,
        needs,
    )
    info: Any = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    for value in (info.min, info.max, dtype(3)):
        got = k(a=value, groups=1).result()
        assert (type(got), got) == (dtype, value)


def test_vectors_matrices_arrays_and_structs(dev: ps.Device) -> None:
    k = dev.kernel(
        ONE
        + """
        struct Pair { uint a; vec2 b; };
        layout(binding = 3) buffer Result {
            vec3 v; mat2x3 m; uint n; float list[4]; Pair pairs[2]; };
        void main() {
            v = vec3(1, 2, 3); m = mat2x3(1, 2, 3, 4, 5, 6); n = 7;
            for (uint i = 0; i < 4; ++i) list[i] = i / 2.0;
            for (uint i = 0; i < 2; ++i) { pairs[i].a = i; pairs[i].b = vec2(i, i + 10); }
        }
        """
    )
    got = k(groups=1).result()
    assert got._fields == ("v", "m", "n", "list", "pairs_a", "pairs_b")
    assert got.v.tolist() == [1, 2, 3]
    assert got.m.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (got.n, type(got.n)) == (7, np.uint32)
    assert got.list.tolist() == [0, 0.5, 1, 1.5]
    assert got.pairs_a.tolist() == [0, 1]
    assert got.pairs_b.tolist() == [[0, 10], [1, 11]]


def test_a_result_can_be_used_like_its_value(any_device: ps.Device, x: ps.Array) -> None:
    def r() -> Any:
        return first(x, 2)  # 7

    assert (float(r()), int(r()), complex(r()), operator.index(r())) == (7.0, 7, 7 + 0j, 7)
    assert bool(r())
    assert range(10)[r()] == 7
    assert (r() == 7, r() != 7, r() < 8, r() >= 8) == (True, False, True, False)
    assert (r() + 1, 1 + r(), r() * r(), -np.float32(r()), 14 // r()) == (8, 8, 49, -7.0, 2)
    assert np.add(r(), [1, 2]).tolist() == [8, 9]
    assert f"{r():03d} {r():.1f}" == "007 7.0"
    total = 1.5
    total += r()
    assert total == 8.5
    with pytest.raises(TypeError):
        hash(r())


def test_arrays_of_results_are_copies(dev: ps.Device) -> None:
    k = dev.kernel(ONE + "layout(binding = 0) buffer Result { vec4 v; }; void main() { v.y = 1; }")
    r = k(groups=1)
    mine = np.array(r)
    mine[:] = 9
    assert r.result().tolist() == [0, 1, 0, 0]
    assert np.asarray(r, np.int32).tolist() == list(r) == [0, 1, 0, 0]
    assert (len(r), r[1]) == (4, 1)


def test_a_float_is_no_index(dev: ps.Device) -> None:
    k = dev.kernel(ONE + "layout(binding = 0) buffer Result { float v; }; void main() { v = 1.5; }")
    with pytest.raises(TypeError):
        operator.index(k(groups=1))


# Zeros where nothing is written.


def test_a_kernel_that_reads_its_result_finds_zeros(any_device: ps.Device, x: ps.Array) -> None:
    for limit in (0, 5, 1028, 5000) * 8:
        above = int((x.numpy() > limit).sum())
        assert tuple(count(x, limit)) == (above, N - above)


def test_no_groups_give_zeros(any_device: ps.Device, x: ps.Array) -> None:
    """However the groups are given, and whatever was in the slot before."""
    for _ in range(20):
        first(x, 100).result()
    none = any_device.zeros(3, np.uint32)
    with any_device.record(groups=0) as g:
        first(x, 1, groups=g["groups"])
        first(x, 2, groups=none)
    for _ in range(2):
        assert first(x, 1, groups=0).result() == 0
        assert first(x, 1, groups=none).result() == 0
        assert g.replay().result() == (0, 0)
        assert g.replay(groups=1).result() == (6, 0)
        none[0].fill(1)
        none[1:].fill(1)
        assert g.replay().result() == (0, 7)
        none.fill(0)


# Each launch has a place of its own.


def test_many_in_flight_read_in_any_order(any_device: ps.Device, x: ps.Array) -> None:
    streams = [any_device.default_stream, any_device.stream()]
    made = [first(x, i, streams[i % 2]) for i in range(300)]
    order = list(enumerate(made))
    random.Random(1).shuffle(order)
    for i, r in order:
        if i % 5:
            assert r.result() == 5 + i
            assert r.done
    streams[1].close()


def test_read_by_many_threads(threaded_device: ps.Device) -> None:
    x = threaded_device.full(1, 5, np.uint32)
    made = [first(x, i) for i in range(400)]
    wrong: list[object] = []

    def read(offset: int) -> None:
        for i in range(400):
            at = (i * 7 + offset) % 400
            value = made[at].result()
            if value != 5 + at or first(x, at).result() != 5 + at:
                wrong.append((at, value))

    threads = [threading.Thread(target=read, args=(i * 50,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("seed", range(12))
def test_on_the_simulator_no_slot_is_used_twice_at_once(seed: int) -> None:
    rng = random.Random(seed)
    with simulated(seed) as dev:
        x = dev.full(8, 5, np.uint32)
        streams = [dev.default_stream, dev.stream()]
        held: list[tuple[int, Any]] = []
        for i in range(120):
            stream = rng.choice(streams)
            held.append((5 + i, first(x, i, stream)))
            if rng.random() < 0.3:
                assert tuple(count(x, 4, stream)) == (8, 0)
            if rng.random() < 0.4:
                held.pop(rng.randrange(len(held)))
            if rng.random() < 0.3 and held:
                value, r = held.pop(rng.randrange(len(held)))
                assert r.result() == value
        for value, r in held:
            assert r.result() == value


def test_a_slot_given_back_while_another_is_tested_is_not_taken(
    any_device: ps.Device, x: ps.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are dropped by any thread, or by the garbage collector, at any time."""
    kernel = new_kernel(any_device, FIRST)
    arguments = {"x": x, "n": 1, "spin": 0, "groups": 1}
    kernel(add=0, **arguments).result()
    kernel._retire()  # calls take a slot in Python from here on, not in the native step
    in_flight = ResultMemory.in_flight.fget
    dropped: list[Any] = []

    def drop_then_test(slot: ResultMemory) -> Any:
        answer = in_flight(slot)
        dropped.clear()
        return answer

    with held_until_waited(any_device.default_stream):
        busy = kernel(add=1, **arguments)
        memory = busy.memory
        dropped.append(busy)
        del busy
        monkeypatch.setattr(ResultMemory, "in_flight", property(drop_then_test))
        late = kernel(add=2, **arguments)
        assert not dropped
        assert late.memory is not memory
        assert late.result() == x.numpy()[0] + 2


def test_an_interrupt_while_a_slot_is_tested_loses_none(
    any_device: ps.Device, x: ps.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = new_kernel(any_device, FIRST)
    arguments = {"x": x, "n": 1, "spin": 0, "groups": 1}
    kernel(add=0, **arguments).result()
    kernel._retire()  # calls take a slot in Python from here on, not in the native step
    slots = set(kernel.results.free)

    def interrupted(slot: ResultMemory) -> bool:
        raise KeyboardInterrupt  # as in a poll of the driver

    with monkeypatch.context() as patched:
        patched.setattr(ResultMemory, "in_flight", property(interrupted))
        with pytest.raises(KeyboardInterrupt):
            kernel(add=1, **arguments)
    assert set(kernel.results.free) == slots
    assert kernel(add=2, **arguments).result() == x.numpy()[0] + 2


# What it costs.


def test_reading_one_waits_for_its_launch_only(any_device: ps.Device, x: ps.Array) -> None:
    y = any_device.zeros(N, np.uint32)
    other = any_device.stream()
    with held(other), held_until_waited(any_device.default_stream):
        slow_add(y, 1, other, spin=0)
        early = first(x, 1)
        with ps.trace() as t:
            assert early.result() == 6
            assert early.result() == 6  # the second time it is there
        assert t.waits == 1
    other.close()
    assert y[0].item() == 1


def test_not_asked_for_it_costs_no_wait(any_device: ps.Device, x: ps.Array) -> None:
    with ps.trace() as t:
        for i in range(50):
            first(x, i)
    assert t.waits == 0


def test_dropped_unread_memory_stays_flat(any_device: ps.Device, x: ps.Array) -> None:
    """Also while a launch on another stream holds on to the slot that was dropped first."""
    rounds, each_round = (6, 20) if any_device.info.driver == "sim" else (20, 200)
    y = any_device.zeros(N, np.uint32)
    with any_device.stream() as other:
        most = [first(x, 1) for _ in range(each_round + 1)]  # slots, as can be in flight below
        del most
        any_device.synchronize()
        used = any_device.memory.used
        slow_add(y, 1, other, spin=SLOW)
        first(x, 1, other)
        for _ in range(rounds):
            for i in range(each_round):
                first(x, i)
            any_device.default_stream.synchronize()
        assert any_device.memory.used == used


# Ends of life.


def test_large_results_take_the_memory_of_those_in_flight(open_device: OpenDevice) -> None:
    dev = open_device()
    size = 8 << 20
    k = dev.kernel(
        f"""layout(local_size_x = 1) in;
        layout(binding = 0) buffer Result {{ uint values[{size // 4}]; }};
        layout(push_constant) uniform P {{ uint n; }};
        void main() {{ values[n] = n; }}"""
    )
    kept = [k(n=n, threads=1) for n in range(3)]
    assert size * 3 <= dev.memory.used < size * 4
    for n, result in enumerate(kept):
        assert np.flatnonzero(result.result()).tolist() == ([n] if n else [])
    del kept, result
    with ps.trace() as t:
        assert k(n=3, threads=1).result()[3] == 3
    assert t.allocations == 0


def test_it_outlives_its_kernel(any_device: ps.Device, x: ps.Array) -> None:
    used = None
    for end in ("close", "drop"):
        for _ in range(2):
            run = new_kernel(any_device, FIRST)
            kept = [run(x=x, n=1, spin=0, add=i, groups=1) for i in range(40)]
            if end == "close":
                run.close()
            del run
            gc.collect()
            assert [r.result() for r in reversed(kept)] == [5 + i for i in reversed(range(40))]
            del kept
            gc.collect()
            any_device.synchronize()
            used = used or any_device.memory.used
            assert any_device.memory.used == used


def test_a_closed_device_says_so(open_device: OpenDevice) -> None:
    dev = open_device()
    x = dev.full(1, 5, np.uint32)
    read, unread = first(x, 1), first(x, 2)
    assert read.result() == 6
    dev.close()
    assert read.result() == 6
    for ask in (operator.methodcaller("result"), float, operator.neg):
        with pytest.raises(ps.Closed, match="closed before kernel first was read"):
            ask(unread)


@pytest.mark.parametrize("call", ["submit", "wait"])
def test_a_lost_device_says_so(call: str) -> None:
    lost = False

    def fault(name: str, number: int) -> BaseException | None:
        return ps.DeviceLost("gone") if lost and name == call else None

    with ps.Device(driver="sim", seed=1, fault=fault) as dev:
        x = dev.full(1, 5, np.uint32)
        arrived = first(x, 1)
        assert arrived.result() == 6
        pending: list[Any] = []
        with contextlib.suppress(ps.DeviceLost), dev.default_stream.batch():
            pending += [first(x, 2), count(x, 1)]
            lost = True
        for r in pending:
            with pytest.raises(ps.DeviceLost):
                r.result()
        assert arrived == 6
        with pytest.raises(ps.DeviceLost):
            first(x, 3)


def test_timeout_and_await(dev: ps.Device) -> None:
    x = dev.full(1, 5, np.uint32)
    with held(dev.default_stream):
        slow = first(x, 1)
        assert not slow.done
        with pytest.raises(ps.Timeout):
            slow.result(timeout=0.001)

    async def ask() -> list[Any]:
        return await asyncio.gather(*[_awaited(first(x, i)) for i in range(8)], _awaited(slow))

    assert asyncio.run(ask()) == [*range(5, 13), 6]
    assert slow.done


async def _awaited(r: Any) -> Any:
    return await r
