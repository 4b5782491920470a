"""Where a tensor is in its file. Files are mapped, not read: opening takes constant time."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.llm.errors import ModelError
from penstock.llm.kinds import KINDS, SUPPORTED, nbytes_of

MOST_TENSORS = 1 << 16
_MOST_ELEMENTS = 1 << 44
_GATE_UP = "ffn_gate_up_exps"  # in files that were not told to keep them apart


@dataclass(frozen=True)
class Tensor:
    """Where a tensor's bytes are. `columns` lie side by side; a vector is one row.

    A tensor of three dimensions is a stack of matrices. Where the file holds these apart, they are
    its `parts`, in order; `file` and `offset` are then those of the first.
    """

    name: str
    kind: str
    rows: int
    columns: int
    shape: tuple[int, ...]
    file: np.memmap[Any, Any] = field(repr=False)  # uint8, read-only, the whole file
    offset: int
    nbytes: int
    parts: tuple[Tensor, ...] = field(default=(), repr=False)

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The tensor's bytes: in place, or a copy of those of its parts."""
        if self.parts:
            return np.concatenate([part.bytes for part in self.parts])
        return np.asarray(self.file)[self.offset : self.offset + self.nbytes]

    def matrices(self) -> tuple[Tensor, ...]:
        """The matrices of a stack, in order."""
        if self.parts:
            return self.parts
        count, rows, columns = self.shape
        return self._strided(self.name, count, rows, columns, 0, self.nbytes // count)

    def halves(self, first: str, second: str) -> tuple[Tensor, Tensor]:
        """Two stacks with these names: of the upper and of the lower half of each matrix."""
        count, rows, columns = self.shape
        apart = self.nbytes // count
        upper, lower = (
            stack(name, self._strided(name, count, rows // 2, columns, lead, apart))
            for name, lead in ((first, 0), (second, apart // 2))
        )
        return upper, lower

    def _strided(
        self, name: str, count: int, rows: int, columns: int, lead: int, apart: int
    ) -> tuple[Tensor, ...]:
        """Return `count` matrices, the first `lead` bytes into the tensor, and so far apart."""
        nbytes = nbytes_of(self.kind, rows, columns)
        begins = range(self.offset + lead, self.offset + lead + count * apart, apart)
        return tuple(
            Tensor(name, self.kind, rows, columns, (rows, columns), self.file, begin, nbytes)
            for begin in begins
        )


def stack(name: str, parts: Sequence[Tensor]) -> Tensor:
    """A stack of matrices of one kind and shape, which may be in several files."""
    first = parts[0]
    for part in parts:
        if (part.kind, part.shape) != (first.kind, first.shape) or len(part.shape) != 2:
            raise ModelError(
                f"{part.file.filename}: {name!r} is made of matrices of one kind and shape, but "
                f"one is {first.kind} {first.shape}, another {part.kind} {part.shape}"
            )
    return Tensor(
        name, first.kind, len(parts) * first.rows, first.columns, (len(parts), *first.shape),
        first.file, first.offset, len(parts) * first.nbytes, tuple(parts),
    )  # fmt: skip


def divided(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Divide stacks of matrices that hold an expert's gates and then its ups."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = {name: tensor}
        if _GATE_UP in name and len(tensor.shape) == 3 and tensor.shape[1] % 2 == 0:
            names = [name.replace(_GATE_UP, f"ffn_{one}_exps") for one in ("gate", "up")]
            own = dict(zip(names, tensor.halves(*names), strict=True))
        twice = next((one for one in own if one in found), None)
        if twice is not None:
            raise ModelError(f"{tensor.file.filename}: {twice!r} is there twice")
        found |= own
    return found


def mapped(path: Path) -> np.memmap[Any, Any]:
    """The whole file, read-only."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ModelError(f"{path} is not a file")
        return np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} is empty or has an impossible name: {error}") from error


def tensor_at(
    name: str, kind: str, shape: tuple[int, ...], file: np.memmap[Any, Any], offset: int
) -> Tensor:
    """Return the tensor of this shape at this offset; raises if it does not fit the file.

    `shape` is in NumPy's order, columns last.
    """
    where = f"{file.filename}: tensor {name!r}"
    if kind not in KINDS:
        raise ModelError(
            f"{where} is {kind}, which is not supported; take a file of the model in one of these: "
            f"{SUPPORTED}"
        )
    if not 1 <= len(shape) <= 4 or min(shape) < 1 or math.prod(shape) > _MOST_ELEMENTS:
        raise ModelError(f"{where} has the impossible shape {shape}")
    *outer, columns = shape
    if columns % KINDS[kind].columns:
        raise ModelError(
            f"{where} has rows of {columns} values; {kind} needs a multiple of "
            f"{KINDS[kind].columns}"
        )
    rows = math.prod(outer)
    nbytes = nbytes_of(kind, rows, columns)
    if offset + nbytes > file.size:
        raise ModelError(
            f"{where} ends at byte {offset + nbytes:,}, the file has {file.size:,}: it is "
            "damaged, or its download did not end"
        )
    return Tensor(name, kind, rows, columns, shape, file, offset, nbytes)


def check_apart(tensors: Iterable[Tensor]) -> None:
    """Check that no two tensors of a file share bytes."""
    last: Tensor | None = None
    for tensor in sorted(tensors, key=lambda one: one.offset):
        if last is not None and tensor.offset < last.offset + last.nbytes:
            raise ModelError(
                f"{tensor.file.filename}: tensors {last.name!r} and {tensor.name!r} share bytes"
            )
        last = tensor
