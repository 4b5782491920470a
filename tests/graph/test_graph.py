"""Graphs: recorded once, replayed as one command that is ordered like any other."""

from __future__ import annotations

import itertools
import random
import threading
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.graph import graph
from tests.conftest import simulated
from tests.kernels import (
    SLOW_ADD,
    block_sum,
    block_sum_of,
    count,
    first,
    kernel,
    new_kernel,
    saxpy,
    slow_add,
    slow_copy,
)

N = 64
Host = np.ndarray[Any, Any]


def arrays(dev: ps.Device, *values: int) -> list[ps.Array]:
    made = [dev.full(N, value, np.uint32) for value in values]
    dev.synchronize()
    return made


def commands_of(g: ps.Graph) -> list[str]:
    """What was encoded last, on the simulator."""
    variant = max(itertools.chain(*g._variants.values()), key=lambda v: v.last_used)
    return [c if isinstance(c, str) else c.what for c in variant.commands.commands]


# What can be recorded.


def test_everything_that_can_be_recorded(any_device: ps.Device) -> None:
    x, y, z = arrays(any_device, 1, 2, 3)
    odd = any_device.zeros(3, np.uint8)
    host = np.arange(N, dtype=np.uint32)
    block = np.arange(100, dtype=np.uint32)
    with any_device.record() as g:
        slow_add(x, 10, spin=0)  # 11, 22, …
        y.copy_from(x)
        z.fill(7)
        odd.fill(9)
        z[:8].write(host[:8])
        x[16:48].copy_from(x[8:40])  # overlapping
        block_sum(y, 0, block)
        host[:] = block[:] = 0  # recorded as it was
        made = any_device.array(np.full(N, 5, np.uint32))
        z[8] = made[0]
    assert (x.numpy() == 1).all()
    assert "a write of 32 bytes" in repr(g)
    for step in range(1, 4):
        g.replay()
        expected = x.numpy()
        assert (expected == 1 + 10 * step).all()
        assert y[0].item() == block_sum_of(np.arange(100))
        assert (y[1:].numpy() == 1 + 10 * step).all()
        assert z.tolist() == [*range(8), 5, *[7] * (N - 9)]
        assert odd.tolist() == [9, 9, 9]


def test_overlapping_copies_are_as_if_through_a_temporary(any_device: ps.Device) -> None:
    x = any_device.array(np.arange(N, dtype=np.uint32))
    mirror = np.arange(N, dtype=np.uint32)
    with any_device.record() as g:
        x[8:40].copy_from(x[4:36])
        x.reshape(8, 8)[1:, :4].copy_from(x.reshape(8, 8)[:-1, 2:6])
    for _ in range(2):
        g.replay()
        mirror[8:40] = mirror[4:36].copy()
        mirror.reshape(8, 8)[1:, :4] = mirror.reshape(8, 8)[:-1, 2:6].copy()
    assert (x.numpy() == mirror).all()


def test_what_cannot_be_recorded(any_device: ps.Device) -> None:
    (x,) = arrays(any_device, 1)
    stream = any_device.stream()
    with any_device.record() as other:
        x.fill(9)
    with any_device.record() as g:
        pending = x.fill(2)
        value = first(x, 1)
        for refused in (
            x.numpy, x.read, x.view, x[0].item, lambda: float(x[0]), lambda: x.fill(1, stream),
            lambda: slow_add(x, 1, stream), other.replay, g.replay, pending.wait, value.result,
            lambda: saxpy(any_device)(x=np.ones(4, "f"), y=x, a=1, n=4),
            lambda: any_device.record().__enter__(),
            lambda: bool(value), lambda: float(value), lambda: value == 3, lambda: value < 3,
        ):  # fmt: skip
            with pytest.raises(ps.NotWhileRecording):
                refused()
        assert not pending.done
    assert (x.numpy() == 1).all()
    g.replay()
    assert (x.numpy() == 2).all()
    stream.close()


