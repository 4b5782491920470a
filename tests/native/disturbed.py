"""Disturbs the native step at every point inside its C code, and checks what comes of it.

    python -m tests.native.disturbed DRIVER DISTURBANCE [PROGRAM ...]

It needs the build of `tests/native/points.py`. The programs, and what must hold however far an
interrupted step came, are those of `tests/schedule/test_interrupts.py`. Two kinds of program are
not: "leaks" disturbs a launch at the same point again and again, and "closing" has another thread
close the device at the point. Prints how many points of each program it tried.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from penstock.conformance.interrupts import Interrupt
from penstock.launch import launch_memory
from penstock.schedule import shutdown
from tests.interrupts import STRIDE, chosen
from tests.kernels import FIRST, first, kernel, slow_add
from tests.native.points import Act, Kind, Points
from tests.schedule import test_interrupts
from tests.schedule.test_interrupts import Bench, Run, opened

N = test_interrupts.N
RUNS = 50  # on one device
REPEATS = 40  # of a call that is disturbed at one point
MOMENT = 0.003  # seconds that it waits for a thread that may need the device's lock
LONGEST = 60  # seconds for anything else

PROGRAMS = {
    # Several in one batch; batches that are submitted alone, whose command buffer is used again.
    "many": ("launch",) * 6 + ("numpy",),
    "lone": ("launch", "synchronize") * 4,
    "closed streams": ("launch", "launch_and_close", "launch", "launch_and_close"),
    **test_interrupts.PROGRAMS,
}


def some_of(count: int) -> Iterator[int]:
    """The points to try; more of them than of bytecodes, because there are fewer."""
    return chosen(count, max(1, STRIDE // test_interrupts.FINER))


class Disturbance(NamedTuple):
    kinds: Kind
    act: Act
    #: What is raised; or what makes, for a run, the function that is called and a check after that.
    what: Any


def interrupt(*_: Any) -> None:
    raise Interrupt


class Uses:
    """Uses of the device in the middle of a call: each works, or is refused."""

    def __init__(self, run: Run) -> None:
        self.run = run
        bench = run.bench
        self.bench, self.mine = bench, bench.dev.zeros(N, np.uint32)
        slow_add(self.mine, 0, spin=0)  # so that further launches are native
        self.made = 0
        self.wrong: list[BaseException] = []

    def _each(self) -> Iterator[Callable[[], object]]:
        bench, dev = self.bench, self.bench.dev
        yield self._launch
        yield lambda: self._launch(bench.stream)
        yield dev.default_stream.flush
        yield lambda: dev.zeros(8).numpy()
        yield lambda: dev.memory
        if bench.mapped:
            yield lambda: self.mine.view("rw")

    def _launch(self, stream: ps.Stream | None = None) -> None:
        slow_add(self.mine, 1, stream, spin=0)
        self.made += 1

    def act(self) -> None:
        for use in self._each():
            try:
                use()
            except ps.Reentered:
                pass
            except BaseException as error:
                self.wrong.append(error)

    def check(self) -> None:
        assert not self.wrong, self.wrong
        assert self.run.done
        assert set(self.mine.numpy().tolist()) == {self.made}


class Elsewhere(Uses):
    """The same, and more, by another thread, which waits where it must."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.thread = threading.Thread(target=super().act)

    def _each(self) -> Iterator[Callable[[], object]]:
        yield from super()._each()
        yield self._launch_on_another
        yield self.bench.dev.synchronize
        yield lambda: self.bench.dev.memory  # and so to release what is done

    def _launch_on_another(self) -> None:
        with self.bench.dev.stream() as stream:
            self._launch(stream)

    def act(self) -> None:
        start_meanwhile(self.thread, self.bench.dev)

    def check(self) -> None:
        if self.thread.ident is not None:
            self.thread.join(LONGEST)
            assert not self.thread.is_alive()
        super().check()


def start_meanwhile(thread: threading.Thread, dev: ps.Device) -> None:
    """Let another thread run, to its end unless it may need the lock that this one holds."""
    thread.start()
    thread.join(MOMENT if dev.scheduler.is_locked_here() else LONGEST)


DISTURBANCES = {
    "signal": Disturbance(~Kind(0), Act.SIGNAL, None),
    "interrupt": Disturbance(Kind.CALL, Act.RAISE, Interrupt),
    "memory": Disturbance(Kind.ALLOCATION, Act.RAISE, MemoryError),
    "finaliser": Disturbance(Kind.ALLOCATION | Kind.END, Act.CALL, Uses),
    "thread": Disturbance(~Kind.DRIVER, Act.CALL, Elsewhere),
}


def check_state(bench: Bench, *, strict: bool) -> None:
    """What the runtime knows of itself is consistent, and nothing is lost.

    `strict`: no signal came in the middle of a finaliser, which may lose a result slot.
    """
    scheduler: Any = bench.dev.scheduler
    assert not scheduler.is_locked_here()
    bench.dev.synchronize(timeout=LONGEST)
    assert not bench.dev.messages, bench.dev.messages[0]  # a race, or the validation layer's
    assert not scheduler.shutdown.guests
    for stream in scheduler.all_streams():
        lane = stream.lane
        assert lane.complete == lane.submitted == stream.recorded
        if hasattr(stream.timeline, "issued"):
            assert stream.timeline.issued == lane.submitted
        batches = [*stream._spare, *stream._in_flight]
        assert len(set(map(id, batches))) == len(batches), "a batch is spare twice, or in flight"
        assert not stream._batch.open
    for array in (bench.x, bench.other):
        page: Any = array.buffer.backing.history
        for access in (*page.reads, *page.writes):
            assert access.value <= access.lane.submitted
            assert access.epoch <= access.lane.epoch
    pool: Any = kernel(bench.dev, FIRST, "first").results
    made = pool._count - launch_memory._FIRST
    assert len(set(map(id, pool.free))) == len(pool.free), "a result slot is free twice"
    assert len(pool.free) == made or not strict, "a result slot is lost"


