"""What one runtime does in this comparison: the few things that rows are made of.

A way of doing things is chosen as that runtime's own users would, and the fastest of these that is
documented; `how` says which, and what the time includes. A row that `how` does not name is one that
the runtime cannot do, and `lacks` may say why. This module and the peers' own import nothing of
Penstock: they run where it is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Host = npt.NDArray[np.float32]

SIZE = 1024  # floats in x and y
A = 0.5
LOCAL_SIZE = 256  # invocations in a group of saxpy and touch
LARGE = 1 << 20  # floats in the large array
STRIDE = 1024  # floats from one touched element to the next: a page
CHAIN = 300  # launches of the chain, and of its recording


class Unavailable(Exception):
    """This runtime does not run here; the text says why."""


class Peer:
    """A runtime with x and y of `SIZE` floats on its device, and the kernels saxpy, pick, touch.

    Methods that take `times` or a sequence are timed as a whole: the loop is inside, so that each
    runtime pays only for what its user would write. Values are set and fetched untimed.
    """

    #: What is done for each row that can be done, in a few words.
    how: Mapping[str, str] = {}
    #: Why a row cannot be done, where there is more to say than that there is no such thing.
    lacks: Mapping[str, str] = {}

    def __init__(self, programs: Path) -> None:
        """Open the device; `programs` holds saxpy.spv, pick.spv and touch.spv."""

    def about(self) -> dict[str, str]:
        """The version, the device that is really used, and what else a reader should know."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything."""

    # Untimed.

    def put(self, x: Host, y: Host) -> None:
        """Set x and y, and be idle."""
        raise NotImplementedError

    def get(self) -> Host:
        """The values of y, when everything issued is done."""
        raise NotImplementedError

    def finish(self) -> None:
        """Run to its end what `record` left."""
        raise NotImplementedError

    def prepare_replay(self) -> None:
        """Record `CHAIN` dependent launches of saxpy once."""
        raise NotImplementedError

    # Timed.

    def wait(self, times: int) -> None:
        """Launch saxpy and wait for it, again and again."""
        raise NotImplementedError

    def record(self, times: int) -> None:
        """Launch saxpy again and again and wait for nothing."""
        raise NotImplementedError

    def results(self, indices: Sequence[int]) -> list[float]:
        """Launch pick for each index, and have its value before the next."""
        raise NotImplementedError

    def call(self, array: Host) -> None:
        """Launch touch on a plain NumPy array, in place; the array has the outcome on return."""
        raise NotImplementedError

    def trips(self, sources: Host) -> Sequence[Host]:
        """For each row of the sources: copy it to x, launch saxpy, and have a copy of y."""
        raise NotImplementedError

    def chain(self) -> None:
        """Issue `CHAIN` dependent launches of saxpy, and wait for the last."""
        raise NotImplementedError

    def replay(self) -> None:
        """Run what `prepare_replay` recorded, and wait for it."""
        raise NotImplementedError
