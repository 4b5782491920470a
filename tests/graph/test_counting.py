"""Append-only arrays that a graph appends to: the device counts, and the host knows what it did."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import penstock as ps
from tests.gate import held_until_waited
from tests.kernels import HEAD, new_kernel

Host = npt.NDArray[Any]

PLANES, ROOM, WIDTH = 3, 12, 64

HIP_APPEND = (
    "inout uint32 log, in uint32 counter, uint32 room, uint32 width",
    64,
    """
    if (i < width) {
        uint row = counter[0];
        uint before = row == 0 ? 100 : log[(row - 1) * width + i];
        log[row * width + i] = before + 1;
    }
    """,
)

#: Puts `step[0]` into the row that is next, and counts the step.
APPEND = (
    HEAD
    + """
layout(binding = 0) buffer Log { uint log[]; };
layout(binding = 1) readonly buffer Counter { uint counter[]; };
layout(push_constant) uniform P { uint room; uint width; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < width) {
        uint row = counter[0];
        uint before = row == 0u ? 100u : log[(row - 1u) * width + i];
        log[row * width + i] = before + 1u;
    }
}
"""
)


def append_reference(*, log: Host, counter: Host, room: int, width: int, threads: object) -> None:
    rows = log[: room * width].reshape(room, width)
    row = int(counter[0])
    rows[row] = (100 if row == 0 else rows[row - 1]) + 1


def recorded(device: ps.Device, cache: ps.Array) -> ps.Graph:
    """A graph that appends a row to every plane: one more than the row before."""
    append = new_kernel(device, APPEND, "append", append_reference, HIP_APPEND)
    with device.record() as graph:
        for plane in range(PLANES):
            append(
                log=cache[plane], counter=cache.counter, room=ROOM, width=WIDTH,
                threads=WIDTH,
            )  # fmt: skip
        cache.advance(1, axis=1)
    return graph


def new_cache(device: ps.Device) -> ps.Array:
    return device.zeros((PLANES, ROOM, WIDTH), np.uint32, role="append", name="cache")


def test_a_graph_appends_for_as_long_as_there_is_room(any_device: ps.Device) -> None:
    cache = new_cache(any_device)
    graph = recorded(any_device, cache)
    for length in range(ROOM):
        assert cache.length == length
        graph.replay()
    assert cache.length == ROOM
    with pytest.raises(ps.RoleViolation, match=r"'cache'.*full: 12 of 12"):
        graph.replay()
    assert (cache.numpy() == np.arange(101, 101 + ROOM)[None, :, None]).all()
    assert cache.counter.item() == ROOM
    cache.reset()
    assert (cache.length, cache.counter.item()) == (0, 0)
    graph.replay()
    graph.replay()
    assert cache.length == 2
    assert (cache[:, :2].numpy() == np.array([101, 102])[None, :, None]).all()


def test_a_reset_may_keep_the_first_rows(any_device: ps.Device) -> None:
    """Rows after them are written again, even while replays that wrote them are in flight."""
    cache = new_cache(any_device)
    graph = recorded(any_device, cache)
    for keep, more in ((0, ROOM), (ROOM, 0), (5, 3), (8, 0), (2, 9)):
        cache.reset(keep=keep, axis=1)
        assert cache.length == keep
        if keep:
            with pytest.raises(ps.RoleViolation, match="written already"):
                cache[:, keep - 1].fill(0)
        for _ in range(more):
            graph.replay()
        length = keep + more
        assert (cache.length, cache.counter.item()) == (length, length)
        assert (cache[:, :length].numpy() == np.arange(101, 101 + length)[None, :, None]).all()


def test_what_a_reset_cannot_keep(any_device: ps.Device) -> None:
    cache = new_cache(any_device)
    graph = recorded(any_device, cache)
    graph.replay()
    for keep, axis, error in (
        (2, 1, ps.RoleViolation), (1, 0, ps.RoleViolation), (ROOM + 1, 1, ps.InvalidValue),
        (-1, 1, ps.InvalidValue), (1, 3, ps.InvalidValue),
    ):  # fmt: skip
        with pytest.raises(error, match=r"reset\(keep="):
            cache.reset(keep=keep, axis=axis)
        assert (cache.length, cache.counter.item()) == (1, 1)
    with pytest.raises(ps.RoleViolation, match="not 'append'"):
        any_device.zeros(4).reset(keep=1)


def test_the_host_goes_on_where_the_graph_stopped_and_the_other_way_round(
    any_device: ps.Device,
) -> None:
    cache = new_cache(any_device)
    graph = recorded(any_device, cache)
    cache[:, :2].write(np.full((PLANES, 2, WIDTH), 7, np.uint32))
    with pytest.raises(ps.RoleViolation, match="written already"):
        graph.replay()  # nobody told the device of the two
    cache.advance(2, axis=1)
    graph.replay()
    assert cache.length == 3
    with pytest.raises(ps.RoleViolation, match="written already"):
        cache[:, 2].fill(0)
    cache[:, 3].fill(50)
    with pytest.raises(ps.RoleViolation, match="4 are written, not 5"):
        cache.advance(2, axis=1)
    cache.advance(1, axis=1)
    graph.replay()
    assert (cache[1, :5, 0].numpy() == [7, 7, 8, 50, 51]).all()
    assert cache.counter.item() == 5


def test_complete_rows_are_read_while_the_next_is_appended(dev: ps.Device) -> None:
    cache = new_cache(dev)
    graph = recorded(dev, cache)
    graph.replay()
    graph.replay()
    assert (cache[:, :2].numpy() == np.array([101, 102])[None, :, None]).all()
    with held_until_waited(dev.default_stream), ps.trace() as t:
        graph.replay()
        graph.replay()
        assert (cache[:, 1].numpy() == 102).all()
        assert cache[2, 0].view()[5] == 101
        assert t.waits == 0
        assert (cache[:, 3].numpy() == 104).all()
        assert t.waits == 1


def test_a_view_of_complete_rows_does_not_keep_a_graph_from_appending(dev: ps.Device) -> None:
    cache = new_cache(dev)
    graph = recorded(dev, cache)
    graph.replay()
    held = cache[0, :1].view()
    graph.replay()
    ahead = cache[0, 2:].view()
    with pytest.raises(ps.ViewHeld):
        graph.replay()
    assert cache.length == 2
    del ahead
    graph.replay()
    assert (held == 101).all()
    assert cache[0, 2, 0].item() == 103


def test_what_cannot_be_is_refused(any_device: ps.Device) -> None:
    device, cache = any_device, new_cache(any_device)
    append = new_kernel(device, APPEND, "append", append_reference, HIP_APPEND)
    given = {"counter": cache.counter, "room": ROOM, "width": WIDTH, "threads": WIDTH}
    with pytest.raises(ps.RoleViolation, match="not 'append'"):
        device.zeros(4).advance(1)
    with pytest.raises(ps.RoleViolation, match="not 'append'"):
        _ = device.zeros(4).counter
    for rows, axis in ((0, 1), (-1, 1), (1.5, 1), (1, 3), (1, -1)):
        with pytest.raises(ps.InvalidValue):
            cache.advance(rows, axis=axis)  # type: ignore[arg-type]
    with pytest.raises(ps.ArgumentError, match="of a part"):
        cache[0].advance(1)
    cache[:, 0].fill(1)
    with pytest.raises(ps.RoleViolation, match="written already"), device.record():
        append(log=cache[0], **given)  # the graph never says that it grows
    with device.record():
        cache.advance(1, axis=1)
        with pytest.raises(ps.ArgumentError, match="advanced twice"):
            cache.advance(1, axis=1)
    with device.record() as graph:
        cache[:, 5].fill(1)
        cache.advance(1, axis=1)
    with pytest.raises(ps.RoleViolation, match="only its kernels"):
        graph.replay()


@pytest.mark.parametrize("seed", range(24))
def test_appends_are_ordered_under_every_schedule(seed: int) -> None:
    with ps.Device(driver="sim", seed=seed) as device:
        cache = new_cache(device)
        graph = recorded(device, cache)
        streams = [device.default_stream, device.stream()]
        for position in range(ROOM):
            graph.replay(streams[position % 3 // 2])
            if position % 4 == seed % 4:
                assert (
                    cache[:, : position + 1].numpy()[:, :, 3] == 101 + np.arange(position + 1)
                ).all()
        assert (cache.numpy() == np.arange(101, 101 + ROOM)[None, :, None]).all()
        device.synchronize()
        assert not device.messages
