"""An array of any strides as a texel buffer of 32-bit words, for kernels of whole arrays.

CPU drivers load texels faster than they load from storage buffers (docs/kernels.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.array.array import Array
from penstock.memory.layout import Layout

if TYPE_CHECKING:
    from penstock.device import Device

_ENOUGH_TEXELS = 1 << 24  # of 16 bytes, for a device to read arrays as texels
_FORMATS = {"r32ui", "rg32ui", "rgba32ui"}


def reads_texels(device: Device) -> bool:
    """Whether kernels read whole arrays as texels, which is faster with a CPU driver."""
    limits: Any = device.info.limits
    return bool(
        device.info.kind == "cpu"
        and limits.get("texel_elements", 0) >= _ENOUGH_TEXELS
        and device.info.texel_formats >= _FORMATS
        and not limits["binding_alignment"] % limits["texel_alignment"]
    )


def word_texels(x: Array, most: int) -> tuple[Array, int] | None:
    """Like `Array.words`, for a texel buffer of format r32ui; None if the array cannot be one.

    `most` is the number of texels that the device views at once. An array of small elements must
    begin and end with whole words: a texel view has no bytes that its array has not.
    """
    limits: Any = x.device.info.limits
    lo, hi = x.region.lo, x.region.hi
    alignment = limits.get("texel_alignment")
    base = x.buffer.backing.offset
    if alignment is None or lo % 4 or hi % 4 or base % 4 or hi <= lo:
        return None
    lead = (base + lo) % alignment
    if (lead + hi - lo) // 4 > most:
        return None
    made = Array(x.buffer, Layout(lo, ((hi - lo) // 4,), (4,), 4), np.dtype(np.uint32))
    made.region, made.lead, made.repeats = x.region, lead, x.repeats
    return made, x.layout.offset - lo + lead
