"""Rows as people and programs want them: a table in Markdown, CSV, JSON, JSON lines, SQL.

JSON, JSON lines, CSV and SQL have the field names of llama-bench, so that scripts made for it go on
working. A form is given every row as soon as it is there, and what it returns can be printed at
once.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
#: A column of a table: its title, and what it shows of a row.
Column = tuple[str, Callable[[Row], str]]

NAMES = ("md", "csv", "json", "jsonl", "sql")
#: What is shown per token, by a short title.
PER_TOKEN = {
    "waits/t": "waits_per_token", "copies/t": "copies_per_token", "B/t": "bytes_copied_per_token",
    "allocs/t": "allocations_per_token", "submits/t": "submissions_per_token",
    "barriers/t": "barriers_per_token",
}  # fmt: skip
_TABLE = "llama_bench"
#: Room for what comes in later rows, as rows are printed when they are there.
_WIDTHS = {"test": 34, "without": 21, "t/s": 16, "B/t": 7, "95 % within": 13}


def write(name: str, rows: Iterable[Row], columns: Sequence[Column]) -> Iterable[str]:
    """The lines of a form, as rows come."""
    if name == "md":
        return _markdown(rows, columns)
    return {"csv": _csv, "json": _json, "jsonl": _json_lines, "sql": _sql}[name](rows)


def model_columns(varied: Sequence[str]) -> list[Column]:
    """llama-bench's columns, and the receipt's. `varied`: fields that are not the same in all."""
    columns: list[Column] = [
        ("model", lambda row: str(row["model_type"])),
        ("size", lambda row: _size(row["model_size"])),
        ("params", lambda row: _count(row["model_n_params"])),
        ("backend", lambda row: str(row["backends"])),
    ]
    columns += [_field(name) for name in varied]
    columns += [("test", lambda row: str(row["test"])), ("t/s", _rate), _field("busy")]
    return columns + _receipt_columns()


def ablation_columns() -> list[Column]:
    return [
        ("without", lambda row: str(row["without"])),
        ("t/s", _rate),
        ("time, × all on", lambda row: f"{row['ratio']:.2f}"),
        ("95 % within", lambda row: f"{row['ratio_low']:.2f}–{row['ratio_high']:.2f}"),
        *_receipt_columns(),
    ]


def runtime_columns() -> list[Column]:
    return [
        ("test", lambda row: str(row["test"])),
        ("median µs", lambda row: _number(row["median_ns"] / 1e3)),
        ("min µs", lambda row: _number(row["min_ns"] / 1e3)),
        ("compared with", lambda row: str(row["floor"])),
        ("its median µs", lambda row: _number(row["floor_median_ns"] / 1e3)),
        ("ratio", lambda row: f"{row['ratio']:.2f}"),
        ("95 % within", lambda row: f"{row['ratio_low']:.2f}–{row['ratio_high']:.2f}"),
        *map(_field, ("waits", "copies", "allocations", "submissions", "barriers")),
    ]


def _receipt_columns() -> list[Column]:
    return [(title, _field(name)[1]) for title, name in PER_TOKEN.items()]


def _field(name: str) -> Column:
    def shown(row: Row) -> str:
        value = row.get(name, "")  # files of earlier versions have fewer fields
        return value if isinstance(value, str) else _number(value)

    return name, shown


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Rows that are all there, in Markdown: a column for each field, as wide as it must be."""
    columns = [(n.replace("_us", " µs").replace("_", " "), _field(n)[1]) for n in rows[0]]
    return _markdown(rows, columns, rows)


def _markdown(
    rows: Iterable[Row], columns: Sequence[Column], known: Sequence[Row] = ()
) -> Iterable[str]:
    """The table's lines; columns are as wide as the `known` rows need, or else the first row."""
    widths: list[int] = []
    for row in rows:
        cells = [shown(row) for _, shown in columns]
        if not widths:
            titles = [title for title, _ in columns]
            widths = [
                max(len(title), _WIDTHS.get(title, 3), *(len(shown(one)) for one in known or [row]))
                for title, shown in columns
            ]
            yield _line(titles, widths)
            dashes = [
                "-" * (width - 1) + (":" if _is_number(cell) else "-")
                for width, cell in zip(widths, cells, strict=True)
            ]
            yield _line(dashes, widths)
        yield _line(cells, widths)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return f"| {' | '.join(padded)} |"


def _json(rows: Iterable[Row]) -> Iterable[str]:
    before = "["
    for row in rows:
        yield f"{before}\n  {json.dumps(row, ensure_ascii=False)}"
        before = ","
    yield "\n]" if before == "," else "[]"


def _json_lines(rows: Iterable[Row]) -> Iterable[str]:
    return (json.dumps(row, ensure_ascii=False) for row in rows)


def _csv(rows: Iterable[Row]) -> Iterable[str]:
    first = True
    for row in rows:
        plain = _flat(row)
        text = io.StringIO()
        written = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="")
        if first:
            yield ",".join(plain)
            first = False
        written.writerow(plain.values())
        yield text.getvalue()


def _sql(rows: Iterable[Row]) -> Iterable[str]:
    first = True
    for row in rows:
        plain = _flat(row)
        if first:
            fields = ",\n".join(f"  {name} {_sql_type(value)}" for name, value in plain.items())
            yield f"CREATE TABLE IF NOT EXISTS {_TABLE} (\n{fields}\n);\n"
            first = False
        values = ", ".join(_sql_value(value) for value in plain.values())
        yield f"INSERT INTO {_TABLE} ({', '.join(plain)}) VALUES ({values});"


def _flat(row: Row) -> dict[str, Any]:
    """Without the samples, as llama-bench has it."""
    return {name: value for name, value in row.items() if not isinstance(value, list | tuple)}


def _sql_type(value: Any) -> str:
    return "INTEGER" if isinstance(value, int) else "REAL" if isinstance(value, float) else "TEXT"


def _sql_value(value: Any) -> str:
    text = "" if value is None else str(value)
    return "'" + text.replace("'", "''") + "'"


def _rate(row: Row) -> str:
    return f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.2f} MiB"


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.2f} M"


def _number(value: float | None) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value < 100 else f"{value:.1f}"


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell == "-"
