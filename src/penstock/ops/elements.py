"""Elements of every dtype as kernels read and write them: bits in 32-bit words.

Kernels of whole arrays bind 32-bit words (`Array.words`) and unpack elements themselves, so that
every dtype works on devices without 8-, 16- and 64-bit types, and arrays may start and step
anywhere. This module generates the GLSL for it:

- `Word`, and the macro `RAW(words, at, size)`: the bits of the element at byte `at`, in a `uvec4`;
- `decode_a(raw)`: the bits of operand `a` as a number of one compute type (`ops.arithmetic`);
- `encode(number)`: the opposite, for the output;
- the macro `UNIT(words, at, size)`: the bits of four elements side by side from byte `at` on, in
  variables that are named after the words: a0 to a3 for a.

`a` is a buffer of `Word`, or a texel buffer, from which drivers for CPUs load faster.

The dtypes are specialization constants (A_DTYPE, …, OUT_DTYPE), which hold a dtype's code;
`shader.pruning` removes the other cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.dtypes import Dtype
from penstock.errors import DtypeMismatch, Unsupported
from penstock.ops.arithmetic import TYPES, Compute, cast
from penstock.ops.library import source

if TYPE_CHECKING:
    from penstock.driver.protocol import DeviceInfo

#: The dtypes that kernels know, in the order of their codes, with their compute types.
_COMPUTES: dict[str, Compute] = {
    "bool": "b", "int8": "i32", "uint8": "u32", "int16": "i32", "uint16": "u32", "int32": "i32",
    "uint32": "u32", "int64": "i64", "uint64": "u64", "float16": "f32", "bfloat16": "f32",
    "float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128",
}  # fmt: skip

DTYPES = tuple(_COMPUTES)

#: By compute type: those of the elements that a kernel converts to it when it loads them.
SOURCES: dict[Compute, tuple[Compute, ...]] = {
    "b": ("b",),
    "i32": ("b", "i32", "u32"),
    "u32": ("b", "i32", "u32"),
    "i64": ("b", "i32", "u32", "i64", "u64"),
    "u64": ("b", "i32", "u32", "i64", "u64"),
    "f32": ("b", "i32", "u32", "i64", "u64", "f32"),
    "f64": ("b", "i32", "u32", "i64", "u64", "f32", "f64"),
    "c64": ("b", "i32", "u32", "i64", "u64", "f32", "c64"),
    "c128": ("b", "i32", "u32", "i64", "u64", "f32", "f64", "c64", "c128"),
}

#: By dtype: the GLSL expression of its number in its own compute type, from `raw`.
_DECODED = {
    "bool": "(raw.x & 0xFFu) != 0u",
    "int8": "bitfieldExtract(int(raw.x), 0, 8)",
    "uint8": "raw.x & 0xFFu",
    "int16": "bitfieldExtract(int(raw.x), 0, 16)",
    "uint16": "raw.x & 0xFFFFu",
    "int32": "int(raw.x)",
    "uint32": "raw.x",
    "int64": "ps_i64_of(raw.xy)",
    "uint64": "ps_u64_of(raw.xy)",
    "float16": "ps_unpack_half(raw.x)",
    "bfloat16": "ps_unpack_bfloat(raw.x)",
    "float32": "uintBitsToFloat(raw.x)",
    "float64": "packDouble2x32(raw.xy)",
    "complex64": "uintBitsToFloat(raw.xy)",
    "complex128": "dvec2(packDouble2x32(raw.xy), packDouble2x32(raw.zw))",
}
#: By dtype: the expression of the bits of `a`, a number of the dtype's own compute type.
_ENCODED = {
    "bool": "uvec4(a ? 1u : 0u, 0u, 0u, 0u)",
    "int8": "uvec4(uint(a) & 0xFFu, 0u, 0u, 0u)",
    "uint8": "uvec4(a & 0xFFu, 0u, 0u, 0u)",
    "int16": "uvec4(uint(a) & 0xFFFFu, 0u, 0u, 0u)",
    "uint16": "uvec4(a & 0xFFFFu, 0u, 0u, 0u)",
    "int32": "uvec4(uint(a), 0u, 0u, 0u)",
    "uint32": "uvec4(a, 0u, 0u, 0u)",
    "int64": "uvec4(ps_words(a), 0u, 0u)",
    "uint64": "uvec4(ps_words(a), 0u, 0u)",
    "float16": "uvec4(ps_pack_half(a), 0u, 0u, 0u)",
    "bfloat16": "uvec4(ps_pack_bfloat(a), 0u, 0u, 0u)",
    "float32": "uvec4(floatBitsToUint(a), 0u, 0u, 0u)",
    "float64": "uvec4(unpackDouble2x32(a), 0u, 0u)",
    "complex64": "uvec4(floatBitsToUint(a), 0u, 0u)",
    "complex128": "uvec4(unpackDouble2x32(a.x), unpackDouble2x32(a.y))",
}

_STORAGE_WORDS = """
#define WORD(words, i) words[i].bits
#define COUNT(words) uint(words.length())
"""
_TEXEL_WORDS = """
#define WORD(words, i) texelFetch(words, int(i)).x
#define COUNT(words) uint(textureSize(words))
"""
_WORDS = """
struct Word { uint bits; };
#define RAW(words, at, size) ( \\
    (size) == 1 ? uvec4(WORD(words, (at) >> 2) >> (((at) & 3u) * 8u), 0u, 0u, 0u) : \\
    (size) == 2 ? uvec4(WORD(words, (at) >> 2) >> (((at) & 2u) * 8u), 0u, 0u, 0u) : \\
    (size) == 4 ? uvec4(WORD(words, (at) >> 2), 0u, 0u, 0u) : \\
    (size) == 8 ? uvec4(WORD(words, (at) >> 2), WORD(words, ((at) >> 2) + 1u), 0u, 0u) : \\
    uvec4(WORD(words, (at) >> 2), WORD(words, ((at) >> 2) + 1u), \\
          WORD(words, ((at) >> 2) + 2u), WORD(words, ((at) >> 2) + 3u)))
