"""The smallest program: y = a x + y on the device, and the receipt of what it cost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import penstock as ps

SAXPY = """
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer X { float x[]; };
layout(binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Arguments { float a; uint n; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y[i] += a * x[i];
}
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=1 << 20, help="elements (%(default)s)")
    given = parser.parse_args(argv)

    with ps.Device(given.device) as dev:
        saxpy = dev.kernel(SAXPY, name="saxpy")
        x = dev.array(np.arange(given.size, dtype=np.float32), name="x")
        y = dev.ones(given.size, name="y")
        with ps.trace() as receipt:
            saxpy(x=x, y=y, a=2.0, n=x.size, threads=x.size)  # returns before it runs
            result = y.numpy()  # waits for saxpy, and for nothing else
        assert np.array_equal(result, 2 * np.arange(given.size, dtype=np.float32) + 1)
        print(f"{dev.name}: y[-1] = {result[-1]:,.0f}")
        print(receipt)


if __name__ == "__main__":
    main()
