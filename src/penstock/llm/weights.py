"""Makes the weights of a model readable by kernels: in place in the mapped file, if possible.

If the device shares the host's memory and can import it, each file is adopted once and each weight
is a slice of it. Nothing is read, copied or allocated, so a model of any size loads at once; pages
are read from disk when a kernel first touches them. On other devices the bytes are copied once.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.llm.errors import ModelError
from penstock.llm.modelfile import ModelFile
from penstock.llm.progress_bar import Bar
from penstock.llm.tensors import Tensor

OnProgress: TypeAlias = Callable[[int, int], None]  # bytes done, bytes in all
_PAGE = mmap.ALLOCATIONGRANULARITY
_PART = 1 << 25  # bytes copied between two calls of `progress`


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a tensor, in an array that a kernel can bind."""

    words: ps.Array  # uint32[n], contiguous, starts where the device can bind it
    first: int  # byte in `words` at which the first row begins (even; GGUF: multiple of 2)
    row: int  # number of the first row
    rows: int


@dataclass(frozen=True)
class Weight:
    """A matrix or vector in its file layout, on a device."""

    name: str
    kind: (
        str  # "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"
    )
    rows: int  # outputs of a product (1 for a vector)
    columns: int  # inputs; consecutive in memory
    pieces: tuple[Piece, ...]  # in order of rows, covering all of them


class Weights(dict[str, Weight]):
    """The weights of a model by name. `close()` releases their memory; so does dropping them."""

    def close(self) -> None:
        """Release the memory once work in flight completes. Safe to call twice."""
        for weight in self.values():
            for piece in weight.pieces:
                piece.words.close()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def place(
    device: ps.Device,
    model: ModelFile,
    progress: OnProgress | Literal[False] | None = None,
    *,
    copy: bool | None = None,
) -> Weights:
    """Return every tensor of the model as a weight on the device.

    By default weights stay in place if the device shares the host's memory and can import it, and
    are copied else. `copy=True` always copies; `copy=False` also works in place on a device with
    memory of its own, if it can import. While copying, `progress` is called with (bytes done, bytes
    in all); None shows a bar if stderr is a terminal, False shows nothing.
    """
    # A GPU with memory of its own would fetch every weight over the bus, for every token.
    in_place = device.info.uma if copy is None else not copy
    adopted: dict[str, list[Piece]] = {}
    if device.info.can_import and in_place:
        for tensors in _by_file(model.tensors):
            adopted |= _adopted(device, tensors)
    rest = [tensor for name, tensor in model.tensors.items() if name not in adopted]
    pieces = adopted | _copied(
        device, rest, Bar("copying weights") if progress is None else progress or _silent
    )
    return Weights(
        (name, Weight(name, one.kind, one.rows, one.columns, tuple(pieces[name])))
        for name, one in model.tensors.items()
    )


@dataclass(frozen=True)
class _Cut:
    """Rows of a tensor that fit one binding, and where they are in the file."""

    tensor: Tensor
    row: int
    rows: int

    @property
    def first(self) -> int:
        return self.tensor.offset + self.row * _pitch(self.tensor)

    @property
    def last(self) -> int:
        return self.first + self.rows * _pitch(self.tensor)


def _pitch(tensor: Tensor) -> int:
    return tensor.nbytes // tensor.rows


