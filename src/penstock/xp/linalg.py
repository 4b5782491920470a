"""`xp.linalg`: linear algebra by the Array API standard.

Products, norms, diagonals and powers run on the device. Decompositions, and what needs them, are
NumPy's, on the device's own bytes: each waits once (`xp.through_numpy`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import as_float, as_integer
from penstock.errors import DtypeMismatch, InvalidValue, ShapeMismatch
from penstock.xp.linear_algebra import matmul, matrix_transpose, tensordot, together, vecdot
from penstock.xp.through_numpy import Host, as_floats, complex_of, on_host, real_of

if TYPE_CHECKING:
    from penstock.xp.namespace import Namespace

Order = int | float | Literal["fro", "nuc"]


class EighResult(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    U: Array
    S: Array
    Vh: Array


# On the device.


def outer(xp: Namespace, x1: Array, x2: Array, /) -> Array:
    """The product of every element of one vector with every element of another."""
    one, other = together(xp, "outer", x1, x2)
    if one.ndim != 1 or other.ndim != 1:
        raise ShapeMismatch(f"outer takes vectors, not shapes {one.shape} and {other.shape}")
    made: Array = xp.multiply(one[:, None], other[None, :])
    return made


def cross(xp: Namespace, x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of three elements, along an axis."""
    one, other = together(xp, "cross", x1, x2)
    if one.dtype.kind == "b":
        raise DtypeMismatch("cross of bool; convert it to numbers first, with astype()")
    axis = as_integer(axis, "cross, for an axis,")
    parts = []
    for x in (one, other):
        if not -x.ndim <= axis < x.ndim or x.shape[axis] != 3:
            raise ShapeMismatch(
                f"cross along axis {axis} of shapes {one.shape} and {other.shape}: both must have "
                "3 elements there"
            )
        rows = xp.moveaxis(x, axis, 0)
        # The other dimensions broadcast, counted from the last.
        parts.append([rows[n] for n in range(3)])
    a, b = parts
    made = [
        xp.subtract(xp.multiply(a[i], b[j]), xp.multiply(a[j], b[i]))
        for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    ndim = made[0].ndim + 1
    found: Array = xp.stack(
        made, axis=axis if axis < 0 else axis - max(one.ndim, other.ndim) + ndim
    )
    return found


def diagonal(xp: Namespace, x: Array, /, *, offset: int = 0) -> Array:
    """The diagonals of matrices, `offset` above the main one; a view of the same bytes."""
    _check_matrix("diagonal", x)
    offset = as_integer(offset, "diagonal, for an offset,")
    *ahead, rows, columns = x.shape
    *steps, down, across = x.strides
    count = max(0, min(rows + min(0, offset), columns - max(0, offset)))
    first = max(0, -offset) * down + max(0, offset) * across if count else 0
    layout = x.layout._replace(
        offset=x.layout.offset + first, shape=(*ahead, count), strides=(*steps, down + across)
    )
    return x.seen(layout)


def trace(
    xp: Namespace, x: Array, /, *, offset: int = 0, dtype: npt.DTypeLike | None = None
) -> Array:
    """The sums of diagonals; small integers are summed in 64 bits."""
    made: Array = xp.sum(diagonal(xp, x, offset=offset), axis=-1, dtype=dtype)
    return made


def matrix_power(xp: Namespace, x: Array, n: int, /) -> Array:
    """The product of n copies of square matrices; of their inverses, if n is negative."""
    _check_square("matrix_power", x)
    n = as_integer(n, "matrix_power")
    if n < 0:
        x, n = inv(xp, x), -n
    if n == 0:
        one: Array = xp.eye(x.shape[-1], dtype=x.dtype)
        return one.broadcast_to(x.shape).copy()
    power: Array | None = None
    square = x
    while True:
        if n & 1:
            power = square if power is None else matmul(xp, power, square)
        n >>= 1
        if not n:
            break
        square = matmul(xp, square, square)
    assert power is not None
    return power.copy() if power is x else power


def vector_norm(
    xp: Namespace, x: Array, /, *, axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False, ord: Order = 2,
) -> Array:  # fmt: skip
    """The norm of vectors along axes, or of all elements: (sum of |x|**ord) ** (1 / ord)."""
    x = _as_any_floats(xp, "vector_norm", x)
    if isinstance(ord, str):
        raise InvalidValue(f"vector_norm of order {ord!r}; an order is a number")
    ord = as_float(ord, "vector_norm: ord=")
    if axis == ():  # each element is a vector of its own
        made: Array = xp.astype(xp.not_equal(x, 0), real_of(x.dtype)) if ord == 0 else xp.abs(x)
        return made
    size: Array = xp.abs(x)
    options: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    if ord == math.inf:
        found = xp.max(size, **options)
    elif ord == -math.inf:
        found = xp.min(size, **options)
    elif ord == 0:
        found = xp.sum(xp.astype(xp.not_equal(size, 0), size.dtype), **options)
    elif ord == 1:
        found = xp.sum(size, **options)
    elif ord == 2:
        found = xp.sqrt(xp.sum(xp.square(size), **options))
    else:
        found = xp.pow(xp.sum(xp.pow(size, ord), **options), 1.0 / ord)
    result: Array = found
    return result


def matrix_norm(
    xp: Namespace, x: Array, /, *, keepdims: bool = False, ord: Order | None = "fro"
) -> Array:
    """The norm of matrices. Orders 2, -2 and "nuc" need singular values, and wait once."""
    _check_matrix("matrix_norm", x)
    x = _as_any_floats(xp, "matrix_norm", x)
    if not isinstance(ord, str | None):
        ord = as_float(ord, "matrix_norm: ord=")
    if ord in ("fro", None):
        return vector_norm(xp, x, axis=(-2, -1), keepdims=keepdims)
    if ord in (2, -2, "nuc"):
        values = svdvals(xp, x)
        reduce = {2: xp.max, -2: xp.min, "nuc": xp.sum}[ord]
        found: Array = reduce(values, axis=-1)
        return found[..., None, None] if keepdims else found
    if ord not in (1, -1, math.inf, -math.inf):
        raise InvalidValue(f"matrix_norm of order {ord!r}; choose of 'fro', 'nuc', ±1, ±2, ±inf")
    axis = -2 if ord in (1, -1) else -1
    sums = xp.sum(xp.abs(x), axis=axis, keepdims=True)
    extreme = xp.max if ord > 0 else xp.min
    most: Array = extreme(sums, axis=(-2, -1), keepdims=keepdims)
    return most


# Through NumPy.


def cholesky(xp: Namespace, x: Array, /, *, upper: bool = False) -> Array:
    """The lower (or upper) triangular factors of positive-definite matrices. Waits once."""
    return _alone(xp, "cholesky", lambda a: np.linalg.cholesky(a, upper=upper), x)


def det(xp: Namespace, x: Array, /) -> Array:
    """Determinants. Waits once."""
    return _alone(xp, "det", np.linalg.det, x)


def inv(xp: Namespace, x: Array, /) -> Array:
    """Inverses of square matrices. Waits once."""
    return _alone(xp, "inv", np.linalg.inv, x)


def eig(xp: Namespace, x: Array, /) -> EigResult:
    """Eigenvalues and eigenvectors, complex. Waits once."""
    x = _square_floats(xp, "eig", x)
    kind = complex_of(x.dtype)

    def function(a: Host) -> tuple[Host, ...]:
        return tuple(each.astype(kind, copy=False) for each in np.linalg.eig(a))

    return EigResult(*on_host(xp, "linalg.eig", function, x))


def eigvals(xp: Namespace, x: Array, /) -> Array:
    """Eigenvalues, complex. Waits once."""
    x = _square_floats(xp, "eigvals", x)
    kind = complex_of(x.dtype)
    return on_host(xp, "linalg.eigvals", lambda a: np.linalg.eigvals(a).astype(kind), x)[0]


def eigh(xp: Namespace, x: Array, /) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric or Hermitian matrices. Waits once."""
    x = _square_floats(xp, "eigh", x)
    return EighResult(*on_host(xp, "linalg.eigh", lambda a: tuple(np.linalg.eigh(a)), x))


def eigvalsh(xp: Namespace, x: Array, /) -> Array:
    """Eigenvalues of symmetric or Hermitian matrices. Waits once."""
    return _alone(xp, "eigvalsh", np.linalg.eigvalsh, x)


def matrix_rank(xp: Namespace, x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """How many singular values exceed `rtol` times the largest. Waits once."""
    _check_matrix("matrix_rank", x)
    x = as_floats(xp, "linalg.matrix_rank", x)
    share = _tolerance(x, rtol)

    def function(a: Host) -> Host:
        values = np.linalg.svd(a, compute_uv=False)
        largest = values.max(axis=-1, keepdims=True, initial=0)
        return np.asarray((values > largest * share[..., None]).sum(axis=-1), np.int64)

    return on_host(xp, "linalg.matrix_rank", function, x)[0]


def pinv(xp: Namespace, x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Pseudo-inverses; singular values up to `rtol` times the largest count as zero. Waits once."""
    _check_matrix("pinv", x)
    x = as_floats(xp, "linalg.pinv", x)
    share = _tolerance(x, rtol)

    def function(a: Host) -> Host:
        return np.linalg.pinv(a, rcond=share).astype(a.dtype, copy=False)

    return on_host(xp, "linalg.pinv", function, x)[0]


def qr(xp: Namespace, x: Array, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """Orthonormal and upper triangular factors. Waits once."""
    if mode not in ("reduced", "complete"):
        raise InvalidValue(f"qr with mode={mode!r}; choose 'reduced' or 'complete'")
    _check_matrix("qr", x)
    x = as_floats(xp, "linalg.qr", x)
    return QRResult(*on_host(xp, "linalg.qr", lambda a: tuple(np.linalg.qr(a, mode)), x))


def slogdet(xp: Namespace, x: Array, /) -> SlogdetResult:
    """The signs and the logarithms of the absolute values of determinants. Waits once."""
    x = _square_floats(xp, "slogdet", x)
    return SlogdetResult(*on_host(xp, "linalg.slogdet", lambda a: tuple(np.linalg.slogdet(a)), x))


def solve(xp: Namespace, x1: Array, x2: Array, /) -> Array:
    """The y for which x1 @ y is x2: matrices, or one vector. Waits once."""
    one, other = together(xp, "solve", x1, x2)
    one, other = as_floats(xp, "linalg.solve", one), as_floats(xp, "linalg.solve", other)
    _check_square("solve", one)
    vector = other.ndim == 1
    if not other.ndim or other.shape[-1 if vector else -2] != one.shape[-1]:
        raise ShapeMismatch(f"linalg.solve of shapes {x1.shape} and {x2.shape}")

    def function(a: Host, b: Host) -> Host:
        found = np.linalg.solve(a, b[:, None] if vector else b)
        return found[..., 0] if vector else found

    return on_host(xp, "linalg.solve", function, one, other)[0]


def svd(xp: Namespace, x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular values, and the matrices on both sides of them. Waits once."""
    _check_matrix("svd", x)
    x = as_floats(xp, "linalg.svd", x)
    return SVDResult(
        *on_host(xp, "linalg.svd", lambda a: tuple(np.linalg.svd(a, full_matrices)), x)
    )


def svdvals(xp: Namespace, x: Array, /) -> Array:
    """Singular values, the largest first. Waits once."""
    _check_matrix("svdvals", x)
    x = as_floats(xp, "linalg.svdvals", x)
    return on_host(xp, "linalg.svdvals", lambda a: np.linalg.svd(a, compute_uv=False), x)[0]


def _alone(xp: Namespace, name: str, function: Any, x: Array) -> Array:
    """A function of square matrices with one result."""
    x = _square_floats(xp, name, x)
    return on_host(xp, f"linalg.{name}", function, x)[0]


def _square_floats(xp: Namespace, name: str, x: Array) -> Array:
    made = as_floats(xp, f"linalg.{name}", x)
    _check_square(name, made)
    return made


def _as_any_floats(xp: Namespace, name: str, x: Array) -> Array:
    """An array for functions that run on the device, which take the small floats, too."""
    return as_floats(xp, f"linalg.{name}", x, small=True)


def _check_matrix(name: str, x: Array) -> None:
    if x.ndim < 2:
        raise ShapeMismatch(f"linalg.{name} of shape {x.shape}, which has no matrix")


def _check_square(name: str, x: Array) -> None:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeMismatch(f"linalg.{name} of shape {x.shape}, which has no square matrix")


def _tolerance(x: Array, rtol: float | Array | None) -> Host:
    """The share of the largest singular value up to which one counts as zero."""
    if rtol is None:
        return np.asarray(max(x.shape[-2:]) * np.finfo(x.dtype).eps)
    return rtol.numpy() if isinstance(rtol, Array) else np.asarray(rtol)


FUNCTIONS = (
    cholesky, cross, det, diagonal, eig, eigh, eigvals, eigvalsh, inv, matmul, matrix_norm,
    matrix_power, matrix_rank, matrix_transpose, outer, pinv, qr, slogdet, solve, svd, svdvals,
    tensordot, trace, vecdot, vector_norm,
)  # fmt: skip
