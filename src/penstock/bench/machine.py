"""What figures depend on: the build, the machine and the device, in llama-bench's fields."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock import accelerator
from penstock.llm.processor import cpu_name

#: What decides how many threads of the CPU work, and which drivers there are.
_SETTINGS = ("LP_NUM_THREADS", "OMP_NUM_THREADS", "VK_ADD_DRIVER_FILES", "VK_DRIVER_FILES")


def build() -> dict[str, Any]:
    """The fields that tell which Penstock it was."""
    return {"build_commit": commit(), "build_number": ps.__version__}


def environment(device: ps.Device) -> dict[str, Any]:
    """The fields that tell what it ran on."""
    info = device.info
    return {
        "cpu_info": cpu_name(),
        "gpu_info": info.name,
        "backends": "Vulkan",
        "driver_info": info.driver_info,
        "cpu_count": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "settings": "; ".join(
            [f"{n}={os.environ[n]}" for n in _SETTINGS if n in os.environ]
            + [f"native step {accelerator.status}"]
        ),
        "command": command(),
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def command() -> str:
    """What was typed, with the program's name instead of its place."""
    name = Path(sys.argv[0]).name
    shown = "penstock" if name in ("penstock", "__main__.py") else name
    return " ".join([shown, *sys.argv[1:]])


@cache
def commit() -> str:
    """The commit of the checkout this runs from; "unknown" where it is installed."""
    here = Path(__file__).parent
    try:
        ran = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],
            capture_output=True, text=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return ran.stdout.strip() or "unknown"
