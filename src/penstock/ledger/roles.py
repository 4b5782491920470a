"""What an array is for: a contract that every access is checked against.

=========  =========================================================================================
role       the contract
=========  =========================================================================================
generic    none; the ledger alone decides
weight     once sealed, nothing writes it: reading it waits for nothing, ever
append     bytes are written once; a second write to them needs `reset` first
scratch    contents mean nothing to the host, which may not read them unless it insists
output     written by the device only, read by the host; a write while the host still looks at the
           last content goes to fresh memory, and does not keep what it does not write, unless the
           command may read the array, too
=========  =========================================================================================

A role is checked where an access is about to be recorded or made, and only then: it never takes
the place of the ledger, which orders accesses by the bytes they really touch. What the roles give
beyond the checks: outputs live in memory the host reads fast and are renamed without a copy; and
what the host has no business in (scratch, and appends it never looked at) is not made visible to it
at the end of every submission.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from penstock.errors import InvalidValue
from penstock.ledger.hazards import History, Lane, Region

Role: TypeAlias = Literal["generic", "weight", "append", "scratch", "output"]
ROLES: tuple[str, ...] = get_args(Role)


def as_role(role: str) -> Role:
    if role not in ROLES:
        raise InvalidValue(f"role={role!r}; choose one of {', '.join(ROLES)}")
    return role  # type: ignore[return-value]


class AppendHistory(History):
    """A ledger page that also remembers which bytes were written since the last reset."""

    __slots__ = ("counter", "pitch", "told", "uncertain", "written")
    pitch: int
    told: int
    uncertain: bool

    def __init__(self, so_far: History) -> None:
        super().__init__()
        self.reads, self.writes, self.many = so_far.reads, so_far.writes, so_far.many
        self.counter: Any = None  # where the device reads `told`: see `graph.append_counters`
        self.written: list[Region] = []  # in the order of their first bytes
        self.reset()

    def follow(self, earlier: AppendHistory) -> None:
        """Be of other memory with the same content."""
        self.written = list(earlier.written)
        self.pitch, self.told, self.counter = earlier.pitch, earlier.told, earlier.counter
        self.uncertain = earlier.uncertain

    def note(self, region: Region, write: bool, lane: Lane, value: int, what: str) -> None:
        if write and lane.is_host:
            self.mark(region)
        elif write:
            lane.appended.append((self, region))  # marked when the command is recorded
        super().note(region, write, lane, value, what)

    def mark(self, region: Region, undo: list[Callable[[], None]] | None = None) -> None:
        """These bytes are written now. `undo` gets what takes that back."""
        written = self.written_with(region)
        if undo is not None:
            undo.append(partial(self._take_back, written, self.written, self.pitch))
        self.pitch = region.pitch or self.pitch
        self.written = written

    def _take_back(self, marked: list[Region], written: list[Region], pitch: int) -> None:
        if self.written is marked:  # else more was written since
            self.written, self.pitch = written, pitch

    def written_with(self, region: Region) -> list[Region]:
        """What is written once these bytes are, too. What follows on one another is joined."""
        written = list(self.written)
        if any(earlier.covers(region) for earlier in written):
            return written
        number = 0
        while number < len(written):
            earlier = written[number]
            joined = _joined(earlier, region) or _joined(region, earlier)
            if joined is None:
                number += 1
            else:
                del written[number]
                region, number = joined, 0
        bisect.insort(written, region)
        return written

    def reset(self) -> None:
        """Nothing counts as written any more."""
        self.renew_writes()
        # No call from here on: an exception must not leave a part of it.
        self.written = []
        self.pitch = 0  # of rows that were appended side by side
        self.told = 0  # rows that the device was told of
        self.uncertain = False  # whether the counter may say something else than `told`

    def tell(self, rows: int) -> None:
        """Note that the device's counter holds `rows`."""
        self.told, self.uncertain = rows, False

    def renew_writes(self) -> None:
        """Have the next write noted anew, and so marked, also if it is of the very same bytes.

        The ledger has a short cut for a region that is the same object as before.
        """
        for access in self.writes:
            access.region = Region(*access.region)

    def overlap(self, region: Region) -> Region | None:
        """Something written before that shares a byte with the region."""
        return next((earlier for earlier in self.written if earlier.overlaps(region)), None)


def _joined(first: Region, second: Region) -> Region | None:
    """One region, if the second continues the first: the block, or every one of its rows."""
    if first.pitch != second.pitch:
        return None
    if not first.pitch:
        return Region(first.lo, second.hi) if first.hi == second.lo else None
    if second.lo - first.lo != first.width or second.hi - first.hi != second.width:
        return None
    width = first.width + second.width
    if width == first.pitch:
        return Region(first.lo, second.hi)
    return Region(first.lo, second.hi, width, first.pitch)
