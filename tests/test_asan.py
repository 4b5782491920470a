"""A device is opened, used and closed under AddressSanitizer: no freed memory is read or written.

`scripts/asan` runs any part of the suite so; this is the sample that every run of the suite has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps

PROGRAM = """
import sys
import numpy as np
import penstock as ps

for info in ps.devices():
    if sys.argv[1] not in info.name:
        continue
    with ps.Device(info.index) as dev:
        add = dev.elementwise("y[i] = x[i] + 1.0", "in float32 x, out float32 y")
        x = dev.array(np.arange(1000, dtype=np.float32))
        with dev.record() as graph:
            y = add(x)
        graph.replay()
        with dev.stream() as other:
            total = add(y, stream=other).sum(stream=other)
        assert float(total) == 501500, float(total)
        assert (add(np.ones(5, np.float32)).numpy() == 2).all()
    print("launched", flush=True)
"""


def _library() -> str:
    gcc = shutil.which("gcc")
    found = ""
    if gcc is not None:
        command = [gcc, "-print-file-name=libasan.so"]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip("libasan is not installed; it comes with gcc")
    return found


def test_a_launch_uses_no_freed_memory(driver: str) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": _library(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",  # Python's own would hide small allocations
        "PYTHONPATH": str(Path(ps.__file__).parents[1]),
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, driver],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert "AddressSanitizer" not in run.stderr, run.stderr[:3000]
    assert (run.returncode, run.stdout) == (0, "launched\n"), run.stderr[-3000:]
