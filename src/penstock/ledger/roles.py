"""What an array is for: a contract that every access is checked against.

=========  =========================================================================================
role       the contract
=========  =========================================================================================
generic    none; the ledger alone decides
weight     once sealed, nothing writes it: reading it waits for nothing, ever
append     bytes are written once; a second write to them needs `reset` first
scratch    temporary data of the device; the host may not read it unless it insists
output     written by the device only, read by the host; a write while a host view still shows the
           last content goes to fresh memory. Bytes that it does not write are lost then, unless
           the command may also read the array
=========  =========================================================================================

A role is checked only when an access is about to be recorded or made. It never replaces the ledger,
which orders accesses by the bytes they really touch. Beyond the checks, roles have two effects:
outputs live in memory that the host reads fast, and are renamed without a copy; and writes to
scratch, and to append-only arrays that the host has not read yet, are not made host-visible at the
end of every submission.
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
        """Take over the state of another page, whose content was moved to this memory."""
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
        """Mark these bytes as written. Appends to `undo` a function that reverses it."""
        written = self.written_with(region)
        if undo is not None:
            undo.append(partial(self._take_back, written, self.written, self.pitch))
        self.pitch = region.pitch or self.pitch
        self.written = written

    def _take_back(self, marked: list[Region], written: list[Region], pitch: int) -> None:
        if self.written is marked:  # else later writes were marked since
            self.written, self.pitch = written, pitch

    def written_with(self, region: Region) -> list[Region]:
        """The written regions with this one added; adjacent regions are joined."""
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
        """Mark nothing as written any more."""
        self.renew_writes()
        # Nothing is called from here on, so no exception can leave this half done.
        self.written = []
        self.pitch = 0  # of pitched rows that were appended
        self.told = 0  # rows that the device's counter holds
        self.uncertain = False  # whether the counter may hold another number than `told`

    def tell(self, rows: int) -> None:
        """Note that the device's counter holds `rows`."""
        self.told, self.uncertain = rows, False

    def renew_writes(self) -> None:
        """Make `note` run for the next write, and so mark it, even if its region is unchanged.

        `note_all` skips `note` if the region is the same object as before. So replace it by a copy.
        """
        for access in self.writes:
            access.region = Region(*access.region)

    def overlap(self, region: Region) -> Region | None:
        """A written region that shares a byte with this one, if there is one."""
        return next((earlier for earlier in self.written if earlier.overlaps(region)), None)


def _joined(first: Region, second: Region) -> Region | None:
    """Both as one region, if the second continues the first: as a block, or in each row."""
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
