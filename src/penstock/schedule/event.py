"""A point on a stream."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from penstock.schedule.pending import Awaitable


class Event(Awaitable):
    """Done when everything before it on its stream is done, host copies included.

    Made by `Stream.record`. Remains valid after the stream is closed.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._settle().__await__()

    def __repr__(self) -> str:
        return f"<Event on {self._what}: {'done' if not self._points else 'pending'}>"
