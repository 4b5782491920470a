"""A page of what was measured, in one file, and the plots in it as files of their own.

The page needs no network and follows the reader's choice of light or dark. Every table and plot
has the command that made it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from penstock.bench import forms, plots
from penstock.bench.mechanisms import document, pictures
from penstock.errors import InvalidValue

Row = dict[str, Any]
Drawn = list[tuple[plots.Plot, list[dict[str, Path]]]]  # with the files of each panel

_TITLES = {
    "model": "Language models",
    "ablation": "Decoding without each mechanism",
    "runtime": "The runtime compared with bare driver calls",
}
_LONG = 32  # characters of a cell from which on it takes several lines


def write(rows: Sequence[Row], directory: Path) -> Iterator[Path]:
    """Make the plots, then the page; each file as it is there."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn: Drawn = []
    for plot in (*_plots_of_mechanisms(rows), *plots.plots_of(rows)):
        panels = plots.save(plot, directory)
        for files in panels:
            yield from files.values()
        drawn.append((plot, panels))
    page = directory / "index.html"
    page.write_text(_page(rows, drawn), encoding="utf-8")
    yield page


def _plots_of_mechanisms(rows: Sequence[Row]) -> Iterator[plots.Plot]:
    for number, own in enumerate(_by_device(rows, "mechanisms")):
        for plot in pictures.plots_of(own):
            yield replace(plot, name=_numbered(plot.name, number))


def _by_device(rows: Sequence[Row], benchmark: str) -> list[list[Row]]:
    those = [row for row in rows if row.get("benchmark", "model") == benchmark]
    devices = dict.fromkeys(row["gpu_info"] for row in those)
    return [[row for row in those if row["gpu_info"] == device] for device in devices]


def _numbered(name: str, number: int) -> str:
    return f"{name}-{number + 1}" if number else name


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
        for files in plots.save(plot, images, themes=("light",)):
            yield files["light"]


def _page(rows: Sequence[Row], drawn: Drawn) -> str:
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    parts = [_mechanisms(rows, drawn)]
    for name, title in _TITLES.items():
        those = [row for row in rows if row.get("benchmark", "model") == name]
        parts.append(_section(name, title, those, drawn))
    return template.substitute(about=_about(rows), sections="\n".join(filter(None, parts)))


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


def _figures(benchmark: str, drawn: Drawn) -> list[str]:
    return [
        f"<figure><figcaption>{html.escape(plot.title)}</figcaption>{_panels(plot, panels)}"
        "</figure>"
        for plot, panels in drawn
        if plot.benchmark == benchmark
    ]


def _panels(plot: plots.Plot, made: Sequence[dict[str, Path]]) -> str:
    images = "".join(
        f'<img class="{theme}" alt="{html.escape(panel.label)}" '
        f'style="max-width: {panel.size[0] * plots.DPI:.0f}px" src="data:image/png;base64,'
        f'{base64.b64encode(file.read_bytes()).decode()}">'
        for panel, files in zip(plot.panels, made, strict=True)
        for theme, file in files.items()
    )
    return f'<div class="panels">{images}</div>'


def _section(name: str, title: str, rows: Sequence[Row], drawn: Drawn) -> str:
    if not rows:
        return ""
    columns = {
        "model": forms.model_columns(["n_batch", "gpu_info"]),
        "ablation": forms.ablation_columns(),
        "runtime": forms.runtime_columns(),
    }[name]
    parts = [f"<h2>{html.escape(title)}</h2>", *_figures(name, drawn)]
    for where in dict.fromkeys((row["gpu_info"], row.get("model_type")) for row in rows):
        those = [row for row in rows if (row["gpu_info"], row.get("model_type")) == where]
        if name != "model":
            parts.append(f"<h3>{html.escape(' · '.join(filter(None, where)))}</h3>")
        parts.append(_table(those, columns))
    return "\n".join(parts)


def _mechanisms(rows: Sequence[Row], drawn: Drawn) -> str:
    """The message of each plot is the title of its section."""
    parts = []
    panels = {plot.name: _panels(plot, made) for plot, made in drawn}
    titles = {plot.name: html.escape(plot.title) for plot, _ in drawn}
    for number, own in enumerate(_by_device(rows, "mechanisms")):
        name = _numbered("mechanisms", number)
        parts += [f"<h2>{titles[name]}</h2>", panels[name]]
        for each in document.sections(own):
            name = _numbered(document.plot_name(each.name), number)
            parts += [
                f"<h3>{titles[name]}</h3>",
                f"<p>On: {html.escape(each.on)}. Off: {html.escape(each.off)}.</p>",
                panels[name],
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
        lines.append("".join(map(_cell, cells)))
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _cell(text: str) -> str:
    long = ' class="long"' if len(text) > _LONG else ""
    return f"<td{long}>{html.escape(text)}</td>"
