"""Count values by interval, with NumPy and on the device."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import penstock as ps

Floats = npt.NDArray[np.float32]


def with_numpy(values: Floats, edges: Floats) -> npt.NDArray[np.int64]:
    return np.histogram(values, edges)[0]


def on_device(values: ps.Array, edges: ps.Array) -> ps.Array:
    """Sort the values; the places of the edges among them say how many lie between."""
    xp = values.device.xp
    ordered = xp.sort(values)
    below = xp.searchsorted(ordered, edges[:-1])
    last = xp.searchsorted(ordered, edges[-1:], side="right")  # the last interval is closed
    return xp.diff(xp.concat([below, last]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=100_000, help="values (%(default)s)")
    given = parser.parse_args(argv)

    values = np.random.default_rng(1).normal(size=given.size).astype(np.float32)
    edges = np.linspace(-3, 3, 13).astype(np.float32)

    with ps.Device(given.device) as dev:
        x, bounds = dev.xp.asarray(values), dev.xp.asarray(edges)
        with ps.trace() as receipt:
            counts = on_device(x, bounds)
        receipt.expect(waits=0)
        assert np.array_equal(counts.numpy(), with_numpy(values, edges))
        print(receipt)
        for low, count in zip(edges, counts.numpy(), strict=False):
            print(f"{low:5.1f} {'#' * int(count * 200 / given.size)} {count}")
        print(f"{dev.name}: the counts are as NumPy computes them")


if __name__ == "__main__":
    main()