def test_an_exception_ends_the_recording(any_device: ps.Device) -> None:
    (x,) = arrays(any_device, 1)
    with pytest.raises(ZeroDivisionError), any_device.record() as g:  # noqa: PT012
        x.fill(2)
        raise ZeroDivisionError
    with pytest.raises(ps.Closed, match="not recorded to its end"):
        g.replay()
    x.fill(3)
    assert (x.numpy() == 3).all()


def test_a_refused_launch_is_not_recorded(any_device: ps.Device) -> None:
    (x,) = arrays(any_device, 1)
    with any_device.record() as g:
        with pytest.raises(ps.ArgumentError):
            slow_add(x, "1", spin=0)  # type: ignore[arg-type]
        slow_add(x, 1, spin=0)
    assert len(g) == 1
    g.replay()
    assert (x.numpy() == 2).all()


def test_other_threads_go_on_as_always(threaded_device: ps.Device) -> None:
    x, y = arrays(threaded_device, 1, 1)
    with threaded_device.record() as g:
        slow_add(x, 1, spin=0)
        seen: list[Any] = []

        def work() -> None:
            slow_add(y, 1, spin=0)
            seen.extend([y.numpy()[0], first(y, 3).result()])

        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
    assert seen == [2, 5]
    assert len(g) == 1
    assert x[0].item() == 1


# Parameters.


def test_arrays_and_slices_of_them(any_device: ps.Device) -> None:
    x, y, other = arrays(any_device, 1, 0, 5)
    big = any_device.array(np.arange(4 * N, dtype=np.uint32))
    with any_device.record(x=x, y=y) as g:
        slow_copy(x, y, spin=0)
        y[:16].copy_from(x[16:32])
        x[32:].fill(8)
    g.replay()
    g.replay(x=other)
    g.replay(x=big[N : 2 * N], y=big[2 * N : 3 * N])
    expected = np.arange(4 * N, dtype=np.uint32)
    expected[2 * N : 3 * N] = expected[N : 2 * N]
    expected[2 * N : 2 * N + 16] = expected[N + 16 : N + 32]
    expected[N + 32 : 2 * N] = 8
    assert (big.numpy() == expected).all()
    assert (y.numpy() == 5).all()
    assert other.tolist() == [5] * 32 + [8] * 32
    x.close()  # the recorded one is not needed
    y[:] = 0
    g.replay(x=other)
    assert y.tolist() == [5] * 32 + [8] * 32


def test_an_array_may_be_read_in_many_pieces(any_device: ps.Device) -> None:
    """They are one access to the outside, which conflicts with a write to any of its bytes."""
    x, y = arrays(any_device, 1, 0)
    step = N // 4
    with any_device.record() as g:
        for at in (step, 3 * step, 0, 2 * step):
            y[at : at + step].copy_from(x[at : at + step])
    for value in range(3):
        x[step : step + 1].fill(value)  # each waits for the replay before, and that for the fill
        g.replay()
        assert y[step].item() == value
    (variant,) = next(iter(g._variants.values()))
    assert len(variant.uses) == 1 + 4  # all reads, and each write
    assert y[step + 1 :].tolist() == [1] * (N - step - 1)


def test_a_parameter_may_be_an_array_that_the_graph_uses_already(any_device: ps.Device) -> None:
    x, y = arrays(any_device, 1, 0)
    with any_device.record(x=x) as g:
        slow_add(y, 1, spin=0)
        y[:32].copy_from(x[:32])
        slow_add(y, 1, spin=0)
    y.write(np.arange(N, dtype=np.uint32))
    g.replay(x=y)
    mirror = np.arange(N, dtype=np.uint32) + 2
    assert (y.numpy() == mirror).all()
    with any_device.record(x=x[:32]) as g:
        y[16:48].copy_from(x[:32])
    g.replay(x=y[8:40])  # now it overlaps
    mirror[16:48] = mirror[8:40].copy()
    assert (y.numpy() == mirror).all()


