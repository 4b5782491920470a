"""Bytes on a device, whatever memory is behind them at the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock import tracing
from penstock.errors import Closed, ReadOnly, ViewHeld
from penstock.hazards import Region
from penstock.memory import Backing

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.scheduler import Scheduler
    from penstock.stream import Stream

_RENAMES = 4  # backings one buffer may have in flight


class Buffer:
    """Owned by the arrays that view it; retires its backing when the last of them is gone.

    A buffer may be *renamed*: given a fresh backing while the old one is still in use. It is
    pinned, and never renamed, where something outside knows its address: adopted memory. Nor is it
    renamed while a graph is encoded with its address.
    """

    __slots__ = (
        "__weakref__", "_old", "backing", "closed", "graphs", "name", "nbytes", "pinned",
        "scheduler", "writable",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler,
        backing: Backing,
        nbytes: int,
        name: str,
        *,
        pinned: bool = False,
        writable: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.backing = backing
        self.nbytes = nbytes
        self.name = name
        self.pinned = pinned
        self.writable = writable
        self.closed = False
        self.graphs = 0  # encoded graphs that know its backing's address
        self._old: list[Backing] = []

    @property
    def device(self) -> Device:
        return self.scheduler.device

    def close(self) -> None:
        """Give the bytes back once work in flight is done with them."""
        with self.scheduler.lock:
            if not self.closed:
                self.closed = True
                self.scheduler.retire(self.backing)

    def __del__(self) -> None:
        # May run in any thread, in the middle of anything: only leave a message.
        if not getattr(self, "closed", True):
            self.scheduler.buffer_dropped(self.backing)

    def check(self) -> None:
        if self.closed:
            raise Closed(f"array {self.name!r} is closed")

    @property
    def can_rename(self) -> bool:
        """Whether a fresh backing may take over, without letting old ones pile up."""
        if self.pinned or self.graphs:
            return False
        self._old = [old for old in self._old if old.history.pending()]
        return len(self._old) < _RENAMES

    def rename(self, reason: str, fresh: Backing | None = None) -> None:
        """Switch to a fresh backing: the given one, or one of undefined content."""
        old = self.backing
        self.backing = fresh or self.scheduler.pool.allocate(self.nbytes)
        self._old.append(old)
        self.scheduler.retire(old)
        if tracing.active:
            tracing.emit("rename", reason, buffer=self.name, lo=0, hi=self.nbytes, path="rename")

    def views_of(self, region: Region) -> list[tuple[Region, bool]]:
        """The live host views that show any of these bytes, and whether each may write."""
        if not self.backing.views:
            return []
        self.scheduler.drain()
        return [view for view in self.backing.views if view[0].overlaps(region)]

    def backing_for(
        self, stream: Stream, region: Region, what: str, *, write: bool, overwrite: bool = False
    ) -> Backing:
        """The backing for a command to use, after making way for live host views (rule 6).

        `overwrite` tells that the command writes every byte of the region and reads none.
        """
        if self.backing.views:
            self._make_way(stream, region, what, write=write, overwrite=overwrite)
        return self.backing

    def check_writable(self, what: str) -> None:
        if not self.writable:
            raise ReadOnly(
                f"{what} writes array {self.name!r}, whose memory is read-only "
                "(a file, or a read-only NumPy array); use dev.array to get a writable copy"
            )

    def _make_way(
        self, stream: Stream, region: Region, what: str, *, write: bool, overwrite: bool
    ) -> None:
        shown = self.views_of(region)
        if any(writable for _, writable in shown):
            raise ViewHeld(
                f"{what} uses bytes {region.lo}:{region.hi} of array {self.name!r}, which a live "
                "writable view still shows; drop the view (del it and all its slices) first"
            )
        if not write or not shown:
            return
        if self.pinned or self.graphs:
            why = "it is adopted" if self.pinned else "a graph uses it"
            raise ViewHeld(
                f"{what} writes bytes {region.lo}:{region.hi} of array {self.name!r}, which a live "
                f"view still shows, and its memory cannot be replaced because {why}; "
                "drop the view first, or take a copy with numpy()"
            )
        fresh = self.scheduler.pool.allocate(self.nbytes)
        if not overwrite or region.pitch or region.hi - region.lo < self.nbytes:
            # Before the switch: if this fails, the buffer is what it was.
            try:
                self._copy_all(stream, fresh)
            except BaseException:
                self.scheduler.retire(fresh)
                raise
        self.rename(f"{what} writes what a view still shows", fresh)

    def _copy_all(self, stream: Stream, fresh: Backing) -> None:
        whole = Region(0, self.nbytes)
        rows = np.array([[self.backing.offset, fresh.offset, self.nbytes]], np.uint64)
        stream.copy(
            self.backing,
            whole,
            fresh,
            whole,
            rows,
            "keep what is not overwritten",
            (self.name, whole),
        )
