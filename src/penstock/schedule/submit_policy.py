"""When a stream submits what it has recorded; how it does is in `stream`.

A batch is submitted when the device would otherwise run dry, when the host or another stream needs
its outcome, at an event or flush, or when it has grown long. To tell whether the device has run dry
costs a foreign call, and a submission several, so the stream looks at the first command after a
pause and then at growing distances, up to `LONGEST` commands; `Pump` catches what is left when the
program goes on to do something else.
"""

from __future__ import annotations

from penstock.schedule.batch import Batch

LONGEST = 128  # commands in one batch
DEEPEST = 256  # submissions in flight on one stream, before the host waits for the oldest
_NEVER = 1 << 62


class SubmitPolicy:
    """The policy of one stream.

    The caller holds the device's lock, except for `host_waits` and `resume`.
    """

    def __init__(self) -> None:
        self.first_look = 1  # the number of commands in a batch at which to look first
        self._blocks: set[object] = set()  # of `with stream.batch()`, that have begun and not ended

    @property
    def puts_off(self) -> bool:
        """Whether the program has asked for submissions to wait for the end of a `with` block."""
        return bool(self._blocks)

    def opened(self, batch: Batch) -> None:
        """Note on a batch when to look first. May be called again."""
        batch.look_at = _NEVER if self._blocks else self.first_look

    def host_waits(self, batch: Batch) -> None:
        """The host wants an outcome: what it calls next should reach the device at once.

        Called without the lock: a batch that is opened meanwhile gets its look from `first_look`.
        """
        self.first_look = 1
        batch.look_at = _NEVER if self._blocks else 1

    def put_off(self, block: object, batch: Batch) -> None:
        """A `with` block begins, whose commands share one submission."""
        self._blocks.add(block)
        self.opened(batch)

    def resume(self, block: object) -> None:
        """The `with` block is over. Called without the lock: nothing may keep it from ending."""
        self._blocks.discard(block)

    def reason_to_submit(self, batch: Batch, *, dry: bool) -> str:
        """Why to submit the open batch now; empty if it is better to look again later.

        `dry` says whether the device has nothing else of the stream to do.
        """
        count = batch.count
        if not dry and count < LONGEST:
            batch.look_at = min(2 * count, LONGEST)
            return ""
        # A device that is dry again and again is faster than the host: hand it more at a time.
        self.first_look = min(2 * count, LONGEST) if dry else 1
        return "the device would run dry" if dry else "the recording is long"
