"""The counter of an append-only array, in device memory: set by the host, and never left in doubt.

`graph/append_counters` makes counters, and has graphs move them on. What the device was told is
noted on the array's ledger page (`ledger/roles.AppendHistory`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.array.transfer import fill_locked
from penstock.errors import Error
from penstock.ledger.roles import AppendHistory

if TYPE_CHECKING:
    from penstock.schedule.stream import Stream


def move_counter(
    history: AppendHistory, rows: int, stream: Stream | None, note: Callable[[], None]
) -> None:
    """Set the counter of an append-only array, and have the host `note` it. Under the lock."""
    history.uncertain = True
    try:
        fill_locked(history.counter, rows, stream)
        note()
    except BaseException:
        # Whether it is noted or not, the counter is to say the same.
        with contextlib.suppress(Error):
            settle_counter(history, stream)
        raise


def settle_counter(history: AppendHistory, stream: Stream | None) -> None:
    """Set the counter right, if an exception has left in doubt what it says. Under the lock."""
    if history.uncertain:
        fill_locked(history.counter, history.counted, stream)
        history.uncertain = False
