"""Commands that share one submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import accelerator
from penstock.ledger.hazards import ACCESS, Access
from penstock.tracing import events
from penstock.tracing.device_times import Mark, Timekeeper

if TYPE_CHECKING:
    from penstock.driver.protocol import Recording, Replayable
    from penstock.ledger.hazards import Lane

_AFTER = f"after {ACCESS}"


@accelerator.share
class Batch:
    """A recording of one stream, and what the stream knows of its content. Reused when complete.

    It is *open* while it takes commands, then *sealed* until the queue has accepted it: a failed
    submission is repeated with nothing added. Then it is in flight until the stream's lane reaches
    `value`, and then spare. A batch that has never been open has the value 0.
    """

    __slots__ = (
        "began", "count", "inner", "lane", "look_at", "marks", "must_publish", "open", "recording",
        "value",
    )  # fmt: skip

    def __init__(self, recording: Recording, lane: Lane) -> None:
        self.recording = recording
        self.lane = lane
        self.value = 0  # the lane's value once the batch is complete
        self.open = False
        self.count = 0  # how many commands it has
        self.look_at = 1  # the count at which the stream decides whether to submit it
        self.must_publish = False  # whether it writes anything that the host may read
        #: For receipts: the timestamps in the recording, and their commands.
        self.marks: list[Mark] = []
        #: The same of timed graphs that it replays.
        self.inner: list[tuple[Replayable, list[Mark]]] = []
        self.began: int | None = None  # the timestamp of the start of the command being recorded

    def here(self) -> events.At:
        """The position of the next command, for the receipt."""
        return (self.lane.place, self.value, self.count + 1)

    def emit_barrier(self, behind: Access) -> None:
        """Put on the receipt which access a barrier separates the next command from."""
        events.emit("barrier", (_AFTER, *behind.facts), path="device", at=self.here())

    def end_timing(self, start: int) -> None:
        """For receipts: record a timestamp of the end of a command, which has one of its start."""
        end = self.recording.mark(end=True)
        if end is not None:
            self.marks.append((events.timing, self.here(), start, end))

    def read_times(self, times: Timekeeper) -> None:
        """For receipts: have the timestamps read, once the batch is complete."""
        marks, self.marks = self.marks, []
        inner, self.inner = self.inner, []
        times.read(self.recording, marks)
        for commands, of_commands in inner:
            times.read(commands, of_commands)

    def is_timed_for(self, receipt: events.Collector) -> bool:
        """Whether this batch has timestamps that a receipt does not have yet."""
        return any(receipt in mark[0] for mark in self.marks)
