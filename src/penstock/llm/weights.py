"""Makes the weights of a model readable by kernels: in place in the mapped file, if possible.

If the device shares the host's memory and can import it, each file is adopted once and each weight
is a slice of it. Nothing is read, copied or allocated, so a model of any size loads at once; pages
are read from disk when a kernel first touches them. On other devices the bytes are copied once.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
#: Stands for the place of an expert that another piece holds.
NOWHERE = 0xFFFFFFFF


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a tensor, in an array that a kernel can bind.

    Of a stack, the whole matrices of some experts: `first` is where that of one of them begins, and
    `experts` says where those of all begin.
    """

    words: ps.Array  # uint32[n], contiguous, starts where the device can bind it
    first: int  # byte in `words` at which the first row begins (even, but for MXFP4)
    row: int  # number of the first row
    rows: int
    experts: Begins | None = None


@dataclass(frozen=True)
class Begins:
    """Where in a piece's words the matrix of each expert begins."""

    table: ps.Array  # uint32[experts]: a byte, or `NOWHERE` for those of other pieces
    alignment: int  # all of these bytes are multiples of it: 2, 4, 8 or 16


@dataclass(frozen=True)
class Weight:
    """A matrix, a vector or a stack of matrices in its file layout, on a device.

    A stack has a matrix for each of its `experts`, of `rows` rows; the pieces hold whole matrices.
    """

    name: str
    kind: str  # one of `penstock.llm.kinds.KINDS`
    rows: int  # outputs of a product (1 for a vector)
    columns: int  # inputs; consecutive in memory
    pieces: tuple[Piece, ...]  # in order of rows, covering all of them
    experts: int = 0  # 0: not a stack


class Weights(dict[str, Weight]):
    """The weights of a model by name. `close()` releases their memory; so does dropping them."""

    def close(self) -> None:
        """Release the memory once work in flight completes. Safe to call twice."""
        for weight in self.values():
            for piece in weight.pieces:
                piece.words.close()
                if piece.experts is not None:
                    piece.experts.table.close()

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
        adopted = _adopted(device, [one for one in model.tensors.values() if _words_fit(one)])
    rest = [tensor for name, tensor in model.tensors.items() if name not in adopted]
    pieces = adopted | _copied(
        device, rest, Bar("copying weights") if progress is None else progress or _silent
    )
    return Weights((name, _weight(tensor, pieces[name])) for name, tensor in model.tensors.items())


def _weight(tensor: Tensor, pieces: list[Piece]) -> Weight:
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 0
    rows = tensor.rows // (experts or 1)
    return Weight(tensor.name, tensor.kind, rows, tensor.columns, tuple(pieces), experts)


@dataclass(frozen=True)
class _Cut:
    """Rows of a tensor, or matrices of a stack, that fit one binding; and where in which file."""

    tensor: Tensor
    file: np.memmap[Any, Any]
    first: int  # byte
    last: int  # byte, exclusive
    row: int = 0
    rows: int = 0
    experts: Mapping[int, int] | None = None  # of a stack: the byte where each matrix begins

    def piece(self, device: ps.Device, words: ps.Array, start: int) -> Piece:
        """Return the piece whose `words` begin at byte `start` of the file."""
        if self.experts is None:
            return Piece(words, self.first - start, self.row, self.rows)
        begins = np.full(self.tensor.shape[0], NOWHERE, np.uint32)
        for expert, begin in self.experts.items():
            begins[expert] = begin - start
        own = [int(begins[expert]) for expert in self.experts]
        table = device.array(begins, role="weight", name=f"begins of {self.tensor.name}")
        alignment = math.gcd(16, *own)
        return Piece(words, own[0], 0, self.tensor.shape[1], Begins(table, alignment))


def _pitch(tensor: Tensor) -> int:
    return tensor.nbytes // tensor.rows


def _room(device: ps.Device) -> int:
    """Return the most bytes of a piece."""
    most = min(_limit(device, "binding_range"), _limit(device, "allocation") - 2 * _PAGE)
    return most - _alignment(device) - 4


