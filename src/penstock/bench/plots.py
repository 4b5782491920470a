"""Curves and bars of what was measured, as PNG, for light and for dark pages.

Each panel is a file of its own, without a title: a page sets panels side by side or, if it is
narrow, below each other, and its caption is the title. Needs matplotlib
(`pip install penstock-gpu[bench]`), which only this module loads.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import Unsupported

Row = dict[str, Any]
THEMES = {"light": ("#ffffff", "#1f2328", "#d0d7de"), "dark": ("#0d1117", "#e6edf3", "#30363d")}
#: Told apart by people who see few colours, and on both backgrounds.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999")
_MARKS = "osD^vPX"
MISSING = "plots need matplotlib, which is not installed: pip install penstock-gpu[bench]"


#: Inches of a panel. Text of 10 points is legible at three quarters of the width.
WIDTH, _SINGLE = 4.0, 6.0
DPI = 120


@dataclass(frozen=True)
class Panel:
    """One drawing: what it shows, and how it is drawn on axes with a colour for lines."""

    label: str
    draw: Callable[[Any, str], None]
    size: tuple[float, float] = (WIDTH, 3.2)


@dataclass(frozen=True)
class Plot:
    """Panels under one title, and the benchmark whose section of a page they belong to."""

    name: str
    benchmark: str
    title: str
    panels: Sequence[Panel]


def plots_of(rows: Sequence[Row]) -> list[Plot]:
    """The pictures that can be made of these rows."""
    found = []
    runtime = [row for row in rows if row.get("benchmark") == "runtime"]
    moved = [row for row in runtime if row["group"] == "transfer"]
    small = [row for row in runtime if row["group"] in ("launch", "access")]
    curves = [row for row in runtime if "curve" in row]
    files = [row for row in runtime if row["group"] == "load"]
    deep = [row for row in rows if row.get("benchmark") == "model" and row["n_gen"]]
    without = [row for row in rows if row.get("benchmark") == "ablation"]
    if moved:
        ways = [Panel(way, partial(_transfers, way, moved)) for way in ("write", "read")]
        found.append(Plot("transfer", "runtime", "Transfers by size", ways))
    if small:
        size = (_SINGLE, 0.3 * len(small) + 1.0)
        found.append(_single("launch", "runtime", "Launches and accesses", _compared, small, size))
    if curves:
        named = [Panel(name, partial(_curve, name, curves)) for name in _curves(curves)]
        found.append(Plot("scaling", "runtime", "How costs grow", named))
    if files:
        found.append(_single("load", "runtime", "Opening a file", _files, files))
    if len({row["n_depth"] for row in deep}) > 1:
        title = "A token by the length of its context"
        found.append(_single("context", "model", title, _context, deep))
    if without:
        size = (_SINGLE, 0.36 * len(without) + 1.0)
        found.append(_single("ablation", "ablation", "Time of a token", _ablation, without, size))
    return found


def _single(
    name: str, benchmark: str, title: str, draw: Callable[[Sequence[Row], Any, str], None],
    rows: Sequence[Row], size: tuple[float, float] = (_SINGLE, 4.0),
) -> Plot:  # fmt: skip
    return Plot(name, benchmark, title, [Panel(title, partial(draw, rows), size)])


def file_names(plot: str, labels: Sequence[str], theme: str = "light") -> list[str]:
    """The files of a plot's panels. The label is part of the name if there are several."""
    end = "-dark.png" if theme == "dark" else ".png"
    if len(labels) == 1:
        return [f"{plot}{end}"]
    return [f"{plot}-{re.sub(r'[^a-z0-9]+', '-', label.lower())}{end}" for label in labels]


def save(
    plot: Plot, directory: Path, themes: Sequence[str] = tuple(THEMES)
) -> list[dict[str, Path]]:
    """Draw it; of each panel, the file of every theme."""
    made: list[dict[str, Path]] = [{} for _ in plot.panels]
    pyplot = _pyplot()
    for theme in themes:
        paper, ink, faint = THEMES[theme]
        names = file_names(plot.name, [panel.label for panel in plot.panels], theme)
        for panel, files, name in zip(plot.panels, made, names, strict=True):
            with _style(pyplot, paper, ink, faint):
                figure = pyplot.figure(figsize=panel.size, layout="constrained", facecolor=paper)
                panel.draw(figure.subplots(), ink)
                files[theme] = directory / name
                figure.savefig(files[theme], dpi=DPI, facecolor=paper, metadata={"Software": None})
                pyplot.close(figure)
    return made


def are_possible() -> bool:
    """Whether matplotlib is installed; `MISSING` says what to do if not."""
    try:
        _pyplot()
    except Unsupported:
        return False
    return True


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise Unsupported(MISSING) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _style(pyplot: Any, paper: str, ink: str, faint: str) -> AbstractContextManager[None]:
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    colours = dict.fromkeys(inked, ink)
    style: AbstractContextManager[None] = pyplot.rc_context(
        {
            **colours, "axes.facecolor": paper, "legend.facecolor": paper,
            "legend.edgecolor": faint, "grid.color": faint, "grid.linewidth": 0.6,
            "axes.spines.top": False, "axes.spines.right": False, "font.size": 10,
            "axes.titlesize": 11, "axes.axisbelow": True, "legend.fontsize": 9,
        }
    )  # fmt: skip
    return style


# Pictures.


