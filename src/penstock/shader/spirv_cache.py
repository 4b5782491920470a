"""The cache of compiled SPIR-V: in memory and on disk.

It is in `PENSTOCK_CACHE_DIR`, `$XDG_CACHE_HOME/penstock` or `~/.cache/penstock`. An unusable cache
is never an error; compilation is only slower. An entry that is damaged is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from penstock.locks import RLock

_MAX_ENTRIES = 4096
_ENTRY = re.compile(r"[0-9a-f]{64}\.spv")


class Cache:
    """Compiled SPIR-V by key: in memory, backed by a directory that processes share."""

    def __init__(self) -> None:
        self._memory: dict[str, bytes] = {}
        self._unlock()
        os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        """Also in a forked child: the thread that may hold the lock is not in it."""
        self._lock = RLock()

    def get(self, key: str) -> bytes | None:
        """The SPIR-V that was put under a key, if it is still there and whole."""
        with self._lock:
            spirv = self._memory.get(key)
        if spirv is None:
            spirv = _load(key)
            if spirv is not None:
                self._remember(key, spirv)
        return spirv

    def put(self, key: str, spirv: bytes) -> None:
        """Keep compiled SPIR-V. `key` is a hash, in hexadecimal digits, of all it depends on."""
        self._remember(key, spirv)
        with contextlib.suppress(OSError):
            _store(key, spirv)

    def clear(self) -> None:
        """Clear the part in memory."""
        with self._lock:
            self._memory.clear()

    def _remember(self, key: str, spirv: bytes) -> None:
        with self._lock:
            self._memory[key] = spirv
            while len(self._memory) > _MAX_ENTRIES:
                del self._memory[next(iter(self._memory))]


def cache_directory() -> Path | None:
    """The cache's directory; None if its path is relative, or other users could write to it."""
    if chosen := os.environ.get("PENSTOCK_CACHE_DIR"):
        path = Path(chosen).absolute()
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        path = Path(home) / "penstock"
        if not path.is_absolute():
            return None
    with contextlib.suppress(OSError):
        status = path.stat()
        if hasattr(os, "getuid"):
            foreign = status.st_uid not in (os.getuid(), 0)
            return None if foreign or status.st_mode & 0o022 else path
    return path


def _load(key: str) -> bytes | None:
    directory = cache_directory()
    with contextlib.suppress(OSError):
        if directory is not None:
            data = (directory / f"{key}.spv").read_bytes()
            if data[:32] == _seal(key, data[32:]):
                return data[32:]
    return None


def _store(key: str, spirv: bytes) -> None:
    directory = cache_directory()
    if directory is None:
        return
    directory.mkdir(0o700, parents=True, exist_ok=True)
    name = f"{key}.spv"
    descriptor, temporary = tempfile.mkstemp(".tmp", name, directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(_seal(key, spirv) + spirv)
        os.replace(temporary, directory / name)
    except BaseException:
        os.unlink(temporary)
        raise
    _prune(directory)


def _prune(directory: Path) -> None:
    with os.scandir(directory) as entries:
        # Only files named like cache entries, in case the directory also has other files.
        ours = [entry for entry in entries if _ENTRY.match(entry.name)]
    if len(ours) > _MAX_ENTRIES:
        ours.sort(key=lambda entry: entry.stat().st_mtime_ns)
        for entry in ours[: len(ours) - _MAX_ENTRIES]:
            os.unlink(entry)


def _seal(key: str, spirv: bytes) -> bytes:
    return hashlib.sha256(key.encode() + spirv).digest()
