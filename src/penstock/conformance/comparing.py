"""Compares the results of a device with those of the oracle, and describes failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Host = npt.NDArray[Any]


@dataclass(frozen=True)
class Failure:
    """What went wrong, at which operation (None: at the end), and on which device."""

    what: str
    operation: int | None
    transfers: str
    seed: int
    messages: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "at the end" if self.operation is None else f"at operation {self.operation}"
        return "\n".join([f"{self.what} ({where}, transfers={self.transfers!r})", *self.messages])


class Wrong(Exception):
    """The device and the oracle disagree."""


def compare(what: str, got: Host | None, expected: Host) -> None:
    if got is None or got.shape != expected.shape or got.tobytes() != expected.tobytes():
        raise Wrong(f"{what}: {describe_difference(got, expected)}")


def describe_difference(got: Host | None, expected: Host) -> str:
    """Where two arrays differ first, and in how many elements."""
    if got is None or got.shape != expected.shape:
        return f"expected shape {expected.shape}, got {None if got is None else got.shape}"
    bits = [
        np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(each.size, -1)
        for each in (got, expected)
    ]
    wrong = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
    first = int(wrong[0])
    place = tuple(map(int, np.unravel_index(first, expected.shape)))
    at = place[0] if len(place) == 1 else place
    return (
        f"{len(wrong)} of {expected.size} elements are wrong, the first at {at}: "
        f"expected {expected[place]}, got {got[place]}"
    )
