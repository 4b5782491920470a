"""When submitted work was in flight, as far as the host can tell.

The host knows when it submitted, and when it learned, by a wait or a poll, that all submissions up
to a certain one were complete. Work on one stream runs in order, so a submission cannot have
started before the previous one was complete. Submissions that the host saw complete at the same
moment form one flight, since the host cannot tell where one ended and the next began. A host copy
in stream order is a flight whose times are known exactly.

The device's own timestamps, where the runtime has them, are in the events (`device_start`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from penstock.tracing.receipt import TraceEvent


class Flight(NamedTuple):
    """Submissions `first` to `last` of a stream: when submitted, earliest start, seen complete."""

    stream_id: int
    first: int
    last: int
    submitted: float
    start: float
    end: float
    seen: bool  #: False if the trace ended before the host saw them complete


def flights(events: Iterable[TraceEvent], end: float) -> list[Flight]:
    """The flights of all streams in a trace that ended at `end`, each stream's in order."""
    submitted: dict[int, list[tuple[int, float]]] = defaultdict(list)
    done: dict[int, list[TraceEvent]] = defaultdict(list)
    completions: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for event in events:
        if event.kind == "submission":
            submitted[event.stream_id].append((event.submission, event.start))
        elif event.kind == "done":
            done[event.stream_id].append(event)
        if event.device_start is not None and event.device_seconds is not None:
            over = event.device_start + event.device_seconds
            completions[event.stream_id].append((event.submission, over))
    found: list[Flight] = []
    for stream in sorted({*submitted, *done}):
        ordered = sorted(submitted[stream])
        # The device's timestamps may show that it was still working after the trace ended.
        last = ordered[-1][0] if ordered else 0
        times = [over for submission, over in completions[stream] if submission <= last]
        found += _of_stream(stream, ordered, done[stream], max([end, *times]))
    return found


def _of_stream(
    stream: int, submitted: list[tuple[int, float]], done: list[TraceEvent], end: float
) -> list[Flight]:
    found: list[Flight] = []
    position, free = 0, 0.0
    for event in sorted(done, key=lambda event: event.start):
        if event.seconds:
            number, start = event.submission, event.start
            found.append(Flight(stream, number, number, start, start, start + event.seconds, True))
            continue
        ahead = position
        while position < len(submitted) and submitted[position][0] <= event.submission:
            position += 1
        if position > ahead:
            found.append(_together(stream, submitted[ahead:position], free, event.start, True))
            free = event.start
    if position < len(submitted):
        found.append(_together(stream, submitted[position:], free, end, False))
    return found


def _together(
    stream: int, submissions: list[tuple[int, float]], free: float, end: float, seen: bool
) -> Flight:
    (first, at), (last, _) = submissions[0], submissions[-1]
    return Flight(stream, first, last, at, min(max(at, free), end), end, seen)
