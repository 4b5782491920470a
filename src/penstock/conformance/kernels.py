"""Kernels with every access mode, each as GLSL, as HIP C++, and as its Python reference.

All work on `n` elements of uint32, one per invocation. A kernel spins for `spin` iterations before
it touches its arrays, so that a transfer out of order gives wrong results on a real device. Two of
them also exist with a texel buffer in place of the storage buffer `x`, and use that one where the
device can view the array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.shader.glsl import compile_glsl

Host = npt.NDArray[Any]

SLOW = 20_000  # iterations; a fraction of a millisecond for the few elements of a program

_SOURCE = """
layout(local_size_x = 64) in;
{bindings}
layout(push_constant) uniform P {{ uint n; uint spin; uint a;{numbers} }};
uint spin_for(uint i) {{
    uint h = i;
    for (uint k = 0; k < spin; ++k) h = h * 1664525u + 1013904223u;
    return (h == 1u && n == 0u) ? 1u : 0u;
}}
void main() {{
    uint i = gl_GlobalInvocationID.x;
    if (i < n) {{ uint zero = spin_for(i); {body} }}
}}
"""
_HIP_SOURCE = """
typedef unsigned int uint;
{result}
extern "C" __global__ void {name}({parameters}) {{
    uint i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint h = i;
    for (uint k = 0; k < spin; ++k) h = h * 1664525u + 1013904223u;
    uint zero = (h == 1u && n == 0u) ? 1u : 0u;
    {body}
}}
"""
_NUMBERS = ("n", "spin", "a")
_MODE = {"r": "in", "w": "out", "rw": "inout"}
_QUALIFIER = {"r": "readonly", "w": "writeonly", "rw": ""}
_TEXELS = {"r": ") uniform usamplerBuffer", "w": ", r32ui) uniform writeonly uimageBuffer"}


@dataclass(frozen=True)
class Definition:
    """A kernel: its arrays with their access modes, its body, and its effect on NumPy arrays."""

    arrays: tuple[tuple[str, str], ...]
    body: str
    apply: Callable[..., None]
    texels: str = ""  # the body if `x` is a texel buffer, whose first texel is x0

    @property
    def source(self) -> str:
        return self._source(self.body, "")

    @property
    def texel_source(self) -> str:
        return self._source(self.texels, " uint x0;")

    def _source(self, body: str, numbers: str) -> str:
        bindings = "\n".join(
            f"layout(binding = {number}{_TEXELS[access]} x;"
            if numbers and name == "x"
            else f"layout(binding = {number}) {_QUALIFIER[access]} "
            f"buffer B{number} {{ uint {name}[]; }};"
            for number, (name, access) in enumerate(self.arrays)
        )
        return _SOURCE.format(bindings=bindings, body=body, numbers=numbers)

    def hip(self, name: str) -> tuple[str, str]:
        """The kernel in HIP C++, and its signature."""
        pointers = [f"{'const ' * (access == 'r')}uint *{array}" for array, access in self.arrays]
        arrays = [f"{_MODE[access]} uint32 {array}" for array, access in self.arrays]
        parameters = ", ".join(pointers + [f"uint {number}" for number in _NUMBERS])
        source = _HIP_SOURCE.format(result="", name=name, parameters=parameters, body=self.body)
        return source, ", ".join(arrays + [f"uint32 {number}" for number in _NUMBERS])

    def reference(
        self, *, n: int, spin: int, a: int, threads: object, x0: int = 0, **arrays: Host
    ) -> None:
        arrays["x"] = arrays["x"][x0:]
        self.apply(*(arrays[name][:n] for name, _ in self.arrays), np.uint32(a))


def _copy(x: Host, y: Host, a: np.uint32) -> None:
    y[:] = x + a


def _add(x: Host, a: np.uint32) -> None:
    x += a


def _store(x: Host, a: np.uint32) -> None:
    x[:] = a + np.arange(len(x), dtype=np.uint32)


def _sparse(x: Host, a: np.uint32) -> None:
    x[::2] = a


def _sum(x: Host, y: Host, z: Host, a: np.uint32) -> None:
    z[:] = x + y + a


def _mix(x: Host, y: Host, a: np.uint32) -> None:
    y[:] = y * np.uint32(3) + x + a


KERNELS = {
    "copy": Definition((("x", "r"), ("y", "w")), "y[i] = x[i] + a + zero;", _copy),
    "add": Definition((("x", "rw"),), "x[i] = x[i] + a + zero;", _add),
    "store": Definition((("x", "w"),), "x[i] = a + i + zero;", _store),
    # Write-only, but writes every second element: the others must keep their values.
    "sparse": Definition(
        (("x", "w"),), "if (i % 2 == 0) x[i] = a + zero;", _sparse,
        "if (i % 2 == 0) imageStore(x, int(x0 + i), uvec4(a + zero));",
    ),
    "sum": Definition((("x", "r"), ("y", "r"), ("z", "w")), "z[i] = x[i] + y[i] + a + zero;", _sum),
    "mix": Definition(
        (("x", "r"), ("y", "rw")), "y[i] = y[i] * 3 + x[i] + a + zero;", _mix,
        "y[i] = y[i] * 3 + texelFetch(x, int(x0 + i)).x + a + zero;",
    ),
}  # fmt: skip


def _total(x: Host, result: dict[str, Host], n: int, spin: int, a: int, threads: object) -> None:
    result["total"][...] = np.uint32(a) + x[:n].sum(dtype=np.uint32)


#: Eight elements per iteration: lavapipe ends all loops of an invocation after 65,535 iterations in
#: total.
_ADD = (
    "uint s = a + zero; for (uint k = 0; k < n; k += 8) { "
    + " ".join(f"if (k + {at} < n) s += x[k + {at}];" for at in range(8))
    + " }"
)

#: A kernel with a result.
TOTAL = _SOURCE.format(
    bindings="layout(binding = 0) readonly buffer X { uint x[]; };\n"
    "layout(binding = 1) writeonly buffer Result { uint total; };",
    body=f"if (i == 0) {{ {_ADD} total = s; }}",
    numbers="",
)


_TOTAL_HIP = (
    _HIP_SOURCE.format(
        result="struct Result { uint total; };",
        name="total",
        parameters="const uint *x, uint n, uint spin, uint a, Result *result",
        body=f"if (i == 0) {{ {_ADD} result->total = s; }}",
    ),
    "in uint32 x, uint32 n, uint32 spin, uint32 a -> uint32 total",
)


class Kernels:
    """The kernels of one device; makes each on first use."""

    def __init__(self, device: ps.Device) -> None:
        self._device = device
        self._made: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self._made:
            made: Callable[..., Any]
            device = self._device
            if device.info.driver == "hip":
                source, signature = _TOTAL_HIP if name == "total" else KERNELS[name].hip(name)
                made = device.kernel(source, name=name, signature=signature, group_size=64)
            else:
                reference = _total if name == "total" else KERNELS[name].reference
                made = device.kernel(_spirv(name), name=name, reference=reference)
                if name in KERNELS and KERNELS[name].texels:
                    code = _spirv(name, texels=True)
                    made = WithTexels(made, device.kernel(code, name=name, reference=reference))
            self._made[name] = made
        return self._made[name]


class WithTexels:
    """A kernel in two forms: `x` is a texel buffer, or a storage buffer if it is too large."""

    def __init__(self, plain: ps.Kernel, texels: ps.Kernel) -> None:
        self._plain = plain
        self._texels = texels
        self._most: Any = plain.device.info.limits["texel_elements"]

    def __call__(self, *, x: Any, **given: Any) -> Any:
        if not isinstance(x, ps.Array):
            return self._texels(x=x, x0=0, **given)
        seen, first = x.texels("r32ui")
        if first + seen.size > self._most:
            return self._plain(x=x, **given)
        return self._texels(x=seen, x0=first, **given)


@functools.cache
def _spirv(name: str, *, texels: bool = False) -> bytes:
    if name == "total":
        return compile_glsl(TOTAL, name=name)
    found = KERNELS[name]
    return compile_glsl(found.texel_source if texels else found.source, name=name)
