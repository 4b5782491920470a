"""Programs, graphs, queues and adopted memory that are freed once work in flight is done with them.

Memory of the pools is not here: a pool keeps its own list of what is retired.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.ledger.hazards import Lane
from penstock.memory.pool import Backing

if TYPE_CHECKING:
    from penstock.driver.protocol import Driver
    from penstock.graph.graph import Graph
    from penstock.memory.host_memory import HostMemory


class GraphEnd(weakref.ref[Any]):
    """Tells of the end of a graph, as `Hold` does of that of a view, and has its commands."""

    __slots__ = ("variants",)

    variants: dict[Any, deque[Any]]


class Retirement:
    """Every method is called under the device's lock and, interrupted, can be called again."""

    def __init__(
        self, driver: Driver, host_memory: HostMemory, lanes: Callable[[], Iterable[Lane]]
    ) -> None:
        """`lanes` are those of the device's streams."""
        self._driver = driver
        self._host_memory = host_memory
        self._lanes = lanes
        self.adopted: set[Backing] = set()  # without an owner; work in flight may use it
        self.graphs: set[GraphEnd] = set()  # whose commands are not given back yet
        #: What to free: the function that does, and the points that must be reached first.
        self._waiting: dict[Any, tuple[Callable[[], None], list[tuple[Any, int]]]] = {}

    def __bool__(self) -> bool:
        return bool(self.adopted or self._waiting)

    def free_later(self, what: Any, free: Callable[[], None]) -> None:
        """Free something once everything recorded so far, on any stream, is done."""
        # Weakly, or the streams could not be forgotten: one that is was done before it was closed.
        points = [
            (weakref.ref(at), at.recorded) for at in self._lanes() if at.recorded > at.complete
        ]
        self._waiting[what] = (free, points)

    def retire_program(self, program: Any) -> None:
        self.free_later(program, partial(self._driver.forget, program))

    def expect_end(
        self, graph: Graph, variants: dict[Any, deque[Any]], leave: Callable[[Any], None]
    ) -> GraphEnd:
        """Have a graph's commands given back when it is dropped."""
        end = GraphEnd(graph, leave)
        end.variants = variants
        self.graphs.add(end)
        return end

    def retire_graph(self, end: GraphEnd) -> None:
        """Give a graph's commands back."""
        self.retire_variants([variant for kept in end.variants.values() for variant in kept])
        end.variants.clear()
        self.graphs.discard(end)

    def retire_variants(self, variants: list[Any]) -> None:
        for variant in variants:
            variant.unpin()
            self.free_later(variant, variant.release)

    def free_what_is_done(self, awaited: Collection[Any]) -> None:
        """Free what work in flight no longer uses, but no lane that a thread waits for."""
        for backing in tuple(self.adopted):
            if backing.owners:
                self.adopted.discard(backing)  # adopted again meanwhile
            elif backing.idle:
                self._host_memory.remove(backing)
                self.adopted.discard(backing)
                self._driver.free(backing.memory)
        for what, (free, points) in tuple(self._waiting.items()):
            if what not in awaited and all(_reached(at(), value) for at, value in points):
                self._waiting.pop(what)
                free()

    def free_all(self) -> None:
        """Nothing is in flight any more, nor will be."""
        for free, _ in self._waiting.values():
            free()


def _reached(lane: Lane | None, value: int) -> bool:
    return lane is None or value <= lane.complete
