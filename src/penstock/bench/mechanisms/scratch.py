"""Persistent scratch: intermediate values in memory that is kept, or in driver memory per launch.

A step fills an array of intermediate values on the device, reads one word of each page of it, and
the host waits. On: the array lies in `dev.scratch()`. Off: the driver allocates memory for each
step, and frees it when the step is done (`vkAllocateMemory`, `vkFreeMemory`), which is what a
runtime without a pool pays. Because the host waits for every step, freeing needs no wait of its
own. One more case takes the memory from Penstock's pool in every step, which is what
`Mechanisms(scratch=False)` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

import penstock as ps
from penstock.array.array import Array
from penstock.array.buffer import Buffer
from penstock.bench.measure import expect
from penstock.bench.mechanisms.comparison import Comparison, Mechanism, Plan, Row, Side
from penstock.bench.mechanisms.public_figures import MEMORY, MEMORY_NAME
from penstock.bench.runtime import human
from penstock.memory.backing import Backing, Chunk
from penstock.memory.layout import Layout

_SUMS = 16
_PAGE = 1024  # words

#: Adds up one word of each page of the intermediate values.
_ADD = """
layout(local_size_x = 16) in;
layout(binding = 0) readonly buffer T { uint t[]; };
layout(binding = 1) writeonly buffer Y { uint y[]; };
layout(push_constant) uniform P { uint n; };
void main() {
    uint i = gl_GlobalInvocationID.x, sum = 0u;
    for (uint k = i * 1024u; k < n; k += 16u * 1024u) sum += t[k];
    y[i] = sum;
}
"""


def in_driver_memory(device: ps.Device, count: int) -> ps.Array:
    """An array in memory that the driver allocates for it; dropping it frees the memory."""
    scheduler, nbytes = device.scheduler, 4 * count
    with scheduler.lock:
        scheduler.drain()  # frees what was dropped
        chunk = Chunk(scheduler.driver.allocate(nbytes, host=False))
        buffer = Buffer(scheduler, Backing(chunk, 0, nbytes), nbytes, "driver memory", pinned=True)
        return Array(buffer, Layout(0, (count,), (4,), 4), np.dtype(np.uint32))


class _Steps:
    def __init__(self, device: ps.Device, count: int, steps: int) -> None:
        self.device = device
        self.count = count
        self.steps = steps
        self.add = device.kernel(_ADD, name="add")
        self.y = device.zeros(_SUMS, np.uint32, name="sums")
        self.scratch = device.scratch()

    def kept(self) -> None:
        self._run(lambda: self.scratch.array(self.count, np.uint32))

    def from_driver(self) -> None:
        self._run(lambda: in_driver_memory(self.device, self.count))

    def from_pool(self) -> None:
        self._run(lambda: self.device.empty(self.count, np.uint32, role="scratch"))

    def _run(self, memory: Callable[[], ps.Array]) -> None:
        for step in range(self.steps):
            values = memory()
            values.fill(step + 1)
            self.add(t=values, y=self.y, n=self.count, threads=_SUMS)
            self.device.synchronize()
            del values

    def check(self) -> None:
        pages = np.arange(self.count // _PAGE)
        right = np.bincount(pages % _SUMS, minlength=_SUMS) * self.steps
        expect(bool((self.y.numpy() == right).all()), "the sums")


def compare(plan: Plan, ending: ExitStack) -> Iterator[Comparison]:
    sizes = (1 << 16,) if plan.quick else (1 << 16, 1 << 20, 1 << 24, 1 << 26)
    for nbytes in sizes:
        steps = max(4, min(50, (1 << 27) // nbytes))
        work = _Steps(plan.device, nbytes // 4, 4 if plan.quick else steps)
        on, off = Side(work.kept, work.check), Side(work.from_driver, work.check)
        yield Comparison(human(nbytes), on, off, "step", work.steps, nbytes)
    nbytes = sizes[len(sizes) // 2 - 1]
    work = _Steps(plan.device, nbytes // 4, 4 if plan.quick else 50)
    on, off = Side(work.kept, work.check), Side(work.from_pool, work.check)
    yield Comparison(f"{human(nbytes)}, off: from the pool", on, off, "step", work.steps, nbytes)


def _elsewhere(rows: Sequence[Row]) -> str:
    largest = max(row["size"] for row in rows)
    return (
        "a driver must not hand one program the bytes of another, so it clears fresh memory. "
        f"{human(largest)} at the speed of {MEMORY_NAME} take {largest / MEMORY * 1e6:.0f} µs, and "
        "the call into the system's kernel that maps the pages comes on top, of which there is no "
        "public figure."
    )


MECHANISM = Mechanism(
    "scratch", "persistent scratch",
    "intermediate values in scratch memory that is kept",
    "memory from the driver for every step, freed after it",
    compare,
    "Memory from the pool is memory that was kept, too: taking it costs a few microseconds of "
    "Python and no driver call. So removing persistent scratch alone, as the ablation below does, "
    "does not show what the driver's memory costs.",
    _elsewhere,
)  # fmt: skip
