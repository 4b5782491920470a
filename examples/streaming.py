"""Read results back as a stream: while the host works on one block, the device computes the next.

`x.read()` returns the value at its place in the program: the next launch may overwrite the array
immediately, and the read still returns the earlier value. So one array is enough, the program needs
no double buffering, and launching blocks never waits.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

import penstock as ps

AHEAD = 3  # blocks in flight while the host works on one


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=1 << 18, help="elements a block (%(default)s)")
    parser.add_argument("--blocks", type=int, default=32, help="(%(default)s)")
    given = parser.parse_args(argv)

    with ps.Device(given.device) as dev, ps.trace() as receipt:
        total = 0.0
        for number, block in enumerate(blocks(dev, given.size, given.blocks)):
            assert block[-1] == np.float32(number) * np.float32(given.size - 1)
            total += float(block.mean(dtype=np.float64))
        print(f"{dev.name}: {given.blocks} blocks, the mean of all is {total / given.blocks:,.1f}")
        print(f"launches {receipt.launches}, waits {receipt.waits}")
        for event in receipt.of_kind("wait")[:3]:
            print(f"  {event.reason}")


def blocks(dev: ps.Device, size: int, count: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the blocks in order, computed ahead of the consumer."""
    fill = dev.elementwise("y[i] = number * float(i)", "out float32 y, float32 number", name="fill")
    y = dev.empty(size, name="block")
    coming: deque[ps.Pending[npt.NDArray[np.float32]]] = deque()
    for number in range(count):
        fill(y=y, number=float(number))
        coming.append(y.read())
        if len(coming) > AHEAD:
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()


if __name__ == "__main__":
    main()
