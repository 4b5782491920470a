"""Race detection: vector clocks, and a log of accesses.

An *agent* is a queue or the host. Each agent numbers its accesses. A clock holds, for each agent,
the number up to which its accesses are known: ordered before, and visible.

Two accesses to the same bytes, at least one a write, are a race unless the later one's clock
includes the earlier one. Clocks are joined exactly by the operations that the driver protocol
lists, so a race is reported whether or not the chosen schedule turns it into a wrong value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: The host, as an agent. Queues are agents 1, 2, …
HOST = 0

#: Agent → number. A missing agent counts as 0.
Clock = dict[int, int]


def join(clock: Clock, other: Clock) -> None:
    """Add everything that the other clock knows."""
    for agent, number in other.items():
        if number > clock.get(agent, 0):
            clock[agent] = number


@dataclass(frozen=True, slots=True, eq=False)
class Doing:
    """An access in the log."""

    lo: int
    hi: int
    write: bool
    agent: int
    number: int
    what: str
    where: str

    def without(self, lo: int, hi: int) -> list[Doing]:
        """The parts of it outside these bytes."""
        if lo <= self.lo and self.hi <= hi:
            return []
        sides = ((self.lo, min(self.hi, lo)), (max(self.lo, hi), self.hi))
        return [replace(self, lo=start, hi=end) for start, end in sides if start < end]

    def __str__(self) -> str:
        verb = "writes" if self.write else "reads"
        place = f", issued at {self.where}" if self.where else ""
        return f"{self.what} {verb} bytes {self.lo}:{self.hi}{place}"


class AccessLog:
    """The accesses to one memory that a later one could race with."""

    __slots__ = ("_doings",)

    def __init__(self) -> None:
        self._doings: list[Doing] = []

    def add(self, new: Doing, ordered: Clock, visible: Clock) -> Doing | None:
        """Log an access; returns an earlier one that it races with, if there is one.

        An earlier write must be visible to the new access; an earlier read must only be complete.
        """
        lo, hi, write = new.lo, new.hi, new.write
        met = [d for d in self._doings if d.lo < hi and lo < d.hi and (d.write or write)]
        raced = None
        for old in met:
            itself = old.agent == new.agent and old.number == new.number
            known = visible if old.write else ordered
            if old.number > known.get(old.agent, 0) and not itself:
                raced = raced or old
            elif write and not itself:
                # A clock that includes the new access includes this one, where the two overlap.
                self._doings.remove(old)
                self._doings += old.without(lo, hi)
        self._doings.append(new)
        return raced
