"""Bytes on a device, independent of the memory that currently holds them (the backing)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from penstock import accelerator
from penstock.errors import Closed, ReadOnly, RoleViolation, ViewHeld
from penstock.ledger.hazards import Region
from penstock.ledger.roles import POLICIES, Policy, Role
from penstock.memory.backing import Backing, Owner, Shown
from penstock.memory.copy_rows import one_row
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.scheduler import Scheduler
    from penstock.schedule.stream import Stream

_RENAMES = 4  # replaced backings of one buffer that may be in flight


@accelerator.share
class Buffer:
    """Owned by the arrays that view it; retires its backing when the last of them is gone.

    A buffer may be *renamed*: given a fresh backing while the old one is still in use. It is
    pinned, and never renamed, if something outside the device knows its address (adopted memory).
    Nor is it renamed while a graph is encoded with its address.
    """

    __slots__ = (
        "__weakref__", "_old", "backing", "closed", "graphs", "guarded", "name", "nbytes", "owner",
        "pinned", "policy", "scheduler", "sealed", "whole", "writable",
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
        self.whole = Region(0, nbytes)
        self.name = name
        self.pinned = pinned
        self.writable = writable
        self.closed = False
        self.policy: Policy = POLICIES["generic"]
        self.sealed = False  # whether it is a weight, which nothing may write any more
        #: Whether a write by the device may be refused, so that `check_write` must be called.
        self.guarded = not writable
        #: Encoded graphs that contain its backing's address, as weak references.
        self.graphs: set[weakref.ref[Any]] = set()
        self._old: list[Backing] = []
        self.owner = owner = Owner(self, scheduler.ended.leave)
        owner.backing = backing
        # From here on the end of the buffer returns the backing, even if an exception comes now.
        backing.owners.add(owner)

    @property
    def role(self) -> Role:
        return self.policy.role

    @property
    def device(self) -> Device:
        return self.scheduler.device

    def close(self) -> None:
        """Return the memory once no work in flight uses it."""
        with self.scheduler.lock:
            self.give_back()

    def give_back(self) -> None:
        """`close`, for a caller that holds the device's lock."""
        self.closed = True
        self.scheduler.release(self.owner)

    def check(self) -> None:
        if self.closed:
            raise Closed(f"array {self.name!r} is closed")

    @property
    def can_rename(self) -> bool:
        """Whether a fresh backing may replace the current one; bounds how many are in flight."""
        if self.pinned or self.graphs:
            return False
        if self._old:
            self._old = [old for old in self._old if old.history.in_flight]
        return len(self._old) < _RENAMES

    def rename(self, reason: str, fresh: Backing | None = None) -> None:
        """Switch to a fresh backing: the given one, or one of undefined content."""
        old = self.backing
        fresh = fresh or self.new_backing()
        fresh.history.follow(old.history)
        fresh.owners.add(self.owner)
        # No call, and so no interrupt, between the two assignments. From here on `old` has no
        # owner, and its pool takes it back even if an exception drops it.
        self.owner.backing = self.backing = fresh
        old.owners.discard(self.owner)
        self._old.append(old)
        self.scheduler.retire(old)
        if events.active:
            events.emit("rename", reason, buffer=self.name, lo=0, hi=self.nbytes, path="rename")

    def new_backing(self) -> Backing:
        """A fresh backing for this buffer, with a ledger page of its role."""
        # From the pool of the current backing, so that it is mapped or not as before: the role may
        # have been set after the first allocation.
        pool = self.backing.pool or self.scheduler.pool
        fresh = pool.allocate(self.nbytes)
        fresh.history = self.policy.page(fresh.history)
        fresh.history.device_only = self.backing.history.device_only
        fresh.reused_in_flight = self.policy.reused_in_flight
        return fresh

    def read_region(self, region: Region) -> Region:
        """The region that the ledger notes for a read of `region`.

        A sealed weight may be read in thousands of slices, and nothing conflicts with its reads. So
        each is noted as a read of the whole: the ledger needs to know only when the last one ends.
        """
        return self.whole if self.sealed else region

    def views_of(self, region: Region) -> list[Shown]:
        """The live host views that show any byte of `region`."""
        if self.backing.views:
            self.scheduler.drain()
        return self.backing.views_of(region)

    def backing_for(
        self,
        stream: Stream,
        region: Region,
        what: str,
        *,
        write: bool,
        reads: bool = True,
        overwrite: bool = False,
    ) -> Backing:
        """The backing for a command to use, after resolving conflicts with live views (rule 6).

        `reads` says that the command may read some byte of the buffer, and `overwrite` that it
        reads none and writes all of them.
        """
        if self.backing.views:
            keep = not overwrite if self.policy.kept_by_rename else reads
            self._make_way(stream, region, what, write=write, keep=keep)
        return self.backing

    def take_role(self, role: Role) -> None:
        """Apply a role from now on; see `penstock.ledger.roles`."""
        self.policy = policy = POLICIES[role]
        self.backing.history = policy.page(self.backing.history)
        self.backing.history.device_only = not policy.published
        self.backing.reused_in_flight = policy.reused_in_flight
        self.guarded = self.guarded or policy.written_once

    def make_read_only(self) -> None:
        self.writable = False
        self.guarded = True

    def seal(self) -> None:
        """Become a weight: nothing may write its memory any more, through any buffer."""
        if any(view.writable for view in self.views_of(self.whole)):
            raise ViewHeld(
                f"seal() of array {self.name!r}, which a live writable view still shows; drop the "
                "view (del it and all its slices) first"
            )
        if self.pinned:
            # First: harmless if an exception comes before the rest.
            for other in self.scheduler.host_memory.buffers(self.backing, self.whole):
                other.guarded = True
        self.policy = POLICIES["weight"]
        self.sealed = self.guarded = True

    @property
    def meets_seal(self) -> bool:
        """Whether a write may hit a sealed weight: this one, or another over the same memory."""
        return self.sealed or (self.guarded and self.pinned)

    def check_write(self, region: Region, what: str, *, by_host: bool = False) -> None:
        """Raise unless the memory and the role allow a write of these bytes."""
        if not self.writable:
            raise ReadOnly(
                f"{what} writes array {self.name!r}, whose memory is read-only "
                "(a file, or a read-only NumPy array); use dev.array to get a writable copy"
            )
        if self.sealed:
            self.refuse_write(region, what)
        if self.guarded and self.pinned:
            sealed = self.scheduler.host_memory.sealed(self.backing, region)
            if sealed is not None:
                sealed.refuse_write(region, what)
        if by_host and not self.policy.host_writes:
            self._violated(what, "writes", region, "an output is written by the device only")
        if (earlier := self.backing.history.written_before(region)) is not None:
            rule = f"bytes {earlier.lo}:{earlier.hi} are written already; reset() starts anew"
            self._violated(what, "writes", region, rule)

    def refuse_write(self, region: Region, what: str) -> NoReturn:
        """Raise the error for any write of a sealed weight."""
        self._violated(what, "writes", region, "a sealed weight is never written")

    def wrote(self, region: Region, undo: list[Callable[[], None]] | None = None) -> None:
        """Mark bytes as written by the host; `note` marks what the device writes."""
        self.backing.history.mark(region, undo)

    def check_host_read(self, region: Region, what: str) -> None:
        """Raise unless the role allows the host to read these bytes."""
        if not self.policy.host_reads:
            rule = "its content is undefined between steps; force=True reads it anyway"
            self._violated(what, "reads", region, rule)

    def _violated(self, what: str, verb: str, region: Region, rule: str) -> NoReturn:
        raise RoleViolation(
            f"{what} {verb} bytes {region.lo}:{region.hi} of array {self.name!r}, which has the "
            f"role {self.role!r}: {rule}"
        )

    def _make_way(
        self, stream: Stream, region: Region, what: str, *, write: bool, keep: bool
    ) -> None:
        shown = self.views_of(region)
        for view in shown:
            if view.release is not None:
                self._wait_for_release(stream, view, region, what)
        if not write or all(view.writable for view in shown):
            return
        why = "it is adopted" if self.pinned else "a graph uses it" if self.graphs else ""
        if any(view.writable for view in self.backing.views):
            why = "a writable view shows another part of it"
        if why:
            raise ViewHeld(
                f"{what} writes bytes {region.lo}:{region.hi} of array {self.name!r}, which a live "
                f"view still shows, and its memory cannot be replaced because {why}; "
                "drop the view first, or take a copy with numpy()"
            )
        fresh = self.new_backing()
        if keep:
            # Before the rename, so that a failure leaves the buffer unchanged.
            try:
                self._copy_all(stream, fresh)
            except BaseException:
                self.scheduler.retire(fresh)
                raise
        self.rename(f"{what} writes bytes that a live view shows", fresh)

    def _wait_for_release(self, stream: Stream, view: Shown, region: Region, what: str) -> None:
        """Make the stream wait, on the device, for another thread to drop a writable view."""
        assert view.release is not None
        if view.own:
            raise ViewHeld(
                f"{what} uses bytes {region.lo}:{region.hi} of array {self.name!r}, which a live "
                "writable view still shows, made by this thread or by one that has ended; drop the "
                "view (del it and all its slices) first"
            )
        lane, value = view.release
        if stream.lane.seen.get(lane.number, 0) < value:
            stream.wait_for_lanes({lane: value})

    def _copy_all(self, stream: Stream, fresh: Backing) -> None:
        whole = self.whole
        rows = one_row(self.backing.offset, fresh.offset, self.nbytes)
        stream.copy(
            self.backing,
            whole,
            fresh,
            whole,
            rows,
            "bytes that are not overwritten are kept",
            (self.name, whole),
        )