def test_a_recorded_write_is_on_the_receipt(any_device: ps.Device) -> None:
    (x,) = arrays(any_device, 0)
    with ps.trace() as t, any_device.record() as g:
        x[:16].write(np.arange(16, dtype=np.uint32))
    (copy,) = t.of_kind("copy")
    assert (copy.nbytes, copy.path, copy.buffer) == (64, "staged", x.name)
    g.replay()
    assert x.numpy()[:16].tolist() == [*range(16)]


@pytest.mark.parametrize("shown", [np.asarray, memoryview])
def test_scalars_threads_and_blocks(shown: Any, any_device: ps.Device) -> None:
    (x,) = arrays(any_device, 0)
    y = any_device.zeros(8, np.uint32)
    fixed = np.ones(100, np.uint32)
    lent = any_device.host_empty(4)  # so that numbers might be in memory that the device writes
    with any_device.record(add=1, n=N, at=0, block=np.zeros(100, np.uint32)) as g:
        kernel(any_device, SLOW_ADD, "slow_add")(
            x=x, n=g["n"], spin=0, add=g["add"], threads=g["n"]
        )
        block_sum(y, g["at"], g["block"])  # type: ignore[arg-type]
        block_sum(y, 7, shown(fixed))
    fixed[:] = 0
    blocks = np.arange(700, dtype=np.uint32).reshape(7, 100)
    for at in range(7):
        g.replay(add=at, n=8 * at, at=at, block=blocks[at])
    assert y.tolist() == [*map(block_sum_of, blocks), block_sum_of(np.ones(100))]
    mirror = np.zeros(N, np.uint32)
    for at in range(7):
        mirror[: 8 * at] += at
    assert (x.numpy() == mirror).all()
    g.replay(at=1)
    assert (x.numpy() == mirror + 1).all()
    assert y[1].item() == 0
    assert all(part in repr(g) for part in ("parameter add = 1", "fixed: block_sum with at=7"))
    del lent


def test_blocks_where_memory_is_adopted(any_device: ps.Device) -> None:
    """The numbers of a replay are copies, which cannot be memory that is adopted."""
    adopted = any_device.host_empty(100, np.uint32)
    adopted[:] = 1
    (y,) = arrays(any_device, 0)
    with any_device.record(block=adopted) as g:
        block_sum(y, 0, g["block"], spin=0)  # type: ignore[arg-type]
    adopted[:] = 2
    g.replay()
    assert y[0].item() == block_sum_of(np.ones(100, np.uint32))
    g.replay(block=adopted)
    assert y[0].item() == block_sum_of(np.full(100, 2, np.uint32))


def test_values_that_are_equal_but_not_the_same(any_device: ps.Device) -> None:
    x, y = any_device.ones(4), any_device.zeros(4)
    with any_device.record(a=0.0) as g:
        y.fill(-0.0)
        saxpy(any_device)(x=x, y=y, a=g["a"], n=4, threads=4)
    for a, sign in ((0.0, False), (-0.0, True), (np.float32(0), False), (0, False)):
        g.replay(a=a)
        assert bool(np.signbit(y.numpy()[0])) is sign
    for a in (True, 1, 1.0, np.float64(1)):
        g.replay(a=a)
        assert y[0].item() == 1


def test_bad_parameters(any_device: ps.Device) -> None:
    x, y = arrays(any_device, 1, 1)
    with any_device.record(x=x, a=1) as g:
        slow_add(x, g["a"], spin=0)  # type: ignore[arg-type]
        x.copy_from(y)
        for name in ("x", "b"):
            with pytest.raises(ps.ArgumentError, match=repr(name)):
                g[name]
    for error, changed in (
        (ps.ArgumentError, {"b": 1}),
        (ps.ArgumentError, {"x": 1}),
        (ps.ArgumentError, {"x": x.numpy()}),
        (ps.ArgumentError, {"a": x}),
        (ps.ArgumentError, {"a": Fraction(1, 2)}),
        (ps.ArgumentError, {"a": object()}),
        (ps.Error, {"a": "1"}),
        (ps.Error, {"a": 1.5}),
        (ps.InvalidValue, {"a": -1}),
        (ps.Error, {"a": [1, [2]]}),
        (ps.ShapeMismatch, {"x": x[:8]}),
        (ps.ShapeMismatch, {"x": x.reshape(8, 8)}),
        (ps.DtypeMismatch, {"x": any_device.zeros(N)}),
        (ps.ShapeMismatch, {"x": any_device.zeros(2 * N, np.uint32)[::2]}),
    ):
        with pytest.raises(error):
            g.replay(**changed)
    for parameters in ({"stream": 1}, {"p": x, "q": x[8:]}, {"a": object()}, {"x": x[::2]}):
        with pytest.raises(ps.Error), any_device.record(**parameters):
            pass
    assert (x.numpy() == 1).all()


