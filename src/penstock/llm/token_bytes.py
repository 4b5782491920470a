"""The bytes that tokens stand for: those of a byte-level vocabulary, and of SentencePiece's."""

from __future__ import annotations

from collections.abc import Mapping

#: What SentencePiece writes for a space.
SPACE = "▁"


class ByteTable:
    """The bytes of every token, found when asked for: a text has few of a vocabulary's tokens.

    Control and added tokens stand for their literal names.
    """

    def __init__(
        self, names: Mapping[int, str], literal: Mapping[int, str], byte_level: bool
    ) -> None:
        self._names = names
        self._literal = literal
        self._plain = _byte_level_bytes if byte_level else _piece_bytes

    def get(self, number: int, default: bytes) -> bytes:
        if number in self._literal:
            return self._literal[number].encode()
        name = self._names.get(number)
        return default if name is None else self._plain(name)


def byte_characters() -> dict[str, int]:
    """The characters that represent bytes: themselves if printable, else from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


_BYTES = byte_characters()


def _byte_level_bytes(name: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in name])
    except KeyError:
        return name.encode()  # not in the byte alphabet: take the name literally


def _piece_bytes(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes([int(name[3:5], 16)])
        except ValueError:
            pass
    return name.replace(SPACE, " ").encode()
