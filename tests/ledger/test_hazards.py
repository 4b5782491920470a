"""The ledger, against one that forgets nothing: it orders every conflict, and waits for no more.

The model below keeps every access as the set of its bytes, and every wait that lanes have made.
From these it knows what is bound to be complete when, and judges what the ledger says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ledger import hazards
from penstock.ledger.hazards import (
    Access,
    History,
    Lane,
    Region,
    needs_of_host,
    needs_of_lane,
    note_all,
)

SIZE = 24
DEVICE_LANES, HOST_LANE = 3, 3
PITCH = 7  # one for all of a program: overlaps of two different pitches are only estimated


@st.composite
def regions(draw: st.DrawFn, pitches: st.SearchStrategy[int]) -> Region:
    """A block, or at least two rows that do not touch."""
    lo = draw(st.integers(0, SIZE - 1))
    if draw(st.booleans()):
        return Region(lo, draw(st.integers(lo + 1, SIZE)))
    pitch = draw(pitches)
    width = draw(st.integers(1, pitch - 1))
    rows = draw(st.integers(2, 4))
    return Region(lo, lo + (rows - 1) * pitch + width, width, pitch)


def bytes_of(region: Region) -> frozenset[int]:
    within = range(region.lo, region.hi)
    if not region.pitch:
        return frozenset(within)
    return frozenset(b for b in within if (b - region.lo) % region.pitch < region.width)


any_pitch = regions(st.integers(2, 9))


@settings(max_examples=1000, deadline=None)
@given(any_pitch, any_pitch)
def test_overlap_and_cover_are_those_of_the_bytes(a: Region, b: Region) -> None:
    shared = bytes_of(a) & bytes_of(b)
    exact = a.pitch == b.pitch or not a.pitch or not b.pitch
    assert a.overlaps(b) == b.overlaps(a)
    assert a.overlaps(b) == bool(shared) if exact else a.overlaps(b) or not shared
    covered = bytes_of(b) <= bytes_of(a)
    assert a.covers(b) == (covered if not a.pitch else a == b)


# A program is a list of these.


class Work(NamedTuple):
    """A command on a lane of the device."""

    lane: int
    uses: list[tuple[int, Region, bool]]  # memory, bytes, whether it writes


class HostCopy(NamedTuple):
    """The host waits for what it must, then copies in a lane of its own."""

    memory: int
    region: Region
    write: bool


class Reached(NamedTuple):
    """A lane completes what it may."""

    lane: int


@dataclass
class Entry:
    """An access as the model keeps it."""

    memory: int
    covered: frozenset[int]
    write: bool
    lane: int
    value: int
    epoch: int


class Owner:
    """Stands in for a stream: knows whether its lane has something recorded."""

    has_recorded = False
    lane: Lane

    @property
    def recorded(self) -> int:
        return self.lane.submitted + self.has_recorded


Points = dict[int, int]  # by lane, the value up to which everything is complete


class Model:
    """Runs a program on the ledger, and knows the truth."""

    def __init__(self) -> None:
        self.owners = [Owner() for _ in range(DEVICE_LANES + 1)]
        self.lanes = [
            Lane(str(number), owner, is_host=number == HOST_LANE)
            for number, owner in enumerate(self.owners)
        ]
        for owner, lane in zip(self.owners, self.lanes, strict=True):
            owner.lane = lane
        self.numbers = {lane: number for number, lane in enumerate(self.lanes)}
        self.histories = [History(), History()]
        self.entries: list[Entry] = []
        self.waits: dict[tuple[int, int], Points] = {}  # of each submission

    def run(self, step: Work | HostCopy | Reached) -> None:
        match step:
            case Work():
                self.work(step)
            case HostCopy():
                self.host_copy(step)
            case Reached(number) if self.lanes[number].complete < self.lanes[number].submitted:
                self.complete({number: self.lanes[number].complete + 1})

    def work(self, step: Work) -> None:
        lane, owner = self.lanes[step.lane], self.owners[step.lane]
        uses = [(self.histories[memory], region, write) for memory, region, write in step.uses]
        behind, waits = needs_of_lane(lane, uses)
        conflicts = [entry for use in step.uses for entry in self.conflicts(*use)]
        self.expect_no_more(waits, conflicts)
        for other, value in waits.items():
            assert value > self.waited_for(step.lane, other), "waits twice"
        assert behind is None or any(
            c.lane == step.lane and c.epoch == lane.epoch for c in conflicts
        ), "a barrier that nothing asks for"
        if waits:
            self.submit(step.lane, lane.recorded)
            for other, value in waits.items():
                self.submit(self.numbers[other], value)
                lane.seen[other.number] = max(value, lane.seen.get(other.number, 0))
            self.waits.setdefault((step.lane, lane.submitted + 1), {}).update(
                {self.numbers[other]: value for other, value in waits.items()}
            )
        lane.epoch += behind is not None
        before: Points = {}
        for value in range(1, lane.submitted + 2):
            self.reach(self.waits.get((step.lane, value), {}), before)
        for c in conflicts:
            behind_barrier = c.lane == step.lane and c.epoch < lane.epoch
            assert behind_barrier or c.value <= before.get(c.lane, 0), f"not ordered after {c}"
        owner.has_recorded = True
        note_all(uses, lane, lane.submitted + 1, "")
        for use in step.uses:
            self.remember(*use, step.lane, lane.submitted + 1)

    def host_copy(self, step: HostCopy) -> None:
        found: list[Access] = []
        self.histories[step.memory].collect(step.region, step.write, found)
        waits = needs_of_host(found)
        conflicts = self.conflicts(*step)
        self.expect_no_more(waits, conflicts)
        for lane, value in waits.items():
            self.submit(self.numbers[lane], value)
        self.complete({self.numbers[lane]: value for lane, value in waits.items()})
        assert not self.conflicts(*step), "the host did not wait for all of them"
        lane = self.lanes[HOST_LANE]
        lane.submitted += 1
        self.histories[step.memory].note(step.region, step.write, lane, lane.submitted, "")
        self.remember(*step, HOST_LANE, lane.submitted)

    def remember(self, memory: int, region: Region, write: bool, number: int, value: int) -> None:
        epoch = self.lanes[number].epoch
        self.entries.append(Entry(memory, bytes_of(region), write, number, value, epoch))

    def conflicts(self, memory: int, region: Region, write: bool) -> list[Entry]:
        """Every access that is not complete, shares a byte, and one of the two writes."""
        touched = bytes_of(region)
        return [
            entry
            for entry in self.entries
            if entry.memory == memory
            and (write or entry.write)
            and entry.covered & touched
            and entry.value > self.lanes[entry.lane].complete
        ]

    def expect_no_more(self, waits: dict[Lane, int], conflicts: list[Entry]) -> None:
        newest: Points = {}
        for c in conflicts:
            newest[c.lane] = max(c.value, newest.get(c.lane, 0))
        for lane, value in waits.items():
            assert value <= newest.get(self.numbers[lane], 0), "waits for more than it must"

    def waited_for(self, number: int, other: Lane) -> int:
        """The newest value of the other lane that work on this one waits for already."""
        each = [points for (waiting, _), points in self.waits.items() if waiting == number]
        return max((points.get(self.numbers[other], 0) for points in each), default=0)

    def submit(self, number: int, value: int) -> None:
        lane = self.lanes[number]
        if value > lane.submitted:
            assert self.owners[number].has_recorded, "waits for what was never recorded"
            lane.submitted += 1
            self.owners[number].has_recorded = False

    def reach(self, points: Points, complete: Points) -> None:
        """Add to `complete` what is bound to be complete once these points are."""
        for number, value in points.items():
            for earlier in range(complete.get(number, 0) + 1, value + 1):
                complete[number] = earlier
                self.reach(self.waits.get((number, earlier), {}), complete)

    def complete(self, points: Points) -> None:
        reached = {number: lane.complete for number, lane in enumerate(self.lanes)}
        self.reach(points, reached)
        for number, value in reached.items():
            self.lanes[number].complete = value


@st.composite
def programs(draw: st.DrawFn) -> list[Work | HostCopy | Reached]:
    """Steps on a few regions again and again, because arrays are used again and again."""
    few = draw(st.lists(regions(st.just(PITCH)), min_size=4, max_size=8))
    memory, region = st.integers(0, 1), st.sampled_from(few)
    uses = st.lists(st.tuples(memory, region, st.booleans()), min_size=1, max_size=3)
    step = st.one_of(
        st.builds(Work, st.integers(0, DEVICE_LANES - 1), uses),
        st.builds(HostCopy, memory, region, st.booleans()),
        st.builds(Reached, st.integers(0, HOST_LANE)),
    )
    return draw(st.lists(step, min_size=15, max_size=40))


@pytest.mark.parametrize(("prune_at", "sort_at"), [(2, 64), (2, 3), (32, 32), (1, 1)])
def test_the_ledger_orders_every_conflict_and_waits_for_no_more(
    prune_at: int, sort_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hazards, "_PRUNE_AT", prune_at)
    monkeypatch.setattr(hazards, "_SORT_AT", sort_at)

    @settings(max_examples=150, deadline=None)
    @given(programs())
    def check(program: list[Work | HostCopy | Reached]) -> None:
        model = Model()
        for step in program:
            model.run(step)

    check()


def test_the_example_of_the_module() -> None:
    a, b = Lane("A", Owner()), Lane("B", Owner())
    w, y, everything = History(), History(), Region(0, SIZE)

    def found(history: History, write: bool) -> list[Access]:
        conflicts: list[Access] = []
        history.collect(everything, write, conflicts)
        return conflicts

    w.note(everything, False, a, 1, "first kernel")
    y.note(everything, True, a, 1, "first kernel")
    assert needs_of_host(found(w, write=False)) == {}
    assert needs_of_host(found(y, write=False)) == {a: 1}
    assert needs_of_lane(a, [(y, everything, False)]) == (y.writes[0], {})
    a.epoch += 1
    assert needs_of_lane(a, [(y, everything, False)]) == (None, {})
    assert needs_of_lane(b, [(w, everything, True)]) == (None, {a: 1})
    b.seen[a.number] = 1
    assert needs_of_lane(b, [(w, everything, True)]) == (None, {})
    a.complete = 1
    assert needs_of_host(found(y, write=True)) == {}


def noted(lane: Lane, *accesses: tuple[Region, int, str]) -> list[Region]:
    """The regions in the ledger after these writes: bytes, value, and who."""
    history = History()
    for region, value, what in accesses:
        history.note(region, True, lane, value, what)
    return [access.region for access in history.writes]


def test_accesses_side_by_side_that_nobody_could_wait_for_apart_become_one() -> None:
    lane = Lane("A", None)
    first, second, third = (Region(64 * n, 64 * n + 64) for n in range(3))
    assert noted(lane, (first, 1, "k"), (second, 1, "k"), (third, 1, "k")) == [Region(0, 192)]
    for others in (
        [(first, 1, "k"), (second, 2, "k")],  # a host that needs the first must not wait for both
        [(first, 1, "k"), (second, 1, "l")],  # a wait names the kernel that wrote the bytes
        [(first, 1, "k"), (third, 1, "k")],
        [(first, 1, "k"), (Region(64, 100, 4, 8), 1, "k")],
    ):
        assert noted(lane, *others) == [region for region, _, _ in others]


def test_accesses_on_both_sides_of_a_barrier_stay_two() -> None:
    lane = Lane("A", None)
    history = History()
    history.note(Region(0, 64), True, lane, 1, "k")
    lane.epoch += 1
    history.note(Region(64, 128), True, lane, 1, "k")
    assert needs_of_lane(lane, [(history, Region(0, 64), False)]) == (None, {})
    assert needs_of_lane(lane, [(history, Region(64, 128), False)]) == (history.writes[1], {})
