"""Idle time where people look: the page in a real browser, JSON, and Perfetto."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.driver.sim import virtual_time
from penstock.tracing.document import as_document
from penstock.tracing.gaps import Cause
from penstock.tracing.verdict import largest_causes
from tests.conftest import simulated
from tests.kernels import SLOW_ADD, kernel
from tests.tracing.browser import Browser
from tests.tracing.test_trace_page import strict_json


@pytest.fixture(scope="module")
def idle() -> ps.Trace:
    """A program in virtual time with gaps of several causes, two streams and a graph."""
    with simulated(1) as dev, virtual_time(dev.scheduler.driver) as clock:  # type: ignore[arg-type]
        work = kernel(dev, SLOW_ADD, "work")
        x, y = (dev.zeros(64, np.uint32, name=name) for name in "xy")
        args: dict[str, Any] = {"n": 64, "spin": 0, "add": 1, "threads": 64}
        with dev.record() as graph:
            work(x=y, **args)
            work(x=x, **args)
        with dev.stream(name="side") as side, ps.trace(kernels=True) as t:
            for step in range(6):
                work(x=x, **args)
                clock.sleep(2.0**-9)
                if step % 2:
                    x.numpy()
                work(x=y, **args, stream=side)
                side.flush()
            graph.replay()
            dev.synchronize()
            clock.sleep(2.0**-10)
            work(x=x, **args)
            dev.synchronize()
        t.wait_for_times()
    assert len({gap.cause for gap in t.gaps}) > 1
    assert t.advice
    return t


@pytest.fixture
def page(browser: Browser, idle: ps.Trace, tmp_path: Path) -> Iterator[Browser]:
    """The page of the trace, open. It must neither complain nor ask the network."""
    idle.save_html(tmp_path / "trace.html", "idle.py")
    browser.open(tmp_path / "trace.html")
    yield browser
    assert not browser.complaints


def words_of(page: Browser, selector: str) -> str:
    found: str = page.ask(f"document.querySelector('{selector}').innerText")
    return found


# JSON.


def test_json_has_every_gap_and_what_is_known_of_it(idle: ps.Trace) -> None:
    document = as_document(idle)
    assert document["version"] == 1  # fields were added, none has changed
    assert document["verdict"] == idle.verdict
    events = idle.events
    for entry, gap in zip(document["gaps"], idle.gaps, strict=True):
        assert entry["cause"] == gap.cause.value
        assert entry["seconds"] == gap.seconds
        assert entry["start"] == pytest.approx(gap.start - idle.started, abs=1e-9)
        assert tuple(entry["lines"]) == tuple(
            str(Path(line)).removeprefix(f"{Path.cwd()}/") for line in gap.lines
        )
        assert events[entry["before"]] == gap.before
        assert events[entry["after"]] == gap.after
        assert document["streams"][entry["stream"]]["name"] == gap.stream
        assert entry.get("detail", "") == gap.detail
        assert [events[n] for n in entry.get("proof", ())] == list(gap.proof)
        for inner, part in zip(entry["parts"], gap.parts, strict=True):
            assert (inner["cause"], inner["seconds"]) == (part.cause.value, part.seconds)
            assert [events[n] for n in inner.get("proof", ())] == list(part.proof)
        told = [document["advice"][n]["sentence"] for n in entry.get("advice", ())]
        assert told == [each.sentence for each in idle.advice if gap in each.gaps]


def test_the_equation_holds_in_json(idle: ps.Trace) -> None:
    document = json.loads(json.dumps(as_document(idle)))
    (device,) = document["devices"]
    assert device["clock"] == idle.clocks[device["name"]]._asdict()
    assert device["busy"] + sum(gap["seconds"] for gap in document["gaps"]) == device["span"]
    assert (device["span"], device["busy"], device["idle"]) == (idle.span, idle.busy, idle.idle)
    for gap in document["gaps"]:
        assert sum(part["seconds"] for part in gap["parts"]) == gap["seconds"]
    begun = min(e.device_start for e in idle.events if e.command and e.device_start is not None)
    assert device["start"] == pytest.approx(begun - idle.started, abs=1e-9)
    causes = [(each["cause"], each["largest"]) for each in document["causes"]]
    assert causes == [(cause.value, words) for cause, words in largest_causes(idle.use)]
    assert sum(each["seconds"] for each in document["causes"]) == idle.idle
    assert document["kernels"] == [each._asdict() for each in idle.kernels]
    cost = idle.cost
    assert document["cost"] == {
        **cost._asdict(),
        "host_seconds": cost.host_seconds,
        "device_seconds": cost.device_seconds,
        "sentence": str(cost),
    }


def test_json_without_device_times_says_so(tmp_path: Path) -> None:
    with ps.Device(driver="sim", seed=1) as dev, ps.trace(times=False) as t:
        dev.zeros(64, name="x").fill(1)
        dev.synchronize()
    t.save_json(tmp_path / "t.json")
    document = strict_json((tmp_path / "t.json").read_text())
    assert document["verdict"] == t.verdict
    assert "times=False" in document["verdict"]
    assert (document["span"], document["gaps"]) == (None, [])
    assert not any("span" in device for device in document["devices"])


# Perfetto.


def test_perfetto_gets_gaps_commands_and_flows(idle: ps.Trace, tmp_path: Path) -> None:
    idle.save_perfetto(tmp_path / "p.json")
    entries = strict_json((tmp_path / "p.json").read_text())["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in entries if e["name"] == "thread_name"}
    slices = [e for e in entries if e["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in slices} <= named
    gaps = [e for e in slices if e["cat"] == "gap"]
    assert [e["name"] for e in gaps] == [gap.cause.value for gap in idle.gaps]
    assert [e["ts"] for e in gaps] == pytest.approx(
        [1e6 * (gap.start - idle.started) for gap in idle.gaps], abs=2e-3
    )
    assert gaps[0]["args"]["why"] == idle.gaps[0].cause.text
    # Slices of one track do not overlap, but for the parts of a gap, which are within it.
    for category in ("gap", "part", "device"):
        ends: dict[Any, float] = {}
        for each in sorted((e for e in slices if e["cat"] == category), key=lambda e: e["ts"]):
            track = (each["pid"], each["tid"])
            assert each["ts"] >= ends.get(track, 0.0) - 1e-6
            ends[track] = each["ts"] + each["dur"]
    for each in (e for e in slices if e["cat"] == "part"):
        assert any(
            gap["ts"] <= each["ts"] and each["ts"] + each["dur"] <= gap["ts"] + gap["dur"] + 1e-6
            for gap in gaps
        )
    # A flow from each call to what the device ran for it, from slice to slice.
    timed = [e for e in idle.events if e.device_start is not None and e.seconds]
    starts = {e["id"]: e for e in entries if e["ph"] == "s" and e["cat"] == "issue"}
    finishes = {e["id"]: e for e in entries if e["ph"] == "f" and e["cat"] == "issue"}
    assert len(starts) == len(timed)
    assert set(starts) == set(finishes)

    def at(flow: Any) -> list[Any]:
        place = (flow["pid"], flow["tid"], flow["ts"])
        return [e for e in slices if (e["pid"], e["tid"], e["ts"]) == place]

    for number, start in starts.items():
        (ran,) = at(finishes[number])
        assert ran["cat"] == "device"
        assert ran["name"] in [call["args"]["reason"] for call in at(start)]


# The page.


def test_the_verdict_comes_first_with_causes_and_advice(page: Browser, idle: ps.Trace) -> None:
    title = words_of(page, "#verdict h2")
    assert title.lower() == f"{idle.verdict}.".lower()
    lines = page.ask("[...document.querySelectorAll('#causes .cause')].map(b => b.innerText)")
    for line, (_, words) in zip(lines, largest_causes(idle.use)[:3], strict=True):
        assert words in line
    told = words_of(page, "#verdict").lower()
    for advice in idle.advice:
        assert advice.sentence.replace("`", "").lower() in told
    assert "virtual time" in told
    assert page.ask(
        "document.querySelector('#verdict').compareDocumentPosition("
        "document.querySelector('#timeline')) === Node.DOCUMENT_POSITION_FOLLOWING"
    )


def test_a_cause_leads_to_its_longest_gap(page: Browser, idle: ps.Trace) -> None:
    page.ask("document.querySelector('#causes .cause').click()")
    (cause, _), *_ = largest_causes(idle.use)
    longest = max((gap for gap in idle.gaps if gap.cause is cause), key=lambda gap: gap.seconds)
    assert idle.gaps[page.ask("penstock.state().selected.gap")].seconds == longest.seconds


def test_g_goes_from_gap_to_gap_and_tells_all(page: Browser, idle: ps.Trace) -> None:
    seen = []
    for _ in idle.gaps:
        page.key("g")
        seen.append(page.ask("penstock.state().selected.gap"))
    assert seen == list(range(len(idle.gaps)))
    page.key("G")
    page.key("G")
    number = page.ask("penstock.state().selected.gap")
    assert number == len(idle.gaps) - 3
    gap = idle.gaps[number]
    details = words_of(page, "#details")
    assert gap.cause.text.lower() in details.lower()
    for line in gap.lines:
        assert Path(line).name in details
    assert gap.before.reason in details
    assert gap.after.reason in details
    assert f"{number + 1} of {len(idle.gaps)}" in details
    parts = page.ask("document.querySelectorAll('#details .part').length")
    assert parts == len(gap.parts)
    assert gap.cause.text in page.ask("document.getElementById('status').textContent")
    page.ask("[...document.querySelectorAll('#details .go')][0].click()")  # to what ran before
    event = page.ask("penstock.state().selected.event")
    assert idle.events[event] == gap.before


def test_a_gap_is_on_the_lane_and_can_be_clicked(page: Browser, idle: ps.Trace) -> None:
    longest = max(range(len(idle.gaps)), key=lambda number: idle.gaps[number].seconds)
    x, y = page.ask(
        f"(() => {{ const g = penstock.gap, row = penstock.layout()[0];"
        " const b = document.getElementById('chart').getBoundingClientRect();"
        f" return [b.x + penstock.pixel((g.start[{longest}] + g.end[{longest}]) / 2),"
        " b.y + row.barY + 8]; })()"
    )
    assert page.ask("penstock.layout()[0].type") == "device"
    page.click(x, y)
    assert page.ask("penstock.state().selected") == {"gap": longest}
    assert idle.gaps[longest].cause.text in page.ask("document.getElementById('tip').textContent")
    colour = (
        "(() => { const c = document.getElementById('chart'), s = devicePixelRatio;"
        f" const at = penstock.pixel(penstock.gap.start[{longest}]) + 6;"
        " return [...c.getContext('2d').getImageData(at * s,"
        " (penstock.layout()[0].barY + 1) * s, 16, 1).data]; })()"
    )
    page.key("Escape")
    page.ask("penstock.drawNow()")
    coloured = page.ask(colour)
    cause = idle.gaps[longest].cause.value
    page.ask(f"document.querySelector('[data-legend={cause}]').click()")
    assert page.ask("penstock.state().hiddenCauses") == [cause]
    assert page.ask(f"document.querySelector('[data-legend={cause}]').ariaPressed") == "false"
    page.ask("penstock.drawNow()")
    assert page.ask(colour) != coloured
    page.click(x, y)
    assert page.ask("penstock.state().selected?.gap ?? -1") != longest
    page.key("g")  # only gaps that are shown
    shown = page.ask("penstock.state().selected.gap")
    assert idle.gaps[shown].cause.value != cause


def test_search_finds_gaps_by_cause(page: Browser, idle: ps.Trace) -> None:
    cause = idle.gaps[0].cause
    expected = [n for n, gap in enumerate(idle.gaps) if gap.cause is cause]
    page.key("/")
    page.type(f"gap {cause.value.upper()}")
    assert page.ask("document.getElementById('found').textContent") == f"{len(expected)} found"
    page.key("Enter")
    assert page.ask("penstock.state().selected.gap") == expected[0]
    page.key("Escape")


def test_arrows_lead_from_a_call_to_what_ran(page: Browser, idle: ps.Trace) -> None:
    events = idle.events
    launches = [n for n, e in enumerate(events) if e.kind == "launch"]
    assert page.ask(f"penstock.ranFor({{event: {launches[0]}}})") == launches[:1]
    submission = next(n for n, e in enumerate(events) if e.kind == "submission")
    ran = page.ask(f"penstock.ranFor({{event: {submission}}})")
    assert ran == [
        n for n in launches
        if (events[n].stream_id, events[n].submission)
        == (events[submission].stream_id, events[submission].submission)
    ]  # fmt: skip
    assert page.ask("penstock.ranFor({gap: 0})") == [
        events.index(idle.gaps[0].before), events.index(idle.gaps[0].after)
    ]  # fmt: skip
    assert page.ask("penstock.ranFor(null)") == []  # none without a selection
    # The tip of the arrow is above the command, in the colour of launches.
    tip = (
        f"(() => {{ const [start] = penstock.trace.device[{launches[0]}];"
        " const row = penstock.layout().find((r) => r.name === 'default stream');"
        " return [...document.getElementById('chart').getContext('2d').getImageData("
        " penstock.pixel(start) * devicePixelRatio, (row.deviceY - 6) * devicePixelRatio,"
        " 1, 1).data].slice(0, 3); })()"
    )
    begun = page.ask(f"penstock.trace.device[{launches[0]}][0]")
    page.ask(f"penstock.show({begun - 1e5}, {begun + 1e5}); penstock.drawNow()")
    plain = page.ask(tip)
    page.ask(f"penstock.select({{event: {launches[0]}}}); penstock.drawNow()")
    style = "getComputedStyle(document.documentElement).getPropertyValue('--launch')"
    colour = page.ask(style).strip()
    assert page.ask(tip) == [int(colour[at : at + 2], 16) for at in (1, 3, 5)] != plain


def test_the_page_has_the_times_of_gaps_and_parts(page: Browser, idle: ps.Trace) -> None:
    def ns(things: Any) -> list[tuple[float, float]]:
        return [(1e9 * (each.start - idle.started), 1e9 * each.seconds) for each in things]

    def shown(name: str) -> Any:
        found = page.ask(f"[[...penstock.{name}.start], [...penstock.{name}.seconds]]")
        return list(zip(*found, strict=True))

    for name, things in (
        ("gap", idle.gaps),
        ("part", [part for gap in idle.gaps for part in gap.parts]),
    ):
        assert np.asarray(shown(name)) == pytest.approx(np.asarray(ns(things)), abs=20)


def test_kernels_are_listed_and_found(page: Browser, idle: ps.Trace) -> None:
    rows = page.ask(
        "[...document.querySelectorAll('#kernels tbody tr')].map(r =>"
        " [...r.cells].map(c => c.innerText))"
    )
    assert [(row[0], int(row[1])) for row in rows] == [(k.name, k.launches) for k in idle.kernels]
    assert "replayed" in {e.kind for e in idle.events}  # and these are counted, too
    page.ask("document.querySelector('#kernels tbody button').click()")
    found = int(page.ask("document.getElementById('found').textContent").split()[0])
    assert found >= idle.kernels[0].launches


def test_a_page_without_device_times_says_so(browser: Browser, tmp_path: Path) -> None:
    with ps.Device(driver="sim", seed=1) as dev, ps.trace(times=False) as t:
        dev.zeros(64, name="x").fill(1)
        dev.synchronize()
    t.save_html(tmp_path / "t.html")
    browser.open(tmp_path / "t.html")
    assert "times=False" in words_of(browser, "#verdict h2")
    assert browser.ask("document.getElementById('legend').hidden")
    assert browser.ask("document.getElementById('kernels-section').hidden")
    assert "device" not in browser.ask("penstock.layout().map(r => r.type)")
    assert not browser.complaints


# The colours.

#: Linear RGB as people see it who lack one kind of cone (Machado, Oliveira and Fernandes, 2009).
VISION = np.reshape(
    [
        1, 0, 0, 0, 1, 0, 0, 0, 1,
        0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998,
        0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881,
        1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900,
    ],
    (4, 3, 3),
)  # fmt: skip
#: From linear RGB to cones, and from their cube roots to Oklab, in which distances are perceived.
CONES = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
OKLAB = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]


def linear(colour: str) -> Any:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def seen(colour: str, vision: Any) -> Any:
    light = np.clip(vision @ linear(colour), 0, 1)
    return np.asarray(OKLAB) @ np.cbrt(np.asarray(CONES) @ light)


def contrast(one: str, other: str) -> float:
    dark, light = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (light + 0.05) / (dark + 0.05)


def palette(theme: str) -> tuple[dict[str, str], str]:
    """The colours of a theme by name, and the text that names kinds and causes."""
    assets = resources.files("penstock.tracing").joinpath("assets")
    style, words = (assets.joinpath(name).read_text() for name in ("page.css", "words.js"))
    block = style.split("}")[theme == "dark"]
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block)), words


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_kinds_can_be_told_apart_without_all_colours(theme: str) -> None:
    """Less clearly than causes: a label, a row and a table name them, too."""
    colours, words = palette(theme)
    kinds = {*re.findall(r'\["(\w+)", "', words), "other"} & colours.keys() - {"replayed"}
    assert len(kinds) == 12
    for one, other in itertools.combinations(sorted(kinds), 2):
        for vision in VISION:
            apart = seen(colours[one], vision) - seen(colours[other], vision)
            assert np.linalg.norm(apart) > 0.05, (one, other)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_causes_can_be_told_apart_without_all_colours(theme: str) -> None:
    colours, words = palette(theme)
    groups = [
        re.findall(r"(\w+): \"", re.search(rf"const {name} = {{(.*?)}}", words, re.S)[1])  # type: ignore[index]
        for name in ("CAUSES", "HATCHED")
    ]
    assert sorted(groups[0] + groups[1]) == sorted(cause.value for cause in Cause)
    for group in groups:
        shown = [colours["busy"], *(colours[f"cause-{name}"] for name in group)]
        for one, other in itertools.combinations(shown, 2):
            for vision in VISION:
                assert np.linalg.norm(seen(one, vision) - seen(other, vision)) > 0.1, (one, other)
        assert all(contrast(colour, colours["panel"]) > 2.2 for colour in shown[1:])
