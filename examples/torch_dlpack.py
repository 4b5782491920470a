"""Let the device read a PyTorch tensor in place, and PyTorch read the resulting array in place.

Both go through DLPack, so neither library depends on the other. Where the device cannot import the
tensor's memory, Penstock copies it once, and the receipt says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import penstock as ps


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="part of a device's name (default: the best)")
    parser.add_argument("--size", type=int, default=1 << 20, help="elements (%(default)s)")
    given = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        sys.exit("this example needs PyTorch: pip install torch")

    with ps.Device(given.device) as dev:
        gelu = dev.elementwise(
            "y[i] = 0.5 * x[i] * (1 + tanh(0.7978845608 * (x[i] + 0.044715 * x[i] * x[i] * x[i])))",
            "in float32 x, out float32 y",
            name="gelu",
        )
        tensor = torch.linspace(-4, 4, given.size)
        with ps.trace() as receipt:
            x = dev.from_dlpack(tensor, name="x")
            y = gelu(x)
            result = torch.from_dlpack(y)  # shares y's memory; waits for the launch that writes it
        wanted = torch.nn.functional.gelu(tensor, approximate="tanh")
        assert torch.allclose(result, wanted, atol=1e-5)
        print(f"{dev.name}: gelu of {given.size:,} numbers, as PyTorch computes it")
        print(receipt)


if __name__ == "__main__":
    main()
