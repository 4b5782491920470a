"""What a network computes besides tokens, for the host: logits, and final hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.llm import batches
from penstock.llm.config import Config

_LOGITS = 1 << 24  # bytes of logits computed at a time


class Outputs(ABC):
    """The part of a `Network` that appends tokens and reads what follows from each."""

    device: ps.Device
    config: Config
    batch: int
    _every: ps.Array | None = None  # logits of several tokens
    _hidden: ps.Array | None = None

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Append these tokens, and return the logits after each of them; waits for the device."""
        vocabulary = self.config.vocabulary
        if self._every is None:
            rows = max(1, min(self.batch, _LOGITS // (4 * vocabulary)))
            self._every = self.device.empty((rows, vocabulary), name="all logits", role="output")
        rows = len(self._every)
        found = np.empty((len(ids), vocabulary), np.float32)
        for start in range(0, len(ids), rows):
            part = ids[start : start + rows]
            self._append(part, "every")
            self._before_access()
            found[start : start + len(part)] = self._every[: len(part)].numpy()
        return found

    def hidden(self, ids: Sequence[int], last: bool) -> npt.NDArray[np.float32]:
        """Append these tokens, and return the final hidden state, normalised, of each or the last.

        Issues all of them, then waits.
        """
        if self._hidden is None:
            shape = (self.batch, self.config.hidden)
            self._hidden = self.device.empty(shape, np.float32, name="hidden", role="output")
        start = 0
        found: list[ps.Pending[npt.NDArray[np.float32]]] = []
        for count in batches.split(len(ids), self.batch):
            self._append(ids[start : start + count], "hidden")
            start += count
            self._before_access()
            if not last:
                found.append(self._hidden[:count].read())
            elif start == len(ids):
                found.append(self._hidden[count - 1 : count].read())
        return np.concatenate([each.result() for each in found])

    @abstractmethod
    def _append(self, ids: Sequence[int], end: str) -> None:
        """Write a batch of tokens, and issue the step that reads them."""

    @abstractmethod
    def _before_access(self) -> None:
        """Called before the host accesses memory."""
