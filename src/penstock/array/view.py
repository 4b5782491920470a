"""Zero-copy views of device memory, tracked until their last NumPy array is gone.

NumPy arrays are sliced, passed on and kept, so the end of a `with` block would not end them. Every
array that shows device memory therefore refers to a `HostView`. When the last of them is gone, the
view ends, and the memory may be written or reused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.host_access import (
    Conflicts,
    check_no_writable_view,
    check_not_capturing,
    check_views_of_others,
    conflicts_of,
    flush,
    invalidate,
    is_mapped,
)
from penstock.errors import InvalidValue, Unsupported, ViewHeld
from penstock.ledger.hazards import Region
from penstock.memory.backing import Backing, Hold, Shown
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.ledger.hazards import Lane
    from penstock.schedule.scheduler import Scheduler

Host = npt.NDArray[Any]


def show(array: Array, mode: str, undo: list[Callable[[], None]]) -> Host:
    """A tracked NumPy array over the device's bytes, after waiting for what conflicts with it.

    `undo` gets the functions to call if an exception keeps the array from the caller.
    """
    if mode not in ("r", "w", "rw"):
        raise InvalidValue(f"view mode {mode!r}; choose 'r', 'w' or 'rw'")
    buffer = array.buffer
    scheduler = buffer.scheduler
    check_not_capturing(scheduler, f"a view of {buffer.name}")
    while True:
        with scheduler.lock:
            scheduler.check()
            buffer.check()
            conflicts = conflicts_of(array, write=mode != "r")
            wait = conflicts.wait(f"the host views ({mode})", buffer.name)
            if wait is None:
                _check(array, mode, conflicts)
                return _show_now(array, mode != "r", undo)
        wait()


def _check(array: Array, mode: str, conflicts: Conflicts) -> None:
    """Raise unless the host may have such a view of the array."""
    buffer, region = array.buffer, array.region
    if not is_mapped(buffer):
        name = buffer.scheduler.name
        raise Unsupported(f"the memory of {name} is not mapped; use numpy() and write()")
    if mode == "r":
        check_views_of_others(buffer, conflicts, "view('r')")
    else:
        buffer.check_write(region, f"view({mode!r})", by_host=True)
        check_no_writable_view(buffer, conflicts)
        if conflicts.views:
            raise ViewHeld(
                f"another view of array {buffer.name!r} still shows bytes {region.lo}:{region.hi}; "
                "drop it before writing them"
            )
    if array.size and any(stride < 0 for stride in array.strides):
        raise Unsupported("a view of a reversed slice; reverse the view instead")


def _show_now(array: Array, write: bool, undo: list[Callable[[], None]]) -> Host:
    if not array.size:  # no bytes, so nothing to track
        nothing = np.empty(array.shape, array.dtype)
        nothing.flags.writeable = write
        return nothing
    buffer = array.buffer
    scheduler, backing = buffer.scheduler, buffer.backing
    invalidate(scheduler, backing, array.layout)
    written = None
    if write and not backing.memory.coherent:
        written = partial(flush, scheduler, backing, array.layout)
    shown = HostView(
        scheduler, backing, Region(array.region.lo, array.region.hi), write=write, respected=True,
        written=written, owner=buffer,
    )  # fmt: skip
    made = shown.array(array.shape, array.dtype, array.strides)
    if write and events.active:
        lane, value = shown.ends_at()
        region = array.region
        events.emit(
            "view", "device work on these bytes waits for its end", nbytes=array.nbytes,
            buffer=buffer.name, lo=region.lo, hi=region.hi, at=(lane.place, value, 0),
        )  # fmt: skip
    if write:
        buffer.wrote(array.region, undo)
    return made


class HostView:
    """The root of all NumPy arrays made from one exported piece of memory.

    Made under the device's lock. It may end in any thread, in the middle of any call, so its
    finaliser only leaves a message.
    """

    __slots__ = (
        "__array_interface__", "__weakref__", "_hold", "_owner", "_scheduler",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler,
        backing: Backing,
        region: Region,
        *,
        write: bool,
        respected: bool = False,
        written: Callable[[], None] | None = None,
        owner: Any = None,
    ) -> None:
        self._owner = owner  # kept alive with the view
        self._scheduler = scheduler
        self.__array_interface__ = {
            "version": 3,
            "shape": (region.hi - region.lo,),
            "typestr": "|u1",
            "data": (backing.memory.address + backing.offset + region.lo, not write),
        }
        hold = Hold(self, scheduler.ended.leave)
        hold.backing = backing
        hold.written = written  # called at the view's end, to flush what the host wrote through it
        hold.shown = None
        # From here on the end of the view undoes all of this, even if an exception comes now.
        self._hold = hold
        scheduler.views.exports.add(hold)
        backing.holds.add(hold)
        if respected:
            release = scheduler.views.next_point() if write else None
            hold.shown = shown = Shown(region, threading.get_ident(), release)
            if release is not None:
                scheduler.views.hold(*release)
            backing.views.append(shown)

    def ends_at(self) -> tuple[Lane, int]:
        """The point that the end of a writable view signals."""
        shown = self._hold.shown
        assert shown is not None
        assert shown.release is not None
        return shown.release

    def array(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
    ) -> Host:
        """A NumPy array over the viewed bytes, starting at the first."""
        raw = np.asarray(self)
        return np.ndarray(shape, dtype, buffer=raw, strides=strides)

    def __del__(self) -> None:
        # The slot is unset if __init__ failed.
        hold = getattr(self, "_hold", None)
        if hold is not None:
            self._scheduler.views.ended(hold)
