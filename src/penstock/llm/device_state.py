"""The state of a generation in device memory, so that a recorded step never changes.

Kernels read the position of the next token, and kernels advance it. The host records a step once,
replays it, and reads the ring of tokens when it needs them.

=========  ==========================================================================
`state`    uint32: word `POSITION` is the position of the first token of the next batch,
           which is the number of filled rows of the KV cache; word `STEP` counts the
           sampled tokens; word `PADDING` is how many tokens at the end of the batch are
           `NO_TOKEN`
`tokens`   uint32: the next batch; a sampled token becomes its token 0
`history`  uint32: the token at position p is at `p % len(history)`, sampled or not;
           repetition penalties read it
`ring`     uint32: the token of step s is at `s % len(ring)`; the host reads it
=========  ==========================================================================

**Padding.** A step is recorded for a number of tokens. A batch of fewer ends with `NO_TOKEN`.
Kernels compute rows for these, but nothing that lasts depends on them: the position advances by the
other tokens, history and states of DeltaNet layers leave the padding out, and the next batch
overwrites its rows of the KV cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import penstock as ps

#: The words of `state`, by their name in shaders.
STATE = {"POSITION": 0, "STEP": 1, "PADDING": 2}
STATE_WORDS = 4
#: An id that no vocabulary has: padding, or the token of a step whose logits were not numbers.
NO_TOKEN = 0xFFFFFFFF


@dataclass(frozen=True)
class DeviceState:
    """The arrays that hold the state of a generation."""

    state: ps.Array
    tokens: ps.Array
    history: ps.Array
    ring: ps.Array

    @classmethod
    def new(
        cls, device: ps.Device, *, batch: int = 1, history: int = 1024, ring: int = 1024
    ) -> DeviceState:
        """Create the state at position 0, with room for `batch` tokens at a time."""
        for name, size in (("batch", batch), ("history", history), ("ring", ring)):
            if size < 1:
                raise ps.InvalidValue(f"DeviceState: {name}={size}; it holds at least one token")
        return cls(
            state=device.zeros(STATE_WORDS, np.uint32, name="state"),
            tokens=device.zeros(batch, np.uint32, name="tokens"),
            history=device.zeros(history, np.uint32, name="history"),
            ring=device.zeros(ring, np.uint32, name="ring"),
        )

    def restart(self, position: int = 0, last: Sequence[int] = ()) -> None:
        """Set the position, in stream order; KV cache rows before it stay in use.

        `last` are the tokens before the position, for the history.
        """
        if last:
            size = self.history.size
            history = np.zeros(size, np.uint32)
            known = np.array(last[-size:], np.uint32)
            history[np.arange(position - len(known), position) % size] = known
            self.history.write(history)
        self.state.write(np.array([position, 0, 0, 0], np.uint32))
