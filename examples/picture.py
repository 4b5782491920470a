"""Write an array as a PNG file, without an imaging library."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def write_png(path: Path, picture: npt.NDArray[Any]) -> None:
    """Write rows of grey values, or of red, green and blue, from 0 to 255."""
    pixels = np.clip(picture, 0, 255).astype(np.uint8)
    height, width = pixels.shape[:2]
    colour = 0 if pixels.ndim == 2 else 2
    rows = pixels.reshape(height, -1)
    plain = np.zeros((height, 1), np.uint8)  # the filter type that starts each row: none

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(np.hstack([plain, rows]).tobytes(), 9))
        + chunk(b"IEND", b"")
    )