@pytest.mark.parametrize("own", [{"a": 5}, {"b": 5}, {}], ids=["same name", "other name", "none"])
def test_a_parameter_is_of_one_graph(own: dict[str, int], any_device: ps.Device) -> None:
    """The number of another graph is refused at recording, by its name and those of both graphs."""
    x, y = arrays(any_device, 1, 1)
    with any_device.record(a=2, n=N) as other:
        slow_add(y, other["a"], spin=0)  # type: ignore[arg-type]
    with any_device.record(**own) as g:
        names = ", ".join(own) or "no parameters"
        match = f"parameter a, now 2> of the graph of a, n on .*recorded is the graph of {names} on"
        with pytest.raises(ps.ArgumentError, match=match):
            slow_add(x, other["a"], spin=0)  # type: ignore[arg-type]
        for amount in ("threads", "groups"):
            with pytest.raises(ps.ArgumentError, match=f"{amount}= is <parameter n"):
                kernel(any_device, SLOW_ADD)(x=x, add=1, n=N, spin=0, **{amount: other["n"]})
        slow_add(x, g["a"] if "a" in own else 5, spin=0)  # type: ignore[arg-type]
    assert len(g) == 1
    g.replay()
    other.replay()
    assert x.numpy().tolist() == [6] * N
    assert y.numpy().tolist() == [3] * N


def test_read_only_memory_is_not_written(any_device: ps.Device, tmp_path: Any) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(4 * N))
    weights = any_device.from_file(path, np.uint32, N)
    x, y = arrays(any_device, 1, 1)
    for record in (x.fill, x.write, x.copy_from):
        with any_device.record(x=x) as g:
            record({x.fill: 3, x.write: np.ones(N, np.uint32), x.copy_from: y}[record])
        with pytest.raises(ps.ReadOnly):
            g.replay(x=weights)
    assert (weights.numpy() == 0).all()


def test_bytes_at_odd_places_are_filled(any_device: ps.Device) -> None:
    x, other = any_device.zeros(64, np.uint8), any_device.zeros(70, np.uint8)
    with any_device.record(x=x) as g:
        x.fill(7)
    g.replay(x=other[3:67])
    assert other.tolist() == [0] * 3 + [7] * 64 + [0] * 3


# Replays in flight.


def test_more_variants_than_are_kept(any_device: ps.Device) -> None:
    x, y = arrays(any_device, 0, 0)
    with any_device.record(add=0, x=x) as g:
        slow_add(x, g["add"], spin=0)  # type: ignore[arg-type]
    values = list(range(1, 3 * graph._VARIANTS))
    for add in (*values, *reversed(values)):
        g.replay(add=add, x=x if add % 2 else y)
    assert x[0].item() + y[0].item() == 2 * sum(values)
    with ps.trace() as t:
        for _ in range(5):
            g.replay(add=1)
    assert (t.allocations, t.waits) == (0, 0)


def test_results_of_replays_in_flight(any_device: ps.Device) -> None:
    (x,) = arrays(any_device, 5)
    other = any_device.stream()
    with any_device.record(add=0) as one:
        first(x, one["add"])  # type: ignore[arg-type]
    with any_device.record() as two:
        first(x, 1)
        count(x, 4)
    held = [(i, one.replay(add=i, stream=other if i % 3 else None)) for i in range(40)]
    pairs = [two.replay() for _ in range(20)]
    random.Random(0).shuffle(held)
    for i, r in held[:30]:
        assert r.result() == 5 + i
    for pair in pairs[::2]:
        assert pair.result() == (6, (N, 0))
    del held, pairs
    for _ in range(50):
        one.replay(add=1)  # dropped unread
    assert one.replay(add=2).result() == 7
    other.close()


