"""SPIR-V of Penstock's own kernels, made when the package was built, so that using them takes no
GLSL compiler.

One archive lies beside the shaders, with an entry for each compilation, named by the SHA-256 of the
text that was compiled: source, includes and defines. Whoever looks a kernel up has that text, so an
entry that does not belong to the sources as they are is never found, and a checkout, which has no
archive, compiles. `tools/prebuild.py` says what is in it, and writes it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import zipfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("builtin.zip")


def shipped(text: str) -> bytes | None:
    """The SPIR-V that was shipped for this text; None if there is none."""
    return _read(ARCHIVE, key_of(text)) if key_of(text) in _names(ARCHIVE) else None


def shipped_count() -> int:
    """How many kernels were shipped; 0 in a checkout."""
    return len(_names(ARCHIVE))


def key_of(text: str) -> str:
    """The name of a text's entry."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


@functools.cache
def _names(path: Path) -> frozenset[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return frozenset(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return frozenset()


@functools.cache
def _read(path: Path, name: str) -> bytes | None:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)  # which checks it against its sum
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def write(path: str | os.PathLike[str], entries: dict[str, bytes]) -> None:
    """Write an archive. The same entries always give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # the wheel is compressed
        for name in sorted(entries):
            about = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            about.create_system, about.external_attr = 3, 0o644 << 16
            archive.writestr(about, entries[name])
