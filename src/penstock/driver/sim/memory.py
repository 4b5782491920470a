"""Simulated memory, in which the device and the host see different bytes.

Every write becomes an entry that reaches the device's copy and the host's copy separately: at the
latest when an agent reads to which the write is visible, and earlier if the adversary chooses. So
an agent to which a write is not visible may read old bytes or new ones.
"""

from __future__ import annotations

import ctypes
import random

import numpy as np
import numpy.typing as npt

from penstock.driver.sim.clocks import AccessLog, Clock

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_PIECES = 16  # changed ranges per scan of the host's bytes; if there are more, they share an entry


class _Entry:
    """A write that has not reached both copies yet."""

    __slots__ = (
        "agent", "content", "end", "for_host", "lo", "number", "on_device", "on_host", "only",
    )  # fmt: skip

    def __init__(self, agent: int, number: int, lo: int, content: Bytes, only: Mask | None) -> None:
        self.agent = agent
        self.number = number
        self.lo = lo
        self.end = lo + len(content)
        self.content = content
        self.only = only  # a mask of the bytes that it writes, if not all
        self.on_host = self.on_device = False
        self.for_host = np.ones(len(content), np.bool_)  # minus what the host overwrote since

    def overwritten(self, newer: _Entry) -> None:
        """Keep this entry from overwriting bytes that the host has written since."""
        lo, hi = max(self.lo, newer.lo), min(self.end, newer.end)
        if lo < hi:
            kept = False if newer.only is None else ~newer.only[lo - newer.lo : hi - newer.lo]
            self.for_host[lo - self.lo : hi - self.lo] &= kept

    def there(self, device: bool) -> bool:
        return self.on_device if device else self.on_host


class SimMemory:
    """One allocation. Starts as garbage, ends as poison.

    If memory is not coherent, the layer above announces every host access by a flush or invalidate.
    On coherent memory, and on memory that the program itself accesses, the simulator finds host
    writes by scanning at every submission and signal. Device writes reach the host there when the
    host has seen the timeline value that completes and publishes them.
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
            # The copies differ, unless host writes are found by scanning the host's copy.
            self.device = self.host.copy() if shared else np.resize(self._owned[::-1], nbytes)
        else:
            area = (ctypes.c_uint8 * nbytes).from_address(imported)
            self.host = np.ctypeslib.as_array(area)
            self.device = self.host.copy()
        self.imported = imported is not None
        self.address: int | None = None
        if mapped:
            self.address = self.host.__array_interface__["data"][0]
        # The host's bytes at the last scan, if the host may write them unannounced.
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
        """Add a write by a command, or by the host (`on_host`), whose copy already has it."""
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
        """What a command with the clock `known` reads."""
        self.arrive(lo, hi, known, device=True)
        return self.device[lo:hi].copy()

    def arrive(self, lo: int, hi: int, known: Clock, *, device: bool) -> None:
        """Apply every write in the clock `known`, and random others, to one of the two copies."""
        for index, entry in enumerate(self._entries):
            if entry.lo < hi and lo < entry.end and not entry.there(device):
                known_of = entry.number <= known.get(entry.agent, 0)
                if known_of or self._chance.random() < 0.2:
                    self._put_after_older(index, device=device)
        self._entries = [e for e in self._entries if not (e.on_device and e.on_host)]

    def _put_after_older(self, index: int, *, device: bool) -> None:
        """Apply an entry, after all older entries for the same bytes."""
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
        """Ranges that the host wrote unannounced since the last scan: start, end, and a mask.

        The mask says which bytes changed, if there were too many ranges to list; else it is None.
        """
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
        """Whether the host may read and write this memory unannounced."""
        return self._last is not None

    def free(self) -> None:
        self.freed = True
        self.device = np.broadcast_to(np.uint8(0xDB), self.nbytes)  # poison, without allocating
        self._last = None
        self._entries.clear()
        if not self.imported:  # else the program owns it and may still use it
            self.host.fill(0xDB)


def _words(content: Bytes) -> npt.NDArray[np.uint64]:
    """The same bytes as words, faster to compare; allocations are whole words."""
    return content.view(np.uint64)
