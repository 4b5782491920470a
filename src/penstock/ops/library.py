"""The shader library as text: the functions that an expression calls, and nothing else.

`source("ps_exp(a)", {"f32"})` is GLSL for the top of a kernel. The files in `shaders/arithmetic`
consist of paragraphs; a paragraph is kept if it defines a name that the expression, or a later
paragraph that is kept, uses. A compiler would keep the whole library in every kernel.

Some files are written once for several types: in `real.glsl`, REAL stands for float or double. A
function of theirs whose name ends in `_float` or `_double` is only for that type.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from penstock.ops.arithmetic import REAL_OF, Compute

_FOLDER = Path(__file__).parent / "shaders"
_WORD = re.compile(r"\w+")
_DEFINED = re.compile(
    r"^(?:precise )?[\w\[\]]+ (ps_\w+)\(|^#define (\w+)|^const \w+ (\w+)|^struct (\w+)",
    re.MULTILINE,
)

_INT64 = "#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require"

#: Keeps NaN, infinities and the sign of zero, which drivers may otherwise assume away.
_PRESERVE = (
    'spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4466], '
    "4461, {});"
)


class _Paragraph(NamedTuple):
    text: str
    defines: frozenset[str]
    uses: frozenset[str]


def source(
    expressions: str,
    types: Collection[Compute],
    *,
    int64: bool = True,
    preserve: Collection[int] = (32, 64),
) -> str:
    """The GLSL of every library function that `expressions` call, directly or not.

    `types` are the compute types of the kernel's values. `int64` says whether the device has 64-bit
    integers; otherwise they are made of two words. `preserve` are the widths of floats for which
    the device can be asked to keep NaN, infinities and signed zeros
    (`shaderSignedZeroInfNanPreserveFloat32` and `64`).
    """
    real = {REAL_OF.get(each, each) for each in types}
    wide = bool(real & {"i64", "u64"})
    # glslang keeps the last of several such modes. Where there are doubles, they are what the
    # kernel computes with.
    width = 64 if "f64" in real else 32 if "f32" in real else 0
    lines = []
    if width in preserve:
        lines += ["#extension GL_EXT_spirv_intrinsics : require", _PRESERVE.format(width)]
    if wide and int64:
        lines[:0] = [_INT64, "#define ps_i64 int64_t", "#define ps_u64 uint64_t"]
    return "\n".join([*lines, _chosen(expressions, _files(types, int64), _FOLDER)])


def hip_source(expressions: str, types: Collection[Compute]) -> str:
    """The same for a kernel in HIP C++: the shared files, over HIP's mathematical library."""
    prelude = (_FOLDER / "arithmetic/prelude.hip").read_text("utf-8")
    text = _chosen(expressions, _hip_files(types), _FOLDER)
    return f"{prelude}\n{_DOUBLE_LITERAL.sub('', text)}\n{_HIP_END}"


def _files(types: Collection[Compute], int64: bool) -> list[_File]:
    files = [_File("bool"), _File("integer", _INTEGERS)]
    double = bool({"f64", "c128"} & {*types})
    if {"f32", "c64"} & {*types}:
        files += [_File("float32"), _File("small"), *(_File(name, _FLOATS) for name in _SHARED)]
    if double:
        files += [_File("float64"), *(_File(name, _DOUBLES) for name in _SHARED)]
    if {"i64", "u64"} & {*types}:
        files += [_File("wide"), _File("integer", _WIDE)] if int64 else [_File("words")]
        files += [_File("wide64" if int64 else "words64")] * double
    return files


def _hip_files(types: Collection[Compute]) -> list[_File]:
    files = [_File("bool"), _File("integer", _INTEGERS)]
    for name, words, kinds in (("float32", _FLOATS, "f32 c64"), ("float64", _DOUBLES, "f64 c128")):
        if {*kinds.split()} & {*types}:
            bits = "uint" if name == "float32" else "ps_u64"
            own = (*words, ("WIDTH", name), ("BITS", bits))
            files += [_File(name, constants=True), _File("libm", own, suffix="hip")]
            files += [_File("small")] * (name == "float32")
            files += [_File(each, words) for each in _SHARED[1:]]
    if {"i64", "u64"} & {*types}:
        files += [_File(name, _HIP_WIDE) for name in ("wide", "wide64", "integer")]
    return files


class _File(NamedTuple):
    """A file of the library, and the words that stand for types in it."""

    name: str
    words: tuple[tuple[str, str], ...] = ()
    suffix: str = "glsl"
    constants: bool = False  # nothing else of the file


#: The files that are written once for several types, and their words.
_SHARED = ("transcendental", "real", "complex")
_FLOATS = (("REAL", "float"), ("COMPLEX", "vec2"), ("PAIR", "vec2"))
_DOUBLES = (("REAL", "double"), ("COMPLEX", "dvec2"), ("PAIR", "dvec2"))
_OTHER_SUFFIX: dict[tuple[tuple[str, str], ...], str] = {_FLOATS: "_double", _DOUBLES: "_float"}
_INTEGERS = (("UINT", "uint"), ("INT", "int"), ("WIDTH", "32"))
_WIDE = (("UINT", "uint64_t"), ("INT", "int64_t"), ("WIDTH", "64"))
_HIP_WIDE = (*_WIDE, ("uint64_t", "ps_u64"), ("int64_t", "ps_i64"))
_HIP_END = "#pragma clang force_cuda_host_device end\n"
_DOUBLE_LITERAL = re.compile(r"(?<=\d)lf\b")


def _chosen(expressions: str, files: list[_File], folder: Path) -> str:
    used = set(_WORD.findall(expressions))
    kept: list[str] = []
    for file in reversed(files):
        for paragraph in reversed(_paragraphs(file, folder)):
            if paragraph.defines & used:
                kept.append(paragraph.text)
                used |= paragraph.uses
    return "\n".join([*reversed(kept), ""])


@functools.cache
def _paragraphs(file: _File, folder: Path) -> tuple[_Paragraph, ...]:
    text = (folder / f"arithmetic/{file.name}.{file.suffix}").read_text("utf-8")
    for word, type_ in file.words:
        text = text.replace(word, type_)
    found = []
    for part in text.split("\n\n"):
        code = "\n".join(line for line in part.splitlines() if not line.startswith("//"))
        defines = frozenset(name for names in _DEFINED.findall(code) for name in names if name)
        if any(name.endswith(_OTHER_SUFFIX.get(file.words, ())) for name in defines):
            continue
        if defines and (code.startswith("const ") or not file.constants):
            found.append(_Paragraph(code, defines, frozenset(_WORD.findall(code))))
    return tuple(found)
