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

SLOW = 60_000  # rounds: some milliseconds on the CPU drivers, for 1,024 elements

_kernels: weakref.WeakKeyDictionary[ps.Device, dict[str, ps.Kernel]] = weakref.WeakKeyDictionary()


def _saxpy(x: Host, y: Host, a: float, n: int, threads: object) -> None:
    y[:n] += np.float32(a) * x[:n]


def _copy(x: Host, y: Host, n: int, spin: int, threads: object) -> None:
    y[:n] = x[:n]


def _add(x: Host, n: int, spin: int, add: int, threads: object) -> None:
    x[:n] += np.uint32(add)


#: The kernels as Python functions, for the simulator.
REFERENCES = {SAXPY: _saxpy, SLOW_COPY: _copy, SLOW_ADD: _add}


def kernel(device: ps.Device, source: str, name: str = "") -> ps.Kernel:
    """A kernel, made once per device."""
    made = _kernels.setdefault(device, {})
    if source not in made:
        made[source] = device.kernel(source, name=name, reference=REFERENCES.get(source))
    return made[source]


saxpy = functools.partial(kernel, source=SAXPY, name="saxpy")


def slow_copy(x: ps.Array, y: ps.Array, stream: ps.Stream | None = None, spin: int = SLOW) -> None:
    run = kernel(x.device, SLOW_COPY, "slow_copy")
    run(x=x, y=y, n=x.size, spin=spin, threads=x.size, stream=stream)


def slow_add(x: ps.Array, add: int, stream: ps.Stream | None = None, spin: int = SLOW) -> None:
    run = kernel(x.device, SLOW_ADD, "slow_add")
    run(x=x, n=x.size, spin=spin, add=add, threads=x.size, stream=stream)
