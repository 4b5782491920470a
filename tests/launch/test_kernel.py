"""Kernels: what they are made from, what they are called with, and what they are kept from."""

from __future__ import annotations

import gc
import inspect
import pydoc
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import penstock as ps
from penstock.shader.glsl import compile_glsl
from tests.kernels import HEAD, SAXPY, saxpy, slow_copy

N = 1024
ONE = "layout(local_size_x = 1) in;\n"

#: What a scalar of GLSL is to NumPy, and what the device needs in order to push and to store it.
SCALARS: dict[str, tuple[Any, set[str]]] = {
    "float": (np.float32, set()),
    "int": (np.int32, set()),
    "uint": (np.uint32, set()),
    "double": (np.float64, {"shaderFloat64"}),
    "int64_t": (np.int64, {"shaderInt64"}),
    "uint64_t": (np.uint64, {"shaderInt64"}),
    "float16_t": (
        np.float16,
        {"shaderFloat16", "storageBuffer16BitAccess", "storagePushConstant16"},
    ),
    "int16_t": (np.int16, {"shaderInt16", "storageBuffer16BitAccess", "storagePushConstant16"}),
    "uint16_t": (np.uint16, {"shaderInt16", "storageBuffer16BitAccess", "storagePushConstant16"}),
    "int8_t": (np.int8, {"shaderInt8", "storageBuffer8BitAccess", "storagePushConstant8"}),
    "uint8_t": (np.uint8, {"shaderInt8", "storageBuffer8BitAccess", "storagePushConstant8"}),
}
EXTENSIONS = """#version 450
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_scalar_block_layout : require
"""


def make(dev: ps.Device, code: str, needs: set[str], **options: Any) -> ps.Kernel:
    """The kernel, if the device can run it; else it must say what it lacks, and the test ends."""
    missing = needs - dev.info.features
    if missing:
        with pytest.raises(ps.Unsupported, match="|".join(missing)):
            dev.kernel(code, **options)
        pytest.skip(f"refused rightly: {dev.name} lacks {', '.join(sorted(missing))}")
    return dev.kernel(code, **options)


# The signature.


def test_the_signature_is_read_from_the_code(dev: ps.Device) -> None:
    k = dev.kernel(SAXPY, name="saxpy")
    assert (k.name, k.local_size, k.closed) == ("saxpy", (64, 1, 1), False)
    x, y = k.interface.bindings
    assert (x.name, x.access, x.dtype, y.name, y.access) == ("x", "r", np.float32, "y", "rw")
    assert [(m.name, m.dtype) for m in k.interface.push] == [("a", np.float32), ("n", np.uint32)]
    for part in ("saxpy(", "x: r float32[]", "y: rw float32[]", "a: float32", "n: uint32", "64"):
        assert part in k.signature
        assert part in repr(k)


# Push constants.


class Push(NamedTuple):
    """A push constant `v`, those of its parts that are looked at, and values for it."""

    declared: str
    scalar: str
    parts: list[str]
    values: list[Any]


def vector(kind: str, scalar: str, *values: Any) -> Push:
    return Push(f"{kind} v", scalar, [f"v[{i}]" for i in range(len(values[0]))], [*values])


def matrix(columns: int, rows: int) -> Push:
    parts = [f"v[{c}][{r}]" for c in range(columns) for r in range(rows)]
    value = np.arange(1, columns * rows + 1, dtype=np.float32).reshape(columns, rows)
    return Push(f"mat{columns}x{rows} v", "float", parts, [value, value.astype(np.int64).tolist()])


def scalar(name: str) -> Push:
    dtype = SCALARS[name][0]
    limits: Any = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    values = [limits.min, limits.max, dtype(3), np.int64(5), 1, True]
    return Push(f"{name} v", name, ["v"], values)


PUSHES = [
    *map(scalar, SCALARS),
    Push("float v", "float", ["v"], [float("inf"), 1.5, np.float64(0.1), np.float16(0.1)]),
    vector("vec2", "float", (1.5, -2.5), np.array([1, 2], np.float64)),
    vector("vec3", "float", [1, 2, 3]),
    vector("vec4", "float", np.arange(4, dtype=np.float32)),
    vector("ivec3", "int", (-1, 2, -(2**31)), np.array([1, 2, 3])),
    vector("uvec2", "uint", (7, 2**32 - 1), np.array([1, 2])),
    vector("dvec2", "double", (0.1, 1e300)),
    vector("i64vec2", "int64_t", (-1, 2**62)),
    matrix(2, 2),
    matrix(3, 3),
    matrix(4, 2),
    matrix(2, 4),
    Push("float v[3]", "float", ["v[0]", "v[1]", "v[2]"], [(1.5, 2.5, 3.5)]),
    Push("uint v[2][3]", "uint", ["v[0][1]", "v[1][2]"], [[[1, 2, 3], [4, 5, 6]]]),
    Push("vec3 v[2]", "float", ["v[0][0]", "v[1][1]", "v[1][2]"], [[[1, 2, 3], [4, 5, 6]]]),
]


