"""What a launch costs in calls to HIP, from the log of its stand-in (rule 10).

From the second identical launch on: no allocation, no copy that waits for other work, no
synchronisation; and if the host asks for a value, one wait for one event, in which HIP is only
asked if it happened. A NumPy argument that is large, or written, is copied once each way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.hip.standin import ALLOCATIONS, BLOCKING_COPIES, SYNCHRONISATIONS, StandIn
from tests.kernels import BLOCK_SUM, FIRST, SAXPY, kernel, new_kernel, saxpy

N = 1000
LARGE = 2000  # words: more than HIP passes with a launch
MANY_BYTES = 256 << 10  # from here on, an array that is only read is copied at once

#: Sums its arguments, which are too many for parameters: it gets a pointer to them.
MANY = """
struct Arguments { unsigned int at; unsigned int block[2000]; };
extern "C" __global__ void many(unsigned int *y, const Arguments *arguments) {
    unsigned int sum = 0;
    for (unsigned int k = 0; k < 2000; ++k) sum += (k + 1) * arguments->block[k];
    y[arguments->at] = sum;
}
"""

Step = Callable[[], Any]


class Kinds:
    """One launch of each kind, on a stream."""

    def __init__(self, device: ps.Device, stream: ps.Stream | None) -> None:
        self.device = device
        self.on = {"stream": stream}
        self.x, self.y = device.ones(N), device.zeros(N)
        self.words = device.zeros(N, np.uint32)
        self.host = np.ones(N, np.float32)
        self.out = np.zeros(N, np.float32)
        self.large = np.ones(MANY_BYTES // 4, np.float32)
        self.spread = np.zeros(2 * N, np.float32)[::2]

    def scalars(self) -> None:
        saxpy(self.device)(x=self.x, y=self.y, a=2.0, n=N, threads=N, **self.on)

    def block(self) -> None:
        run = kernel(self.device, BLOCK_SUM)
        block = np.ones(100, np.uint32)
        run(y=self.words, at=0, n=1, spin=0, block=block, groups=1, **self.on)

    def large_block(self) -> None:
        if not hasattr(self, "many"):
            signature = f"inout uint32 y, uint32 at, uint32 block[{LARGE}]"
            self.many = self.device.kernel(MANY, signature=signature, group_size=1)
        self.many(y=self.words, at=3, block=np.ones(LARGE, np.uint32), groups=1, **self.on)

    def result(self) -> Any:
        run = kernel(self.device, FIRST)
        return run(x=self.words, n=1, spin=0, add=1, groups=1, **self.on).result()

    def host_in(self) -> None:
        saxpy(self.device)(x=self.host, y=self.y, a=2.0, n=N, threads=N, **self.on)

    def host_out(self) -> None:
        saxpy(self.device)(x=self.x, y=self.out, a=2.0, n=N, threads=N, **self.on)

    def host_both(self) -> None:
        saxpy(self.device)(x=self.host, y=self.out, a=2.0, n=N, threads=N, **self.on)

    def large_in(self) -> None:
        saxpy(self.device)(x=self.large, y=self.y, a=2.0, n=N, threads=N, **self.on)

    def spread_out(self) -> None:
        saxpy(self.device)(x=self.x, y=self.spread, a=2.0, n=N, threads=N, **self.on)

    def elementwise(self) -> None:
        if not hasattr(self, "scale"):
            operation, parameters = "y[i] = a * x[i]", "in float32 x, inout float32 y, float32 a"
            self.scale = self.device.elementwise(operation, parameters)
        self.scale(self.x, self.y, 2.0, **self.on)

    def replay(self) -> None:
        if not hasattr(self, "graph"):
            with self.device.record() as self.graph:
                for _ in range(2):
                    saxpy(self.device)(x=self.x, y=self.y, a=2.0, n=N, threads=N)
        self.graph.replay(self.on["stream"])


#: By kind: launches, replays, and on a device with memory of its own, copies between it and the
#: host in stream order, and at once.
EXPECTED = {
    "scalars": (1, 0, 0, 0),
    "block": (1, 0, 0, 0),
    "large_block": (1, 0, 0, 0),
    "result": (1, 0, 0, 0),
    "host_in": (1, 0, 1, 0),
    "host_out": (1, 0, 0, 2),
    "host_both": (1, 0, 1, 2),
    "large_in": (1, 0, 0, 1),
    "spread_out": (1, 0, 2, 0),
    "elementwise": (1, 0, 0, 0),
    "replay": (0, 1, 0, 0),
}


@pytest.fixture(params=["default stream", "a stream"])
def kinds(request: pytest.FixtureRequest, hip_device: ps.Device) -> Iterator[Kinds]:
    if request.param == "default stream":
        yield Kinds(hip_device, None)
    else:
        with hip_device.stream() as stream:
            yield Kinds(hip_device, stream)


def steady(hip: StandIn, device: ps.Device, step: Step) -> Counter[str]:
    """The calls of one step like many before it, and of the rest it leaves to be done."""
    for _ in range(20):
        step()
        device.synchronize()
    hip.forget()
    step()
    counts = hip.counts
    device.synchronize()
    return counts + (hip.counts - counts)


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_steady_launch(kind: str, kinds: Kinds, hip: StandIn) -> None:
    launches, replays, ordered, at_once = EXPECTED[kind]
    if kinds.device.info.uma:
        ordered = at_once = 0
    calls = steady(hip, kinds.device, getattr(kinds, kind))
    for unwanted in (*ALLOCATIONS, *BLOCKING_COPIES, *SYNCHRONISATIONS, "hipModuleGetFunction"):
        assert not calls[unwanted], unwanted
    assert calls["hipModuleLaunchKernel"] == launches
    assert calls["hipGraphLaunch"] == replays
    assert calls["hipMemcpyAsync"] == ordered
    assert calls["hipMemcpyWithStream"] == at_once
    assert calls["hipMemsetD32Async"] == 0  # nothing is cleared that is then overwritten
    assert calls["hipEventRecord"] <= 3
    with ps.trace() as receipt:
        getattr(kinds, kind)()
    waits = int(kind in ("result", "host_out", "host_both", "spread_out"))
    assert receipt.waits <= waits
    if not waits:
        assert receipt.waits == 0


@pytest.mark.parametrize("kind", ["scalars", "block", "large_block", "elementwise"])
def test_without_a_result_the_host_hardly_asks_how_far_it_is(
    kind: str, kinds: Kinds, hip: StandIn
) -> None:
    step = getattr(kinds, kind)
    steady(hip, kinds.device, step)
    hip.set("patience", 10**6)  # nothing happens unasked
    hip.forget()
    for _ in range(10):
        step()
    assert hip.counts["hipEventQuery"] <= 10 * 4
    hip.set("patience", 0)
    kinds.device.synchronize()


def test_values_of_every_kind(kinds: Kinds) -> None:
    kinds.scalars()
    kinds.host_in()
    kinds.host_out()
    kinds.large_in()
    kinds.spread_out()
    kinds.block()
    kinds.large_block()
    assert kinds.y[:2].tolist() == [6, 6]
    assert kinds.out[:2].tolist() == [2, 2]
    assert kinds.spread[:2].tolist() == [2, 2]
    assert kinds.words[0].item() == 5050
    assert kinds.words[3].item() == LARGE * (LARGE + 1) // 2
    assert kinds.result() == 5051
    kinds.elementwise()
    assert kinds.y[5].item() == 2
    kinds.replay()
    assert kinds.y[5].item() == 6


def test_read_only_arrays_are_not_copied_back(hip: StandIn, hip_device: ps.Device) -> None:
    x, y = np.ones(N, np.float32), hip_device.zeros(N)
    saxpy(hip_device)(x=x, y=y, a=1.0, n=N, threads=N)
    hip_device.synchronize()
    hip.forget()
    saxpy(hip_device)(x=x, y=y, a=1.0, n=N, threads=N)
    x[:] = 100  # the caller's again at once
    hip_device.synchronize()
    assert hip.counts["hipMemcpyAsync"] == (0 if hip_device.info.uma else 1)
    assert y[0].item() == 2


def test_a_function_is_looked_up_once(hip: StandIn, hip_device: ps.Device) -> None:
    run = new_kernel(hip_device, SAXPY)
    x, y = hip_device.ones(N), hip_device.zeros(N)
    for _ in range(5):
        run(x=x, y=y, a=1.0, n=N, threads=N)
    hip_device.synchronize()
    assert hip.counts["hipModuleGetFunction"] == 1
    assert hip.counts["hipModuleLoadData"] == 1


def test_rows_at_even_distances_are_one_copy(hip: StandIn, hip_device: ps.Device) -> None:
    x, y = hip_device.zeros((64, 64), np.uint32), hip_device.ones((64, 64), np.uint32)
    hip_device.synchronize()
    hip.forget()
    x[::2, 3:9].copy_from(y[1::2, 10:16])
    hip_device.synchronize()
    assert hip.counts["hipMemcpy2DAsync"] == 1
    assert hip.counts["hipMemcpyAsync"] == 0
    expected = np.zeros((64, 64), np.uint32)
    expected[::2, 3:9] = 1
    assert (x.numpy() == expected).all()


def test_a_graph_is_captured_once_and_then_changed(hip: StandIn, hip_device: ps.Device) -> None:
    """Nothing is allocated while capturing, which the stand-in would report."""
    x, y = hip_device.ones(N), hip_device.zeros(N)
    run = saxpy(hip_device)
    with hip_device.record(a=1.0) as graph:
        run(x=x, y=y, a=graph["a"], n=N, threads=N)
        run(x=x, y=y, a=1.0, n=N, threads=N)
    for a in range(40):  # more than are kept
        graph.replay(a=float(a))
        hip_device.synchronize()
    hip.forget()
    graph.replay(a=100.0)
    calls = hip.counts
    assert y[0].item() == sum(range(40)) + 40 + 101
    assert (calls["hipGraphExecUpdate"], calls["hipGraphInstantiate"]) == (1, 0)
    hip.forget()
    graph.replay(a=100.0)
    assert hip.counts["hipStreamBeginCapture"] == 0


def test_a_graph_on_two_streams_does_not_run_twice_at_once(hip_device: ps.Device) -> None:
    x, y = hip_device.ones(N), hip_device.zeros(N)
    z = hip_device.zeros(N)
    with hip_device.record() as graph:
        saxpy(hip_device)(x=x, y=z, a=1.0, n=N, threads=N)
    with hip_device.stream() as other:
        for turn in range(20):
            graph.replay(other if turn % 2 else None)
            saxpy(hip_device)(x=x, y=y, a=1.0, n=N, threads=N)
    assert z[0].item() == 20
