"""Give every row of a table mean 0 and variance 1, with NumPy and on the device."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import penstock as ps

Floats = npt.NDArray[np.float32]


def with_numpy(x: Floats) -> Floats:
    centred: Floats = x - x.mean(axis=1, keepdims=True)
    scaled: Floats = centred / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return scaled


def on_device(x: ps.Array) -> ps.Array:
    xp = x.device.xp
    centred = x - x.mean(axis=1, keepdims=True)
    scaled: ps.Array = centred / xp.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return scaled


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=2_000, help="rows (%(default)s)")
    given = parser.parse_args(argv)

    table = np.random.default_rng(1).gamma(2.0, size=(given.size, 300)).astype(np.float32)

    with ps.Device(given.device) as dev:
        x = dev.xp.asarray(table)
        with ps.trace() as receipt:
            made = on_device(x)
        receipt.expect(waits=0)
        assert np.allclose(made.numpy(), with_numpy(table), atol=1e-5)
        print(receipt)
        print(made)
        print(f"{dev.name}: the rows are as NumPy computes them")


if __name__ == "__main__":
    main()
