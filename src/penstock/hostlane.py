"""A lane whose work the host does: copies that the device may have to wait for."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from penstock.errors import Error
from penstock.hazards import Lane

if TYPE_CHECKING:
    from penstock.driver.protocol import Driver


class HostLane:
    """A timeline that only the host raises. Every copy takes the next value, in order."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self.timeline = driver.timeline()
        self.lane = Lane(name, self, is_host=True, device=driver.info.name)
        self._changed = threading.Condition()
        self._signalled = 0
        self._aborted = False

    @property
    def recorded(self) -> int:
        return self.lane.submitted

    def start(self) -> int:
        """The value of a copy that is about to be made; device work may wait for it from now."""
        self.lane.submitted += 1
        return self.lane.submitted

    def finish(self, value: int) -> None:
        """The copy is made. May be called again for the same value, if a call was interrupted."""
        with self._changed:
            self._signal(value)
            self.lane.submitted = max(value, self.lane.submitted)
            self.lane.complete = max(value, self.lane.complete)
            self._changed.notify_all()

    def wait(self, value: int, timeout: float) -> bool:
        """Block until the copy of this value is made; False when time ran out."""

        def over() -> bool:
            return self._aborted or self.lane.complete >= value

        if self._driver.inline:
            self._driver.run_until(over)
        else:
            with self._changed:
                self._changed.wait_for(over, timeout)
        return self.lane.complete >= value

    def ensure_submitted(self, value: int) -> None:
        """Always so: a copy is under way from its start."""

    def poll(self) -> None:
        """Let whoever has just told the device of a copy write it down here, too.

        The device may be done with work behind the copy before that, and a host that has seen
        so must not be told that the copy is still under way.
        """
        with self._changed:
            pass

    def rest(self) -> None:
        """Nothing to do."""

    def abort(self) -> None:
        """Let go of device work that waits for copies which will never be made."""
        with contextlib.suppress(Error):
            self._signal(self.lane.submitted)
        with self._changed:
            self._aborted = True  # whoever waits on the host is to hear of the loss
            self._changed.notify_all()

    def close(self) -> None:
        self.timeline.close()

    def _signal(self, value: int) -> None:
        if value > self._signalled:
            self._driver.signal(self.timeline, value)
            self._signalled = value
