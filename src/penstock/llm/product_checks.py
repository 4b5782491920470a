"""Checks of what a product is given. They are made before any launch."""

from __future__ import annotations

import numpy as np

import penstock as ps
from penstock.llm.kinds import KINDS, PLAIN
from penstock.llm.weights import Weight


def check_kind(weight: Weight) -> None:
    """Check that kernels can decode the weight."""
    if weight.kind not in KINDS:
        raise ps.Unsupported(
            f"{weight.name!r} is of kind {weight.kind}; there are {', '.join(KINDS)}"
        )
    block = KINDS[weight.kind].columns
    if weight.columns % block:
        raise ps.ShapeMismatch(
            f"{weight.name!r} has {weight.columns} columns; {weight.kind} has blocks of {block}"
        )


def check_stack(weight: Weight, wanted: bool) -> None:
    """Check that the weight is a stack, or that it is none."""
    if (weight.experts > 0) != wanted:
        raise ps.Unsupported(
            f"{weight.name!r} is {'no ' * wanted}stack of experts' matrices: multiply_experts "
            "multiplies with these, multiply with single ones"
        )


def check_array(name: str, array: ps.Array, count: int, width: int, exactly: bool = False) -> int:
    """Check an activation: float32, a row for each token. Return the distance between rows."""
    if array.dtype != np.float32:
        raise ps.DtypeMismatch(f"{name} must be float32, not {array.dtype}")
    if count < 1:
        raise ps.InvalidValue(f"a product of {count} tokens; there must be one at least")
    distance = array.shape[-1] if array.ndim > 1 else width
    if distance < width or (exactly and distance != width) or array.size < count * distance:
        raise ps.ShapeMismatch(
            f"{name} has the shape {array.shape}; {count} rows of {width} were expected"
        )
    return distance


def check_bias(bias: Weight, weight: Weight) -> None:
    """Check that the bias has an element for each row of the weight."""
    if bias.kind not in PLAIN or len(bias.pieces) != 1:
        raise ps.Unsupported(
            f"the bias {bias.name!r} is of kind {bias.kind}, in {len(bias.pieces)} pieces; it can "
            f"be {', '.join(PLAIN)}, in one"
        )
    if (bias.rows, bias.columns) != (1, weight.rows):
        raise ps.ShapeMismatch(
            f"the bias {bias.name!r} is {bias.rows} × {bias.columns}; {weight.name!r} has "
            f"{weight.rows} rows"
        )
