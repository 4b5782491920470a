"""A long run of everything at once: device memory, host memory and handles stay flat.

As long as CI allows; `PENSTOCK_SOAK=600 scripts/test tests/test_soak.py` makes it ten minutes.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from pathlib import Path

import numpy as np

import penstock as ps
from tests.kernels import slow_add, slow_copy

SECONDS = float(os.environ.get("PENSTOCK_SOAK", "4"))


def resident() -> int:
    """Bytes of memory that this process has in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def churn(dev: ps.Device, seed: int, until: float) -> None:
    """Arrays, streams, views, reads and writes, made and dropped at random."""
    chance = random.Random(seed)
    while time.monotonic() < until:
        size = chance.choice((16, 1000, 40_000))
        x = dev.full(size, 1, np.uint32)
        stream = dev.stream() if chance.random() < 0.2 else None
        y = dev.adopt(dev.host_empty(size, np.uint32)) if chance.random() < 0.5 else x.copy(stream)
        slow_copy(x, y, stream, spin=10)
        slow_add(x, 1, stream, spin=10)
        x[: size // 2].write(np.full(size // 2, 5, np.uint32), stream, borrow=chance.random() < 0.5)
        read = x.read(stream)
        if chance.random() < 0.3:
            view = y.view()
            assert (view == 1).all()
        if chance.random() < 0.7:
            result = read.result()
            assert (result[: size // 2] == 5).all()
            assert (result[size // 2 :] == 2).all()
        if stream is not None and chance.random() < 0.5:
            stream.close()


def test_nothing_grows(threaded_device: ps.Device) -> None:
    dev = threaded_device

    def round_of(seed: int, seconds: float) -> tuple[int, int, int, int]:
        until = time.monotonic() + seconds
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                churn(dev, number, until)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed + n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        for _ in range(3):  # what was forgotten lets go of what it held, and so on
            gc.collect()
            dev.synchronize()
            memory = dev.memory
        assert memory.pending == 0
        handles = len(os.listdir("/proc/self/fd"))
        return memory.used, memory.reserved, len(dev.scheduler.all_streams()), handles

    round_of(0, SECONDS / 2)
    before = resident()
    used, reserved, streams, handles = round_of(10, SECONDS / 2)
    after = round_of(20, SECONDS)
    assert after[0] <= used + 4096
    assert after[1] <= 2 * reserved
    assert after[2] <= streams + 3
    assert after[3] <= handles + 2
    assert resident() <= before + (64 << 20)