@pytest.mark.parametrize("push", PUSHES, ids=lambda push: push.declared)
def test_push_constants_of_every_kind(push: Push, dev: ps.Device) -> None:
    dtype, needs = SCALARS[push.scalar]
    stores = [f"result[{i}] = {part};\n" for i, part in enumerate(push.parts)]
    code = f"""{EXTENSIONS}{ONE}
layout(binding = 0, scalar) buffer Out {{ {push.scalar} result[]; }};
layout(push_constant) uniform P {{ uint before; {push.declared}; uint after; }};
void main() {{ if (before == 11 && after == 22) {{ {"".join(stores)} }} }}
"""
    k = make(dev, code, needs)
    for value in push.values:
        result = dev.zeros(len(push.parts), dtype)
        k(result=result, before=11, v=value, after=22, threads=1)
        expected = [eval(part, {"v": np.asarray(value, dtype)}) for part in push.parts]
        assert result.tolist() == np.array(expected).tolist()


def test_every_launch_has_its_own_push_constants(dev: ps.Device) -> None:
    k = dev.kernel(
        ONE
        + """layout(binding = 0) buffer Out { uint result[]; };
        layout(push_constant) uniform P { uint i; uint value; };
        void main() { result[i] = value; }"""
    )
    result = dev.zeros(300, np.uint32)
    for i in range(300):
        k(result=result, i=i, value=7 * i, threads=1)
    assert (result.numpy() == 7 * np.arange(300)).all()


class Five:
    """A number only by its `__index__`, as those of other packages are."""

    def __index__(self) -> int:
        return 5


@pytest.mark.parametrize("vector", ["", "uvec2 v;"])
def test_numbers_of_other_types(vector: str, dev: ps.Device) -> None:
    """Whether a kernel also takes a vector makes no difference."""
    k = dev.kernel(
        ONE
        + f"""layout(binding = 0) buffer Out {{ float result[]; }};
        layout(push_constant) uniform P {{ uint n; float f; {vector} }};
        void main() {{ result[0] = n; result[1] = f; }}"""
    )
    more = {"v": (1, 2)} if vector else {}
    for value in (Fraction(1, 2), Decimal("0.5"), np.array(0.5), Five()):
        result = dev.zeros(2)
        k(result=result, n=Five(), f=value, threads=1, **more)
        assert result.tolist() == [5, float(value)]
    with pytest.raises(ps.ArgumentError, match="'n' must be uint32, not Fraction"):
        k(result=result, n=Fraction(2), f=1, threads=1, **more)
    with pytest.raises((ps.InvalidValue, ps.ArgumentError), match="'f' must be float32"):
        k(result=result, n=1, f=Fraction(10**400), threads=1, **more)


WRONG = [
    ({"n": 2**32}, ps.InvalidValue),
    ({"n": -1}, ps.InvalidValue),
    ({"n": 1.5}, ps.DtypeMismatch),
    ({"n": "1"}, ps.ArgumentError),
    ({"n": (1, 2)}, (ps.ShapeMismatch, ps.ArgumentError)),
    ({"f": 1e300}, ps.InvalidValue),
    ({"f": 1j}, (ps.DtypeMismatch, ps.ArgumentError)),
    ({"f": None}, ps.ArgumentError),
]
WRONG_VECTORS = [
    ({"v": (1, 2**32)}, ps.InvalidValue),
    ({"v": (1, -1)}, (ps.InvalidValue, ps.ArgumentError)),
    ({"v": (1, 2, 3)}, ps.ShapeMismatch),
    ({"v": 1}, ps.ShapeMismatch),
    ({"v": (1.5, 2)}, (ps.DtypeMismatch, ps.ArgumentError)),
    ({"v": ("a", "b")}, (ps.DtypeMismatch, ps.ArgumentError)),
]


@pytest.mark.filterwarnings("ignore")  # an error is wanted, not a warning made into one
@pytest.mark.parametrize(
    ("good", "wrong", "kind"),
    [
        *(({"n": 1, "f": 1}, *case) for case in WRONG),
        *(({"n": 1, "f": 1, "v": (1, 2)}, *case) for case in WRONG + WRONG_VECTORS),
    ],
    ids=str,
)
def test_push_constants_that_do_not_fit(
    good: dict[str, Any], wrong: dict[str, Any], kind: Any, dev: ps.Device
) -> None:
    k = dev.kernel(
        ONE
        + f"""layout(binding = 0) buffer Out {{ uint result[]; }};
        layout(push_constant) uniform P {{ uint n; float f; {"uvec2 v;" * ("v" in good)} }};
        void main() {{ result[0] = 1; }}""",
        name="picky",
    )
    result = dev.zeros(1, np.uint32)
    with pytest.raises(kind, match=f"picky.*{next(iter(wrong))!r} must be"):
        k(result=result, threads=1, **(good | wrong))
    assert result.item() == 0
    k(result=result, threads=1, **good)
    assert result.item() == 1


