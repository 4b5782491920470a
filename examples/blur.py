"""Blur an image with slices and operators, with NumPy and on the device."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from picture import write_png

import penstock as ps

Image = npt.NDArray[np.float32]
WEIGHTS = (0.0625, 0.25, 0.375, 0.25, 0.0625)  # nearly a Gaussian


def with_numpy(image: Image) -> Image:
    """Blur the columns, turn the image, and do the same once more."""
    for _ in range(2):
        rows = len(image)
        padded = np.concatenate([image[:1]] * 2 + [image] + [image[-1:]] * 2)
        parts = [weight * padded[at : at + rows] for at, weight in enumerate(WEIGHTS)]
        image = (parts[0] + parts[1] + parts[2] + parts[3] + parts[4]).T
    return image


def on_device(image: ps.Array) -> ps.Array:
    """The same. Slices and `.T` are views, which the operators read in place."""
    xp = image.device.xp
    for _ in range(2):
        rows = len(image)
        padded = xp.concat([image[:1]] * 2 + [image] + [image[-1:]] * 2)
        parts = [weight * padded[at : at + rows] for at, weight in enumerate(WEIGHTS)]
        image = (parts[0] + parts[1] + parts[2] + parts[3] + parts[4]).T
    return image


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=256, help="pixels a side (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("blur.png"))
    given = parser.parse_args(argv)

    at = np.linspace(-1, 1, given.size)
    sharp = (255 * ((at[:, None] ** 2 + at**2) * 8 % 1 < 0.5)).astype(np.float32)

    with ps.Device(given.device) as dev:
        x = dev.xp.asarray(sharp)
        with ps.trace() as receipt:
            blurred = on_device(x)
        receipt.expect(waits=0)
        assert np.array_equal(blurred.numpy(), with_numpy(sharp))  # to the last bit
        write_png(given.output, np.hstack([sharp, blurred.numpy()]))
        print(receipt)
        print(f"{dev.name}: as NumPy computes it; before and after are in {given.output}")


if __name__ == "__main__":
    main()
