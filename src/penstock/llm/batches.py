"""How a prompt is split into batches.

A graph is recorded for each size of a batch, so few sizes occur: those of whole batches, and powers
of two. What is left of a prompt is padded to one of these (`llm.device_state` says what keeps the
padding without effect). Every batch reads all weights and makes all launches of the network once
more, so a few padded rows cost less than another batch; many of them do not.
"""

from __future__ import annotations

#: Tokens. Up to this many are one batch, however much of it is padding.
_WHOLE = 16


def split(count: int, most: int) -> list[int]:
    """Split `count` tokens into batches of up to `most`, counted without padding.

    If a quarter or more of the last one were padding, half of it is a batch of its own first.
    """
    parts = [most] * (count // most)
    left = count % most
    while left:
        size = padded(left, most)
        is_whole = size <= _WHOLE or 4 * left > 3 * size
        parts.append(left if is_whole else _power_of_two(left) // 2)
        left -= parts[-1]
    return parts


def padded(count: int, most: int) -> int:
    """Return the size of a batch of `count` tokens, padding included."""
    return min(_power_of_two(count), most)


def _power_of_two(count: int) -> int:
    """Return the least power of two that is not less than `count`."""
    return 1 << (count - 1).bit_length()