#define FETCH(words, i) WORD(words, min(i, COUNT(words) - 1u))
#define UNIT(words, at, size) \\
    uint words##_w = (at) >> 2, words##_o = ((at) & 3u) * 8u; \\
    if ((size) == 1) { \\
        uint bits = FETCH(words, words##_w) >> words##_o; \\
        if (words##_o != 0u) bits |= FETCH(words, words##_w + 1u) << (32u - words##_o); \\
        words##0 = uvec4(bits, 0u, 0u, 0u); \\
        words##1 = uvec4(bits >> 8, 0u, 0u, 0u); \\
        words##2 = uvec4(bits >> 16, 0u, 0u, 0u); \\
        words##3 = uvec4(bits >> 24, 0u, 0u, 0u); \\
    } else if ((size) == 2) { \\
        uvec3 bits = uvec3(FETCH(words, words##_w), FETCH(words, words##_w + 1u), 0u); \\
        if (words##_o != 0u) { \\
            bits.z = FETCH(words, words##_w + 2u); \\
            bits.xy = bits.xy >> 16 | bits.yz << 16; \\
        } \\
        words##0 = uvec4(bits.x, 0u, 0u, 0u); \\
        words##1 = uvec4(bits.x >> 16, 0u, 0u, 0u); \\
        words##2 = uvec4(bits.y, 0u, 0u, 0u); \\
        words##3 = uvec4(bits.y >> 16, 0u, 0u, 0u); \\
    } else if ((size) == 4) { \\
        words##0 = uvec4(FETCH(words, words##_w), 0u, 0u, 0u); \\
        words##1 = uvec4(FETCH(words, words##_w + 1u), 0u, 0u, 0u); \\
        words##2 = uvec4(FETCH(words, words##_w + 2u), 0u, 0u, 0u); \\
        words##3 = uvec4(FETCH(words, words##_w + 3u), 0u, 0u, 0u); \\
    } else if ((size) == 8) { \\
        words##0 = uvec4(FETCH(words, words##_w), FETCH(words, words##_w + 1u), 0u, 0u); \\
        words##1 = uvec4(FETCH(words, words##_w + 2u), FETCH(words, words##_w + 3u), 0u, 0u); \\
        words##2 = uvec4(FETCH(words, words##_w + 4u), FETCH(words, words##_w + 5u), 0u, 0u); \\
        words##3 = uvec4(FETCH(words, words##_w + 6u), FETCH(words, words##_w + 7u), 0u, 0u); \\
    } else { \\
        words##0 = uvec4(FETCH(words, words##_w), FETCH(words, words##_w + 1u), \\
                         FETCH(words, words##_w + 2u), FETCH(words, words##_w + 3u)); \\
        words##1 = uvec4(FETCH(words, words##_w + 4u), FETCH(words, words##_w + 5u), \\
                         FETCH(words, words##_w + 6u), FETCH(words, words##_w + 7u)); \\
        words##2 = uvec4(FETCH(words, words##_w + 8u), FETCH(words, words##_w + 9u), \\
                         FETCH(words, words##_w + 10u), FETCH(words, words##_w + 11u)); \\
        words##3 = uvec4(FETCH(words, words##_w + 12u), FETCH(words, words##_w + 13u), \\
                         FETCH(words, words##_w + 14u), FETCH(words, words##_w + 15u)); \\
    }
"""


class Element(NamedTuple):
    """How kernels see the elements of a dtype."""

    name: str
    code: int
    compute: Compute
    size: int


@cache
def element_of(dtype: Dtype) -> Element:
    """How kernels see a dtype; raises `DtypeMismatch` for one that they do not compute with."""
    if dtype.name not in DTYPES:
        raise DtypeMismatch(
            f"there is no arithmetic in {dtype} on a device; there is in {', '.join(DTYPES)}"
        )
    return Element(dtype.name, DTYPES.index(dtype.name), _COMPUTES[dtype.name], dtype.itemsize)


class Abilities(NamedTuple):
    """Which types a device computes with, of those that not every device has."""

    int64: bool  # otherwise 64-bit integers are computed in two words
    float64: bool
    preserved: tuple[int, ...]  # bits of floats whose NaN, infinities and signed zeros are kept

    @classmethod
    def of(cls, info: DeviceInfo) -> Abilities:
        if info.driver != "vulkan":
            return cls(True, True, ())
        preserved = tuple(
            bits
            for bits in (32, 64)
            if f"shaderSignedZeroInfNanPreserveFloat{bits}" in info.features
        )
        return cls("shaderInt64" in info.features, "shaderFloat64" in info.features, preserved)

    def check(self, name: str, info: DeviceInfo) -> None:
        """Raise `Unsupported` if the device cannot compute with a dtype."""
        if name in ("float64", "complex128") and not self.float64:
            less = "float32" if name == "float64" else "complex64"
            raise Unsupported(
                f"{info.name} has no {name} arithmetic (shaderFloat64); use {less}: "
                f"x.astype({less!r}) on the host, or dtype={less!r}"
            )

    def those_of(self, computes: Iterable[Compute]) -> tuple[Compute, ...]:
        """Those of some compute types that the device has."""
        return tuple(c for c in computes if self.float64 or c not in ("f64", "c128"))

    def kept(self, compute: Compute) -> tuple[int, ...]:
        """The widths of the floats of a compute type, if the device keeps their special values."""
        width = {"f32": 32, "c64": 32, "f64": 64, "c128": 64}.get(compute)
        return tuple(each for each in self.preserved if each == width)

    def library(self, text: str, computes: Iterable[Compute]) -> str:
        """The GLSL of the arithmetic that a text calls, in the compute types that it uses."""
        return source(text, {*computes}, int64=self.int64, preserve=())


def every_ability() -> Iterator[Abilities]:
    """The abilities of known classes of devices."""
    for int64, float64 in ((True, True), (True, False), (False, False)):
        yield Abilities(int64, float64, ())


def words(*, texels: bool = False) -> str:
    """The GLSL of `Word`, `RAW` and `UNIT`, for operands in buffers or in texels of r32ui."""
    return (_TEXEL_WORDS if texels else _STORAGE_WORDS) + _WORDS


def decoder(target: Compute, sources: Iterable[Compute], operand: str) -> str:
    """The GLSL function `decode_a` of operand `a`, whose dtype is the constant A_DTYPE.

    Its dtype may be any whose compute type is among `sources`.
    """
    cases = (
        f"case {code}: {{ {TYPES[own]} a = {_DECODED[name]}; return {cast(own, target)}; }}"
        for code, name, own in _own(sources)
    )
    head = f"{TYPES[target]} decode_{operand}(uvec4 raw)"
    nothing = f"ps_{target}_of(uvec2(0u))" if target in ("i64", "u64") else f"{TYPES[target]}(0)"
    return _switch(head, f"{operand.upper()}_DTYPE", cases, nothing)


def encoder(source: Compute, targets: Iterable[Compute], function: str = "encode") -> str:
    """The GLSL function `encode`, to the dtype that is the constant OUT_DTYPE.

    It may be any whose compute type is among `targets`.
    """
    own = list(_own(targets))
    bits = "".join(
        f"uvec4 {function}_{name}({TYPES[compute]} a) {{ return {_ENCODED[name]}; }}\n"
        for _, name, compute in own
    )
    cases = (
        f"case {code}: {{ {TYPES[source]} a = number; "
        f"return {function}_{name}({cast(source, compute)}); }}"
        for code, name, compute in own
    )
    head = f"uvec4 {function}({TYPES[source]} number)"
    return bits + _switch(head, "OUT_DTYPE", cases, "uvec4(0u)")


def _own(computes: Iterable[Compute]) -> Iterable[tuple[int, str, Compute]]:
    """Code, name and compute type of the dtypes whose compute types these are."""
    wanted = {*computes}
    for code, (name, compute) in enumerate(_COMPUTES.items()):
        if compute in wanted:
            yield code, name, compute


def _switch(head: str, constant: str, cases: Iterable[str], otherwise: str) -> str:
    lines = "\n".join(f"    {case}" for case in cases)
    return f"{head} {{\n    switch ({constant}) {{\n{lines}\n    }}\n    return {otherwise};\n}}\n"
