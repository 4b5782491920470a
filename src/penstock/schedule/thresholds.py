"""From how many bytes on a transfer is made otherwise. The defaults were measured."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """A device's thresholds, in bytes; tests make them small."""

    under_lock: int = 256 << 10  #: a larger host copy is made without holding the lock
    ordered: int = 1 << 20  #: below, a second copy is cheaper than a thread
    staging_block: int = 16 << 20
    staging_blocks: int = 4  #: in flight for one write; a larger one waits for the first of them
    pooled_result: int = 4 << 20  #: larger results go to memory that is kept warm
