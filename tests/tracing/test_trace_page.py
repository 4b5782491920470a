"""A trace that people can look at: the page in a real browser, the files, the command."""

from __future__ import annotations

import html
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.__main__ import main
from penstock.tracing import events, receipt
from penstock.tracing.document import as_document
from penstock.tracing.flights import flights
from penstock.tracing.page import as_html
from tests.kernels import SAXPY, slow_add
from tests.tracing.browser import Browser

#: A name that tries to get out of wherever it is put.
NASTY = "</script><!--<b onclick='x()'>\"&amp;{{data}}"


@pytest.fixture(scope="module")
def small() -> receipt.Trace:
    """A real program on the simulator: two streams, waits, copies, a fill, a graph."""
    with ps.trace() as t, ps.Device(driver="sim", seed=1) as dev:
        x, y = dev.zeros(64, "uint32", name=NASTY), dev.zeros(64, "float32", name="y")
        add = dev.kernel(SAXPY, name="saxpy", reference=lambda **_: None)
        ones = dev.ones(64, name="ones")
        with dev.stream(name="side") as side:
            slow_add(x, 1)
            slow_add(x, 2, side)
            y.write([2.0] * 64)
            add(x=ones, y=y, a=1.0, n=64, threads=64, stream=side)
            x.fill(3, stream=side)
            with dev.record() as graph:
                add(x=ones, y=y, a=1.0, n=64, threads=64)
            graph.replay()
            x.numpy()
            y.numpy()
    return t


def large(size: int) -> receipt.Trace:
    """`size` events, as three streams would make them, on a device that is often idle."""
    dice = random.Random(0)
    places = [("a device", f"stream {number}", 1000 + number) for number in range(3)]
    submitted, recorded = [0, 0, 0], [0, 0, 0]
    with ps.trace() as t:
        now = free = t.started
        while len(t.records) < size:
            now += dice.random() * 2e-5
            k = dice.randrange(3)
            recorded[k] += 1
            at = (places[k], submitted[k] + 1, recorded[k])
            reason = ("kernel k%d in %s groups", dice.randrange(40), (4, 1, 1))
            events.emit("launch", reason, nbytes=4096, start=now, seconds=1e-6, at=at)
            free = max(free, now + 4e-6) + dice.random() * 2e-6
            events.device_times(at, free, 5e-6, [t])
            free += 5e-6
            events.emit("barrier", "after a write", path="device", start=now, at=at)
            if dice.random() < 0.05:
                about = {"buffer": f"b{dice.randrange(9)}", "hi": 4096, "path": "direct"}
                events.emit("copy", "idle", nbytes=4096, start=now, seconds=3e-6, **about)
            if dice.random() < 0.1:
                submitted[k] += 1
                recorded[k] = 0
                at = (places[k], submitted[k], 0)
                events.emit("submission", "full", start=now, seconds=9e-6, at=at)
                now += 1e-5
                if dice.random() < 0.3:
                    took = dice.random() * 1e-4
                    events.emit("done", "waited", start=now + took, at=at)
                    awaited = ((places[k], submitted[k], "kernel"),)
                    events.emit("wait", "a read", start=now, seconds=took, awaited=awaited)
                    now += took
    t._stopped = now
    return t


# The page.


@pytest.fixture
def page(browser: Browser, small: receipt.Trace, tmp_path: Path) -> Iterator[Browser]:
    """The page of the small trace, open. It must neither complain nor ask the network."""
    small.save_html(tmp_path / "trace.html", f"program {NASTY}")
    browser.open(tmp_path / "trace.html")
    yield browser
    assert not browser.complaints


def shown(page: Browser) -> tuple[float, float]:
    page.ask("new Promise(requestAnimationFrame)")
    return page.ask("penstock.view.from"), page.ask("penstock.view.to")


