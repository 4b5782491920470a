"""Memory that goes to a result while work uses it: unordered, shown, too dear, or without bound."""

from __future__ import annotations

from mutation.mutants import Mutant


def _mutant(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, "memory.pool", old, new, driver="reuse")


REUSE = [
    _mutant(
        "results forget the writes in flight",
        "        fresh.history.writes = ",
        "        _ = ",
    ),
    _mutant(
        "results forget the reads in flight",
        "        fresh.history.reads = ",
        "        _ = ",
    ),
    _mutant(
        "a result overwrites what a view shows",
        "        if backing.holds or history.device_only",
        "        if history.device_only",
    ),
    _mutant(
        "memory is handed on twice",
        "        self._retired[backing.nbytes].remove(backing)\n",
        "        backing.released = False\n",
    ),
    _mutant("a barrier is never worth memory", "self.pending > _MUCH,", "False,"),
    _mutant("a barrier is always worth memory", "self.pending > _MUCH,", "True,"),
    _mutant(
        "a wait for a view is worth memory",
        "self._suits(backing, lane, others)",
        "self._suits(backing, lane, True)",
    ),
    _mutant("a wait is never worth memory", "self.pending > _TOO_MUCH\n", "False\n"),
    _mutant("a wait is always worth memory", "self.pending > _TOO_MUCH\n", "True\n"),
]
