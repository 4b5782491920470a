"""Simulated memory: what the device sees and what the host sees are two things.

Every write becomes an entry that reaches the device's bytes and the host's bytes separately: at
the latest when someone who knows of it looks, and earlier only if the adversary likes. So a reader
that does not know of a write may see old bytes or new ones.
"""

from __future__ import annotations

import ctypes
import random

import numpy as np
import numpy.typing as npt

from penstock.driver.sim.clocks import AccessLog, Clock

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_PIECES = 16  # of one look at what the program wrote; more become one entry


class _Entry:
    """A write on its way."""

    __slots__ = (
        "agent", "content", "end", "for_host", "lo", "number", "on_device", "on_host", "only",
    )  # fmt: skip

    def __init__(self, agent: int, number: int, lo: int, content: Bytes, only: Mask | None) -> None:
        self.agent = agent
        self.number = number
        self.lo = lo
        self.end = lo + len(content)
        self.content = content
        self.only = only  # the bytes that it writes, if not all
        self.on_host = self.on_device = False
        self.for_host = np.ones(len(content), np.bool_)  # but what the host has overwritten since

    def overwritten(self, newer: _Entry) -> None:
        """The host has written these bytes: older ones do not come after."""
        lo, hi = max(self.lo, newer.lo), min(self.end, newer.end)
        if lo < hi:
            kept = False if newer.only is None else ~newer.only[lo - newer.lo : hi - newer.lo]
            self.for_host[lo - self.lo : hi - self.lo] &= kept

    def there(self, device: bool) -> bool:
        return self.on_device if device else self.on_host


class SimMemory:
    """One allocation. Starts as garbage, ends as poison.

    Where memory is not coherent, the layer above announces every host access. On coherent memory,
    and on what the program itself sees, host writes are found by looking, at every submission and
    signal; device writes reach the host when it has seen that they are done and published.
    """

    def __init__(
        self,
        handle: int,
        nbytes: int,
        chance: random.Random,
        *,
        imported: int | None = None,
        mapped: bool = True,
        shared: bool = False,
        coherent: bool = False,
    ) -> None:
        self.handle = handle
        self.coherent = coherent
        self.nbytes = nbytes
        self.cached = True
        self.freed = False
        self.log = AccessLog()
        self._chance = chance
        self._entries: list[_Entry] = []
        if imported is None:
            self._owned = np.frombuffer(chance.randbytes(min(nbytes, 4096)), np.uint8)
            self.host = np.resize(self._owned, nbytes)
            # The garbage differs, unless the host writes its side without saying what.
            self.device = self.host.copy() if shared else np.resize(self._owned[::-1], nbytes)
        else:
            area = (ctypes.c_uint8 * nbytes).from_address(imported)
            self.host = np.ctypeslib.as_array(area)
            self.device = self.host.copy()
        self.imported = imported is not None
        self.address: int | None = None
        if mapped:
            self.address = self.host.__array_interface__["data"][0]
        # What the host's bytes were when last looked at, if it may write them unannounced.
        self._last: Bytes | None = self.host.copy() if shared else None

    def write(
        self,
        agent: int,
        number: int,
        lo: int,
        content: Bytes,
        *,
        on_host: bool,
        only: Mask | None = None,
    ) -> None:
        """A write by a command, or by the host, which then has it in its own bytes already."""
        if self.freed:
            return
        entry = _Entry(agent, number, lo, content.copy(), only)
        if on_host:
            entry.on_host = True
            for older in self._entries:
                older.overwritten(entry)
            if self._last is not None:
                self._last[lo : entry.end] = entry.content
        self._entries.append(entry)

    def read(self, lo: int, hi: int, known: Clock) -> Bytes:
        """What a command that knows so much sees."""
        self.arrive(lo, hi, known, device=True)
        return self.device[lo:hi].copy()

    def arrive(self, lo: int, hi: int, known: Clock, *, device: bool) -> None:
        """Let every write that is known, and any other the adversary picks, reach one side."""
        for index, entry in enumerate(self._entries):
            if entry.lo < hi and lo < entry.end and not entry.there(device):
                known_of = entry.number <= known.get(entry.agent, 0)
                if known_of or self._chance.random() < 0.2:
                    self._put_after_older(index, device=device)
        self._entries = [e for e in self._entries if not (e.on_device and e.on_host)]

    def _put_after_older(self, index: int, *, device: bool) -> None:
        """An older write of the same bytes never arrives after a newer one."""
        entry = self._entries[index]
        for place in range(index):
            older = self._entries[place]
            if older.lo < entry.end and entry.lo < older.end and not older.there(device):
                self._put_after_older(place, device=device)
        self._put(entry, device=device)

    def _put(self, entry: _Entry, *, device: bool) -> None:
        if device:
            only = slice(None) if entry.only is None else entry.only
            self.device[entry.lo : entry.end][only] = entry.content[only]
            entry.on_device = True
            return
        entry.on_host = True
        for side in (self.host, self._last):
            if side is not None:
                side[entry.lo : entry.end][entry.for_host] = entry.content[entry.for_host]

    def unsaid_writes(self) -> list[tuple[int, int, Mask | None]]:
        """Where the host wrote unannounced since the last look: bytes from and to,
        and which of them, if it changed some here and some there."""
        if self._last is None or np.array_equal(_words(self._last), _words(self.host)):
            return []
        differs = self._last != self.host
        changed = np.flatnonzero(differs)
        self._last[changed] = self.host[changed]
        breaks = np.flatnonzero(np.diff(changed) > 1)
        if len(breaks) > _PIECES:
            lo, hi = int(changed[0]), int(changed[-1]) + 1
            return [(lo, hi, differs[lo:hi])]
        starts = changed[np.concatenate(([0], breaks + 1))].tolist()
        ends = changed[np.concatenate((breaks, [len(changed) - 1]))].tolist()
        return [(start, end + 1, None) for start, end in zip(starts, ends, strict=True)]

    @property
    def is_watched(self) -> bool:
        """Whether the host looks at this memory, and writes it, unannounced."""
        return self._last is not None

    def free(self) -> None:
        self.freed = True
        self.device = np.broadcast_to(np.uint8(0xDB), self.nbytes)  # poison that takes no memory
        self._last = None
        self._entries.clear()
        if not self.imported:  # else it is the program's, which goes on with it
            self.host.fill(0xDB)


def _words(content: Bytes) -> npt.NDArray[np.uint64]:
    """The same bytes, quicker to compare; allocations are whole words."""
    return content.view(np.uint64)
