"""The receipt: what each transfer costs, that steady state is free, and why a wait was made."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.array.transfer import FIXED, MODES, Case, choose_write
from penstock.cli import demo
from penstock.schedule import receipt_times
from penstock.tracing import events, receipt
from tests.conftest import OpenDevice
from tests.gate import held, held_until_waited
from tests.kernels import saxpy, slow_add, slow_copy

N = 1024
LARGE = 2 << 20  # bytes; large enough for the ordered path


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clocks be compared however long that takes on a busy machine."""
    monkeypatch.setattr(receipt_times, "_MOMENT", 10.0)


def arrays(dev: ps.Device, *values: int) -> list[ps.Array]:
    made = [dev.full(N, value, np.uint32) for value in values]
    dev.synchronize()
    return made


def test_upload_to_an_idle_array_is_one_copy(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    with ps.trace() as t:
        assert x.write(np.arange(N, dtype=np.uint32)).done
    assert (t.copies, t.bytes_copied, t.waits, t.allocations, t.submissions) == (1, 4 * N, 0, 0, 0)
    assert t.of_kind("copy")[0].path == "direct"


def test_adopting_copies_nothing(dev: ps.Device) -> None:
    h = dev.host_empty(N, np.uint32)
    h[:] = 3
    (y,) = arrays(dev, 0)
    with ps.trace() as t:
        x = dev.adopt(h)
        slow_copy(x, y, spin=0)
        slow_add(x, 1, spin=0)
        dev.synchronize()
    assert (t.copies, t.launches) == (0, 2)
    assert (y.numpy() == 3).all()
    assert (h == 4).all()


def test_reading_what_no_kernel_writes_waits_for_nothing(dev: ps.Device) -> None:
    x, y = arrays(dev, 5, 0)
    with held_until_waited(dev.default_stream):
        slow_copy(x, y, spin=0)
        with ps.trace() as t:
            assert (x.numpy() == 5).all()
            assert (x.view("r") == 5).all()
            assert x.read().done
        assert t.waits == 0
        with ps.trace() as t:
            assert (y.numpy() == 5).all()
        assert t.waits == 1


def test_reading_one_of_two_arrays_waits_for_its_writer_only(dev: ps.Device) -> None:
    x, y = arrays(dev, 1, 1)
    with dev.stream() as other:
        with held(other), held_until_waited(dev.default_stream):
            slow_add(y, 1, other, spin=0)
            slow_add(x, 1, spin=0)
            with ps.trace() as t:
                assert (x.numpy() == 2).all()
        assert t.waits == 1
        assert (y.numpy() == 2).all()


def test_a_wait_says_what_for_and_where(dev: ps.Device) -> None:
    x = dev.full(N, 1, np.uint32, name="tokens")
    with held_until_waited(dev.default_stream):
        slow_add(x, 1, spin=0)
        with ps.trace() as t:
            x[16:32].numpy()
    (wait,) = t.of_kind("wait")
    assert (wait.buffer, wait.lo, wait.hi) == ("tokens", 64, 128)
    assert "kernel slow_add" in wait.reason
    assert f"bytes 0:{4 * N}" in wait.reason
    assert "test_tracing.py:" in wait.where
    assert wait.seconds > 0
    assert "tokens[64:128]" in str(t)


# How a busy write travels, by mode: path, copies, renames.
BUSY = {
    "auto": ("rename", 1, 1),
    "direct": ("rename", 1, 1),
    "rename": ("rename", 1, 1),
    "staged": ("staged", 2, 0),
    "ordered": ("ordered", 1, 0),
    FIXED: ("staged", 2, 0),
    "unmapped": ("staged", 2, 0),
}


@pytest.mark.parametrize("mode", BUSY)
def test_a_busy_write_takes_the_path_and_waits_for_nothing(
    mode: str, shared_device: OpenDevice
) -> None:
    dev = shared_device(transfers=mode)
    x, y = arrays(dev, 1, 0)
    source = np.full(N, 2, np.uint32)
    slow_copy(x, y, spin=0)
    x.write(source, borrow=True)
    dev.synchronize()  # the first time allocates
    with held_until_waited(dev.default_stream):
        slow_copy(x, y, spin=0)
        with ps.trace() as t:
            x.write(source, borrow=True)
    path, copies, renames = BUSY[mode]
    assert t.of_kind("copy")[0].path == path
    assert (t.copies, t.renames, t.waits) == (copies, renames, 0)
    if mode == "direct":
        assert "'direct' is not possible" in t.of_kind("copy")[0].reason
    assert (x.numpy() == 2).all()


def test_a_large_borrowed_write_to_a_part_is_ordered(dev: ps.Device) -> None:
    x = dev.zeros(LARGE // 2, np.uint32)
    (y,) = arrays(dev, 0)
    source = np.full(LARGE // 4, 2, np.uint32)
    with held(dev.default_stream), ps.trace() as t:
        slow_copy(x[:N], y, spin=0)
        pending = x[: LARGE // 4].write(source, borrow=True)
    assert t.of_kind("copy")[0].path == "ordered"
    assert (t.copies, t.waits) == (1, 0)
    pending.result()
    assert (x[: LARGE // 4].numpy() == 2).all()
    assert (x[LARGE // 4 :].numpy() == 0).all()
    assert (y.numpy() == 0).all()


def case(
    *, mapped: bool = True, busy: bool = True, whole: bool = True, renamable: bool = True,
    borrowed: bool = True, large: bool = False,
) -> Case:  # fmt: skip
    return Case(mapped, busy, whole, renamable, borrowed, large)


@pytest.mark.parametrize(
    ("case", "path"),
    [
        (case(mapped=False, busy=False), "staged"),
        (case(busy=False), "direct"),
        (case(), "rename"),
        (case(renamable=False, borrowed=False), "staged"),
        (case(whole=False), "staged"),
        (case(whole=False, large=True), "ordered"),
        (case(whole=False, large=True, borrowed=False), "staged"),
    ],
)
def test_the_choice_of_a_path(case: Case, path: str) -> None:
    assert choose_write("auto", case)[0] == path
    for mode in BUSY:
        forced, why = choose_write(mode, case)
        if forced != mode and mode not in ("auto", FIXED, "unmapped"):
            assert "not possible" in why
        assert forced != "direct" or not case.busy
        assert forced == "staged" or case.mapped
        assert forced != "ordered" or case.borrowed
        assert forced != "rename" or mode != FIXED


@pytest.mark.parametrize("mode", MODES)
def test_the_second_identical_step_allocates_nothing(mode: str, shared_device: OpenDevice) -> None:
    dev = shared_device(transfers=mode)
    x, y = arrays(dev, 1, 0)
    big = dev.zeros(LARGE // 4, np.uint32)
    other = dev.stream()
    source, pitched = np.full(N, 2, np.uint32), np.zeros((8, 8), np.uint32)
    out = np.zeros(N, np.uint32)

    def step() -> None:
        slow_copy(x, y)
        x.write(source)
        x[8:24].write(source[8:24], borrow=True)
        big.write(np.broadcast_to(source[:1], big.shape))
        slow_add(big[:N], 1, other)
        big[: LARGE // 8].write(np.broadcast_to(source[:1], (LARGE // 8,)), borrow=True)
        x.reshape(32, 32)[:8, :8].write(pitched)
        y.copy_from(x, stream=other)
        y[4:8] = 9
        read = y.read(stream=other)
        written = y.read(out=out, stream=other)
        other.wait(dev.default_stream.record())
        x.fill(1)
        read.result()
        written.result()
        y.numpy()
        dev.synchronize()

    for _ in range(3):
        step()
    with ps.trace() as t:
        step()
    assert t.allocations == 0, "\n".join(map(str, t.of_kind("allocation")))
    other.close()


def test_a_launch_and_its_value_wait_once(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    for _ in range(2):
        slow_add(x, 1, spin=0)
        x.numpy()
    with held_until_waited(dev.default_stream), ps.trace() as t:
        slow_add(x, 1, spin=0)
        slow_add(x, 1, spin=0)
        value = x[:1].item()
    assert value == 4
    assert (t.launches, t.waits, t.allocations, t.copies) == (2, 1, 0, 1)


def test_barriers_only_where_data_demands(dev: ps.Device) -> None:
    x, y, z = arrays(dev, 1, 2, 3)
    dev.synchronize()
    with ps.trace() as t, dev.default_stream.batch():
        for array in (x, y, z):
            slow_add(array, 1, spin=0)
    assert [event.path for event in t.of_kind("barrier")] == ["host"]
    dev.synchronize()
    with ps.trace() as t, dev.default_stream.batch():
        for _ in range(5):
            slow_add(y, 1, spin=0)
    assert [event.path for event in t.of_kind("barrier")] == ["device"] * 4 + ["host"]
    assert t.barriers == 5
    assert (y.numpy() == 8).all()


def test_counts_are_numbers_and_traces_nest(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    with ps.trace() as outer:
        slow_add(x, 1, spin=0)
        with ps.trace() as inner:
            slow_add(x, 1, spin=0)
            dev.synchronize()
    assert (outer.launches, inner.launches) == (2, 1)
    counts: dict[str, Any] = outer.as_dict()
    assert all(isinstance(value, int | float) for value in counts.values())
    x.numpy()
    assert outer.waits == counts["waits"]


def test_many_small_launches_share_submissions(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    with ps.trace() as t:
        slow_add(x, 1)
        for _ in range(100):
            slow_add(x, 1, spin=0)
        dev.synchronize()
    assert t.launches == 101
    assert t.submissions < 20
    assert (x.numpy() == 101).all()


# Where and when: what a timeline needs.


def test_events_know_their_thread_stream_and_submission(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    with dev.stream(name="uploads") as other, ps.trace() as t:
        worker = threading.Thread(target=slow_add, args=(x, 1, other, 0), name="worker")
        worker.start()
        worker.join()
        other.synchronize()
    launch, submission = *t.of_kind("launch"), *t.of_kind("submission")
    assert (launch.thread, launch.thread_id) == ("worker", worker.native_id)
    for event in (launch, submission):
        assert (event.device, event.stream) == (dev.name, "uploads")
        assert (event.stream_id, event.submission) == (other.lane.number, 1)
    assert (launch.command, submission.command) == (1, 0)
    assert t.started <= launch.start < submission.start + submission.seconds


def test_a_wait_names_the_submission_it_waited_for(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    with held_until_waited(dev.default_stream), ps.trace() as t:
        slow_add(x, 1, spin=0)
        x.numpy()
    (launch,), (wait,) = t.of_kind("launch"), t.of_kind("wait")
    assert wait.thread == threading.current_thread().name
    (point,) = wait.awaited
    assert point[:4] == (dev.name, "default stream", launch.stream_id, launch.submission)
    assert point.what == "kernel slow_add"
    done = t.of_kind("done")[-1]
    assert (done.stream_id, done.submission) == (launch.stream_id, launch.submission)
    assert wait.start <= done.start <= wait.start + wait.seconds


def test_a_submission_names_the_stream_it_waits_for(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    with dev.stream() as other, ps.trace() as t:
        slow_add(x, 1)
        slow_add(x, 1, other, spin=0)
        other.synchronize()
    first, second = t.of_kind("submission")
    assert [point.stream_id for point in second.awaited] == [first.stream_id]
    assert second.awaited[0].submission == first.submission


def test_an_ordered_copy_tells_when_its_thread_made_it(dev: ps.Device) -> None:
    x = dev.zeros(LARGE // 2, np.uint32)
    (y,) = arrays(dev, 0)
    with held_until_waited(dev.default_stream), ps.trace() as t:
        slow_copy(x[:N], y, spin=0)
        x[: LARGE // 4].write(np.full(LARGE // 4, 2, np.uint32), borrow=True).result()
    (made,) = [event for event in t.of_kind("done") if "host copies" in event.stream]
    assert made.seconds > 0
    assert made.thread == "penstock host copies of default stream"


def test_reasons_are_of_the_moment_they_were_given(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    slow_add(x, 1)
    with ps.trace() as t:
        slow_add(x, 1, spin=0)
    x[:8].fill(1)  # the ledger's entry for x is another by now
    slow_copy(x, x.copy(), spin=0)
    assert f"after write of bytes 0:{4 * N} by kernel slow_add" in t.of_kind("barrier")[0].reason
    dev.synchronize()


def test_device_times_find_their_event() -> None:
    here = (("a device", "a stream", 7), 3, 2)
    with ps.trace() as t:
        events.emit("launch", ("%s in %s groups", "k", (1, 1, 1)), at=here)
        events.emit("launch", "another", at=(*here[:2], 3))
        assert t.events[0].device_start is None
        events.device_times(here, 1.5, 0.25, [t])
    first, second = t.events
    assert (first.reason, first.device_start, first.device_seconds) == (
        "k in (1, 1, 1) groups",
        1.5,
        0.25,
    )
    assert second.device_start is None


# Expectations.


def test_expect_is_silent_when_the_counts_are_right(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    with ps.trace() as t:
        slow_add(x, 1, spin=0)
        dev.synchronize()
    t.expect(launches=1, copies=0, bytes_copied=0, waits=range(2), seconds=lambda s: s < 60)


@pytest.mark.parametrize("name", ["waits", "idle"])
def test_expect_takes_numbers_ranges_and_functions(name: str) -> None:
    with ps.trace() as receipt:
        pass
    with pytest.raises(ps.ArgumentError, match=rf"{name}='x'.*a number, a range, or a function"):
        receipt.expect(**{name: "x"})


def test_expect_names_the_offenders(dev: ps.Device) -> None:
    x = dev.full(N, 1, np.uint32, name="tokens")
    with held_until_waited(dev.default_stream), ps.trace() as t:
        slow_add(x, 1, spin=0)
        x[16:32].numpy()
    with pytest.raises(AssertionError) as failure:
        t.expect(waits=0, launches=1, bytes_copied=range(64))
    message = str(failure.value)
    assert "waits: 1, expected 0" in message
    assert "bytes_copied: 64, expected range(0, 64)" in message
    assert "launches" not in message
    assert message.count("tokens[64:128]") == 2
    assert "by kernel slow_add on default stream" in message
    assert message.count("test_tracing.py:") == 2
    with pytest.raises(ps.ArgumentError, match="knows no 'wait'; there are launches, replays"):
        t.expect(wait=0)


def test_the_device_tells_when_it_did_it(dev: ps.Device) -> None:
    x, y = dev.zeros(1024, np.uint32), dev.zeros(1024, np.uint32)
    slow_copy(x, y, spin=0)
    dev.synchronize()
    with ps.trace() as t:
        before = time.perf_counter()
        slow_copy(x, y)
        x.copy_from(y)
        slow_copy(x, y, spin=0)
        dev.synchronize()
        after = time.perf_counter()
    assert t.allocations == 0
    work = [event for event in t.events if event.kind in ("launch", "copy")]
    assert len(work) == 3
    end = before - _CLOCKS
    for event in work:
        assert event.device_start is not None
        assert event.device_seconds is not None
        assert event.device_start >= end - _CLOCKS  # in order: each reads what the last wrote
        end = event.device_start + event.device_seconds
    assert end <= after + _CLOCKS


def test_a_trace_may_do_without_times(dev: ps.Device) -> None:
    (x,) = arrays(dev, 0)
    with ps.trace() as timed, ps.trace(times=False) as counted:
        slow_add(x, 1, spin=0)
        dev.synchronize()
    assert is_timed(timed)
    assert not is_timed(counted)
    assert [event.kind for event in counted.events] == [event.kind for event in timed.events]
    with ps.trace(times=False) as alone:
        slow_add(x, 1, spin=0)
        dev.synchronize()
    assert not is_timed(alone)
    assert alone.launches == 1


def test_what_the_times_cost_is_stated_apart(open_device: OpenDevice) -> None:
    dev = open_device()
    x = dev.zeros(N, np.uint32)
    traces = []
    for times in (False, True, True):
        slow_add(x, 1, spin=0)
        dev.synchronize()
        with ps.trace(times=times) as t:
            slow_add(x, 1, spin=0)
            dev.synchronize()
            t.expect(allocations=0, submissions=1, waits=range(2))
            t.wait_for_times()  # which is when the clocks are compared, at the latest
        traces.append(t)
    untimed, first, second = traces
    assert not untimed.of_kind("clock")
    clock = [event for event in first.of_kind("clock") if event.reason.startswith("clock: ")]
    made = {event.reason: event.nbytes for event in clock}
    measured = {"clock: 5 submissions to compare it with the host's": 0}
    assert made == {
        "clock: memory and a query pool for timestamps": 4096,
        **({} if dev.scheduler.driver.clock_method == "calibrated timestamps" else measured),
    }
    assert "clock: memory" in str(first)
    assert not [event for event in second.of_kind("clock") if "compare" in event.reason]


def test_a_recording_with_more_launches_than_a_pool_of_timestamps_is_timed(
    open_device: OpenDevice,
) -> None:
    dev = open_device()
    x = dev.zeros(N, np.uint32)
    with ps.trace() as crowded, dev.default_stream.batch():
        for _ in range(300):
            slow_add(x, 1, spin=0)
    dev.synchronize()
    crowded.wait_for_times()
    starts = [event.device_start for event in crowded.of_kind("launch")]
    assert len(starts) == 300  # two timestamps each, of 512 in a pool
    assert None not in starts
    assert starts == sorted(starts)  # type: ignore[type-var]
    for _ in range(8):  # one of them in the same command buffer
        with ps.trace() as t:
            slow_add(x, 1, spin=0)
            dev.synchronize()
        assert is_timed(t)


def test_a_thread_may_wait_for_the_clock_when_another_has_learned_it(
    open_device: OpenDevice,
) -> None:
    driver = open_device().scheduler.driver
    first = point = driver.learn_time()
    while point is not None:
        assert driver.wait([point], 10**10)
        point = driver.learn_time()
    assert driver.knows_time
    assert first is None or driver.wait([first], 10**10)


@contextlib.contextmanager
def in_flight(dev: ps.Device, stream: ps.Stream | None = None) -> Iterator[receipt.Trace]:
    """A trace that has ended; its one launch is in flight until the host waits."""
    x = dev.zeros(N, np.uint32)
    slow_add(x, 1, spin=0)
    dev.synchronize()
    with held_until_waited(stream or dev.default_stream):
        with ps.trace() as t:
            slow_add(x, 1, stream, spin=0)
        assert t.waits == 0
        yield t


def launched(t: receipt.Trace) -> receipt.TraceEvent:
    (launch,) = t.of_kind("launch")
    return launch


def is_timed(t: receipt.Trace) -> bool:
    return launched(t).device_start is not None


def test_times_of_what_is_in_flight_at_the_end_of_a_trace_arrive(open_device: OpenDevice) -> None:
    dev = open_device()  # new: how its clock and the host's differ is not known yet
    with in_flight(dev) as t:
        assert not is_timed(t)  # looking waits for nothing
        dev.synchronize()
    assert is_timed(t)
    assert (t.waits, t.submissions, t.launches) == (0, 1, 1)
    with in_flight(dev) as after:
        assert launched(after).device_start is None
        dev.synchronize()
    event = launched(after)
    assert event.device_seconds
    assert event.device_start is not None
    assert event.device_start >= event.start - _CLOCKS


def test_times_arrive_although_the_recording_is_used_again(open_device: OpenDevice) -> None:
    dev = open_device()
    with in_flight(dev) as t:
        x = dev.zeros(N, np.uint32)
        for _ in range(40):  # more than there are recordings, and without a trace
            slow_add(x, 1, spin=0)
            dev.default_stream.flush()
        dev.synchronize()
    assert is_timed(t)


def test_a_trace_of_its_own_does_not_get_the_times_of_others(dev: ps.Device) -> None:
    with in_flight(dev) as t, ps.trace() as other:
        dev.synchronize()
    assert is_timed(t)
    assert not other.launches
    assert not other.times


@pytest.mark.parametrize("end", ["close", "forget"])
def test_a_stream_that_ends_leaves_its_times(end: str, dev: ps.Device) -> None:
    stream = dev.stream()
    with in_flight(dev, stream) as t:
        pass
    if end == "close":
        stream.close()
    del stream
    t.wait_for_times()
    assert is_timed(t)


def test_a_device_that_closes_leaves_its_times(open_device: OpenDevice) -> None:
    dev = open_device()
    with in_flight(dev) as t:
        dev.close()
    assert is_timed(t)


@pytest.mark.parametrize(
    ("save", "timed"),
    [
        ("save_json", '"device_start":'),
        ("save_perfetto", '"cat":"device"'),
        ("save_html", '"device":{"'),
    ],
)
def test_files_wait_for_the_times(save: str, timed: str, dev: ps.Device, tmp_path: Path) -> None:
    with in_flight(dev) as t, ps.trace() as outer:
        getattr(t, save)(tmp_path / "file")
    assert timed in (tmp_path / "file").read_text()
    assert [event.reason for event in outer.of_kind("wait")] == [
        "the receipt needs the device's timestamps"
    ]


def test_times_that_would_never_come_are_not_waited_for(dev: ps.Device) -> None:
    x, y = arrays(dev, 0, 0)
    view = y.view("rw")
    worker = threading.Thread(target=slow_copy, args=(x, y, None, 0))  # waits for the view
    with ps.trace() as t:
        worker.start()
        worker.join()
    t.wait_for_times()  # this thread holds the view: it would wait for itself
    assert not is_timed(t)
    del view
    t.wait_for_times()
    assert is_timed(t)


_CLOCKS = 0.05  # seconds by which the two clocks may disagree on a busy machine


def test_a_user_line_is_outside_the_package(dev: ps.Device) -> None:
    """The runtime's own lines are passed over, in every folder and in the calls that it writes."""
    add = dev.elementwise("y[i] = x[i] + 1", "in float32 x, out float32 y", name="add")
    x = dev.zeros(64)
    with ps.trace() as t:
        add(x, dev.empty(64))
        x.sum()
        saxpy(dev)(x=x, y=x.copy(), a=1, n=64, threads=64)
    launches = t.of_kind("launch")
    assert len(launches) == 3
    assert {event.where.partition(":")[0] for event in launches} == {__file__}


def test_the_lines_of_a_notebook_are_named_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """In IPython the name of the code has the number; in a kernel of Jupyter's, IPython knows."""
    cell = "/tmp/ipykernel_77/1234.py"
    names = {cell: ("Cell", "In[5]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    with ps.Device(driver="sim") as dev:
        x = dev.zeros(4)

        def line_of(file: str) -> str:
            with ps.trace() as t:
                exec(compile("\n\nx.numpy()", file, "exec"), {"x": x})
            (event,) = t.of_kind("copy")
            return event.where

        assert line_of("<ipython-input-3-0a1b2c>") == "cell [3], line 3"
        assert line_of("/home/me/train.py") == "/home/me/train.py:3"
        monkeypatch.setitem(sys.modules, "IPython", None)  # type: ignore[arg-type]
        assert line_of(cell) == "cell [?], line 3"
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
        assert line_of(cell) == "cell [5], line 3"
        assert line_of("/tmp/ipykernel_77/99.py") == "cell [?], line 3"


def test_the_lines_of_the_demo_are_user_code() -> None:
    launches = demo.run("llvmpipe", 1 << 12).receipt.of_kind("launch")
    assert [event.where.partition(":")[0] for event in launches] == [demo.__file__]


def test_a_trace_that_begins_or_ends_in_the_middle_of_a_command(dev: ps.Device) -> None:
    stream = dev.default_stream

    def command(at_start: tuple[Any, ...], at_end: tuple[Any, ...]) -> None:
        with dev.scheduler.lock:
            events.timing = at_start
            stream.begin((), "a command")
            events.timing = at_end
            stream.end()

    with ps.trace():
        timing = events.timing
        try:
            with stream.batch():
                for _ in range(3):
                    command(timing, timing)
                command(timing, ())
            dev.synchronize()
            for _ in range(20):  # with the same recording, again
                command((), timing)
                dev.synchronize()
        finally:
            events.timing = timing