def test_the_numbers_on_the_page_are_the_traces(page: Browser, small: receipt.Trace) -> None:
    counts = small.as_dict()
    tiles = page.ask(
        "Object.fromEntries([...document.querySelectorAll('[data-count]')]"
        ".map(e => [e.dataset.count, Number(e.querySelector('b').textContent)]))"
    )
    assert tiles == {name: counts[name] for name in tiles}
    assert set(tiles) == {*counts} - {"seconds", "bytes_copied"}
    assert counts["waits"] >= 2
    assert counts["replays"] == 1
    copied = page.ask("Number(document.querySelector('[data-bytes]').dataset.bytes)")
    assert copied == counts["bytes_copied"]
    rows = page.ask("[...document.querySelectorAll('#receipt tbody tr')].map(r => r.innerText)")
    waited = [row for row in rows if row.startswith("wait")]
    assert sum(int(row.split("\t")[2]) for row in waited) == counts["waits"]
    assert any("test_trace_page.py:" in row for row in waited)
    assert page.ask("penstock.layout().map(r => r.name)")[-2:] == ["default stream", "side"]


def test_a_notebook_shows_the_page(small: receipt.Trace) -> None:
    """Whole and alone: in a frame that can run the page's scripts, and reach nothing outside."""
    frame = small._repr_html_()
    inside = re.fullmatch(
        r'<iframe [^>]*sandbox="allow-scripts"[^>]* srcdoc="([^"]*)"></iframe>', frame
    )
    assert inside
    assert html.unescape(inside[1]) == as_html(small)
    assert "<" not in inside[1]


def test_names_of_the_program_stay_text(page: Browser) -> None:
    assert page.ask("document.title") == f"program {NASTY}"
    assert page.ask("document.querySelector('h1').textContent") == f"program {NASTY}"
    assert page.ask("document.querySelectorAll('[onclick]').length") == 0
    assert NASTY in page.ask("document.querySelector('#receipt tbody').textContent")


def test_zoom_and_pan_by_wheel_keys_buttons_and_drag(page: Browser) -> None:
    x, y = page.ask(
        "(() => { const b = document.getElementById('chart').getBoundingClientRect();"
        " return [b.x + 600, b.y + 30]; })()"
    )
    start, end = everything = shown(page)
    at = start + (end - start) * (600 - 178) / (page.ask("penstock.view.width") - 178)
    page.wheel(x, y, -300)
    page.until(f"penstock.view.to < {end} || penstock.view.from > {start}")
    lo, hi = shown(page)
    assert hi - lo < 0.7 * (end - start)
    assert abs(at - (lo + (hi - lo) * (at - start) / (end - start))) < 0.01 * (end - start)
    page.key("+")
    closer = shown(page)
    assert closer[1] - closer[0] < hi - lo
    page.key("ArrowRight")
    moved = shown(page)
    assert moved[0] > closer[0]
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.mouse("mouseMoved", x + 100, y, button="left", buttons=1)
    page.mouse("mouseReleased", x + 100, y, button="left", clickCount=1)
    assert shown(page)[0] < moved[0]
    page.ask("document.getElementById('zoom-out').click()")
    page.key("0")
    assert shown(page) == everything


def test_a_wait_is_found_and_explained(page: Browser, small: receipt.Trace) -> None:
    page.key("w")
    first = small.of_kind("wait")[0]
    details = page.ask("document.getElementById('details').innerText")
    assert first.reason in details
    assert f"Line\n{os.path.relpath(first.where)}\n" in details
    assert str(first.awaited[0]) in details
    assert first.reason in page.ask("document.getElementById('status').textContent")
    page.ask("document.querySelector('#details .go').click()")  # to what it waited for
    assert page.ask("penstock.state().selected.flight") is not None
    details = page.ask("document.getElementById('details').innerText")
    assert f"submission {first.awaited[0].submission}" in details.replace(
        "submissions", "submission"
    )
    assert "Waited for by" in details
    page.key("Escape")
    assert page.ask("penstock.state().selected") is None


