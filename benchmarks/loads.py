"""What a load of 16 bytes costs a kernel: through a storage buffer, a uniform block, texel buffers.

One group of a subgroup's size loads `uvec4`s side by side, again and again, from 64 KiB, which a
uniform block can have on most devices. So the loads hit a cache, and the times are those of the
shader's way to it. A row is the time of one load by the whole subgroup; the time of the same loop
without loads, which each row includes, is a row of its own.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import numpy.typing as npt

import penstock as ps
from benchmarks.tables import Row, Section
from penstock.bench.measure import Case, expect, interleave

Host = npt.NDArray[np.uint32]

BYTES = 65536
AT_ONCE = 8  # loads in an iteration
ITERATIONS = 8191  # odd, so that the result is not nothing; lavapipe runs at most 65,535

_SOURCE = """
layout(local_size_x = {lanes}) in;
{binding}
layout(binding = 1) writeonly buffer Y {{ uint y[]; }};
layout(push_constant) uniform P {{ uint iterations; uint mask; }};
void main() {{
    uint lane = gl_LocalInvocationID.x;
    uvec4 all = uvec4(0);
    uint at = lane;
    uint k = 0;
    do {{
        {loads}
        at = (at + {step}u) & mask;
    }} while (++k < iterations);
    y[lane] = all.x ^ all.y ^ all.z ^ all.w;
}}
"""
#: The binding, and the load of an element.
WAYS = {
    "no load": ("layout(binding = 0) readonly buffer X { uvec4 x[]; };", "uvec4({at})"),
    "storage buffer": ("layout(binding = 0) readonly buffer X { uvec4 x[]; };", "x[{at}]"),
    "uniform block": (
        f"layout(binding = 0) uniform X {{ uvec4 x[{BYTES // 16}]; }};",
        "x[{at}]",
    ),
    "texel buffer": ("layout(binding = 0) uniform usamplerBuffer x;", "texelFetch(x, int({at}))"),
    "image": (
        "layout(binding = 0, rgba32ui) uniform readonly uimageBuffer x;",
        "imageLoad(x, int({at}))",
    ),
}


def run(device: ps.Device, repeat: int) -> list[Section]:
    lanes = int(str(device.info.limits["subgroup_size"]))
    content = np.random.default_rng(0).integers(0, 1 << 32, BYTES // 4, np.uint32)
    x, y = device.array(content), device.zeros(lanes, np.uint32)
    kernels = {way: _kernel(device, way, lanes) for way in WAYS}
    cases: dict[str, Case] = {
        way: partial(_timed, device, kernel, x, y) for way, kernel in kernels.items()
    }
    for way, kernel in kernels.items():
        _timed(device, kernel, x, y)
        if way != "no load":
            expect((y.numpy() == _expected(content, lanes)).all(), way)
    samples = interleave(cases, repeat)
    loads = ITERATIONS * AT_ONCE
    base = samples["no load"].minimum
    rows: list[Row] = [
        {
            "way": way,
            "median_ns": samples[way].median / loads * 1e9,
            "min_ns": samples[way].minimum / loads * 1e9,
            "min_ns_without_the_loop": (samples[way].minimum - base) / loads * 1e9,
        }
        for way in WAYS
    ]
    title = f"one load of {lanes} × 16 bytes, by the way in which the array is bound"
    note = f"{repeat} interleaved rounds of {loads:,} loads; every way's result is checked"
    return [Section(title, rows, (note,))]


def _kernel(device: ps.Device, way: str, lanes: int) -> ps.Kernel:
    binding, load = WAYS[way]
    loads = "\n        ".join(
        f"all ^= {load.format(at=f'(at + {number * lanes}u) & mask')};" for number in range(AT_ONCE)
    )
    source = _SOURCE.format(lanes=lanes, binding=binding, loads=loads, step=AT_ONCE * lanes)
    formats = {"x": "rgba32ui"} if way == "texel buffer" else None
    return device.kernel(source, name=way.replace(" ", "_"), formats=formats)


def _timed(device: ps.Device, kernel: ps.Kernel, x: ps.Array, y: ps.Array) -> float:
    start = time.perf_counter()
    kernel(x=x, y=y, iterations=ITERATIONS, mask=BYTES // 16 - 1, groups=1)
    device.synchronize()
    return time.perf_counter() - start


def _expected(content: Host, lanes: int) -> Host:
    """The exclusive or of all that each lane loads; loading everything twice gives nothing."""
    rows = np.bitwise_xor.reduce(content.reshape(-1, 4), axis=1).reshape(-1, lanes)
    left = ITERATIONS * AT_ONCE % (2 * len(rows))
    found: Host = np.bitwise_xor.reduce(np.concatenate((rows, rows))[:left], axis=0)
    return found
