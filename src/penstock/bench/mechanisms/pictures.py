"""Plots of mechanisms: off ÷ on of all, and on and off of each case. Titles state the message."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.bench.mechanisms.comparison import Row
from penstock.bench.mechanisms.document import (
    Section,
    figures_shown,
    panel_labels,
    plot_name,
    sections,
)
from penstock.bench.mechanisms.findings import effect, has_interval, summary
from penstock.bench.mechanisms.findings import figure as shown
from penstock.bench.plots import COLOURS, WIDTH, Panel, Plot


def plots_of(rows: Sequence[Row]) -> list[Plot]:
    """The plot of all mechanisms, then one of each, from the rows of one device."""
    found = sections([row for row in rows if row.get("benchmark") == "mechanisms"])
    if not found:
        return []
    title = summary([each.rows for each in found])
    lines = sum(1 + len(each.rows) for each in found)
    every = Panel(title, partial(_ratios, found), (5.0, 0.3 * lines + 0.9))
    return [
        Plot("mechanisms", "mechanisms", title, [every]),
        *(Plot(plot_name(each.name), "mechanisms", each.headline, _panels(each)) for each in found),
    ]


def _ratios(found: Sequence[Section], axes: Any, ink: str) -> None:
    labels: list[str] = []
    for each in found:
        labels.append(each.title)
        for row in each.rows:
            value, number = row["ratio"], len(labels)
            reach = None
            if has_interval(row):
                reach = [[value - row["ratio_low"]], [row["ratio_high"] - value]]
            colour = {
                "gain": COLOURS[0],
                "loss": COLOURS[3],
                "none": COLOURS[6],
                "unclear": COLOURS[6],
            }[effect(row)]
            axes.errorbar(value, number, xerr=reach, fmt="o", color=colour, capsize=3, markersize=4)
            labels.append(_wrapped(row["test"], 30))
    axes.axvline(1, color=ink, linewidth=1)
    axes.set_yticks(range(len(labels)), labels, fontsize=9, linespacing=0.9)
    titles = {each.title for each in found}
    for tick, label in zip(axes.yaxis.get_major_ticks(), labels, strict=True):
        if label in titles:
            tick.label1.set_fontweight("bold")
            tick.tick1line.set_visible(False)
    axes.set_ylim(len(labels) - 0.4, -0.6)  # the first at the top
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("time without it, × with it\n(grey: no effect shown)")
    axes.grid(True, axis="x")


def _panels(each: Section) -> list[Panel]:
    """The time, then the figures beside it."""
    height = 0.45 * len(each.rows) + 1.3
    times = [(row["median_ns"] / 1e9, row["off_median_ns"] / 1e9) for row in each.rows]
    values: list[tuple[str, Sequence[tuple[float, float] | None]]] = [("s", times)]
    for what in figures_shown(each.rows):
        found = [next((f for f in row["figures"] if f["what"] == what), None) for row in each.rows]
        unit = next(f["unit"] for f in found if f is not None)
        values.append((unit, [None if f is None else (f["on"], f["off"]) for f in found]))
    cases = [row["test"] for row in each.rows]
    return [
        Panel(label, partial(_dumbbells, label, cases, unit, pairs), (WIDTH, height))
        for label, (unit, pairs) in zip(panel_labels(each.rows), values, strict=True)
    ]


def _dumbbells(
    label: str, cases: Sequence[str], unit: str, pairs: Sequence[tuple[float, float] | None],
    axes: Any, ink: str,
) -> None:  # fmt: skip
    for number, pair in enumerate(pairs):
        if pair is not None:
            axes.plot(pair, [number, number], color=ink, linewidth=1, alpha=0.5)
            (on,) = axes.plot(pair[:1], [number], "o", color=COLOURS[0])
            (off,) = axes.plot(pair[1:], [number], "o", mfc="none", color=ink)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high / low < 20:
        axes.set_xscale("linear")
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=4)
    elif high / low < 100:  # powers of ten alone would be one or two labels
        axes.xaxis.get_major_locator().set_params(subs=(1, 3))
    axes.xaxis.set_major_formatter(lambda value, _: shown(value, unit) if value > 0 else "0")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_yticks(range(len(cases)), [_wrapped(case, 24) for case in cases], linespacing=0.9)
    axes.set_ylim(len(cases) - 0.4, -0.6)  # the first at the top
    axes.set_xlabel(label)
    axes.grid(True, axis="x")
    axes.legend(
        [on, off], ["on", "off"], loc="lower right", bbox_to_anchor=(1, 1), ncols=2,
        frameon=False, borderaxespad=0,
    )  # fmt: skip


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))