def test_a_replay_and_its_result_wait_once_and_allocate_nothing(any_device: ps.Device) -> None:
    (x,) = arrays(any_device, 5)
    with any_device.record() as g:
        slow_add(x, 1, spin=0)
        first(x, 0)
    for _ in range(20):
        g.replay().result()
    with ps.trace() as t:
        for i in range(50):
            assert g.replay().result() == 26 + i
    assert (t.replays, t.allocations, t.copies) == (50, 0, 0)
    assert t.waits <= 50


def test_barriers_only_where_data_demands() -> None:
    with simulated(1) as dev:
        a, b, c, d = arrays(dev, 1, 2, 3, 4)
        for wanted, record in (
            (0, [(a, b), (a, c), (a, d)]),  # they only read the same
            (2, [(a, b), (b, c), (c, d)]),
            (1, [(a, b), (a, c), (b, d)]),
            (1, [(a, b), (c, d), (b, c), (d, a)]),  # one barrier settles both
            (1, [(a[:32], b[:32]), (a[32:], b[32:]), (b, c)]),
        ):
            with dev.record() as g:
                for x, y in record:
                    slow_copy(x, y)
            g.replay()
            assert commands_of(g).count("barrier") == wanted, record
            assert len(commands_of(g)) == wanted + len(record)


# A loop that advances by itself.

ADVANCE = """
layout(local_size_x = 1) in;
layout(binding = 0) buffer State { uint position[]; };
layout(binding = 1) writeonly buffer Groups { uint groups_next[]; };
void main() {
    uint i = position[0];
    position[0] = i + 1;
    groups_next[0] = i % 4; groups_next[1] = 1; groups_next[2] = 1;
}
"""
HIP_ADVANCE = (
    "inout uint32 position, out uint32 groups_next",
    1,
    "uint p = position[0]; position[0] = p + 1;"
    "groups_next[0] = p % 4; groups_next[1] = 1; groups_next[2] = 1;",
)
HIP_TALLY = ("in uint32 position, inout uint32 log", 1, "log[i] += position[0];")
TALLY = """
layout(local_size_x = 1) in;
layout(binding = 0) readonly buffer State { uint position[]; };
layout(binding = 1) buffer Log { uint log[]; };
void main() { log[gl_WorkGroupID.x] += position[0]; }
"""


def _advance(position: Host, groups_next: Host, threads: object) -> None:
    groups_next[:] = (position[0] % 4, 1, 1)
    position[0] += 1


def _tally(position: Host, log: Host, threads: tuple[int, int, int]) -> None:
    log[: threads[0]] += position[0]


def test_a_loop_that_advances_by_itself(any_device: ps.Device) -> None:
    steps = 1000 if any_device.info.driver != "sim" else 200
    advance = new_kernel(any_device, ADVANCE, "advance", _advance, HIP_ADVANCE)
    tally = new_kernel(any_device, TALLY, "tally", _tally, HIP_TALLY)
    position, groups = any_device.zeros(1, np.uint32), any_device.zeros(3, np.uint32)
    log = any_device.zeros(4, np.uint32)
    with any_device.record() as g:
        advance(position=position, groups_next=groups, groups=1)
        tally(position=position, log=log, groups=groups)
    g.replay()
    with ps.trace() as t:
        for _ in range(steps - 1):
            g.replay()
    assert (t.waits, t.copies) == (0, 0)
    assert t.submissions <= steps
    expected = [sum(i + 1 for i in range(steps) if i % 4 > group) for group in range(4)]
    assert log.tolist() == expected
    assert position.item() == steps


# Order against everything else.


