"""Where a tensor is in its file. Files are mapped, not read: opening takes constant time."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.llm.errors import ModelError
from penstock.llm.kinds import KINDS, SUPPORTED, nbytes_of

MOST_TENSORS = 1 << 16
_MOST_ELEMENTS = 1 << 44


@dataclass(frozen=True)
class Tensor:
    """Where a tensor's bytes are. `columns` lie side by side; a vector is one row."""

    name: str
    kind: str
    rows: int
    columns: int
    shape: tuple[int, ...]
    file: np.memmap[Any, Any] = field(repr=False)  # uint8, read-only, the whole file
    offset: int
    nbytes: int

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, in place."""
        return np.asarray(self.file)[self.offset : self.offset + self.nbytes]


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
        raise ModelError(f"{where} is {kind}, which is not supported; there are {SUPPORTED}")
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
