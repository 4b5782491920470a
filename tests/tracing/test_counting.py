"""Counts without events: the numbers of a trace, next to one and without one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.tracing import events
from tests.kernels import SAXPY, new_kernel

N = 1000


class Work:
    """Work of every kind that is counted. The device has nothing to do when it begins."""

    def __init__(self, dev: ps.Device) -> None:
        self.dev = dev
        self.kernel = new_kernel(dev, SAXPY, "axpy")
        self.x, self.y, self.z = dev.ones(N), dev.zeros(N), dev.zeros(4)
        with dev.record() as self.graph:
            for _ in range(3):
                self.launch()
        self.graph.encode()
        self()

    def launch(self) -> None:
        self.kernel(x=self.x, y=self.y, a=1, n=N, threads=N)

    def __call__(self) -> None:
        dev = self.dev
        with dev.default_stream.batch():
            for _ in range(5):
                self.launch()
        dev.synchronize()
        for _ in range(3):
            self.graph.replay()
            dev.synchronize()
        self.z.write(np.arange(4, dtype=np.float32))
        assert self.z.numpy().tolist() == [0, 1, 2, 3]
        assert self.z[2].item() == 2
        self.z[:2].write(np.ones(2, np.float32))
        self.z[1:3].fill(7)
        self.z.read(out=np.empty(4, np.float32)).result()
        self.kernel(x=np.ones(N, np.float32), y=self.y, a=1, n=N, threads=N)
        dev.synchronize()
        dev.empty(1 << 20).close()
        dev.trim()


def same(counts: ps.Counts, trace: ps.Trace) -> None:
    found = counts.as_dict()
    assert found == {name: getattr(trace, name) for name in found}
    assert {*trace.as_dict()} - {"seconds"} <= {*found}


def test_the_counts_of_a_trace_that_is_active_as_well(any_device: ps.Device) -> None:
    work = Work(any_device)
    with ps.count() as outer, ps.trace(times=False) as t, ps.count() as inner:
        work()
    assert t.launches > 5
    assert t.copies > 3
    same(outer, t)
    same(inner, t)


def test_the_counts_are_those_of_a_trace_of_the_same_work(any_device: ps.Device) -> None:
    work = Work(any_device)
    with ps.trace(times=False) as t:
        work()
    with ps.count() as counts:
        work()
    found = counts.as_dict()
    assert found.pop("waits") <= 5  # what is done by then is not waited for
    assert found == {name: getattr(t, name) for name in found}
    assert counts.replayed_commands == 9


def test_no_record_is_kept_and_nothing_is_put_into_words(
    dev: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(dev)

    def introduced() -> Any:
        raise AssertionError("a record was made")

    monkeypatch.setattr(events, "_introduce_thread", introduced)
    monkeypatch.setattr(events, "_local", threading.local())
    with ps.count() as counts:
        assert events.active
        assert not events.recording
        assert dev.scheduler.plain  # the native step makes what it makes without a trace
        work()
    assert counts.launches == 6
    assert not events.active


def test_launches_are_counted_where_they_are_native(dev: ps.Device) -> None:
    from penstock import accelerator

    if not accelerator.is_native():
        pytest.skip("the native step is not built")
    work = Work(dev)
    for _ in range(2):
        work.launch()
    native, left = accelerator.launches()
    with ps.count() as counts:
        for _ in range(10):
            work.launch()
        dev.synchronize()
    assert accelerator.launches() == (native + 10, left)
    assert (counts.launches, counts.barriers >= 10, counts.waits <= 1) == (10, True, True)


def test_it_counts_in_its_block_and_stays_as_it_was(dev: ps.Device) -> None:
    work = Work(dev)
    with ps.count() as first:
        work.launch()
        assert first.launches == 1
    with ps.count() as second:
        work.launch()
        work.launch()
    dev.synchronize()
    assert (first.launches, second.launches) == (1, 2)
    with second, pytest.raises(ps.ArgumentError, match="counting already"), second:
        pass
    assert "launches" in str(first)
    assert "ps.trace()" in str(first)
    with pytest.raises(ps.ArgumentError, match="cannot be copied"):
        copy.copy(first)


def test_threads_count_exactly(threaded_device: ps.Device) -> None:
    dev = threaded_device
    works = [Work(dev) for _ in range(4)]

    def launch(work: Work) -> Callable[[], None]:
        def run() -> None:
            for _ in range(200):
                work.launch()

        return run

    threads = [threading.Thread(target=launch(work)) for work in works]
    with ps.count() as counts:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts.launches == 800
