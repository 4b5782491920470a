"""Rows as a table on the terminal, and as the sections of the page and of the docs.

docs/performance-tables.md holds one generated block, `BLOCK`. A test compares it with the rows it
was made from.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from penstock.bench import forms, plots
from penstock.bench.generated_block import GeneratedBlock
from penstock.bench.mechanisms.comparison import Row
from penstock.bench.mechanisms.findings import (
    duration,
    effect,
    figure,
    finding,
    headline,
    largest,
    pair,
    size,
    summary,
    times,
    within,
)
from penstock.bench.mechanisms.findings import each as each_of
from penstock.bench.mechanisms.measuring import MECHANISMS
from penstock.llm.costs import COUNTS

BLOCK = GeneratedBlock("penstock bench report --docs", "mechanisms")
_EFFECTS = {"gain": "faster", "loss": "slower", "none": "none shown", "unclear": "cannot be told"}


class Section(NamedTuple):
    """A mechanism with its rows."""

    name: str
    title: str
    on: str
    off: str
    rows: list[Row]
    finding: str
    why: str  # of cases without an effect; empty if there are none
    elsewhere: str
    headline: str


def sections(rows: Sequence[Row]) -> list[Section]:
    """The mechanisms that were measured, in their order."""
    found = []
    for name, each in MECHANISMS.items():
        own = [row for row in rows if row["group"] == name]
        if own:
            why = each.why if any(effect(row) == "none" for row in own) else ""
            found.append(
                Section(
                    name, each.title, each.on, each.off, own, finding(own), why,
                    each.elsewhere(own), headline(each.title, own),
                )
            )  # fmt: skip
    return found


def plot_name(mechanism: str) -> str:
    """How the files of a mechanism's plot begin."""
    return f"mechanism-{mechanism}"


def panel_labels(rows: Sequence[Row]) -> list[str]:
    """What the panels of a mechanism's plot show: the time, then the figures beside it."""
    units = " or ".join(dict.fromkeys(each_of(row["unit"]) for row in rows))
    rates = {one["what"] for row in rows for one in row["figures"] if one["unit"] == "/s"}
    return [
        f"time of {units}",
        *(f"{what} per second" if what in rates else what for what in figures_shown(rows)),
    ]


def figures_shown(rows: Sequence[Row]) -> list[str]:
    """The figures beside the time that get a panel of their own."""
    return list(dict.fromkeys(one["what"] for row in rows for one in row["figures"]))[:2]


def columns() -> list[forms.Column]:
    """The columns of one mechanism's table."""
    return [
        ("case", lambda row: str(row["test"])),
        ("time of", lambda row: str(row["unit"])),
        ("on", lambda row: duration(row["median_ns"])),
        ("off", lambda row: duration(row["off_median_ns"])),
        ("off ÷ on", lambda row: times(row["ratio"])),
        ("95 % within", within),
        ("on with itself", lambda row: within(row, "noise")),
        ("effect of on", lambda row: _EFFECTS[effect(row)]),
        ("device idle", lambda row: pair(duration(row["idle_ns"]), duration(row["off_idle_ns"]))),
        ("counts that differ", _counts),
        ("also", _figures),
    ]


def all_columns() -> list[forms.Column]:
    """The same, for a table of several mechanisms."""
    return [("mechanism", lambda row: str(row["group"])), *columns()]


def _counts(row: Row) -> str:
    found = []
    for name in COUNTS:
        on, off = row[name], row[f"off_{name}"]
        if abs(off - on) > 0.005 * max(on, off):
            shown = (size(on), size(off)) if name == "bytes_copied" else (_count(on), _count(off))
            if shown[0] != shown[1]:
                found.append(f"{name.replace('_', ' ')} {shown[0]} → {shown[1]}")
    return ", ".join(found) or "–"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


def _figures(row: Row) -> str:
    shown = (
        f"{one['what']} {figure(one['on'], one['unit'])} → {figure(one['off'], one['unit'])}"
        for one in row["figures"]
    )
    return "; ".join(shown) or "–"


# Markdown.


def markdown(rows: Sequence[Row]) -> str:
    """The block of docs/performance-tables.md, without the comments around it."""
    found = sections(rows)
    about = rows[0]
    loads = sorted(row["load"] for row in rows)
    command = re.sub(r" --docs \S+| --no-report", "", about["command"])  # where its text goes
    lines = [
        "```sh", command, "```", "",
        *summary_table(rows), "",
        f"`{about['gpu_info']}`, {about['driver_info']}; {about['cpu_info']}, "
        f"{about['cpu_count']} cores, load {loads[0]} to {loads[-1]}; {about['settings']}; commit "
        f"{about['build_commit']}; {about['test_time']}", "",
        *titled(summary([each.rows for each in found]), "images/mechanisms.png"),
    ]  # fmt: skip
    for each in found:
        lines += ["", f"### {_upper(each.title)}", "", *_section(each)]
    return "\n".join(lines)


def summary_table(rows: Sequence[Row]) -> list[str]:
    """A line for each mechanism: the case in which it has the largest effect."""
    lines = [
        "| mechanism | largest effect | off ÷ on | 95 % within | shown in |",
        "|---|---|--:|--:|--:|",
    ]
    for each in sections(rows):
        row = largest(each.rows)
        shown = sum(effect(one) == "gain" for one in each.rows)
        lines.append(
            f"| {each.title} | {row['test']} | {times(row['ratio'])} | {within(row)} "
            f"| {shown} of {len(each.rows)} cases |"
        )
    return lines


def _section(each: Section) -> list[str]:
    shown = columns()
    labels = panel_labels(each.rows)
    pictures = zip(labels, plots.file_names(plot_name(each.name), labels), strict=True)
    right = {"on", "off", "off ÷ on", "95 % within", "on with itself"}
    return [
        f"On: {each.on}. Off: {each.off}.",
        "",
        f"| {' | '.join(title for title, _ in shown)} |",
        f"|{'|'.join('--:' if title in right else '---' for title, _ in shown)}|",
        *(f"| {' | '.join(cell(row) for _, cell in shown)} |" for row in each.rows),
        "",
        " ".join(filter(None, (each.finding, each.why))),
        "",
        f"*Arithmetic, not measured:* {each.elsewhere}",
        "",
        f"**{each.headline}**",
        "",
        *(f"![{each.title}: {label}](images/{file})" for label, file in pictures),
    ]


def titled(message: str, image: str) -> list[str]:
    """A picture below its message: a picture itself has no title."""
    return [f"**{message}**", "", f"![{message}]({image})"]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
