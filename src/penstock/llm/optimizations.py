"""What makes decoding cheap, each of which can be taken away: to see what it is worth.

===========  =====================================================================================
`scratch`    activations are made once; without, they are made for every token (from the device's
             pool, which keeps their memory: the driver is not asked for it again)
`replay`     a token's work is recorded once; without, it is recorded and encoded for every token.
             There is no replay without `scratch`: recorded work has fixed memory
`access`     the host waits for the work that makes what it reads; without, it waits for all work
             before it touches anything, and so is never ahead of the device
`sampling`   the device chooses the token; without, its logits go to the host, which chooses the
             likeliest and sends it back
===========  =====================================================================================

Two more are the device's own: `ps.Device(transfers="unmapped")` is without zero-copy transfers, and
`ps.Device(transfers="fixed")` without renaming.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Steps that are issued before the token is read that may end the text.
AHEAD = 2


@dataclass(frozen=True)
class Mechanisms:
    """Which of them are on."""

    scratch: bool = True
    replay: bool = True
    access: bool = True
    sampling: bool = True

    @property
    def records_once(self) -> bool:
        return self.replay and self.scratch

    @property
    def ahead(self) -> int:
        """How many steps the host is ahead of the token it reads."""
        return AHEAD if self.access else 0


ALL = Mechanisms()