# How much to run.

COUNT = """layout(local_size_x = 4, local_size_y = 2) in;
layout(binding = 0) buffer Out { uint count; uint last[3]; } result;
void main() {
    atomicAdd(result.count, 1);
    for (uint i = 0; i < 3; ++i) atomicMax(result.last[i], gl_GlobalInvocationID[i]);
}
"""


@pytest.mark.parametrize(
    ("amount", "groups"),
    [
        ({"threads": 1}, (1, 1, 1)),
        ({"threads": 9}, (3, 1, 1)),
        ({"threads": np.int64(8)}, (2, 1, 1)),
        ({"threads": (5, 3)}, (2, 2, 1)),
        ({"threads": [4, 2, 3]}, (1, 1, 3)),
        ({"groups": 3}, (3, 1, 1)),
        ({"groups": (2, np.uint8(3))}, (2, 3, 1)),
        ({"groups": (1, 2, 3)}, (1, 2, 3)),
        ({"threads": 0}, (0, 1, 1)),
        ({"threads": (4, 0)}, (1, 0, 1)),
        ({"groups": (0, 1, 1)}, (0, 1, 1)),
    ],
    ids=str,
)
def test_threads_and_groups(
    amount: dict[str, Any], groups: tuple[int, int, int], dev: ps.Device
) -> None:
    result = dev.zeros(4, np.uint32)
    k = dev.kernel(COUNT)
    with ps.trace() as t:
        k(result=result, **amount)
    x, y, z = groups
    assert result[0].item() == 8 * x * y * z
    assert t.launches == (1 if x * y * z else 0)
    if x * y * z:
        assert result[1:].tolist() == [4 * x - 1, 2 * y - 1, z - 1]


# What a kernel is made from.

SCALE = """layout(local_size_x = 1) in;
layout(binding = 0) buffer Y { uint y[]; };
void main() { y[gl_GlobalInvocationID.x] *= FACTOR; }
"""


def test_sources(dev: ps.Device, tmp_path: Path) -> None:
    spirv = compile_glsl(SCALE, defines={"FACTOR": 3})
    (tmp_path / "triple.spv").write_bytes(spirv)
    (tmp_path / "factor.glsl").write_text("#define FACTOR 3\n")
    (tmp_path / "scale.comp").write_text('#include "factor.glsl"\n' + SCALE)
    sources: list[tuple[Any, str]] = [
        (SCALE.replace("FACTOR", "3"), "kernel"),
        (" ".join(SCALE.replace("FACTOR", "3").split()), "kernel"),
        (tmp_path / "scale.comp", "scale"),
        (str(tmp_path / "scale.comp"), "scale"),
        (tmp_path / "triple.spv", "triple"),
        (str(tmp_path / "triple.spv"), "triple"),
        (spirv, "kernel"),
        (bytearray(spirv), "kernel"),
        (memoryview(spirv), "kernel"),
    ]
    for source, name in sources:
        y = dev.full(2, 5, np.uint32)
        with dev.kernel(source) as k:
            k(y=y, threads=2)
        assert (k.name, y.tolist()) == (name, [15, 15])
    assert dev.kernel(spirv, name="mine").name == "mine"


@pytest.mark.parametrize("factor", [2, "3", "(1 + 3)", True])
def test_defines(factor: Any, dev: ps.Device) -> None:
    y = dev.full(1, 5, np.uint32)
    dev.kernel(SCALE, defines={"FACTOR": factor})(y=y, threads=1)
    assert y.item() == 5 * eval(str(factor))


