"""Rule 8 when something happens in the middle: Ctrl-C, signal handlers, finalisers.

A program is a list of steps, each of which changes a value in a known way. Whatever comes in the
middle of step k, the value is that of before or after step k, the device can be used as before, and
on the simulator there is no race.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.memory import texel_views
from penstock.tracing import events
from tests.conftest import HAS_VALIDATION, _installed, _silence, simulated
from tests.graph.test_counting import APPEND, append_reference
from tests.hip.standin import StandIn
from tests.interrupts import STRIDE, at_point, chosen, interrupt, points
from tests.kernels import (
    COUNT,
    FIRST,
    SLOW_ADD,
    add_texels,
    block_sum,
    block_sum_of,
    first,
    kernel,
    new_kernel,
    slow_add,
)

N = 64
Step = Callable[[int], int]  # does something to a device; from the value before to that after


class Bench:
    """An array whose elements all have one value, and what steps need besides."""

    def __init__(self, dev: ps.Device) -> None:
        self.dev = dev
        self.x = dev.zeros(N, np.uint32)
        self.other = dev.full(N, 50, np.uint32)
        self.host = np.zeros(N, np.uint32)
        self.stream = dev.stream()
        self.mapped = dev.scheduler.transfers != "unmapped"
        self.on_mapped: tuple[Step, ...] = (self.view, self.look)
        with dev.record(x=self.x) as self.graph:
            slow_add(self.x, 1, spin=0)
        kernel(dev, FIRST, "first"), kernel(dev, COUNT, "count")

    # Steps.

    def launch(self, value: int) -> int:
        slow_add(self.x, 1, spin=0)
        return value + 1

    def launch_elsewhere(self, value: int) -> int:
        slow_add(self.x, 1, self.stream, spin=0)
        return value + 1

    def launch_and_close(self, value: int) -> int:
        with self.dev.stream() as stream:
            slow_add(self.x, 1, stream, spin=0)
        return value + 1

    def result(self, value: int) -> int:
        assert int(first(self.x, 3)) == value + 3
        return value

    def result_dropped(self, value: int) -> int:
        first(self.x, 4)
        return value

    def large_arguments(self, value: int) -> int:
        block = np.arange(100, dtype=np.uint32)
        block_sum(self.other, 0, block)
        assert self.other[0].item() == block_sum_of(block)
        return value

    def numpy_argument(self, value: int) -> int:
        # The caller's array, like the device's, is that of before or after.
        mine = np.full(N, 5, np.uint32)
        try:
            kernel(self.dev, SLOW_ADD, "slow_add")(x=mine, n=N, spin=0, add=2, threads=N)
        finally:
            assert set(mine.tolist()) in ({5}, {7})
        assert (mine == 7).all()
        return value

    def write(self, value: int) -> int:
        self.x.write(np.full(N, value + 10, np.uint32))
        return value + 10

    def write_part(self, value: int) -> int:
        self.x[: N // 2].write(np.full(N // 2, value, np.uint32))
        return value

    def borrow(self, value: int) -> int:
        self.host[:] = value + 20
        self.x.write(self.host, borrow=True).wait()
        return value + 20

    def fill(self, value: int) -> int:
        self.x.fill(value + 7)
        return value + 7

    def copy(self, value: int) -> int:
        self.other.fill(value + 30)
        self.x.copy_from(self.other)
        return value + 30

    def read(self, value: int) -> int:
        assert set(self.x.read().result().tolist()) == {value}
        out = np.zeros(N, np.uint32)
        assert set(self.x.read(out=out).result().tolist()) == {value}
        return value

    def numpy(self, value: int) -> int:
        assert set(self.x.numpy().tolist()) == {value}
        return value

    def view(self, value: int) -> int:
        shown = self.x.view("rw")
        assert set(shown.tolist()) == {value}
        shown[:] = value + 2
        return value + 2

    def look(self, value: int) -> int:
        assert set(self.x.view("r").tolist()) == {value}
        return value

    def replay(self, value: int) -> int:
        self.graph.replay()
        return value + 1

    def event(self, value: int) -> int:
        event = self.stream.record()
        self.dev.default_stream.wait(event)
        event.wait()
        return value

    def batch(self, value: int) -> int:
        with self.dev.default_stream.batch():
            slow_add(self.x, 1, spin=0)
        return value + 1

    def new_array(self, value: int) -> int:
        assert set(self.dev.array(np.full(N, 9, np.uint32)).numpy().tolist()) == {9}
        return value

    def reduction(self, value: int) -> int:
        assert int(self.x.sum()) == N * value
        return value

    def texels(self, value: int) -> int:
        add_texels(self.x, 1)
        return value + 1

    def texels_anew(self, value: int) -> int:
        add_texels(self.x[:], 1)  # whose view goes with it
        return value + 1

    def synchronize(self, value: int) -> int:
        self.dev.synchronize()
        return value

    def trace(self, value: int) -> int:
        with ps.trace():
            slow_add(self.x, 1, spin=0)
            self.x.numpy()
        return value + 1


PROGRAMS: dict[str, tuple[str, ...]] = {
    "launches": ("launch", "launch", "launch", "numpy"),
    "streams": ("launch", "launch_elsewhere", "event", "launch"),
    "results": ("launch", "result", "result_dropped", "launch", "result"),
    "arguments": ("large_arguments", "launch", "large_arguments"),
    "NumPy arguments": ("numpy_argument", "launch", "numpy_argument"),
    "writes": ("launch", "write", "launch", "write_part", "launch", "borrow", "launch", "fill"),
    "copies": ("launch", "copy", "launch", "copy"),
    "reads": ("launch", "read", "launch", "numpy", "launch", "look", "launch", "view", "launch"),
    "graphs": ("replay", "launch", "replay", "replay"),
    "batches": ("batch", "launch", "batch", "synchronize"),
    "memory": ("new_array", "launch", "new_array"),
    "reductions": ("launch", "reduction", "launch"),
    "traces": ("launch", "trace", "launch"),
    "texels": ("texels", "texels_anew", "launch", "texels", "write", "texels_anew", "texels"),
}


class Run:
    """A program on a device; knows how far it came."""

    def __init__(self, dev: ps.Device, program: tuple[str, ...]) -> None:
        self.bench = bench = Bench(dev)
        steps: list[Step] = [getattr(bench, name) for name in program]
        self._steps = [each for each in steps if bench.mapped or each not in bench.on_mapped]
        self.value = 0  # after the last step that returned
        self._step: Step | None = None
        self.done = False
        self.kept: list[BaseException] = []  # with the frames that it has ended

    def __call__(self) -> None:
        for step in self._steps:
            self._step = step
            self.value = step(self.value)
        self._step = None
        self.done = True

    def check(self) -> None:
        """The value is that of before or after the step in which it ended, and all can go on."""
        gc.collect()
        events.activate(())  # a trace whose `with` was interrupted at its end goes on
        bench = self.bench
        possible = {self.value}
        if self._step is not None:
            possible.add(_effect(self._step, self.value))
        slow_add(bench.x, 100, spin=0)
        bench.dev.synchronize(timeout=60)
        found = set(bench.x.numpy().tolist())
        assert len(found) == 1, f"half of it: {found}"
        assert found <= {value + 100 for value in possible}, f"{found}, not one of {possible} + 100"
        # Everything still works, in both streams, and no view is held.
        value = found.pop()
        for step in (
            bench.launch, bench.launch_elsewhere, bench.event, bench.write, bench.view,
            bench.result, bench.replay, bench.numpy_argument, bench.read, bench.large_arguments,
        ):  # fmt: skip
            if bench.mapped or step not in bench.on_mapped:
                value = step(value)
        assert set(bench.x.numpy().tolist()) == {value}


def _effect(step: Step, value: int) -> int:
    """What the value is after a step, without doing it."""
    changes = {
        "launch": 1, "launch_elsewhere": 1, "launch_and_close": 1, "write": 10, "borrow": 20,
        "fill": 7, "copy": 30, "view": 2, "replay": 1, "batch": 1, "trace": 1, "texels": 1,
        "texels_anew": 1,
    }  # fmt: skip
    return value + changes.get(step.__name__, 0)


@contextlib.contextmanager
def opened(driver: str | StandIn, seed: int = 0, **options: Any) -> Iterator[ps.Device]:
    if isinstance(driver, StandIn):
        with driver.chosen(integrated=1, seed=seed), driver.device() as dev:
            yield dev
    elif driver == "simulator":
        with simulated(seed, **options) as dev:
            yield dev
    else:
        with _silence(), ps.Device(_installed(driver), validate=HAS_VALIDATION, **options) as dev:
            yield dev


DRIVERS = ("simulator", "llvmpipe", "SwiftShader")


RUNS = 50  # on one device
UNMAPPED = ("writes", "reads", "NumPy arguments")
NAMES = [*PROGRAMS, *(f"{name}, unmapped" for name in UNMAPPED)]


@pytest.fixture(autouse=True)
def cheap_collections() -> Iterator[None]:
    """Have the garbage collector look at nothing that was there before: it is called often."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def views_that_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a view of texels made and destroyed wherever it can be."""
    monkeypatch.setattr(texel_views, "_KEPT", 0)


