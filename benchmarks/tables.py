"""Tables of a comparison: as Markdown for people, or as JSON for machines and for keeping."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TypeAlias

import penstock as ps
from penstock.bench import forms
from penstock.bench.machine import build, environment
from penstock.bench.measure import Samples

Value: TypeAlias = str | int | float | None
Row: TypeAlias = dict[str, Value]


@dataclass(frozen=True)
class Section:
    """One table: what was measured, and a row for each case. All rows have the same columns."""

    title: str
    rows: list[Row]
    notes: tuple[str, ...] = ()


def times(taken: Samples, base: Samples | None = None) -> Row:
    """The columns of a case's times, and of their ratios to those of `base`."""
    row: Row = {"median_us": taken.median * 1e6, "min_us": taken.minimum * 1e6}
    if base is not None:
        row["ratio_of_medians"] = taken.median / base.median
        row["ratio_of_minima"] = taken.minimum / base.minimum
    return row


def machine(device: ps.Device) -> Row:
    """Everything about this machine that a figure depends on."""
    typed = {"command": " ".join(["python -m benchmarks", *sys.argv[1:]])}
    return build() | environment(device) | typed


def as_json(benchmark: str, about: Row, sections: list[Section]) -> str:
    tables = [
        {"title": s.title, "notes": s.notes, "rows": [_plain(row) for row in s.rows]}
        for s in sections
    ]
    whole = {"benchmark": benchmark, "machine": about, "sections": tables}
    return json.dumps(whole, indent=2, ensure_ascii=False)


def as_text(benchmark: str, about: Row, sections: list[Section]) -> str:
    blocks = [f"{benchmark}: {', '.join(f'{name} {value}' for name, value in about.items())}"]
    blocks += ["\n".join([s.title, "", *forms.table(s.rows), "", *s.notes]) for s in sections]
    return "\n\n".join(blocks)


def _plain(row: Row) -> Row:
    """JSON has no NaN."""
    return {name: None if value != value else value for name, value in row.items()}
