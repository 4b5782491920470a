"""Numbers at equal distances, made on the device: what `arange` and `linspace` need."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.dtypes import Dtype
from penstock.ops.portable import Program, Programs

if TYPE_CHECKING:
    from penstock.device import Device

Host = npt.NDArray[Any]

_NUMBERS = ("count", "span", "start_low", "start_high", "step_low", "step_high")
RAMP = Program("ramp", {"out_": "inout"}, _NUMBERS, {})
RAMP32 = Program("ramp32", {"out_": "inout"}, _NUMBERS, {})
RAMP64 = Program("ramp64", {"out_": "inout"}, _NUMBERS, {"SIZE": 8})


class Ramps:
    """The ramps of one device, each one launch."""

    def __init__(self, device: Device, programs: Programs) -> None:
        self._device = device
        self._programs = programs

    def integers(self, count: int, start: int, step: int) -> Array:
        """start + i * step in int64, modulo 2^64."""
        made = self._device.new_result(count, np.int64)
        words = [struct.unpack("<2I", (n & (1 << 64) - 1).to_bytes(8, "little"))
                 for n in (start, step)]  # fmt: skip
        self._launch(RAMP, _integers, made, words)
        return made

    def floats(self, count: int, start: float, step: float, dtype: Dtype, wide: bool) -> Array:
        """start + i * step as float32 or float64; computed in float64 if `wide`."""
        made = self._device.new_result(count, dtype)
        if wide:
            words = [struct.unpack("<2I", struct.pack("<d", n)) for n in (start, step)]
            self._launch(RAMP64, _floats, made, words, SIZE=dtype.itemsize)
        else:
            words = [(int(np.float32(n).view(np.uint32)), 0) for n in (start, step)]
            self._launch(RAMP32, _narrow_floats, made, words)
        return made

    def _launch(
        self, program: Program, reference: Callable[..., None], made: Array,
        words: list[tuple[int, ...]], **constants: int,
    ) -> None:  # fmt: skip
        if not made.size:
            return
        groups = self._programs.groups(made.size)
        (start_low, start_high), (step_low, step_high) = words
        self._programs.kernel(program, reference, **constants)(
            out_=made, count=made.size, span=-(-made.size // groups), start_low=start_low,
            start_high=start_high, step_low=step_low, step_high=step_high, groups=groups,
        )  # fmt: skip


# The kernels in NumPy, for the simulator.


def _pair(low: int, high: int, dtype: Any) -> Any:
    return np.array([low, high], np.uint32).view(dtype)[0]


def _integers(*, out_: Host, count: int, **words: Any) -> None:
    start = _pair(words["start_low"], words["start_high"], np.uint64)
    step = _pair(words["step_low"], words["step_high"], np.uint64)
    with np.errstate(over="ignore"):
        out_.view(np.uint64)[:count] = start + np.arange(count, dtype=np.uint64) * step


def _floats(*, SIZE: int, out_: Host, count: int, **words: Any) -> None:  # noqa: N803
    start = _pair(words["start_low"], words["start_high"], np.float64)
    step = _pair(words["step_low"], words["step_high"], np.float64)
    with np.errstate(all="ignore"):
        out_.view(f"f{SIZE}")[:count] = start + np.arange(count) * step


def _narrow_floats(*, out_: Host, count: int, **words: Any) -> None:
    start, step = (_pair(words[name], 0, np.float32) for name in ("start_low", "step_low"))
    with np.errstate(all="ignore"):
        out_.view(np.float32)[:count] = start + np.arange(count, dtype=np.float32) * step
