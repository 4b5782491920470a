"""A trace as plain data: what `--json` writes, and the source of the page and the Perfetto file.

The format is stable and described in docs/tracing.md: a change that could break a reader raises
`VERSION`. Times are seconds from the start of the trace. Threads and streams are indices into their
lists. Fields that do not apply to an event are left out.
"""

from __future__ import annotations

import datetime
import json
import math
import operator
import os
from collections.abc import Sequence
from typing import Any

import penstock
from penstock import accelerator
from penstock.tracing.findings import Terms, findings
from penstock.tracing.flights import flights
from penstock.tracing.receipt import Trace, TraceEvent

SCHEMA = "penstock-trace"
VERSION = 1

#: Fields of an event that are left out when they do not apply.
_OPTIONAL = ("nbytes", "buffer", "path", "submission", "command", "inner")


def as_json(trace: Trace, title: str = "") -> str:
    return dumped(as_document(trace, title))


def dumped(document: dict[str, Any]) -> str:
    """Serialize as compact JSON; accepts NumPy integers."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, default=operator.index)


def as_document(trace: Trace, title: str = "") -> dict[str, Any]:
    events = list(trace.events)
    counts = trace.as_dict()
    origin, seconds = trace.started, counts["seconds"]
    began = datetime.datetime.fromtimestamp(trace.started_at, datetime.UTC)
    here = f"{os.getcwd()}{os.sep}"
    threads = _threads(events)
    named = _streams(events)
    streams = {stream_id: number for number, stream_id in enumerate(named)}

    def moment(time: float) -> float:
        return _rounded(time - origin)

    def line(where: str) -> str:
        return where.removeprefix(here)

    def plain(event: TraceEvent) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "kind": event.kind,
            "reason": event.reason,
            "start": moment(event.start),
            "thread": threads[event.thread, event.thread_id],
        }
        fields |= {name: value for name in _OPTIONAL if (value := getattr(event, name))}
        if event.buffer:
            fields["lo"], fields["hi"] = event.lo, event.hi
        if event.where:
            fields["where"] = line(event.where)
        if event.seconds:
            fields["seconds"] = _rounded(event.seconds)
        if event.stream_id >= 0:
            fields["stream"] = streams[event.stream_id]
        awaited = [
            {
                "stream": streams[point.stream_id],
                "submission": point.submission,
                "what": point.what,
            }
            for point in event.awaited
            if point.stream_id in streams
        ]
        if awaited:
            fields["awaited"] = awaited
        if event.device_start is not None and event.device_seconds is not None:
            fields["device_start"] = moment(event.device_start)
            fields["device_seconds"] = _rounded(event.device_seconds)
        return fields

    return {
        "schema": SCHEMA,
        "version": VERSION,
        "penstock": penstock.__version__,
        "native": accelerator.status,
        "title": title,
        "recorded": began.isoformat(timespec="milliseconds"),
        "seconds": _rounded(seconds),
        "counts": counts,
        **findings(trace, events, Terms(moment, line, streams)),
        "threads": [{"name": name, "id": number} for name, number in threads],
        "streams": list(named.values()),
        "flights": [
            {
                "stream": streams[flight.stream_id],
                "first": flight.first,
                "last": flight.last,
                "submitted": moment(flight.submitted),
                "start": moment(flight.start),
                "end": moment(flight.end),
                "seen": flight.seen,
            }
            for flight in flights(events, origin + seconds)
            if flight.stream_id in streams
        ],
        "events": [plain(event) for event in events],
    }


def _threads(events: Sequence[TraceEvent]) -> dict[tuple[str, int], int]:
    """Number the threads: the main thread first, the others in order of appearance."""
    found = dict.fromkeys((event.thread, event.thread_id) for event in events)
    ordered = sorted(found, key=lambda thread: thread[1] != os.getpid())
    return {thread: number for number, thread in enumerate(ordered)}


def _streams(events: Sequence[TraceEvent]) -> dict[int, dict[str, str]]:
    """By number: the name of every stream in these events, in order of creation."""
    places = {(event.stream_id, event.stream, event.device) for event in events}
    for event in events:
        places |= {(point.stream_id, point.stream, point.device) for point in event.awaited}
    return {number: {"name": n, "device": d} for number, n, d in sorted(places) if number >= 0}


def _rounded(seconds: float) -> float:
    """Round to the nanosecond, the clock's resolution, which halves the size of the file.

    JSON has no infinity, so a time that is not finite becomes 0. No clock returns one.
    """
    return round(seconds, 9) if math.isfinite(seconds) else 0.0
