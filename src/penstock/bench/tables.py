"""Results as aligned text for people or as JSON for machines, and what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import textwrap
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

import penstock as ps
from penstock.bench.machine import cpu_name

Value: TypeAlias = str | int | float | None
Row: TypeAlias = dict[str, Value]


@dataclass(frozen=True)
class Section:
    """One table: what was measured, and a row for each case. All rows have the same columns."""

    title: str
    rows: list[Row]
    notes: tuple[str, ...] = ()


def machine(device: ps.Device) -> Row:
    """Everything about this machine that a figure depends on."""
    info = device.info
    return {
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "penstock": ps.__version__,
        "device": info.name,
        "driver": info.driver_info,
        "vulkan": info.api_version,
        "LP_NUM_THREADS": os.environ.get("LP_NUM_THREADS"),
    }


def as_json(benchmark: str, about: Row, sections: list[Section]) -> str:
    tables = [
        {"title": s.title, "notes": s.notes, "rows": [_plain(row) for row in s.rows]}
        for s in sections
    ]
    whole = {"benchmark": benchmark, "machine": about, "sections": tables}
    return json.dumps(whole, indent=2, ensure_ascii=False)


def as_text(benchmark: str, about: Row, sections: list[Section]) -> str:
    facts = "; ".join(f"{name} {value}" for name, value in about.items() if value is not None)
    blocks = [f"penstock benchmark: {benchmark}\n{textwrap.fill(facts, 100)}"]
    blocks += [
        "\n".join([section.title, *_table(section.rows), *(f"  {n}" for n in section.notes)])
        for section in sections
    ]
    return "\n\n".join(blocks)


def _plain(row: Row) -> Row:
    """A row for machines: no indents, and null where there is no number."""
    cleaned: Row = {}
    for name, value in row.items():
        if isinstance(value, str):
            cleaned[name] = value.strip()
        else:
            cleaned[name] = None if value != value else value
    return cleaned


def _table(rows: list[Row]) -> list[str]:
    # For people the indent says what a row is relative to.
    rows = [{n: v for n, v in row.items() if n != "relative_to"} for row in rows]
    cells = [[_heading(name) for name in rows[0]]]
    cells += [[_cell(value) for value in row.values()] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    numeric = [not isinstance(value, str) for value in rows[0].values()]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]


def _heading(name: str) -> str:
    return name.replace("_us", " µs").replace("_", " ")


def _cell(value: Value) -> str:
    if value is None or value != value:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
