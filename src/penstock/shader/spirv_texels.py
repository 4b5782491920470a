"""Texel buffers in SPIR-V: what the type of an image variable says of its texels.

`samplerBuffer` is a sampled image, `imageBuffer` a storage image, both of dimension "buffer". Every
other image or sampler is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from penstock.errors import InvalidSpirv, Unsupported
from penstock.shader.texels import FORMATS, SPIRV_FORMATS, Fetched, TexelFormat

#: Of a type's id: its opcode and operands.
TypeOf: TypeAlias = Callable[[int], tuple[int, Sequence[int]]]
#: Of a type's id: the scalar that it consists of.
ScalarOf: TypeAlias = Callable[[int], "np.dtype[Any] | None"]


class TexelBuffer(NamedTuple):
    """A texel buffer as a shader declares it."""

    fetched: Fetched  # what a texel gives
    stored: bool  # a storage image, which a shader may also write
    format_number: int  # SPIR-V's; 0: none is declared


def texel_buffer(name: str, image: int, type_of: TypeOf, scalar_of: ScalarOf) -> TexelBuffer:
    """The texel buffer that a variable of the type `image` is; raises if it is something else."""
    op, operands = type_of(image)
    if op == _SAMPLED_IMAGE:
        op, operands = type_of(operands[0])
    if op in (_ARRAY, _RUNTIME_ARRAY):
        raise Unsupported(f"SPIR-V: {name!r} is an array of images or samplers")
    if op != _IMAGE or operands[1] != _BUFFER_DIMENSION:
        raise Unsupported(
            f"SPIR-V: {name!r} is an image, a sampler or the like; only storage "
            "and uniform buffers and texel buffers (samplerBuffer, imageBuffer) can be bound"
        )
    scalar, (_, _, depth, arrayed, samples, sampled, number) = operands[0], operands[:7]
    dtype = scalar_of(scalar) if type_of(scalar)[0] in (_INT, _FLOAT) else None
    fetched = _FETCHED.get("" if dtype is None else dtype.str[1:])
    if fetched is None or depth == 1 or arrayed or samples or sampled not in (1, 2):
        raise InvalidSpirv(f"SPIR-V: {name!r} is no texel buffer that can be")
    return TexelBuffer(fetched, sampled == 2, number)


def declared_format(name: str, binding: int, found: TexelBuffer) -> TexelFormat | None:
    """The format that the shader declares; None if it leaves it to the caller."""
    if found.format_number not in SPIRV_FORMATS:
        raise Unsupported(
            f"SPIR-V: texel buffer {name!r} has format number {found.format_number:,}"
        )
    texel = FORMATS.get(SPIRV_FORMATS[found.format_number])
    if texel is None and found.stored:
        raise Unsupported(
            f"SPIR-V: image {name!r} declares no format, and devices rarely take such a one; write "
            f"layout(binding = {binding}, {_EXAMPLES[found.fetched]}) or the like"
        )
    if texel is not None and texel.fetched != found.fetched:
        raise InvalidSpirv(
            f"SPIR-V: texel buffer {name!r} of {found.fetched} has format {texel.name}"
        )
    return texel


_INT, _FLOAT, _IMAGE, _SAMPLED_IMAGE, _ARRAY, _RUNTIME_ARRAY = 21, 22, 25, 27, 28, 29
_BUFFER_DIMENSION = 5
_EXAMPLES: dict[Fetched, str] = {"float": "r32f", "int": "r32i", "uint": "r32ui"}
_FETCHED: dict[str, Fetched] = {"f4": "float", "i4": "int", "u4": "uint"}
