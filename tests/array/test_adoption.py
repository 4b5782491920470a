"""Adopted memory is the caller's own: no copy, one buffer per byte, alive for as long as needed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.array import adoption, staging
from penstock.schedule.thresholds import Sizes
from tests.conftest import OpenDevice
from tests.gate import held, held_until_waited
from tests.kernels import (
    BLOCK_SUM,
    SLOW_ADD,
    SLOW_COPY,
    block_sum,
    block_sum_of,
    kernel,
    saxpy,
    slow_add,
    slow_copy,
)

Host = np.ndarray[Any, Any]
N = 1024
PAGE = mmap.PAGESIZE


def host(n: int = N, dtype: Any = np.uint32, start: int = 0) -> Host:
    """Memory that starts `start` bytes into a page."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.zeros(n * itemsize + 2 * PAGE, np.uint8)
    first = -raw.__array_interface__["data"][0] % PAGE + start
    return raw[first : first + n * itemsize].view(dtype)


def alignment(dev: ps.Device) -> int:
    found = dev.info.limits["binding_alignment"]
    assert isinstance(found, int)
    return found


@pytest.fixture(autouse=True)
def can_import(dev: ps.Device) -> None:
    if not dev.info.can_import:
        pytest.skip(f"{dev.name} cannot import host memory")


# Zero copies, in place.


@pytest.mark.parametrize("source", ["aligned", "host_empty"])
def test_the_device_works_in_the_callers_memory(source: str, dev: ps.Device) -> None:
    memory = host() if source == "aligned" else dev.host_empty(N, np.uint32)
    memory[:] = 1
    with ps.trace() as t:
        x = dev.adopt(memory, name="mine")
        slow_add(x, 5)
        dev.synchronize()
    assert (memory == 6).all()
    assert (t.copies, t.bytes_copied, t.launches) == (0, 0, 1)
    assert [event.path for event in t.of_kind("adopt")] == ["adopt"]
    memory[:] = 7  # idle: the host may use it as it likes
    slow_add(x, 1)
    assert (x.numpy() == 8).all()
    x.fill(9)
    x[3:5] = [1, 2]
    dev.synchronize()
    assert memory[:6].tolist() == [9, 9, 9, 1, 2, 9]


@pytest.mark.parametrize("start", [0, 4, 16, 48, 256, 4000])
def test_where_memory_may_start(start: int, dev: ps.Device) -> None:
    memory = host(start=start)
    memory[:] = np.arange(N)
    if start % alignment(dev):
        with pytest.raises(ps.CannotAdopt, match=r"multiple of \d+ bytes.*host_empty"):
            dev.adopt(memory)
        return
    x = dev.adopt(memory)
    slow_add(x, 1)
    assert (x.numpy() == np.arange(1, N + 1)).all()
    assert (memory == np.arange(1, N + 1)).all()