def _transfers(way: str, rows: Sequence[Row], axes: Any, ink: str) -> None:
    those = [row for row in rows if row["test"].startswith(way)]
    floors = [
        (size, statistics.median(r["floor_median_ns"] for r in those if r["size"] == size))
        for size in sorted({row["size"] for row in those})
    ]
    _line(axes, floors, "numpy.copyto", ink, "--", "")
    for number, path in enumerate(dict.fromkeys(row["path"] for row in those)):
        points = sorted((r["size"], r["median_ns"]) for r in those if r["path"] == path)
        _line(axes, points, path, COLOURS[number], "-", _MARKS[number])
    axes.set(title=f"{way}, until the bytes are there", xlabel="bytes", ylabel="median, µs")
    _log(axes, base=2, ticks=[(1 << 10, "1 KiB"), (1 << 15, "32 KiB"), (1 << 20, "1 MiB"),
                              (1 << 25, "32 MiB")])  # fmt: skip
    low = min(row["floor_median_ns"] for row in rows) / 1e3
    high = max(row["median_ns"] for row in rows) / 1e3
    axes.set_ylim(low / 2, high * 2)  # the same for both ways
    axes.legend()


def _compared(rows: Sequence[Row], axes: Any, ink: str) -> None:
    for number, row in enumerate(reversed(rows)):
        own, floor = row["median_ns"] / 1e3, row["floor_median_ns"] / 1e3
        axes.plot([own, floor], [number, number], color=ink, linewidth=1, alpha=0.5)
        label = _once(number, "bare calls")
        axes.plot([floor], [number], "o", mfc="none", color=ink, label=label)
        axes.plot([own], [number], "o", color=COLOURS[0], label=_once(number, "penstock"))
    axes.set_yticks(range(len(rows)), [row["test"] for row in reversed(rows)])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_plain)
    axes.set_xlabel("median, µs")
    axes.grid(True, axis="x")
    axes.legend(loc="lower right")


def _curves(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["curve"] for row in rows))


def _curve(name: str, rows: Sequence[Row], axes: Any, ink: str) -> None:
    those = [row for row in rows if row["curve"] == name]
    _line(axes, [(r["size"], r["median_ns"]) for r in those], "median", COLOURS[0], "-", "o")
    _line(axes, [(r["size"], r["min_ns"]) for r in those], "minimum", COLOURS[1], "-", "s")
    axes.set(title=name.replace(", ", ",\n"), ylabel="µs each")
    _log(axes)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high / 200), high * 1.3)  # the same steepness for all
    axes.legend()


def _files(rows: Sequence[Row], axes: Any, ink: str) -> None:
    _line(axes, [(r["size"], r["floor_median_ns"]) for r in rows], "numpy.fromfile", ink, "--", "")
    _line(axes, [(r["size"], r["median_ns"]) for r in rows], "from_file", COLOURS[0], "-", "o")
    axes.set(xlabel="bytes of the file", ylabel="median, µs")
    _log(axes, base=2, ticks=[(1 << 16, "64 KiB"), (1 << 20, "1 MiB"), (1 << 24, "16 MiB"),
                              (1 << 28, "256 MiB")])  # fmt: skip
    axes.legend()


def _context(rows: Sequence[Row], axes: Any, ink: str) -> None:
    for number, model in enumerate(dict.fromkeys(row["model_type"] for row in rows)):
        those = [row for row in rows if row["model_type"] == model]
        for style, which, of in (("-", "median", statistics.median), (":", "minimum", min)):
            points = sorted(
                (row["n_depth"] + row["n_gen"] / 2, of(row["samples_ns"]) / row["n_gen"] / 1e6)
                for row in those
            )
            axes.plot(*zip(*points, strict=True), style, marker=_MARKS[number],
                      label=f"{model}, {which}", color=COLOURS[number])  # fmt: skip
    axes.set(xlabel="tokens in the context", ylabel="ms per token")
    axes.set_ylim(bottom=0)
    axes.grid(True)
    axes.legend()


def _ablation(rows: Sequence[Row], axes: Any, ink: str) -> None:
    for number, row in enumerate(reversed(rows)):
        value = row["ratio"]
        reach = [[value - row["ratio_low"]], [row["ratio_high"] - value]]
        axes.errorbar(value, number, xerr=reach, fmt="o", color=COLOURS[0], capsize=4)
    axes.axvline(1, color=ink, linewidth=1)
    axes.set_yticks(range(len(rows)), [row["without"] for row in reversed(rows)])
    axes.set_xlabel(f"time, × with everything on ({rows[0]['model_type']}, {rows[0]['test']})")
    axes.grid(True, axis="x")


def _line(axes: Any, points: Sequence[Any], label: str, colour: str, style: str, mark: str) -> None:
    xs, ns = [point[0] for point in points], [point[1] / 1e3 for point in points]
    axes.plot(xs, ns, style, color=colour, marker=mark, markersize=4, label=label)


def _log(axes: Any, base: int = 10, ticks: Sequence[tuple[int, str]] = ()) -> None:
    axes.set_xscale("log", base=base)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_plain)
    if not ticks:
        axes.xaxis.set_major_formatter(_plain)
    else:
        axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks])
        axes.minorticks_off()
    axes.grid(True)


def _plain(value: float, _: object) -> str:
    """A number as people write it, where matplotlib would write a power."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _once(number: int, label: str) -> str:
    return label if number == 0 else "_nolegend_"
