"""Integer dot products (SPV_KHR_integer_dot_product), where the device has them.

GLSL compilers of today do not know them all, so a multiplication is replaced in the compiled code.
"""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.launch.limits import check_limits
from penstock.shader.glsl import compile_glsl
from penstock.shader.spirv import reflect
from tests.kernels import HEAD

N = 256
SOURCE = (
    HEAD
    + """
layout(binding = 0) readonly buffer X { int x[]; };
layout(binding = 1) readonly buffer Y { int y[]; };
layout(binding = 2) writeonly buffer Z { int z[]; };
void main() { uint i = gl_GlobalInvocationID.x; z[i] = x[i] * y[i]; }
"""
)
MULTIPLY, CAPABILITY, EXTENSION = 132, 17, 10
#: OpSDot, OpUDot, OpSUDot, and the same with an accumulator that saturates.
OPERATIONS = {"signed": 4450, "unsigned": 4451, "mixed": 4452}
PACKED_4X8 = 0


def with_dots(operation: str, *, saturating: bool) -> bytes:
    words = array("I", compile_glsl(SOURCE))
    made = words[:5]
    at = 5
    capabilities = [2 << 16 | CAPABILITY, 6018, 2 << 16 | CAPABILITY, 6019]
    name = b"SPV_KHR_integer_dot_product\0"
    extension = [(1 + len(name) // 4) << 16 | EXTENSION, *array("I", name)]
    while at < len(words):
        size, op = words[at] >> 16, words[at] & 0xFFFF
        if op == MULTIPLY:
            number = OPERATIONS[operation] + (3 if saturating else 0)
            added = [words[at + 3]] if saturating else []
            parts = [*words[at + 1 : at + 5], *added, PACKED_4X8]
            made.extend([(1 + len(parts)) << 16 | number, *parts])
        else:
            made.extend(words[at : at + size])
        at += size
        if op == CAPABILITY:  # the only one, of shaders
            made.extend([*capabilities, *extension])
    return made.tobytes()


@pytest.mark.parametrize("saturating", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_packed_dot_products(dev: ps.Device, operation: str, saturating: bool) -> None:
    code = with_dots(operation, saturating=saturating)
    if "shaderIntegerDotProduct" not in dev.info.features:
        with pytest.raises(ps.Unsupported, match=r"DotProduct .*shaderIntegerDotProduct"):
            dev.kernel(code)
        return
    chance = np.random.default_rng(5)
    parts: list[Any] = [chance.integers(-128, 128, (N, 4), np.int8) for _ in range(2)]
    parts[0][:2], parts[1][:2] = [[127] * 4, [-128] * 4], [[127] * 4, [-128] * 4]
    x, y = (dev.array(part.view(np.int32).ravel()) for part in parts)
    z = dev.zeros(N, np.int32)
    dev.kernel(code)(x=x, y=y, z=z, threads=N)
    kinds = {"signed": "bb", "unsigned": "BB", "mixed": "bB"}[operation]
    one, other = (part.view(kind).astype(np.int64) for part, kind in zip(parts, kinds, strict=True))
    expected = (one * other).sum(1)
    if saturating:
        added = x.numpy().view(np.uint32 if operation == "unsigned" else np.int32)
        limits = np.iinfo(added.dtype)
        expected = np.clip(expected + added.astype(np.int64), limits.min, limits.max)
    assert (z.numpy() == expected.astype(np.int64).astype(np.int32)).all()


def test_a_device_that_lacks_them(dev: ps.Device) -> None:
    lacking = dataclasses.replace(
        dev.info, features=dev.info.features - {"shaderIntegerDotProduct"}
    )
    interface = reflect(with_dots("signed", saturating=False))
    assert interface.capabilities == {"DotProduct", "DotProductInput4x8BitPacked"}
    with pytest.raises(ps.Unsupported, match=r"lacks: DotProduct \(shaderIntegerDotProduct\), Dot"):
        check_limits("dots", interface, lacking)
