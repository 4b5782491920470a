"""A page of what was measured, in one file, and the plots in it as files of their own.

The page needs no network and follows the reader's choice of light or dark. Every table and plot
has the command that made it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any

from penstock.bench import forms, plots
from penstock.bench.mechanisms import document, pictures
from penstock.errors import InvalidValue

Row = dict[str, Any]

_TITLES = {
    "mechanisms": "What each mechanism is worth where its effect lies",
    "model": "Language models",
    "ablation": "Decoding without each mechanism",
    "runtime": "The runtime compared with bare driver calls",
}


def write(rows: Sequence[Row], directory: Path) -> Iterator[Path]:
    """Make the plots, then the page; each file as it is there."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for plot in (*pictures.plots_of(rows), *plots.plots_of(rows)):
        files = plots.save(plot, directory)
        yield from files.values()
        drawn.append((plot, files))
    page = directory / "index.html"
    page.write_text(_page(rows, drawn), encoding="utf-8")
    yield page


def write_docs(rows: Sequence[Row], file: Path) -> Iterator[Path]:
    """Replace the generated text of a page of the docs, and the plots that it shows."""
    own = [row for row in rows if row.get("benchmark") == "mechanisms"]
    if not own:
        raise InvalidValue("--docs takes rows of penstock bench mechanisms, and there are none")
    document.BLOCK.write(file, document.markdown(own))
    yield file
    images = file.parent / "images"
    images.mkdir(exist_ok=True)
    for plot in pictures.plots_of(own):
        yield plots.save(plot, images, themes=("light",))["light"]


def _page(rows: Sequence[Row], drawn: Sequence[tuple[plots.Plot, dict[str, Path]]]) -> str:
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    shown = "\n".join(_figure(plot, files) for plot, files in drawn)
    tables = "\n".join(
        _section(name, title, [row for row in rows if row.get("benchmark", "model") == name])
        for name, title in _TITLES.items()
    )
    return template.substitute(about=_about(rows), plots=shown, tables=tables)


def _about(rows: Sequence[Row]) -> str:
    """Where and how it was measured, once for everything that is the same."""
    facts = []
    for label, name in (
        ("Device", "gpu_info"), ("Driver", "driver_info"), ("CPU", "cpu_info"),
        ("System", "system"), ("Settings", "settings"), ("Commit", "build_commit"),
        ("Measured", "test_time"), ("Commands", "command"),
    ):  # fmt: skip
        values = dict.fromkeys(str(row[name]) for row in rows if row.get(name))
        if label == "Measured" and len(values) > 1:
            values = dict.fromkeys((f"{min(values)} to {max(values)}",))
        text = "<br>".join(html.escape(value) for value in values)
        if text:
            facts.append(f"<tr><th>{label}</th><td>{text}</td></tr>")
    return "\n".join(facts)


def _figure(plot: plots.Plot, files: dict[str, Path]) -> str:
    images = "".join(
        f'<img class="{theme}" alt="{html.escape(plot.title)}" src="data:image/png;base64,'
        f'{base64.b64encode(file.read_bytes()).decode()}">'
        for theme, file in files.items()
    )
    return f"<figure><figcaption>{html.escape(plot.title)}</figcaption>{images}</figure>"


def _section(name: str, title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    if name == "mechanisms":
        return _mechanisms(title, rows)
    columns = {
        "model": forms.model_columns(["n_batch", "gpu_info"]),
        "ablation": forms.ablation_columns(),
        "runtime": forms.runtime_columns(),
    }[name]
    parts = [f"<h2>{html.escape(title)}</h2>"]
    for where in dict.fromkeys((row["gpu_info"], row.get("model_type")) for row in rows):
        those = [row for row in rows if (row["gpu_info"], row.get("model_type")) == where]
        if name != "model":
            parts.append(f"<h3>{html.escape(' · '.join(filter(None, where)))}</h3>")
        parts.append(_table(those, columns))
    return "\n".join(parts)


def _mechanisms(title: str, rows: Sequence[Row]) -> str:
    parts = [f"<h2>{html.escape(title)}</h2>"]
    for device in dict.fromkeys(row["gpu_info"] for row in rows):
        for each in document.sections([row for row in rows if row["gpu_info"] == device]):
            parts += [
                f"<h3>{html.escape(f'{each.title} · {device}')}</h3>",
                f"<p>On: {html.escape(each.on)}. Off: {html.escape(each.off)}.</p>",
                _table(each.rows, document.columns()),
                f"<p>{html.escape(' '.join(filter(None, (each.finding, each.why))))}</p>",
                f"<p>Arithmetic, not measured: {html.escape(each.elsewhere)}</p>",
            ]
    return "\n".join(parts)


def _table(rows: Sequence[Row], columns: Sequence[forms.Column]) -> str:
    head = "".join(f"<th>{html.escape(title)}</th>" for title, _ in columns)
    lines = []
    for row in rows:
        cells = [shown(row) for _, shown in columns]
        lines.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'
