"""The kernels of matrix products in NumPy, for the simulator, and the kinds of their sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.dtypes import as_dtype

Host = npt.NDArray[Any]
Kind: TypeAlias = Literal["F32", "U32", "F64", "U64", "C64", "C128"]


class Sum(NamedTuple):
    """A kind of sums: its number in product.glsl, and its bytes."""

    code: int
    size: int


KINDS: dict[Kind, Sum] = {
    "F32": Sum(0, 4), "U32": Sum(1, 4), "F64": Sum(2, 8), "U64": Sum(3, 8), "C64": Sum(4, 8),
    "C128": Sum(5, 16),
}  # fmt: skip

#: The dtype of an array of sums.
SUMS: dict[Kind, Any] = {
    "F32": np.dtype(np.float32), "U32": np.dtype(np.uint32), "F64": np.dtype(np.float64),
    "U64": np.dtype(np.uint64), "C64": np.dtype(np.complex64), "C128": np.dtype(np.complex128),
}  # fmt: skip


def direct(
    kind: Kind, dtype: str, defines: Mapping[str, Any], *, left: Host, right: Host, sums: Host,
    rows: int, columns: int, inner: int, span: int, batches: int, batch_0: int, batch_1: int,
    left_at: int, left_row: int, left_inner: int, left_0: int, left_1: int, left_2: int,
    right_at: int, right_column: int, right_inner: int, right_0: int, right_1: int, right_2: int,
    to_row: int, to_column: int, sums_at: int, threads: object,
) -> None:  # fmt: skip
    """product_direct.comp"""
    batch: tuple[int, ...] = (batches // (batch_0 * batch_1), batch_1, batch_0)
    of_left: tuple[int, ...] = (left_2, left_1, left_0)
    of_right: tuple[int, ...] = (right_2, right_1, right_0)
    if "PAIRED" in defines:
        batch = (*batch, columns)
        of_left, of_right = (*of_left, left_row), (*of_right, right_column)
        left_row = right_column = 0
        rows = columns = 1
    a = _elements(left, dtype, left_at, (*batch, rows, inner), (*of_left, left_row, left_inner))
    b = _elements(
        right, dtype, right_at, (*batch, inner, columns), (*of_right, right_inner, right_column)
    )
    made = sums.reshape(-1).view(np.uint8)[4 * sums_at :].view(SUMS[kind])
    count = made.size // (-(-inner // span))
    one, other = a.astype(SUMS[kind]), b.astype(SUMS[kind])
    for segment, first in enumerate(range(0, inner, span)):
        with np.errstate(all="ignore"):
            product = np.matmul(one[..., first : first + span], other[..., first : first + span, :])
        if to_column != 1:
            product = np.swapaxes(product, -1, -2)
        made[segment * count : (segment + 1) * count] = product.reshape(-1)


def finish(
    kind: Kind, dtype: str, defines: Mapping[str, Any], *, sums: Host, made: Host, count: int,
    segments: int, sums_at: int, made_at: int, threads: object,
) -> None:  # fmt: skip
    """product_finish.comp"""
    numbers = sums.reshape(-1).view(np.uint8)[4 * sums_at :].view(SUMS[kind])
    with np.errstate(all="ignore"):
        total = (
            numbers.reshape(segments, count).sum(axis=0, dtype=SUMS[kind]).astype(as_dtype(dtype))
        )
    held = made.reshape(-1).view(np.uint8)[4 * made_at :]
    held[: total.nbytes] = total.view(np.uint8)


def _elements(
    words: Host, dtype: str, at: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Host:
    signed = tuple(step - (1 << 32) if step >= 1 << 31 else step for step in strides)
    held = words.reshape(-1).view(np.uint8)
    return np.ndarray(shape, as_dtype(dtype), held, at, signed)


def _only_on_devices(*_: object, **__: object) -> None:
    raise AssertionError("the simulator multiplies with product_direct alone")


BY_SHADER: dict[str, Callable[..., None]] = {
    "product_direct": direct,
    "product_finish": finish,
    "product_lanes": _only_on_devices,
    "product_pack": _only_on_devices,
    "product_shared": _only_on_devices,
}
