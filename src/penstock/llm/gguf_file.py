"""Reads the header of a GGUF file: metadata keys, and where each tensor is.

The `gguf` package reads headers, too, but builds NumPy arrays for every string of the vocabulary
(3 s for 49,000 tokens, where this takes 20 ms) and trusts the counts it finds. Here every count and
length is checked against the remaining bytes before it is used, so that a hostile file costs no
more than a valid one of its size.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from penstock.llm.errors import ModelError
from penstock.llm.kinds import GGUF_NUMBERS
from penstock.llm.tensors import MOST_TENSORS, Tensor, check_apart, mapped, tensor_at

SCALARS: dict[int, str] = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_PART_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.ASCII | re.DOTALL)
_MOST_KEYS = 1 << 16
_MOST_STRINGS = 1 << 23  # in all arrays together; the largest vocabularies have 2 * 262,144
_LONGEST_NAME = 1 << 8
_LONGEST_TEXT = 1 << 24


class Gguf(NamedTuple):
    """The header of a GGUF file."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


class Strings(Sequence[str]):
    """An array of strings in a file, decoded on access."""

    def __init__(self, where: str, data: memoryview, count: int) -> None:
        self._where = where
        self._data = data
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        at, data = 0, bytes(self._data)  # slicing bytes is much cheaper than slicing a mapping
        length_at = _U64.unpack_from
        try:
            for _ in range(self._count):
                start = at + 8
                at = start + length_at(data, at)[0]
                yield data[start:at].decode()
        except UnicodeDecodeError as error:
            raise _not_utf8(self._where, error) from error

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(self)[index]
        number = range(self._count)[index]
        at, data = 0, self._data
        for _ in range(number):
            at += 8 + _U64.unpack_from(data, at)[0]
        return _decoded(self._where, data[at + 8 : at + 8 + _U64.unpack_from(data, at)[0]])


def read_gguf(path: Path) -> Gguf:
    """Read the header of a file, or of all parts of a model that was split; touches no weights.

    `path` may be any of the parts, which lie in one directory and are named by their number, from
    `name-00001-of-00003.gguf` on. The first has the keys of the model.
    """
    found = _read_one(path)
    count = _split_key(path, found, "count") or 1
    if count == 1:
        return found
    paths = _parts(path, count)
    parts = [found if one == path else _read_one(one) for one in paths]
    tensors: dict[str, Tensor] = {}
    for number, (one, part) in enumerate(zip(paths, parts, strict=True), 1):
        said = _split_key(one, part, "no") + 1, _split_key(one, part, "count")
        if said != (number, count):
            raise ModelError(
                f"{one} says that it is part {said[0]} of {said[1]}; its name says {number} of "
                f"{count}: the parts belong to different models, or were renamed"
            )
        twice = next((name for name in part.tensors if name in tensors), None)
        if twice is not None:
            raise ModelError(f"{one}: tensor {twice!r} is in another part, too")
        tensors |= part.tensors
    stated = _split_key(paths[0], parts[0], "tensors.count") or len(tensors)
    if stated != len(tensors):
        raise ModelError(
            f"{paths[0]}: the {count} parts have {len(tensors):,} tensors; it says {stated:,}"
        )
    return Gguf(parts[0].metadata, tensors)


