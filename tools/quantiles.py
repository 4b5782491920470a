"""Makes the tables of `penstock.ops.quantiles`: `python -m tools.quantiles` writes them anew.

They are shipped and not made at run time, because the logarithms of two machines may differ in
their last bit, and random numbers must not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Chebyshev, Polynomial

from penstock.ops.quantiles import DEGREES, FILE, PARTS

Host = npt.NDArray[Any]


def normal(p: float) -> float:
    """The quantile function of the normal distribution, refined by a step of Newton's method."""
    x = NormalDist().inv_cdf(p)
    error = 0.5 * math.erfc(-x / math.sqrt(2.0)) - p
    return x - error / (math.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def exponential(p: float) -> float:
    """The number that an exponential distribution exceeds with probability p."""
    return -math.log(p)


def table(function: Callable[[float], float], bits: int, octaves: int, degree: int) -> Host:
    """Coefficients by octave and part, from the constant on; the argument is m / 2**bits."""
    made = np.zeros((octaves, PARTS, degree + 1))
    angles = (2 * np.arange(degree + 1) + 1) * np.pi / (2 * degree + 2)
    nodes = 0.5 + 0.5 * np.cos(angles)
    # Chebyshev's coefficients from the values at his nodes: a transform that loses no digits.
    transform = np.cos(np.outer(np.arange(degree + 1), angles)) * 2 / (degree + 1)
    transform[0] /= 2
    for octave in range(octaves):
        for part in range(PARTS):
            values = [
                function(math.ldexp(1 + (part + x) / PARTS, octave - bits)) for x in nodes.tolist()
            ]
            series = Chebyshev(transform @ np.array(values), domain=(0, 1))
            found = series.convert(kind=Polynomial, domain=(-1, 1)).coef  # without zeros at the end
            made[octave, part, : found.size] = found
    return made


def main() -> None:
    tables = {
        "normal32": table(normal, 32, 31, DEGREES[4]).astype(np.float32),
        "normal64": table(normal, 64, 63, DEGREES[8]),
        "exponential32": table(exponential, 32, 32, DEGREES[4]).astype(np.float32),
        "exponential64": table(exponential, 64, 64, DEGREES[8]),
    }
    np.savez(FILE, **tables)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
