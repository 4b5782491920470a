"""The optimizations of decoding. Each can be disabled, to measure what it saves.

===========  =====================================================================================
`scratch`    on: activations are allocated once. Off: for every token, from the device's pool, which
             reuses memory, so the driver allocates nothing
`replay`     on: a decode step is recorded once and replayed. Off: it is recorded and encoded for
             every token. Needs `scratch`, because a graph has fixed memory
`access`     on: the host waits only for the work that writes what it reads. Off: it waits for all
             work before every access, and so is never ahead of the device
`sampling`   on: the device samples the token. Off: its logits go to the host, which takes the
             likeliest token and sends it back
===========  =====================================================================================

Two more belong to the device: `ps.Device(transfers="unmapped")` disables zero-copy transfers, and
`ps.Device(transfers="fixed")` disables renaming.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Steps that the host issues beyond the token it reads, which may turn out to end the text.
AHEAD = 2


@dataclass(frozen=True)
class Mechanisms:
    """Which optimizations are on."""

    scratch: bool = True
    replay: bool = True
    access: bool = True
    sampling: bool = True

    @property
    def records_once(self) -> bool:
        return self.replay and self.scratch

    @property
    def ahead(self) -> int:
        """How many steps the host issues ahead of the token it reads."""
        return AHEAD if self.access else 0


ALL = Mechanisms()