def _split_key(path: Path, part: Gguf, key: str) -> int:
    value = part.metadata.get(f"split.{key}", 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 100_000:
        raise ModelError(f"{path}: split.{key} is {value!r:.40}; it must be a number below 100,000")
    return value


def _parts(path: Path, count: int) -> list[Path]:
    """Return the parts of a model by the name of one of them; raises if some are not there."""
    named = _PART_NAME.fullmatch(path.name)
    if named is None or int(named[3]) != count or not 1 <= int(named[2]) <= count:
        raise ModelError(
            f"{path} is one of {count} parts of a model that was split; to find the others, its "
            f"name must end in -00001-of-{count:05}.gguf, with the number of the part"
        )
    paths = [
        path.with_name(f"{named[1]}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    ]
    paths[int(named[2]) - 1] = path
    missing = [one.name for one in paths if not one.exists()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(
            f"{path} is one of {count} parts of a model that was split, and {path.parent} lacks "
            f"{', '.join(missing[:3])}{more}: download all parts into one directory"
        )
    return paths


def _read_one(path: Path) -> Gguf:
    """Read the header of a single file."""
    file = mapped(path)
    cursor = _Cursor(path, file.data)
    tensor_count, key_count = _preamble(cursor)
    metadata = _metadata(cursor, key_count)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment not in [1 << bit for bit in range(3, 21)]:
        raise ModelError(f"{path}: general.alignment is {alignment!r}; it must be a power of two")
    if tensor_count > MOST_TENSORS:
        raise ModelError(f"{path}: {tensor_count:,} tensors cannot be right")
    described = [_description(cursor) for _ in range(tensor_count)]
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for name, kind, shape, offset in described:
        if name in tensors:
            raise ModelError(f"{path}: tensor {name!r} is there twice")
        if offset % alignment:
            raise ModelError(
                f"{path}: tensor {name!r} starts at byte {offset}, not a multiple of {alignment}"
            )
        tensors[name] = tensor_at(name, kind, shape, file, start + offset)
    check_apart(tensors.values())
    return Gguf(metadata, tensors)


class _Cursor:
    """Reads forward through the header, never past the end of the file."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.at = 0
        self.strings_left = _MOST_STRINGS

    def take(self, nbytes: int, what: str) -> int:
        """Advance by `nbytes`, and return where they begin."""
        at = self.at
        if nbytes > len(self.data) - at:
            raise ModelError(
                f"{self.path}: {what} at byte {at:,} needs {nbytes:,} bytes, the file ends at "
                f"{len(self.data):,}: it is damaged, or its download did not end"
            )
        self.at = at + nbytes
        return at

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.data, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.data, self.take(8, what))[0])

    def text(self, what: str, longest: int) -> str:
        length = self.u64(f"the length of {what}")
        if length > longest:
            raise ModelError(f"{self.path}: {what} of {length:,} bytes is too long")
        at = self.take(length, what)
        return _decoded(f"{self.path}: {what}", self.data[at : at + length])

    def scalar(self, number: int, what: str) -> Any:
        dtype = np.dtype(SCALARS[number])
        at = self.take(dtype.itemsize, what)
        if dtype.kind == "b" and self.data[at] > 1:
            raise ModelError(f"{self.path}: {what} is neither true nor false")
        return np.frombuffer(self.data, dtype, 1, at)[0].item()

    def array(self, what: str) -> Any:
        number, count = self.u32(f"the type of {what}"), self.u64(f"the length of {what}")
        if number == _STRING:
            return self._strings(count, what)
        if number not in SCALARS:
            kind = "arrays" if number == _ARRAY else f"unknown type {number}"
            raise ModelError(f"{self.path}: {what} is an array of {kind}, which is not supported")
        dtype = np.dtype(SCALARS[number])
        return np.frombuffer(self.data, dtype, count, self.take(count * dtype.itemsize, what))

    def _strings(self, count: int, what: str) -> Strings:
        if count > self.strings_left or count * 8 > len(self.data) - self.at:
            raise ModelError(f"{self.path}: {what} of {count:,} strings cannot be right")
        self.strings_left -= count
        first, at, data, end = self.at, self.at, self.data, len(self.data)
        for _ in range(count):
            if at + 8 > end:
                at = end + 1
                break
            at += 8 + _U64.unpack_from(data, at)[0]
        if at > end:
            raise ModelError(f"{self.path}: {what} goes on past the end of the file")
        self.at = at
        return Strings(f"{self.path}: {what}", data[first:at], count)


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    """Return the number of tensors and of keys."""
    if bytes(cursor.data[:4]) != b"GGUF":
        raise ModelError(f"{cursor.path} is not a GGUF file: it does not start with 'GGUF'")
    cursor.at = 4
    version = cursor.u32("the version")
    if version not in (2, 3):
        reason = "it is for big-endian machines" if not version & 0xFFFF else "there are 2 and 3"
        raise ModelError(f"{cursor.path}: GGUF version {version} is not supported; {reason}")
    return cursor.u64("the number of tensors"), cursor.u64("the number of keys")


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    if count > _MOST_KEYS:
        raise ModelError(f"{cursor.path}: {count:,} metadata keys cannot be right")
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.text("a metadata key", _LONGEST_TEXT)
        what = f"metadata {key[:80]!r}"
        if key in metadata:
            raise ModelError(f"{cursor.path}: {what} is there twice")
        number = cursor.u32(f"the type of {what}")
        if number == _STRING:
            metadata[key] = cursor.text(what, _LONGEST_TEXT)
        elif number == _ARRAY:
            metadata[key] = cursor.array(what)
        elif number in SCALARS:
            metadata[key] = cursor.scalar(number, what)
        else:
            raise ModelError(f"{cursor.path}: {what} has the unknown type {number}")
    return metadata


def _description(cursor: _Cursor) -> tuple[str, str, tuple[int, ...], int]:
    """Name, kind, shape (columns last) and offset of one tensor."""
    name = cursor.text("a tensor name", _LONGEST_NAME)
    what = f"tensor {name!r}"
    dimensions = cursor.u32(f"the dimensions of {what}")
    if not 1 <= dimensions <= 4:
        raise ModelError(f"{cursor.path}: {what} has {dimensions} dimensions; there are 1 to 4")
    shape = tuple(cursor.u64(f"the shape of {what}") for _ in range(dimensions))
    number = cursor.u32(f"the type of {what}")
    kind = GGUF_NUMBERS.get(number, f"of unknown type {number}")
    return name, kind, shape[::-1], cursor.u64(f"the offset of {what}")


def _decoded(where: str, data: bytes | memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error) from error


def _not_utf8(where: str, error: UnicodeDecodeError) -> ModelError:
    return ModelError(f"{where} is not UTF-8: {error.reason}")
