"""No device at all: NumPy's copies alone."""

from __future__ import annotations

from pathlib import Path

from penstock.bench.floors import Copies


class Worker(Copies):
    def __init__(self, programs: Path) -> None:
        super().__init__()
