"""The number formats of weights: columns and bytes per block of each."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A format: `columns` consecutive values of a row are stored in `nbytes` bytes."""

    columns: int
    nbytes: int


KINDS: dict[str, Kind] = {
    "F32": Kind(1, 4),
    "F16": Kind(1, 2),
    "BF16": Kind(1, 2),
    "Q8_0": Kind(32, 34),
    "Q4_0": Kind(32, 18),
    "Q4_1": Kind(32, 20),
    "Q5_0": Kind(32, 22),
    "Q5_1": Kind(32, 24),
    "Q4_K": Kind(256, 144),
    "Q5_K": Kind(256, 176),
    "Q6_K": Kind(256, 210),
    "Q2_K": Kind(256, 84),
    "Q3_K": Kind(256, 110),
    "IQ4_NL": Kind(32, 18),
    "IQ4_XS": Kind(256, 136),
    "MXFP4": Kind(32, 17),
}
SUPPORTED = ", ".join(KINDS)
PLAIN = ("F32", "F16", "BF16")  # what norms and biases may be

# GGUF's numbers of formats. Formats that KINDS lacks are here only for error messages.
GGUF_NUMBERS: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


def nbytes_of(kind: str, rows: int, columns: int) -> int:
    """The size of a tensor whose columns fill whole blocks."""
    block = KINDS[kind]
    return rows * (columns // block.columns) * block.nbytes
