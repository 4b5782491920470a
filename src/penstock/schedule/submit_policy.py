"""Decides when a stream submits its recorded commands; `stream` carries it out.

A batch is submitted when the device would otherwise run dry, when the host or another stream needs
its result, at an event or flush, or when it has `LONGEST` commands. Asking whether the device has
run dry takes a foreign call, and a submission takes several. So the stream asks at the first
command after the host has waited, and then at growing intervals. `IdleSubmitter` submits what is
left when the program launches nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import accelerator
from penstock.schedule.batch import Batch

if TYPE_CHECKING:
    from penstock.schedule.stream import Stream

LONGEST = 128  # commands in one batch
DEEPEST = 256  # submissions in flight on one stream, before the host waits for the oldest
_NEVER = 1 << 62


class NoRoom(Exception):
    """Raised under the lock when a stream has too many submissions in flight.

    The caller releases the lock, calls `make_room`, and tries again.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream


@accelerator.share
class SubmitPolicy:
    """The policy of one stream.

    The caller holds the device's lock, except for `host_waits` and `resume`.
    """

    __slots__ = ("_blocks", "first_look")

    def __init__(self) -> None:
        #: The number of commands in a batch at which to ask first whether the device is dry.
        self.first_look = 1
        self._blocks: set[object] = set()  # the active `with stream.batch()` blocks

    @property
    def puts_off(self) -> bool:
        """Whether a `with stream.batch()` block postpones submissions to its end."""
        return bool(self._blocks)

    def opened(self, batch: Batch) -> None:
        """Set the number of commands at which to look at a batch first. May be repeated."""
        batch.look_at = _NEVER if self._blocks else self.first_look

    def host_waits(self, batch: Batch) -> None:
        """Have the next command submitted at once, because the host is about to wait.

        Called without the lock: a batch opened at the same time takes its value from `first_look`.
        """
        self.first_look = 1
        batch.look_at = _NEVER if self._blocks else 1

    def put_off(self, block: object, batch: Batch) -> None:
        """Begin a `with` block whose commands share one submission."""
        self._blocks.add(block)
        self.opened(batch)

    def resume(self, block: object) -> None:
        """End a `with` block. Called without the lock, so that it cannot fail."""
        self._blocks.discard(block)

    def reason_to_submit(self, batch: Batch, *, dry: bool) -> str:
        """Why to submit the open batch now; empty if the stream is to ask again later.

        `dry` says whether the device has completed everything else of the stream.
        """
        count = batch.count
        if not dry and count < LONGEST:
            batch.look_at = min(2 * count, LONGEST)
            return ""
        # A device that runs dry repeatedly is faster than the host: make its batches larger.
        self.first_look = min(2 * count, LONGEST) if dry else 1
        return "the device would run dry" if dry else "the recording is long"
