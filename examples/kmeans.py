"""k-means: group points around centres, with NumPy and on the device, by the same lines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import penstock as ps

Floats = npt.NDArray[np.float32]
STEPS = 10


def with_numpy(points: Floats, centres: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The centres after some steps, and the centre that each point is nearest to."""
    for _ in range(STEPS):
        distances = ((points[:, None, :] - centres) ** 2).sum(axis=2)
        nearest = distances.argmin(axis=1)
        belongs = (nearest[:, None] == np.arange(len(centres))).astype(np.float32)
        centres = belongs.T @ points / belongs.sum(axis=0)[:, None]
    return centres, nearest


def on_device(points: ps.Array, centres: ps.Array) -> tuple[ps.Array, ps.Array]:
    """The same. Nothing in the loop waits or leaves the device."""
    xp = points.device.xp
    for _ in range(STEPS):
        distances = ((points[:, None, :] - centres) ** 2).sum(axis=2)
        nearest = distances.argmin(axis=1)
        belongs = (nearest[:, None] == xp.arange(len(centres))).astype(np.float32)
        centres = belongs.T @ points / belongs.sum(axis=0)[:, None]
    return centres, nearest


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=20_000, help="points (%(default)s)")
    given = parser.parse_args(argv)

    random = np.random.default_rng(1)
    middles = np.array([[0, 0], [4, 1], [1, 5], [6, 6]], np.float32)
    noise = random.normal(scale=0.5, size=(given.size, 2)).astype(np.float32)
    points: Floats = middles[np.arange(given.size) % len(middles)] + noise
    wanted, groups = with_numpy(points, points[:4])

    with ps.Device(given.device) as dev:
        x = dev.xp.asarray(points)
        with ps.trace() as receipt:
            centres, nearest = on_device(x, x[:4])
        receipt.expect(waits=0)
        assert np.allclose(centres.numpy(), wanted, atol=1e-4)
        assert np.array_equal(nearest.numpy(), groups)
        print(receipt)
        print(centres)
        print(f"{dev.name}: centres and groups are as NumPy computes them")


if __name__ == "__main__":
    main()
