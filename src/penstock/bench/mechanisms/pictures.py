"""Plots of mechanisms: on and off of each case, and off ÷ on of all. Titles state the message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.bench.mechanisms.comparison import Row
from penstock.bench.mechanisms.document import Section, sections
from penstock.bench.mechanisms.findings import each as each_of
from penstock.bench.mechanisms.findings import effect, summary
from penstock.bench.mechanisms.findings import figure as shown
from penstock.bench.plots import COLOURS, Plot


def plots_of(rows: Sequence[Row]) -> list[Plot]:
    """The plot of all mechanisms, then one of each."""
    own = [row for row in rows if row.get("benchmark") == "mechanisms"]
    found = sections(own)
    if not found:
        return []
    title = summary([each.rows for each in found])
    tall = 0.32 * len(own) + 1.6
    made = [Plot("mechanisms", title, partial(_ratios, title), own, (9.0, tall))]
    for each in found:
        panels = 1 + len(_panels(each))
        height = 0.45 * len(each.rows) + 1.6
        made.append(
            Plot(
                f"mechanism-{each.name}", each.headline, partial(_sides, each), each.rows,
                (6.0 + 3.2 * (panels - 1), height),
            )
        )  # fmt: skip
    return made


def _ratios(title: str, rows: Sequence[Row], figure: Any, ink: str) -> None:
    axes = figure.subplots()
    for number, row in enumerate(reversed(rows)):
        value = row["ratio"]
        reach = [[value - row["ratio_low"]], [row["ratio_high"] - value]]
        colour = {
            "gain": COLOURS[0],
            "loss": COLOURS[3],
            "none": COLOURS[6],
            "unclear": COLOURS[6],
        }[effect(row)]
        axes.errorbar(value, number, xerr=reach, fmt="o", color=colour, capsize=3, markersize=4)
    axes.axvline(1, color=ink, linewidth=1)
    axes.set_yticks(
        range(len(rows)), [f"{row['group']}: {row['test']}" for row in reversed(rows)], fontsize=8
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("time without the mechanism, × with it (grey: no effect shown)")
    axes.grid(True, axis="x")
    figure.suptitle(title, fontsize=11)


def _sides(each: Section, rows: Sequence[Row], figure: Any, ink: str) -> None:
    panels = _panels(each)
    grid = figure.subplots(1, 1 + len(panels), sharey=True, squeeze=False)[0]
    units = " or ".join(dict.fromkeys(each_of(row["unit"]) for row in rows))
    times = [(row["median_ns"] / 1e9, row["off_median_ns"] / 1e9) for row in rows]
    _dumbbells(grid[0], times, "s", ink, f"time of {units}", rows)
    for axes, what in zip(grid[1:], panels, strict=True):
        found = [next((f for f in row["figures"] if f["what"] == what), None) for row in rows]
        unit = next(f["unit"] for f in found if f is not None)
        values = [None if f is None else (f["on"], f["off"]) for f in found]
        title = f"{what} per second" if unit == "/s" else what
        _dumbbells(axes, values, unit, ink, title, rows)
    grid[0].set_yticks(range(len(rows)), [row["test"] for row in reversed(rows)])
    grid[0].legend(loc="best")
    figure.suptitle(each.headline, fontsize=11)


def _panels(each: Section) -> list[str]:
    """The figures beside the time that get a panel of their own."""
    return list(dict.fromkeys(one["what"] for row in each.rows for one in row["figures"]))[:2]


def _dumbbells(
    axes: Any, values: Sequence[tuple[float, float] | None], unit: str, ink: str, title: str,
    rows: Sequence[Row],
) -> None:  # fmt: skip
    for number, pair in enumerate(reversed(values)):
        if pair is None:
            continue
        on, off = pair
        axes.plot([on, off], [number, number], color=ink, linewidth=1, alpha=0.5)
        named = number == 0
        axes.plot([off], [number], "o", mfc="none", color=ink, label="off" if named else None)
        axes.plot([on], [number], "o", color=COLOURS[0], label="on" if named else None)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high / low < 20:
        axes.set_xscale("linear")
        axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: shown(value, unit) if value > 0 else "0")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.tick_params(axis="x", labelsize=8, rotation=20)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel(title)
    axes.grid(True, axis="x")
