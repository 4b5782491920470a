"""Which tokens the rows of a KV cache belong to, as far as the host has read them.

A network notes what it reads and what it samples. Of a prompt that begins with the same tokens, it
then needs to read only the others.
"""

from __future__ import annotations

from collections.abc import Sequence


class CachedTokens:
    """The tokens of the first rows of a KV cache, in order."""

    def __init__(self) -> None:
        self._ids: list[int] = []

    def __len__(self) -> int:
        return len(self._ids)

    def note_read(self, ids: Sequence[int], position: int) -> None:
        """Note that these tokens go to the rows from `position` on.

        Call before their step is issued: rows that are then not written are past the cache's end.
        """
        if position == len(self._ids):  # else there are sampled tokens before that were not noted
            self._ids += ids

    def note_sampled(self, token: int, position: int) -> None:
        """Note the token that the next step writes to row `position`."""
        if position == len(self._ids):
            self._ids.append(token)

    def keep(self, count: int) -> None:
        del self._ids[count:]

    def common(self, ids: Sequence[int], rows: int) -> int:
        """How many of the first tokens of `ids` are those of the first `rows` rows."""
        most = min(len(ids), len(self._ids), rows)
        if list(ids[:most]) == self._ids[:most]:
            return most
        return next(n for n in range(most) if ids[n] != self._ids[n])

    def last(self, count: int) -> list[int]:
        return self._ids[-count:]
