"""What the host computes with, and a driver for CPUs too."""

from __future__ import annotations

import functools
import platform
from pathlib import Path


@functools.cache
def cpu_name() -> str:
    """The processor's name, as its maker gave it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
