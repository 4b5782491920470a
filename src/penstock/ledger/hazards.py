"""The hazards ledger: who touches which bytes, and what must therefore wait for what.

Everything that runs is in some *lane*: a line of work that completes in order. A stream is a lane;
so is a host copy that is under way. Each lane counts: the value it has *recorded*, *submitted* and
seen *complete*. Every access to memory is written down as (byte region, read or write, lane,
value), and two verbs do the rest:

`collect`   finds the accesses that conflict with a new one: same bytes, at least one writes
`note`      writes the new access down, and crosses out those it makes superfluous

What the conflicts demand depends on who asks, and is worked out in one place each:

- Work on a lane (`needs_of_lane`): a conflict on the same lane needs a barrier, unless one was
  recorded since (a lane counts its barriers as *epochs*, and an access remembers the epoch it was
  recorded in). A conflict on another lane needs a wait for that lane's value, once.
- The host (`needs_of_host`): a wait for every conflicting value that is not complete, and no other.
  A barrier does not help here: it orders the device, not the host.

Example. A kernel on lane A reads w and writes y: `w.note(read, A, 1)`, `y.note(write, A, 1)`.
The host reads w: `collect(w, read)` finds no write, so it waits for nothing. The host reads y: it
waits for (A, 1). A second kernel on A reads y: same lane, same epoch, so one barrier; a third that
reads y needs none. A kernel on lane B writes w: it waits for (A, 1), because A still reads it.

Crossing out is what keeps the ledger short. A write is ordered after everything it conflicts with,
so waiting for the write waits for those too: accesses within its bytes can go. A later read of the
same bytes on the same lane replaces the earlier one, because lanes complete in order. And adjacent
accesses that cannot be waited for separately (same lane, value and epoch) become one, so the cost
does not grow with the number of rows accessed one after another. When hundreds of parts of one
array are in flight, accesses are sorted by their first bytes, and only those near the bytes in
question are examined.

Nothing here calls a driver, and nothing here waits.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from penstock import accelerator
from penstock.locks import RLock

_PRUNE_AT = 32
_SORT_AT = 32
ACCESS = "%s of bytes %d:%d by %s on %s"
_numbers = itertools.count()


class Region(NamedTuple):
    """Bytes lo to hi; with a pitch, only the first `width` bytes of every `pitch` from lo on."""

    lo: int
    hi: int
    width: int = 0
    pitch: int = 0

    def overlaps(self, other: Region) -> bool:
        """Whether the two share a byte. Exact, but for two regions of different pitch."""
        if not (self.lo < other.hi and other.lo < self.hi):
            return False
        if self.pitch == other.pitch:
            if not self.pitch:
                return True
            shift = (other.lo - self.lo) % self.pitch
            return shift < self.width or self.pitch - shift < other.width
        if not self.pitch:
            return _rows_touch(other, self)
        if not other.pitch:
            return _rows_touch(self, other)
        return True

    def covers(self, other: Region) -> bool:
        """Whether every byte of the other is in this one."""
        if self.pitch:
            return self == other
        return self.lo <= other.lo and other.hi <= self.hi

    def covers_rows(self, other: Region) -> bool:
        """Whether it covers the other, or has the same rows from the same byte on, and longer."""
        return self.covers(other) or (
            0 < self.pitch == other.pitch
            and self.lo == other.lo
            and self.width >= other.width
            and self.hi - self.width >= other.hi - other.width
        )


def _rows_touch(rows: Region, block: Region) -> bool:
    """Whether pitched rows meet a contiguous block."""
    first = max(0, (block.lo - rows.lo) // rows.pitch)
    start = rows.lo + first * rows.pitch
    return start + rows.width > block.lo or start + rows.pitch < min(block.hi, rows.hi)


@accelerator.share
class Lane:
    """A line of work that completes in order. `owner` is the object that submits and signals it."""

    __slots__ = (
        "__weakref__", "appended", "complete", "epoch", "is_host", "name", "number", "owner",
        "place", "reaching", "seen", "submitted",
    )  # fmt: skip

    def __init__(self, name: str, owner: Any, *, is_host: bool = False, device: str = "") -> None:
        self.name = name
        self.number = next(_numbers)
        self.place = (device, name, self.number)  # kept by receipts in place of the lane
        self.owner = owner
        self.is_host = is_host
        self.submitted = 0
        self.complete = 0  # raised by `reach`
        self.reaching = RLock()
        self.epoch = 0
        #: By number of another lane: the value that this lane already waits for, so that later
        #: work here need not wait again. (By number, so that lanes do not keep each other alive.)
        self.seen: dict[int, int] = {}
        #: Regions that the command being recorded appends. They count as written once it is
        #: recorded.
        self.appended: list[tuple[Any, Region]] = []

    @property
    def recorded(self) -> int:
        """The value that the lane reaches when everything recorded so far is complete."""
        recorded: int = self.owner.recorded
        return recorded

    def reach(self, value: int) -> None:
        """Note that all work up to this value is complete. Safe in any thread, without any lock.

        Another thread may learn of a later value at the same time, and `complete` must not go back:
        the driver's objects may be gone with which one could find out again.
        """
        if not accelerator.native.reach(self, value):
            with self.reaching:
                if value > self.complete:
                    self.complete = value

    def forget_appended(self) -> None:
        """Discard what a failed command was to append: it does not count as written."""
        for history, _ in self.appended:
            history.renew_writes()
        self.appended.clear()

    def mark_appended(self) -> None:
        """Mark rows of append-only arrays as written, now that the command is recorded."""
        appended = self.appended
        try:
            for history, region in appended:
                history.mark(region)
        except BaseException:
            for history, region in appended:  # interrupted: complete it, marking twice is harmless
                history.mark(region)
            raise
        appended.clear()


@accelerator.share
class Access:
    """One entry of the ledger."""

    __slots__ = ("epoch", "lane", "region", "value", "what", "write")

    def __init__(self, region: Region, write: bool, lane: Lane, value: int, what: str) -> None:
        self.region = region
        self.write = write
        self.lane = lane
        self.value = value
        self.epoch = lane.epoch
        self.what = what

    @property
    def pending(self) -> bool:
        return self.value > self.lane.complete

    def __repr__(self) -> str:
        return ACCESS % self.facts

    @property
    def facts(self) -> tuple[str, int, int, str, str]:
        """The arguments of the format `ACCESS`, as they are now; formatted when they are read."""
        verb = "write" if self.write else "read"
        return (verb, self.region.lo, self.region.hi, self.what, self.lane.name)


class Sorted:
    """Many accesses, sorted by their first bytes. A few long ones are kept apart, unsorted."""

    __slots__ = ("_long", "_reach", "_short", "full")

    def __init__(self, accesses: list[Access]) -> None:
        lengths = sorted(access.region.hi - access.region.lo for access in accesses)
        self._reach = 2 * lengths[len(lengths) // 2]  # regions longer than this are "long"
        self._short: list[tuple[int, int, Access]] = []  # by first byte, then by age
        self._long: list[Access] = []
        for access in accesses:
            self.add(access)
        self.full = 2 * len(accesses)  # the length at which to prune again

    def __len__(self) -> int:
        return len(self._short) + len(self._long)

    def __iter__(self) -> Iterator[Access]:
        yield from (access for _, _, access in self._short)
        yield from self._long

    def near(self, region: Region) -> list[Access]:
        """A superset of the accesses that share a byte with the region."""
        first = bisect_left(self._short, (region.lo - self._reach + 1,))
        last = bisect_left(self._short, (region.hi,))
        return [*(access for _, _, access in self._short[first:last]), *self._long]

    def add(self, access: Access) -> None:
        lo, hi, *_ = access.region
        if hi - lo > self._reach:
            self._long.append(access)
        else:
            insort(self._short, (lo, next(_numbers), access))

    def cross_out(self, access: Access) -> None:
        lo, hi, *_ = access.region
        if hi - lo > self._reach:
            self._long.remove(access)
        else:
            at = bisect_left(self._short, (lo,))
            while self._short[at][2] is not access:
                at += 1
            del self._short[at]


@accelerator.share
class History:
    """The accesses to one piece of memory that may still matter."""

    __slots__ = ("device_only", "many", "reads", "writes")

    def __init__(self) -> None:
        self.device_only = False  # device writes here are not made host-visible
        self.reads: list[Access] | Sorted = []
        self.writes: list[Access] | Sorted = []
        self.many = False  # whether `reads` or `writes` is, or was, `Sorted`

    def near(self, region: Region, write: bool) -> list[Access]:
        """A superset of the accesses that conflict with reading or writing `region`."""
        found = _near(self.writes, region)
        return [*found, *_near(self.reads, region)] if write and self.reads else found

    def collect(self, region: Region, write: bool, found: list[Access]) -> None:
        """Add to `found` every access that conflicts with reading or writing `region`."""
        if self.writes or (write and self.reads):
            near = self.near(region, write)
            found += [access for access in near if region.overlaps(access.region)]

    def note(self, region: Region, write: bool, lane: Lane, value: int, what: str) -> None:
        """Write down an access that is ordered after everything `collect` found for it.

        The new access is added before those it makes superfluous are removed: an exception in
        between must not leave the ledger without either.
        """
        entries = self.writes if write else self.reads
        if len(entries) >= _PRUNE_AT:
            entries = self._prune(write)
        new = Access(region, write, lane, value, what)
        if isinstance(entries, Sorted):
            entries.add(new)
        elif entries and _continues(entries[-1], region, lane, value, what):
            new = entries[-1]
            new.region = Region(new.region.lo, region.hi)
        else:
            entries.append(new)
        if len(entries) > 1:
            _cross_out(entries, region, None if write else lane, new)
        if write and self.reads:
            _cross_out(self.reads, region, None, new)

    # What only a page that remembers more than accesses has to do: see `roles.AppendHistory`.

    def follow(self, earlier: History) -> None:
        """Become the page of other memory with the same content."""

    def mark(self, region: Region, undo: list[Callable[[], None]] | None = None) -> None:
        """Remember that these bytes are written. `undo` gets what takes that back."""

    def written_before(self, region: Region) -> Region | None:
        """Bytes that are written and may not be written again, if any share a byte with these."""
        return None

    def _prune(self, write: bool) -> list[Access] | Sorted:
        """The reads or writes without those that are complete; sorted if many are left."""
        entries = self.writes if write else self.reads
        if isinstance(entries, Sorted) and len(entries) < entries.full:
            return entries  # prune only when the number has doubled: amortized constant cost
        pending = [access for access in entries if access.value > access.lane.complete]
        left: list[Access] | Sorted = pending
        if len(pending) >= _SORT_AT:
            left = Sorted(pending)
            self.many = True
        if write:
            self.writes = left
        else:
            self.reads = left
        return left

    @property
    def in_flight(self) -> bool:
        """Whether any work uses this memory, as far as its lanes are known to have come."""
        for entries in (self.writes, self.reads):
            for access in entries:
                if access.value > access.lane.complete:
                    return True
        return False

    def pending(self) -> dict[Lane, int]:
        """By lane: the value after which no work uses this memory any more."""
        return needs_of_host([*self.reads, *self.writes])


def _near(entries: list[Access] | Sorted, region: Region) -> list[Access]:
    return entries.near(region) if isinstance(entries, Sorted) else entries


def _cross_out(
    entries: list[Access] | Sorted, region: Region, lane: Lane | None, new: Access
) -> None:
    """Remove the accesses within a region, except the new one; with a lane, only that lane's."""
    if isinstance(entries, Sorted):
        for access in entries.near(region):
            own = lane is None or access.lane is lane
            if own and access is not new and region.covers(access.region):
                entries.cross_out(access)
    else:
        entries[:] = [
            a
            for a in entries
            if a is new or not ((not lane or a.lane is lane) and region.covers(a.region))
        ]


