"""Bare Vulkan from Python: the floor of `penstock bench runtime`."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.bench.floors import Bare


class Worker(Bare):
    def __init__(self, programs: Path) -> None:
        found = {
            name: (programs / f"{name}.spv").read_bytes() for name in ("saxpy", "pick", "touch")
        }
        super().__init__(os.environ["PENSTOCK_PEERS_DEVICE"], found)
