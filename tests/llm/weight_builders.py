"""Weights for tests: random matrices of every kind, in file layout, and what they decode to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

import penstock as ps
from penstock.llm.weights import Piece, Weight

Host = npt.NDArray[Any]

#: Where the scales, which must be finite, are in a block that is otherwise random.
_SCALES = {
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
}  # fmt: skip

#: Half floats: the largest, the smallest normal and subnormal ones, both zeros.
_EXTREMES = np.array([0x7BFF, 0xFBFF, 0x0400, 0x8400, 0x03FF, 0x0001, 0x8001, 0, 0x8000], np.uint16)


def block_columns(kind: str) -> int:
    return int(GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0])


def encoded(kind: str, rows: int, columns: int, rng: np.random.Generator) -> Host:
    """A random matrix as the bytes of a file: uint8[rows, …]."""
    kind_number = GGMLQuantizationType[kind]
    if kind not in _SCALES:
        numbers = rng.standard_normal((rows, columns), dtype=np.float32)
        made = np.ascontiguousarray(quants.quantize(numbers, kind_number))
        return made.view(np.uint8).reshape(rows, -1)
    columns_of_block, size = GGML_QUANT_SIZES[kind_number]
    blocks = rng.integers(0, 256, (rows * columns // columns_of_block, size), dtype=np.uint8)
    for at in _SCALES[kind]:
        scales = rng.uniform(-0.01, 0.01, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(115, 125, len(blocks))  # exponents
    return blocks.reshape(rows, -1)


def extreme(kind: str, rows: int, rng: np.random.Generator) -> Host:
    """A block in each row, of random bytes, with scales at the ends of what is finite."""
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (rows, size), dtype=np.uint8)
    at_start = {"Q8_0": (0,), "Q4_0": (0,), "Q5_0": (0,), "Q4_1": (0, 2), "Q5_1": (0, 2)}
    for at in at_start.get(kind) or _SCALES[kind]:
        blocks[:, at : at + 2] = rng.choice(_EXTREMES, (rows, 1)).view(np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = np.linspace(0, 255, rows).astype(np.uint8)  # every exponent
    return blocks


def decoded(kind: str, raw: Host) -> Host:
    """What the reference decoder makes of the bytes: float32[rows, columns]."""
    made = quants.dequantize(raw, GGMLQuantizationType[kind])
    return np.asarray(made, np.float32).reshape(len(raw), -1)


def upload(
    device: ps.Device, kind: str, raw: Host, *, first: int = 0, split: tuple[int, ...] = (),
    behind: int = 0,
) -> Weight:  # fmt: skip
    """A weight whose pieces begin `first` bytes into their arrays, cut before the rows `split`.

    `behind` is how many bytes of something else follow at least.
    """
    cuts = [0, *split, len(raw)]
    pieces = []
    for begin, end in pairwise(cuts):
        content = raw[begin:end].tobytes()
        size = -(-(first + len(content) + behind) // 4) * 4
        noise = np.full(size, 0xA5, np.uint8)
        noise[first : first + len(content)] = np.frombuffer(content, np.uint8)
        words = device.array(noise.view(np.uint32), role="weight")
        pieces.append(Piece(words, first, begin, end - begin))
    columns = decoded(kind, raw[:1]).shape[1]
    return Weight(f"{kind} weight", kind, len(raw), columns, tuple(pieces))
