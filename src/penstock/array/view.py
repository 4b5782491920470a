"""Zero-copy sights of device memory, tracked to their end of life.

NumPy arrays are sliced, passed on and kept; no `with` block can be trusted to end them. So every
array that shows device memory hangs off a `HostView`, and when the last one that does is gone,
wherever it went, the view is released and the memory may be written or reused again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.ledger.hazards import Region
from penstock.memory.pool import Backing, Hold, Shown

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler


class HostView:
    """The root of all NumPy arrays made from one exported piece of memory.

    Made under the device's lock. Its end may come in any thread, in the middle of anything, so it
    does nothing then but tell the device.
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
        hold.written = written  # to be called when what was written through it is to count
        hold.shown = None
        # From here on the end of the view undoes all of it, however far it has come.
        self._hold = hold
        scheduler.views.exports.add(hold)
        backing.holds.add(hold)
        if respected:
            release = scheduler.views.next_point() if write else None
            hold.shown = shown = Shown(region, threading.get_ident(), release)
            if release is not None:
                scheduler.views.hold(*release)
            backing.views.append(shown)

    def array(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """A NumPy array over the viewed bytes, from their first on."""
        raw = np.asarray(self)
        return np.ndarray(shape, dtype, buffer=raw, strides=strides)

    def __del__(self) -> None:
        # The slot is unset if __init__ failed.
        hold = getattr(self, "_hold", None)
        if hold is not None:
            self._scheduler.views.ended(hold)