def _cuts(device: ps.Device, tensor: Tensor) -> list[_Cut]:
    """Cut the tensor into as few parts as the device's limits allow, of about equal size."""
    if len(tensor.shape) == 3:
        return _cuts_of_stack(device, tensor)
    pitch = _pitch(tensor)
    fitting = _room(device) // pitch
    if fitting < 1:
        raise _too_large(device, tensor, "rows", pitch)
    count = -(-tensor.rows // fitting)
    # Kernels take several rows at a time, so cut at multiples of 64 rows if possible.
    even = -(-tensor.rows // count // 64) * 64
    step = even if 64 <= even <= fitting else fitting
    made = []
    for row in range(0, tensor.rows, step):
        rows = min(step, tensor.rows - row)
        first = tensor.offset + row * pitch
        made.append(_Cut(tensor, tensor.file, first, first + rows * pitch, row, rows))
    return made


def _cuts_of_stack(device: ps.Device, tensor: Tensor) -> list[_Cut]:
    """Cut the stack into spans of the file; other tensors may lie between its matrices."""
    matrices = tensor.matrices()
    if matrices[0].nbytes > _room(device):
        raise _too_large(device, tensor, "matrices", matrices[0].nbytes)
    made: list[_Cut] = []
    spans: list[dict[int, int]] = []
    for expert, one in sorted(
        enumerate(matrices), key=lambda each: (str(each[1].file.filename), each[1].offset)
    ):
        last = one.offset + one.nbytes
        if not made or made[-1].file is not one.file or last - made[-1].first > _room(device):
            spans.append({})
            made.append(_Cut(tensor, one.file, one.offset, last, experts=spans[-1]))
        spans[-1][expert] = one.offset
        made[-1] = replace(made[-1], last=last)
    return made


def _too_large(device: ps.Device, tensor: Tensor, what: str, nbytes: int) -> ModelError:
    return ModelError(
        f"{tensor.file.filename}: tensor {tensor.name!r} has {what} of {nbytes:,} bytes, more than "
        f"{device.name} can bind at once"
    )


# In place.


def _adopted(device: ps.Device, tensors: list[Tensor]) -> dict[str, list[Piece]]:
    """Adopt tensors in place; without those that have bytes in files the device refuses."""
    files: dict[int, list[_Cut]] = {}
    for tensor in tensors:
        for cut in _cuts(device, tensor):
            files.setdefault(id(cut.file), []).append(cut)
    pieces: dict[str, list[Piece]] = {}
    refused: set[str] = set()
    for cuts in files.values():
        try:
            for name, piece in _adopted_file(device, sorted(cuts, key=lambda cut: cut.first)):
                pieces.setdefault(name, []).append(piece)
        except ps.CannotAdopt:
            refused |= {cut.tensor.name for cut in cuts}
    return {name: found for name, found in pieces.items() if name not in refused}


def _adopted_file(device: ps.Device, cuts: list[_Cut]) -> Iterator[tuple[str, Piece]]:
    """Adopt the file of these cuts, and yield the piece of each."""
    alignment = _alignment(device)
    for start, end, window in _windows(cuts, _limit(device, "allocation")):
        file = window[0].file
        words = device.adopt(_mapping(file, start, end), name=Path(str(file.filename)).name)
        words.seal()
        for cut in window:
            bound = (cut.first - start) // alignment * alignment
            part = words[bound // 4 : -(-(cut.last - start) // 4)]
            yield cut.tensor.name, cut.piece(device, part, start + bound)


def _words_fit(tensor: Tensor) -> bool:
    """Whether the tensor's offset is aligned enough for kernels, which read 4-byte words."""
    each = 4 if tensor.kind == "F32" else 2
    return all(one.offset % each == 0 for one in tensor.parts or (tensor,))


def _windows(cuts: list[_Cut], largest: int) -> Iterator[tuple[int, int, list[_Cut]]]:
    """Yield parts of the file that the device can import: first byte, end, and the cuts inside.

    A single part, the whole file, unless that exceeds the largest import.
    """
    if not cuts:
        return
    size = cuts[0].file.size
    if _up(size) <= largest:
        yield 0, size, cuts
        return
    window: list[_Cut] = []
    end = 0  # of the window; the cuts of stacks overlap
    for cut in cuts:
        if window and _up(max(end, cut.last)) - _down(window[0].first) > largest:
            yield _down(window[0].first), min(_up(end), size), window
            window, end = [], 0
        window.append(cut)
        end = max(end, cut.last)
    yield _down(window[0].first), min(_up(end), size), window


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
        for cut, sources in _to_copy(device, tensor):
            words = device.empty(-(-cut.last // 4), np.uint32, name=tensor.name)
            content = words.reinterpret(np.uint8)
            at = 0
            for source in sources:
                for start in range(0, source.size, _PART):
                    part = source[start : start + _PART]
                    content[at : at + part.size].write(part)
                    at += part.size
                    done += part.size
                    progress(done, total)
            pieces[tensor.name].append(cut.piece(device, words.seal(), 0))
    return pieces


def _to_copy(
    device: ps.Device, tensor: Tensor
) -> Iterator[tuple[_Cut, list[npt.NDArray[np.uint8]]]]:
    """Yield cuts as they are once copied, with nothing before or between; and their bytes."""
    if len(tensor.shape) != 3:
        for cut in _cuts(device, tensor):
            source = np.asarray(cut.file)[cut.first : cut.last]
            yield replace(cut, first=0, last=source.size), [source]
        return
    matrices = tensor.matrices()
    size = matrices[0].nbytes
    fitting = _room(device) // size
    if fitting < 1:
        raise _too_large(device, tensor, "matrices", size)
    for expert in range(0, len(matrices), fitting):
        some = matrices[expert : expert + fitting]
        begins = {expert + n: n * size for n in range(len(some))}
        cut = _Cut(tensor, tensor.file, 0, len(some) * size, experts=begins)
        yield cut, [one.bytes for one in some]


def _silent(done: int, total: int) -> None:
    pass


def _alignment(device: ps.Device) -> int:
    return max(4, _limit(device, "binding_alignment"))


def _limit(device: ps.Device, name: str) -> int:
    limit = device.info.limits[name]
    assert isinstance(limit, int)
    return limit