def _cuts(device: ps.Device, tensor: Tensor) -> list[_Cut]:
    """Cut the tensor into as few parts as the device's limits allow, of about equal size."""
    room = min(_limit(device, "binding_range"), _limit(device, "allocation") - 2 * _PAGE)
    fitting = (room - _alignment(device) - 4) // _pitch(tensor)
    if fitting < 1:
        raise ModelError(
            f"{tensor.file.filename}: tensor {tensor.name!r} has rows of {_pitch(tensor):,} bytes, "
            f"more than {device.name} can bind at once"
        )
    count = -(-tensor.rows // fitting)
    # Kernels take several rows at a time, so cut at multiples of 64 rows if possible.
    even = -(-tensor.rows // count // 64) * 64
    step = even if 64 <= even <= fitting else fitting
    return [_Cut(tensor, row, min(step, tensor.rows - row)) for row in range(0, tensor.rows, step)]


def _by_file(tensors: Mapping[str, Tensor]) -> Iterator[list[Tensor]]:
    """The tensors of each file, in the order of their bytes."""
    files: dict[int, list[Tensor]] = {}
    for tensor in tensors.values():
        files.setdefault(id(tensor.file), []).append(tensor)
    for group in files.values():
        yield sorted(group, key=lambda one: one.offset)


# In place.


def _adopted(device: ps.Device, tensors: list[Tensor]) -> dict[str, list[Piece]]:
    """Adopt the tensors of one file in place; empty if the device refuses."""
    cuts = [cut for one in tensors if _words_fit(one) for cut in _cuts(device, one)]
    alignment = _alignment(device)
    pieces: dict[str, list[Piece]] = {}
    try:
        for start, end, window in _windows(cuts, _limit(device, "allocation")):
            file = window[0].tensor.file
            words = device.adopt(_mapping(file, start, end), name=Path(str(file.filename)).name)
            words.seal()
            for cut in window:
                bound = (cut.first - start) // alignment * alignment
                part = words[bound // 4 : -(-(cut.last - start) // 4)]
                pieces.setdefault(cut.tensor.name, []).append(
                    Piece(part, cut.first - start - bound, cut.row, cut.rows)
                )
    except ps.CannotAdopt:
        return {}
    return pieces


def _words_fit(tensor: Tensor) -> bool:
    """Whether the tensor's offset is aligned enough for kernels, which read 4-byte words."""
    return tensor.offset % (4 if tensor.kind == "F32" else 2) == 0


def _windows(cuts: list[_Cut], largest: int) -> Iterator[tuple[int, int, list[_Cut]]]:
    """Yield parts of the file that the device can import: first byte, end, and the cuts inside.

    A single part, the whole file, unless that exceeds the largest import.
    """
    if not cuts:
        return
    size = cuts[0].tensor.file.size
    if _up(size) <= largest:
        yield 0, size, cuts
        return
    window: list[_Cut] = []
    for cut in cuts:
        if window and _up(cut.last) - _down(window[0].first) > largest:
            yield _down(window[0].first), min(_up(window[-1].last), size), window
            window = []
        window.append(cut)
    yield _down(window[0].first), min(_up(window[-1].last), size), window


def _down(offset: int) -> int:
    return offset // _PAGE * _PAGE


def _up(offset: int) -> int:
    return -(-offset // _PAGE) * _PAGE


def _mapping(file: np.memmap[Any, Any], first: int, last: int) -> npt.NDArray[np.uint32]:
    """Return these bytes of the file as words; the last word is padded.

    Padding stays within the page in which the bytes end: the system fills the rest of that page
    with zeros, and it is readable. A part of a file gets a mapping of its own, because memory that
    overlaps cannot be adopted twice.
    """
    whole = np.asarray(file)
    if first or last < file.size:
        whole = _part(str(file.filename), file.size, first, last)
    count = -(-whole.size // 4)
    head = whole[: whole.size // 4 * 4].view(np.uint32)
    return np.lib.stride_tricks.as_strided(head, (count,), (4,), writeable=False)


def _part(path: str, size: int, first: int, last: int) -> npt.NDArray[np.uint8]:
    try:
        if os.stat(path).st_size == size:
            return np.asarray(np.memmap(path, np.uint8, "r", first, (last - first,)))
    except OSError as error:
        raise ModelError(f"{path} cannot be read any more: {error.strerror}") from error
    raise ModelError(f"{path} has changed since it was opened; open the model again")


# Copied.


def _copied(
    device: ps.Device, tensors: list[Tensor], progress: OnProgress
) -> dict[str, list[Piece]]:
    total, done = sum(tensor.nbytes for tensor in tensors), 0
    pieces: dict[str, list[Piece]] = {}
    for tensor in tensors:
        pieces[tensor.name] = []
        for cut in _cuts(device, tensor):
            source = np.asarray(tensor.file)[cut.first : cut.last]
            words = device.empty(-(-source.size // 4), np.uint32, name=tensor.name)
            content = words.reinterpret(np.uint8)
            for start in range(0, source.size, _PART):
                part = source[start : start + _PART]
                content[start : start + part.size].write(part)
                done += part.size
                progress(done, total)
            pieces[tensor.name].append(Piece(words.seal(), 0, cut.row, cut.rows))
    return pieces


def _silent(done: int, total: int) -> None:
    pass


def _alignment(device: ps.Device) -> int:
    return max(4, _limit(device, "binding_alignment"))


def _limit(device: ps.Device, name: str) -> int:
    limit = device.info.limits[name]
    assert isinstance(limit, int)
    return limit
