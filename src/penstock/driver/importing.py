"""Imports host memory such that an interrupt leaves no import behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

M = TypeVar("M", bound=Any)


def import_noted(make: Callable[[int], M], nbytes: int, notify: Callable[[str, int], None]) -> M:
    """Call `make(nbytes)`, then `notify`; closes the memory if an exception interrupts this."""
    made: list[M] = []
    try:
        # One interpreter step: the memory is made, and the list has it.
        made.extend(map(make, (nbytes,)))
        notify("import of host memory", nbytes)
    except BaseException:
        for memory in made:
            memory.close()
        raise
    return made[0]
