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

    def follow(self, earlier: History) -> None:
        assert isinstance(earlier, AppendHistory)
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

    def written_before(self, region: Region) -> Region | None:
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