@pytest.mark.parametrize("seed", range(25))
def test_replays_are_ordered_like_any_other_work(seed: int) -> None:
    rng = random.Random(seed)
    transfers = rng.choice(["auto", "unmapped", "staged", "rename"])
    with simulated(seed, transfers=transfers) as dev:
        held = arrays(dev, 1, 2, 3, 4)
        mirrors = [np.full(N, value, np.uint32) for value in (1, 2, 3, 4)]
        streams = [dev.default_stream, dev.stream()]
        with dev.record(x=held[0], add=1) as g:
            slow_copy(held[0], held[1])
            slow_add(held[1][:32], g["add"])  # type: ignore[arg-type]
            held[2].copy_from(held[1])
            held[2][8:24].fill(6)
            held[3][:16].write(np.arange(16, dtype=np.uint32))
            first(held[2], 10)
        results: list[tuple[int, Any]] = []
        reads: list[tuple[Host, Any]] = []
        for _ in range(40):
            stream, at = rng.choice(streams), rng.randrange(4)
            array, mirror = held[at], mirrors[at]
            lo = 16 * rng.randrange(3)
            match rng.randrange(7):
                case 0:
                    value = rng.randrange(100)
                    array[lo : lo + 16].write(np.full(16, value, np.uint32), stream)
                    mirror[lo : lo + 16] = value
                case 1:
                    array.write(np.full(N, lo, np.uint32), stream)
                    mirror[:] = lo
                case 2:
                    slow_add(array[lo : lo + 16], 3, stream)
                    mirror[lo : lo + 16] += 3
                case 3:
                    reads.append((mirror.copy(), array.read(stream)))
                case 4:
                    assert (array.numpy() == mirror).all()
                case _:
                    add, other = rng.choice([1, 5]), rng.choice([0, 3])
                    r = g.replay(stream, x=held[other], add=add)
                    mirrors[1][:] = mirrors[other]
                    mirrors[1][:32] += add
                    mirrors[2][:] = mirrors[1]
                    mirrors[2][8:24] = 6
                    mirrors[3][:16] = np.arange(16)
                    results.append((int(mirrors[2][0]) + 10, r))
            if rng.random() < 0.2 and results:
                value, r = results.pop(rng.randrange(len(results)))
                assert r.result() == value
        for value, r in results:
            assert r.result() == value
        for expected, pending in reads:
            assert (pending.result() == expected).all()
        for array, mirror in zip(held, mirrors, strict=True):
            assert (array.numpy() == mirror).all()


def test_threads_record_each_their_own(threaded_device: ps.Device) -> None:
    x, y = arrays(threaded_device, 0, 0)
    first, second = threading.Event(), threading.Event()
    graphs: dict[str, ps.Graph] = {}

    def record(name: str, array: ps.Array, mine: threading.Event, other: threading.Event) -> None:
        with threaded_device.record() as graphs[name]:
            slow_add(array, 1, spin=0)
            mine.set()
            assert other.wait(30)
            slow_add(array, 1, spin=0)

    threads = [
        threading.Thread(target=record, args=("x", x, first, second)),
        threading.Thread(target=record, args=("y", y, second, first)),
    ]
    for thread in threads:
        thread.start()
    assert first.wait(30)
    assert second.wait(30)
    slow_add(x, 10, spin=0)  # this thread records nothing, so that it is done
    for thread in threads:
        thread.join()
    assert (x.numpy() == 10).all()
    assert [len(graphs[name]) for name in "xy"] == [2, 2]
    graphs["x"].replay()
    graphs["y"].replay()
    assert (x.numpy() == 12).all()
    assert (y.numpy() == 2).all()


def test_a_graph_that_is_encoded_has_nothing_left_for_its_first_replay(dev: ps.Device) -> None:
    (x,) = arrays(dev, 1)
    with dev.record() as g:
        slow_add(x, 10, spin=0)
    with dev.record(), pytest.raises(ps.NotWhileRecording):
        g.encode()
    with ps.trace() as t:
        g.encode()
        t.expect(replays=0, submissions=0, waits=0, allocations=1)
        g.replay()
        t.expect(replays=1, allocations=1)
    assert (x.numpy() == 11).all()
    g.close()
    with pytest.raises(ps.Closed):
        g.encode()
