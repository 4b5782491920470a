"""Precompiled SPIR-V of Penstock's own kernels, so that using them needs no GLSL compiler.

One archive next to the shaders has an entry for each compilation, named by the SHA-256 of the text
that was compiled: source, includes and defines. A lookup hashes the current text, so an entry that
is out of date is never found. A checkout has no archive and compiles instead. `tools/prebuild.py`
lists what the archive contains, and writes it when the package is built.
"""

from __future__ import annotations

import functools
import hashlib
import os
import zipfile
from pathlib import Path

ARCHIVE = Path(__file__).with_name("builtin.zip")


def shipped(text: str) -> bytes | None:
    """The SPIR-V shipped for this text; None if there is none."""
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
            return archive.read(name)  # also verifies the checksum
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def write(path: str | os.PathLike[str], entries: dict[str, bytes]) -> None:
    """Write an archive. The same entries always give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # the wheel compresses it
        for name in sorted(entries):
            about = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            about.create_system, about.external_attr = 3, 0o644 << 16
            archive.writestr(about, entries[name])
