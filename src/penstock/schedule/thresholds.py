"""Size thresholds (bytes) at which a transfer changes strategy. The defaults were measured."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """A device's thresholds, in bytes; tests lower them."""

    under_lock: int = 256 << 10  #: a larger host copy is made without holding the lock
    ordered: int = 1 << 20  #: below this, a second copy is cheaper than a thread
    staging_block: int = 16 << 20
    staging_blocks: int = 4  #: blocks of one write; a larger write reuses them in turn
    driver_copy: int = (
        256 << 10
    )  #: below this, a copy in stream order is cheaper than a wait for it
    pooled_result: int = 4 << 20  #: from here on, results use pooled memory, already paged in