def test_a_click_selects_what_is_under_it(page: Browser, small: receipt.Trace) -> None:
    page.key("w")
    page.key("z")
    shown(page)
    place = page.ask(
        "(() => { const i = penstock.state().selected.event, c = penstock.column;"
        " const b = document.getElementById('chart').getBoundingClientRect();"
        " return [b.x + penstock.pixel(c.start[i] + c.seconds[i] / 2),"
        " b.y + penstock.rowOf({event: i}).barY + 8, i]; })()"
    )
    page.key("Escape")
    page.mouse("mouseMoved", *place[:2])
    assert "wait" in page.ask("document.getElementById('tip').textContent")
    page.click(*place[:2])
    assert page.ask("penstock.state().selected") == {"event": place[2]}
    assert page.ask("document.querySelectorAll('tr.chosen').length") == 1


def test_search_filters_highlights_and_jumps(page: Browser, small: receipt.Trace) -> None:
    expected = [e for e in small.events if e.kind == "launch" and "slow_add" in e.reason]
    page.key("/")
    page.type("launch SLOW_add")
    assert page.ask("document.getElementById('found').textContent") == f"{len(expected)} found"
    kinds = page.ask(
        "[...document.querySelectorAll('#receipt tbody button')].map(b => b.innerText)"
    )
    assert set(kinds) == {"launch"}
    page.key("Enter")
    page.key("Enter")
    assert page.ask("document.getElementById('found').textContent") == f"2 of {len(expected)}"
    assert expected[1].reason in page.ask("document.getElementById('details').innerText")
    page.key("Escape")
    assert page.ask("document.getElementById('query').value") == ""
    assert not page.ask("penstock.search.active")


def test_kinds_can_be_hidden_and_themes_switched(page: Browser) -> None:
    page.ask("document.querySelector('[data-count=waits]').click()")
    assert page.ask("document.querySelector('[data-count=waits]').ariaPressed") == "false"
    kinds = page.ask(
        "[...document.querySelectorAll('#receipt tbody button')].map(b => b.innerText)"
    )
    assert "wait" not in kinds
    paper = "getComputedStyle(document.body).backgroundColor"
    page.prefer("light")
    page.until("penstock.state().theme === 'light'")
    light = page.ask(paper)
    page.prefer("dark")
    page.until("penstock.state().theme === 'dark'")
    assert page.ask(paper) != light
    page.key("t")
    assert page.ask(paper) == light
    page.key("?")
    assert page.ask("document.getElementById('help').open")


def test_everything_to_press_has_a_name(page: Browser) -> None:
    nameless = page.ask(
        "[...document.querySelectorAll('button, input, canvas:not([aria-hidden]), dialog')]"
        ".filter(e => !(e.ariaLabel || e.textContent.trim() || e.labels?.length"
        " || e.getAttribute('aria-labelledby') || e.hidden)).map(e => e.id)"
    )
    assert nameless == []


def test_a_narrow_screen_shows_everything(page: Browser) -> None:
    page.resize(500, 900)
    try:
        page.ask("new Promise(requestAnimationFrame)")
        assert page.ask("document.documentElement.scrollWidth") == 500
        beyond = page.ask(
            "[...document.querySelectorAll('body *')].filter(e => !e.closest('#kernels, dialog')"
            " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.id || e.className)"
        )
        assert beyond == []  # the reasons of the receipt among them
    finally:
        page.resize(1280, 860)


