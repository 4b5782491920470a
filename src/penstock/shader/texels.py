"""Formats of texels: how a texel buffer (`samplerBuffer`, `imageBuffer`) interprets bytes.

A texel is one to four numbers that a shader fetches at once. The names are those of GLSL's image
formats. A normalized format (`rgba8`, `r16_snorm`) holds integers that the shader reads as floats
in 0..1 or -1..1. A packed one (`rgb10_a2`) keeps a whole texel in one uint32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from penstock.errors import InvalidValue

Dtype: TypeAlias = "np.dtype[Any]"

#: What a shader gets from a texel: the sampler's prefix is "", "i" or "u".
Fetched: TypeAlias = Literal["float", "int", "uint"]


@dataclass(frozen=True, slots=True)
class TexelFormat:
    """One format: `count` numbers of `dtype` in the array's memory are one texel."""

    name: str
    dtype: Dtype
    count: int
    fetched: Fetched

    @property
    def nbytes(self) -> int:
        """Bytes of one texel."""
        return self.count * self.dtype.itemsize


def format_named(name: Any, what: str) -> TexelFormat:
    """The format of this name; `what` says in the error message who asked for it."""
    found = FORMATS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidValue(
            f"{what}: there is no texel format {name!r}; GLSL's image formats are "
            f"{', '.join(sorted(FORMATS))}"
        )
    return found


def default_format(dtype: Dtype) -> TexelFormat | None:
    """The format with one element of an array in each texel; None if no format has this dtype."""
    kind, size = dtype.kind, dtype.itemsize
    if kind == "c":
        return FORMATS.get("rg32f") if size == 8 else None
    if kind in "bV" or dtype.isbuiltin == 2:  # bfloat16 and its like: their bits
        kind = "u"
    suffix = {"f": "f", "i": "i", "u": "ui"}.get(kind)
    return None if suffix is None or dtype.names else FORMATS.get(f"r{8 * size}{suffix}")


def _plain(name: str) -> TexelFormat:
    """A format whose name says it all: "rgba32f", "rg16", "r8_snorm"."""
    letters = next(each for each in ("rgba", "rg", "r") if name.startswith(each))
    rest = name[len(letters) :]
    bits = "".join(each for each in rest if each.isdigit())
    suffix = rest[len(bits) :]
    letter, fetched = _SUFFIXES[suffix]
    return TexelFormat(name, np.dtype(f"{letter}{int(bits) // 8}"), len(letters), fetched)


#: By the end of a name: the letter of the dtype, and what the shader gets.
_SUFFIXES: dict[str, tuple[str, Fetched]] = {
    "f": ("f", "float"), "": ("u", "float"), "_snorm": ("i", "float"),
    "i": ("i", "int"), "ui": ("u", "uint"),
}  # fmt: skip

_PACKED: dict[str, Fetched] = {"r11f_g11f_b10f": "float", "rgb10_a2": "float", "rgb10_a2ui": "uint"}

#: In the order of SPIR-V's numbers, from 1.
_NAMES = (
    "rgba32f", "rgba16f", "r32f", "rgba8", "rgba8_snorm", "rg32f", "rg16f", "r11f_g11f_b10f",
    "r16f", "rgba16", "rgb10_a2", "rg16", "rg8", "r16", "r8", "rgba16_snorm", "rg16_snorm",
    "rg8_snorm", "r16_snorm", "r8_snorm", "rgba32i", "rgba16i", "rgba8i", "r32i", "rg32i", "rg16i",
    "rg8i", "r16i", "r8i", "rgba32ui", "rgba16ui", "rgba8ui", "r32ui", "rgb10_a2ui", "rg32ui",
    "rg16ui", "rg8ui", "r16ui", "r8ui",
)  # fmt: skip

FORMATS: dict[str, TexelFormat] = {
    name: TexelFormat(name, np.dtype(np.uint32), 1, _PACKED[name])
    if name in _PACKED
    else _plain(name)
    for name in _NAMES
}

#: By SPIR-V's number of a format: its name. 0 is "unknown", and declares none.
SPIRV_FORMATS = dict(enumerate(("", *_NAMES)))
