"""Ordered writes to busy memory: the host updates parameters while the device works on them.

In every step the host launches work that reads parameters, then updates them for the next step; two
steps are in flight. The time is that of the update, until the host can go on. On: the write takes
its place in the stream. Off: the host waits until the device is idle, as it must where a write to
memory in use is not ordered.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

import penstock as ps
from penstock.bench.measure import expect
from penstock.bench.mechanisms.comparison import (
    Comparison,
    Figure,
    Mechanism,
    Plan,
    Row,
    Side,
    percentile,
)
from penstock.bench.mechanisms.public_figures import BUS_NAME, TRIP_NAME, over_bus

_THREADS = 1024
_AHEAD = 2  # steps in flight

#: Adds the sum of some parameters to y, after a while.
_STEP = """
layout(local_size_x = 256) in;
layout(binding = 0) readonly buffer P { uint parameters[]; };
layout(binding = 1) buffer Y { uint y[]; };
layout(push_constant) uniform C { uint n; uint spin; };
void main() {
    uint i = gl_GlobalInvocationID.x, h = i;
    for (uint k = 0; k < spin; ++k) h = h * 1664525u + 1013904223u;
    y[i] += parameters[(i * 977u) % n] + (h == 1u && n == 0u ? 1u : 0u);
}
"""


class _Updates:
    """A host that writes `part` of `count` parameters in every step."""

    def __init__(
        self, device: ps.Device, count: int, part: int, steps: int, spin: int, *, lend: bool
    ) -> None:
        self.device = device
        self.steps = steps
        self.spin = spin
        self.lend = lend
        self.kernel = device.kernel(_STEP, name="step")
        self.parameters = device.zeros(count, np.uint32, name="parameters")
        self.written = self.parameters[:part] if part < count else self.parameters
        self.y = device.zeros(_THREADS, np.uint32, name="y")
        self.read = np.arange(_THREADS) * 977 % part
        # A lent source must stay as it is until it is copied: one for every step.
        self.sources = [np.full(part, step + 1, np.uint32) for step in range(steps if lend else 1)]

    def prepare(self) -> None:
        self.y.fill(0)
        self.parameters.fill(0)
        self.device.synchronize()

    def work(self, *, wait: bool) -> Sequence[float]:
        seconds, issued = [], list[ps.Event]()
        for step in range(self.steps):
            self.kernel(
                parameters=self.parameters, y=self.y, n=self.written.size, spin=self.spin,
                threads=_THREADS,
            )  # fmt: skip
            issued.append(self.device.default_stream.record())
            source = self.sources[step % len(self.sources)]
            if not self.lend:
                source.fill(step + 1)
            start = time.perf_counter()
            if wait:
                self.device.synchronize()
            self.written.write(source, borrow=self.lend)
            seconds.append(time.perf_counter() - start)
            if len(issued) > _AHEAD:
                issued.pop(0).wait()
        self.device.synchronize()
        return seconds

    def check(self) -> None:
        expect(bool((self.y.numpy() == sum(range(self.steps))).all()), "the parameters")


def compare(plan: Plan, ending: ExitStack) -> Iterator[Comparison]:
    steps, spin = (4, 50) if plan.quick else (32, 1000)
    cases = {
        "4 KiB, all of it": (1 << 10, 1 << 10, False),
        "4 KiB of 1 MiB": (1 << 18, 1 << 10, False),
        "1 MiB, all of it": (1 << 18, 1 << 18, False),
        "8 MiB of 16 MiB, lent": (1 << 22, 1 << 21, True),
    }
    for name, (count, part, lend) in list(cases.items())[: 2 if plan.quick else None]:
        work = _Updates(plan.device, count, part, steps, spin, lend=lend)
        on, off = (
            Side(partial(work.work, wait=wait), work.check, work.prepare) for wait in (False, True)
        )
        yield Comparison(name, on, off, "update", steps, 4 * part, figures=_figures)


def _figures(on: Side, off: Side) -> list[Figure]:
    tails = (percentile(side.parts, 0.99) for side in (on, off))
    rates = (len(side.parts) / sum(side.whole) for side in (on, off))
    return [Figure("99th percentile of an update", "s", *tails), Figure("steps", "/s", *rates)]


def _elsewhere(rows: Sequence[Row]) -> str:
    largest = max(row["size"] for row in rows)
    return (
        f"waiting for idle leaves a device on the bus idle in every step for at least "
        f"{TRIP_NAME}, in which the host learns of it and hands over the next work, and for the "
        f"transfer: {largest / 2**20:.0f} MiB cross {BUS_NAME} in "
        f"{over_bus(largest) * 1e3:.2f} ms. Ordered writes overlap the trip with the work before; "
        "writes that get fresh memory overlap the transfer, too."
    )


MECHANISM = Mechanism(
    "writes", "ordered writes to busy memory",
    "a write takes its place in the stream, and the host goes on",
    "the host waits until the device is idle before each write",
    compare,
    "An update that waits is only late by what is left of the steps in flight. Where the copy of "
    "the parameters takes longer than that, the wait hardly counts.",
    _elsewhere,
)  # fmt: skip
