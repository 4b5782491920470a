"""Adopted memory is the caller's own: no copy, one buffer per byte, alive for as long as needed."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import OpenDevice
from kernels import saxpy, slow_add, slow_copy

import penstock as ps

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
