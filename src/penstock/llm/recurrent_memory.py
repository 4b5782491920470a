"""The memory of gated DeltaNet layers: what a token needs of all tokens before it.

The KV cache is append-only: a row, once written, stays, so going back is forgetting rows. A
DeltaNet layer has a state instead, and the window of its convolution, which every token rewrites.
To go back, an earlier state must still be there.

**The ring.** The memory of a layer has `SLOTS` slots. The slot `p % SLOTS` holds what a token at
position p needs; a batch that begins at p and has n tokens reads that slot, and writes the slot
`(p + n) % SLOTS`. Kernels get p from device memory, so a recorded step works at every position. The
host issues `AHEAD` steps beyond the token it reads; if that token ends the text, the states before
and after it are still there, and the states of the steps ahead are left behind.

**Copies.** The host has a slot copied, in stream order and without waiting, where a conversation
may come back to: at the end of each prompt, and where it went back to. The newest `COPIES` of them
are kept.

Position 0 needs no memory: kernels take zeros there, so nothing has to be cleared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import penstock as ps
from penstock.llm.delta_net import DeltaNet
from penstock.llm.optimizations import AHEAD

SLOTS = AHEAD + 1
COPIES = 4


class Sizes(NamedTuple):
    """The layout of a layer's memory, in float32 numbers."""

    slots: int
    slot: int
    window_at: int  # in a slot; the states come before

    @classmethod
    def of(cls, net: DeltaNet) -> Sizes:
        states = net.value_heads * net.key_size * net.value_size
        window = (net.taps - 1) * net.channels
        return cls(SLOTS, states + -(-window // 4) * 4, states)


@dataclass(frozen=True)
class Held:
    """What the memory of a generation's DeltaNet layers takes, for the receipt."""

    slots: int  # of the ring
    copies: int  # at the ends of prompts, and where a text went back to
    nbytes: int  # of both


class RecurrentMemory:
    """The memory of all DeltaNet layers of one generation, and which positions it holds."""

    def __init__(self, device: ps.Device, net: DeltaNet) -> None:
        self._device = device
        self._sizes = Sizes.of(net)
        shape = (self._sizes.slots, self._sizes.slot)
        self.of_layer = {
            layer: device.empty(shape, name="recurrent memory") for layer in sorted(net.layers)
        }
        self._held: dict[int, int] = {}  # the position that each slot holds
        self._copies: dict[int, dict[int, ps.Array]] = {}  # by position, the oldest first
        self._spare: list[dict[int, ps.Array]] = []

    @property
    def held(self) -> Held:
        """How many states there is room for, and what they take."""
        copies = len(self._copies) + len(self._spare)
        rows = self._sizes.slots + copies
        return Held(self._sizes.slots, copies, 4 * len(self.of_layer) * rows * self._sizes.slot)

    def begin(self, position: int) -> None:
        """Note that work is about to be issued that leaves the memory for `position`.

        The slot holds nothing from now on, until `advance`: the work may fail to be issued.
        """
        self._held.pop(position % SLOTS, None)

    def advance(self, position: int) -> None:
        """Note that the work was issued."""
        self._held[position % SLOTS] = position

    def keep(self, position: int) -> None:
        """Copy what the memory holds for `position`, the current one. Does not wait."""
        if not position or position in self._copies:
            return
        into = self._new_copy()
        for layer, memory in self.of_layer.items():
            into[layer].copy_from(memory[position % SLOTS])
        self._copies[position] = into

    def go_back(self, position: int) -> int:
        """Go back to the last position up to this one that the memory holds. Does not wait.

        Returns that position; 0 if there is none. What the memory holds for later positions is
        forgotten: the tokens before these will be others.
        """
        known = [*self._held.values(), *self._copies]
        position = max((one for one in known if one <= position), default=0)
        self._held = {slot: one for slot, one in self._held.items() if one <= position}
        for later in [one for one in self._copies if one > position]:
            self._spare.append(self._copies.pop(later))
        if position and self._held.get(position % SLOTS) != position:
            self.begin(position)
            for layer, copy in self._copies[position].items():
                self.of_layer[layer][position % SLOTS].copy_from(copy)
            self.advance(position)
        self.keep(position)
        return position

    def _new_copy(self) -> dict[int, ps.Array]:
        if self._spare:
            return self._spare.pop()
        if len(self._copies) >= COPIES:
            return self._copies.pop(next(iter(self._copies)))
        return {
            layer: self._device.empty(self._sizes.slot, name="copy of recurrent memory")
            for layer in self.of_layer
        }