CONSTANTS = """layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint COUNT = 3;
layout(constant_id = 2) const int SHIFT = -1;
layout(constant_id = 3) const float FACTOR = 1.5;
layout(constant_id = 4) const bool NEGATIVE = false;
layout(binding = 0) buffer Y { float y[]; };
void main() {
    if (gl_LocalInvocationID.x == 0)
        y[gl_WorkGroupID.x] = (NEGATIVE ? -1 : 1) * FACTOR * COUNT + SHIFT;
}
"""


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ({}, 3.5),
        ({"COUNT": 5}, 6.5),
        ({"SHIFT": -3, "FACTOR": 2}, 3.0),
        ({"NEGATIVE": True, "COUNT": np.uint8(1)}, -2.5),
        ({"FACTOR": np.float64(0.5), "local_size_x": 8}, 0.5),
    ],
)
def test_specialisation_constants(
    constants: dict[str, Any], expected: float, dev: ps.Device
) -> None:
    k = dev.kernel(CONSTANTS, constants=constants)
    y = dev.zeros(4)
    k(y=y, threads=8)
    local = constants.get("local_size_x", 1)
    assert k.local_size == (local, 1, 1)
    assert y.tolist() == [expected if i < 8 // local else 0 for i in range(4)]


@pytest.mark.parametrize(
    ("constants", "kind", "words"),
    [
        ({"MISSING": 1}, ps.ArgumentError, r"'MISSING'.*COUNT"),
        ({"COUNT": -1}, ps.InvalidValue, r"COUNT=-1.*uint32"),
        ({"COUNT": 2**32}, ps.InvalidValue, r"COUNT=.*uint32"),
        ({"COUNT": 2.5}, (ps.InvalidValue, ps.DtypeMismatch), r"COUNT=2.5.*uint32"),
        ({"COUNT": (1, 2)}, (ps.InvalidValue, ps.ShapeMismatch), r"COUNT=\(1, 2\).*uint32"),
        ({"SHIFT": "one"}, (ps.InvalidValue, ps.DtypeMismatch), r"SHIFT='one'.*int32"),
        ({"local_size_x": 1 << 20}, ps.Unsupported, r"groups of \(1048576, 1, 1\)"),
    ],
    ids=str,
)
def test_constants_that_do_not_fit(
    constants: dict[str, Any], kind: Any, words: str, dev: ps.Device
) -> None:
    with pytest.raises(kind, match=words):
        dev.kernel(CONSTANTS, constants=constants)


BUFFERS = "".join(f"layout(binding = {i}) buffer B{i} {{ uint b{i}[]; }};\n" for i in range(80))
UNIFORM = "".join(f"layout(binding = {i}) uniform B{i} {{ uint b{i}; }};\n" for i in range(28))


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (BUFFERS + "void main() { b0[0] = b79[0]; }", ps.Unsupported, r"80.*(bindings|buffers)"),
        (UNIFORM + "void main() {}", ps.Unsupported, "28 uniform blocks"),
        (
            "layout(binding = 0) uniform U { vec4 u[1 << 24]; };\nvoid main() {}",
            ps.Unsupported,
            "'U' takes 268,435,456 bytes or more|'u' takes 268,435,456 bytes or more",
        ),
        (
            "layout(binding = 0) buffer Result { uint r[1 << 30]; };\nvoid main() { r[0] = 1; }",
            ps.Unsupported,
            "takes 4,294,967,296 bytes or more",
        ),
        (
            "shared uint s[1 << 20];\nlayout(binding = 0) buffer Y { uint y[]; };\n"
            "void main() { s[y[0]] = 1; y[0] = s[y[1]]; }",
            ps.Unsupported,
            "shared memory",
        ),
        (
            "layout(set = 1, binding = 0) buffer Y { uint y[]; };\nvoid main() { y[0] = 1; }",
            ps.Unsupported,
            "'y'.*descriptor set",
        ),
        (
            "layout(binding = 0, r32f) uniform image2D picture;\n"
            "void main() { imageStore(picture, ivec2(0), vec4(1)); }",
            ps.Unsupported,
            "'picture' is an image",
        ),
        (
            "#extension GL_EXT_shader_atomic_float : require\n"
            "layout(binding = 0) buffer Y { float y[]; };\nvoid main() { atomicAdd(y[0], 1.0); }",
            ps.Unsupported,
            "AtomicFloat32AddEXT|capability 6033",
        ),
        (
            "layout(binding = 0) buffer Y { uint threads[]; };\nvoid main() { threads[0] = 1; }",
            ps.InvalidSpirv,
            "'threads'.*another name",
        ),
        (
            "layout(binding = 0) buffer Y { uint y[]; } n;\n"
            "layout(push_constant) uniform P { uint n; } p;\nvoid main() { n.y[0] = p.n; }",
            ps.InvalidSpirv,
            "'n'.*another name",
        ),
    ],
    ids=[
        "bindings", "uniform blocks", "large uniform block", "large result", "shared memory",
        "descriptor set", "image", "capability",
        "reserved name", "one name twice",
    ],
)  # fmt: skip
def test_kernels_the_device_cannot_run(code: str, kind: Any, words: str, dev: ps.Device) -> None:
    with pytest.raises(kind, match=words):
        dev.kernel("#version 450\n" + code.replace("void main", ONE + "void main"))


def test_shared_memory_by_a_constant(dev: ps.Device) -> None:
    code = """#version 450
layout(local_size_x = 1) in;
layout(constant_id = 0) const uint COUNT = 4;
shared uint s[COUNT];
layout(binding = 0) buffer Y { uint y[]; };
void main() { s[y[0]] = 1; y[0] = s[y[1]]; }
"""
    dev.kernel(code)
    with pytest.raises(ps.Unsupported, match="67108864 bytes of shared memory"):
        dev.kernel(code, constants={"COUNT": 1 << 24})


