"""Registry of the host memory that a device uses in place, by address.

Memory that is adopted twice, whole or in part, must map to one backing; otherwise the ledger could
not see that two arrays share bytes. A piece therefore stays registered for as long as the device
may use it, even after its last array is gone: if the caller adopts it again, new work is ordered
after the work still in flight. All calls are made under the device's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakSet

from penstock import accelerator
from penstock.ledger.hazards import Region
from penstock.memory.backing import Backing

if TYPE_CHECKING:
    from penstock.array.buffer import Buffer


@accelerator.share
class HostMemory:
    """The registered pieces, each with its length and the buffers over it."""

    __slots__ = ("_buffers", "pieces")

    def __init__(self) -> None:
        self.pieces: dict[Backing, int] = {}
        self._buffers: dict[Backing, WeakSet[Buffer]] = {}

    def add(self, backing: Backing, nbytes: int) -> None:
        """Register a backing; the host's memory is its first `nbytes` bytes."""
        self.pieces[backing] = nbytes

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def remove(self, backing: Backing) -> None:
        self.pieces.pop(backing, None)
        self._buffers.pop(backing, None)

    def add_buffer(self, buffer: Buffer) -> None:
        """Register a buffer over a piece, or over the part `buffer.whole` of it."""
        self._buffers.setdefault(buffer.backing, WeakSet()).add(buffer)

    def buffers(self, backing: Backing, region: Region) -> list[Buffer]:
        """The open buffers over a piece that share a byte with `region`."""
        known = self._buffers.get(backing, ())
        return [each for each in known if not each.closed and each.whole.overlaps(region)]

    def overlapping(self, lo: int, hi: int) -> list[tuple[int, int, Backing]]:
        """The pieces that share a byte with the addresses lo to hi: start, end, backing."""
        found = []
        for backing, nbytes in self.pieces.items():
            start = backing.memory.address + backing.offset
            if start < hi and lo < start + nbytes:
                found.append((start, start + nbytes, backing))
        return found

    def sealed(self, backing: Backing, region: Region) -> Buffer | None:
        """A sealed weight over a piece that shares a byte with `region`, if there is one."""
        return next((each for each in self.buffers(backing, region) if each.sealed), None)

    def imported(self) -> Iterator[Backing]:
        """The pieces that belong to no pool, which are the caller's own memory."""
        return (backing for backing in self.pieces if backing.pool is None)

    @property
    def imported_bytes(self) -> int:
        return sum(backing.nbytes for backing in self.imported())
