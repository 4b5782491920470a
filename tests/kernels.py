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


#: The kernels as Python functions, for the simulator.
REFERENCES = {
    SAXPY: _saxpy,
    SLOW_COPY: _copy,
    SLOW_ADD: _add,
    BLOCK_SUM: _block_sum,
    FIRST: _first,
    COUNT: _count,
}


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