def _continues(last: Access, region: Region, lane: Lane, value: int, what: str) -> bool:
    """Whether a new access begins where the last one ends, and is otherwise the same."""
    before = last.region
    return (
        before.hi == region.lo
        and last.lane is lane
        and last.value == value
        and last.epoch == lane.epoch
        and last.what == what
        and not before.pitch
        and not region.pitch
    )


#: What a command touches: the memory's history, its bytes, and whether it writes them.
Use = tuple[History, Region, bool]


def note_all(uses: Iterable[Use], lane: Lane, value: int, what: str) -> None:
    """Write down a command's accesses."""
    epoch = lane.epoch
    for history, region, write in uses:
        if history.many or (write and (history.reads or len(history.writes) != 1)):
            history.note(region, write, lane, value, what)
            continue
        for known in history.writes if write else history.reads:
            if known.region is region and known.lane is lane:
                # Steady state: the same array on the same lane again.
                known.value = value
                known.epoch = epoch
                known.what = what
                break
        else:
            history.note(region, write, lane, value, what)


def needs_of_lane(lane: Lane, uses: Iterable[Use]) -> tuple[Access | None, dict[Lane, int]]:
    """What a command on `lane` needs before it may run: a barrier, and waits for other lanes.

    Instead of a barrier, returns the first access that it must separate the command from.
    """
    behind: Access | None = None
    waits: dict[Lane, int] = {}
    for history, region, write in uses:
        # `History.collect`, inlined: this is on the hot path of every launch.
        if history.many:
            entries: Iterable[Access] = history.near(region, write)
        elif write and history.reads:
            entries = [*history.writes, *history.reads]
        else:
            entries = history.writes
        for access in entries:
            if access.region is not region and not region.overlaps(access.region):
                continue
            other = access.lane
            if other is lane:
                if not behind and access.epoch >= lane.epoch and access.value > lane.complete:
                    behind = access
            elif access.value > other.complete and access.value > lane.seen.get(other.number, 0):
                waits[other] = max(waits.get(other, 0), access.value)
    return behind, waits


def works_in(waits: Iterable[Lane], uses: Iterable[Use]) -> dict[Lane, str]:
    """By lane: the work in flight that a command with these uses conflicts with, for the receipt.

    A lane that is not in the result is waited for because of an event alone.
    """
    found: dict[Lane, str] = {}
    lanes = set(waits)
    for history, region, write in uses:
        for access in history.near(region, write):
            lane = access.lane
            conflicts = access.value > lane.complete and region.overlaps(access.region)
            if lane in lanes and conflicts:
                found[lane] = access.what
    return found


def needs_of_host(conflicts: Iterable[Access]) -> dict[Lane, int]:
    """By lane: the value that the host must wait for before it may touch the memory."""
    waits: dict[Lane, int] = {}
    for access in conflicts:
        lane = access.lane
        if access.value > lane.complete and access.value > waits.get(lane, 0):
            waits[lane] = access.value
    return waits
