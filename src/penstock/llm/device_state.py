"""Where a generation stands, in device memory, so that a recorded step never changes.

The position of the next token is read by kernels and moved on by kernels. The host only records a
step once, replays it, and looks at the ring of tokens when it wants to.

=========  ==========================================================================
`state`    uint32: word `POSITION` is the position of the first token of the batch that
           comes next, which is how many rows of the cache are filled; word `STEP`
           counts the tokens that were sampled
`tokens`   uint32: the batch that comes next; a sampled token becomes its token 0
`history`  uint32: the token at position p is at `p % len(history)`, sampled or not;
           what penalties look at
`ring`     uint32: the token of step s is at `s % len(ring)`; what the host reads
=========  ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import penstock as ps

#: The words of `state`, by their name in shaders.
STATE = {"POSITION": 0, "STEP": 1}
STATE_WORDS = 4


@dataclass(frozen=True)
class DeviceState:
    """The arrays that say where a generation stands."""

    state: ps.Array
    tokens: ps.Array
    history: ps.Array
    ring: ps.Array

    @classmethod
    def new(
        cls, device: ps.Device, *, batch: int = 1, history: int = 1024, ring: int = 1024
    ) -> DeviceState:
        """At position 0, with room for `batch` tokens at a time."""
        for name, size in (("batch", batch), ("history", history), ("ring", ring)):
            if size < 1:
                raise ps.InvalidValue(f"Progress: {name}={size}; it holds at least one token")
        return cls(
            state=device.zeros(STATE_WORDS, np.uint32, name="state"),
            tokens=device.zeros(batch, np.uint32, name="tokens"),
            history=device.zeros(history, np.uint32, name="history"),
            ring=device.zeros(ring, np.uint32, name="ring"),
        )

    def restart(self, position: int = 0) -> None:
        """Go to `position`, in stream order; what the cache holds before it stays in use."""
        self.state.write(np.array([position, 0, 0, 0], np.uint32))
