"""Frees programs, graphs, queues, texel views and adopted memory once no work in flight uses them.

Pool memory is not handled here: each pool keeps its own list of retired backings.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.ledger.hazards import Lane
from penstock.memory.backing import Backing
from penstock.memory.texel_views import TexelViews, ViewEnd

if TYPE_CHECKING:
    from penstock.driver.protocol import Driver
    from penstock.graph.graph import Graph
    from penstock.memory.host_memory import HostMemory


class GraphEnd(weakref.ref[Any]):
    """A weak reference that reports the end of a graph, with the graph's encoded commands."""

    __slots__ = ("variants",)

    variants: dict[Any, deque[Any]]


class Retirement:
    """What one device frees later.

    The caller holds the device's lock. An interrupted call can be repeated.
    """

    def __init__(
        self, driver: Driver, host_memory: HostMemory, lanes: Callable[[], Iterable[Lane]],
        leave: Callable[[Any], None],
    ) -> None:  # fmt: skip
        """`lanes` returns the lanes of the device's streams. Finalisers call `leave`."""
        self._driver = driver
        self._host_memory = host_memory
        self._lanes = lanes
        self.texel_views = TexelViews(driver, leave)
        #: What to do with messages of finalisers, by their type.
        self.acts: dict[type, Callable[[Any], None]] = {
            GraphEnd: self.retire_graph,
            ViewEnd: self.retire_view,
        }
        self.adopted: set[Backing] = set()  # adopted memory without an owner, perhaps in flight
        self.graphs: set[GraphEnd] = set()  # graphs whose commands are not released yet
        #: By object to free: the function that frees it, and the points to be reached first.
        self._waiting: dict[Any, tuple[Callable[[], None], list[tuple[Any, int]]]] = {}

    def __bool__(self) -> bool:
        return bool(self.adopted or self._waiting)

    def free_later(self, what: Any, free: Callable[[], None]) -> None:
        """Free something once everything recorded so far, on any stream, is done."""
        # Weak references, so that streams can be collected. A lane that is gone counts as reached,
        # because a stream's work is done before the stream is released.
        points = [
            (weakref.ref(at), at.recorded) for at in self._lanes() if at.recorded > at.complete
        ]
        self._waiting[what] = (free, points)

    def retire_program(self, program: Any) -> None:
        self.free_later(program, partial(self._driver.forget, program))

    def retire_view(self, end: ViewEnd) -> None:
        """Destroy a view of texels that nothing refers to any more."""
        self.texel_views.forget(end)
        self.free_later(end.view, partial(self._driver.drop_view, end.view))

    def expect_end(
        self, graph: Graph, variants: dict[Any, deque[Any]], leave: Callable[[Any], None]
    ) -> GraphEnd:
        """Have a graph's commands released when the graph is dropped."""
        end = GraphEnd(graph, leave)
        end.variants = variants
        self.graphs.add(end)
        return end

    def retire_graph(self, end: GraphEnd) -> None:
        """Release a graph's commands once no work in flight uses them."""
        self.retire_variants([variant for kept in end.variants.values() for variant in kept])
        end.variants.clear()
        self.graphs.discard(end)

    def retire_variants(self, variants: list[Any]) -> None:
        for variant in variants:
            variant.unpin()
            self.free_later(variant, variant.release)

    def free_what_is_done(self, awaited: Collection[Any]) -> None:
        """Free what no work in flight uses, except `awaited`: lanes that a thread waits for."""
        for backing in tuple(self.adopted):
            if backing.owners:
                self.adopted.discard(backing)  # it was adopted again in the meantime
            elif backing.idle:
                self._host_memory.remove(backing)
                self._driver.free(backing.memory)
                # Last: the backing keeps the caller's memory, which the driver must not outlast.
                self.adopted.discard(backing)
        for what, (free, points) in tuple(self._waiting.items()):
            if what not in awaited and all(_reached(at(), value) for at, value in points):
                self._waiting.pop(what)
                free()

    def free_all(self) -> None:
        """Free everything. Nothing is in flight, and nothing can be submitted any more."""
        for free, _ in self._waiting.values():
            free()


def _reached(lane: Lane | None, value: int) -> bool:
    return lane is None or value <= lane.complete
