"""Writes GGUF files one tensor at a time, so that a model may be larger than memory."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from penstock.llm.errors import ModelError
from penstock.llm.gguf_file import SCALARS
from penstock.llm.kinds import GGUF_NUMBERS, KINDS, nbytes_of

ALIGNMENT = 32
_NUMBERS = {kind: number for number, kind in GGUF_NUMBERS.items()}
_DTYPES = {np.dtype(dtype): number for number, dtype in SCALARS.items()}
_STRING, _ARRAY = 8, 9


class NewTensor(NamedTuple):
    """A tensor to write: its shape (columns last), and a function that yields its bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[bytes]]

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.kind, int(np.prod(self.shape[:-1], dtype=np.int64)), self.shape[-1])


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[NewTensor],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a file. Metadata are str, bool, int, float, NumPy arrays, or lists of str."""
    total, done = sum(tensor.nbytes for tensor in tensors), 0
    with path.open("wb") as file:
        file.write(_header(metadata, tensors))
        for tensor in tensors:
            _pad(file)
            start = file.tell()
            for part in tensor.parts():
                file.write(part)
                done += len(part)
                if progress is not None:
                    progress(done, total)
            if file.tell() - start != tensor.nbytes:
                raise ModelError(
                    f"tensor {tensor.name!r} was given {file.tell() - start:,} bytes; its shape "
                    f"needs {tensor.nbytes:,}"
                )


def _header(metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for tensor in tensors:
        if tensor.shape[-1] % KINDS[tensor.kind].columns:
            raise ModelError(f"tensor {tensor.name!r}: {tensor.kind} does not fit {tensor.shape}")
        dimensions = len(tensor.shape)
        parts.append(_text(tensor.name))
        parts.append(struct.pack(f"<I{dimensions}Q", dimensions, *tensor.shape[::-1]))
        parts.append(struct.pack("<IQ", _NUMBERS[tensor.kind], offset))
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return b"".join(parts)


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """Encode a value, preceded by its type."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, list):
        texts = b"".join(map(_text, value))
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + texts
    if isinstance(value, np.ndarray):
        number = _DTYPES[value.dtype.newbyteorder("<")]
        return struct.pack("<IIQ", _ARRAY, number, value.size) + value.tobytes()
    kind = np.bool_ if isinstance(value, bool) else np.uint32 if isinstance(value, int) else "<f4"
    scalar = np.dtype(kind).type(value)
    return struct.pack("<I", _DTYPES[scalar.dtype.newbyteorder("<")]) + scalar.tobytes()
