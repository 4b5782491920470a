"""Pending results beside arrays: the device folds them, and the host waits for nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.conftest import simulated
from tests.ops.arrays import values, waits_of

CASES: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x - x.mean(),
    "sum": lambda x: x.sum() + x,
    "max": lambda x: x.max() - x,
    "min": lambda x: np.subtract(x, x.min()),
    "dot": lambda x: x + x.dot(x),
    "both": lambda x: x.clip(x.min(), x.max()),
}
DTYPES = ("int8", "uint16", "int64", "float16", "float32")


def has(dev: ps.Device, *dtypes: Any) -> bool:
    return all(np.dtype(each) in dev.xp.__array_namespace_info__().dtypes().values()
               or np.dtype(each) == np.float16 for each in dtypes)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_they_are_operands_on_the_device(dev: ps.Device, dtype: str) -> None:
    slow = "llvmpipe" not in dev.name
    if slow and dtype != "float32":
        pytest.skip("one of the dtypes on a driver that compiles slowly")
    host = values(dtype, 3001, most=9)
    host = np.where(np.isfinite(host), host, np.ones_like(host)) - host.dtype.type(3)
    x = dev.array(host)
    for name, function in CASES.items():
        wanted = function(host)
        if not has(dev, dtype, wanted.dtype) or (slow and name not in ("mean", "max")):
            continue
        on_host = name == "mean" and dtype in ("int64", "uint64")
        assert len(waits_of(dev, lambda f=function: f(x))) == on_host, name  # type: ignore[misc]
        got = function(x).numpy()
        assert got.dtype == wanted.dtype, name
        np.testing.assert_allclose(
            got, wanted, rtol=1e-2 if dtype == "float16" else 1e-5, atol=1e-5
        )


def test_special_values(dev: ps.Device) -> None:
    for numbers in ([1, np.nan, 3], [-np.inf, -2.5, -7], [-0.0, 0.0], [np.inf, -np.inf]):
        host = np.array(numbers, np.float32)
        x, zeros = dev.array(host), dev.zeros(1)
        for made, wanted in ((x.max(), host.max()), (x.min(), host.min())):
            np.testing.assert_array_equal((zeros + made).numpy()[0], wanted)


def test_the_value_is_that_of_the_call(dev: ps.Device) -> None:
    """Later writes of the array, and reading the result, change nothing."""
    x, y = dev.ones(1000), dev.zeros(3)
    total = x.sum()
    x.fill(7)
    first = y + total
    assert total.result() == 1000
    second = y + total  # the host has the number by now
    assert first.tolist() == second.tolist() == [1000.0] * 3
    assert second.dtype == np.float32


def test_dtypes_do_not_depend_on_who_folds(dev: ps.Device) -> None:
    if not has(dev, "float64"):
        pytest.skip("the device has no float64")
    total = dev.ones(10, np.float64).sum()
    pending = dev.ones(3) * total
    total.result()
    assert pending.dtype == (dev.ones(3) * total).dtype == np.float64


def test_slots_are_not_reused_while_they_are_read() -> None:
    """The simulator runs work late, and reports accesses that nothing orders."""
    for seed in range(12):
        with simulated(seed) as dev:
            x, y = dev.array(np.arange(64, dtype=np.float32)), dev.zeros(4)
            other = dev.stream()
            made = [y + (x + k).sum() for k in range(20)]
            with other:
                made.append(y + x.max())
            for k, each in enumerate(made[:-1]):
                assert each.tolist() == [2016.0 + 64 * k] * 4
            assert made[-1].tolist() == [63.0] * 4


def test_a_recorded_value_is_no_operand(dev: ps.Device) -> None:
    x = dev.ones(3)
    with dev.record():
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: x - x.mean(), "dev.xp.mean(x) instead of x.mean()"),
            (lambda: x.sum() * 2, "dev.xp.sum(x) instead of x.sum()"),
            (lambda: x.max() - x.min(), "dev.xp.max(x) instead of x.max()"),
            (lambda: float(x.dot(x)), "dev.xp.vecdot(x, y) instead of x.dot(y)"),
        ]
        for call, instead in calls:
            with pytest.raises(ps.NotWhileRecording, match=re.escape(f"take an array: {instead}")):
                call()
        with pytest.raises(ps.NotWhileRecording, match=r"returns its result$"):
            x.write(np.ones(3, np.float32)).result()
