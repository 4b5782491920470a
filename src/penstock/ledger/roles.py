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

`Policy` says what each role allows and gives; all other modules ask it, and compare no names. A
role is checked where an access is about to be recorded or made, and only then: it never takes the
place of the ledger, which orders accesses by the bytes they really touch.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock.errors import InvalidValue
from penstock.ledger.hazards import History, Lane, Region

Role: TypeAlias = Literal["generic", "weight", "append", "scratch", "output"]


class Policy(NamedTuple):
    """What a role allows, and what it gives."""

    role: Role
    #: Whether the host may read the bytes without `force=True`, and write them.
    host_reads: bool = True
    host_writes: bool = True
    #: Whether neither host nor kernels may write bytes a second time before `reset`.
    written_once: bool = False
    #: Whether `Device.array` seals the array, so that nothing may write it any more.
    sealed_with_content: bool = False
    #: Whether every submission makes device writes host-visible. If not, the host's first access
    #: does, at the cost of one wait.
    published: bool = True
    #: When the device renames because of a live view: whether the content is copied along even if
    #: the command does not read it, unless the command overwrites all of it.
    kept_by_rename: bool = True
    #: Whether the memory goes to the next array of the role while work in flight still uses it.
    reused_in_flight: bool = False
    #: Whether it lives in memory that the host reads fast.
    host_cached: bool = False

    def page(self, page: History) -> History:
        """The ledger page for memory of the role, with the accesses that `page` has."""
        return AppendHistory(page) if self.written_once else page


POLICIES: dict[str, Policy] = {
    policy.role: policy
    for policy in (
        Policy("generic"),
        Policy("weight", sealed_with_content=True),
        Policy("append", written_once=True, published=False),
        Policy("scratch", host_reads=False, published=False, reused_in_flight=True),
        Policy("output", host_writes=False, kept_by_rename=False, host_cached=True),
    )
}


def policy_of(role: str) -> Policy:
    """The policy of a role that a user has named."""
    if role not in POLICIES:
        raise InvalidValue(f"role={role!r}; choose one of {', '.join(POLICIES)}")
    return POLICIES[role]


class AppendHistory(History):
    """A ledger page that also remembers which bytes were written since the last reset."""

    __slots__ = ("counted", "counter", "pitch", "uncertain", "written")
    pitch: int
    counted: int
    uncertain: bool

    def __init__(self, so_far: History) -> None:
        super().__init__()
        self.reads, self.writes, self.many = so_far.reads, so_far.writes, so_far.many
        self.counter: Any = None  # where the device reads `counted`: see `graph.append_counters`
        self.written: list[Region] = []  # in the order of their first bytes
        self.reset()

    def follow(self, earlier: History) -> None:
        assert isinstance(earlier, AppendHistory)
        self.written = list(earlier.written)
        self.pitch, self.counted, self.counter = earlier.pitch, earlier.counted, earlier.counter
        self.uncertain = earlier.uncertain

    def note(self, region: Region, write: bool, lane: Lane, value: int, what: str) -> None:
        if write and lane.is_host:
            self.mark(region)
        elif write:
            lane.appended.append((self, region))  # marked when the command is recorded
        super().note(region, write, lane, value, what)

    def mark(self, region: Region, undo: list[Callable[[], None]] | None = None) -> None:
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

    def reset(self, kept: Region | None = None, rows: int = 0) -> None:
        """Mark nothing as written any more but the region `kept`, the first `rows` rows."""
        self.renew_writes()
        written, pitch = ([kept], kept.pitch or self.pitch) if kept is not None else ([], 0)
        # Nothing is called from here on, so no exception can leave this half done.
        self.written = written
        self.pitch = pitch  # of pitched rows that were appended
        self.counted = rows  # rows that the device's counter holds
        self.uncertain = False  # whether the counter may hold another number than `counted`

    def note_counter(self, rows: int) -> None:
        """Note that the device's counter holds `rows`."""
        self.counted, self.uncertain = rows, False

    def renew_writes(self) -> None:
        """Make `note` run for the next write, and so mark it, even if its region is unchanged.

        `note_all` skips `note` if the region is the same object as before. So replace it by a copy.
        """
        for access in self.writes:
            access.region = Region(*access.region)

    def written_before(self, region: Region) -> Region | None:
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
