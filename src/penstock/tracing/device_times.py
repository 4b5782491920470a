"""Device timestamps of traced commands, delivered to their traces once they are known.

A command that is recorded while a trace is active is enclosed in two device timestamps, and its
`Mark` names the traces that want them. The timestamps are read when the command is complete, which
may be after a trace has ended. Tracing never makes the runtime wait; only
`Trace.wait_for_times` does.

Timestamps are ticks of the device's clock. To convert them to host seconds, the driver must know
the offset between the two clocks. It may have to measure that with submissions of its own
(`learn_time`), which run after all work in flight. Ticks are kept here until the offset is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import Error
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.driver.protocol import Driver, Recording, Replayable

#: A timed command: the traces that want its times, its place, and the indices of its start and end
#: timestamps in the recording.
Mark = tuple[tuple[events.Collector, ...], events.At | events.InnerAt, int, int]


class DeviceClock(NamedTuple):
    """What a receipt knows of the clock of a device."""

    has_times: bool  #: whether commands have device times
    #: By how many seconds they may be off the host's clock; None before that is measured, and
    #: without times.
    error: float | None
    how: str  #: how the two clocks are compared, in a phrase


class Timekeeper:
    """Collects the timestamps of one device. Called under the device's lock."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._kept: list[tuple[Sequence[int], list[Mark]]] = []

    def read(self, recording: Recording | Replayable, marks: list[Mark]) -> None:
        """Save the timestamps of a completed recording, or graph in it, before it is reused."""
        with contextlib.suppress(Error):  # losing timestamps must not fail the program
            self._kept.append((recording.ticks(), marks))
            if self._driver.knows_time:
                self.deliver()

    @property
    def owed(self) -> bool:
        """Whether ticks are kept that have not been delivered yet."""
        return bool(self._kept)

    def deliver(self) -> None:
        """Convert the kept ticks and deliver them. Requires `Driver.knows_time`."""
        kept, self._kept = self._kept, []
        with contextlib.suppress(Error):
            for ticks, marks in kept:
                times = self._driver.seconds(ticks)
                for receipts, at, start, end in marks:
                    events.device_times(at, times[start], times[end] - times[start], receipts)
                self.note_clock({receipt for mark in marks for receipt in mark[0]})

    @property
    def clock(self) -> DeviceClock:
        driver = self._driver
        how = driver.clock_method if driver.has_clock else "no timestamps"
        return DeviceClock(driver.has_clock, driver.clock_error, how)

    def note_clock(self, receipts: Iterable[events.Collector]) -> None:
        """Tell receipts whether this device has times, and how exact they are."""
        name = self._driver.info.name
        for receipt in receipts:
            clock, known = self.clock, receipt.noted_clocks.get(name)
            if known is not None and known.error is not None:
                # Another device may have the same name, or its virtual time may be over.
                clock = known._replace(error=max(known.error, clock.error or 0.0))
            receipt.noted_clocks[name] = clock
