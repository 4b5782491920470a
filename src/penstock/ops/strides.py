"""How kernels walk through arrays of any shape: broadcasting, merged axes, and pieces that fit.

Pure arithmetic on shapes and strides (in bytes), the same for every driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.errors import ShapeMismatch

Shape = tuple[int, ...]
Strides = tuple[int, ...]


def broadcast_shape(shapes: Sequence[Shape], what: str) -> Shape:
    """The shape that some shapes broadcast to, by NumPy's rules."""
    if not shapes:
        return ()
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    ndim = max(map(len, shapes))
    result = [1] * ndim
    for shape in shapes:
        for axis, n in enumerate(shape, ndim - len(shape)):
            if n != 1 and result[axis] not in (1, n):
                found = " and ".join(map(str, shapes))
                raise ShapeMismatch(f"{what}: shapes {found} cannot be broadcast together")
            if n != 1:
                result[axis] = n
    return tuple(result)


def broadcast_strides(shape: Shape, strides: Strides, to: Shape) -> Strides:
    """The strides of an array that is broadcast to a shape, which `broadcast_shape` has found."""
    missing = len(to) - len(shape)
    return (0,) * missing + tuple(
        0 if n == 1 and goal != 1 else stride
        for n, stride, goal in zip(shape, strides, to[missing:], strict=True)
    )


class Walk(NamedTuple):
    """The axes of a loop over elements, innermost first, with each operand's stride along them."""

    sizes: tuple[int, ...]
    strides: tuple[Strides, ...]  # by operand


def merged(shape: Shape, strides: Sequence[Strides]) -> Walk:
    """The loop over a shape in C order, with as few axes as the operands' strides allow.

    Two neighbouring axes become one if every operand steps through both evenly.
    """
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis in range(len(shape) - 1, -1, -1):
        n = shape[axis]
        if n == 1:
            continue
        own = [each[axis] for each in strides]
        if sizes and all(
            step[-1] * sizes[-1] == stride for step, stride in zip(steps, own, strict=True)
        ):
            sizes[-1] *= n
            continue
        sizes.append(n)
        for step, stride in zip(steps, own, strict=True):
            step.append(stride)
    return Walk(tuple(sizes), tuple(map(tuple, steps)))


def reciprocal(n: int) -> tuple[int, int]:
    """Multiplier and shift by which a kernel divides a 31-bit number i by n, without a division.

    i / n is the high word of i * multiplier, shifted right. For n = 1 the kernel needs no division.
    """
    shift = (n - 1).bit_length() - 1 if n > 1 else 0
    return -(-(1 << (32 + shift)) // n) & 0xFFFFFFFF, shift


def halves(n: int) -> Iterator[slice]:
    """The two halves of an axis."""
    yield slice(0, n // 2)
    yield slice(n // 2, n)
