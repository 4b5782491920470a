"""Rules 1 to 5 and 7: order, on every transfer path, driver and stream shape.

Each program below is a known way to lose or misplace a copy. The slow kernels spin before they
touch their arrays, so that a transfer that does not keep its place is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.array.transfer import MODES
from tests.conftest import OpenDevice
from tests.kernels import slow_add, slow_copy

N = 1024


class Program:
    """A device with two streams, which may be one and the same."""

    def __init__(self, device: ps.Device, streams: str) -> None:
        self.dev = device
        self.a = device.default_stream
        self.b = device.stream() if streams == "two" else self.a

    def array(self, value: int) -> ps.Array:
        return self.dev.full(N, value, np.uint32)

    def host(self, value: int, n: int = N) -> np.ndarray[Any, Any]:
        return np.full(n, value, np.uint32)

    def close(self) -> None:
        self.dev.synchronize()
        if self.b is not self.a:
            self.b.close()


def is_all(array: Any, value: int) -> bool:
    return bool((np.asarray(array) == value).all())


def round_trip(p: Program) -> None:
    x = p.array(0)
    source = np.arange(N, dtype=np.uint32)
    x.write(source, stream=p.a)
    assert (x.read(stream=p.a).result() == source).all()


def several_events_in_a_row(p: Program) -> None:
    x, y = p.array(0), p.array(0)
    events = []
    for value in range(1, 5):
        slow_copy(x, y, p.a)
        x.write(p.host(value), stream=p.a)
        events.append(p.a.record())
        events.append(p.a.record())
    events[-1].wait()
    assert all(event.done for event in events)
    assert is_all(x, 4)
    assert is_all(y, 3)


def events_on_an_empty_stream(p: Program) -> None:
    p.dev.synchronize()
    event = p.b.record()
    assert event.done
    event.wait(0)
    p.a.wait(event)
    x = p.array(7)
    x.write(p.host(8), stream=p.a)
    p.a.flush()
    p.a.flush()
    assert is_all(x, 8)


def read_survives_events_and_submissions(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)
    read = y.read(stream=p.a)
    p.a.record()
    p.a.flush()
    slow_add(y, 5, p.a)
    p.a.record().wait()
    assert read.done
    assert is_all(read.result(), 1)
    assert is_all(y, 6)


def write_to_what_submitted_work_reads(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)
    p.a.flush()
    x.write(p.host(2), stream=p.b)
    assert is_all(y, 1)
    assert is_all(x, 2)


def write_to_what_recorded_work_writes(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)  # keeps the device busy, so that the next one stays recorded
    slow_add(x, 10, p.a)
    x.write(p.host(2), stream=p.b)
    assert is_all(y, 1)
    assert is_all(x, 2)


def source_changed_after_the_call(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)
    source = p.host(2)
    x.write(source, stream=p.a)
    source[:] = 99
    pinned = p.dev.host_empty(N, np.uint32)
    pinned[:] = 3
    y.write(pinned, stream=p.a)
    pinned[:] = 99
    assert is_all(x, 2)
    assert is_all(y, 3)


def borrowed_source_changed_when_done(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)
    source = p.host(2)
    pending = x.write(source, stream=p.b, borrow=True)
    slow_add(x, 1, p.a, spin=0)
    assert pending.result() is None
    assert pending.done
    source[:] = 99
    assert is_all(y, 1)
    assert is_all(x, 3)


def read_after_a_borrowed_write(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)
    source = p.host(2)
    x.write(source, stream=p.a, borrow=True)
    assert is_all(x, 2)
    assert is_all(y, 1)


def partial_overlaps(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)
    x[100:200].write(p.host(2, 100), stream=p.a)
    slow_add(x[128:256], 10, p.a)
    x[150:160].write(p.host(3, 10), stream=p.b, borrow=True)
    x[200:210] = 4
    expected = p.host(1)
    expected[100:200] = 2
    expected[128:256] += 10
    expected[150:160] = 3
    expected[200:210] = 4
    assert (x.numpy() == expected).all()
    assert is_all(y, 1)


def pitched_rows(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    grid = x.reshape(32, 32)
    slow_copy(x, y, p.a)
    source = np.arange(64 * 64, dtype=np.uint32).reshape(64, 64)
    grid[4:20, 8:24].write(source[::4, ::4], stream=p.a)
    left = grid[:, :8].read(stream=p.a)
    middle = grid[4:20:2, 8:24].read(stream=p.b)
    slow_add(x, 1, p.a)
    expected = np.ones((32, 32), np.uint32)
    expected[4:20, 8:24] = source[::4, ::4]
    assert is_all(y, 1)
    assert (left.result() == expected[:, :8]).all()
    assert (middle.result() == expected[4:20:2, 8:24]).all()
    assert (grid.numpy() == expected + 1).all()


def second_write_wins(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)
    pinned = p.dev.host_empty(N, np.uint32)
    pinned[:] = 2
    first = x.write(pinned, stream=p.a, borrow=True)
    x.write(p.host(3), stream=p.a)
    first.result()
    assert is_all(y, 1)
    assert is_all(x, 3)


def read_before_it_is_overwritten(p: Program) -> None:
    x = p.array(1)
    slow_add(x, 1, p.a)
    first = x.read(stream=p.a)
    slow_add(x, 1, p.b)
    second = x.read(stream=p.b)
    x.write(p.host(9), stream=p.a)
    assert is_all(first.result(), 2)
    assert is_all(second.result(), 3)
    assert is_all(x, 9)


def read_into_the_callers_array(p: Program) -> None:
    x, out = p.array(1), np.zeros(N, np.uint32)
    slow_add(x, 1, p.a)
    read = x.read(stream=p.a, out=out)
    p.a.record().wait()
    assert is_all(out, 2)
    slow_add(x, 1, p.a)
    later = x.read(stream=p.a, out=p.host(0))
    slow_add(x, 1, p.a)
    assert read.result() is out
    assert is_all(later.result(), 3)


def event_covers_a_write(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)
    write = x.write(p.host(2), stream=p.a, borrow=True)
    p.a.record().wait()
    assert write.done
    assert is_all(x, 2)
    assert is_all(y, 1)


def fill_of_what_work_in_flight_reads(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_copy(x, y, p.a)
    x.fill(5, stream=p.b)
    assert is_all(y, 1)
    assert is_all(x, 5)


def copies_between_arrays(p: Program) -> None:
    x, y, z = p.array(1), p.array(0), p.array(0)
    slow_add(x, 1, p.a)
    y.copy_from(x, stream=p.b)
    slow_add(x, 1, p.a)
    z.copy_from(x, stream=p.a)
    x[:512].copy_from(y[512:], stream=p.b)
    x[1:].copy_from(x[:-1], stream=p.a)  # overlapping, as if through a temporary
    expected = p.host(3)
    expected[:513] = 2
    assert is_all(y, 2)
    assert is_all(z, 3)
    assert (x.numpy() == expected).all()


def streams_ordered_by_an_event(p: Program) -> None:
    x, y = p.array(1), p.array(0)
    slow_add(x, 1, p.a)
    p.b.wait(p.a.record())
    slow_copy(x, y, p.b)
    done = p.b.record()
    p.a.wait(done)
    also = p.a.record()  # of a stream that has nothing to do but to wait
    also.wait()
    assert done.done
    slow_add(x, 1, p.a)
    assert is_all(y, 2)
    assert is_all(x, 3)


PROGRAMS: list[Callable[[Program], None]] = [
    round_trip,
    several_events_in_a_row,
    events_on_an_empty_stream,
    read_survives_events_and_submissions,
    write_to_what_submitted_work_reads,
    write_to_what_recorded_work_writes,
    source_changed_after_the_call,
    borrowed_source_changed_when_done,
    read_after_a_borrowed_write,
    partial_overlaps,
    pitched_rows,
    second_write_wins,
    read_before_it_is_overwritten,
    read_into_the_callers_array,
    event_covers_a_write,
    fill_of_what_work_in_flight_reads,
    copies_between_arrays,
    streams_ordered_by_an_event,
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("streams", ["one", "two"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_order_is_kept(
    program: Callable[[Program], None], streams: str, mode: str, shared_device: OpenDevice
) -> None:
    p = Program(shared_device(transfers=mode), streams)
    try:
        program(p)
    finally:
        p.close()
