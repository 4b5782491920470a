"""Texel buffers in SPIR-V: what the type of an image variable says of its texels.

`samplerBuffer` is a sampled image, `imageBuffer` a storage image, both of dimension "buffer". Every
other image or sampler is refused, with the reason.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import InvalidSpirv, Unsupported
from penstock.shader import spirv_numbers as spv
from penstock.shader.spirv_module import Module
from penstock.shader.texels import FORMATS, SPIRV_FORMATS, Fetched, TexelFormat


class TexelBuffer(NamedTuple):
    """A texel buffer as a shader declares it."""

    fetched: Fetched  # what a texel gives
    stored: bool  # a storage image, which a shader may also write
    format_number: int  # SPIR-V's; 0: none is declared


def texel_buffer(module: Module, variable: int) -> TexelBuffer:
    """The texel buffer that a variable is; raises if it is another image or a sampler."""
    name, types = module.name(variable), module.types
    image = types.type(module.variables[variable][0])[1][1]
    op, operands = types.type(image)
    if op == spv.SAMPLED_IMAGE:
        op, operands = types.type(operands[0])
    if op in (spv.ARRAY, spv.RUNTIME_ARRAY):
        raise Unsupported(f"SPIR-V: {name!r} is an array of images or samplers")
    if op != spv.IMAGE or operands[1] != _BUFFER_DIMENSION:
        raise Unsupported(
            f"SPIR-V: {name!r} is an image, a sampler or the like; only storage "
            "and uniform buffers and texel buffers (samplerBuffer, imageBuffer) can be bound"
        )
    scalar, (_, _, depth, arrayed, samples, sampled, number) = operands[0], operands[:7]
    dtype = types.scalar(scalar) if types.type(scalar)[0] in (spv.INT, spv.FLOAT) else None
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


_BUFFER_DIMENSION = 5
_EXAMPLES: dict[Fetched, str] = {"float": "r32f", "int": "r32i", "uint": "r32ui"}
_FETCHED: dict[str, Fetched] = {"f4": "float", "i4": "int", "u4": "uint"}
