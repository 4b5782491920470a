"""Push constants that do not fit move to a buffer, and nothing else about the kernel changes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.shader.glsl import compile_glsl
from penstock.shader.rewrite import arguments_in_buffer
from penstock.shader.spirv import reflect
from tests.launch.test_kernel import EXTENSIONS, ONE, make

PAD = "float pad[100];"
SMALL = {"storageBuffer16BitAccess", "storagePushConstant16", "shaderInt16", "shaderFloat16"}
SMALLER = {"storageBuffer8BitAccess", "storagePushConstant8", "shaderInt8"}

#: Members of a large block: their declarations, what to store, a value, and what the device needs.
MEMBERS: dict[str, tuple[str, str, str, Any, set[str]]] = {
    "scalars": ("uint a; float b; int c;", "float", "a, b, c", {"a": 7, "b": 1.5, "c": -3}, set()),
    "vectors": ("vec3 a; ivec2 b;", "float", "a.x, a.z, b.y",
                {"a": (1, 2, 3), "b": (4, -5)}, set()),
    "matrix": (
        "mat3x2 a; layout(row_major) mat2x3 b;", "float", "a[2][0], a[1][1], b[1][2]",
        {"a": np.arange(6).reshape(3, 2), "b": np.arange(6).reshape(2, 3)}, set(),
    ),
    "nested structs": (
        "S s; T t[3];", "float", "s.a, s.b.y, t[2].c[1], t[1].s.a",
        {"s.a": 3, "s.b": (1, 2), "t.c": np.arange(6).reshape(3, 2), "t.s.a": (4, 5, 6),
         "t.s.b": np.arange(6).reshape(3, 2)}, set(),
    ),
    "arrays of arrays": ("uint a[2][3];", "uint", "a[1][2], a[0][1]",
                         {"a": [[1, 2, 3], [4, 5, 6]]}, set()),
    "8 bits": ("uint8_t a; int8_t b[5];", "int", "int(a), int(b[4])",
               {"a": 200, "b": (0, 0, 0, 0, -7)}, SMALLER),
    "16 bits": ("float16_t a; int16_t b; uint16_t c[3];", "int", "int(a), int(b), int(c[2])",
                {"a": 3.0, "b": -5, "c": (1, 2, 65535)}, SMALL),
    "16 bits in both": ("float16_t a;", "float16_t", "a", {"a": 3.0}, SMALL),
    "64 bits": ("int64_t a; double b;", "double", "double(a), b", {"a": -(2**40), "b": 0.1},
                {"shaderInt64", "shaderFloat64"}),
}  # fmt: skip
DTYPES = {"float": "f4", "uint": "u4", "int": "i4", "float16_t": "f2", "double": "f8"}
STRUCTS = "struct S { uint a; vec2 b; }; struct T { float c[2]; S s; };\n"


def source(members: str, scalar: str, parts: str) -> str:
    stores = "".join(f"y[{at}] = {part};\n" for at, part in enumerate(parts.split(", ")))
    return f"""{EXTENSIONS}{ONE}{STRUCTS}
layout(binding = 2) buffer Y {{ {scalar} y[]; }};
layout(push_constant) uniform P {{ {PAD} {members} uint last; }};
void main() {{ if (last == 77 && pad[99] == 99.0) {{ {stores} }} }}
"""


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_arrives(name: str, dev: ps.Device) -> None:
    members, scalar, parts, values, needs = MEMBERS[name]
    k = make(
        dev,
        source(members, scalar, parts),
        needs - {"storagePushConstant8", "storagePushConstant16"},
    )
    assert k.interface.push_size == 0
    y = dev.zeros(len(parts.split(", ")), DTYPES[scalar])
    k(y=y, pad=np.arange(100), **values, last=77, groups=1)
    named = _nested(values)
    casts = {"int": int, "double": float}
    expected = [eval(part, {**casts, **named}) for part in parts.split(", ")]
    assert y.numpy().tolist() == np.array(expected, y.dtype).tolist()


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Values by name, so that GLSL's expressions can be evaluated in Python."""

    class Vector(np.ndarray[Any, Any]):
        x = property(lambda v: v[0])
        y = property(lambda v: v[1])
        z = property(lambda v: v[2])

    class Struct:
        pass

    def part(value: Any) -> Any:
        data = np.asarray(value)
        return data.view(Vector) if data.shape else value

    found = {name: part(value) for name, value in values.items() if "." not in name}
    if "s.a" in values:
        s = Struct()
        s.a, s.b = values["s.a"], part(values["s.b"])  # type: ignore[attr-defined]
        t = []
        for i in range(3):
            one, inner = Struct(), Struct()
            inner.a, inner.b = values["t.s.a"][i], part(values["t.s.b"][i])  # type: ignore[attr-defined]
            one.c, one.s = values["t.c"][i], inner  # type: ignore[attr-defined]
            t.append(one)
        found |= {"s": s, "t": t}
    return found


