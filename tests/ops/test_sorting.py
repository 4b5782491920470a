"""Sorts, searches and sets: NumPy's results, for every real dtype, however long the rows are."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import penstock as ps
from penstock.ops.sorting import Sorting
from tests.conftest import DRIVERS
from tests.ops.arrays import DTYPES, assert_same, values, waits_of

REAL = [dtype for dtype in DTYPES if not dtype.startswith("complex")]


def order_of(host: Any, axis: int, *, descending: bool = False) -> Any:
    """The stable order of elements, NaN last."""
    if not descending:
        return np.argsort(host, axis, kind="stable")
    _, rank = np.unique(host, return_inverse=True)
    keys = -rank.reshape(host.shape).astype(np.int64)
    if host.dtype.kind == "f":
        keys[np.isnan(host)] = 1
    return np.argsort(keys, axis, kind="stable")


@pytest.mark.parametrize("dtype", REAL)
def test_every_dtype(dtype: str, dev: ps.Device) -> None:
    for shape, axis in (((5,), 0), ((3000,), 0), ((7, 33), 0), ((3, 600, 2), 1), ((0, 4), 1)):
        for descending in (False, True):
            host = values(dtype, shape, len(shape))
            made, order = dev.sorting.sort(
                dev.array(host), axis, descending=descending, indices=True
            )
            wanted = order_of(host, axis, descending=descending)
            assert_same(order, wanted)
            assert_same(made, np.take_along_axis(host, wanted, axis))


@pytest.mark.parametrize("dtype", ["float16", "int64"])
@pytest.mark.parametrize("any_device", [*DRIVERS, "simulator"], indirect=True)
def test_on_every_driver(dtype: str, any_device: ps.Device) -> None:
    for shape in ((1,), (700,), (4, 20)):
        host = values(dtype, shape)
        x = any_device.array(host)
        assert_same(any_device.xp.sort(x), np.sort(host, kind="stable"))
        assert_same(x.argsort(), host.argsort(kind="stable"))
        wanted = values(dtype, 50, 3)
        rising = np.sort(host.ravel(), kind="stable")
        for side in ("left", "right"):
            assert_same(
                any_device.xp.searchsorted(
                    any_device.array(rising), any_device.array(wanted), side=side
                ),
                np.searchsorted(rising, wanted, side),
            )


def test_bfloat16(dev: ps.Device) -> None:
    host = values("float32", 900).astype(ml_dtypes.bfloat16)
    wanted = np.argsort(host.astype(np.float32), kind="stable")
    assert_same(dev.xp.argsort(dev.array(host)), wanted)


def test_long_rows(dev: ps.Device) -> None:
    host = values("float32", 70_001)
    assert_same(dev.xp.sort(dev.array(host)), np.sort(host, kind="stable"))
    assert_same(dev.xp.argsort(dev.array(host)), np.argsort(host, kind="stable"))


def test_rows_that_do_not_fit_a_launch(dev: ps.Device) -> None:
    dev.moves.programs.range, whole = 1 << 14, dev.moves.programs.range
    try:
        for shape in ((300, 20), (8, 700)):
            host = values("float32", shape)
            assert_same(dev.xp.sort(dev.array(host)), np.sort(host, kind="stable"))
            assert_same(dev.xp.argsort(dev.array(host)), np.argsort(host, kind="stable"))
        with pytest.raises(ps.Unsupported, match="Sort slices"):
            dev.xp.sort(dev.zeros(5000))
    finally:
        dev.moves.programs.range = whole


def test_in_place_and_without_order(dev: ps.Device) -> None:
    host = values("int32", (40, 30))
    x = dev.array(host)
    x.T.sort(0)
    host.T.sort(0)
    assert_same(x, host)
    assert_same(x.argsort(None), host.argsort(None, kind="stable"))
    with pytest.raises(ps.DtypeMismatch, match="no order"):
        dev.xp.sort(dev.zeros(3, np.complex64))
    with pytest.raises(ps.BadIndex, match="axis 2"):
        dev.xp.sort(x, axis=2)


def test_a_sort_waits_for_nothing(dev: ps.Device) -> None:
    x = dev.array(values("float32", 3000))
    xp = dev.xp
    for work in (
        lambda: xp.sort(x), lambda: xp.argsort(x), lambda: xp.searchsorted(x, x),
        lambda: xp.isin(x, x),
    ):  # fmt: skip
        assert not waits_of(dev, work)


def test_searches(any_device: ps.Device) -> None:
    dev, xp = any_device, any_device.xp
    host = values("int32", 300)
    x, order = dev.array(host), np.argsort(host)
    assert_same(
        xp.searchsorted(x, dev.array(host[:40]), sorter=dev.array(order)),
        np.searchsorted(host, host[:40], sorter=order),
    )
    assert_same(
        xp.searchsorted(dev.array(np.sort(host, kind="stable")), 5),
        np.searchsorted(np.sort(host, kind="stable"), 5),
    )
    assert_same(xp.searchsorted(dev.zeros(0), dev.zeros(3)), np.zeros(3, np.int64))
    with pytest.raises(ps.InvalidValue, match="side="):
        xp.searchsorted(x, x, side="middle")


@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "int64", "complex64"])
@pytest.mark.parametrize("any_device", [*DRIVERS, "simulator"], indirect=True)
def test_unique(dtype: str, any_device: ps.Device) -> None:
    dev, xp = any_device, any_device.xp
    for shape in ((0,), (40, 5), (1500,)):
        host = values(dtype, shape, most=12)
        x = dev.array(host)
        wanted = np.unique(
            host, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
        )
        found = xp.unique_all(x)
        for name, got, right in zip(found._fields, found, wanted, strict=True):
            if name == "values":  # either of -0.0 and 0.0
                np.testing.assert_array_equal(got.numpy(), right)
            else:
                assert_same(got, right.reshape(got.shape))
        assert found.inverse_indices.shape == shape
        np.testing.assert_array_equal(xp.unique_values(x).numpy(), wanted[0])
        assert_same(xp.unique_counts(x).counts, wanted[3])
        assert_same(xp.unique_inverse(x).inverse_indices, wanted[2].reshape(shape))
        among = values(dtype, 20, 5, most=30)
        assert_same(xp.isin(x, dev.array(among)), np.isin(host, among))


def test_unique_on_hip(hip_device: ps.Device) -> None:
    host = values("int32", 700, most=50)
    found = hip_device.xp.unique_all(hip_device.array(host))
    assert_same(found.values, np.unique(host))
    assert_same(found.inverse_indices, np.unique(host, return_inverse=True)[1])
    assert_same(found.counts, np.unique(host, return_counts=True)[1])
    rows = host.reshape(35, 20)
    assert_same(hip_device.xp.sort(hip_device.array(rows)), np.sort(rows))


def test_unique_waits_once(dev: ps.Device) -> None:
    x = dev.array(values("int32", 3000, most=50))
    (reason,) = waits_of(dev, lambda: dev.xp.unique_all(x))
    assert "number of distinct elements" in reason


def test_the_way_of_gpus(dev: ps.Device) -> None:
    """Wider groups, and sums in several steps."""
    programs = dev.moves.programs
    sorting, selection = dev.sorting, dev.selection
    before = programs.lanes, selection._alone, selection._each
    try:
        programs.lanes, selection._alone, selection._each = 64, 64, 16
        programs._made.clear()
        host = values("int16", 9000)
        made, _ = Sorting(dev, programs, dev.moves, selection).sort(dev.array(host))
        assert_same(made, np.sort(host, kind="stable"))
        assert_same(dev.array(host).nonzero()[0], host.nonzero()[0])
    finally:
        programs.lanes, selection._alone, selection._each = before
        programs._made.clear()
        assert dev.sorting is sorting
