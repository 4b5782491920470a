"""The page: one self-contained HTML file, assembled from the parts in `assets`.

Text from the user's program (names, lines, reasons) is embedded as JSON and inserted into the page
as text, never as markup. The page's content security policy allows only the embedded scripts and
styles, by their hashes, and no network access.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable
from importlib import resources
from typing import Any

from penstock.tracing.document import as_document, dumped
from penstock.tracing.receipt import Trace

_SCRIPTS = (
    "words.js", "data.js", "view.js", "draw.js", "lanes.js", "arrows.js", "axis.js", "find.js",
    "table.js", "details.js", "summary.js", "main.js",
)  # fmt: skip
_HEIGHT = 600  # pixels of a notebook that it takes
_PROOF = 6  # events that the page shows as proof of a gap's cause


def as_html(trace: Trace, title: str = "") -> str:
    """The page for a trace."""
    document = as_document(trace, title)
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "\n})();\n"
    data = dumped(_packed(document))
    parts = {
        "title": html.escape(title or "Penstock trace"),
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        "style": style,
        "script": script,
        # "</script>" in a name must not close the script element, nor "<!--" open a comment.
        "data": data.replace("<", "\\u003c"),
    }
    first, *rest = _asset("page.html").split("{{")
    # A single pass: text that was inserted is not searched for placeholders again.
    return first + "".join(parts[name] + text for name, text in (p.split("}}", 1) for p in rest))


def as_frame(trace: Trace) -> str:
    """The page as an element of another page, such as a notebook, whose content it cannot touch."""
    page = html.escape(as_html(trace), quote=True)
    return (
        '<iframe title="Penstock trace" sandbox="allow-scripts" loading="lazy" '
        f'style="width: 100%; height: {_HEIGHT}px; border: 0" srcdoc="{page}"></iframe>'
    )


def _asset(name: str) -> str:
    return resources.files("penstock.tracing").joinpath("assets", name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _packed(document: dict[str, Any]) -> dict[str, Any]:
    """Store events and gaps as columns and each distinct text once: a quarter of the size."""
    events, gaps = document["events"], document["gaps"]
    texts: dict[str, int] = {"": 0}

    def texts_of(values: Iterable[str]) -> list[int]:
        return [texts.setdefault(value, len(texts)) for value in values]

    columns = {
        name: texts_of(event.get(name, "") for event in events)
        for name in ("kind", "reason", "buffer", "path", "where")
    }
    for name in ("start", "seconds"):  # integer nanoseconds take fewer characters
        columns[name] = [round(event.get(name, 0.0) * 1e9) for event in events]
    for name in ("nbytes", "lo", "hi", "submission", "command", "thread"):
        columns[name] = [event.get(name, 0) for event in events]
    columns["stream"] = [event.get("stream", -1) for event in events]
    causes = {each["cause"]: number for number, each in enumerate(document["causes"])}
    devices = {each["name"]: number for number, each in enumerate(document["devices"])}

    def blamed(things: list[dict[str, Any]]) -> dict[str, list[int]]:
        return {
            "cause": [causes[thing["cause"]] for thing in things],
            "seconds": [round(thing["seconds"] * 1e9) for thing in things],
            "lines": texts_of("\n".join(thing["lines"]) for thing in things),
            "detail": texts_of(thing.get("detail", "") for thing in things),
        }

    return {
        **{name: value for name, value in document.items() if name not in ("events", "gaps")},
        "columns": columns,
        "gaps": {  # `advice` has a bit for each piece of advice that is about the gap
            **blamed(gaps),
            "start": [round(gap["start"] * 1e9) for gap in gaps],
            "device": [devices[gap["device"]] for gap in gaps],
            **{name: [gap[name] for gap in gaps] for name in ("stream", "before", "after")},
            "advice": [sum(1 << n for n in gap.get("advice", ())) for gap in gaps],
            "parts": [len(gap["parts"]) for gap in gaps],
        },
        # Parts follow each other from the start of their gap.
        "parts": blamed([part for gap in gaps for part in gap["parts"]]),
        "proof": {n: gap["proof"][:_PROOF] for n, gap in enumerate(gaps) if "proof" in gap},
        "awaited": {n: event["awaited"] for n, event in enumerate(events) if "awaited" in event},
        "device": {
            n: [round(event[name] * 1e9) for name in ("device_start", "device_seconds")]
            for n, event in enumerate(events)
            if "device_start" in event
        },
        "texts": list(texts),
    }
