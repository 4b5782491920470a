"""Routing in a mixture of experts: which expert takes which token, decided on the device.

A router's product gives each token a number for each expert; `Routing.route` chooses the experts
with the largest (shaders/route.comp). A token that takes four experts becomes four rows of the
experts' products. For a prompt, the rows that go through the same expert are brought together
(shaders/route_tiles.comp), so that a product decodes the expert's weights once for a tile of rows.
The launches are the same whatever is chosen, so a graph can record them: there are as many
workgroups as the worst case needs, and those without rows end at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import penstock as ps
from penstock.llm.compiling import Compiled
from penstock.llm.kernels import Define, Shader
from penstock.llm.mixture import Mixture
from penstock.llm.traits import Choice, Traits
from penstock.llm.weights import Piece

#: Most rows that are routed at a time. Invocations of route_tiles.comp loop over them twice.
MOST_ROWS = 1 << 13
#: Most tokens that are routed at a time: more would take more memory, and be hardly faster.
MOST_TOKENS = 512
_MOST_TILE = 64


@dataclass(frozen=True)
class Routed:
    """Which expert takes each row, in device memory: see shaders/share.glsl."""

    tokens: int
    rows: int  # tokens times the experts that each takes
    tile: int  # most rows of a tile
    tiles: int  # most tiles
    room: Room
    gather: bool = False

    def gathering(self, gather: bool) -> Routed:
        """The same; with `gather`, rows of x are those of tokens."""
        return replace(self, gather=gather)

    @property
    def rows_of_x(self) -> int:
        return self.tokens if self.gather else self.rows

    def groups(self, size: int) -> int:
        """Return the workgroups of a product that takes `size` rows at a time."""
        return self.tiles * -(-self.tile // size)

    def arguments(self, piece: Piece, size: int) -> dict[str, Any]:
        """Return what a product of such workgroups needs to find their rows in `piece`."""
        assert piece.experts is not None
        return {
            "tiles": self.room.tiles, "sources": self.room.sources, "begins": piece.experts.table,
            "split": -(-self.tile // size), "gather": int(self.gather),
        }  # fmt: skip


class Room:
    """Scratch for the routing of up to `tokens` tokens."""

    def __init__(self, device: ps.Device, mixture: Mixture, tokens: int) -> None:
        rows = tokens * mixture.chosen

        def scratch(name: str, size: int, dtype: Any = np.uint32) -> ps.Array:
            return device.empty(size, dtype, name=name, role="scratch")

        self.tokens = tokens
        self.chosen = scratch("chosen", rows)
        self.shares = scratch("shares", rows, np.float32)
        self.tiles = scratch("tiles", 3 * (rows + mixture.experts))
        self.sources, self.places = scratch("sources", rows), scratch("places", rows)


class Routing:
    """The kernels of one device that route tokens, and that add up what experts make of them."""

    def __init__(
        self,
        device: ps.Device,
        compiled: Compiled | None = None,
        *,
        variant: Choice | None = None,
    ) -> None:
        self._kernel = compiled or Compiled(device)
        self._traits = Traits.of(device, variant)

    def route(self, logits: ps.Array, mixture: Mixture, room: Room, count: int) -> Routed:
        """Choose the experts of `count` tokens by the router's products, one for each expert."""
        experts, choices = mixture.experts, mixture.chosen
        if logits.shape[-1] != experts or logits.size < count * experts or count > room.tokens:
            raise ps.ShapeMismatch(
                f"route: logits of shape {logits.shape} and room for {room.tokens} tokens; wanted "
                f"are {count} rows of {experts}"
            )
        rows = count * choices
        grouped = is_grouped(mixture, count)
        outputs = {} if grouped else self._tiling(room)
        self._kernel(route(self._traits, grouped))(
            logits=logits, chosen=room.chosen, shares=room.shares, **outputs, experts=experts,
            choices=choices, normalized=int(mixture.normalized), groups=count,
        )  # fmt: skip
        if not grouped:
            return Routed(count, rows, 1, rows, room)
        tile = tile_of(mixture, count)
        kernel = self._kernel(route_tiles(self._traits))
        kernel(
            chosen=room.chosen, **self._tiling(room), experts=experts, choices=choices, pairs=rows,
            tile=tile, groups=-(-experts // kernel.local_size[0]),
        )  # fmt: skip
        return Routed(count, rows, tile, rows // tile + experts, room)

    @staticmethod
    def _tiling(room: Room) -> dict[str, ps.Array]:
        return {"tiles": room.tiles, "sources": room.sources, "places": room.places}

    def mix(
        self,
        routed: Routed,
        y: ps.Array,
        x: ps.Array,
        common: tuple[ps.Array, ps.Array] | None = None,
    ) -> None:
        """Add to each token's row of x the rows of y of its experts, times their shares.

        `common` is what an expert that all tokens share makes of them, and its gates: it is added,
        times their sigmoid.
        """
        columns = x.shape[-1]
        shared = {} if common is None else {"shared_y": common[0], "gates": common[1]}
        kernel = self._kernel(mix(self._traits, common is not None))
        kernel(
            x=x, y=y, places=routed.room.places, shares=routed.room.shares, **shared,
            columns=columns, choices=routed.rows // routed.tokens,
            groups=(-(-columns // kernel.local_size[0]), routed.tokens),
        )  # fmt: skip


def most_tokens(mixture: Mixture) -> int:
    """Return how many tokens can be routed at a time."""
    return min(MOST_TOKENS, MOST_ROWS // mixture.chosen)


def is_grouped(mixture: Mixture, count: int) -> bool:
    """Whether rows of the same expert are brought together: not if few would meet."""
    return count > 1 and 2 * count * mixture.chosen >= mixture.experts


def tile_of(mixture: Mixture, count: int) -> int:
    """Return the rows of a tile: a power of two, about as many as an expert gets on average."""
    average = count * mixture.chosen / mixture.experts
    tile = 1
    while tile < min(average, _MOST_TILE):
        tile *= 2
    return tile


# What each kernel is compiled from.


def route(traits: Traits, grouped: bool) -> Shader:
    defines, constants = traits.group(64)
    if grouped:
        defines["GROUPED"] = 1
    return Shader.of("route", "route", defines, constants)


def route_tiles(traits: Traits) -> Shader:
    return Shader.of("route tiles", "route_tiles", {}, traits.group(64)[1])


def mix(traits: Traits, common: bool) -> Shader:
    defines: dict[str, Define] = {"COMMON": 1} if common else {}
    return Shader.of("mix", "mix", defines, traits.group(64)[1])


def routing_kernels(subgroup_size: int = 64) -> list[Shader]:
    """Every variant of every kernel here; `subgroup_size` is that of the GPU."""
    found: list[Shader] = []
    for traits in Traits.typical(subgroup_size):
        found += [route(traits, grouped) for grouped in (False, True)]
        found.append(route_tiles(traits))
        found += [mix(traits, common) for common in (False, True)]
    return found
