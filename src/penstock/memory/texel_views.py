"""Views of device memory as texels, made once per memory, range and format.

A driver binds a texel buffer through a view, which is expensive compared with a launch. So views
are kept: as long as an array or an encoded graph refers to one, and the most recent beyond that, so
that a program that makes its slices anew at every step makes no views from the second step on. A
view that is dropped is destroyed once no work in flight uses it, or with its memory.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.driver.protocol import Driver

_KEPT = 1024  # views that are kept although nothing refers to them

#: The memory's handle, the first byte, the number of bytes, and the format.
_Key: TypeAlias = tuple[int, int, int, str]


class KeptView:
    """A driver's view of texels. An array or graph that binds it holds a reference."""

    __slots__ = ("__weakref__", "handle", "memory")

    def __init__(self, memory: Any, handle: int) -> None:
        self.memory = memory
        self.handle = handle


class ViewEnd(weakref.ref[KeptView]):
    """A weak reference that reports the end of a `KeptView`, with the driver's view to destroy."""

    __slots__ = ("key", "view")

    key: _Key
    view: Any


class TexelViews:
    """The views of one device. Every method is called under the device's lock."""

    def __init__(self, driver: Driver, leave: Callable[[ViewEnd], None]) -> None:
        """The end of a `KeptView` calls `leave`, in any thread."""
        self._driver = driver
        self._leave = leave
        self._known: dict[_Key, ViewEnd] = {}
        self._recent: OrderedDict[_Key, KeptView] = OrderedDict()

    def view(self, memory: Any, offset: int, nbytes: int, texel: str) -> KeptView:
        """The view of these bytes as texels of a format."""
        key = (memory.handle, offset, nbytes, texel)
        end = self._known.get(key)
        found = None if end is None else end()
        if found is None or found.memory is not memory:  # a freed memory's handle may come again
            made: Any = self._driver.texel_view(memory, offset, nbytes, texel)
            found = KeptView(memory, made.handle)
            end = ViewEnd(found, self._leave)
            end.key, end.view = key, made
            self._known[key] = end
        self._recent[key] = found
        self._recent.move_to_end(key)
        if len(self._recent) > _KEPT:
            self._recent.popitem(last=False)
        return found

    def forget(self, end: ViewEnd) -> None:
        """Forget a view that has ended. The caller has it destroyed."""
        if self._known.get(end.key) is end:
            del self._known[end.key]
