"""Indexing by arrays and masks: NumPy's shapes and values, at one wait for a mask and none else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from tests.conftest import DRIVERS
from tests.ops.arrays import assert_same, laid_out, layouts, values, waits_of


@st.composite
def items(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index with at least one array, for an array of a shape."""
    common = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    found: list[Any] = []
    for length in shape:
        kind = draw(st.sampled_from(["int", "slice", "array", "array", "mask", "new", "end"]))
        if kind == "end":
            break
        if kind == "new":
            found.append(None)
            kind = "slice"
        if not length:
            kind = "slice"
        if kind == "int":
            found.append(draw(st.integers(-length, length - 1)))
        elif kind == "slice":
            found.append(draw(st.sampled_from([np.s_[:], np.s_[1:], np.s_[::-1], np.s_[:0]])))
        elif kind == "mask":
            count = sum(common[-1:]) or 1
            at = draw(st.lists(st.integers(0, length - 1), max_size=count))
            found.append(np.isin(np.arange(length), at))
        else:
            size = draw(st.sampled_from([common, common[-1:], (1,) * len(common)]))
            dtype = draw(st.sampled_from(["int8", "int32", "int64"]))
            numbers = st.integers(-length, length - 1)
            count = int(np.prod(size, dtype=int))
            chosen = draw(st.lists(numbers, min_size=count, max_size=count))
            found.append(np.array(chosen, dtype).reshape(size))
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, len(found))), ...)
    if not any(isinstance(each, np.ndarray) for each in found):
        found = [np.array([0, -1])]
    return tuple(found)


# HIP compiles anew for every dtype and number of axes; the tests below have some of them.
@pytest.mark.parametrize("any_device", [*DRIVERS, "simulator"], indirect=True)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    layout=layouts(3), data=st.data(), dtype=st.sampled_from(["uint8", "float32", "int64"]),
    on_host=st.booleans(),
)  # fmt: skip
def test_any_index(
    layout: Any, data: Any, dtype: str, on_host: bool, any_device: ps.Device
) -> None:
    dev = any_device
    host = values(dtype, layout[0], most=100)
    x = dev.array(host)
    part, wanted = laid_out(x, host, layout)
    if not wanted.size:
        return
    index = data.draw(items(wanted.shape))
    try:
        expected = wanted[index]
    except IndexError:  # the shapes of its arrays do not match
        with pytest.raises((ps.BadIndex, ps.ShapeMismatch)):
            part[index]
        return
    own = tuple(
        dev.array(each) if isinstance(each, np.ndarray) and not on_host else each for each in index
    )
    assert_same(part[own], expected)
    wanted[index] = 7
    part[own] = 7
    assert_same(x, host)


@pytest.mark.parametrize("any_device", [*DRIVERS, "simulator"], indirect=True)
def test_masks(any_device: ps.Device) -> None:
    dev = any_device
    for dtype in ("int16", "float32"):
        host = values(dtype, (30, 7, 5), most=9)
        mask = values("bool", (30, 7))
        for x, h, m in (
            (dev.array(host), host.copy(), mask),
            (dev.array(host)[::-1], host[::-1].copy(), mask),
            (dev.array(host)[:, 0], host[:, 0].copy(), mask[:, 1:6]),
        ):
            on = dev.array(m)
            assert_same(x[on], h[m])
            x[on] = h[0, 0]
            h[m] = h[0, 0]
            assert_same(x, h)
            new = values(dtype, h[m].shape, 3, most=9)
            x[on] = dev.array(new)
            h[m] = new
            assert_same(x, h)
            x[m] = 1
            h[m] = 1
            assert_same(x, h)


def test_a_mask_waits_once_for_its_number_of_true(dev: ps.Device) -> None:
    x, mask = dev.array(values("float32", 5000)), dev.array(values("bool", 5000))
    (reason,) = waits_of(dev, lambda: x[mask])
    assert "number of true elements" in reason
    (reason,) = waits_of(dev, mask.nonzero)
    assert "number of true elements" in reason

    def without_masks() -> None:
        x[mask] = 0.0  # one value needs no number of elements
        x[indices] = x[indices]

    indices = dev.array([1, 2])
    assert not waits_of(dev, without_masks)


def test_out_of_bounds(dev: ps.Device) -> None:
    """The host's indices are checked; the device's are kept within bounds."""
    host = values("float32", (4, 5), most=100)
    x = dev.array(host)
    for index in ([4], np.array([-5]), (slice(None), [0, 5])):
        with pytest.raises(ps.BadIndex, match="out of bounds"):
            x[index]
    edge = dev.array(np.array([4, 2**40, -5, -(2**40), -1]))
    assert_same(x[edge], host[[3, 3, 0, 0, 3]])
    assert_same(x[dev.array(np.array([200, 3], np.uint8))], host[[3, 3]])
    assert_same(x[edge, edge], host[[3, 3, 0, 0, 3], [4, 4, 0, 0, 4]])