def disturb(points: Points, run: Run, how: Disturbance, number: int) -> None:
    """Run a program and disturb it at a point; check what comes of it."""
    what, uses = how.what, None
    if how.act is Act.CALL:
        uses = what(run)
        what = uses.act
    kept: list[BaseException] = []

    def attempt() -> None:
        try:
            run()
            for _ in range(3):  # where CPython looks for a signal that has arrived
                pass
        except (Interrupt, MemoryError) as error:
            kept.append(error)

    points.during(attempt, how.kinds, how.act, number, what)
    # A prompt keeps the exception, and what its frames have; but a view there is a view held.
    if {"view", "look"} & {step.__name__ for step in run._steps}:
        kept.clear()
    # Before anything is waited for: no launch gets the result slot of the interrupted one.
    assert int(first(run.bench.x, 5)) == run.bench.x[0].item() + 5
    run.check()
    kept.clear()
    if uses is not None:
        uses.check()
    del uses, what
    gc.collect()
    check_state(run.bench, strict=how.act is not Act.SIGNAL)


def try_points(points: Points, driver: str, name: str, how: Disturbance) -> int:
    """Disturb a program once at each of its points; how many were tried."""
    program = PROGRAMS[name]
    with opened(driver) as dev:
        for _ in range(2):  # everything is compiled, and memory is there
            Run(dev, program)()
        count = points.during(Run(dev, program), how.kinds, how.act, 0)[0]
    numbers, tried = some_of(count), 0
    while some := list(itertools.islice(numbers, RUNS)):
        with opened(driver, tried) as dev:
            Run(dev, program)()
            for number in some:
                try:
                    disturb(points, Run(dev, program), how, number)
                except BaseException as error:
                    where = f"at point {number} of {count}: {points.place}"
                    error.add_note(f"{driver}, {name}: {where}")
                    raise
            tried += len(some)
    return tried


def find_leaks(points: Points, driver: str, how: Disturbance) -> int:
    """Disturb single calls many times at each of their points; how many there are.

    A disturbed call may leave something that is still needed, but not more of it every time.
    """
    tried = 0
    with opened(driver) as dev:
        bench = Bench(dev)

        def attempt(step: Any, number: int) -> int:
            dev.synchronize()
            bench.launch(0)

            def call() -> None:
                # The value is not what the step expects: others have changed it.
                with contextlib.suppress(Interrupt, MemoryError, AssertionError):
                    step(0)

            return points.during(call, how.kinds, how.act, number, how.what)[0]

        def grows(step: Any, number: int) -> bool:
            gc.collect()
            before = sys.getallocatedblocks()
            for _ in range(REPEATS):
                attempt(step, number)
            dev.synchronize()
            gc.collect()
            return sys.getallocatedblocks() - before > REPEATS // 2

        for step in (bench.launch, bench.result, bench.result_dropped, bench.synchronize):
            for _ in range(3):
                count = attempt(step, 0)
            for number in range(1, count + 1):
                leaks = all(grows(step, number) for _ in range(3))
                assert not leaks, f"{step.__name__}: {points.place}"
            tried += count
    return tried


def close_meanwhile(points: Points, driver: str, how: Disturbance) -> int:
    """Have another thread close the device at each point of a program; how many there are.

    The program ends or raises `Closed`, and the last to use the device tears it down: `close` does
    not wait for a thread that still uses it.
    """
    shutdown._LEAVE_TIMEOUT = 0

    def attempt(number: int) -> int:
        with opened(driver) as dev:
            run = Run(dev, PROGRAMS["lone"])
            thread = threading.Thread(target=dev.close)

            def until_closed() -> None:
                with contextlib.suppress(ps.Closed):
                    run()

            close = partial(start_meanwhile, thread, dev)
            count, place = points.during(until_closed, how.kinds, how.act, number, close)
            if place:
                thread.join(LONGEST)
                assert not thread.is_alive(), place
                assert dev.scheduler.shutdown.torn_down, place
        return count

    numbers = list(some_of(attempt(0)))
    for number in numbers:
        attempt(number)
    return len(numbers)


def _unraisable(unraisable: Any) -> None:
    """In place of Python's report of an exception in a finaliser, after which it goes on."""
    if not isinstance(unraisable.exc_value, Interrupt | MemoryError):
        sys.__unraisablehook__(unraisable)


def main(driver: str, disturbance: str, *names: str) -> None:
    sys.unraisablehook = _unraisable
    signal.signal(signal.SIGINT, interrupt)
    gc.collect()
    gc.freeze()
    points = Points()
    how = DISTURBANCES[disturbance]
    for name in names or PROGRAMS:
        if name == "leaks":
            tried = find_leaks(points, driver, how)
        elif name == "closing":
            tried = close_meanwhile(points, driver, how)
        else:
            tried = try_points(points, driver, name, how)
        print(name, tried, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
