"""Device work that is in flight for certain: it waits for the test, not for a clock."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import penstock as ps


@contextlib.contextmanager
def held(stream: ps.Stream) -> Iterator[None]:
    """Until the end of the block, nothing that the stream is given gets done."""
    let_go = hold(stream)
    event = stream.record()
    try:
        yield
        assert stream.scheduler.lost or not event.done
    finally:
        let_go()


@contextlib.contextmanager
def held_until_waited(stream: ps.Stream) -> Iterator[Callable[[], None]]:
    """Nothing that the stream is given gets done before the host waits for something.

    A call of what it yields begins that anew, for what the stream is given from then on.
    """
    gates = [hold(stream)]
    scheduler: Any = stream.scheduler
    await_points = scheduler.await_points

    def let_go() -> None:
        while gates:
            gates.pop()()

    def let_go_and_wait(*points: Any, **options: Any) -> bool:
        let_go()
        return bool(await_points(*points, **options))

    scheduler.await_points = let_go_and_wait
    try:
        yield lambda: gates.append(hold(stream))
    finally:
        del scheduler.await_points
        let_go()


def hold(stream: ps.Stream) -> Callable[[], None]:
    """Let a stream wait on the device, as for a copy that the host makes; what ends that."""
    scheduler = stream.scheduler
    with scheduler.lock:
        host = scheduler.host_copies.take_lane()
        value = host.start()
        stream.wait_for_lanes({host.lane: value})

    once = threading.Lock()  # threads that copy in the background wait, too

    def let_go() -> None:
        if once.acquire(blocking=False):
            scheduler.host_copies.report_done(host, value)

    return let_go
