"""Products with weights in their file layout: how many weights, or products, in a second.

Each case is a graph that multiplies one matrix, recorded once and replayed, as a model does it; its
result is compared with NumPy's. The matrix is large enough not to stay in a core's own cache. The
floor is NumPy's product of the same matrix, decoded to float32: `matrix @ x` for one token, and
`x @ matrix.T` for several.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from benchmarks.tables import Row, Section, times
from penstock.bench.measure import Case, Samples, expect, interleave
from penstock.llm import kernels
from penstock.llm.kinds import KINDS
from penstock.llm.products import Products
from penstock.llm.weights import Piece, Weight

Host = npt.NDArray[Any]
ROWS, COLUMNS = 3072, 1024
TOKENS = 32
_FLOOR = "numpy float32"


def run(device: ps.Device, repeat: int) -> list[Section]:
    ways = _ways(device)
    made = {kind: _matrix(device, kind) for kind in KINDS}
    return [_section(device, repeat, ways, made, count) for count in (1, TOKENS)]


def _ways(device: ps.Device) -> list[str]:
    """What the device takes by itself, and what a GPU would."""
    own = Products(device).way
    return [own] + [way for way in ("subgroup",) if way != own]


def _section(
    device: ps.Device, repeat: int, ways: Iterable[str], made: dict[str, tuple[Weight, Host]],
    count: int,
) -> Section:  # fmt: skip
    x = np.random.default_rng(1).standard_normal((count, COLUMNS), dtype=np.float32)
    floor = made["F32"][1]
    cases: dict[str, Case] = {_FLOOR: partial(_numpy, floor, x)}
    labels = [_FLOOR]
    for way in ways:
        products = Products(device, way=way)
        for kind, (weight, matrix) in made.items():
            labels.append(f"{kind} {way}")
            cases[labels[-1]] = _Case(device, products, weight, matrix, x).run
    samples = interleave(cases, repeat)
    work = ROWS * COLUMNS * count / 1e9
    unit = "weights" if count == 1 else "products"
    rows = [_row(label, samples[label], samples[_FLOOR], work, unit) for label in labels]
    what = "1 token" if count == 1 else f"{count} tokens"
    return Section(
        f"{ROWS} × {COLUMNS} matrix by {what}: giga{unit} a second",
        rows,
        (f"{repeat} interleaved rounds; every result is checked",),
    )


def _row(label: str, samples: Samples, floor: Samples, work: float, unit: str) -> Row:
    return {
        "case": label,
        f"best_G{unit}": work / samples.minimum,
        f"median_G{unit}": work / samples.median,
        **times(samples, floor),
    }


class _Case:
    """One product, recorded and checked."""

    def __init__(
        self, device: ps.Device, products: Products, weight: Weight, matrix: Host, x: Host
    ) -> None:
        self._device = device
        there, y = device.array(x), device.zeros((len(x), weight.rows))
        with device.record() as self._graph:
            products.multiply(weight, there, y, len(x))
        self._graph.replay()
        error = np.abs(y.numpy() - x @ matrix.T) / (np.abs(x) @ np.abs(matrix).T)
        expect(bool(error.max() < 1e-5), f"the product with {weight.name}")

    def run(self) -> float:
        start = time.perf_counter()
        self._graph.replay()
        self._device.synchronize()
        return time.perf_counter() - start


def _numpy(matrix: Host, x: Host) -> float:
    start = time.perf_counter()
    x @ matrix.T if len(x) > 1 else matrix @ x[0]
    return time.perf_counter() - start


def _matrix(device: ps.Device, kind: str) -> tuple[Weight, Host]:
    """A random matrix of a kind, and what it is in float32, as the device decodes it.

    That decoding is right is a matter of tests; here it saves every user a package.
    """
    rng = np.random.default_rng(0)
    blocks = kernels.blocks_of(kind, 8)
    if kind in ("F32", "BF16"):
        raw = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32).view(np.uint8)
        if kind == "BF16":  # random bits would have subnormal numbers, which CPUs multiply slowly
            raw = np.ascontiguousarray(raw.reshape(-1, 2, 2)[:, 1])
    else:
        shape = (ROWS * COLUMNS // blocks.columns, blocks.bytes)
        # Bits of F16, and so all scales, are made small: no infinity, no NaN.
        raw = rng.integers(0, 256, shape, dtype=np.uint8)
        if kind == "MXFP4":
            raw[:, 0] = rng.integers(100, 150, len(raw))  # exponents
        for at in _SCALES.get(kind, ()):
            raw[:, at + 1] &= 0x9F
    words = device.array(raw.reshape(-1).view(np.uint32), role="weight")
    weight = Weight(kind, kind, ROWS, COLUMNS, (Piece(words, 0, 0, ROWS),))
    y = device.empty((ROWS, COLUMNS))
    Products(device).embed(weight, device.array(np.arange(ROWS, dtype=np.uint32)), y, ROWS)
    return weight, y.numpy()


_SCALES = {
    "F16": (0,), "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,),
    "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "Q2_K": (80, 82), "Q3_K": (108,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