def test_names_that_python_normalises(dev: ps.Device) -> None:
    """A call of Python's has its keywords in NFKC, whatever the source of the kernel has."""
    code = bytearray(
        compile_glsl(
            "\nlayout(local_size_x = 1) in;\nlayout(binding = 0) buffer Y { uint qqq[]; };\n"
            "layout(push_constant) uniform P { uint www; };\nvoid main() { qqq[0] = www; }"
        )
    )
    code = code.replace(b"qqq", "ﬁ".encode()).replace(b"www\0", "ª\0\0".encode())
    k = dev.kernel(bytes(code))
    y = dev.zeros(1, np.uint32)
    k(ﬁ=y, ª=3, groups=1)
    assert y.item() == 3
    k(fi=y, a=4, groups=1)
    assert y.item() == 4
    with pytest.raises(ps.ArgumentError, match=r"no argument 'ﬁ'.*'fi' is missing"):
        k(**dict.fromkeys(["ﬁ"], y), a=4, groups=1)


@pytest.mark.parametrize("name", ["ｓelf", "ｓtream", "fi", "ｉf", "ｗhat", "type"])  # noqa: RUF001
def test_names_that_are_taken_once_normalised(name: str, dev: ps.Device) -> None:
    stands_in = "q" * len(name.encode())
    code = compile_glsl(
        f"\nlayout(local_size_x = 1) in;\nlayout(binding = 0) buffer Y {{ uint {stands_in}[]; }};\n"
        f"layout(push_constant) uniform P {{ uint www; }};\n"
        f"void main() {{ {stands_in}[0] = www; }}"
    )
    code = code.replace(stands_in.encode(), name.encode()).replace(b"www\0", "ﬁ\0".encode())
    y = dev.zeros(1, np.uint32)
    if name in ("ｓtream", "fi"):  # noqa: RUF001
        with pytest.raises(ps.InvalidSpirv, match="another name"):
            dev.kernel(code)
        return
    k = dev.kernel(code)
    k(**{k.parameters[0].name: y}, fi=7, groups=1)
    assert y.item() == 7


@pytest.mark.parametrize("name", ["a\0b", 3, None])
def test_names_that_are_none(name: Any, dev: ps.Device) -> None:
    with pytest.raises(ps.ArgumentError, match="name= is text without NUL"):
        dev.kernel(SAXPY, name=name)


def test_push_constants_in_any_order(dev: ps.Device) -> None:
    """SPIR-V does not ask for members in the order of their offsets."""
    code = compile_glsl(
        "\nlayout(local_size_x = 1) in;\nlayout(binding = 0) buffer Y { uint y[]; };\n"
        "layout(push_constant) uniform P { uint a; uint b; };\n"
        "void main() { y[0] = a; y[1] = b; }"
    )
    words = np.frombuffer(code, np.uint32).copy()
    at = [i for i in range(len(words) - 4) if words[i] == (5 << 16 | 72) and words[i + 3] == 35]
    pushed = [i for i in at if words[i + 1] == words[at[-1] + 1]]
    if len(pushed) != 2:
        pushed = [i for i in at if [words[j + 1] for j in at].count(words[i + 1]) == 2]
    words[pushed[0] + 4], words[pushed[1] + 4] = 4, 0
    y = dev.zeros(2, np.uint32)
    dev.kernel(words.tobytes())(y=y, a=1, b=2, groups=1)
    assert y.tolist() == [1, 2]


# What a kernel is called with.


@pytest.mark.parametrize("name", SCALARS)
def test_storage_of_every_width(name: str, dev: ps.Device) -> None:
    dtype, needs = SCALARS[name]
    needs = {feature for feature in needs if "PushConstant" not in feature}
    code = f"""{EXTENSIONS}{HEAD}
layout(binding = 0) readonly buffer X {{ {name} x[]; }};
layout(binding = 1) buffer Y {{ {name} y[]; }};
void main() {{ uint i = gl_GlobalInvocationID.x; if (i < y.length()) y[i] += x[i]; }}
"""
    k = make(dev, code, needs)
    x, y = np.arange(100).astype(dtype), np.arange(100)[::-1].astype(dtype)
    result = dev.array(y)
    k(x=dev.array(x), y=result, threads=100)
    assert (result.numpy() == x + y).all()
    with pytest.raises(ps.DtypeMismatch, match="'x' must be"):
        k(x=dev.empty(100, "V5"), y=result, threads=100)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.complex64, "float"),
        (np.complex128, "double"),
        (np.dtype("u1,u1,u2"), "uint"),
        (np.dtype("M8[s]"), "int64_t"),
        (np.bool_, "uint8_t"),
        (ml_dtypes.float8_e5m2, "uint8_t"),
        (ml_dtypes.bfloat16, "uint16_t"),
    ],
    ids=str,
)
def test_dtypes_glsl_does_not_know_are_what_they_consist_of(
    dtype: Any, name: str, dev: ps.Device
) -> None:
    needs = {feature for feature in SCALARS[name][1] if "PushConstant" not in feature}
    code = f"""{EXTENSIONS}{HEAD}
layout(binding = 0) readonly buffer X {{ {name} x[]; }};
layout(binding = 1) writeonly buffer Y {{ {name} y[]; }};
void main() {{ uint i = gl_GlobalInvocationID.x; if (i < x.length()) y[i] = x[i]; }}
"""
    k = make(dev, code, needs)
    source = (np.arange(64 * np.dtype(dtype).itemsize) % 2).astype(np.uint8).view(dtype)
    x, y = dev.array(source), dev.empty(64, dtype)
    k(x=x, y=y, threads=128)
    assert y.numpy().tobytes() == source.tobytes()


