"""What `reflect` reads of texel buffers: kinds, formats and accesses."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import InvalidSpirv, InvalidValue, Unsupported
from penstock.shader.interface import Binding
from penstock.shader.spirv import reflect
from penstock.shader.texels import FORMATS, default_format, format_named
from tests.shader.test_spirv import (
    POINTER,
    UINT,
    ZERO,
    assemble,
    buffer,
    function,
    kernel,
    needs_compiler,
    op,
)

FLOAT, IMAGE, SAMPLED, LOADED = 30, 31, 32, 50


def image(
    scalar: int = UINT, dim: int = 5, depth: int = 0, arrayed: int = 0, samples: int = 0,
    sampled: int = 2, number: int = 33,
) -> bytes:  # fmt: skip
    return op(25, IMAGE, scalar, dim, depth, arrayed, samples, sampled, number)


def module(declared: bytes, body: bytes = b"", *extra: bytes) -> bytes:
    """A module whose only variable, 3, is what `declared` declares as `IMAGE`."""
    where = op(71, 3, 34, 0) + op(71, 3, 33, 7)
    parts = (op(19, 10), op(33, 11, 10), op(21, UINT, 32, 0), op(22, FLOAT, 32))
    constant = op(43, UINT, ZERO, 0)
    variable = op(32, POINTER, 0, IMAGE) + op(59, POINTER, 3, 0)
    code = function(1, op(61, IMAGE, LOADED, 3), body)
    return assemble(where, *extra, *parts, declared, constant, variable, functions=code)


def texels(declared: bytes, body: bytes = b"", *extra: bytes) -> Binding:
    (binding,) = reflect(module(declared, body, *extra)).bindings
    return binding


READ, WRITE = op(98, UINT, 51, LOADED, ZERO), op(99, LOADED, ZERO, ZERO)
TEXEL_POINTER = op(32, 40, 11, UINT)


@pytest.mark.parametrize(
    ("body", "access"),
    [
        pytest.param(b"", "r", id="nothing but a load of the image"),
        pytest.param(READ, "r", id="read"),
        pytest.param(WRITE, "w", id="write"),
        pytest.param(READ + WRITE, "rw", id="both"),
        pytest.param(op(104, UINT, 51, LOADED), "r", id="size"),
        pytest.param(op(104, UINT, 51, LOADED) + WRITE, "w", id="size and write"),
        pytest.param(op(83, IMAGE, 52, LOADED) + op(99, 52, ZERO, ZERO), "w", id="a copied image"),
        pytest.param(
            op(60, 40, 52, 3, ZERO, ZERO) + op(234, UINT, 53, 52, ZERO, ZERO, ZERO), "rw", id="add"
        ),
        pytest.param(
            op(60, 40, 52, 3, ZERO, ZERO) + op(227, UINT, 53, 52, ZERO, ZERO), "r", id="atomic load"
        ),
        pytest.param(op(57, 10, 52, 5, 3), "rw", id="passed to a function"),
        pytest.param(op(57, 10, 52, 5, LOADED), "rw", id="its value passed to a function"),
        pytest.param(op(9999, LOADED), "rw", id="unknown instruction"),
    ],
)
def test_access_is_what_the_code_does(body: bytes, access: str) -> None:
    found = texels(image() + TEXEL_POINTER, body)
    assert (found.kind, found.access, found.format) == ("storage_texel", access, "r32ui")
    assert (found.name, found.set, found.binding) == ("first", 0, 7)


@pytest.mark.parametrize(
    ("decoration", "access"), [(op(71, 3, 24), "r"), (op(71, 3, 25), "w")],
    ids=["NonWritable", "NonReadable"],
)  # fmt: skip
def test_declarations_narrow_access(decoration: bytes, access: str) -> None:
    assert texels(image(), READ + WRITE, decoration).access == access


def test_a_sampled_one_is_only_read() -> None:
    fetch = op(95, UINT, 51, LOADED, ZERO)
    found = texels(image(sampled=1, number=0), fetch)
    assert (found.kind, found.access, found.format) == ("uniform_texel", "r", "")
    assert (found.dtype, found.fetched, found.min_size) == (None, "uint", 1)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (image(dim=1), "'first' is an image, a sampler or the like"),
        (op(26, IMAGE), "'first' is an image, a sampler or the like"),
        (image(number=0), r"image 'first' declares no format.*binding = 7, r32ui"),
        (image(number=40), "has format number 40"),
        (op(25, 45, UINT, 5, 0, 0, 0, 1, 0) + op(28, IMAGE, 45, ZERO), "is an array of images"),
    ],
)
def test_what_is_unsupported(declared: bytes, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        texels(declared)


@pytest.mark.parametrize(
    "declared",
    [
        image(depth=1), image(arrayed=1), image(samples=1), image(sampled=0), image(number=3),
        image(scalar=POINTER), image(scalar=3), op(25, IMAGE, UINT, 5), op(27, IMAGE, 99),
        op(21, 45, 8, 0) + image(scalar=45),
    ],
)  # fmt: skip
def test_what_is_invalid(declared: bytes) -> None:
    with pytest.raises(InvalidSpirv):
        texels(declared)


def test_one_binding_of_two_formats() -> None:
    one = module(image())
    other = one.replace(op(71, 3, 33, 7), op(71, 3, 33, 7) + op(71, 4, 34, 0) + op(71, 4, 33, 7))
    more = op(25, 45, UINT, 5, 0, 0, 0, 2, 30) + op(32, 46, 0, 45) + op(59, 46, 4, 0)
    with pytest.raises(Unsupported, match="'first' and 'second' are one binding of two formats"):
        reflect(other.replace(op(59, POINTER, 3, 0), op(59, POINTER, 3, 0) + more))


@needs_compiler
@pytest.mark.parametrize("prefix", ["", "i", "u"])
def test_texel_buffers_of_glsl(prefix: str) -> None:
    fetched = {"": "float", "i": "int", "u": "uint"}[prefix]
    sampler = buffer(f"uniform {prefix}samplerBuffer w;", f"{prefix}vec4 x = texelFetch(w, 3);")
    assert (sampler.name, sampler.kind, sampler.fetched) == ("w", "uniform_texel", fetched)
    for name, texel in FORMATS.items():
        if texel.fetched != fetched:
            continue
        declared = f"layout(binding = 0, {name}) uniform {prefix}imageBuffer w;"
        interface = kernel(declared, f"imageStore(w, 0, {prefix}vec4(1));", head="")
        (found,) = interface.bindings
        assert (found.kind, found.format, found.access) == ("storage_texel", name, "w")
        assert (found.dtype, found.min_size) == (texel.dtype, texel.nbytes)
        assert not interface.capabilities


@needs_compiler
@pytest.mark.parametrize(
    ("qualifier", "body", "access"),
    [
        ("readonly", "uvec4 x = imageLoad(w, 0);", "r"),
        ("writeonly", "imageStore(w, 0, uvec4(1));", "w"),
        ("", "imageStore(w, 0, imageLoad(w, 1));", "rw"),
        ("", "imageStore(w, imageSize(w) - 1, uvec4(1));", "w"),
        ("", "imageAtomicMax(w, 0, 3u);", "rw"),
        ("", "", "r"),
    ],
)
def test_access_of_glsl_images(qualifier: str, body: str, access: str) -> None:
    declared = f"layout(binding = 0, r32ui) uniform {qualifier} uimageBuffer w;"
    (found,) = kernel(declared, body, head="").bindings
    assert found.access == access


# Formats.


def test_formats_are_named_by_their_parts() -> None:
    for name, texel in FORMATS.items():
        assert texel.name == name
        if "_a2" in name or "b10f" in name:
            assert (texel.dtype, texel.count) == (np.uint32, 1)
            continue
        bits = "".join(each for each in name if each.isdigit())
        assert name.startswith("rgba"[: texel.count] + bits)
        assert texel.nbytes == texel.count * int(bits) // 8


@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128", "f4,f4", "V3", "S4"])
def test_dtypes_without_a_format(dtype: str) -> None:
    assert default_format(np.dtype(dtype)) is None


def test_an_unknown_format() -> None:
    for name in ("RGBA32F", "rgba32", None, ["r32f"]):
        with pytest.raises(InvalidValue, match="mine: there is no texel format"):
            format_named(name, "mine")
