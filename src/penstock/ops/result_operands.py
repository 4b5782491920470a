"""Pending results as operands: `x - x.mean()` runs on the device, and the host waits for nothing.

A reduction of a whole array leaves partial values in the result slot of its launch, which the host
folds when it reads the value (`ops/reductions`). When the value is an operand of a function on
arrays instead, the device folds them, by launches behind the reduction, into an array without
dimensions. Values that only the host can fold (indices, truth, means of 64-bit integers) are
waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.array import Array
from penstock.array.host_access import capturing
from penstock.dtypes import Dtype
from penstock.launch.result import Result
from penstock.memory.layout import Layout

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.launch.launch_memory import ResultMemory

_FLOAT64 = np.dtype(np.float64)


def on_device(result: Result, device: Device) -> Array | None:
    """The value as an array without dimensions; None if only the host can tell it, or has it."""
    scheduler = device.scheduler
    stream = scheduler.stream_or_default(None)
    with scheduler.lock:
        memory = result.memory
        if memory is None or memory.fold is None or memory.scheduler is not scheduler:
            return None
        scheduler.check()
        if capturing(scheduler) is not None:
            return None  # a replay would read a slot that belongs to another launch by then
        memory.hold()
    try:
        return memory.fold(*map(_in_place(memory), memory.members))
    finally:
        with scheduler.lock:
            memory.taken(stream.lane, stream.lane.recorded)


def _in_place(memory: ResultMemory) -> Callable[[Any], Array]:
    """A function that returns a part of a result as an array: the slot's own bytes."""

    def seen(member: Any) -> Array:
        start = memory.offset - memory.buffer.backing.offset + member.offset
        layout = Layout(start, member.shape, member.strides, member.dtype.itemsize)
        return Array(memory.buffer, layout, member.dtype)

    return seen


def folds_on_device(operation: str, dtype: Dtype) -> bool:
    """Whether the device can fold the partial values of a reduction."""
    if operation == "mean":
        return dtype.kind == "f" or dtype.itemsize < 8
    return operation in ("sum", "dot", "min", "max") and dtype.kind != "b"


def fold(operation: str, dtype: Dtype, used: Array, elements: Array, parts: Array) -> Array:
    """The value of a reduction from its partial values, of which the unused ones are zero."""
    if operation in ("min", "max"):
        return _element(operation, dtype, _joined(parts).max(keepdims=True))
    exact = parts.device.operations.abilities.float64
    if dtype.kind == "f":
        total: Array = parts.sum(dtype=_FLOAT64 if exact else parts.dtype)
        total = total / elements.astype(total.dtype) if operation == "mean" else total
        return total.astype(dtype)
    long = np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    whole: Array = _joined(parts).reinterpret(long).sum(dtype=long)
    if operation == "mean":
        return whole.astype(_FLOAT64) / elements.astype(_FLOAT64)
    return whole.astype(dtype) if operation == "dot" else whole


def _joined(parts: Array) -> Array:
    """The partial values as one number each: pairs of words become 64-bit numbers."""
    return parts.reinterpret(np.uint64).reshape(-1) if parts.ndim > 1 else parts


def _element(operation: str, dtype: Dtype, key: Array) -> Array:
    """The element that the largest key (one element) was made from: `reductions._value`."""
    bits = 8 * dtype.itemsize
    sign, every = 1 << (bits - 1), (1 << bits) - 1
    plain = key ^ every if operation == "min" else key
    if dtype.kind == "f":  # changes the sign of positive numbers, and every bit of negative ones
        plain = plain ^ ((plain >> (bits - 1)) - 1 | sign)
    elif dtype.kind == "i":
        plain = plain ^ sign
    made: Array = plain.astype(f"u{dtype.itemsize}").reinterpret(dtype).reshape(())
    return made
