"""random.comp in NumPy, for the simulator, and for what the host needs of Philox itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.ops.quantiles import DEGREES, PARTS

Host = npt.NDArray[Any]

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
ROUNDS = 12  # of a permutation


def philox(counter: Host, key: tuple[int, int]) -> Host:
    """Philox4x32-10 of counters in rows of four uint32; returns rows of four uint32."""
    c0, c1, c2, c3 = (counter[..., n].astype(np.uint64) for n in range(4))
    for n in range(10):
        k0 = np.uint64((key[0] + n * 0x9E3779B9) & 0xFFFFFFFF)
        k1 = np.uint64((key[1] + n * 0xBB67AE85) & 0xFFFFFFFF)
        one, other = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (other >> _SHIFT) ^ c1 ^ k0, other & _LOW, (one >> _SHIFT) ^ c3 ^ k1, one & _LOW
        )  # fmt: skip
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def drawn(first: int, blocks: int, key: tuple[int, int], retry: int = 0) -> Host:
    """Rows of four words: `blocks` consecutive ones from block `first` on."""
    numbers = np.arange(blocks, dtype=np.uint64) + np.uint64(first)
    counter = np.zeros((blocks, 4), np.uint32)
    counter[:, 0], counter[:, 1] = numbers & _LOW, numbers >> _SHIFT
    counter[:, 2] = retry
    return philox(counter, key)


def quantiles(bits: Host, table: Host, signed: bool) -> Host:
    """The numbers at random quantiles, in the dtype of the table; `bits` are as wide."""
    dtype = table.dtype
    width = 8 * dtype.itemsize
    unsigned = bits.dtype.type
    top = unsigned(1 << (width - 1))
    m = (bits & unsigned(~top) if signed else bits) | unsigned(1)
    octave = np.zeros(m.shape, unsigned)  # the highest bit that is set
    for step in (32, 16, 8, 4, 2, 1):
        if step < width:
            more = m >> (octave + unsigned(step)) != 0
            octave += np.where(more, unsigned(step), unsigned(0))
    n = m << (unsigned(width - 1) - octave)
    part = (n >> unsigned(width - 4)) & unsigned(PARTS - 1)
    digits = 24 if width == 32 else 52
    fraction = n >> unsigned(width - 4 - digits) & unsigned((1 << digits) - 1)
    x = fraction.astype(dtype) * dtype.type(2.0**-digits)
    coefficients = table[octave.astype(np.intp), part.astype(np.intp)]
    value: Host = coefficients[..., DEGREES[dtype.itemsize]]
    for degree in range(DEGREES[dtype.itemsize] - 1, -1, -1):
        value = value * x + coefficients[..., degree]
    if not signed:
        value[value < 0] = 0
        return value
    flipped: Host = (value.view(bits.dtype) ^ (bits & top)).view(dtype)
    return flipped


def permuted(i: Host, count: int, keys: tuple[int, ...]) -> Host:
    """Where elements i of a permutation of `count` go."""
    bits = count.bit_length() + 1
    half = bits // 2
    odd_bits = np.uint32(bits - half)
    masks = (np.uint32((1 << half) - 1), np.uint32((1 << (bits - half)) - 1))
    found = i.astype(np.uint32)
    walking = np.ones(found.shape, np.bool_)
    while walking.any():
        now = found[walking]
        left, right = now >> odd_bits, now & masks[1]
        for n, key in enumerate(keys):
            left, right = right, left ^ (_mixed(right ^ np.uint32(key)) & masks[n % 2])
        found[walking] = left << odd_bits | right
        walking = found >= count
    return found


def _mixed(x: Host) -> Host:
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def fill(
    mode: str, size: int, polynomials: Host | None, signed: bool, wide: bool, **given: Any
) -> None:
    """The kernel: what it writes to `made`."""
    count, key = given["count"], (given["key_0"], given["key_1"])
    first = given["block_low"] | given["block_high"] << 32
    a = given["a_low"] | given["a_high"] << 32
    b = given["b_low"] | given["b_high"] << 32
    blocks = -(-count * size // 16) if size >= 4 else -(-count // 4)
    if mode == "PERMUTATION":
        keys = tuple(given[f"keys_{n}"] for n in range(ROUNDS))
        elements = permuted(np.arange(count) + b, a, keys).astype(np.int64)
    elif mode == "INTEGER":
        elements = _integers(first, blocks, key, size, a, b)
    else:
        bits = drawn(first, blocks, key)
        elements = bits if mode == "BITS" else _floats(bits, mode, polynomials, signed, wide, a, b)
    held = given["made"].reshape(-1).view(np.uint8)[4 * given["made_at"] :]
    content = np.ascontiguousarray(elements).reshape(-1)[:count].view(np.uint8)
    held[: content.size] = content


def _floats(
    bits: Host, mode: str, table: Host | None, signed: bool, wide: bool, a: int, b: int
) -> Host:
    dtype, unsigned = (np.float64, np.uint64) if wide else (np.float32, np.uint32)
    offset, factor = np.array([a, b], np.uint64).astype(unsigned).view(dtype)
    words = bits.reshape(-1)
    if mode == "QUANTILE":
        assert table is not None
        x = quantiles(words.view(unsigned), table, signed)
    elif wide:
        pairs = words.reshape(-1, 2).astype(np.float64)
        pairs = np.floor(pairs / np.array([64.0, 32.0]))
        x = (pairs[:, 1] * 67108864.0 + pairs[:, 0]) * 2.0**-53
    else:
        x = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    found: Host = x * factor + offset
    return found


def _integers(
    first: int, blocks: int, key: tuple[int, int], size: int, low: int, most: int
) -> Host:
    unsigned: Any = np.uint64 if size == 8 else np.uint32
    mask = unsigned((1 << most.bit_length()) - 1)
    kept: Host = np.zeros(blocks * 16 // (8 if size == 8 else 4), unsigned)
    missing = np.ones(kept.shape, np.bool_)
    for retry in range(64):
        bits = drawn(first, blocks, key, retry).reshape(-1).view(unsigned) & mask
        kept = np.where(missing, bits, kept)
        missing = kept > most
        if not missing.any():
            break
    kept += unsigned(low & ((1 << 64) - 1 if size == 8 else 0xFFFFFFFF))
    return kept.astype(np.dtype(f"u{size}"))