def test_uniform_blocks(dev: ps.Device) -> None:
    k = dev.kernel(
        ONE
        + """layout(binding = 0) uniform Settings { vec4 scale; uint n; } settings;
        layout(binding = 1) uniform Pair { float first; float second; } pair;
        layout(binding = 2) buffer Y { float y[]; };
        void main() { y[0] = settings.scale.w * settings.n + pair.second; }"""
    )
    settings = np.zeros((), np.dtype([("scale", "f4", 4), ("n", "u4"), ("padding", "u4", 3)]))
    settings["scale"], settings["n"] = (1, 2, 3, 4), 10
    y = dev.zeros(1)
    arguments = {"settings": dev.array(settings), "pair": dev.array([1, 0.5], np.float32)}
    k(**arguments, y=y, threads=1)
    assert y.item() == 40.5
    limit = dev.info.limits["uniform_range"]
    assert isinstance(limit, int)
    for wrong, kind in (
        ({"pair": dev.zeros(1)}, ps.ShapeMismatch),
        ({"pair": dev.zeros(2, np.int32)}, ps.DtypeMismatch),
        ({"pair": dev.zeros(limit // 4 + 1)}, ps.Unsupported),
    ):
        with pytest.raises(kind, match="'pair'"):
            k(**(arguments | wrong), y=y, threads=1)


# Where the elements of an array lie.

FIVE = 5  # elements
PARTICLE = "struct Particle { vec3 at; uint id; vec2 speed; };\n"  # 32 bytes, of which 24 are used
LAID_OUT: dict[str, tuple[str, str, Any, str]] = {
    # what is declared, the value of element i, an array that lies so, and part of it that is read
    "vec3": ("buffer B { vec3 b[]; };", "b[i][j]", np.zeros((FIVE, 4), "f4"), "[:, :3]"),
    "uvec3": ("buffer B { uvec3 b[]; };", "b[i][j]", np.zeros((FIVE, 4), "u4"), "[:, :3]"),
    "vec4": ("buffer B { vec4 b[]; };", "b[i][j]", np.zeros((FIVE, 4), "f4"), "[:, :3]"),
    "flat vec4": ("buffer B { vec4 b[]; };", "b[i][j]", np.zeros(FIVE * 4, "f4"), "[::4, None]"),
    "float": ("buffer B { float b[]; };", "b[3 * i + j]", np.zeros((FIVE, 3), "f4"), ""),
    "scalar vec3": (
        "layout(scalar) buffer B { vec3 b[]; };", "b[i][j]", np.zeros((FIVE, 3), "f4"), ""
    ),
    "mat3": ("buffer B { mat3 b[]; };", "b[i][j][1]", np.zeros((FIVE, 3, 4), "f4"), "[:, :, 1]"),
    "rows of mat3": (
        "buffer B { mat3 b[]; };", "b[i][j][1]", np.zeros((FIVE, 12), "f4"), "[:, 1::4]"
    ),
    "row-major mat3x2": (
        "layout(row_major) buffer B { mat3x2 b[]; };", "b[i][j][1]",
        np.zeros((FIVE, 2, 4), "f4"), "[:, 1, :3]",
    ),
    "vec3[2]": (
        "buffer B { vec3 b[][2]; };", "b[i][1][j]", np.zeros((FIVE, 2, 4), "f4"), "[:, 1, :3]"
    ),
    "std140 float": (
        "uniform B { float b[15]; };", "b[3 * i + j]", np.zeros((FIVE, 3, 4), "f4"), "[:, :, 0]"
    ),
    "std140 vec4": ("uniform B { vec4 b[5]; };", "b[i][j]", np.zeros((FIVE, 4), "f4"), "[:, :3]"),
    "struct": (
        PARTICLE + "buffer B { Particle b[]; };", "b[i].at[j]",
        np.zeros(FIVE, [("at", "f4", 3), ("id", "u4"), ("speed", "f4", 2), ("pad", "f4", 2)]),
        "['at']",
    ),
    "struct as rows": (
        PARTICLE + "buffer B { Particle b[]; };", "b[i].at[j]",
        np.zeros((FIVE, 8), "f4"), "[:, :3]",
    ),
    "header": (
        "buffer B { vec4 first; vec3 b[]; };", "b[i][j]", np.zeros((FIVE + 1, 4), "f4"), "[1:, :3]"
    ),
    "header, flat": (
        "buffer B { float first; vec3 b[]; };", "b[i][j]", np.zeros(4 + 4 * FIVE, "f4"),
        "[4::4, None]",
    ),
}  # fmt: skip


def read_elements(declaration: str, value: str) -> str:
    """A kernel that reads three numbers of every element of a block."""
    *types, block = declaration.replace("layout(", "layout(binding = 0, ").split("\n")
    if not block.startswith("layout("):
        block = f"layout(binding = 0) {block}"
    return f"""{EXTENSIONS}{"".join(types)}
        layout(local_size_x = 3) in;
        {block}
        layout(binding = 1) buffer Y {{ float y[]; }};
        void main() {{
            uint i = gl_WorkGroupID.x, j = gl_LocalInvocationID.x;
            y[3 * i + j] = float({value});
        }}"""


@pytest.mark.parametrize("name", LAID_OUT)
def test_elements_lie_where_the_kernel_reads_them(name: str, dev: ps.Device) -> None:
    declaration, value, host, part = LAID_OUT[name]
    words = host.view("u4" if host.dtype == np.uint32 else "f4").reshape(-1)
    words[:] = np.arange(len(words))
    expected = np.asarray(eval(f"host{part}"), np.float64)
    k = dev.kernel(read_elements(declaration, value))
    y = dev.zeros((FIVE, 3))
    name = k.parameters[0].name
    k(**{name: dev.array(host)}, y=y, groups=FIVE)
    k(**{name: host}, y=y, groups=FIVE)
    got = y.numpy()[:, : expected.shape[1]]
    assert (got == expected).all(), (got, expected)


MISPLACED: dict[str, tuple[str, str, Any, Any, str]] = {
    "vec3": (
        "buffer B { vec3 b[]; };", "b[i][j]", np.zeros((64, 3), "f4"), ps.ShapeMismatch,
        r"'b' is read 16 bytes at a time, of which 12 are used.*\(64, 3\).*\(\.\.\., 4\).*scalar",
    ),
    "flat vec3": (
        "buffer B { vec3 b[]; };", "b[i][j]", np.zeros(64 * 3, "f4"), ps.ShapeMismatch, "16 bytes"
    ),
    "ivec3 of one": (
        "buffer B { ivec3 b[]; };", "b[i][j]", np.zeros((1, 3), "i4"), ps.ShapeMismatch, "16 bytes"
    ),
    "mat3": (
        "buffer B { mat3 b[]; };", "b[i][j][1]", np.zeros((64, 3, 3), "f4"), ps.ShapeMismatch,
        r"16 bytes.*12 are used.*\(\.\.\., 4\)",
    ),
    "vec3[2]": (
        "buffer B { vec3 b[][2]; };", "b[i][1][j]", np.zeros((64, 2, 3), "f4"), ps.ShapeMismatch,
        "16 bytes",
    ),
    "std140 float": (
        "uniform B { float b[15]; };", "b[3 * i + j]", np.zeros(64, "f4"), ps.ShapeMismatch,
        r"'b' is read 16 bytes at a time, of which 4 are used",
    ),
    "std140 mat2": (
        "uniform B { mat2 b[3]; };", "b[i][0][0]", np.zeros((64, 2, 2), "f4"), ps.ShapeMismatch,
        "16 bytes.*8 are used",
    ),
    "one std140 mat3": (
        "uniform B { mat3 b; };", "b[j][0]", np.zeros((4, 3), "f4"), ps.ShapeMismatch,
        "16 bytes.*12 are used",
    ),
    "struct": (
        PARTICLE + "buffer B { Particle b[]; };", "b[i].at[j]",
        np.zeros(64, [("at", "f4", 3), ("id", "u4"), ("speed", "f4", 2)]), ps.DtypeMismatch,
        r"'b' has records of 24 bytes; the kernel reads one every 32",
    ),
    "packed struct": (
        "struct S { vec3 at; uint id; };\nbuffer B { S b[]; };", "b[i].at[j]",
        np.zeros(64, [("at", "f4", 3)]), ps.DtypeMismatch, "12 bytes.*every 16",
    ),
    "struct as rows": (
        PARTICLE + "buffer B { Particle b[]; };", "b[i].at[j]", np.zeros((64, 6), "f4"),
        ps.ShapeMismatch, r"32 bytes.*24 are used.*\(\.\.\., 8\)",
    ),
    "field of a struct": (
        PARTICLE + "buffer B { Particle b[]; };", "b[i].at[j]",
        np.zeros(64, [("id", "u4"), ("at", "f4", 3), ("speed", "f4", 2), ("pad", "f4", 2)]),
        ps.DtypeMismatch, r"'b' has 'at' at byte 4.*at byte 0",
    ),
    "field of a block": (
        "uniform B { uint first; vec4 b; };", "b[j]",
        np.zeros((), [("first", "u4"), ("b", "f4", 4), ("pad", "f4", 3)]),
        ps.DtypeMismatch, "'b' at byte 4.*at byte 16",
    ),
    "header": (
        "buffer B { float first; vec3 b[]; };", "b[i][j]", np.zeros((64, 3), "f4"),
        ps.ShapeMismatch, "16 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISPLACED)
def test_elements_that_lie_elsewhere_are_refused(name: str, dev: ps.Device) -> None:
    declaration, value, host, kind, words = MISPLACED[name]
    k = dev.kernel(read_elements(declaration, value))
    y = dev.zeros((FIVE, 3))
    for given in (dev.array(host), host):
        with pytest.raises(kind, match=words):
            k(**{k.parameters[0].name: given}, y=y, groups=FIVE)
    assert not y.numpy().any()


def test_the_same_buffer_twice(dev: ps.Device) -> None:
    x = dev.array(np.arange(256, dtype=np.float32))
    saxpy(dev)(x=x[:128], y=x[128:], a=2, n=128, threads=128)
    expected = np.arange(256, dtype=np.float32)
    expected[128:] += 2 * expected[:128]
    assert (x.numpy() == expected).all()


def test_launches_on_streams(dev: ps.Device) -> None:
    x, y = dev.ones(N), dev.zeros(N)
    streams = [dev.stream(), dev.stream(), dev.default_stream]
    for number in range(30):
        saxpy(dev)(x=x, y=y, a=number, n=N, threads=N, stream=streams[number % 3])
    assert (y.numpy() == sum(range(30))).all()
    for stream in streams[:2]:
        stream.close()


# What a kernel is kept from.


@pytest.mark.parametrize("by", [0, 1, 63, 64, 1 << 20, (1 << 30) - 32, (1 << 32) - 128])
def test_out_of_bounds_accesses_harm_nobody(by: int, dev: ps.Device) -> None:
    if "robustBufferAccess" not in dev.info.features:
        pytest.skip(f"{dev.name} has no robust buffer access")
    k = dev.kernel(
        HEAD
        + """layout(binding = 0) buffer X { uint x[]; };
        layout(binding = 1) buffer Y { uint y[]; };
        layout(push_constant) uniform P { uint by; };
        void main() {
            uint i = gl_GlobalInvocationID.x + x.length() + by;
            y[i] = x[i] | 8u;
        }"""
    )
    around = [dev.full(64, 7, np.uint32) for _ in range(9)]
    whole = dev.full(192, 7, np.uint32)
    k(x=around[4], y=around[5], by=by, threads=64)
    k(x=whole[64:128], y=whole[64:128], by=by, threads=64)
    for array in (*around[:5], *around[6:], whole[:64], whole[128:]):
        assert (array.numpy() == 7).all()


@pytest.mark.parametrize("end", ["closed", "forgotten"])
def test_a_kernel_may_end_while_it_runs(end: str, dev: ps.Device) -> None:
    x, y = dev.array(np.arange(N, dtype=np.uint32)), dev.zeros(N, np.uint32)
    slow_copy(x, dev.empty(N, np.uint32))  # what follows stays recorded for a while
    for number in range(3):
        k = dev.kernel(
            HEAD
            + f"""layout(binding = 0) readonly buffer X {{ uint x[]; }};
            layout(binding = 1) buffer Y {{ uint y[]; }};
            void main() {{ uint i = gl_GlobalInvocationID.x; y[i] += x[i] * {10**number}; }}"""
        )
        k(x=x, y=y, threads=N)
        if end == "closed":
            k.close()
            k.close()
            assert k.closed
            with pytest.raises(ps.Closed, match="kernel"):
                k(x=x, y=y, threads=N)
        del k
        gc.collect()
        assert dev.memory.used  # a look at the device lets it tidy up
    assert (y.numpy() == 111 * np.arange(N)).all()


def test_help_shows_the_kernels_own_signature(dev: ps.Device) -> None:
    k = saxpy(dev)
    assert list(inspect.signature(k).parameters) == [
        "x", "y", "a", "n", "threads", "groups", "stream",
    ]  # fmt: skip
    shown = pydoc.render_doc(k)
    assert k.signature in shown
    assert "Call it with arrays and scalars by name" in shown
    assert "launch.record(" in inspect.getsource(type(k).__call__)  # what tools show as its source


def test_a_call_does_what_python_does(any_device: ps.Device) -> None:
    """The call that the native step makes, and the Python function to which it leaves others."""
    k = saxpy(any_device)
    x, y = (any_device.array(np.full(64, value, np.float32)) for value in (2, 1))
    given = {"x": x, "y": y, "a": 0.5, "n": 64}
    seen = []
    for launch in (partial(ps.Kernel.__call__, k), k) * 2:
        any_device.synchronize()
        with ps.trace() as t:
            for _ in range(3):
                launch(**given, threads=64)
        ours = [e for e in t.events if e.kind == "launch" or e.path == "device"]
        seen.append([(e.kind, e.reason) for e in ours])
    assert seen[2] == seen[3]  # the first two had the first launches of all
    assert (y.numpy() == 13).all()
