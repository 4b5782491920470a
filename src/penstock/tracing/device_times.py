"""When the device did what is on a receipt, told once it is known and to whom it concerns.

A command that is recorded while a trace is active takes the device's time before and after it, and
remembers the traces it is for. The times are read when the command is done, which may be after a
trace has ended: nothing here waits for a trace's sake, unless the trace itself is told to wait.

Reading gives ticks of the device's clock. To turn them into the host's seconds takes knowing how
the two clocks differ, which a driver may have to find out by asking the device (`learn_time`),
behind all that is in flight there. So ticks are kept until that is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import Error
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.driver.protocol import Driver, Recording

#: For which traces, of which command, and the numbers of its two times in the recording.
Mark = tuple[tuple[events.Collector, ...], events.At, int, int]


class Timekeeper:
    """Belongs to one device. Called under its lock."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._kept: list[tuple[Sequence[int], list[Mark]]] = []

    def read(self, recording: Recording, marks: list[Mark]) -> None:
        """Keep the times in a recording that is done, and is about to be used again."""
        with contextlib.suppress(Error):  # a receipt is not worth a failure
            self._kept.append((recording.ticks(), marks))
            if self._driver.knows_time:
                self.tell()

    @property
    def owed(self) -> bool:
        """Whether ticks are kept that no receipt has heard of."""
        return bool(self._kept)

    def tell(self) -> None:
        """Put what is known on the receipts. Only once the driver knows the time."""
        kept, self._kept = self._kept, []
        with contextlib.suppress(Error):
            for ticks, marks in kept:
                times = self._driver.seconds(ticks)
                for receipts, at, start, end in marks:
                    events.device_times(at, times[start], times[end] - times[start], receipts)
