"""What a trace costs itself: host time for its events, and device time for its timestamps."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.tracing.device_times import DeviceClock
    from penstock.tracing.receipt import TraceEvent

_EMITTED = 200  # events in a sample of what one costs
_SAMPLES = 10


class TraceCost(NamedTuple):
    """What a trace has added to the program so far. Upper bounds, measured on this machine."""

    events: int
    event_seconds: float  #: host time of one event, made in Python; the native step is faster
    clock_seconds: float  #: host time for making what takes timestamps, once per recording
    timestamps: int  #: on the device: two for each timed command
    #: Device time of one timestamp: the shortest time between two commands in one submission, where
    #: there is nothing else. None if no submission has two.
    timestamp_seconds: float | None

    @property
    def host_seconds(self) -> float:
        return self.events * self.event_seconds + self.clock_seconds

    @property
    def device_seconds(self) -> float | None:
        if self.timestamp_seconds is None:
            return None
        return self.timestamps * self.timestamp_seconds

    def __str__(self) -> str:
        on_device = self.device_seconds
        device = "unknown" if on_device is None else f"{on_device * 1e6:.0f} µs"
        return (
            f"at most {self.host_seconds * 1e6:.0f} µs of host time "
            f"({self.events} events of {self.event_seconds * 1e6:.1f} µs), "
            f"on the device {device} ({self.timestamps} timestamps)"
        )


def cost_of(traced: list[TraceEvent]) -> TraceCost:
    """The cost of a trace with these events."""
    clock = sum(event.seconds for event in traced if event.kind == "clock")
    timed = [event for event in traced if event.device_start is not None]
    return TraceCost(len(traced), emit_seconds(), clock, 2 * len(timed), _between(timed))


def _between(timed: Iterable[TraceEvent]) -> float | None:
    """The shortest time from the end of a command to the start of the next in its submission."""
    ordered = sorted(
        (each.stream_id, each.submission, each.command, each.device_start, each.device_seconds)
        for each in timed
        if not each.inner
    )
    gaps = [
        max(0.0, (b[3] or 0.0) - (a[3] or 0.0) - (a[4] or 0.0))
        for a, b in pairwise(ordered)
        if a[:2] == b[:2] and a[2] + 1 == b[2]
    ]
    return min(gaps, default=None)


class _Scratch:
    """A trace that is not active, to measure what an event costs."""

    counts_only = wants_times = wants_kernels = False

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.times: deque[tuple[tuple[int, ...], tuple[float, float]]] = deque()
        self.noted_clocks: dict[str, DeviceClock] = {}


@functools.cache
def emit_seconds() -> float:
    """The host time of adding an event to a trace: the fastest of some samples."""
    best = float("inf")
    for _ in range(_SAMPLES):
        to = (_Scratch(),)
        start = time.perf_counter()
        for _ in range(_EMITTED):
            events.emit("launch", ("%s in %s groups", "", ()), start=1.0, to=to)
        best = min(best, (time.perf_counter() - start) / _EMITTED)
    return best
