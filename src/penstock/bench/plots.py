"""Curves and bars of what was measured, as PNG, for light and for dark pages.

Needs matplotlib (`pip install penstock-gpu[bench]`), which only this module loads.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import Unsupported

Row = dict[str, Any]
THEMES = {"light": ("#ffffff", "#1f2328", "#d0d7de"), "dark": ("#0d1117", "#e6edf3", "#30363d")}
#: Told apart by people who see few colours, and on both backgrounds.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999")
_MARKS = "osD^vPX"
MISSING = "plots need matplotlib, which is not installed: pip install penstock-gpu[bench]"


@dataclass(frozen=True)
class Plot:
    """A picture: its file's name, what it shows, and how its rows are drawn on a figure."""

    name: str
    title: str
    draw: Callable[[Sequence[Row], Any, str], None]
    rows: Sequence[Row]
    size: tuple[float, float] = (8.0, 4.5)


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
        found.append(Plot("transfer", "Transfers by size", _transfers, moved, (11.0, 4.5)))
    if small:
        found.append(
            Plot("launch", "The runtime compared with bare driver calls", _compared, small)
        )
    if curves:
        found.append(Plot("scaling", "How costs grow", _curves, curves, (11.0, 6.5)))
    if files:
        found.append(Plot("load", "Opening a file", _files, files))
    if len({row["n_depth"] for row in deep}) > 1:
        found.append(Plot("context", "A token by the length of its context", _context, deep))
    if without:
        tall = 0.42 * len(without) + 1.5
        found.append(Plot("ablation", "Without a mechanism", _ablation, without, (8.0, tall)))
    return found


def save(plot: Plot, directory: Path, themes: Sequence[str] = tuple(THEMES)) -> dict[str, Path]:
    """Draw it for every theme; the files."""
    made = {}
    for theme in themes:
        paper, ink, faint = THEMES[theme]
        pyplot = _pyplot()
        with _style(pyplot, paper, ink, faint):
            figure = pyplot.figure(figsize=plot.size, layout="constrained", facecolor=paper)
            plot.draw(plot.rows, figure, ink)
            file = directory / f"{plot.name}{'-dark' if theme == 'dark' else ''}.png"
            figure.savefig(file, dpi=120, facecolor=paper, metadata={"Software": None})
            pyplot.close(figure)
        made[theme] = file
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


def _transfers(rows: Sequence[Row], figure: Any, ink: str) -> None:
    for axes, way in zip(figure.subplots(1, 2, sharey=True), ("write", "read"), strict=True):
        those = [row for row in rows if row["test"].startswith(way)]
        floors = [
            (size, statistics.median(r["floor_median_ns"] for r in those if r["size"] == size))
            for size in sorted({row["size"] for row in those})
        ]
        _line(axes, floors, "numpy.copyto", ink, "--", "")
        for number, path in enumerate(dict.fromkeys(row["path"] for row in those)):
            points = sorted((r["size"], r["median_ns"]) for r in those if r["path"] == path)
            _line(axes, points, path, COLOURS[number], "-", _MARKS[number])
        axes.set(title=f"{way}, until the bytes are there", xlabel="bytes")
        _log(axes, base=2, ticks=[(1 << 10, "1 KiB"), (1 << 15, "32 KiB"), (1 << 20, "1 MiB"),
                                  (1 << 25, "32 MiB")])  # fmt: skip
        axes.legend()
    figure.axes[0].set_ylabel("median, µs")


def _compared(rows: Sequence[Row], figure: Any, ink: str) -> None:
    axes = figure.subplots()
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


def _curves(rows: Sequence[Row], figure: Any, ink: str) -> None:
    titles = list(dict.fromkeys(row["curve"] for row in rows))
    columns = 4 if len(titles) > 4 else len(titles)
    lines = -(-len(titles) // columns)
    grid = figure.subplots(lines, columns, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(titles):
            axes.axis("off")
            continue
        those = [row for row in rows if row["curve"] == titles[number]]
        _line(axes, [(r["size"], r["median_ns"]) for r in those], "median", COLOURS[0], "-", "o")
        _line(axes, [(r["size"], r["min_ns"]) for r in those], "minimum", COLOURS[1], "-", "s")
        axes.set_title(titles[number].replace(", ", ",\n"))
        _log(axes)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, high / 200), high * 1.3)  # the same steepness for all
    figure.supylabel("µs of one launch, array or node")
    grid.flat[0].legend()


def _files(rows: Sequence[Row], figure: Any, ink: str) -> None:
    axes = figure.subplots()
    _line(axes, [(r["size"], r["floor_median_ns"]) for r in rows], "numpy.fromfile", ink, "--", "")
    _line(axes, [(r["size"], r["median_ns"]) for r in rows], "from_file", COLOURS[0], "-", "o")
    axes.set(xlabel="bytes of the file", ylabel="median, µs")
    _log(axes, base=2, ticks=[(1 << 16, "64 KiB"), (1 << 20, "1 MiB"), (1 << 24, "16 MiB"),
                              (1 << 28, "256 MiB")])  # fmt: skip
    axes.legend()


def _context(rows: Sequence[Row], figure: Any, ink: str) -> None:
    axes = figure.subplots()
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


def _ablation(rows: Sequence[Row], figure: Any, ink: str) -> None:
    axes = figure.subplots()
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
