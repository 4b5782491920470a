"""What a trace says of its devices' time, as plain data: the part of `document` about idle time.

Durations are not rounded, so that in a file, too, `busy` and the `seconds` of all gaps add up to
`span`, and those of the parts of a gap to the gap.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.tracing.advice import Advice, advice
from penstock.tracing.cost import cost_of
from penstock.tracing.gaps import Gap, Part, in_seconds, is_command, ticks
from penstock.tracing.idle import KernelTime, Use, use_of
from penstock.tracing.receipt import Trace, TraceEvent
from penstock.tracing.verdict import largest_causes, verdict


class Terms(NamedTuple):
    """How the document writes times, lines and streams."""

    moment: Callable[[float], float]  #: of a time on the events' clock
    line: Callable[[str], str]  #: of a file and line
    streams: Mapping[int, int]  #: the index of a stream, by its number


def findings(trace: Trace, events: Sequence[TraceEvent], terms: Terms) -> dict[str, Any]:
    """The fields about how busy the devices were. Events are named by their index in `events`."""
    usable = [_with_usable_times(event) for event in events]
    use = use_of(usable)
    if not use.devices:
        use = use._replace(missing=trace.use.missing)
    given = advice(use, usable)
    return {
        "verdict": verdict(use),
        **{name: getattr(use, name) for name in ("span", "busy", "idle", "untimed")},
        "causes": [
            {
                "cause": cause.value,
                "seconds": use.by_cause[cause],
                "gaps": sum(gap.cause is cause for gap in use.gaps),
                "sentence": cause.text,
                "largest": words,
            }
            for cause, words in largest_causes(use)
        ],
        "advice": [
            {"cause": each.cause.value, "seconds": each.seconds, "sentence": each.sentence}
            for each in given
        ],
        "devices": _devices(trace, use, usable, terms),
        "gaps": _gaps(use, given, usable, terms),
        "kernels": [_kernel(kernel) for kernel in use.kernels],
        "cost": _cost(usable),
    }


def _devices(
    trace: Trace, use: Use, events: Sequence[TraceEvent], terms: Terms
) -> list[dict[str, Any]]:
    times = {each.device: each for each in use.devices}
    clocks = trace.clocks
    starts: dict[str, int] = {}
    for event in events:
        if is_command(event) and event.device_start is not None:
            start = ticks(event.device_start)
            starts[event.device] = min(start, starts.get(event.device, start))
    found = []
    for name in dict.fromkeys([*times, *clocks]):
        entry: dict[str, Any] = {"name": name}
        if (clock := clocks.get(name)) is not None:
            entry["clock"] = clock._asdict()
        if (device := times.get(name)) is not None:
            entry["start"] = terms.moment(in_seconds(starts[name]))
            entry |= {"span": device.span, "busy": device.busy, "idle": device.idle}
        found.append(entry)
    return found


def _gaps(
    use: Use, given: Sequence[Advice], events: Sequence[TraceEvent], terms: Terms
) -> list[dict[str, Any]]:
    numbers = {id(event): number for number, event in enumerate(events)}
    advised: dict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(given):
        for gap in each.gaps:
            advised[id(gap)].append(number)

    def indices(proof: Iterable[TraceEvent]) -> list[int]:
        return [numbers[id(event)] for event in proof]

    def about(thing: Gap | Part) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "cause": thing.cause.value,
            "start": terms.moment(thing.start),
            "seconds": thing.seconds,
            "lines": [terms.line(each) for each in thing.lines],
        }
        if thing.detail:
            fields["detail"] = thing.detail
        if thing.proof:
            fields["proof"] = indices(thing.proof)
        return fields

    found = []
    for gap in use.gaps:
        before, after = indices((gap.before, gap.after))
        entry = about(gap) | {
            "device": gap.device,
            "stream": terms.streams.get(gap.after.stream_id, -1),
            "before": before,
            "after": after,
        }
        if id(gap) in advised:
            entry["advice"] = advised[id(gap)]
        found.append({**entry, "parts": [about(part) for part in gap.parts]})
    return found


def _kernel(kernel: KernelTime) -> dict[str, Any]:
    return {name: _finite(value) for name, value in kernel._asdict().items()}


def _cost(events: list[TraceEvent]) -> dict[str, Any]:
    cost = cost_of(events)
    derived = {"host_seconds": cost.host_seconds, "device_seconds": cost.device_seconds}
    fields = {name: _finite(value) for name, value in (cost._asdict() | derived).items()}
    return {**fields, "sentence": str(cost)}


def _with_usable_times(event: TraceEvent) -> TraceEvent:
    """The event; with 0 for times that are not finite, and without half of its device's times.

    No clock returns such times.
    """
    begun, took = event.device_start, event.device_seconds
    if (begun is None) is not (took is None):
        begun = took = None
    times = (event.start, event.seconds, begun, took)
    if begun is event.device_start and all(t is None or math.isfinite(t) for t in times):
        return event
    names = ("start", "seconds", "device_start", "device_seconds")
    return event._replace(**{n: _finite(t) for n, t in zip(names, times, strict=True)})


def _finite(value: Any) -> Any:
    """JSON has neither infinity nor NaN."""
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value
