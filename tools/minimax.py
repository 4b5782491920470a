"""Computes the polynomials of the shader library (`ops/shaders/arithmetic`) with Remez's algorithm.

`python -m tools.minimax` prints, for each function and precision, the coefficients (lowest power
first) as GLSL literals and the largest relative error of the polynomial before they are rounded.
Needs mpmath.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from mpmath import mp, mpf

Real = Callable[[Any], Any]
mp.dps = 100
_NEAR = mpf(10) ** -8  # below this the quotients cancel, and a series takes over


def minimax(f: Real, weight: Real, low: Any, high: Any, degree: int) -> tuple[list[Any], Any]:
    """The polynomial with the smallest largest |weight · (f - polynomial)|, and that maximum."""
    low, high = mpf(low), mpf(high)
    count = degree + 2
    points = [
        (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (k + mpf(1) / 2) / count)
        for k in range(count)
    ]
    grid = [low + (high - low) * (1 - mp.cos(mp.pi * k / 600)) / 2 for k in range(601)]
    coefficients: list[Any] = []
    most = mpf(0)
    for _ in range(30):
        matrix, right = mp.matrix(count, count), mp.matrix(count, 1)
        for row, x in enumerate(points):
            for power in range(degree + 1):
                matrix[row, power] = x**power
            matrix[row, degree + 1] = (-1) ** row / weight(x)
            right[row] = f(x)
        solved = mp.lu_solve(matrix, right)
        coefficients = [solved[k] for k in range(degree + 1)]
        errors = [weight(x) * (f(x) - mp.polyval(coefficients[::-1], x)) for x in grid]
        most = max(map(abs, errors))
        if most <= abs(solved[degree + 1]) * mpf("1.02"):
            break
        points = _extremes(grid, errors, count)
    return coefficients, most


def _extremes(grid: list[Any], errors: list[Any], count: int) -> list[Any]:
    """One point of largest error from each run of errors of one sign, `count` of them."""
    best: list[tuple[Any, Any]] = []
    for x, error in zip(grid, errors, strict=True):
        if not best or error * best[-1][1] < 0:
            best.append((x, error))
        elif abs(error) > abs(best[-1][1]):
            best[-1] = (x, error)
    while len(best) > count:
        best.pop(0 if abs(best[0][1]) < abs(best[-1][1]) else -1)
    if len(best) < count:
        raise ArithmeticError(f"{len(best)} extremes, not {count}: the degree is too high")
    return [x for x, _ in best]


def _series(exact: Real, near: Real) -> Real:
    return lambda x: near(x) if abs(x) < _NEAR else exact(x)


def _even(f: Real, series: Real) -> Real:
    """`f` as a function of z = x²."""
    return _series(lambda z: f(mp.sqrt(z)), series)


_LEAST = mpf(10) ** -12  # a weight of zero has no reciprocal
_HALF_LN2 = mp.log(2) / 2 * mpf("1.01")
_QUARTER = (mp.pi / 4 * mpf("1.001")) ** 2
_EIGHTH = mp.tan(mp.pi / 8) ** 2 * mpf("1.001")
_S = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mpf("1.001")

#: By name: the function that the polynomial approximates, the weight that turns its error into a
#: relative error of the result, the interval, and the degrees for float and double.
POLYNOMIALS: dict[str, tuple[Real, Real, Any, Any, int, int]] = {
    "exp(r) = 1 + r + r²·P(r)": (
        _series(lambda r: (mp.expm1(r) - r) / r**2, lambda r: mpf(1) / 2 + r / 6),
        lambda r: r**2 / mp.exp(r) + _LEAST,
        -_HALF_LN2, _HALF_LN2, 4, 9,
    ),
    "expm1(r) = r + r²/2 + r³·P(r)": (
        _series(lambda r: (mp.expm1(r) - r - r**2 / 2) / r**3, lambda r: mpf(1) / 6 + r / 24),
        lambda r: r**2 + _LEAST,
        -_HALF_LN2, _HALF_LN2, 4, 9,
    ),
    "exp2(f) = 1 + f·P(f)": (
        _series(lambda f: (mpf(2) ** f - 1) / f, lambda f: mp.log(2) + f * mp.log(2) ** 2 / 2),
        lambda f: abs(f) / mpf(2) ** f + _LEAST,
        mpf("-0.501"), mpf("0.501"), 6, 11,
    ),
    "log1p(f) = f - f²/2 + s·(f²/2 + R(z)), s = f/(2 + f), z = s²: R(z) = z·P(z)": (
        _even(
            lambda s: (2 * mp.atanh(s) / s - 2) / s**2, lambda z: mpf(2) / 3 + 2 * z / 5
        ),
        lambda z: z + _LEAST,
        mpf(0), _S, 3, 7,
    ),
    "2·atanh(s) = 2·s + s·(2/3·z + z²·P(z))": (
        _even(
            lambda s: (2 * mp.atanh(s) / s - 2 - 2 * s**2 / 3) / s**4,
            lambda z: mpf(2) / 5 + 2 * z / 7,
        ),
        lambda z: z**2 + _LEAST,
        mpf(0), _S, 3, 7,
    ),
    "sin(x) = x + x·z·P(z)": (
        _even(lambda x: (mp.sin(x) / x - 1) / x**2, lambda z: -mpf(1) / 6 + z / 120),
        lambda z: z + _LEAST,
        mpf(0), _QUARTER, 2, 5,
    ),
    "cos(x) = 1 - z/2 + z²·P(z)": (
        _even(
            lambda x: (mp.cos(x) - 1 + x**2 / 2) / x**4, lambda z: mpf(1) / 24 - z / 720
        ),
        lambda z: z**2 / mp.cos(mp.sqrt(z)) + _LEAST,
        mpf(0), _QUARTER, 2, 5,
    ),
    "tan(x) = x + x·z·P(z)": (
        _even(lambda x: (mp.tan(x) / x - 1) / x**2, lambda z: mpf(1) / 3 + 2 * z / 15),
        lambda z: z + _LEAST,
        mpf(0), _QUARTER, 6, 14,
    ),
    "asin(x) = x + x·z·P(z)": (
        _even(lambda x: (mp.asin(x) / x - 1) / x**2, lambda z: mpf(1) / 6 + 3 * z / 40),
        lambda z: z + _LEAST,
        mpf(0), mpf("0.2501"), 5, 12,
    ),
    "atan(x) = x + x·z·P(z)": (
        _even(lambda x: (mp.atan(x) / x - 1) / x**2, lambda z: -mpf(1) / 3 + z / 5),
        lambda z: z + _LEAST,
        mpf(0), _EIGHTH, 4, 10,
    ),
}  # fmt: skip


def main(names: list[str]) -> None:
    for name, (f, weight, low, high, single, double) in POLYNOMIALS.items():
        if names and not any(name.startswith(each) for each in names):
            continue
        for degree, digits, suffix in ((single, 10, ""), (double, 18, "lf")):
            coefficients, most = minimax(f, weight, low, high, degree)
            print(f"{name}, degree {degree}: error 2^{float(mp.log(most, 2)):.1f}")
            print("   ", ", ".join(mp.nstr(each, digits) + suffix for each in coefficients))


if __name__ == "__main__":
    main(sys.argv[1:])