@pytest.mark.parametrize("n", [1, 3, 100, 5000, 1 << 20])
def test_arrays_from_host_empty_can_always_be_adopted(n: int, dev: ps.Device) -> None:
    memory = dev.host_empty(n, np.uint32)
    memory[:] = np.arange(n)
    for part in (memory, memory[:], memory[n // 2 :], memory[: n // 2 + 1], memory[n // 3 :: 2]):
        x = dev.adopt(part)
        assert (x.numpy() == part).all()
        assert x.buffer.backing is dev.adopt(memory).buffer.backing
    dev.adopt(memory)[n // 2 :].fill(3)
    dev.synchronize()
    assert (memory == np.where(np.arange(n) < n // 2, np.arange(n), 3)).all()
    assert dev.host_empty((2, 3)).dtype == np.float32


def test_adopted_memory_may_be_strided(dev: ps.Device) -> None:
    grid = host(64 * 64).reshape(64, 64)
    grid[:] = np.arange(64 * 64).reshape(64, 64)
    x = dev.adopt(grid)
    column = dev.adopt(grid[:, 5])
    assert not column.contiguous
    assert (column.numpy() == grid[:, 5]).all()
    slow_add(x, 1)
    column[1:3] = 0
    assert (x[:4, 5].numpy() == [6, 0, 0, 198]).all()


@pytest.mark.parametrize(
    "strange",
    [
        lambda a: a[::-1],
        lambda a: np.broadcast_to(a[:1], (4,)),
        lambda a: np.lib.stride_tricks.sliding_window_view(a, 3, writeable=True),
    ],
    ids=["reversed", "repeated", "overlapping"],
)
def test_memory_that_lists_its_elements_strangely_is_refused(strange: Any, dev: ps.Device) -> None:
    with pytest.raises(ps.CannotAdopt, match=r"strides.*view of"):
        dev.adopt(strange(host()))


# One buffer for each byte.


def test_what_is_adopted_twice_is_one_buffer(dev: ps.Device) -> None:
    memory = host()
    whole = dev.adopt(memory)
    half, again = dev.adopt(memory[512:]), dev.adopt(memory)
    assert half.buffer.backing is again.buffer.backing is whole.buffer.backing
    slow_add(whole, 1)
    slow_add(half, 10)
    with ps.trace() as t:
        assert (again.numpy() == np.where(np.arange(N) < 512, 1, 11)).all()
    assert t.waits <= 1


def test_overlaps_of_what_is_adopted_are_refused(dev: ps.Device) -> None:
    memory = host(4 * N)
    left, right = dev.adopt(memory[:N]), dev.adopt(memory[2 * N : 3 * N])
    for part in (memory, memory[N // 2 : 2 * N], memory[: 2 * N], memory[N : 2 * N + 1]):
        with pytest.raises(ps.CannotAdopt, match=r"already adopted.*enclosing array"):
            dev.adopt(part)
    between = dev.adopt(memory[N : 2 * N])
    assert len({array.buffer.backing for array in (left, between, right)}) == 3
    del left, between, right
    gc.collect()
    assert dev.adopt(memory).size == 4 * N


@pytest.mark.parametrize("closed", [False, True], ids=["dropped", "closed"])
@pytest.mark.parametrize("source", ["aligned", "host_empty"])
def test_memory_adopted_again_waits_for_work_of_before(
    source: str, closed: bool, dev: ps.Device
) -> None:
    memory = host() if source == "aligned" else dev.host_empty(N, np.uint32)
    memory[:] = 1
    x = dev.adopt(memory)
    slow_add(x, 5)
    if closed:
        x.close()
    del x
    x = dev.adopt(memory)
    assert (x.numpy() == 6).all()
    slow_add(x, 1)
    del x
    dev.adopt(memory).fill(3)
    dev.synchronize()
    assert (memory == 3).all()


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_memory_is_not_adopted_in_another_shape_while_a_view_shows_it(
    mode: Any, dev: ps.Device
) -> None:
    memory = host()
    half = dev.adopt(memory[:512])
    view = half.view(mode)
    half.close()
    for part in (memory, memory[256:]):
        with pytest.raises(ps.CannotAdopt, match=r"live view.*drop the view"):
            dev.adopt(part)
    copied = dev.from_dlpack(memory)
    slow_add(copied, 5)
    dev.synchronize()
    assert not view.any()
    assert (dev.adopt(memory[:512]).numpy() == 0).all()  # in the same shape it is the same memory
    del view
    whole = dev.adopt(memory)
    with dev.stream() as other, held_until_waited(other):
        slow_add(whole, 5, other, spin=0)
        assert (dev.adopt(memory[:512]).numpy() == 5).all()
    whole.close()


def test_memory_that_was_adopted_before_leaves_no_ledger_page_behind(
    dev: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, y = host(), dev.zeros(512, np.uint32)
    half, stream, other = dev.adopt(memory[:512]), dev.default_stream, dev.stream()
    copy = kernel(dev, SLOW_COPY, "slow_copy")
    slow_add(half, 1)
    stream.flush()
    half.close()
    span = adoption._span

    def span_when_done(source: Host) -> int:
        while stream.lane.complete < stream.lane.submitted:  # as another thread may learn
            stream.poll()
        return span(source)

    monkeypatch.setattr(adoption, "_span", span_when_done)
    whole = dev.adopt(memory)
    with held_until_waited(other):
        slow_add(whole, 5, other, spin=0)
        copy(x=memory[:512], y=y, n=512, spin=0, threads=512)
    assert (y.numpy() == 6).all()
    whole.close()
    other.close()


# The caller's NumPy array, handed in while the device works on its memory.


def launched(dev: ps.Device, x: Host) -> Host:
    """What a kernel reads that is given this NumPy array."""
    y = dev.zeros(x.size, x.dtype)
    copy = kernel(dev, SLOW_COPY, "slow_copy")
    copy(x=x, y=y, n=x.size, spin=0, threads=x.size)
    return y.numpy().reshape(x.shape)


def launched_into(dev: ps.Device, x: Host) -> Host:
    """The NumPy array, after a kernel added 1 to it."""
    add = kernel(dev, SLOW_ADD, "slow_add")
    add(x=x, n=x.size, spin=0, add=1, threads=x.size)
    return x - 1


def as_scalars(dev: ps.Device, x: Host) -> Host:
    """The NumPy array, as a kernel got it that takes 100 numbers by value."""
    y = dev.zeros(1, np.uint32)
    part = x[:100]
    kernel(dev, BLOCK_SUM, "block_sum")(y=y, at=0, n=1, spin=0, block=part, groups=1)
    assert y.item() == block_sum_of(part)  # which is at rest by now
    return x


PARTS = {
    "aligned": np.s_[:],
    "every second": np.s_[::2],
    "not aligned": np.s_[1:-1],
    "backwards": np.s_[::-1],
}


@pytest.mark.parametrize("transfers", ["auto", "unmapped"])
@pytest.mark.parametrize("use", [launched, launched_into, as_scalars])
@pytest.mark.parametrize("part", PARTS)
def test_an_argument_comes_after_the_work_on_its_memory(
    part: str, use: Any, transfers: str, shared_device: OpenDevice
) -> None:
    dev = shared_device(transfers=transfers)
    memory = host()
    memory[:] = np.arange(N)
    x = dev.adopt(memory, name="mine")
    with dev.stream() as other, held_until_waited(other), ps.trace() as t:
        slow_add(x, 5, other, spin=0)
        assert (use(dev, memory[PARTS[part]]) == np.arange(5, N + 5)[PARTS[part]]).all()
    waits = [event for event in t.of_kind("wait") if "adopted memory" in event.reason]
    if part != "aligned":
        assert [(wait.buffer, "slow_add" in wait.reason) for wait in waits] == [("mine", True)]
    dev.synchronize()
    x.close()


BLOCKS: dict[str, Callable[[Host], Any]] = {
    "array": lambda x: x,
    "memoryview": memoryview,
    "list": lambda x: [x[i, ...] for i in range(100)],
    "another library's": lambda x: Lends(x),
    "ctypes": lambda x: (ctypes.c_uint32 * 100).from_address(x.ctypes.data),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_numbers_come_after_the_work_on_their_memory(block: str, dev: ps.Device) -> None:
    memory = host()
    memory[:] = np.arange(N)
    x, y = dev.adopt(memory, name="mine"), dev.zeros(1, np.uint32)
    with dev.stream() as other, held_until_waited(other), ps.trace() as t:
        slow_add(x, 5, other, spin=0)
        block_sum(y, 0, BLOCKS[block](memory[:100]))
    assert y.item() == block_sum_of(np.arange(5, 105))
    assert [wait.buffer for wait in t.of_kind("wait") if "adopted memory" in wait.reason] == [
        "mine"
    ]
    x.close()


@pytest.mark.parametrize("number", ["add", "threads", "groups", "add, and groups on the device"])
def test_a_number_comes_after_the_work_on_its_memory(number: str, dev: ps.Device) -> None:
    memory = host()
    memory[:] = 1
    x, y, add = dev.adopt(memory), dev.zeros(N, np.uint32), kernel(dev, SLOW_ADD, "slow_add")
    one = memory[3, ...]
    options = {
        "add": {"add": one, "threads": N},
        "threads": {"add": 1, "threads": one},
        "groups": {"add": 1, "groups": (one, 1)},
        "add, and groups on the device": {
            "add": one,
            "groups": dev.array(np.array([2, 1, 1], np.uint32)),
        },
    }[number]
    with dev.stream() as other, held_until_waited(other):
        slow_add(x, 127, other, spin=0)
        add(x=y, n=N, spin=0, **options)
    count = {"add": N, "threads": 128}.get(number, 128 if "device" in number else N)
    value = 128 if "add" in number else 1
    assert (y.numpy() == np.where(np.arange(N) < count, value, 0)).all()
    x.close()


def test_an_argument_waits_for_its_own_bytes_only(dev: ps.Device) -> None:
    memory = host()
    memory[:] = np.arange(N)
    x = dev.adopt(memory)
    with dev.stream() as other, held(other):
        slow_add(x[512:], 5, other, spin=0)
        slow_copy(x[:256], dev.zeros(256, np.uint32), other, spin=0)
        with ps.trace() as t:
            assert (launched(dev, memory[1:256]) == np.arange(1, 256)).all()
            assert (launched(dev, memory[0:512:2]) == np.arange(0, 512, 2)).all()
            launched_into(dev, memory[257:512])
        assert not [each for each in t.of_kind("wait") if "adopted memory" in each.reason]
    x.close()


def test_work_on_the_memory_comes_after_what_a_kernel_writes_back(dev: ps.Device) -> None:
    memory = host()
    x, y = dev.adopt(memory), dev.zeros(N, np.uint32)
    with dev.stream() as other, held_until_waited(other):
        slow_copy(x, y, other, spin=0)  # reads what the argument is about to replace
        launched_into(dev, memory[1:])
        slow_add(x, 10, other, spin=0)
    assert (y.numpy() == 0).all()
    assert (x.numpy()[1:] == 11).all()
    x.close()


class Lends:
    """Something of another library's that gives NumPy its memory when asked."""

    def __init__(self, lent: Host) -> None:
        self._lent = lent

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Host:
        return self._lent


class Shows:
    """The same, by telling where it is."""

    def __init__(self, shown: Host) -> None:
        self._shown = shown
        self.__array_interface__ = shown.__array_interface__


COUNTED = """
layout(local_size_x = 1) in;
layout(constant_id = 0) const uint count = 1;
layout(binding = 0) buffer X { uint x[]; };
void main() { x[0] = count; }
"""


def test_transfers_from_memory_that_the_device_writes_are_refused(dev: ps.Device) -> None:
    memory = host()
    memory[:] = np.arange(N)
    x, target = dev.adopt(memory), dev.zeros(N // 2, np.uint32)
    number, records = dev.zeros(4, np.uint32), dev.zeros(2, [("a", "u4"), ("b", "u4")])
    others = [Lends(memory[:4]), Shows(memory[:4]), memoryview(memory[:4])]
    others.append((ctypes.c_uint32 * 4).from_address(memory.ctypes.data))
    with dev.record(a=np.uint32(1)) as graph:
        target.fill(3)
    with held(dev.default_stream):
        slow_add(x, 5, spin=0)
        for attempt in (
            lambda: target.write(memory[::2]),
            lambda: target.write(memory[::2], borrow=True),
            lambda: target[:8].reshape(2, 4).write([memory[:4], memory[4:8]]),
            lambda: target.__setitem__(slice(None), memory[::2]),
            lambda: target.__setitem__(slice(0, 2), [memory[:1].reshape(()), memory[1, ...]]),
            lambda: dev.array(memory[::2]),
            lambda: dev.array(memory, np.float64),
            lambda: dev.array([memory[:4], memory[4:8]]),
            lambda: dev.array(memoryview(memory)),  # type: ignore[arg-type]
            *(lambda each=each: dev.array(each, np.float64) for each in others),
            *(lambda each=each: dev.array([each, each]) for each in others),
            *(lambda each=each: dev.array(deque([each])) for each in others),
            *(lambda each=each: target[:4].write(each) for each in others),
            *(lambda each=each: target.__setitem__(slice(4), each) for each in others),
            lambda: target.write([Lends(memory[3, ...])] * (N // 2)),
            lambda: records.fill(memory[:2].view(records.dtype)[0]),
            lambda: records.__setitem__(0, memory[:2].view(records.dtype)[0]),
            lambda: dev.array([memory[:2].view(records.dtype)[0]]),
            lambda: dev.asarray(memory[1:5]),
            lambda: number.fill(memory[3, ...]),
            lambda: dev.full(3, memory[3, ...]),
            lambda: graph.replay(a=memory[3, ...]),
            lambda: graph.replay(a=Lends(memory[3, ...])),
            lambda: dev.record(a=memory[3, ...]),
            lambda: dev.record(a=Lends(memory[3, ...])),
            lambda: dev.kernel(COUNTED, constants={"count": memory[3, ...]}),
        ):
            with pytest.raises(ps.InvalidValue, match=r"adopted memory .* in flight .*slow_add"):
                attempt()
        with dev.record():
            with pytest.raises(ps.InvalidValue, match="adopted memory"):
                target.write(memory[::2])
            with pytest.raises(ps.InvalidValue, match="adopted memory"):
                slow_add(target, 1, spin=memory[3, ...])
            with pytest.raises(ps.InvalidValue, match="adopted memory"):
                kernel(dev, SLOW_ADD, "slow_add")(
                    x=target, n=1, spin=0, add=0, threads=memory[3, ...]
                )
        with pytest.raises(ps.InvalidValue, match="out= is adopted memory"):
            target.read(out=memory[::2])
        with pytest.raises(ps.InvalidValue, match="out= is adopted memory"):
            target.read(out=memory[: N // 2])
    assert (target.numpy() == 0).all()
    assert (x.numpy() == np.arange(5, N + 5)).all()
    graph.close()
    x.close()


@pytest.mark.parametrize("transfers", ["auto", "ordered", "unmapped"])
def test_copies_in_the_background_are_ordered_with_work_on_the_memory(
    transfers: str, shared_device: OpenDevice
) -> None:
    dev = shared_device(transfers=transfers)
    mine, theirs = host(), host()
    theirs[:] = 7
    x, y = dev.adopt(mine), dev.adopt(theirs)
    source, target = dev.array(np.arange(N, dtype=np.uint32)), dev.zeros(N, np.uint32)
    other = dev.stream()
    with held(dev.default_stream):
        slow_add(source, 1, spin=0)
        slow_add(target, 1, spin=0)
        for _ in range(2):
            source.read(out=mine)  # made by a thread, when the work before it is done
        target.write(theirs, borrow=True)  # and so may be this
        slow_add(x, 100, other, spin=0)
        slow_add(y, 100, other, spin=0)
    assert (x.numpy() == np.arange(101, N + 101)).all()
    assert (mine == np.arange(101, N + 101)).all()
    assert (target.numpy() == 7).all()
    assert (y.numpy() == 107).all()
    other.close()
    x.close()
    y.close()


@pytest.mark.parametrize(
    ("transfers", "blocks"), [("auto", 2), ("staged", 2), ("staged", 64), ("unmapped", 64)]
)
def test_a_large_write_from_its_own_memory_reads_all_of_it_first(
    transfers: str, blocks: int, shared_device: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an assignment does in NumPy: the device changes nothing that the host has yet to read."""
    dev = shared_device(transfers=transfers)
    sizes = Sizes(under_lock=256, staging_block=512, staging_blocks=blocks)
    monkeypatch.setattr(dev.scheduler, "sizes", sizes)
    fill, stream = staging.Staged.fill, dev.default_stream

    def fill_late(part: staging.Staged) -> None:
        while stream.lane.complete < stream.lane.submitted:
            stream.poll()
        fill(part)

    if blocks == 64:  # with fewer, a part waits for an earlier one by itself
        monkeypatch.setattr(staging.Staged, "fill", fill_late)
    memory, other = host(), dev.zeros(N, np.uint32)
    x, end = dev.adopt(memory), dev.adopt(memory[N // 4 :])
    for target, to, source in (
        (x, np.s_[:], np.s_[::-1]),
        (x[1:], np.s_[1:], np.s_[:-1]),
        (x[::2], np.s_[::2], np.s_[: N // 2]),
        (end, np.s_[N // 4 :], np.s_[: N - N // 4]),
        (end, np.s_[N // 4 :], np.s_[: N // 4 - 1 : -1]),
    ):
        memory[:] = expected = np.arange(N)
        expected[to] = expected[source].copy()
        with held_until_waited(stream) if transfers == "auto" else contextlib.nullcontext():
            slow_copy(x, other, spin=0)  # reads what is to be written
            target.write(memory[source])
        assert (x.numpy() == expected).all()
    end.close()
    x.close()


def test_memory_that_views_show_is_not_written_by_other_ways(dev: ps.Device) -> None:
    memory = host()
    x, y = dev.adopt(memory), dev.ones(N - 1, np.uint32)
    view = x[:4].view("r")
    for attempt in (
        lambda: launched_into(dev, memory[1:]),
        lambda: launched_into(dev, memory),
        lambda: y.read(out=memory[1:]),
    ):
        with pytest.raises(ps.ViewHeld, match="view"):
            attempt()
    assert (launched(dev, memory[1:]) == 0).all()
    assert not memory.any()
    del view
    own = x.view("rw")  # the host's to write, and so to have filled
    y.read(out=own[1:]).result()
    assert (memory[1:] == 1).all()
    del own
    launched_into(dev, memory[1:])
    assert (memory[1:] == 2).all()
    x.close()


# What may be written.


def test_read_only_memory_is_not_written(dev: ps.Device) -> None:
    memory = host(dtype=np.float32)
    memory.flags.writeable = False
    x, y = dev.adopt(memory, name="constant"), dev.ones(N)
    saxpy(dev)(x=x, y=y, a=2, n=N, threads=N)
    assert (y.numpy() == 1).all()
    for write in (
        lambda: saxpy(dev)(x=y, y=x, a=1, n=N, threads=N),
        lambda: x.fill(1),
        lambda: x.write(np.ones(N, np.float32)),
        lambda: x[:10].copy_from(y[:10]),
        lambda: x.view("w"),
    ):
        with pytest.raises(ps.ReadOnly, match=r"'constant'.*read-only.*dev\.array"):
            write()
    assert not x.view("r").flags.writeable
    assert not memory.any()


@pytest.mark.parametrize("first", ["writable", "read-only"])
def test_every_sight_of_memory_keeps_its_own_permission(first: str, dev: ps.Device) -> None:
    memory = host()
    frozen = memory.view()
    frozen.flags.writeable = False
    order = (memory, frozen) if first == "writable" else (frozen, memory)
    adopted = {array.flags.writeable: dev.adopt(array) for array in order}
    adopted[True].fill(3)
    with pytest.raises(ps.ReadOnly):
        adopted[False].fill(4)
    assert (adopted[False].numpy() == 3).all()


# Sealed weights.


def test_a_sealed_weight_is_not_written_by_way_of_its_memory(dev: ps.Device) -> None:
    memory = host(2 * N)
    before = dev.adopt(memory, name="before")
    w = dev.adopt(memory[:N], name="w")
    source = dev.ones(N, np.uint32)
    with dev.record() as graph:
        slow_add(before[:N], 1, spin=0)
    graph.replay()
    shown = w.view("r")
    del shown
    dev.synchronize()
    w.seal()
    attempts = {
        "adopt()": lambda: dev.adopt(memory),
        "adopt() ": lambda: dev.adopt(memory[:N]),
        "adopt()  ": lambda: dev.from_dlpack(memory[64:128]),
        "argument 'x'": lambda: launched_into(dev, memory[:N]),
        "argument 'x' ": lambda: launched_into(dev, memory[1:N]),
        "argument 'x'  ": lambda: launched_into(dev, memory[1 : N + 1]),
        "out=": lambda: source.read(out=memory[:N]),
        "kernel slow_add": lambda: slow_add(before[:N], 1, spin=0),
        "write()": lambda: before.write(np.ones(2 * N, np.uint32)),
        "write() ": lambda: before[:4].write(np.ones(4, np.uint32)),
        "fill()": lambda: before[N - 1 :].fill(3),
        "copy_from()": lambda: before[:N].copy_from(source),
        "view('rw')": lambda: before.view("rw"),
        "a graph": graph.replay,
    }
    for what, attempt in attempts.items():
        with pytest.raises(ps.RoleViolation, match=r"array 'w'.*'weight'.*never written") as info:
            attempt()
        assert what.strip() in str(info.value)
    dev.synchronize()
    assert (w.numpy() == 1).all()
    assert (launched(dev, memory[:N]) == 1).all()  # reading is fine, in place or not
    assert (launched(dev, memory[1:N]) == 1).all()
    frozen = memory[:N].view()
    frozen.flags.writeable = False
    assert (dev.adopt(frozen).numpy() == 1).all()
    before[N:].fill(5)  # what is not the weight's is not sealed
    assert (launched_into(dev, memory[N:]) == 5).all()
    graph.close()
    w.close()
    slow_add(before[:N], 1, spin=0)  # the memory is of no weight any more
    assert (before.numpy()[:N] == 2).all()
    before.close()


def test_sealing_what_a_writable_view_shows_is_refused(dev: ps.Device) -> None:
    for w in (dev.zeros(N, np.uint32, name="w"), dev.adopt(host(), name="w")):
        readable = w[8:16].view("r")
        view = w[:4].view("rw")
        part = view[1:2]
        del view
        with pytest.raises(ps.ViewHeld, match=r"seal\(\) of array 'w'.*writable view.*drop"):
            w.seal()
        assert w.role == "generic"
        part[:] = 7
        del part
        w.seal()
        assert not readable.any()
        assert w.numpy()[:3].tolist() == [0, 7, 0]
        with pytest.raises(ps.RoleViolation):
            w.fill(1)


# Lifetime.


@pytest.mark.parametrize("source", ["aligned", "host_empty", "file"])
def test_memory_lives_until_the_device_is_done_with_it(
    source: str, open_device: OpenDevice, tmp_path: Path
) -> None:
    dev = open_device()
    expected = np.arange(1 << 16, dtype=np.uint32)
    results = []
    for _ in range(4):
        if source == "file":
            expected.tofile(tmp_path / "numbers")
            x = dev.from_file(tmp_path / "numbers", np.uint32, 1 << 16)
            (tmp_path / "numbers").unlink()
        else:
            memory = host(1 << 16) if source == "aligned" else dev.host_empty(1 << 16, np.uint32)
            memory[:] = expected
            x = dev.adopt(memory)
            del memory
        results.append(dev.empty(1 << 16, np.uint32))
        slow_copy(x, results[-1], spin=500)
        del x
        gc.collect()
        np.zeros(1 << 16, np.uint32)  # would take the memory over if it were free
    for result in results:
        assert (result.numpy() == expected).all()
    dev.synchronize()
    assert dev.memory.adopted == 0


def test_an_array_from_host_empty_outlives_the_device(open_device: OpenDevice) -> None:
    dev = open_device()
    memory = dev.host_empty(N, np.uint32)
    slow_add(dev.adopt(memory), 0)
    memory_used = dev.memory.used
    dev.close()
    memory[:] = 5
    assert memory_used
    assert (memory == 5).all()


def test_memory_goes_back_when_the_array_from_host_empty_is_gone(dev: ps.Device) -> None:
    used = dev.memory.used
    memory = dev.host_empty(1 << 20, np.uint8)
    part = dev.adopt(memory)[1:3]
    del memory
    assert dev.memory.used >= used + (1 << 20)
    assert part.numpy().shape == (2,)
    del part
    gc.collect()
    assert dev.memory.used == used


# Files.


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file that holds 0, 1, 2, … as 32-bit numbers."""
    np.arange(4 * PAGE // 4, dtype=np.uint32).tofile(tmp_path / "numbers")
    return tmp_path / "numbers"


@pytest.mark.parametrize("offset", [0, 256, 3 * PAGE, 20, 3])
def test_part_of_a_file(offset: int, numbers: Path, dev: ps.Device) -> None:
    shape = (8, 16)
    expected = np.ndarray(shape, np.uint32, numbers.read_bytes(), offset)
    with ps.trace() as t:
        x = dev.from_file(numbers, np.uint32, shape, offset, name="part")
    in_place = offset % alignment(dev) == 0
    assert (t.copies, bool(t.of_kind("fallback"))) == ((0, False) if in_place else (1, True))
    assert (x.name, x.shape, x.dtype) == ("part", shape, np.uint32)
    assert (x.numpy() == expected).all()
    y = dev.zeros(128, np.uint32)
    slow_copy(x.ravel(), y)
    assert (y.numpy() == expected.ravel()).all()
    for write in (lambda: x.fill(1), lambda: slow_add(x.ravel(), 1)):
        with pytest.raises(ps.ReadOnly):
            write()
    assert np.fromfile(numbers, np.uint32)[:3].tolist() == [0, 1, 2]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_arrays_of_one_file_share_a_descriptor(numbers: Path, dev: ps.Device) -> None:
    step = alignment(dev)
    gc.collect()  # other tests share the device, and may have left arrays on it
    adopted, before = dev.memory.adopted, descriptors()
    parts = [dev.from_file(numbers, np.uint32, 4, at) for at in range(0, 4 * PAGE, step)]
    assert descriptors() <= before + 1
    expected = np.arange(4 * PAGE // 4, dtype=np.uint32)
    for part, at in zip(parts, range(0, 4 * PAGE, step), strict=True):
        assert (part.numpy() == expected[at // 4 : at // 4 + 4]).all()
    del parts, part
    gc.collect()
    assert dev.memory.adopted == adopted
    assert descriptors() <= before


def test_parts_of_a_file_may_overlap(numbers: Path, dev: ps.Device) -> None:
    expected = np.arange(4 * PAGE // 4, dtype=np.uint32)
    with ps.trace() as t:
        part = dev.from_file(numbers, np.uint32, 64, PAGE)
        more = dev.from_file(numbers, np.uint32, 128, PAGE)
        whole = dev.from_file(numbers, np.uint32, expected.size)
        again = dev.from_file(numbers, np.uint32, 64, PAGE)
    assert (t.copies, len(t.of_kind("fallback"))) == (0, 0)
    assert (whole.numpy() == expected).all()
    for each in (part, more, again):
        assert (each.numpy() == expected[PAGE // 4 :][: each.size]).all()


def test_a_file_that_took_the_place_of_another_is_mapped_anew(
    numbers: Path, tmp_path: Path, dev: ps.Device
) -> None:
    old = dev.from_file(numbers, np.uint32, 64)
    np.full(4 * PAGE // 4, 9, np.uint32).tofile(tmp_path / "other")
    (tmp_path / "other").replace(numbers)
    new = dev.from_file(numbers, np.uint32, 64)
    assert (old.numpy() == np.arange(64)).all()
    assert (new.numpy() == 9).all()


def test_only_the_first_adoption_of_memory_allocates(dev: ps.Device) -> None:
    memory = host()
    with ps.trace() as t:
        x = dev.adopt(memory)
    (made,) = t.of_kind("allocation")
    assert "import of host memory" in made.reason
    assert made.nbytes >= memory.nbytes
    slow_add(x, 1, spin=0)
    launched(dev, memory)
    with ps.trace() as t:
        also = dev.adopt(memory[64:128])
        launched(dev, memory)
        launched_into(dev, memory)
    assert t.allocations == 0
    dev.synchronize()
    x.close()
    also.close()


def test_a_file_by_its_name(numbers: Path, dev: ps.Device) -> None:
    x = dev.from_file(str(numbers), "float16", 3)
    assert x.name == "numbers"
    assert (x.numpy() == np.fromfile(numbers, np.float16, 3)).all()


def test_nothing_of_a_file(numbers: Path, tmp_path: Path, dev: ps.Device) -> None:
    (tmp_path / "empty").touch()
    for path, offset in ((numbers, 4 * PAGE), (tmp_path / "empty", 0)):
        assert dev.from_file(path, np.float32, (0, 3), offset).numpy().shape == (0, 3)


@pytest.mark.parametrize(
    ("n", "offset"), [(PAGE + 1, 0), (1, 4 * PAGE), (1, 4 * PAGE - 3), (1, -4), (1 << 62, 0)]
)
def test_a_file_that_is_too_short(n: int, offset: int, numbers: Path, dev: ps.Device) -> None:
    with pytest.raises(ps.InvalidValue, match=rf"numbers.*offset {offset}.*the file has 16,384"):
        dev.from_file(numbers, np.float32, n, offset)


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_file_that_is_not_there(name: str, tmp_path: Path, dev: ps.Device) -> None:
    with pytest.raises(ps.Error, match=str(tmp_path)) as caught:
        dev.from_file(tmp_path / name, np.float32, 1)
    assert isinstance(caught.value, OSError)
