"""Weights on a device, in the layout of the file they came from."""

from __future__ import annotations

from dataclasses import dataclass

import penstock as ps


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a tensor, in an array that a kernel can bind."""

    words: ps.Array  # uint32[n], contiguous, starts where the device can bind it
    first: int  # byte in `words` at which the first row begins (even; GGUF: multiple of 2)
    row: int  # number of the first row
    rows: int


@dataclass(frozen=True)
class Weight:
    """A matrix or vector in its file layout, on a device."""

    name: str
    kind: (
        str  # "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"
    )
    rows: int  # outputs of a product (1 for a vector)
    columns: int  # inputs; consecutive in memory
    pieces: tuple[Piece, ...]  # in order of rows, covering all of them
