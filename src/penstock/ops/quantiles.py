"""Quantile functions as tables of polynomials, with which random bits become normal numbers.

A device's logarithm and cosine differ from another's; additions and multiplications do not. So a
random integer m stands for the probability m / 2**32 (or 2**64), and polynomials give the number at
that quantile: one for each eighth of each octave of m, of degree 3 in float32 (its error is below
2e-6) and 8 in float64 (below 1e-13). The function of the normal distribution is odd: a bit is the
sign, and m the rest, below 1/2. The largest normal number is 6.3 in float32 and 9.2 in float64.

`tools/quantiles.py` makes the tables.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FILE = Path(__file__).with_name("quantiles.npz")

PARTS = 8  # of an octave
DEGREES = {4: 3, 8: 8}  # by the bytes of a float


@cache
def tables() -> dict[str, npt.NDArray[Any]]:
    """The tables by name: "normal32", "exponential64", …"""
    with np.load(FILE) as found:
        return {name: found[name] for name in found.files}
