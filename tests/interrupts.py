"""Which points of a call the tests interrupt: see `penstock.conformance.interrupts`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.conformance.interrupts import at_point, interrupt, points

__all__ = ["STRIDE", "at_point", "chosen", "interrupt", "points"]

#: How many of all points are tried: 1 is all of them.
STRIDE = int(os.environ.get("PENSTOCK_INTERRUPTS", "307"))


def chosen(count: int, stride: int = STRIDE) -> Iterator[int]:
    """The points to try: all, or every so-and-so-many-th, and the first and last few."""
    edge = 3
    for number in range(1, count + 1):
        if number <= edge or number > count - edge or number % stride == 0:
            yield number
