"""Public figures of devices with memory of their own, for arithmetic beside the measurements."""

from __future__ import annotations

#: Bytes per second each way: PCIe 4.0, 16 GT/s, 16 lanes, 128b/130b.
BUS = 16e9 * 16 * 128 / 130 / 8
BUS_NAME = "PCIe 4.0 x16 (31.5 GB/s each way)"
#: Seconds: a small read across PCIe and back is of this order (Neugebauer et al., SIGCOMM 2018).
TRIP = 1e-6
TRIP_NAME = "a round trip over PCIe, about 1 µs (Neugebauer et al., SIGCOMM 2018)"
#: Bytes per second: 384 bit of GDDR6X at 21 Gbit/s each.
MEMORY = 384 * 21e9 / 8
MEMORY_NAME = "the memory of a GeForce RTX 4090 (384 bit × 21 Gbit/s = 1,008 GB/s)"
#: Bytes of a model of 8 billion weights in Q8_0: 34 bytes hold 32 weights.
EIGHT_BILLION = 8e9 * 34 / 32


def over_bus(nbytes: float) -> float:
    """Seconds that bytes take across the bus."""
    return nbytes / BUS