@pytest.mark.skipif(shutil.which("spirv-val") is None, reason="spirv-val is not installed")
@pytest.mark.parametrize("name", MEMBERS)
def test_the_outcome_is_valid(name: str, tmp_path: Path) -> None:
    members, scalar, parts, _, _ = MEMBERS[name]
    code = compile_glsl(source(members, scalar, parts), name="k", defines={}, include_dir=None)
    changed, interface = arguments_in_buffer(code, reflect(code))
    (tmp_path / "k.spv").write_bytes(changed)
    done = subprocess.run(
        ["spirv-val", "--target-env", "vulkan1.2", "--scalar-block-layout", tmp_path / "k.spv"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    again = reflect(changed)
    assert [(b.binding, b.access) for b in again.bindings] == [
        (b.binding, b.access) for b in interface.bindings
    ]
    assert again.bindings[-1].access == "r"
    assert again.capabilities == interface.capabilities
    assert (again.push, again.push_size) == ((), 0)


def test_blocks_up_to_the_limit_stay_push_constants(dev: ps.Device) -> None:
    limit: Any = dev.info.limits["push_constants"]
    for nbytes, moved in ((limit, False), (limit + 4, True)):
        count = nbytes // 4
        k = dev.kernel(
            f"""{ONE}
            layout(binding = 0) buffer Y {{ uint y[]; }};
            layout(push_constant) uniform P {{ uint a[{count}]; }};
            void main() {{ for (uint i = 0; i < {count}; ++i) y[i] = a[i]; }}
            """
        )
        assert k.interface.push_size == (0 if moved else nbytes)
        y = dev.zeros(count, np.uint32)
        k(y=y, a=np.arange(count), groups=1)
        assert y.tolist() == list(range(count))


def test_beside_many_buffers_a_result_and_constants(dev: ps.Device) -> None:
    most: Any = dev.info.limits["bindings"]
    count = min(12, most - 2)
    buffers = "".join(
        f"layout(binding = {3 * i + 1}) buffer B{i} {{ uint b{i}[]; }};\n" for i in range(count)
    )
    stores = "".join(f"b{i}[0] = block[{i}] * FACTOR;\n" for i in range(count))
    k = dev.kernel(
        f"""{ONE}{buffers}
        layout(constant_id = 3) const uint FACTOR = 1;
        layout(binding = 0) buffer Result {{ uint total; }};
        layout(push_constant) uniform P {{ uint block[200]; }};
        void main() {{ {stores} total = block[199] + FACTOR; }}
        """,
        constants={"FACTOR": 5},
    )
    arrays = {f"b{i}": dev.zeros(1, np.uint32) for i in range(count)}
    for base in (0, 1000):
        r = k(**arrays, block=np.arange(200) + base, groups=1)
        assert [array.item() for array in arrays.values()] == [5 * (base + i) for i in range(count)]
        assert r.result() == base + 199 + 5


def test_too_many_buffers_say_so(dev: ps.Device) -> None:
    """The block takes one more than the kernel declares."""
    most: Any = dev.info.limits["bindings"]
    if most > 64:
        pytest.skip(f"{dev.name} binds up to {most} buffers")
    buffers = "".join(
        f"layout(binding = {i}) buffer B{i} {{ uint b{i}[]; }};\n" for i in range(most)
    )
    code = f"{ONE}{buffers} layout(push_constant) uniform P {{ uint a[100]; }}; void main() {{}}"
    with pytest.raises(ps.Unsupported, match=f"uses {most + 1} buffers"):
        dev.kernel(code)


def test_old_spirv_is_refused_with_advice() -> None:
    code = bytearray(
        compile_glsl(source(*MEMBERS["scalars"][:3]), name="k", defines={}, include_dir=None)
    )
    code[4:8] = (0x00010000).to_bytes(4, "little")  # version 1.0
    with pytest.raises(ps.Unsupported, match=r"compile for 1\.3"):
        arguments_in_buffer(bytes(code), reflect(bytes(code)))


def test_bad_values_name_the_argument(dev: ps.Device) -> None:
    k = dev.kernel(source(*MEMBERS["scalars"][:3]), name="large")
    y = dev.zeros(3)
    good: dict[str, Any] = {"pad": np.zeros(100), "a": 1, "b": 1.0, "c": 1, "last": 1}
    for bad, error in (
        ({"pad": np.zeros(99)}, ps.ShapeMismatch),
        ({"a": -1}, ps.InvalidValue),
        ({"b": "x"}, ps.ArgumentError),
        ({"c": 1.5}, ps.DtypeMismatch),
        ({"a": y}, ps.ArgumentError),
    ):
        (name,) = bad
        with pytest.raises(error, match=f"large: argument {name!r}"):
            k(y=y, **{**good, **bad}, groups=1)
    with pytest.raises(ps.ArgumentError, match="'last' is missing"):
        k(y=y, **{n: v for n, v in good.items() if n != "last"}, groups=1)
