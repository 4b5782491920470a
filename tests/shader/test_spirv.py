"""What `reflect` reads from a kernel, and that no bytes at all make it fail in another way.

Kernels come from GLSL where a compiler is there; `assemble` builds by hand what GLSL cannot say.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidSpirv, Unsupported
from penstock.shader.glsl import compile_glsl, compilers
from penstock.shader.interface import Binding, Interface, Member
from penstock.shader.spirv import reflect

needs_compiler = pytest.mark.skipif(not compilers(), reason="no GLSL compiler")
TYPES = "#version 450\n#extension GL_EXT_shader_explicit_arithmetic_types : require\n"
STORAGE = "\n".join(f"#extension GL_EXT_shader_{bits}bit_storage : require" for bits in ("8", "16"))


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def kernel(declarations: str, body: str = "", head: str = TYPES) -> Interface:
    local = "" if "local_size" in declarations else "layout(local_size_x = 64) in;"
    return reflect(compile_glsl(f"{head}\n{local}\n{declarations}\nvoid main() {{ {body} }}"))


def buffer(declaration: str, body: str = "", head: str = TYPES) -> Binding:
    (binding,) = kernel(f"layout(binding = 0) {declaration}", body, head).bindings
    return binding


def members(declaration: str) -> dict[str, Member]:
    push = kernel(f"layout(push_constant, std430) uniform P {{ {declaration} }};").push
    return {member.name: member for member in push}


# Modules by hand. Ids: 1 main, 2 block, 3 the buffer, 4 another buffer, 5 a helper function.

VOID, FUNCTION_TYPE, UINT, ARRAY, POINTER, ELEMENT, ZERO = range(10, 17)


def op(number: int, *operands: int | str) -> bytes:
    words = b"".join(
        struct.pack("<I", word)
        if isinstance(word, int)
        else word.encode() + bytes(4 - len(word.encode()) % 4)
        for word in operands
    )
    return struct.pack("<I", (len(words) // 4 + 1) << 16 | number) + words


def decorations(block: int = 2) -> list[bytes]:
    return [
        op(71, 2, block),
        op(72, 2, 0, 35, 0),
        op(71, ARRAY, 6, 4),
        *(op(71, variable, 34, 0) + op(71, variable, 33, variable - 3) for variable in (3, 4)),
    ]


def types(storage: int = 12) -> list[bytes]:
    return [
        op(19, VOID),
        op(33, FUNCTION_TYPE, VOID),
        op(21, UINT, 32, 0),
        op(29, ARRAY, UINT),
        op(30, 2, ARRAY),
        op(32, POINTER, storage, 2),
        op(32, ELEMENT, storage, UINT),
        op(43, UINT, ZERO, 0),
        op(59, POINTER, 3, storage),
        op(59, POINTER, 4, storage),
    ]


def function(number: int, *body: bytes) -> bytes:
    start = op(54, VOID, number, 0, FUNCTION_TYPE) + op(248, 80 + number)
    return b"".join((start, *body, op(253), op(56)))


def assemble(
    *parts: bytes,
    functions: bytes | None = None,
    entries: tuple[bytes, ...] = (op(15, 5, 1, "main"), op(16, 1, 17, 8, 4, 2)),
    bound: int = 100,
) -> bytes:
    header = struct.pack("<5I", 0x07230203, 0x00010300, 0, bound, 0)
    names = (op(5, 3, "first"), op(5, 4, "second"))
    head = (header, op(17, 1), op(14, 0, 1), *entries, *names)
    return b"".join((*head, *parts, function(1) if functions is None else functions))


def chain(result: int, variable: int) -> bytes:
    return op(65, ELEMENT, result, variable, ZERO, ZERO)


P, Q = 40, 41  # pointers into the first and the second buffer
POINTERS = chain(P, 3) + chain(Q, 4)


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        pytest.param(b"", "r", "r", id="nothing"),
        pytest.param(op(61, UINT, 50, P) + op(62, Q, 50), "r", "w", id="load, store"),
        pytest.param(op(61, UINT, 50, P) + op(62, P, 50), "rw", "r", id="load and store"),
        pytest.param(op(63, P, Q), "w", "r", id="copy memory"),
        pytest.param(op(68, UINT, 50, 3, 0), "r", "r", id="array length"),
        pytest.param(op(234, UINT, 50, P, ZERO, ZERO, ZERO), "rw", "r", id="atomic add"),
        pytest.param(op(227, UINT, 50, P, ZERO, ZERO), "r", "r", id="atomic load"),
        pytest.param(op(228, P, ZERO, ZERO, ZERO), "w", "r", id="atomic store"),
        pytest.param(op(83, ELEMENT, 50, P) + op(62, 50, ZERO), "w", "r", id="copied pointer"),
        pytest.param(op(67, ELEMENT, 50, P, ZERO) + op(62, 50, ZERO), "w", "r", id="moved pointer"),
        pytest.param(op(57, VOID, 50, 5, P), "rw", "r", id="call"),
        pytest.param(op(169, ELEMENT, 50, ZERO, P, Q), "rw", "rw", id="select"),
        pytest.param(op(245, ELEMENT, 50, ZERO, 60, P, 61), "rw", "r", id="phi"),
        pytest.param(op(62, 60, P), "rw", "r", id="pointer stored"),
        pytest.param(op(81, UINT, 50, 60, P), "r", "r", id="literal like a pointer"),
        pytest.param(op(12, UINT, 50, 60, P, ZERO), "r", "r", id="extended, by number"),
        pytest.param(op(12, UINT, 50, 60, 35, ZERO, P), "rw", "r", id="extended, by pointer"),
        pytest.param(op(9999, P), "rw", "r", id="unknown instruction"),
    ],
)
def test_access_is_what_the_code_does(body: bytes, first: str, second: str) -> None:
    code = assemble(*decorations(), *types(), functions=function(1, POINTERS, body) + function(5))
    assert [binding.access for binding in reflect(code).bindings] == [first, second]


@pytest.mark.parametrize(
    ("decoration", "body", "access"),
    [
        (op(71, 3, 24), op(62, P, ZERO), "r"),
        (op(72, 2, 0, 24), op(234, UINT, 50, P, ZERO, ZERO, ZERO), "r"),
        (op(72, 2, 0, 25), op(234, UINT, 50, P, ZERO, ZERO, ZERO), "w"),
        (op(71, 3, 25), b"", "w"),
    ],
    ids=["NonWritable", "NonWritable members", "NonReadable members", "NonReadable, untouched"],
)
def test_declarations_narrow_access(decoration: bytes, body: bytes, access: str) -> None:
    code = assemble(*decorations(), decoration, *types(), functions=function(1, POINTERS, body))
    assert reflect(code).bindings[0].access == access


def test_debug_information_is_no_access() -> None:
    debug = op(11, 60, "NonSemantic.Shader.DebugInfo.100")
    body = op(12, VOID, 50, 60, 18, P)
    code = assemble(debug, *decorations(), *types(), functions=function(1, POINTERS, body))
    assert [binding.access for binding in reflect(code).bindings] == ["r", "r"]


def test_stripped_names_are_made_up() -> None:
    code = VALID.replace(op(5, 3, "first"), b"").replace(op(5, 4, "second"), b"")
    assert [b.name for b in reflect(code).bindings] == ["set0_binding0", "set0_binding1"]


@pytest.mark.parametrize(
    ("block", "storage", "kind"), [(2, 12, "storage"), (3, 2, "storage"), (2, 2, "uniform")]
)
def test_kind_of_buffer(block: int, storage: int, kind: str) -> None:
    code = assemble(*decorations(block), *types(storage))
    assert {binding.kind for binding in reflect(code).bindings} == {kind}


def test_entry_points_have_their_own_bindings() -> None:
    entries = (
        op(15, 5, 1, "one") + op(15, 5, 6, "two"),
        op(16, 1, 17, 8, 1, 1) + op(16, 6, 17, 4, 1, 1),
    )
    code = assemble(
        *decorations(),
        *types(),
        functions=function(1, chain(P, 3), op(62, P, ZERO))
        + function(6, op(57, VOID, 50, 5))
        + function(5, chain(Q, 4), op(61, UINT, 51, Q)),
        entries=entries,
    )
    one, two = reflect(code, "one"), reflect(code, "two")
    assert [(b.name, b.access) for b in one.bindings] == [("first", "w")]
    assert [(b.name, b.access) for b in two.bindings] == [("second", "r")]
    assert (one.local_size, two.local_size) == ((8, 1, 1), (4, 1, 1))
    with pytest.raises(InvalidSpirv, match="choose one of 'one', 'two'"):
        reflect(code)
    with pytest.raises(InvalidSpirv, match="no entry point 'three', only 'one', 'two'"):
        reflect(code, "three")


def test_local_size_by_id() -> None:
    entries = (op(15, 5, 1, "main"), op(331, 1, 38, 20, ZERO + 1, ZERO + 1))
    constants = (op(50, UINT, 20, 32), op(43, UINT, ZERO + 1, 2))
    code = assemble(op(71, 20, 1, 7), *decorations(), *types(), *constants, entries=entries)
    interface = reflect(code)
    assert interface.local_size == (32, 2, 2)
    assert interface.local_size_ids == (7, None, None)
    assert [(c.name, c.id, c.default) for c in interface.constants] == [("local_size_x", 7, 32)]


VALID = assemble(*decorations(), *types(), functions=function(1, POINTERS, op(62, P, ZERO)))
SELF_STRUCT = op(30, 2, 2) + op(32, POINTER, 12, 2) + op(59, POINTER, 3, 12)
SELF_ARRAY = (
    *(op(21, UINT, 32, 0), op(43, UINT, ZERO, 3), op(28, ARRAY, ARRAY, ZERO), op(30, 2, ARRAY)),
    *(op(32, POINTER, 12, 2), op(59, POINTER, 3, 12)),
)
SHARED = b"".join(
    op(72, 60 + i, 0, 35, 0) + op(72, 60 + i, 1, 35, 0) + op(30, 60 + i, 59 + i, 59 + i)
    for i in range(1, 40)
)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"", "magic"),
        (b"\x03\x02#", "magic"),
        (b"not SPIR-V at all...", "magic"),
        (VALID[:-2], "truncated"),
        (VALID[:12], "truncated"),
        (VALID[:-8], "truncated, inside a function"),
        (assemble(*decorations(), *types(), functions=b""), "cut short"),
        (struct.pack(">5I", *struct.unpack("<5I", VALID[:20])), "byte-swapped"),
        (VALID[:20] + bytes(4), "runs past the end"),
        (VALID + op(71, 3)[:4], "runs past the end"),
        (assemble(op(71, 3)), "too short"),
        (assemble(op(21, 0, 32, 0)), "id 0 is out of range"),
        (assemble(op(21, 1000, 32, 0)), "id 1000 is out of range"),
        (assemble(op(21, 50, 32, 0), op(21, 50, 32, 0)), "defined twice"),
        (
            assemble(*decorations(), *types(), functions=function(1, op(61, UINT, 50, 999))),
            "out of",
        ),
        (assemble(*decorations(), SELF_STRUCT), "cyclic"),
        (assemble(*decorations(), *SELF_ARRAY), "too deeply"),
        (assemble(*types()), "no set or no binding"),
        (assemble(*decorations()[:1], *decorations()[2:], *types()), "no offset"),
        (assemble(*decorations()[:2], *decorations()[3:], *types()), "no stride"),
        (assemble(entries=()), "no compute"),
        (assemble(entries=(op(15, 0, 1, "main"),)), "no compute"),
        (assemble(entries=(op(15, 5, 1, "main"),)), "no local size"),
        (assemble(entries=(op(15, 5, 1, "main"), op(16, 1, 17, 0, 1, 1))), "positive"),
        (assemble(entries=(op(15, 5, 1, 0x41414141),)), "no end"),
        (assemble(op(5, 50, "name", 0)), "does not end with its instruction"),
        (assemble(op(10, 0x41414141)), "does not end with its instruction"),
        (assemble(*decorations(), *types(), bound=0x400000), "ids up to 4,194,304"),
        (assemble(*decorations(), *types()[:-1], op(59, POINTER, 4, 2)), "another storage"),
        (assemble(*decorations(), *types(), op(23, 50, UINT, 1 << 20)), "vector .* 1,048,576"),
        (assemble(op(21, UINT, 33, 0)), "a number of 33 bits"),
        (
            assemble(*types(), op(23, 50, UINT, 3), op(44, 50, 51, ZERO, ZERO)),
            "constant 51 has 2 parts, not 3",
        ),
        (
            assemble(
                *decorations(), *types(), op(43, UINT, 50, 1),
                functions=function(1, op(65, ELEMENT, P, 3, 50, ZERO)),
            ),
            "structure 2 has no member 1",
        ),
        (
            assemble(*decorations(), *types(), functions=function(1, op(65, ELEMENT, P, 3, ZERO))),
            "pointer 40 is of another type",
        ),
        (
            assemble(*decorations(), *types(), functions=function(1, op(59, POINTER, 50, 7))),
            "variable 50 is of another storage",
        ),
        (
            assemble(
                op(71, 50, 11, 28), *decorations(), *types(), op(32, 51, 1, UINT),
                op(59, 51, 50, 1),
            ),
            "built-in 28",
        ),
    ],
)  # fmt: skip
def test_malformed_modules_are_refused(code: bytes, message: str) -> None:
    with pytest.raises(InvalidSpirv, match=message):
        reflect(code)


@pytest.mark.parametrize(
    ("number", "message"),
    [(0xFFFFFFFF, "'first' is at binding 4,294,967,295; number them up to 4,095"), (4096, "4,096")],
)
def test_binding_numbers_are_bounded(number: int, message: str) -> None:
    """Drivers make room for all bindings up to the highest."""
    with pytest.raises(Unsupported, match=message):
        reflect(assemble(*decorations(), op(71, 3, 33, number), *types()))


def test_built_ins_of_other_shaders_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="built-in 0 is not one of compute"):
        reflect(assemble(op(71, 50, 11, 0), *decorations(), *types()))


def test_names_are_as_python_has_them_in_a_call() -> None:
    code = VALID.replace(op(5, 3, "first"), op(5, 3, "ﬁrst")).replace(
        op(5, 4, "second"), op(5, 4, "ª")
    )
    assert [binding.name for binding in reflect(code).bindings] == ["first", "a"]


@needs_compiler
def test_chosen_constants_are_lengths() -> None:
    code = compile_glsl(
        TYPES
        + """layout(local_size_x = 1) in;
        layout(constant_id = 5) const uint length = 4;
        layout(binding = 0) buffer X { float x[length]; };
        shared double all[length];
        void main() { x[0] = float(all[length - 1]); }"""
    )
    interface = reflect(code)
    assert interface.sized_by == {5}
    assert (interface.shared_size, interface.bindings[0].min_size) == (32, 16)
    chosen = reflect(code, constants={5: struct.pack("<I", 1000)})
    assert (chosen.shared_size, chosen.bindings[0].min_size) == (8000, 4000)
    with pytest.raises(InvalidSpirv, match="length 0"):
        reflect(code, constants={5: bytes(4)})


@pytest.mark.parametrize(
    ("pointee", "storage", "message"),
    [
        (op(28, 50, 2, ZERO), 12, "'first' is an array of buffers"),
        (op(26, 50), 0, "'first' is an image, a sampler"),
    ],
)
def test_other_descriptors_are_unsupported(pointee: bytes, storage: int, message: str) -> None:
    block = (op(21, UINT, 32, 0), op(29, ARRAY, UINT), op(30, 2, ARRAY))
    variable = (pointee, op(32, POINTER, storage, 50), op(59, POINTER, 3, storage))
    with pytest.raises(Unsupported, match=message):
        reflect(assemble(*decorations(), *block, *variable))


def test_types_that_share_parts_do_not_explode() -> None:
    base = op(72, 60, 0, 35, 0) + op(21, UINT, 32, 0) + op(30, 60, UINT)
    block = op(32, POINTER, 12, 99) + op(59, POINTER, 3, 12)
    began = time.perf_counter()
    with pytest.raises(InvalidSpirv, match="too large to be real"):
        reflect(assemble(op(71, 3, 34, 0), op(71, 3, 33, 0), op(71, 99, 2), base, SHARED, block))
    assert time.perf_counter() - began < 5


def sample() -> bytes:
    if not compilers():
        return VALID
    return compile_glsl(
        TYPES
        + """
        layout(local_size_x_id = 0) in;
        layout(constant_id = 0) const uint n = 4;
        struct S { f16vec3 a; mat3 m; };
        layout(binding = 0) buffer A { uint count; S s[2]; float x[]; } a;
        layout(binding = 1) readonly buffer B { float y[]; };
        layout(binding = 2) readonly buffer C { S c[][2]; };
        layout(binding = 3) readonly buffer D { uint first; mat2x3 e[]; };
        layout(binding = 4) uniform usamplerBuffer t;
        layout(binding = 5, rgba32f) uniform imageBuffer u;
        layout(push_constant) uniform P { S s[2]; vec3 v; double d; };
        float twice(float z) { return z * 2; }
        void main() {
            for (int i = 0; i < n; i++) a.x[i] = twice(y[i]) + v.x + a.x.length();
            atomicAdd(a.count, texelFetch(t, textureSize(t) - 1).x);
            imageStore(u, 0, imageLoad(u, 1));
        }"""
    )


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), compiled=st.booleans())
def test_damaged_modules_raise_nothing_else(data: st.DataObject, compiled: bool) -> None:
    code = bytearray(sample() if compiled else VALID)
    place = st.integers(0, len(code) - 1)
    small = st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 4, 255]))
    for at, value in data.draw(st.lists(st.tuples(place, small), max_size=8)):
        code[at] = value
    word = st.integers(1, len(code) // 4 - 1)
    large = st.one_of(st.integers(0, 0xFFFFFFFF), st.sampled_from([1 << 31, 0xFFFFFFFF]))
    for at, value in data.draw(st.lists(st.tuples(word, large), max_size=2)):
        code[4 * at : 4 * at + 4] = struct.pack("<I", value)
    cut = data.draw(st.one_of(st.none(), place))
    with contextlib.suppress(InvalidSpirv, Unsupported):
        reflect(bytes(code[:cut]))


@given(st.binary(max_size=200))
@example(b"\x00\x00\x00\x00")
def test_any_words_after_a_header_raise_nothing_else(tail: bytes) -> None:
    with pytest.raises(InvalidSpirv):
        reflect(VALID[:20] + tail)


# From GLSL.


@needs_compiler
@pytest.mark.parametrize(
    ("declaration", "name"),
    [
        ("buffer Block { float x[]; } instance;", "instance"),
        ("buffer Block { float member[]; };", "member"),
        ("buffer Block { uint n; float x[]; };", "Block"),
    ],
)
def test_name_of_a_buffer(declaration: str, name: str) -> None:
    assert buffer(declaration).name == name


@needs_compiler
@pytest.mark.parametrize(
    ("qualifier", "body", "access"),
    [
        ("readonly", "float y = x[0];", "r"),
        ("writeonly", "x[0] = 1;", "w"),
        ("", "float y = x[0];", "r"),
        ("", "x[0] = 1;", "w"),
        ("", "x[0] += 1;", "rw"),
        ("", "x[0] = x.length();", "w"),
        ("", "", "r"),
    ],
)
def test_access_of_glsl_buffers(qualifier: str, body: str, access: str) -> None:
    assert buffer(f"{qualifier} buffer B {{ float x[]; }};", body).access == access


@needs_compiler
@pytest.mark.parametrize(
    ("declaration", "dtype", "header", "stride", "min_size"),
    [
        ("buffer B { float x[]; };", "f4", 0, 4, 4),
        ("buffer B { uint n; float x[]; };", "f4", 4, 4, 8),
        ("buffer B { uint n; vec4 x[]; };", "f4", 16, 16, 32),
        ("buffer B { vec3 x[]; };", "f4", 0, 16, 16),
        ("buffer B { int x[5]; };", "i4", 0, None, 20),
        ("buffer B { int a; int b[3][2]; };", "i4", 0, None, 28),
        ("buffer B { mat3 m; };", "f4", 0, None, 44),
        ("buffer B { int a; float b; };", None, 0, None, 8),
        ("buffer B { struct { float a, b; } x[]; };", None, 0, 8, 8),
        ("buffer B { double x[]; };", "f8", 0, 8, 8),
        ("buffer B { int64_t x[]; };", "i8", 0, 8, 8),
        ("uniform B { float x[2]; };", "f4", 0, None, 20),
    ],
)
def test_layout_of_a_buffer(
    declaration: str, dtype: str | None, header: int, stride: int | None, min_size: int
) -> None:
    if "struct {" in declaration:
        declaration = "buffer B { S x[]; };"
        (got,) = kernel(f"struct S {{ float a, b; }}; layout(binding = 0) {declaration}").bindings
    else:
        got = buffer(declaration)
    assert got.dtype == (None if dtype is None else np.dtype(dtype))
    assert (got.header, got.stride, got.min_size) == (header, stride, min_size)


@needs_compiler
@pytest.mark.parametrize(
    ("declaration", "pitches", "used"),
    [
        ("buffer B { float x[]; };", (), 0),
        ("buffer B { vec4 x[][3]; };", (), 0),
        ("buffer B { mat4 x[]; };", (), 0),
        ("buffer B { vec3 x; };", (), 0),
        ("buffer B { vec3 x[1]; };", (), 0),
        ("buffer B { vec3 x[]; };", (16,), 12),
        ("buffer B { vec3 x[4]; };", (64, 16), 12),
        ("buffer B { vec3 x[][2]; };", (32, 16), 12),
        ("buffer B { dvec3 x[]; };", (32,), 24),
        ("buffer B { mat3 x[]; };", (48, 16), 12),
        ("buffer B { mat2x3 x; };", (32, 16), 12),
        ("buffer B { layout(row_major) mat2x3 x; };", (), 0),
        ("buffer B { layout(row_major) mat3x2 x; };", (32, 16), 12),
        ("uniform B { float x[2]; };", (32, 16), 4),
        ("uniform B { mat2 x; };", (32, 16), 8),
    ],
)
def test_gaps_between_elements(declaration: str, pitches: tuple[int, ...], used: int) -> None:
    got = buffer(declaration).elements
    assert (got.pitches, got.used) == (pitches, used)


@needs_compiler
@pytest.mark.parametrize(
    ("glsl", "dtype", "capability"),
    [
        ("int8_t", np.int8, "StorageBuffer8BitAccess"),
        ("uint8_t", np.uint8, "StorageBuffer8BitAccess"),
        ("int16_t", np.int16, "StorageBuffer16BitAccess"),
        ("uint16_t", np.uint16, "StorageBuffer16BitAccess"),
        ("float16_t", np.float16, "StorageBuffer16BitAccess"),
    ],
)
def test_small_storage(glsl: str, dtype: type, capability: str) -> None:
    declaration = f"layout(binding = 0) buffer B {{ {glsl} x[]; }};"
    interface = kernel(declaration, "x[0] = x[1];", f"#version 450\n{STORAGE}")
    assert interface.bindings[0].dtype == np.dtype(dtype)
    assert interface.bindings[0].stride == np.dtype(dtype).itemsize
    assert interface.capabilities == {capability}


@needs_compiler
def test_bindings_are_sorted_and_aliases_are_one() -> None:
    interface = kernel(
        """layout(set = 1, binding = 0) buffer C { float c[]; };
        layout(set = 0, binding = 2) buffer B { float b[]; };
        layout(set = 0, binding = 1) buffer A { float a[]; };
        layout(set = 0, binding = 1) buffer A4 { uvec4 a4[]; };""",
        "a[0] = float(a4[0].x);",
    )
    got = [(b.set, b.binding, b.name, b.access, b.dtype) for b in interface.bindings]
    float32 = np.dtype(np.float32)
    assert got == [(0, 1, "a", "rw", None), (0, 2, "b", "r", float32), (1, 0, "c", "r", float32)]


ONE_BINDING = """layout(binding = 0) buffer A { %s a[]; };
layout(binding = 3) buffer B { %s b[]; };
layout(binding = 3) buffer C { %s c[]; };"""


@needs_compiler
@pytest.mark.parametrize(
    ("body", "types"),
    [
        ("c[0] = b[0];", ("float", "float", "float")),
        ("c[0] = b[0] + a[0];", ("vec4", "vec4", "vec4")),
        ("c[0].x = b[0].x;", ("float", "dvec2", "dvec2")),
    ],
)
def test_blocks_of_one_layout_at_one_binding_are_refused(body: str, types: tuple[str, ...]) -> None:
    """Each would be the same array, and only one of the names an argument."""
    with pytest.raises(Unsupported, match=r"set 0, binding 3.*binding of its own") as raised:
        kernel(ONE_BINDING % types, body)
    assert "'b'" in str(raised.value)
    assert "'c'" in str(raised.value)


@needs_compiler
@pytest.mark.parametrize(("body", "name"), [("b[0] = a[0];", "b"), ("c[0] = a[0];", "c")])
def test_of_blocks_at_one_binding_the_used_one_is_the_argument(body: str, name: str) -> None:
    interface = kernel(ONE_BINDING % ("float", "float", "float"), body)
    assert [binding.name for binding in interface.bindings if binding.binding == 3] == [name]


@needs_compiler
def test_a_third_block_at_a_binding_is_compared_with_each() -> None:
    more = "layout(binding = 3) buffer D { float d[]; };"
    with pytest.raises(Unsupported, match="binding 3") as raised:
        kernel(f"{ONE_BINDING % ('float', 'float', 'uint')}{more}", "c[0] = uint(b[0] + d[0]);")
    assert "'b'" in str(raised.value)
    assert "'d'" in str(raised.value)


@needs_compiler
@pytest.mark.parametrize(
    ("declaration", "dtype", "shape", "strides", "size"),
    [
        ("uint x;", "u4", (), (), 4),
        ("float16_t x;", "f2", (), (), 2),
        ("int64_t x;", "i8", (), (), 8),
        ("vec3 x;", "f4", (3,), (4,), 12),
        ("float x[5];", "f4", (5,), (4,), 20),
        ("vec3 x[2];", "f4", (2, 3), (16, 4), 28),
        ("mat4 x;", "f4", (4, 4), (16, 4), 64),
        ("mat2x3 x;", "f4", (2, 3), (16, 4), 28),
        ("layout(row_major) mat2x3 x;", "f4", (2, 3), (4, 8), 24),
        ("int x[2][3];", "i4", (2, 3), (12, 4), 24),
    ],
)
def test_push_constant(
    declaration: str, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], size: int
) -> None:
    member = members(declaration)["x"]
    assert member == Member("x", 0, np.dtype(dtype), shape, strides)
    assert member.size == size


@needs_compiler
def test_push_constant_address() -> None:
    head = "#version 450\n#extension GL_EXT_buffer_reference : require"
    node = "layout(buffer_reference) buffer Node { Node next; };"
    push = "layout(push_constant) uniform P { Node first; };"
    interface = kernel(f"layout(buffer_reference) buffer Node; {node} {push}", head=head)
    assert interface.push == (Member("first", 0, np.dtype(np.uint64), (), ()),)
    assert interface.capabilities == {"PhysicalStorageBufferAddresses"}


@needs_compiler
def test_push_constant_block() -> None:
    interface = kernel(
        """struct Inner { float a; vec2 b; };
        layout(push_constant) uniform P { uint n; vec3 v; Inner s; Inner t[3]; float16_t last; };"""
    )
    got = [(m.name, m.offset, m.shape, m.strides) for m in interface.push]
    assert got == [
        ("n", 0, (), ()),
        ("v", 16, (3,), (4,)),
        ("s.a", 32, (), ()),
        ("s.b", 40, (2,), (4,)),
        ("t.a", 48, (3,), (16,)),
        ("t.b", 56, (3, 2), (16, 4)),
        ("last", 96, (), ()),
    ]
    assert interface.push_size == 100
    assert interface.capabilities >= {"StoragePushConstant16"}


@needs_compiler
@pytest.mark.parametrize("use", ["", "uint n = gl_WorkGroupSize.x;"])
@pytest.mark.parametrize(
    ("layout", "size", "ids"),
    [
        ("local_size_x = 8, local_size_y = 4", (8, 4, 1), (None, None, None)),
        ("local_size_x_id = 3, local_size_z = 2", (1, 1, 2), (3, None, None)),
        ("local_size_x = 16, local_size_x_id = 3", (16, 1, 1), (3, None, None)),
    ],
)
def test_local_size(
    layout: str, size: tuple[int, int, int], ids: tuple[int | None, ...], use: str
) -> None:
    interface = kernel(f"layout({layout}) in;", use)
    assert interface.local_size == size
    assert interface.local_size_ids == ids
    assert [c.name for c in interface.constants] == ["local_size_x"] * (ids[0] is not None)


@needs_compiler
def test_specialization_constants() -> None:
    interface = kernel(
        """layout(local_size_x_id = 0) in;
        layout(constant_id = 0) const uint size = 32;
        layout(constant_id = 1) const bool flag = true;
        layout(constant_id = 2) const int negative = -5;
        layout(constant_id = 3) const float third = 0.5;
        layout(constant_id = 4) const double wide = 0.1;
        layout(constant_id = 5) const float16_t half_ = float16_t(1.5);
        layout(constant_id = 6) const int64_t big = -9000000000l;"""
    )
    got = [(c.id, c.name, c.dtype.str[1:], c.default) for c in interface.constants]
    assert got == [
        (0, "size", "u4", 32),
        (1, "flag", "b1", True),
        (2, "negative", "i4", -5),
        (3, "third", "f4", 0.5),
        (4, "wide", "f8", 0.1),
        (5, "half_", "f2", 1.5),
        (6, "big", "i8", -9000000000),
    ]


@needs_compiler
def test_preserved_values_by_width() -> None:
    mode = 'spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4466], '
    head = "#version 450\n#extension GL_EXT_spirv_intrinsics : require\n"
    declaration = "layout(binding = 0) buffer B { float x[]; };"
    for width in (32, 64):
        interface = kernel(declaration, "x[0] = x[1];", f"{head}{mode}4461, {width});")
        assert interface.capabilities == {f"SignedZeroInfNanPreserveFloat{width}"}


@needs_compiler
def test_capabilities_by_name() -> None:
    head = "#version 450\n#extension GL_KHR_shader_subgroup_arithmetic : require"
    declaration = "layout(binding = 0) buffer B { float x[]; };"
    interface = kernel(declaration, "x[0] = subgroupAdd(x[1]);", head)
    assert interface.capabilities == {"GroupNonUniform", "GroupNonUniformArithmetic"}
    assert reflect(VALID.replace(op(17, 1), op(17, 1) + op(17, 31337), 1)).capabilities == {
        "capability 31337"
    }


def test_reflection_is_quick() -> None:
    code = sample()
    began = time.perf_counter()
    for _ in range(20):
        reflect(code)
    # Under a millisecond on a desktop; the limit only catches a change of order.
    assert (time.perf_counter() - began) / 20 < 0.02