def test_what_is_no_index(dev: ps.Device) -> None:
    x = dev.zeros((4, 5))
    with pytest.raises(ps.BadIndex, match="too many indices"):
        x[[0], 0, 0]
    with pytest.raises(ps.BadIndex, match="float32 are no indices"):
        x[dev.zeros(3)]
    with pytest.raises(ps.BadIndex, match="a mask of shape"):
        x[np.ones(5, bool)]
    with pytest.raises(ps.ArgumentError, match="not str"):
        x[[0], "a"]
    with pytest.raises(ps.ArgumentError, match="masks and arrays of integers, not float"):
        x[1.0]
    with pytest.raises(ps.BadIndex, match="differ in length"):
        x[[[0, 1], [2]]]
    with pytest.raises(ps.ShapeMismatch, match="cannot put shape"):
        x[[0, 1]] = dev.zeros((3, 5))
    with pytest.raises(ps.ShapeMismatch, match="cannot be broadcast"):
        x[[0, 1], [0, 1, 2]]
    with pytest.raises(ps.DtypeMismatch, match="nothing is cast"):
        x[[0]] = dev.zeros(5, np.int32)
    with pytest.raises(ps.NotWhileRecording, match="number of true elements"), dev.record():
        x[dev.array(np.ones(4, bool))]


def test_an_index_into_itself(dev: ps.Device) -> None:
    host = np.array([3, 1, 0, 2])
    x = dev.array(host)
    assert_same(x[x], host[host])
    x[x] = x[::-1]
    host[host.copy()] = host[::-1].copy()
    assert_same(x, host)


def test_a_mask_of_itself_is_read_before_it_changes(dev: ps.Device) -> None:
    """NumPy's own result depends on the order of its loop here."""
    host = values("bool", 3000)
    for cut, mask in ((slice(None), slice(None, None, -1)), (slice(1, None), slice(None, -1))):
        x, wanted = dev.array(host), host.copy()
        x[cut][x[mask]] = False
        wanted[cut][host[mask]] = False
        assert_same(x, wanted)


def test_masks_and_ranges_of_nothing(dev: ps.Device) -> None:
    x = dev.zeros((0, 3, 0, 2)).transpose(2, 0, 1, 3)
    assert x[dev.zeros((0, 0, 3), np.bool_)].shape == (0, 2)
    y = dev.array(np.arange(5.0, dtype=np.float32))
    assert y[range(1, 3)].tolist() == [1, 2]
    assert y[range(0)].shape == (0,)


def test_duplicates_leave_one_of_the_values(dev: ps.Device) -> None:
    for dtype in ("uint8", "int16", "float32"):
        x, given = dev.zeros(5, dtype), values(dtype, 1000, most=100) + 1
        x[dev.array(np.full(1000, 2))] = dev.array(given)
        assert x[2].tobytes() in {each.tobytes() for each in given}  # NaN is not in an array
        assert not x.numpy()[[0, 1, 3, 4]].any()


def test_take(any_device: ps.Device) -> None:
    dev = any_device
    host = values("int16", (3, 4, 5))
    x, indices = dev.array(host), np.array([[1, -1], [0, 0]])
    for axis in range(3):
        assert_same(x.take(dev.array(indices), axis), host.take(indices, axis, mode="wrap"))
        order = host.argsort(axis)
        assert_same(
            dev.xp.take_along_axis(x, dev.array(order), axis=axis),
            np.take_along_axis(host, order, axis),
        )
    assert_same(x.take([5, 7]), host.take([5, 7]))
    with pytest.raises(ps.ArgumentError, match="needs axis="):
        dev.xp.take(x, dev.array(indices))


@pytest.mark.parametrize("any_device", [*DRIVERS, "simulator"], indirect=True)
def test_nonzero(any_device: ps.Device) -> None:
    for dtype in ("bool", "float16", "float32", "int64", "complex64"):
        host = values(dtype, (40, 3, 9), most=2)
        for x, h in ((any_device.array(host), host), (any_device.array(host).T, host.T)):
            for got, wanted in zip(x.nonzero(), h.nonzero(), strict=True):
                assert_same(got, wanted)
    assert [each.shape for each in any_device.zeros((0, 3)).nonzero()] == [(0,), (0,)]