def try_points(driver: str | StandIn, name: str, strike: Callable[[Run, int], str]) -> int:
    """Run a program once for each of its points, and check it; how many were tried."""
    name, _, transfers = name.partition(", ")
    program = PROGRAMS[name]
    count = tried = 0
    numbers: Iterator[int] = iter(())
    while not count or (some := list(itertools.islice(numbers, RUNS))):
        with opened(driver, tried, transfers=transfers or "auto") as dev:
            Run(dev, program)()  # everything is compiled, and memory is there
            if not count:
                count = points(Run(dev, program))
                assert count > 50
                numbers = chosen(count)
                continue
            for number in some:
                run = Run(dev, program)
                place = ""
                try:
                    place = strike(run, number)
                    run.check()
                except BaseException as error:
                    error.add_note(f"at point {number} of {count}: {place}")
                    raise
                tried += 1
    return tried


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_interrupt_in_the_middle_does_all_or_nothing(
    driver: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    tried = try_points(driver, name, interrupted_in(name))
    record_property("points", tried)


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_interrupted_end_of_a_view_is_its_end(driver: str) -> None:
    with opened(driver) as dev:
        x = dev.zeros(N, np.uint32)
        held = [x.view("rw")]

        def end() -> None:
            held.clear()
            slow_add(x, 1, spin=0)  # refused while the view is held

        count = points(held.clear)
        assert count > 5
        for number in range(1, count + 1):
            held.append(x.view("rw"))
            at_point(number, interrupt, end)


def interrupted_in(name: str) -> Callable[[Run, int], str]:
    """Interrupts a program, and keeps the exception while it is checked, as a prompt does.

    No call may depend on the end of what an interrupted one had in its frames. But a view there is
    a view held, so not where there are any.
    """
    steps = PROGRAMS[name.partition(", ")[0]]
    views = {"view", "look"} & set(steps)

    def strike(run: Run, number: int) -> str:
        return at_point(number, interrupt, run, None if views else run.kept)[1]

    return strike


@pytest.mark.parametrize("name", ["launches", "streams", "results", "writes", "copies", "graphs"])
def test_an_interrupt_in_the_middle_over_hip(name: str, standin_library: StandIn) -> None:
    try_points(standin_library, name, interrupted_in(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("driver", DRIVERS)
def test_what_runs_in_the_middle_works_or_is_refused(
    driver: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    """As a signal handler, a finaliser, or the callback of a weak reference does."""
    outcomes: list[str] = []

    def strike(run: Run, number: int) -> str:
        bench = run.bench
        mine = bench.dev.zeros(N, np.uint32)
        before = len(outcomes)
        made = 0

        def use() -> None:
            nonlocal made
            for each in uses:
                try:
                    each()
                except ps.Reentered:
                    outcomes.append("refused")
                    continue
                outcomes.append("worked")
                made += each in uses[:2]

        uses: list[Callable[[], object]] = [
            lambda: slow_add(mine, 1, spin=0),
            lambda: slow_add(mine, 1, bench.stream, spin=0),
            lambda: bench.dev.default_stream.flush(),
            lambda: bench.dev.zeros(8).numpy(),
            lambda: bench.dev.memory,
        ]
        if bench.mapped:
            uses.append(lambda: mine.view("rw"))
        _, place = at_point(number, use, run)
        assert len(outcomes) == before + (len(uses) if place else 0)
        assert run.done
        assert set(mine.numpy().tolist()) == {made}
        return place

    tried = try_points(driver, name, strike)
    assert {"worked", "refused"} <= set(outcomes) or tried < 60
    record_property("points", tried)


# What a value does not show: the interrupted call is done or not done, also in what it leaves.


class Case:
    """A call to interrupt, and what must hold after that, however far it came."""

    def __init__(self, dev: ps.Device) -> None:
        self.dev = dev
        self.prepare()

    def prepare(self) -> None: ...

    def run(self) -> None:
        """The call. Also done once for each case that is never interrupted."""
        raise NotImplementedError

    def check(self) -> None:
        """While the exception, and all that its frames had, is kept."""

    def check_left(self) -> None:
        """After that."""


class RecordingGraph(Case):
    """`with dev.record()`: where the block is left, nothing is recorded any more."""

    def prepare(self) -> None:
        self.x = self.dev.zeros(N, np.uint32)
        self.graph: ps.Graph | None = None

    def run(self) -> None:
        with self.dev.record(x=self.x) as self.graph:
            slow_add(self.x, 1, spin=0)

    def check(self) -> None:
        slow_add(self.x, 1, spin=0)
        assert set(self.x.numpy().tolist()) == {1}
        value = 1
        if self.graph is not None:
            with contextlib.suppress(ps.Closed):  # "not recorded to its end"
                self.graph.replay()
                value += 1
        assert set(self.x.numpy().tolist()) == {value}
        with self.dev.record() as again:
            slow_add(self.x, 1, spin=0)
        again.replay()
        assert set(self.x.numpy().tolist()) == {value + 1}


class GrowingRing(Case):
    """A launch for whose arguments the ring must grow: no memory of others is written."""

    def prepare(self) -> None:
        self.stream = self.dev.stream()
        self.sums = self.dev.zeros(N, np.uint32)
        self.launched = 0
        self.batch = contextlib.ExitStack()
        self.batch.enter_context(self.stream.batch())  # so that none of them is done
        self.launch(16)

    def launch(self, count: int) -> None:
        for _ in range(count):
            block = np.full(100, self.launched + 1, np.uint32)
            block_sum(self.sums, self.launched, block, self.stream)
            self.launched += 1

    def run(self) -> None:
        self.launch(1)

    def check(self) -> None:
        self.batch.close()
        self.dev.synchronize()
        others = [self.dev.host_empty(1700, np.uint32) for _ in range(6)]  # as large as the ring
        for each in others:
            each[:] = 7
        self.launch(20)
        expected = [
            block_sum_of(np.full(100, each + 1, np.uint32)) for each in range(self.launched)
        ]
        assert self.sums[: self.launched].numpy().tolist() == expected
        assert all((each == 7).all() for each in others)


class Appending(Case):
    """A replay that counts, and appends to two arrays: all of it, or nothing."""

    ROOM = 12

    def prepare(self) -> None:
        dev = self.dev
        append = append_kernel(dev)
        self.x = dev.zeros(N, np.uint32)
        self.logs = [dev.zeros((self.ROOM, N), np.uint32, role="append") for _ in range(2)]
        with dev.record() as self.graph:
            slow_add(self.x, 1, spin=0)
            for log in self.logs:
                append(log=log, counter=log.counter, room=self.ROOM, width=N, threads=N)
                log.advance(1)
        for _ in range(3):
            self.graph.replay()

    def run(self) -> None:
        self.graph.replay()

    def check(self) -> None:
        length, other = (log.length for log in self.logs)
        assert length == other == self.x[0].item()
        assert length in (3, 4)
        self.check_appends(length)

    def check_appends(self, length: int) -> None:
        """Appending still works from this length on."""
        for number in range(3):
            for log in self.logs:
                assert log.counter.item() == log.length == length + number
            self.graph.replay()
        expected = np.arange(101, 104 + length)
        for log in self.logs:
            assert (log[: length + 3].numpy() == expected[:, None]).all()


class Resetting(Appending):
    """`reset()` of an append-only array whose length the device knows, too."""

    def run(self) -> None:
        self.logs[0].reset()

    def check(self) -> None:
        length = self.logs[0].length
        assert length in (0, 3)
        if length == 0:
            self.logs[1].reset()
        self.check_appends(length)


class Advancing(Appending):
    """`advance()` past rows that the host has appended."""

    def prepare(self) -> None:
        super().prepare()
        for log in self.logs:
            log[3].fill(104)

    def run(self) -> None:
        self.logs[0].advance(1)

    def check(self) -> None:
        log = self.logs[0]
        assert log.counter.item() in (3, 4)
        for each in self.logs:
            if each.counter.item() < 4:
                each.advance(1)
        self.check_appends(4)


class Viewing(Case):
    """`view("w")` of rows: they count as written if there is a view."""

    def prepare(self) -> None:
        self.rows = self.dev.zeros((4, N), np.uint32, role="append")
        self.shown: list[Any] = []

    def run(self) -> None:
        shown = self.rows[0].view("w")
        self.shown.append(shown)

    def check(self) -> None:
        assert self.rows.length == len(self.shown)

    def check_left(self) -> None:
        for shown in self.shown:
            shown[:] = 5
        del self.shown[:]
        if not self.rows.length:
            self.rows[0].fill(5)
        self.rows[1].fill(5)
        assert (self.rows[:2].numpy() == 5).all()
        assert self.rows.length == 2


class Launching(Case):
    """A launch that appends to two arrays."""

    def prepare(self) -> None:
        self.both = both_kernel(self.dev)
        self.logs = [self.dev.zeros((4, N), np.uint32, role="append") for _ in range(2)]
        self.launch()

    def launch(self) -> None:
        a, b = self.logs
        self.both(a[a.length], b[b.length])

    def run(self) -> None:
        self.launch()

    def check(self) -> None:
        length, other = (log.length for log in self.logs)
        assert length == other
        assert length in (1, 2)
        self.launch()
        for log in self.logs:
            assert (log[: length + 1].numpy() == 7).all()


class Sealing(Case):
    """`seal()`: neither the weight nor another array over its memory is written any more."""

    def prepare(self) -> None:
        mine = self.dev.host_empty(N, np.uint32)
        mine[:] = 1
        self.weight, self.other = self.dev.adopt(mine), self.dev.adopt(mine)

    def run(self) -> None:
        self.weight.seal()

    def check(self) -> None:
        sealed = self.weight.role == "weight"
        for array in (self.other, self.weight):
            with pytest.raises(ps.RoleViolation) if sealed else contextlib.nullcontext():
                slow_add(array, 1, spin=0)
        assert set(self.weight.numpy().tolist()) == {1 if sealed else 3}


class MakingAndClosingStreams(Case):
    """A stream is made, used, closed, and another dropped: the device can still be closed."""

    def prepare(self) -> None:
        self.x = self.dev.zeros(N, np.uint32)

    def run(self) -> None:
        stream = self.dev.stream()
        slow_add(self.x, 1, stream, spin=0)
        stream.close()
        self.dev.stream()

    def check(self) -> None:
        self.dev.synchronize()
        value = self.x[0].item()
        assert value in (0, 1)
        assert not self.dev.scheduler.has_hidden_streams()
        slow_add(self.x, 1, spin=0)
        assert self.x[0].item() == value + 1

    def check_left(self) -> None:
        del self.x  # whose ledger page may be the last to know a stream
        for _ in range(3):
            self.dev.synchronize()
            assert self.dev.memory  # a safe moment to act on what was forgotten
        assert self.dev.scheduler.all_streams() == {self.dev.default_stream}


class TakingMemory(Case):
    """Memory is taken, adopted, renamed, grown and dropped: all of it is given back."""

    def prepare(self) -> None:
        self.mine = np.zeros(4 * mmap.PAGESIZE, np.uint8)
        first = -self.mine.ctypes.data % mmap.PAGESIZE
        self.pages = self.mine[first : first + 2 * mmap.PAGESIZE].view(np.uint32)
        self.before = self.in_use()

    def in_use(self) -> tuple[int, int]:
        gc.collect()
        self.dev.synchronize()
        found = self.dev.memory
        return found.used + found.pending, found.adopted

    def run(self) -> None:
        self.dev.empty(1 << 12)
        adopted = self.dev.adopt(self.pages)
        del adopted
        shared = self.dev.host_empty(N, np.uint32)
        adopted = self.dev.adopt(shared)
        del adopted, shared
        renamed = self.dev.zeros(N, np.uint32)
        slow_add(renamed, 1, spin=0)
        renamed.write(np.ones(N, np.uint32))
        renamed.close()
        with self.dev.scratch() as scratch:
            scratch.array(N).fill(1)
            scratch.array(100 * N, keep=True)
        for _ in range(2):  # the second may get the memory of the first at once
            self.dev.empty(N, role="scratch").fill(1)
        changed = self.dev.zeros(N, np.uint32)
        for _ in range(3):  # so may the results from the second on
            changed.copy()
            slow_add(changed, 1, spin=0)

    def check(self) -> None:
        adopted = self.dev.adopt(self.pages)
        slow_add(adopted, 1, spin=0)
        assert set(adopted.numpy().tolist()) == {1}

    def check_left(self) -> None:
        self.in_use()  # frees what was in use
        assert self.in_use() == self.before


class UsingGraphs(Case):
    """A graph is encoded, replayed and closed, and another is dropped: they leave nothing."""

    def prepare(self) -> None:
        self.x = self.dev.zeros(N, np.uint32)
        self.graphs = [self.record() for _ in range(3)]
        for graph in self.graphs[1:]:
            graph.replay()

    def record(self) -> ps.Graph:
        with self.dev.record(x=self.x) as graph:
            slow_add(self.x, 1, spin=0)
            block_sum(self.x, 1, np.ones(100, np.uint32))  # whose arguments are the graph's
            slow_add(self.x, 0, spin=0)
        return graph

    def run(self) -> None:
        self.graphs[0].replay()
        self.graphs.pop(0).close()
        self.graphs.pop(0)

    def check(self) -> None:
        assert self.x[0].item() in (2, 3)
        self.graphs[-1].replay()
        assert self.x[0].item() in (3, 4)
        assert self.x[1].item() == block_sum_of(np.ones(100, np.uint32))

    def check_left(self) -> None:
        assert len(self.x.buffer.graphs) >= 1  # not renamed while there is one
        del self.graphs[:]
        self.dev.synchronize()
        assert self.dev.memory  # a safe moment to act on what was forgotten
        assert not self.x.buffer.graphs
        assert not self.dev.scheduler.retirement.graphs


@functools.lru_cache(1)
def append_kernel(dev: ps.Device) -> ps.Kernel:
    return new_kernel(dev, APPEND, "append", append_reference)


@functools.lru_cache(1)
def both_kernel(dev: ps.Device) -> Any:
    def reference(x: Any, y: Any) -> None:
        x[:] = y[:] = 7

    both = "x[i] = 7u; y[i] = 7u"
    return dev.elementwise(both, "out uint32 x, out uint32 y", reference=reference)


CASES: tuple[type[Case], ...] = (
    RecordingGraph, GrowingRing, Appending, Resetting, Advancing, Viewing, Launching, Sealing,
    MakingAndClosingStreams, TakingMemory, UsingGraphs,
)  # fmt: skip
FINER = 8  # times as many points as of a program: cases are short


def try_case(case: type[Case], dev: ps.Device, number: int) -> int:
    """Interrupt a call at a point, and check what comes of it; how many points it has, if fewer."""
    each, place = case(dev), ""
    kept: list[BaseException] = []
    try:
        count, place = at_point(number, interrupt, each.run, kept)
        each.check()
        del kept[:]
        gc.collect()
        each.check_left()
    except BaseException as error:
        error.add_note(f"at point {number}: {place}")
        raise
    return 0 if place else count


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("driver", DRIVERS[:2])
def test_an_interrupted_call_is_done_or_not_done(
    driver: str, case: type[Case], record_property: Callable[[str, object], None]
) -> None:
    with opened(driver) as dev:
        for _ in range(2):  # everything is compiled, and memory is there
            case(dev).run()
        # Not all at once: how many points there are depends on what came before.
        tried = itertools.count(1, max(1, STRIDE // FINER))
        count = next(filter(None, (try_case(case, dev, number) for number in tried)))
        for number in (2, 3, count - 2, count - 1, count):
            try_case(case, dev, number)
    record_property("points", count)


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_shares_no_value_with_one_that_was_interrupted(seed: int) -> None:
    """Else it would count as made when the interrupted one, which copies nothing, is done."""
    with simulated(seed, transfers="ordered") as dev:
        x = dev.zeros(N, np.uint32)
        slow_add(x, 1)  # so that the copies have something to wait for
        copier: Any = dev.default_stream.copier
        tasks = copier._tasks

        class Interrupted:
            """Takes the task, and then Ctrl-C comes."""

            empty, get = tasks.empty, tasks.get

            def put(self, task: Any) -> None:
                tasks.put(task)
                raise KeyboardInterrupt

        copier._tasks = Interrupted()
        lost, made = np.full(N, 5, np.uint32), np.full(N, 7, np.uint32)
        with pytest.raises(KeyboardInterrupt):
            x.write(lost, borrow=True)
        copier._tasks = tasks
        slow_add(x, 1)  # so that the next copy has more to wait for
        x.write(made, borrow=True)
        assert (x.numpy() == 7).all()


def test_the_callers_memory_outlives_its_import() -> None:
    """Whatever interrupts the end of an adopted array: the driver forgets the memory first."""

    def end(arrays: list[ps.Array], dev: ps.Device) -> None:
        arrays.pop().close()
        dev.trim()  # which tidies up

    for point in itertools.count(1):
        with simulated(0) as dev:
            own = mmap.mmap(-1, mmap.PAGESIZE)
            arrays = [dev.adopt(np.frombuffer(own, np.uint32))]
            slow_add(arrays[0], 1, spin=0)
            dev.synchronize()
            _, place = at_point(point, interrupt, functools.partial(end, arrays, dev))
            driver: Any = dev.scheduler.driver
            imported = any(each.imported for each in driver.machine.memories.values())
            try:
                own.close()  # refused while an array shows the memory
                gone = True
            except BufferError:
                gone = False
            assert not (gone and imported), place
            dev.trim()
            if not place:
                assert gone
                break
    assert point > 20
