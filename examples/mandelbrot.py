"""The Mandelbrot set, with NumPy and on the device, equal to the last pixel."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from picture import write_png

import penstock as ps

Floats = npt.NDArray[np.float32]
STEPS = 40


def with_numpy(re: Floats, im: Floats) -> npt.NDArray[np.int32]:
    """For each point, the steps after which z = z² + c is still within the circle of radius 2."""
    c, ci = np.meshgrid(re, im)
    z, zi = np.zeros_like(c), np.zeros_like(c)
    count = np.zeros(c.shape, np.int32)
    for _ in range(STEPS):
        inside = z * z + zi * zi < 4
        count += inside
        z, zi = np.where(inside, z * z - zi * zi + c, z), np.where(inside, 2 * z * zi + ci, zi)
    return count


def on_device(re: ps.Array, im: ps.Array) -> ps.Array:
    """The same. Each operator rounds as NumPy does, so every pixel is equal."""
    xp = re.device.xp
    c, ci = xp.meshgrid(re, im)
    z, zi = xp.zeros_like(c), xp.zeros_like(c)
    count = xp.zeros(c.shape, dtype=xp.int32)
    for _ in range(STEPS):
        inside = z * z + zi * zi < 4
        count += inside
        z, zi = xp.where(inside, z * z - zi * zi + c, z), xp.where(inside, 2 * z * zi + ci, zi)
    return count


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=256, help="rows of pixels (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("mandelbrot.png"))
    given = parser.parse_args(argv)

    re = np.linspace(-2.2, 0.8, given.size * 3 // 2).astype(np.float32)
    im = np.linspace(-1.2, 1.2, given.size).astype(np.float32)

    with ps.Device(given.device) as dev:
        x, y = dev.xp.asarray(re), dev.xp.asarray(im)
        with ps.trace() as receipt:
            count = on_device(x, y)
        receipt.expect(waits=0)
        assert np.array_equal(count.numpy(), with_numpy(re, im))
        write_png(given.output, 255 - 255 * count.numpy() // STEPS)
        print(receipt)
        print(f"{dev.name}: as NumPy computes it; the picture is in {given.output}")


if __name__ == "__main__":
    main()
