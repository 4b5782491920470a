"""Sets the counter of an append-only array, in device memory, so that it always matches the ledger.

`graph/append_counters` creates counters, and makes graphs advance them. The array's ledger page
notes the counter's value (`ledger/roles.AppendHistory.counted`).
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
    """Set the counter of an append-only array, then `note` that. The caller holds the lock."""
    history.uncertain = True
    try:
        fill_locked(history.counter, rows, stream)
        note()
    except BaseException:
        # Whether `note` was called or not, the counter must hold what is noted.
        with contextlib.suppress(Error):
            settle_counter(history, stream)
        raise


def settle_counter(history: AppendHistory, stream: Stream | None) -> None:
    """Set the counter again if an exception left its value uncertain. The caller holds the lock."""
    if history.uncertain:
        fill_locked(history.counter, history.counted, stream)
        history.uncertain = False
