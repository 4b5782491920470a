"""Builds `penstock._native` from the C sources in native/, where there is a C compiler.

    python -m tools.build_native [--into FOLDER] [FLAG ...]

The wheel's build hook and scripts/setup call it. Without a compiler, or Python's headers, Penstock
runs without the module, and this says so and succeeds. If the compiler fails, the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "native"
FLAGS = ["-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra"]


class CannotBuild(Exception):
    """What is missing to build it."""


class CompilerFailed(CannotBuild):
    """What the compiler said."""


def fingerprint(sources: Path = SOURCES) -> str:
    """Changes when a source does."""
    digest = hashlib.sha256()
    for path in sorted(sources.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def file_name() -> str:
    return f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def build(folder: Path, flags: Sequence[str] = (), sources: Path = SOURCES) -> Path:
    """Compile the module into a folder; returns the file."""
    target = folder / file_name()
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    if shutil.which(compiler[0]) is None:
        raise CannotBuild("no C compiler")
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        raise CannotBuild(f"no headers of Python (Python.h) in {include}")
    command = [
        compiler[0], *FLAGS, *flags, f'-DPENSTOCK_SOURCES="{fingerprint(sources)}"',
        f"-I{include}", *map(str, sorted(sources.glob("*.c"))), "-o", str(target),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilerFailed(f"the compiler failed:\n{done.stderr}")
    return target


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.build_native")
    parser.add_argument("--into", type=Path, default=ROOT / "src" / "penstock", metavar="FOLDER")
    options, flags = parser.parse_known_args()
    try:
        print(f"built {build(options.into, flags)}")
    except CompilerFailed as error:
        print(f"penstock._native is not built: {error}")
        return 1
    except CannotBuild as error:
        print(f"penstock._native is not built ({error}); launches are made in Python")
    return 0


if __name__ == "__main__":
    sys.exit(main())
