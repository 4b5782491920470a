"""Filter a NumPy image that the device reads and writes in place: nothing is copied.

`dev.host_empty` returns an ordinary NumPy array in memory that the device can adopt. A median
filter removes specks from the image in it; the picture written at the end shows before and after.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from picture import write_png

import penstock as ps

MEDIAN = """
// The median of each pixel's 3 x 3 neighbourhood; one invocation per pixel.
layout(local_size_x = 8, local_size_y = 8) in;
layout(binding = 0) readonly buffer Before { float before[]; };
layout(binding = 1) writeonly buffer After { float after[]; };
layout(push_constant) uniform Arguments { int width; int height; };

void main() {
    ivec2 at = ivec2(gl_GlobalInvocationID.xy), last = ivec2(width - 1, height - 1);
    if (any(greaterThan(at, last))) return;
    float near[9];
    for (int k = 0; k < 9; ++k) {
        ivec2 from = clamp(at + ivec2(k % 3 - 1, k / 3 - 1), ivec2(0), last);
        float value = before[from.y * width + from.x];
        int j = k;
        for (; j > 0 && near[j - 1] > value; --j) near[j] = near[j - 1];
        near[j] = value;
    }
    after[at.y * width + at.x] = near[4];
}
"""
Image = npt.NDArray[np.float32]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=512, help="pixels a side (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("image_filter.png"))
    given = parser.parse_args(argv)

    with ps.Device(given.device) as dev:
        median = dev.kernel(MEDIAN, name="median")
        size = given.size
        before, after = (dev.host_empty((size, size)) for _ in range(2))
        before[:] = rings_with_specks(size)
        x, y = dev.adopt(before, name="before"), dev.adopt(after, name="after")
        with ps.trace() as receipt:
            median(before=x, after=y, width=size, height=size, threads=(size, size))
            shown = y.view()  # waits for the filter; shares the memory of `after`
        receipt.expect(copies=0)
        assert np.array_equal(shown, median_of(before))
        write_png(given.output, np.hstack([before, np.full((size, 8), 255), shown]))
        print(receipt)
        print(f"{dev.name}: before and after are in {given.output}")


def rings_with_specks(size: int) -> Image:
    """Return a test image: rings, with one pixel in twelve black or white."""
    at = np.linspace(-1, 1, size)
    rings = 127.5 + 100 * np.cos(40 * (at[:, None] ** 2 + at[None, :] ** 2))
    random = np.random.default_rng(1)
    specks = random.random((size, size))
    rings[specks < 1 / 24] = 0
    rings[specks > 23 / 24] = 255
    return rings.astype(np.float32)


def median_of(image: Image) -> npt.NDArray[Any]:
    """Compute the same filter in NumPy, to check the result."""
    padded = np.pad(image, 1, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    return np.median(windows, axis=(2, 3)).astype(np.float32)


if __name__ == "__main__":
    main()
