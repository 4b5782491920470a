"""C sources of this directory, compiled with the system's compiler when they are needed.

Vulkan's declarations come with the `vulkan` package, so nothing but a C compiler has to be there.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import vulkan

_OPTIONS = ("-std=c11", "-O2", "-Wall", "-fPIC", "-shared", "-fvisibility=default")


class NoCompiler(Exception):
    """There is no C compiler, or it does not compile this."""


def compile_c(source: Path, library: Path) -> Path:
    """Compile a C source to a shared library; where that is."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not shutil.which(command[0]):
        raise NoCompiler(f"no C compiler: {command[0]!r} is not there; set CC")
    headers = f"-I{Path(vulkan.__file__).parent}"
    library.parent.mkdir(parents=True, exist_ok=True)
    ran = subprocess.run(
        [*command, *_OPTIONS, headers, str(source), "-o", str(library)],
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        raise NoCompiler(f"{command[0]} does not compile {source.name}:\n{ran.stderr.strip()}")
    return library
