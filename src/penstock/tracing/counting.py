"""Counts of what the runtime does, without the events: for programs that run on and on.

A trace keeps a record of every event, and leaves launches, transfers and waits to slower code. A
`Counts` keeps a number for each kind, and the native step adds to it by itself. It has no times, no
reasons and no lines; a `trace` at the same time has them, and both are right.
"""

from __future__ import annotations

from typing import Any

from penstock import accelerator
from penstock.errors import ArgumentError
from penstock.handle import Handle
from penstock.locks import RLock
from penstock.tracing import events

#: Kinds of events, by the name of their count.
_KINDS = {
    "launch": "launches", "replay": "replays", "submission": "submissions", "barrier": "barriers",
    "copy": "copies", "fill": "fills", "rename": "renames", "allocation": "allocations",
    "wait": "waits",
}  # fmt: skip
#: What the native step counts, in its order.
NATIVE = ("launches", "barriers", "submissions", "waits", "copies", "bytes_copied")
_NAMES = (*_KINDS.values(), "bytes_copied", "replayed_commands", "replayed_barriers")


def _counted(name: str) -> Any:
    return property(lambda counts: counts.as_dict()[name], doc=f"See `Trace.{name}`.")


class Counts(Handle):
    """Made by `count()`: what all devices did, in all threads, while its `with` block ran.

    The counts are attributes, with the names and the meaning that they have on a `Trace`.
    """

    counts_only = True

    launches: int = _counted("launches")
    replays: int = _counted("replays")
    submissions: int = _counted("submissions")
    barriers: int = _counted("barriers")
    copies: int = _counted("copies")
    fills: int = _counted("fills")
    renames: int = _counted("renames")
    allocations: int = _counted("allocations")
    waits: int = _counted("waits")
    bytes_copied: int = _counted("bytes_copied")
    replayed_commands: int = _counted("replayed_commands")
    replayed_barriers: int = _counted("replayed_barriers")

    def __init__(self) -> None:
        self._lock = RLock()  # reentrant: a signal handler may use the runtime, too
        self._counts = dict.fromkeys(_NAMES, 0)
        self._native: tuple[int, ...] | None = None  # counted there when this began

    def add(self, kind: str, nbytes: int, reason: Any) -> None:
        """Count an event; `emit` calls it, with the format and the two counts of a replay."""
        name = _KINDS.get(kind)
        if name is None:
            return
        # Neither a thread nor a signal handler comes between reading a count and writing it: the
        # interpreter looks for them at calls and jumps, and there is none in between.
        counts = self._counts
        with self._lock:
            counts[name] += 1
            if kind == "copy":
                counts["bytes_copied"] += nbytes
            elif kind == "replay":
                counts["replayed_commands"] += reason[1]
                counts["replayed_barriers"] += reason[2]

    def as_dict(self) -> dict[str, int]:
        """The counts by name, so far."""
        with self._lock:
            found, began = dict(self._counts), self._native
        if began is not None:
            for name, now, before in zip(NATIVE, accelerator.native.counts(), began, strict=False):
                found[name] += now - before
        return found

    def __enter__(self) -> Counts:
        if self._native is not None:
            raise ArgumentError("this Counts is counting already; ps.count() makes another")
        self._native = accelerator.native.counts()
        events.begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        events.end(self)
        with self._lock:
            self._counts, self._native = self.as_dict(), None

    def __str__(self) -> str:
        lines = ["penstock counts (how long, why and where: ps.trace())"]
        lines += [f"  {name:<18}{value:>9,}" for name, value in self.as_dict().items()]
        return "\n".join(lines)

    __repr__ = __str__


def count() -> Counts:
    """Count what the runtime does inside the `with` block, at next to no cost.

    For the events themselves, with their reasons, lines and times, use `trace`.
    """
    return Counts()
