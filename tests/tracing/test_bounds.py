"""Calls that issue work wait at the bounds of docs/performance.md only, and the receipt says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.launch import launch_memory, numpy_arguments
from penstock.schedule import stream
from penstock.schedule.thresholds import Sizes
from tests.conftest import simulated
from tests.kernels import block_sum, saxpy, slow_add

N = 1024
PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def many_submissions(dev: ps.Device, times: int) -> None:
    x = dev.zeros(N, np.uint32)
    for _ in range(times):
        slow_add(x, 1, spin=0)
        dev.default_stream.flush()


def many_arguments(dev: ps.Device, times: int) -> None:
    y = dev.zeros(1, np.uint32)
    with dev.default_stream.batch():
        for _ in range(times):
            block_sum(y, 0, np.arange(100, dtype=np.uint32))


def many_staged_bytes(dev: ps.Device, times: int) -> None:
    x = dev.zeros(times * 1024, np.uint32)
    slow_add(x, 1, spin=0)
    x[1:].write(np.arange(times * 1024 - 1, dtype=np.uint32))


def many_numpy_arguments(dev: ps.Device, times: int) -> None:
    y, run = dev.zeros(N), saxpy(dev)
    with dev.default_stream.batch():
        for number in range(times):
            run(x=np.full(N, number, np.float32), y=y, a=1.0, n=N, threads=N)


#: What issues more and more work, how often it stays below the bound and goes beyond, and its name.
BOUNDS = {
    "submissions": (many_submissions, 3, 9, "4 submissions in flight"),
    "arguments": (many_arguments, 16, 99, "every slot for arguments of kernel block_sum"),
    "staged bytes": (many_staged_bytes, 1, 5, "8,192 bytes of one write in staging memory"),
    "NumPy arguments": (many_numpy_arguments, 2, 9, "3 copies of argument x of saxpy in flight"),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a few calls meet."""
    monkeypatch.setattr(stream, "DEEPEST", 4)
    monkeypatch.setattr(launch_memory, "_LARGEST", 32 * 512)
    monkeypatch.setattr(numpy_arguments, "_FEW", 3)
    monkeypatch.setattr(numpy_arguments, "_MANY", 3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("bound", BOUNDS)
def test_the_receipt_names_the_bound_that_was_met(bound: str) -> None:
    work, below, beyond, name = BOUNDS[bound]
    with simulated(1) as dev:
        dev.scheduler.sizes = Sizes(staging_block=4096, staging_blocks=2)
        with ps.trace() as met:
            work(dev, beyond)
        dev.synchronize()
        ((reason, count),) = met.bounds_met.items()
        assert reason.startswith(name)
        assert count == met.waits > 0
        assert {event.path for event in met.of_kind("wait")} == {"bound"}
        assert f"\n  bounds met: {count} × {reason}\n" in str(met)
        assert "wait         [bound]" in str(met)
        with ps.trace() as free:
            work(dev, below)
        assert free.bounds_met == {}
        assert "bounds met" not in str(free)
        free.expect(waits=0)


@pytest.mark.parametrize("work", [many_submissions, many_arguments, many_numpy_arguments])
def test_a_steady_state_meets_no_bound(
    dev: ps.Device, work: Callable[[ps.Device, int], None]
) -> None:
    """As it is: 20 calls, then the host waits for a value, again and again."""
    with ps.trace() as t:
        for _ in range(20):
            work(dev, 20)
            dev.synchronize()
    assert t.bounds_met == {}
    assert t.waits <= 20


def test_the_page_has_the_bounds_as_they_are() -> None:
    (table,) = re.findall(r"## Run-ahead bounds\n.*?\n\n(\|.*?)\n\n", PAGE.read_text(), re.S)
    sizes = Sizes()
    for value in (
        f"{stream.DEEPEST} submissions",
        f"{launch_memory._LARGEST >> 20} MiB",
        f"{sizes.staging_blocks} × {sizes.staging_block >> 20} MiB",
        f"{numpy_arguments._ROOM >> 20} MiB, at least {numpy_arguments._FEW} and at most "
        f"{numpy_arguments._MANY} copies",
    ):
        assert value in table, value