def test_all_can_be_reached_and_used_by_keyboard(page: Browser) -> None:
    page.ask("document.body.focus()")
    reached: list[str] = []
    for _ in range(60):
        page.key("Tab")
        place = "(e => e.id || e.closest('[id]')?.id)(document.activeElement)"
        reached.append(page.ask(place))
        if reached[-1] == "receipt" and page.ask(
            "document.activeElement.closest('tbody') !== null"
        ):
            break
    assert {"query", "zoom-in", "theme", "help-button", "counts", "chart", "receipt"} <= {*reached}
    assert page.ask("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert page.ask("penstock.state().selected") is None
    page.key("Enter")
    page.until("penstock.state().selected !== null")
    assert page.ask("document.getElementById('details').innerText").strip()


def test_a_hundred_thousand_events_stay_usable(browser: Browser, tmp_path: Path) -> None:
    trace = large(100_000)
    file = tmp_path / "large.html"
    trace.save_html(file)
    assert file.stat().st_size < 10 << 20
    browser.open(file)
    counts = trace.as_dict()
    assert browser.ask("penstock.counted()") == {
        name: count for name, count in counts.items() if name != "seconds"
    }
    frames = browser.ask(
        "(() => { const taken = []; for (let k = 0; k < 30; k++) { penstock.zoom(k < 3 ? 1 : 0.8);"
        " const t = performance.now(); penstock.drawNow(); taken.push(performance.now() - t); }"
        " return taken.sort((a, b) => a - b); })()"
    )
    assert frames[len(frames) // 2] < 50, frames  # milliseconds; about 5 on an idle machine
    browser.key("/")
    browser.type("kernel k7 stream")
    found = sum("kernel k7 " in event.reason for event in trace.events)
    assert browser.ask("document.getElementById('found').textContent") == f"{found:,} found"
    assert not browser.complaints


# The files.


def test_json_tells_all_there_is(small: receipt.Trace, tmp_path: Path) -> None:
    small.save_json(tmp_path / "trace.json", "a title")
    document = json.loads((tmp_path / "trace.json").read_text())
    assert (document["schema"], document["version"]) == ("penstock-trace", 1)
    assert document["title"] == "a title"
    assert document["counts"] == small.as_dict()
    assert len(document["events"]) == len(small.events)
    for entry, event in zip(document["events"], small.events, strict=True):
        assert (entry["kind"], entry["reason"]) == (event.kind, event.reason)
        assert entry.get("nbytes", 0) == event.nbytes
        assert document["threads"][entry["thread"]]["id"] == event.thread_id
        if event.stream:
            assert document["streams"][entry["stream"]]["name"] == event.stream
        assert abs(entry["start"] - (event.start - small.started)) < 1e-8
        assert len(entry.get("awaited", ())) == len(event.awaited)


POINTS = st.builds(
    receipt.Point,
    device=st.sampled_from(["", "a device"]),
    stream=st.sampled_from(["", "a stream"]),
    stream_id=st.integers(-1, 3),
    submission=st.integers(-1, 4) | st.just(1 << 40),
    what=st.text(max_size=3),
)
#: Text with lone surrogates, as names of files have them that are not UTF-8.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=4)
MOMENTS = st.floats(0, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, -1.0])
NUMBERS = st.integers(-1, 4) | st.just(np.int64(3)) | st.just(1 << 40)
EVENTS = st.builds(
    ps.TraceEvent,
    kind=st.sampled_from(["wait", "done", "submission", "launch", "copy", "allocation", "new"]),
    reason=ANY_TEXT,
    nbytes=NUMBERS,
    buffer=ANY_TEXT,
    lo=NUMBERS,
    hi=NUMBERS,
    path=ANY_TEXT,
    where=ANY_TEXT,
    start=MOMENTS,
    seconds=MOMENTS,
    thread=ANY_TEXT,
    thread_id=st.integers(0, 3),
    device=st.sampled_from(["", "a device"]),
    stream=st.sampled_from(["", "a stream"]),
    stream_id=st.integers(-1, 3),
    submission=NUMBERS,
    command=NUMBERS,
    awaited=st.lists(POINTS, max_size=3).map(tuple),
    device_start=st.none() | MOMENTS,
    device_seconds=st.none() | MOMENTS,
)


#: Categories of Perfetto's slices that are not events of the host.
SHOWN_BESIDES = ("flight", "device", "gap", "part")


@settings(max_examples=300, deadline=None)
@given(events=st.lists(EVENTS, max_size=6), title=ANY_TEXT)
@example(events=[ps.TraceEvent("wait", "for nothing")], title="")
@example(events=[ps.TraceEvent("submission", "on no stream")], title="")
def test_any_events_can_be_written(events: list[ps.TraceEvent], title: str) -> None:
    trace = receipt.Trace()
    trace._events = events
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace"
        trace.save_json(file, title)
        document = strict_json(file.read_text("utf-8"))
        assert [entry["kind"] for entry in document["events"]] == [e.kind for e in events]
        assert [entry["reason"] for entry in document["events"]] == [
            paired(e.reason) for e in events
        ]
        assert document["title"] == paired(title)
        trace.save_perfetto(file, title)
        entries = strict_json(file.read_text("utf-8"))["traceEvents"]
        shown = [e for e in entries if e["ph"] in "Xi" and e["cat"] not in SHOWN_BESIDES]
        assert len(shown) == sum(event.kind != "done" for event in events)
        trace.save_html(file, title)
        page = file.read_text("utf-8")
        data = page.split('id="data"')[1].split(">", 1)[1].split("</script>")[0]
        columns, texts = strict_json(data)["columns"], strict_json(data)["texts"]
        assert [texts[kind] for kind in columns["kind"]] == [event.kind for event in events]


def paired(text: str) -> str:
    """The text with surrogates that make a pair as the character they make."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def strict_json(text: str) -> Any:
    """JSON as the standard has it: neither NaN nor Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_flights_keep_order_and_end_when_they_were_seen_done() -> None:
    def event(kind: str, submission: int, start: float, seconds: float = 0.0) -> ps.TraceEvent:
        return ps.TraceEvent(
            kind, "", start=start, seconds=seconds, stream_id=5, submission=submission
        )

    found = flights(
        [
            event("submission", 1, 1.0),
            event("submission", 2, 2.0),
            event("done", 1, 3.0),
            event("submission", 3, 4.0),
            event("done", 3, 6.0),
            event("submission", 4, 7.0),
        ],
        end=9.0,
    )
    assert [tuple(flight) for flight in found] == [
        (5, 1, 1, 1.0, 1.0, 3.0, True),
        (5, 2, 3, 2.0, 3.0, 6.0, True),  # seen done together
        (5, 4, 4, 7.0, 7.0, 9.0, False),
    ]
    (copy,) = flights([event("done", 1, 3.0, 0.5)], end=9.0)
    assert (copy.start, copy.end) == (3.0, 3.5)


def test_perfetto_gets_slices_names_flows_and_counters(
    small: receipt.Trace, tmp_path: Path
) -> None:
    small.save_perfetto(tmp_path / "trace.json", "program")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    by_phase: dict[str, list[Any]] = {}
    for entry in entries:
        assert {"ph", "pid", "tid", "name"} <= set(entry)
        assert entry["ph"] == "M" or entry["ts"] >= 0
        by_phase.setdefault(entry["ph"], []).append(entry)
    named = {(e["pid"], e["tid"]) for e in by_phase["M"] if e["name"] == "thread_name"}
    slices = by_phase["X"]
    assert {(e["pid"], e["tid"]) for e in slices} <= named
    assert sum(e["cat"] == "wait" for e in slices) == small.waits
    # A flow is drawn only if both its ends are within a slice.
    starts = {flow["id"]: flow for flow in by_phase["s"]}
    assert len(by_phase["f"]) == len(starts) >= small.waits
    for end in by_phase["f"]:
        for flow, kind in ((starts[end["id"]], "flight"), (end, "wait")):
            assert any(
                e["cat"] == kind
                and (e["pid"], e["tid"]) == (flow["pid"], flow["tid"])
                and e["ts"] <= flow["ts"] <= e["ts"] + e["dur"]
                for e in slices
            )
    in_flight = [e for e in by_phase["C"] if e["name"] == "in flight on side"]
    assert in_flight[0]["args"] == {"submissions": 1}
    assert in_flight[-1]["args"] == {"submissions": 0}
    # Slices of one track must nest: flights do not overlap at all.
    for track in {(e["pid"], e["tid"]) for e in slices if e["cat"] == "flight"}:
        ends = 0.0
        for entry in (e for e in slices if (e["pid"], e["tid"]) == track):
            assert entry["ts"] >= ends - 0.002
            ends = entry["ts"] + entry["dur"]


def test_device_times_are_on_page_and_in_files(browser: Browser, tmp_path: Path) -> None:
    at = (("a device", "a stream", 7), 1, 1)
    with ps.trace() as t:
        events.emit("launch", "k", at=at)
        events.emit("submission", "s", at=(*at[:2], 0), seconds=1e-6)
        events.device_times(at, t.started + 0.001, 0.002, [t])
    event = as_document(t)["events"][0]
    assert (event["device_start"], event["device_seconds"]) == (0.001, 0.002)
    t.save_perfetto(tmp_path / "p.json")
    entries = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    assert [(e["ts"], e["dur"]) for e in entries if e.get("cat") == "device"] == [(1000, 2000)]
    t.save_html(tmp_path / "t.html")
    browser.open(tmp_path / "t.html")
    browser.ask("penstock.select({event: 0})")
    assert "2.00 ms" in browser.ask("document.getElementById('details').innerText")
    assert not browser.complaints


def test_what_the_device_did_after_the_trace_is_shown(browser: Browser, tmp_path: Path) -> None:
    place = ("a device", "a stream", 7)
    kernels = range(1, 4001)
    with ps.trace() as t:
        for command in kernels:
            events.emit("launch", ("kernel %d", command), at=(place, 1, command))
        events.emit("submission", "s", at=(place, 1, 0), seconds=1e-6)
    for command in kernels:  # one after the other, half a microsecond apart
        start = t.started + t.seconds + command * 2e-6
        events.device_times((place, 1, command), start, 1.5e-6, [t])
    end = t.seconds + 4000 * 2e-6 + 1.5e-6
    (flight,) = as_document(t)["flights"]
    assert flight["end"] == pytest.approx(end, abs=1e-8)
    t.save_html(tmp_path / "t.html")
    browser.open(tmp_path / "t.html")
    browser.ask("penstock.show(0, 1e12)")
    assert browser.ask("penstock.view.to") == pytest.approx(end * 1e9, abs=10)
    # Wherever one points, the nearest is found, and the pause between two belongs to neither more.
    (y,) = (r["deviceY"] for r in browser.ask("penstock.layout()") if r["type"] == "stream")
    for number in (100, 101, 3999):
        start, ns = browser.ask(f"penstock.trace.device[{number}]")
        browser.ask(f"penstock.show({start - 4e3}, {start + 4e3})")
        for share in (0.01, 0.5, 0.99):
            x = browser.ask(f"penstock.pixel({start + share * ns})")
            assert browser.ask(f"penstock.thingAt({x}, {y + 4})") == {"event": number}
    assert not browser.complaints


# The command.

PROGRAM = """
import sys, threading, penstock as ps

def step():
    assert sys.modules["__main__"].step is step
    with ps.Device(driver="sim", seed=1) as dev:
        dev.zeros(16, name="tokens").write([1.0] * 16)

threading.Timer(0.05, step).start()
print("given", sys.argv[1:], __name__, sys.path[0])
{end}
"""


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('sorry')", 1, "sorry\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_a_script_runs_as_python_would_run_it(
    end: str, code: int, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(end=end))
    files = [tmp_path / name for name in ("page.html", "t.json", "p.json")]
    options = ["--output", str(files[0]), "--json", str(files[1]), "--perfetto", str(files[2])]
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    assert main(["trace", *options, str(script), "--size", "3", "--json"]) == code
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    out, err = capfd.readouterr()
    assert out == f"given ['--size', '3', '--json'] __main__ {tmp_path}\n"
    assert says in err
    assert "script.py" not in err  # no frame of ours in a traceback
    assert "copies            1  (64 B)" in err  # in a thread that outlives the script's last line
    assert all(str(file) in err for file in files)
    document = json.loads(files[1].read_text())
    assert document["counts"]["copies"] == 1
    assert document["title"] == f"{script} --size 3 --json"
    assert f"{script}:" in next(e["where"] for e in document["events"] if e["kind"] == "copy")


def test_the_verdict_and_what_to_do_are_printed(
    driver: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"""import time
import penstock as ps
dev = ps.Device({driver!r})
double = dev.elementwise("y[i] = 2 * y[i]", "inout float32 y")
y = dev.ones(1 << 22)  # so that line 7 waits
double(y=y)
dev.synchronize()
time.sleep(0.5)
double(y=y)
"""
    )
    assert main(["trace", "-o", str(tmp_path / "page.html"), str(script)]) == 0
    err = capfd.readouterr().err
    assert err.startswith("device busy ")
    assert "your code between lines 7 and 9" in err
    assert "  advice: make the next launch, at line 9, before the code between lines 7 and 9" in err


def test_kernels_inside_graphs_are_timed_if_asked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """import penstock as ps
dev = ps.Device("llvmpipe")
double = dev.elementwise("y[i] = 2 * y[i]", "inout float32 y")
y = dev.ones(64)
with dev.record() as graph:
    double(y=y)
graph.replay().wait()
"""
    )
    kinds = []
    for options in ([], ["--kernels"]):
        file = tmp_path / "trace.json"
        command = ["trace", *options, "-o", str(tmp_path / "page.html"), "--json", str(file)]
        assert main([*command, str(script)]) == 0
        kinds.append({event["kind"] for event in json.loads(file.read_text())["events"]})
    assert "replayed" not in kinds[0]
    assert "replayed" in kinds[1]


