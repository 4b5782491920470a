"""No device at all: the two copies that a NumPy array must make to a device's memory and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.peers.peer import LARGE, STRIDE, A, Host, Peer


class Worker(Peer):
    how: Mapping[str, str] = {"array": "two copytos of the array and nothing else"}

    def __init__(self, programs: Path) -> None:
        self.memory = np.ones(LARGE, np.float32)

    def about(self) -> dict[str, str]:
        return {"version": np.__version__, "device": "none"}

    def call(self, array: Host) -> None:
        np.copyto(self.memory, array)
        self.memory[::STRIDE] += np.float32(A)
        np.copyto(array, self.memory)
