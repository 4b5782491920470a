"""Launches by two threads at once, compared with as many launches by one.

Each thread has a stream and arrays of its own. A device makes one launch at a time, under its lock,
and so does a Python with a GIL: two threads are to cost no more than one in total.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

import penstock as ps
from penstock.bench.jobs import SIZE, A
from penstock.bench.measure import SHADERS, expect
from penstock.bench.runtime import Piece

TOTAL = 10_000  # launches in one timed sample: far longer than it takes to start a thread


class Worker:
    """What one thread launches: a kernel on a stream and arrays of its own."""

    def __init__(self, device: ps.Device, kernel: ps.Kernel, ending: ExitStack) -> None:
        self.kernel = kernel
        self.stream = ending.enter_context(device.stream())
        self.x = device.ones(SIZE, name="x")
        self.y = device.ones(SIZE, name="y")

    def launches(self, count: int) -> None:
        kernel, x, y, stream = self.kernel, self.x, self.y, self.stream
        for _ in range(count):
            kernel(x=x, y=y, a=A, n=SIZE, threads=SIZE, stream=stream)


def together(workers: Sequence[Worker], total: int, *, submit: bool) -> float:
    """The seconds of one of `total` launches, which the workers share, each in its own thread.

    Without `submit` they are submitted afterwards, untimed.
    """
    share = total // len(workers)
    starts: list[float] = []
    ends: list[float] = []
    ready = threading.Barrier(len(workers))

    def work(worker: Worker) -> None:
        with contextlib.nullcontext() if submit else worker.stream.batch():
            ready.wait()
            starts.append(time.perf_counter())
            worker.launches(share)
            ends.append(time.perf_counter())

    for worker in workers:
        worker.y.fill(1)
        worker.stream.synchronize()
    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    right = np.float32(1 + share * A)
    expect(all((worker.y.numpy() == right).all() for worker in workers), "launches by threads")
    return (max(ends) - min(starts)) / (share * len(workers))


def pieces(device: ps.Device, ending: ExitStack) -> Iterator[list[Piece]]:
    """Launches by two threads, with their floor: as many by one."""
    other = ending.enter_context(ps.Device(device.info.index))
    kernel = device.kernel(SHADERS / "saxpy.comp")
    one, two = (Worker(device, kernel, ending) for _ in range(2))
    elsewhere = Worker(other, other.kernel(SHADERS / "saxpy.comp"), ending)

    def piece(test: str, workers: Sequence[Worker], *, submit: bool) -> Piece:
        return Piece(
            test, partial(together, workers, TOTAL, submit=submit),
            "one thread", partial(together, [one], TOTAL, submit=submit),
            partial(one.launches, 1),
        )  # fmt: skip

    yield [
        piece("launch, recorded, two threads", [one, two], submit=False),
        piece("launch, submitted, two threads", [one, two], submit=True),
        piece("launch, recorded, two threads, a device each", [one, elsewhere], submit=False),
    ]
