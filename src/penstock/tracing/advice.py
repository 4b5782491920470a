"""What to do about idle time: a sentence for each cause, where following it would have helped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.tracing.gaps import Gap

if TYPE_CHECKING:
    from penstock.tracing.receipt import TraceEvent


def advice(gaps: Sequence[Gap], events: Sequence[TraceEvent]) -> tuple[str, ...]:
    """The sentences for the gaps of a trace, the one that saves most first."""
    return ()
