"""A trace in Chrome's JSON format, for https://ui.perfetto.dev and chrome://tracing.

The host is a process whose threads are the host's threads; every device is a process with a track
of its gaps, then two for each stream: its flights, and the commands that the device ran, with more
tracks where commands overlap. An event with a duration is a slice, one without is an instant. Flow
arrows lead from the work that was waited for to the wait, and from a call to what the device ran.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from penstock.tracing.document import as_document, dumped
from penstock.tracing.receipt import Trace

_HOST = 1  # its process number; devices follow
_GAPS = 1_000_000  # the track of a device's gaps; those of streams are numbered from 1
_COMMANDS = 10_000  # from the track of a stream to that of its commands, and to the next of these
_RESOLUTION = 5e-10  # seconds; the document's times are rounded to twice this

Entry = dict[str, Any]


def as_perfetto(trace: Trace, title: str = "") -> str:
    document = as_document(trace, title)
    entries = list(_entries(document))
    shown = ("title", "recorded", "penstock", "counts", "verdict", "advice", "kernels", "cost")
    about = {name: document[name] for name in shown}
    return dumped({"traceEvents": entries, "displayTimeUnit": "ns", "otherData": about})


def _entries(document: Entry) -> Iterator[Entry]:
    devices = list(
        dict.fromkeys(
            [s["device"] for s in document["streams"]] + [gap["device"] for gap in document["gaps"]]
        )
    )
    streams = [
        {"pid": _HOST + 1 + devices.index(stream["device"]), "tid": number + 1}
        for number, stream in enumerate(document["streams"])
    ]
    threads = [{"pid": _HOST, "tid": thread["id"]} for thread in document["threads"]]
    yield from _names(document, devices, streams, threads)
    for flight in document["flights"]:
        yield _flight(flight, streams[flight["stream"]])
    for event in document["events"]:
        if event["kind"] != "done":  # shown as the end of a flight
            yield _event(event, threads[event["thread"]])
    yield from _gaps(document, devices)
    ran = _tracks(document, streams)
    yield from _device_work(document, ran)
    yield from _flows(document, streams, threads)
    yield from _issued(document, ran, threads)
    yield from _counters(document, streams)


def _names(
    document: Entry, devices: list[str], streams: list[Entry], threads: list[Entry]
) -> Iterator[Entry]:
    processes = [f"host: {document['title'] or 'Python'}", *(f"device: {d}" for d in devices)]
    for number, name in enumerate(processes):
        track = {"pid": _HOST + number, "tid": 0, "ph": "M"}
        yield {**track, "name": "process_name", "args": {"name": name}}
        yield {**track, "name": "process_sort_index", "args": {"sort_index": number}}
    for track, about in zip(
        [*threads, *streams], [*document["threads"], *document["streams"]], strict=True
    ):
        yield {**track, "ph": "M", "name": "thread_name", "args": {"name": about["name"]}}


def _flight(flight: Entry, track: Entry) -> Entry:
    name = f"submission {flight['first']}"
    if flight["last"] > flight["first"]:
        name = f"submissions {flight['first']} to {flight['last']}"
    return {
        **track,
        "ph": "X",
        "name": name if flight["seen"] else f"{name}, not seen done",
        "cat": "flight",
        "ts": _us(flight["start"]),
        "dur": _us(flight["end"] - flight["start"]),
        "args": {"submitted": flight["submitted"], "seen": flight["seen"]},
    }


def _event(event: Entry, track: Entry) -> Entry:
    shown = ("reason", "nbytes", "buffer", "lo", "hi", "path", "where", "submission", "command")
    args = {name: event[name] for name in shown if name in event}
    entry = {
        **track,
        "name": " ".join(
            [event["kind"], *(event[part] for part in ("path", "buffer") if part in event)]
        ),
        "cat": event["kind"],
        "ts": _us(event["start"]),
        "args": args,
    }
    if "seconds" in event:
        return {**entry, "ph": "X", "dur": _us(event["seconds"])}
    return {**entry, "ph": "i", "s": "t"}


def _gaps(document: Entry, devices: list[str]) -> Iterator[Entry]:
    """A slice for each gap, named by its cause, with its parts below it."""
    sentences = {each["cause"]: each["sentence"] for each in document["causes"]}
    events, named = document["events"], set()
    for gap in document["gaps"]:
        track = {"pid": _HOST + 1 + devices.index(gap["device"]), "tid": _GAPS}
        if track["pid"] not in named:
            named.add(track["pid"])
            yield {**track, "ph": "M", "name": "thread_name", "args": {"name": "idle"}}
            yield {**track, "ph": "M", "name": "thread_sort_index", "args": {"sort_index": -1}}
        advice = [document["advice"][number]["sentence"] for number in gap.get("advice", ())]
        args = {
            "why": sentences[gap["cause"]],
            "detail": gap.get("detail"),
            "lines": ", ".join(gap["lines"]),
            "before": events[gap["before"]]["reason"],
            "after": events[gap["after"]]["reason"],
            "advice": "; ".join(advice),
        }
        start, end = _us(gap["start"]), _us(gap["start"] + gap["seconds"])
        yield _slice(gap, track, "gap", start, end, args)
        parts = gap["parts"] if len(gap["parts"]) > 1 else ()
        # Rounded times: each part ends where the next one starts, and the last where the gap ends.
        bounds = [start, *(_us(part["start"]) for part in parts[1:]), end]
        for part, begun, over in zip(parts, bounds, bounds[1:], strict=False):
            about = {"detail": part.get("detail"), "lines": ", ".join(part["lines"])}
            yield _slice(part, track, "part", begun, over, about)


def _slice(
    thing: Entry, track: Entry, category: str, start: float, end: float, args: Entry
) -> Entry:
    """A gap or a part of one, from start to end in microseconds."""
    return {
        **track,
        "ph": "X",
        "name": thing["cause"],
        "cat": category,
        "ts": start,
        "dur": round(max(0.0, end - start), 3),
        "args": {name: value for name, value in args.items() if value},
    }


def _tracks(document: Entry, streams: list[Entry]) -> dict[int, Entry]:
    """By index of the event: the track of each command that the device ran.

    Slices of one track may not overlap, so commands that do are put on several.
    """
    events = document["events"]
    ran = [n for n, e in enumerate(events) if "device_start" in e and "stream" in e]
    ends: dict[int, list[float]] = defaultdict(list)  # by stream, of the last slice of each track
    found = {}
    for number in sorted(ran, key=lambda n: (events[n]["device_start"], n)):
        event = events[number]
        start = event["device_start"]
        free = ends[event["stream"]]
        lane = next((n for n, end in enumerate(free) if end < start + _RESOLUTION), len(free))
        free[lane : lane + 1] = [start + event["device_seconds"]]
        track = streams[event["stream"]]
        found[number] = {**track, "tid": track["tid"] + _COMMANDS * (lane + 1)}
    return found


def _device_work(document: Entry, ran: dict[int, Entry]) -> Iterator[Entry]:
    named = set()
    for number, track in ran.items():
        event = document["events"][number]
        if (place := (track["pid"], track["tid"])) not in named:
            named.add(place)
            name = f"{document['streams'][event['stream']]['name']}: on the device"
            yield {**track, "ph": "M", "name": "thread_name", "args": {"name": name}}
        yield {
            **track,
            "ph": "X",
            "name": event["reason"],
            "cat": "device",
            "ts": _us(event["device_start"]),
            "dur": _us(event["device_seconds"]),
            "args": {"submission": event.get("submission", 0)},
        }


def _issued(document: Entry, ran: dict[int, Entry], threads: list[Entry]) -> Iterator[Entry]:
    """From each call to the command that the device ran for it."""
    for number, track in ran.items():
        event = document["events"][number]
        if "seconds" not in event:
            continue  # an instant, which no flow can leave
        flow = {"id": number + 1, "name": "issued", "cat": "issue"}
        yield {**flow, **threads[event["thread"]], "ph": "s", "ts": _us(event["start"])}
        yield {**flow, **track, "ph": "f", "bp": "e", "ts": _us(event["device_start"])}


def _flows(document: Entry, streams: list[Entry], threads: list[Entry]) -> Iterator[Entry]:
    """From each flight that was waited for to the wait that it ended."""
    flights: dict[int, list[Entry]] = defaultdict(list)
    for flight in sorted(document["flights"], key=_last):
        flights[flight["stream"]].append(flight)
    number = 0
    for event in document["events"]:
        if event["kind"] != "wait":
            continue
        for point in event.get("awaited", ()):
            ordered = flights[point["stream"]]
            at = bisect.bisect_left(ordered, point["submission"], key=_last)
            if at == len(ordered) or ordered[at]["first"] > point["submission"]:
                continue  # submitted before the trace began
            flight = ordered[at]
            number += 1
            flow = {"id": number, "name": "awaited", "cat": "wait"}
            begin = {**streams[flight["stream"]], "ts": _us(flight["start"])}
            # Just before the wait ends: a flow binds to the slice that encloses it.
            over = event["start"] + max(0.0, event.get("seconds", 0.0) - 1e-9)
            end = {**threads[event["thread"]], "ts": _us(over)}
            yield {**flow, **begin, "ph": "s"}
            yield {**flow, **end, "ph": "f", "bp": "e"}


def _last(flight: Entry) -> int:
    last: int = flight["last"]
    return last


def _counters(document: Entry, streams: list[Entry]) -> Iterator[Entry]:
    """Counter tracks: memory allocated by the driver, and submissions in flight."""
    made = 0
    steps: list[tuple[float, int, int]] = []
    for event in document["events"]:
        if event["kind"] == "allocation":
            made += event.get("nbytes", 0)
            about = {"name": "memory made", "args": {"bytes": made}}
            yield {"pid": _HOST, "tid": 0, "ph": "C", "ts": _us(event["start"]), **about}
        elif event["kind"] == "submission" and "stream" in event:
            steps.append((event["start"], event["stream"], 1))
    steps += [
        (flight["end"], flight["stream"], flight["first"] - flight["last"] - 1)
        for flight in document["flights"]
        if flight["seen"]
    ]
    in_flight = [0] * len(streams)
    for when, stream, change in sorted(steps):
        in_flight[stream] = max(0, in_flight[stream] + change)
        name = f"in flight on {document['streams'][stream]['name']}"
        about = {"name": name, "args": {"submissions": in_flight[stream]}}
        yield {"pid": streams[stream]["pid"], "tid": 0, "ph": "C", "ts": _us(when), **about}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
