"""Whether device times can be right, as far as the host knows."""

from __future__ import annotations

import penstock as ps


def check_bounds(t: ps.Trace) -> list[ps.TraceEvent]:
    """Check that all commands ran between submission and completion, by the clock's error.

    Returns the events that have device times.
    """
    error = t.clock_error
    assert error is not None
    submitted = {(e.stream_id, e.submission): e.start for e in t.of_kind("submission")}
    done = t.of_kind("done")
    timed = []
    for event in t.events:
        if event.kind not in ("launch", "replay", "copy", "fill") or event.stream_id < 0:
            continue
        start, seconds = event.device_start, event.device_seconds
        assert start is not None
        assert seconds is not None
        assert seconds >= 0
        seen = min(
            e.start
            for e in done
            if e.stream_id == event.stream_id and e.submission >= event.submission
        )
        early, late = submitted[event.stream_id, event.submission] - error, seen + error
        assert early <= start <= start + seconds <= late
        timed.append(event)
    return timed