def test_a_module_runs_with_its_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print(__name__, sys.argv[1:]); sys.exit(3)"
    (tmp_path / "some_program.py").write_text(code)
    command = [sys.executable, "-m", "penstock", "trace", "-m", "some_program", "-x"]
    source = str(Path(ps.__file__).parent.parent)
    run = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": source}, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout) == (3, "__main__ ['-x']\n"), run.stderr
    assert (tmp_path / "trace.html").exists()


def test_a_program_may_close_the_error_stream(tmp_path: Path) -> None:
    script = tmp_path / "closing.py"
    script.write_text("import sys\nsys.stderr.close()\n")
    run = subprocess.run(
        [sys.executable, "-m", "penstock", "trace", str(script)], cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0
    assert "penstock receipt of the whole program" in run.stderr
    assert (tmp_path / "trace.html").exists()


def test_lines_of_a_module_in_a_package_are_named(tmp_path: Path) -> None:
    """Also where the program prints a receipt of its own, which is of a part."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "other.py").write_text("def step(x):\n    x.write([1.0] * 16)\n")
    (package / "mod.py").write_text(
        "import penstock as ps\nfrom pkg.other import step\n"
        "with ps.Device(driver='sim', seed=1) as dev, ps.trace() as receipt:\n"
        "    x = dev.zeros(16, name='x')\n    x.write([2.0] * 16)\n    step(x)\nprint(receipt)\n"
    )
    command = [sys.executable, "-m", "penstock", "trace", "--json", "t.json", "-m", "pkg.mod"]
    environment = {**os.environ, "PYTHONPATH": str(Path(ps.__file__).parent.parent)}
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    document = json.loads((tmp_path / "t.json").read_text())
    lines = [event["where"] for event in document["events"] if event["kind"] == "copy"]
    assert lines == ["pkg/mod.py:5", "pkg/other.py:2"]
    assert all(f"at {line}\n" in run.stdout for line in lines)
    for said, title in ((run.stdout, "receipt"), (run.stderr, "receipt of the whole program")):
        assert re.search(
            rf"^penstock {title}, .*^  copies            2  \(128 B\)$", said, re.M | re.S
        )


def test_the_page_can_be_opened_and_broken_scripts_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    (tmp_path / "broken.py").write_text("x = (\n")
    page = tmp_path / "a page.html"
    assert main(["trace", "--open", "-o", str(page), str(tmp_path / "broken.py")]) == 1
    assert opened == [page.as_uri()]
    python = subprocess.run(
        [sys.executable, str(tmp_path / "broken.py")], capture_output=True, text=True
    )
    assert capfd.readouterr().err.startswith(python.stderr)


def test_mistakes_are_told_before_the_program_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "p.py"
    script.write_text("raise AssertionError")
    for words, says in (
        ([], "which program?"),
        (["no-such.py"], "there is no file 'no-such.py'"),
        (["--json", str(tmp_path / "no" / "t.json"), str(script)], "to write t.json to"),
        (["--json", str(tmp_path), str(script)], "is a folder; name a file in it"),
    ):
        assert main(["trace", "--output", str(tmp_path / "t.html"), *words]) == 2
        assert says in capfd.readouterr().err
    assert not (tmp_path / "t.html").exists()
