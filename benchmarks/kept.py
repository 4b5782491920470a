"""Results that are kept: one JSON file a run in `results/`, with date, machine and commit."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import tables
from penstock.bench import machine

DIRECTORY = Path(__file__).with_name("results")


def keep(benchmark: str, about: tables.Row, sections: list[tables.Section]) -> Path:
    """Write a run's tables; where."""
    when = machine.now()
    whole = {
        "date": when,
        "commit": machine.commit(),
        "command": about["command"],
        **json.loads(tables.as_json(benchmark, about, sections)),
    }
    DIRECTORY.mkdir(exist_ok=True)
    file = DIRECTORY / f"{when[:10]}-{benchmark}-{machine.commit()}.json"
    file.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    return file
