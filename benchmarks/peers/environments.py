"""Where peers are installed: each in a virtual environment of its own, made once.

By default below `~/.cache/penstock/peers`. What could not be installed is remembered with the
reason, so that later runs do not try for minutes again; `--reinstall` forgets all that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_MINUTES = 15  # that an installation may take


@dataclass(frozen=True)
class Kind:
    """How a peer is had: what pip installs for it, or nothing if it runs where Penstock does."""

    requirements: tuple[str, ...] = ()
    #: Asks for VK_KHR_shader_non_semantic_info, which Mesa before 23.1 does not list.
    needs_layer: bool = False


KINDS = {
    "c": Kind(),
    "cffi": Kind(),
    "numpy": Kind(),
    "penstock": Kind(),
    "penstock-explicit": Kind(),
    # Later ones ask for more than Mesa 22.3 has, and say only that no device is suitable.
    "hephaistos": Kind(("hephaistos==0.10.1", "numpy"), needs_layer=True),
    "kp": Kind(("kp", "numpy")),
    "wgpu": Kind(("wgpu", "numpy")),
    "slangpy": Kind(("slangpy", "numpy"), needs_layer=True),
    "quadrants": Kind(("quadrants", "numpy")),
    "taichi": Kind(("taichi", "numpy")),
    "pyopencl": Kind(("pyopencl[pocl]", "numpy")),
    "warp": Kind(("warp-lang", "numpy")),
    "tinygrad": Kind(("tinygrad", "numpy")),
}
#: llama.cpp on the CPU, which decodes the models of `benchmarks/peers/decoding.py`.
LLAMA = "xllamacpp"
_ALL = KINDS | {LLAMA: Kind(("xllamacpp", "numpy"))}


class NotInstalled(Exception):
    """The peer cannot be had here; the text says why."""


def default_directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "penstock" / "peers"


def interpreter(
    name: str, directory: Path, *, reinstall: bool, tell: Callable[[str], None]
) -> Path:
    """The Python that has this peer, which is installed if it is not there yet."""
    kind = _ALL[name]
    if not kind.requirements:
        return Path(sys.executable)
    place = directory / name
    stamp = place / "installed.json"
    known = {} if reinstall else _read(stamp)
    if known.get("requirements") != list(kind.requirements):
        tell(f"installing {' '.join(kind.requirements)} into {place} (once) …")
        start = time.monotonic()
        reason = _install(place, kind.requirements)
        known = {"requirements": kind.requirements, "failed": reason}
        stamp.write_text(json.dumps(known))
        outcome = "failed" if reason else "done"
        tell(f"installing {name}: {outcome} after {time.monotonic() - start:.0f} s")
    if known["failed"]:
        raise NotInstalled(f"{known['failed']} (remembered; --reinstall tries again)")
    return _python(place)


def _read(stamp: Path) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _install(place: Path, requirements: tuple[str, ...]) -> str | None:
    """Make the environment; why that failed, or None."""
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    command = [str(_python(place)), "-m", "pip", "install", "--quiet", *requirements]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60 * _MINUTES)
    except subprocess.TimeoutExpired:
        return f"pip did not finish within {_MINUTES} minutes"
    if ran.returncode == 0:
        return None
    return f"pip install failed: {_cause(ran.stderr)}"


def _cause(output: str) -> str:
    """The line of pip's output that says most; most of it is about consequences."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for sign in ("fatal: ", "CMake Error", "ERROR: ", "error: "):
        for line in lines:
            if line.startswith(sign):
                return line
    return lines[-1] if lines else "it does not say why"


def _python(place: Path) -> Path:
    return place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
