"""Kernels that tests share. The slow ones keep the device busy before they touch their arrays."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps

Host = npt.NDArray[Any]

HEAD = "layout(local_size_x = 64) in;\n"

SAXPY = (
    HEAD
    + """
layout(binding = 0) readonly buffer X { float x[]; };
layout(binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform P { float a; uint n; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
)

_SPIN = """
uint spin_for(uint i) {
    uint h = i;
    for (uint k = 0; k < spin; ++k) h = h * 1664525u + 1013904223u;
    return (h == 1u && n == 0u) ? 1u : 0u;
}
"""

#: y = x, after a while.
SLOW_COPY = (
    HEAD
    + """
layout(binding = 0) readonly buffer X { uint x[]; };
layout(binding = 1) writeonly buffer Y { uint y[]; };
layout(push_constant) uniform P { uint n; uint spin; };
"""
    + _SPIN
    + """
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) { uint zero = spin_for(i); y[i] = x[i] + zero; }
}
"""
)

#: x = x + add, after a while.
SLOW_ADD = (
    HEAD
    + """
layout(binding = 0) buffer X { uint x[]; };
layout(push_constant) uniform P { uint n; uint spin; uint add; };
"""
    + _SPIN
    + """
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) { uint zero = spin_for(i); x[i] = x[i] + add + zero; }
}
"""
)

#: y[at] = a sum over an argument block that is too large for push constants, after a while.
BLOCK_SUM = (
    """
layout(local_size_x = 1) in;
layout(binding = 0) buffer Y { uint y[]; };
layout(push_constant) uniform P { uint at; uint n; uint spin; uint block[100]; };
"""
    + _SPIN
    + """
void main() {
    uint sum = spin_for(at);
    for (uint i = 0; i < 100; ++i) sum += (i + 1) * block[i];
    y[at] = sum;
}
"""
)

#: Returns x[0] + add, after a while. It does not read its result.
FIRST = (
    """
layout(local_size_x = 1) in;
layout(binding = 0) readonly buffer X { uint x[]; };
layout(binding = 1) writeonly buffer Result { uint value; };
layout(push_constant) uniform P { uint n; uint spin; uint add; };
"""
    + _SPIN
    + "void main() { uint zero = spin_for(n); value = x[0] + add + zero; }\n"
)

#: Returns how many of x are above a limit, and how many below. It counts in its result.
COUNT = (
    HEAD
    + """
layout(binding = 0) readonly buffer X { uint x[]; };
layout(binding = 1) buffer Result { uint above; uint below; };
layout(push_constant) uniform P { uint n; uint limit; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) { if (x[i] > limit) atomicAdd(above, 1); else atomicAdd(below, 1); }
}
"""
)

#: Adds to every texel of w.
ADD_TEXELS = (
    HEAD
    + """
layout(binding = 0, r32ui) uniform uimageBuffer w;
layout(push_constant) uniform P { uint n; uint add; };
void main() {
    int i = int(gl_GlobalInvocationID.x);
    if (i < n) imageStore(w, i, imageLoad(w, i) + add);
}
"""
)

#: The kernels in HIP C++: signature, size of a group, and body.
HIP = {
    SAXPY: (
        "in float32 x, inout float32 y, float32 a, uint32 n",
        64,
        "if (i < n) y[i] = a * x[i] + y[i];",
    ),
    SLOW_COPY: (
        "in uint32 x, out uint32 y, uint32 n, uint32 spin",
        64,
        "if (i < n) y[i] = spin_for(i, spin, n) + x[i];",
    ),
    SLOW_ADD: (
        "inout uint32 x, uint32 n, uint32 spin, uint32 add",
        64,
        "if (i < n) { uint zero = spin_for(i, spin, n); x[i] = x[i] + add + zero; }",
    ),
    BLOCK_SUM: (
        "inout uint32 y, uint32 at, uint32 n, uint32 spin, uint32 block[100]",
        1,
        "uint sum = spin_for(at, spin, n);"
        "for (uint k = 0; k < 100; ++k) sum += (k + 1) * block.block[k]; y[at] = sum;",
    ),
    FIRST: (
        "in uint32 x, uint32 n, uint32 spin, uint32 add -> uint32 value",
        1,
        "result->value = spin_for(n, spin, n) + x[0] + add;",
    ),
    COUNT: (
        "in uint32 x, uint32 n, uint32 limit -> uint32 above, uint32 below",
        64,
        "if (i < n) atomicAdd(x[i] > limit ? &result->above : &result->below, 1u);",
    ),
}

SLOW = 60_000  # rounds: some milliseconds on the CPU drivers, for 1,024 elements

_kernels: weakref.WeakKeyDictionary[ps.Device, dict[str, ps.Kernel]] = weakref.WeakKeyDictionary()


def _saxpy(x: Host, y: Host, a: float, n: int, threads: object) -> None:
    y[:n] += np.float32(a) * x[:n]


def _copy(x: Host, y: Host, n: int, spin: int, threads: object) -> None:
    y[:n] = x[:n]


def _add(x: Host, n: int, spin: int, add: int, threads: object) -> None:
    x[:n] += np.uint32(add)


def _block_sum(y: Host, at: int, n: int, spin: int, block: Host, threads: object) -> None:
    y[at] = block_sum_of(block)


def _first(x: Host, result: dict[str, Host], n: int, spin: int, add: int, threads: object) -> None:
    result["value"][...] = x[0] + np.uint32(add)


def _count(x: Host, result: dict[str, Host], n: int, limit: int, threads: object) -> None:
    result["above"] += np.uint32((x[:n] > limit).sum())
    result["below"] += np.uint32((x[:n] <= limit).sum())


def _add_texels(w: Host, n: int, add: int, threads: object) -> None:
    w[:n] += np.uint32(add)


#: The kernels as Python functions, for the simulator.
REFERENCES = {
    SAXPY: _saxpy,
    SLOW_COPY: _copy,
    SLOW_ADD: _add,
    BLOCK_SUM: _block_sum,
    FIRST: _first,
    COUNT: _count,
    ADD_TEXELS: _add_texels,
}


def kernel(device: ps.Device, source: str, name: str = "") -> ps.Kernel:
    """A kernel, made once per device."""
    made = _kernels.setdefault(device, {})
    if source not in made:
        made[source] = new_kernel(device, source, name)
    return made[source]


def new_kernel(
    device: ps.Device, source: str, name: str = "", reference: Any = None, hip: Any = None
) -> ps.Kernel:
    """A kernel in the language of the device; `hip` is its signature, size of a group, and body."""
    if device.info.driver == "hip":
        return device.kernel(**_in_hip(*(hip or HIP[source])), name=name)
    return device.kernel(source, name=name, reference=reference or REFERENCES.get(source))


def _in_hip(signature: str, group: int, body: str) -> dict[str, Any]:
    """What to make a kernel from that is HIP C++."""
    before, _, returned = signature.partition(" -> ")
    types = {"uint32": "uint", "float32": "float"}
    declared = []
    wrapped = ""
    for part in before.split(", "):
        words = part.split()
        const = "const " if words[0] == "in" else ""
        kind, called = types[words[-2]], words[-1]
        if called.endswith("]"):  # several numbers come in a structure
            called, length = called[:-1].split("[")
            wrapped += f"struct Of_{called} {{ {kind} {called}[{length}]; }};\n"
            declared.append(f"Of_{called} {called}")
        else:
            declared.append(f"{const}{kind} {'*' if len(words) == 3 else ''}{called}")
    if returned:
        members = " ".join(f"uint {part.split()[1]};" for part in returned.split(", "))
        wrapped += f"struct Result {{ {members} }};\n"
        declared.append("Result *result")
    text = f"""
typedef unsigned int uint;
{wrapped}
static __device__ uint spin_for(uint i, uint spin, uint n) {{
    uint h = i;
    for (uint k = 0; k < spin; ++k) h = h * 1664525u + 1013904223u;
    return (h == 1u && n == 0u) ? 1u : 0u;
}}
extern "C" __global__ void work({", ".join(declared)}) {{
    uint i = blockIdx.x * blockDim.x + threadIdx.x;
    {body}
}}
"""
    return {"source": text, "signature": signature, "group_size": group}


saxpy = functools.partial(kernel, source=SAXPY, name="saxpy")


def slow_copy(x: ps.Array, y: ps.Array, stream: ps.Stream | None = None, spin: int = SLOW) -> None:
    run = kernel(x.device, SLOW_COPY, "slow_copy")
    run(x=x, y=y, n=x.size, spin=spin, threads=x.size, stream=stream)


def slow_add(x: ps.Array, add: int, stream: ps.Stream | None = None, spin: int = SLOW) -> None:
    run = kernel(x.device, SLOW_ADD, "slow_add")
    run(x=x, n=x.size, spin=spin, add=add, threads=x.size, stream=stream)


def add_texels(x: ps.Array, add: int) -> None:
    run = kernel(x.device, ADD_TEXELS, "add_texels")
    run(w=x, n=x.size, add=add, threads=x.size)


def block_sum_of(block: Host) -> int:
    """What `BLOCK_SUM` makes of an argument block."""
    return int((np.arange(1, 101) * block).sum()) % 2**32


def block_sum(
    y: ps.Array, at: int, block: Host, stream: ps.Stream | None = None, spin: int = 0
) -> None:
    run = kernel(y.device, BLOCK_SUM, "block_sum")
    run(y=y, at=at, n=1, spin=spin, block=block, groups=1, stream=stream)


def first(
    x: ps.Array, add: int, stream: ps.Stream | None = None, spin: int = 0, groups: Any = 1
) -> Any:
    run = kernel(x.device, FIRST, "first")
    return run(x=x, n=1, spin=spin, add=add, stream=stream, groups=groups)


def count(x: ps.Array, limit: int, stream: ps.Stream | None = None) -> Any:
    run = kernel(x.device, COUNT, "count")
    return run(x=x, n=x.size, limit=limit, threads=x.size, stream=stream)
