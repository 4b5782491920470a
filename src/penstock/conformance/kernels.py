"""Kernels with every access mode, each as GLSL, as HIP C++, and as its Python reference.

All work on `n` elements of uint32, one per invocation. A kernel spins for `spin` iterations before
it touches its arrays, so that a transfer out of order gives wrong results on a real device.
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
layout(push_constant) uniform P {{ uint n; uint spin; uint a; }};
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


@dataclass(frozen=True)
class Definition:
    """A kernel: its arrays with their access modes, its body, and its effect on NumPy arrays."""

    arrays: tuple[tuple[str, str], ...]
    body: str
    apply: Callable[..., None]

    @property
    def source(self) -> str:
        bindings = "\n".join(
            f"layout(binding = {number}) {_QUALIFIER[access]} "
            f"buffer B{number} {{ uint {name}[]; }};"
            for number, (name, access) in enumerate(self.arrays)
        )
        return _SOURCE.format(bindings=bindings, body=self.body)

    def hip(self, name: str) -> tuple[str, str]:
        """The kernel in HIP C++, and its signature."""
        pointers = [f"{'const ' * (access == 'r')}uint *{array}" for array, access in self.arrays]
        arrays = [f"{_MODE[access]} uint32 {array}" for array, access in self.arrays]
        parameters = ", ".join(pointers + [f"uint {number}" for number in _NUMBERS])
        source = _HIP_SOURCE.format(result="", name=name, parameters=parameters, body=self.body)
        return source, ", ".join(arrays + [f"uint32 {number}" for number in _NUMBERS])

    def reference(self, *, n: int, spin: int, a: int, threads: object, **arrays: Host) -> None:
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
    "sparse": Definition((("x", "w"),), "if (i % 2 == 0) x[i] = a + zero;", _sparse),
    "sum": Definition((("x", "r"), ("y", "r"), ("z", "w")), "z[i] = x[i] + y[i] + a + zero;", _sum),
    "mix": Definition((("x", "r"), ("y", "rw")), "y[i] = y[i] * 3 + x[i] + a + zero;", _mix),
}


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
        self._made: dict[str, ps.Kernel] = {}

    def __getitem__(self, name: str) -> ps.Kernel:
        if name not in self._made:
            device = self._device
            if device.info.driver == "hip":
                source, signature = _TOTAL_HIP if name == "total" else KERNELS[name].hip(name)
                made = device.kernel(source, name=name, signature=signature, group_size=64)
            else:
                reference = _total if name == "total" else KERNELS[name].reference
                made = device.kernel(_spirv(name), name=name, reference=reference)
            self._made[name] = made
        return self._made[name]


@functools.cache
def _spirv(name: str) -> bytes:
    return compile_glsl(TOTAL if name == "total" else KERNELS[name].source, name=name)
