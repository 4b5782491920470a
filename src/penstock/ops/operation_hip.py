"""Elementwise kernels in HIP C++: one text for each function and its dtypes.

HIP has types of every size and compiles when a kernel is first used. So a text has one function,
its operands are always strided, and a thread computes an element at a time. Its arguments are those
of the strided GLSL text (`ops.operation_text`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.ops.arithmetic import TYPES, Compute, Function, cast
from penstock.ops.elements import Element
from penstock.ops.library import hip_source
from penstock.ops.operation_text import MOST_AXES

#: By dtype: the C++ type of an element in memory, and its number from it, and back.
_STORED = {
    "bool": ("unsigned char", "stored != 0", "(unsigned char)(a ? 1 : 0)"),
    "int8": ("signed char", "(int)stored", "(signed char)a"),
    "uint8": ("unsigned char", "(uint)stored", "(unsigned char)a"),
    "int16": ("short", "(int)stored", "(short)a"),
    "uint16": ("unsigned short", "(uint)stored", "(unsigned short)a"),
    "int32": ("int", "stored", "a"),
    "uint32": ("uint", "stored", "a"),
    "int64": ("ps_i64", "stored", "a"),
    "uint64": ("ps_u64", "stored", "a"),
    "float16": ("unsigned short", "ps_unpack_half(stored)", "(unsigned short)ps_pack_half(a)"),
    "bfloat16": (
        "unsigned short", "ps_unpack_bfloat(stored)", "(unsigned short)ps_pack_bfloat(a)",
    ),
    "float32": ("float", "stored", "a"),
    "float64": ("double", "stored", "a"),
    "complex64": ("vec2", "stored", "a"),
    "complex128": ("dvec2", "stored", "a"),
}  # fmt: skip


def signature(names: str) -> str:
    """The arguments of a text, as `shader.signature` declares them."""
    arrays = [f"in bytes {name}" for name in names]
    return ", ".join(
        (*arrays, "out bytes out_words", *(f"{kind} {name}" for kind, name in _arguments(names)))
    )


def _arguments(names: str) -> Iterator[tuple[str, str]]:
    """Type and name of every number among the arguments, in the order of the GLSL text."""
    yield from (("uint32", "count"), ("uint32", "first"))
    for axis in range(MOST_AXES - 1):
        yield from (("uint32", f"size_{axis}"), ("uint32", f"inverse_{axis}"))
    yield "uint32", "shifts"
    for name in names:
        yield "uint32", f"{name}_at"
        yield from (("int32", f"{name}_step_{axis}") for axis in range(MOST_AXES))
    for label in ("number", "third")[: max(1, len(names) - 1)]:
        yield from (("uint32", f"{label}_{part}") for part in range(4))


def write(
    function: Function | None,
    operands: Sequence[Element],
    compute: Element,
    out: Element,
    axes: int,
    numbers: int,
) -> str:
    """The text of a function, or without one of a conversion."""
    names = "abc"[: len(operands)]
    condition = function is not None and function.condition
    result: Compute = compute.compute if function is None else function.returns(compute.compute)
    value = "a" if function is None else function.expression(compute.compute)
    lines = [
        *(
            _loader(name, element, "b" if condition and name == "a" else compute.compute)
            for name, element in zip(names, operands, strict=True)
        ),
        _storer(result, out),
        *(_place(name, axes) for name in names),
        _kernel(names, value, condition, compute.compute, result, out.size, numbers),
    ]
    body = "\n".join(lines)
    types = {each.compute for each in (*operands, compute, out)} | {result}
    return hip_source(body, types) + body


def _loader(name: str, element: Element, target: Compute) -> str:
    kind, number, _ = _STORED[element.name]
    return (
        f"static __device__ {TYPES[target]} load_{name}(const void *at) {{\n"
        f"    {kind} stored;\n    memcpy(&stored, at, sizeof stored);\n"
        f"    {TYPES[element.compute]} a = {number};\n"
        f"    return {cast(element.compute, target)};\n}}"
    )


def _storer(source: Compute, element: Element) -> str:
    kind, _, stored = _STORED[element.name]
    return (
        f"static __device__ void store(void *at, {TYPES[source]} number) {{\n"
        f"    {TYPES[source]} a = number;\n"
        f"    {TYPES[element.compute]} own = {cast(source, element.compute)};\n"
        f"    {{ {TYPES[element.compute]} a = own; {kind} stored = {stored};\n"
        "      memcpy(at, &stored, sizeof stored); }\n}"
    )


def _place(name: str, axes: int) -> str:
    """The function that finds an operand's element."""
    parameters = "uint i, const uint *size, const int *step"
    lines = [f"static __device__ long long place_{name}({parameters}) {{"]
    lines.append("    long long place = 0;")
    for axis in range(axes - 1):
        lines.append(f"    place += (long long)(i % size[{axis}]) * step[{axis}];")
        lines.append(f"    i /= size[{axis}];")
    lines.append(f"    return place + (long long)i * step[{axes - 1}];\n}}")
    return "\n".join(lines)


def _kernel(
    names: str, value: str, condition: bool, compute: Compute, result: Compute, size: int,
    numbers: int,
) -> str:  # fmt: skip
    kinds = {"uint32": "uint", "int32": "int"}
    parameters = ", ".join(
        (
            *(f"const char *{name}_bytes" for name in names),
            "char *out_bytes",
            *(f"{kinds[kind]} {name}" for kind, name in _arguments(names)),
        )
    )
    lines = [f'extern "C" __global__ void operation({parameters}) {{']
    sizes = ", ".join(f"size_{axis}" for axis in range(MOST_AXES - 1))
    lines.append(f"    uint size[] = {{{sizes}}};")
    for index, name in enumerate(names):
        steps = ", ".join(f"{name}_step_{axis}" for axis in range(MOST_AXES))
        lines.append(f"    int {name}_step[] = {{{steps}}};")
        if numbers >> index & 1:
            label = "third" if name == "c" else "number"
            words = ", ".join(f"{label}_{part}" for part in range(4))
            lines.append(f"    uint {name}_words[] = {{{words}}};")
    lines.append("    uint step = gridDim.x * gridDim.y * blockDim.x;")
    lines.append("    uint at = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;")
    lines.append("    for (; at < count; at += step) {")
    for index, name in enumerate(names):
        kind = "bool" if condition and name == "a" else TYPES[compute]
        where = (
            f"{name}_words"
            if numbers >> index & 1
            else f"{name}_bytes + {name}_at + place_{name}(at, size, {name}_step)"
        )
        lines.append(f"        {kind} {name} = load_{name}({where});")
    lines.append(f"        {TYPES[result]} r = {value};")
    lines.append(f"        store(out_bytes + 4ull * first + {size}ull * at, r);")
    lines.append("        if (count - at <= step) break;  // the next would overflow")
    lines.append("    }\n}")
    return "\n".join(lines)
