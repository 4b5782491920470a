"""Arrays and other libraries: DLPack both ways, memoryview, pickling; and views across threads."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import penstock as ps
from penstock.array import transfer
from penstock.schedule.thresholds import Sizes
from tests.conftest import OpenDevice
from tests.gate import held_until_waited
from tests.kernels import slow_add, slow_copy

N = 1024


def counted() -> Any:
    return np.arange(N, dtype=np.uint32)


def usable(dev: ps.Device, address: int) -> bool:
    """Whether the device can work in memory at this address."""
    alignment = dev.info.limits["binding_alignment"]
    assert isinstance(alignment, int)
    return dev.info.can_import and address % alignment == 0


# DLPack.


def test_numpy_takes_the_bytes_themselves(dev: ps.Device) -> None:
    x = dev.array(counted())
    with ps.trace() as t:
        shown = np.from_dlpack(x)
    assert t.copies == 0
    assert not shown.flags.writeable
    slow_add(x, 1, spin=0)
    assert (shown == counted()).all()  # rule 6: stable while held
    assert (x.numpy() == counted() + 1).all()


def test_an_exported_array_outlives_everything(open_device: OpenDevice) -> None:
    device = open_device()
    x = device.array(counted())
    shown = np.from_dlpack(x)[10:20]
    del x
    device.close()
    gc.collect()
    assert (shown == counted()[10:20]).all()


def test_a_library_that_knows_no_read_only_memory_gets_a_writable_view(dev: ps.Device) -> None:
    x = dev.array(counted())
    capsule = x.__dlpack__()  # what a library of before DLPack 1.0 calls
    with pytest.raises(ps.ViewHeld):
        slow_add(x, 1, spin=0)
    del capsule
    slow_add(x, 1, spin=0)
    w = dev.array(counted(), role="weight")
    with pytest.raises(ps.RoleViolation):
        w.__dlpack__()
    assert x.__dlpack_device__() == (1, 0)


def test_a_copy_can_be_asked_for(dev: ps.Device) -> None:
    x = dev.array(counted())
    shown = np.from_dlpack(x, copy=True)
    with ps.trace() as t:
        slow_add(x, 1, spin=0)
    assert t.renames == 0
    assert (shown == counted()).all()
    with pytest.raises(BufferError, match="CPU only"):
        x.__dlpack__(dl_device=(2, 0))


@pytest.mark.parametrize("name", ["max_version", "dl_device"])
@pytest.mark.parametrize("made", [None, True])
def test_what_dlpack_passes_are_two_integers(name: str, made: Any, dev: ps.Device) -> None:
    x = dev.array(counted())
    for wrong in (5, (1,), (1, 2, 3), (1.5, 0), "ab", (1, None)):
        with pytest.raises(ps.ArgumentError, match=f"{name}= is a tuple of two integers"):
            x.__dlpack__(**{name: wrong}, copy=made)
    slow_add(x, 1, spin=0)  # which a view that was left would refuse


def test_a_later_version_of_dlpack_gets_what_there_is(dev: ps.Device) -> None:
    x = dev.array(counted())
    for version, kind in (
        ((10**400, 0), "versioned"),
        ([1, 0], "versioned"),
        ((0, 8), 'dltensor"'),
    ):
        assert kind in str(x.__dlpack__(max_version=version))


def test_memory_of_others_is_used_in_place(dev: ps.Device) -> None:
    source = np.zeros(1 << 16, np.uint32)
    with ps.trace() as t:
        x = dev.from_dlpack(source, name="theirs")
    in_place = usable(dev, source.ctypes.data)
    assert t.copies == (0 if in_place else 1)
    slow_add(x, 3, spin=0)
    dev.synchronize()
    assert (x.numpy() == 3).all()
    assert (source == (3 if in_place else 0)).all()
    assert dev.from_dlpack(x) is x


def test_what_cannot_be_shared_is_named(dev: ps.Device) -> None:
    with pytest.raises(ps.ArgumentError, match=r"list does not support DLPack.*dev\.array"):
        dev.from_dlpack([1, 2])

    class Elsewhere:
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("not on the CPU")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(ps.ArgumentError, match="Elsewhere cannot be shared"):
        dev.from_dlpack(Elsewhere())


def test_pytorch_both_ways(dev: ps.Device) -> None:
    torch = pytest.importorskip("torch")
    x = dev.array(np.arange(N, dtype=np.float32))
    with ps.trace() as t:
        tensor = torch.from_dlpack(x)
    assert t.copies == 0
    assert float(tensor.sum()) == N * (N - 1) / 2
    theirs = torch.ones(1 << 16, dtype=torch.int32)
    with ps.trace() as t:
        y = dev.from_dlpack(theirs)
    assert t.copies == (0 if usable(dev, theirs.data_ptr()) else 1)
    z = dev.empty(1 << 16, np.int32)
    z.copy_from(y)
    del theirs
    gc.collect()
    assert (z.numpy() == 1).all()


def test_jax_takes_an_array(dev: ps.Device) -> None:
    jax = pytest.importorskip("jax")
    x = dev.array(np.arange(16, dtype=np.float32))
    assert float(jax.numpy.from_dlpack(x).sum()) == 120


# Other protocols.


def test_numpy_takes_a_copy_unless_told_not_to(dev: ps.Device) -> None:
    x = dev.array(counted())
    # From Python 3.12 on NumPy would take a buffer rather than ask for a copy.
    assert not hasattr(ps.Array, "__buffer__")
    with ps.trace() as t:
        taken = np.asarray(x)
    assert t.copies == 1
    assert taken.flags.writeable
    with ps.trace() as t:
        slow_add(x, 1, spin=0)
    assert t.renames == 0  # nothing holds the bytes
    with ps.trace() as t:
        shown = np.asarray(x, copy=False)
    assert t.copies == 0
    assert not shown.flags.writeable
    slow_add(x, 1, spin=0)
    assert (taken == counted()).all()
    assert (shown == counted() + 1).all()  # rule 6: stable while held
    assert (x.numpy() == counted() + 2).all()
    with pytest.raises(
        ps.InvalidValue, match=r"uint32; converting it to float32 takes a copy.*copy=False"
    ):
        np.asarray(x, np.float32, copy=False)


def test_memory_that_is_not_mapped_is_not_shown_to_numpy(shared_device: OpenDevice) -> None:
    x = shared_device(transfers="unmapped").array(counted())
    assert (np.asarray(x) == counted()).all()
    with pytest.raises(ps.Unsupported, match="not mapped"):
        np.asarray(x, copy=False)


def test_a_memoryview_of_a_view_keeps_it(dev: ps.Device) -> None:
    x = dev.array(counted())
    shown = x.view().data
    slow_add(x, 1, spin=0)
    assert shown[7] == 7


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.complex64, np.bool_])
def test_dtypes_of_other_packages_survive(dev: ps.Device, dtype: Any) -> None:
    content = np.arange(16).astype(dtype)
    x = dev.array(content, role="weight")
    assert (pickle.loads(pickle.dumps(x)) == content).all()
    assert (copy.deepcopy(x).numpy() == content).all()
    assert str(x) == str(content)


# Writable views and threads.


def in_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_work_of_another_thread_waits_on_the_device(threaded_device: ps.Device) -> None:
    dev = threaded_device
    x, y = dev.zeros(N, np.uint32), dev.zeros(N, np.uint32)
    other = dev.stream()
    held = x.view("rw")
    in_thread(lambda: slow_copy(x, y, other, spin=0))  # returns at once
    in_thread(other.flush)
    held[:] = counted()
    del held
    assert (y.numpy() == counted()).all()


def test_waiting_for_oneself_raises(threaded_device: ps.Device) -> None:
    dev = threaded_device
    x, y, z = (dev.zeros(N, np.uint32) for _ in range(3))
    second, third = dev.stream(), dev.stream()
    held = x.view("rw")
    in_thread(lambda: slow_copy(x, y, second, spin=0))
    in_thread(lambda: slow_copy(y, z, third, spin=0))  # waits for the stream that waits
    for attempt in (y.numpy, z.numpy, second.synchronize, third.synchronize, dev.synchronize):
        with pytest.raises(ps.ViewHeld, match="wait forever"):
            attempt()
    dev.default_stream.synchronize()  # has nothing to do with it
    held[:] = 5
    del held
    assert (z.numpy() == 5).all()


def test_waiting_for_what_shares_a_queue_with_work_that_waits(any_device: ps.Device) -> None:
    x, y, z = (any_device.zeros(N, np.uint32) for _ in range(3))
    with any_device.stream() as other:
        held = x.view("rw")
        in_thread(lambda: slow_copy(x, y, other, spin=0))
        in_thread(other.flush)
        slow_add(z, 3, spin=0)  # behind it on the device's only queue, if it has one
        assert (z.numpy() == 3).all()
        held[:] = 5
        del held
        assert (y.numpy() == 5).all()


def test_views_of_one_thread_show_each_others_writes(any_device: ps.Device) -> None:
    x = any_device.zeros(N, np.uint32)
    written = x.view("rw")
    shown = x.view("r")
    written[:] = 9
    assert (shown == 9).all()
    assert (x.numpy() == 9).all()
    del written
    slow_add(x, 1, spin=0)  # the device's writes are no host's: they go to other memory
    assert (shown == 9).all()
    assert (x.numpy() == 10).all()


def test_what_another_thread_may_be_writing_is_not_read(any_device: ps.Device) -> None:
    x = any_device.zeros(N, np.uint32, name="x")
    ways = {
        "view": lambda part: part.view("r"),
        "numpy": lambda part: part.numpy(),
        "read": lambda part: part.read(),
        "item": lambda part: part[0].item(),
        "dlpack": np.from_dlpack,
        "asarray": np.asarray,
    }
    held = x[: N // 2].view("rw")
    refused: dict[str, str] = {}

    def look() -> None:
        for name, way in ways.items():
            way(x[N // 2 :])  # nothing of it is shown
            try:
                way(x)
            except ps.ViewHeld as error:
                refused[name] = str(error)

    in_thread(look)
    assert refused.keys() == ways.keys()
    for message in refused.values():
        assert "'x'" in message
        assert re.search("writable view.* drop", message)
    del held
    refused.clear()
    in_thread(look)
    assert not refused


def test_views_that_are_gone_are_not_waited_for(any_device: ps.Device) -> None:
    x, y, z = (any_device.zeros(N, np.uint32) for _ in range(3))
    held = x.view("rw")
    in_thread(lambda: slow_copy(x, y, spin=0))  # the stream waits for the view
    del held
    again = z.view("rw")  # a view like it, of this thread's
    assert (y.numpy() == 0).all()
    del again


def test_a_view_may_be_dropped_by_another_thread(threaded_device: ps.Device) -> None:
    dev = threaded_device
    x, y = dev.zeros(N, np.uint32), dev.zeros(N, np.uint32)
    holder = [x.view("rw")]
    started = threading.Event()

    def launch_and_wait() -> None:
        slow_copy(x, y, spin=0)
        started.set()
        assert (y.numpy() == 8).all()

    thread = threading.Thread(target=launch_and_wait)
    thread.start()
    started.wait(20)

    def drop() -> None:
        holder[0][:] = 8
        holder.clear()

    in_thread(drop)
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("mode", ["r", "rw"])
@pytest.mark.parametrize("dropped", [False, True], ids=["held", "dropped"])
def test_a_view_taken_in_the_middle_of_a_large_write_counts(
    dropped: bool, mode: Any, threaded_device: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write fills fresh memory without the lock; the view then shows the memory of before."""
    dev = threaded_device
    monkeypatch.setattr(dev.scheduler, "sizes", Sizes(under_lock=256))
    x, source = dev.zeros(N, np.uint32), np.full(N, 5, np.uint32)
    views: list[Any] = []
    copy_now = transfer.copy_now

    def take() -> None:
        views.append(x.view(mode))
        if mode == "rw":
            views[0][:] = 8
        if dropped:
            views.clear()

    def copy_and_take(*arguments: Any, **options: Any) -> None:
        copy_now(*arguments, **options)
        monkeypatch.undo()
        in_thread(take)

    monkeypatch.setattr(transfer, "copy_now", copy_and_take)
    with held_until_waited(dev.default_stream):
        slow_add(x, 1, spin=0)  # busy, so that the write goes to fresh memory
        if mode == "rw" and not dropped:
            with pytest.raises(ps.ViewHeld, match="writable view"):
                x.write(source)
            views[0][:] = 9
            views.clear()
            assert (x.numpy() == 9).all()
            return
        x.write(source)
    assert (x.numpy() == 5).all()
    assert dropped or (views[0] == 1).all()


def test_views_that_end_in_any_order_leave_nothing(threaded_device: ps.Device) -> None:
    dev = threaded_device
    arrays = [dev.zeros(N, np.uint32) for _ in range(8)]
    for round_ in range(20):
        held = [x.view("rw") for x in arrays]
        for number in np.random.default_rng(round_).permutation(8):
            held[number][:] = round_
            held[number] = np.empty(0, np.uint32)
        for x in arrays:
            slow_add(x, 1, spin=0)
        assert all((x.numpy() == round_ + 1).all() for x in arrays)
    assert len(dev.scheduler.views.lanes.made) <= 8
    assert not dev.scheduler.views.held
