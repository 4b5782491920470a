"""Strided copies by a kernel: every dtype, any strides, any overlap; and nothing beside them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.memory.layout import Layout, reshaped_strides
from penstock.ops.moves import Choice, Moves, view
from penstock.ops.strides import merged
from tests.conftest import DRIVERS
from tests.ops.arrays import DTYPES, assert_same, laid_out, layouts, values

SMALL = ("uint8", "int16", "float32", "complex128")


# HIP compiles anew for every dtype and number of axes; the tests below have some of them.
@pytest.mark.parametrize("any_device", [*DRIVERS, "simulator"], indirect=True)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(layout=layouts(), other=st.data(), dtype=st.sampled_from(SMALL), seed=st.integers(0, 99))
def test_between_any_strides(
    layout: Any, other: Any, dtype: str, seed: int, any_device: ps.Device
) -> None:
    shape = layout[0]
    host = values(dtype, shape, seed, most=100)
    source, wanted = laid_out(any_device.array(host), host, layout)
    # The target lies in a larger array, whose other elements must stay as they are.
    room = tuple(2 * n + 1 for n in wanted.shape)
    around = values(dtype, room, seed + 1, most=100)
    target = any_device.array(around)
    inside = tuple(slice(1, None, 2) for _ in room)
    if other.draw(st.booleans()):
        inside = tuple(slice(1, n + 1) for n in wanted.shape)
    any_device.moves.copy(target[inside], source)
    around[inside] = wanted
    assert_same(target, around)


@pytest.mark.parametrize("dtype", [*DTYPES, ml_dtypes.bfloat16])
def test_every_dtype(dtype: Any, dev: ps.Device) -> None:
    host = values("float32" if dtype == ml_dtypes.bfloat16 else dtype, (40, 50)).astype(dtype)
    x = dev.array(host)
    np.testing.assert_array_equal(x.T.copy().numpy().view(np.uint8), host.T.copy().view(np.uint8))


def test_on_every_driver(any_device: ps.Device) -> None:
    for dtype in ("uint8", "float64"):
        host = values(dtype, (40, 50))
        assert_same(any_device.array(host).T.copy(), host.T)
    many = values("int16", (2, 3, 2, 3, 2, 2, 3))
    assert_same(any_device.array(many).T.copy(), many.T)


@pytest.mark.parametrize("size", [3, 6, 12, 24])
def test_records_and_odd_places(size: int, dev: ps.Device) -> None:
    """Elements of other sizes move in parts, and so do those that start anywhere."""
    rng = np.random.default_rng(size)
    host = rng.integers(0, 255, (30, 20, size), np.uint8).view(f"V{size}")[..., 0]
    np.testing.assert_array_equal(dev.array(host).T.copy().numpy(), host.T)
    bytes_ = rng.integers(0, 255, 4 * 600 + 1, np.uint8)
    odd = dev.array(bytes_)[1:].reinterpret(np.uint32).reshape(30, 20)
    np.testing.assert_array_equal(
        odd.T.copy().numpy(), bytes_[1:].view(np.uint32).reshape(30, 20).T
    )


@pytest.mark.many_kernels
@pytest.mark.parametrize("start", [1, 2])
@pytest.mark.parametrize("dtype", ["uint16", "float32", "int64"])
def test_elements_that_start_at_odd_bytes(dtype: str, start: int, dev: ps.Device) -> None:
    """Bytes may be taken for elements wherever they lie; every function takes such arrays."""
    host = np.random.default_rng(0).integers(0, 20, 40).astype(dtype)
    odd = dev.array(np.frombuffer(bytes(start) + host.tobytes(), np.uint8))[start:]
    x, xp = odd.reinterpret(np.dtype(dtype)), dev.xp
    assert_same(x + x[::-1], host + host[::-1])
    assert_same(x[::2] * 2, host[::2] * 2)
    assert_same(x.astype("float32"), host.astype("float32"))
    assert_same(xp.where(x > 3, x, x[::-1]), np.where(host > 3, host, host[::-1]))
    assert_same(xp.sort(x), np.sort(host))
    assert_same(xp.argsort(x), np.argsort(host, kind="stable"))
    assert_same(xp.unique_values(x), np.unique(host))
    assert_same(xp.nonzero(x)[0], np.nonzero(host)[0])
    assert_same(x[x > 3], host[host > 3])
    assert_same(xp.max(x, axis=0), host.max())
    assert_same(xp.argmax(x), host.argmax())
    assert_same(xp.cumulative_sum(x, dtype=x.dtype), np.cumsum(host, dtype=host.dtype))
    assert_same(xp.repeat(x, 2), np.repeat(host, 2))
    assert_same(xp.searchsorted(xp.sort(x), x), np.searchsorted(np.sort(host), host))
    assert_same(x.reshape(8, 5) @ x.reshape(5, 8), host.reshape(8, 5) @ host.reshape(5, 8))
    assert_same(xp.vecdot(x, x), host @ host)
    if host.dtype.kind in "iu":
        chosen = dev.array(np.arange(40, dtype=dtype))
        assert_same(chosen[x], np.arange(40, dtype=dtype)[host])
        assert_same(xp.take_along_axis(chosen, x), np.arange(40, dtype=dtype)[host])
    x[::2] = x[1::2]
    wanted = host.copy()
    wanted[::2] = host[1::2]
    assert_same(x, wanted)
    x *= 2
    assert_same(x, wanted * 2)


def test_a_copy_onto_itself_reads_first(dev: ps.Device) -> None:
    for dtype in ("uint8", "float32"):
        for target, source in (
            (np.s_[1::2], np.s_[::2]), (np.s_[:], np.s_[::-1]), (np.s_[2:], np.s_[:-2])
        ):  # fmt: skip
            host = values(dtype, 3000, most=100)
            x = dev.array(host)
            x[target] = x[source]
            host[target] = host[source].copy()
            assert_same(x, host)


def test_a_copy_is_one_launch_and_no_wait(dev: ps.Device) -> None:
    x = dev.array(values("float32", (300, 200)))
    x.T.copy()
    with ps.trace() as receipt:
        made = x.T.copy()
    assert (receipt.launches, receipt.waits, receipt.copies) == (1, 0, 0)
    assert_same(made, x.numpy().T)


def test_a_graph_records_it(dev: ps.Device) -> None:
    x = dev.zeros((300, 20))
    with dev.record() as graph:
        made = x.T.copy()
    host = values("float32", (300, 20))
    x.write(host)
    graph.replay()
    assert_same(made, host.T)


def test_large_arrays_move_in_pieces(dev: ps.Device) -> None:
    """As if a device bound a few KiB only: copies, gathers and triangles come out the same."""
    moves = Moves(dev)
    moves.programs.range = 4096
    host = values("float32", (60, 70))
    x = dev.array(host)
    made = dev.empty((70, 60), np.float32)
    moves.copy(made, x.T)
    assert_same(made, host.T)
    keys = np.random.default_rng(1).integers(-4200, 4200, 500)
    chosen = dev.empty(500, np.float32)
    moves.gather(chosen, view(x, (500,), (0,)), dev.array(keys), 4200, 4)
    assert_same(chosen, host.ravel()[keys])
    small = values("uint8", (90, 80))
    triangle = dev.empty((90, 80), np.uint8)
    moves.triangle(triangle, dev.array(small), 3, lower=True)
    assert_same(triangle, np.tril(small, 3))


@st.composite
def many_axes(draw: st.DrawFn) -> tuple[Any, ...]:
    """A layout of up to 64 axes, some of them longer than 1, in an order that merges few."""
    ndim = draw(st.integers(5, 64))
    shape = [1] * ndim
    for axis in draw(st.lists(st.integers(0, ndim - 1), min_size=5, max_size=8, unique=True)):
        shape[axis] = draw(st.sampled_from((2, 2, 3)))
    order = draw(st.permutations(range(ndim)))
    ways = [slice(None)] * 3 + [slice(None, None, -1), slice(1, None), slice(None, None, 2)]
    slices = [draw(st.sampled_from(ways)) if shape[a] > 1 else slice(None) for a in order]
    return tuple(shape), tuple(order), tuple(slices)


@pytest.mark.parametrize("work", ["copy", "assign", "mask", "gather", "tril"])
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    layout=many_axes(), dtype=st.sampled_from((*SMALL, "float64")), seed=st.integers(0, 99),
    start=st.integers(0, 3),
)  # fmt: skip
def test_many_axes(
    layout: Any, dtype: str, seed: int, start: int, work: str, dev: ps.Device
) -> None:
    """Of 5 to 64 axes, with gaps, offsets and backwards: as NumPy moves them, in few launches."""
    shape = layout[0]
    host = values(dtype, start + int(np.prod(shape)), seed, most=100)
    x, wanted = laid_out(
        dev.array(host)[start:].reshape(shape), host[start:].reshape(shape), layout
    )
    other = values(dtype, wanted.shape, seed + 1, most=100)
    mask = values("bool", wanted.shape[::-1], seed).T
    axis = int(np.argmax(wanted.shape))
    keys = np.random.default_rng(seed).integers(0, wanted.shape[axis], 4)
    with ps.trace() as receipt:
        if work == "copy":
            made = dev.empty(wanted.shape, dtype)
            dev.moves.copy(made, x)
        elif work == "assign":
            dev.moves.copy(x, dev.array(other))
            wanted[...] = other
        elif work == "mask":
            x[dev.array(mask.T).T] = 7
            wanted[mask] = 7
        elif work == "gather":
            made, wanted = (
                dev.xp.take(x, dev.array(keys), axis=axis),
                np.take(wanted, keys, axis=axis),
            )
        else:
            made, wanted = dev.xp.tril(x), np.tril(wanted)
    assert receipt.launches <= 6
    assert_same(made if work in ("copy", "gather", "tril") else x, wanted)


def test_launches_do_not_grow_with_the_axes(dev: ps.Device) -> None:
    """A copy of 20 axes is one launch, though none of them merge; nor does it wait."""
    host = np.arange(1 << 20, dtype=np.uint32).reshape((2,) * 20)
    x = dev.array(host)
    odd = tuple(range(1, 20, 2))
    with ps.trace() as receipt:
        turned = x.T.copy()
        assert receipt.launches == 1
        total = x.sum(axis=odd)
        assert receipt.launches <= 4
        both = x + x.T
        assert receipt.launches <= 6
    assert receipt.waits == 0
    assert_same(turned, host.T)
    assert_same(total, host.sum(axis=odd))
    assert_same(both, host + host.T)


def test_a_graph_records_a_copy_of_many_axes(dev: ps.Device) -> None:
    x = dev.zeros((2,) * 9)
    with dev.record() as graph:
        made = x.T.copy()
    for seed in range(2):
        host = values("float32", (2,) * 9, seed)
        x.write(host)
        graph.replay()
        assert_same(made, host.T)


def test_what_a_device_of_another_kind_does(dev: ps.Device) -> None:
    """Groups of 256 side by side, as on a GPU."""
    moves = Moves(dev)
    moves.programs.lanes, moves.programs.on_cpu = 64, False
    host = values("uint8", (100, 130))
    made = dev.empty((130, 100), np.uint8)
    moves.copy(made, dev.array(host).T)
    assert_same(made, host.T)


@settings(max_examples=200)
@given(layout=layouts(), new=st.lists(st.integers(1, 6), max_size=4))
def test_reshape_copies_only_if_it_must(layout: Any, new: list[int]) -> None:
    shape, order, slices = layout
    host = np.zeros(shape, np.int32).transpose(order)[slices]
    if host.size % int(np.prod(new, dtype=int)):
        return
    goal = (*new, host.size // int(np.prod(new, dtype=int)))
    found = reshaped_strides(Layout(0, host.shape, host.strides, 4), goal)
    seen = host.reshape(goal)
    if not host.size:
        assert found is not None
    elif found is None:
        assert not np.shares_memory(seen, host)
    else:
        assert np.shares_memory(seen, host)
        assert [s for s, n in zip(found, goal, strict=True) if n > 1] == [
            s for s, n in zip(seen.strides, goal, strict=True) if n > 1
        ]


def test_reshape_of_what_no_strides_reach(dev: ps.Device) -> None:
    host = values("float32", (6, 8))
    x = dev.array(host)
    assert_same(x.T.reshape(4, 12), host.T.reshape(4, 12))
    assert x[:, :4].reshape(2, 3, 4).buffer is x.buffer
    assert x.T.reshape(-1).buffer is not x.buffer
    assert_same(x.T.ravel(), host.T.ravel())
    with pytest.raises(ps.InvalidValue, match="copy=False forbids"):
        dev.xp.reshape(x.T, (48,), copy=False)


def test_choices_are_plain() -> None:
    assert Choice() == (1, 0, 0, 1)
    assert merged((2, 3), [(12, 4)]).sizes == (6,)
