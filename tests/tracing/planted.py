"""Programs that leave a device idle for one planted reason, each with a twin that does not.

A program gets a `Scene`. The lines that its gap must be blamed on are marked with a comment.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from penstock import Cause
from tests.gate import held, held_until_waited
from tests.kernels import BLOCK_SUM, SLOW_ADD, kernel

N = 64
SLOTS = 48  # for arguments of launches in flight, with the bound that the tests set
LARGE = 1 << 19  # elements of 4 bytes: enough for the ordered path
ONES = np.ones(LARGE, np.uint32)


class Scene:
    """A device with two arrays and a kernel, and time that passes in the program."""

    def __init__(
        self, dev: ps.Device, clock: Any = None, amount: float = 0.02, command: float = 0.0
    ) -> None:
        self.dev = dev
        self.stream = dev.default_stream
        self.work = kernel(dev, SLOW_ADD, "work")
        self.x = dev.zeros(N, np.uint32, name="x")
        self.y = dev.zeros(N, np.uint32, name="y")
        self.large = dev.zeros(LARGE, np.uint32, name="large")
        self.amount = amount  #: seconds, or a part of `LARGE`: how much is planted
        self.args = {"n": N, "spin": 0, "add": 1, "threads": N}
        self.clock = clock  #: virtual time; None without
        self._command = command  # seconds of virtual time that one takes
        self.work(x=self.x, **self.args)  # the first call with an array is slower
        self.work(x=self.y, **self.args)
        dev.synchronize()

    def sleep(self) -> None:
        """Let the planted time pass."""
        if self.clock is None:
            time.sleep(self.amount)
        else:
            self.clock.sleep(self.amount)

    def settle(self) -> None:
        """Let the device finish what it has, without a wait."""
        if self.clock is not None:
            self.clock.sleep(2 * self._command)
        else:
            event = self.stream.record()
            while not event.done:
                time.sleep(0)
        self.stream.host_waits()  # the next command is submitted by the call that records it

    def gate(self) -> contextlib.AbstractContextManager[None]:
        """Keep the device from starting before the end of the block."""
        return contextlib.nullcontext() if self.clock is not None else held(self.stream)

    def gate_until_waited(self) -> contextlib.AbstractContextManager[None]:
        """Keep the device from starting before the host waits for something."""
        if self.clock is not None:
            return contextlib.nullcontext()
        return held_until_waited(self.stream)


Program = Callable[[Scene], None]


def sleeps(s: Scene) -> None:
    s.work(x=s.x, **s.args)  # before
    s.settle()
    s.sleep()
    s.work(x=s.x, **s.args)  # after


def sleeps_later(s: Scene) -> None:
    with s.gate():
        s.work(x=s.x, **s.args)
        s.work(x=s.x, **s.args)
        s.stream.flush()
    s.sleep()


def loads_slowly(s: Scene) -> None:
    def batches() -> Iterator[int]:
        for batch in range(3):
            s.settle()
            s.sleep()
            yield batch

    for batch in batches():
        s.x.write(np.full(N, batch, np.uint32))  # after
        s.work(x=s.x, **s.args)  # before


def loads_ahead(s: Scene) -> None:
    batches = []
    for batch in range(3):
        s.sleep()
        batches.append(np.full(N, batch, np.uint32))
    with s.gate():
        for loaded in batches:
            s.x.write(loaded)
            s.work(x=s.x, **s.args)


def reads_at_once(s: Scene) -> None:
    with s.gate_until_waited():
        s.work(x=s.x, **s.args)
        s.x.numpy()  # here
        s.work(x=s.y, **s.args)


def reads_later(s: Scene) -> None:
    with s.gate():
        s.work(x=s.x, **s.args)
        pending = s.x.read()
        s.work(x=s.y, **s.args)
    pending.result()


def writes_much(s: Scene) -> None:
    source = np.ones(int(LARGE * s.amount * 50), np.uint32)
    s.work(x=s.x, **s.args)
    s.settle()
    s.large[: source.size].write(source)  # here
    s.work(x=s.large, **s.args)


def writes_much_early(s: Scene) -> None:
    source = np.ones(int(LARGE * s.amount * 50), np.uint32)
    with s.gate():
        s.large[: source.size].write(source)
        s.work(x=s.x, **s.args)
        s.work(x=s.large, **s.args)


def holds_a_view(s: Scene) -> None:
    taken, launched = threading.Event(), threading.Event()

    def hold() -> None:
        view = s.y.view("w")  # taken
        taken.set()
        launched.wait()
        s.sleep()
        del view  # dropped

    s.work(x=s.x, **s.args)
    s.settle()
    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    s.work(x=s.y, **s.args)
    s.stream.flush()
    launched.set()
    holder.join()


def drops_the_view(s: Scene) -> None:
    view = s.y.view("w")
    del view
    with s.gate():
        s.work(x=s.x, **s.args)
        s.work(x=s.y, **s.args)
        s.stream.flush()
    s.sleep()


def compiles_late(s: Scene) -> None:
    s.work(x=s.x, **s.args)
    s.settle()
    late = s.dev.kernel(**_unseen(s))  # here
    late(y=s.y, threads=N)


def compiles_first(s: Scene) -> None:
    early = s.dev.kernel(**_unseen(s))
    with s.gate():
        s.work(x=s.x, **s.args)
        early(y=s.y, threads=N)


_unseen_number = 0


def _unseen(s: Scene) -> dict[str, Any]:
    """What to make a kernel from that no cache has."""
    global _unseen_number
    _unseen_number += 1
    add = time.time_ns() % 1_000_000_007 + _unseen_number
    if s.dev.info.driver == "hip":
        body = f"y[blockIdx.x * blockDim.x + threadIdx.x] += {add}u;"
        source = f'extern "C" __global__ void late(unsigned int *y) {{ {body} }}'
        return {"source": source, "signature": "inout uint32 y", "group_size": 64}
    source = f"""
        layout(local_size_x = 64) in;
        layout(binding = 0) buffer Y {{ uint y[]; }};
        void main() {{ y[gl_GlobalInvocationID.x] += {add}u; }}
    """
    return {"source": source, "reference": _add}


def _add(*, y: Any, threads: Any) -> None:
    y += np.uint32(1)


def waits_for_an_event(s: Scene) -> None:
    with s.dev.stream(name="loader") as loader, s.dev.stream(name="other") as other:
        s.work(x=s.large, **s.args, stream=loader)
        with held_copy(s, loader):
            event = loader.record()
            other.wait(event)  # here
            s.work(x=s.y, **s.args, stream=other)
            other.flush()
            s.sleep()
        other.synchronize()


def waits_for_the_bytes(s: Scene) -> None:
    """As with the event, but the work that waits uses the bytes that are copied."""
    with s.dev.stream(name="loader") as loader, s.dev.stream(name="other") as other:
        s.work(x=s.large, **s.args, stream=loader)
        with held_copy(s, loader):
            event = loader.record()
            other.wait(event)
            s.work(x=s.large, **s.args, stream=other)
            other.flush()
            s.sleep()
        other.synchronize()


def waits_for_no_event(s: Scene) -> None:
    with s.dev.stream(name="loader") as loader, s.dev.stream(name="other") as other:
        s.work(x=s.large, **s.args, stream=loader)
        with held_copy(s, loader):
            s.work(x=s.y, **s.args, stream=other)
            other.flush()
            s.sleep()
        other.synchronize()


@contextlib.contextmanager
def held_copy(s: Scene, stream: ps.Stream) -> Iterator[None]:
    """A large copy in the order of a stream, which is not made before the end of the block."""
    if s.dev.scheduler.driver.inline:
        s.large.write(ONES, stream, borrow=True)
        yield
        return
    making: threading.RLock = stream.copier._making  # type: ignore[assignment]
    with making:
        pending = s.large.write(ONES, stream, borrow=True)
        yield
    pending.wait()


def fills_the_ring(s: Scene) -> None:
    run = kernel(s.dev, BLOCK_SUM, "block_sum")
    args = {"at": 0, "n": 1, "spin": 0, "block": np.arange(100, dtype=np.uint32), "groups": 1}
    with s.gate_until_waited():
        with s.stream.batch():
            for _ in range(SLOTS):
                run(y=s.y, **args)
        run(y=s.y, **args)  # here


def stays_below_the_ring(s: Scene) -> None:
    run = kernel(s.dev, BLOCK_SUM, "block_sum")
    args = {"at": 0, "n": 1, "spin": 0, "block": np.arange(100, dtype=np.uint32), "groups": 1}
    with s.gate():
        with s.stream.batch():
            for _ in range(SLOTS - 1):
                run(y=s.y, **args)
        run(y=s.y, **args)


def leaves_a_tail(s: Scene) -> None:
    s.work(x=s.x, **s.args)
    s.settle()
    with s.stream.batch():
        s.work(x=s.x, **s.args)  # here
        s.sleep()


def flushes_the_tail(s: Scene) -> None:
    with s.gate():
        s.work(x=s.x, **s.args)
        with s.stream.batch():
            s.work(x=s.x, **s.args)
            s.stream.flush()
    s.sleep()


class Planted(NamedTuple):
    """A program, its twin, and what its gap must be blamed on."""

    faulty: Program
    repaired: Program
    cause: Cause
    marks: tuple[str, ...]
    advice: str  #: words of the advice
    command: float = 2.0**-14  #: seconds of virtual time that a command takes
    transfers: str = "auto"

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(line_of(self.faulty, mark) for mark in self.marks)


def line_of(program: Program, mark: str) -> str:
    """The file and line of a program that are marked with a comment."""
    source, first = inspect.getsourcelines(program)
    (number,) = (i for i, text in enumerate(source) if text.rstrip().endswith(f"# {mark}"))
    return f"{inspect.getsourcefile(program)}:{first + number}"


# fmt: off
PLANTED = {
    "a sleep": Planted(sleeps, sleeps_later, Cause.CALLER, ("before", "after"), "next launch"),
    "a slow loader": Planted(
        loads_slowly, loads_ahead, Cause.CALLER, ("before", "after"), "second stream", 2.0**-9
    ),
    "a blocking read": Planted(reads_at_once, reads_later, Cause.WAITED, ("here",), "x.read()"),
    "a big staged write": Planted(
        writes_much, writes_much_early, Cause.COPY, ("here",), "host_empty()", transfers="staged"
    ),
    "a held view": Planted(
        holds_a_view, drops_the_view, Cause.VIEW, ("taken", "dropped"), "view()"
    ),
    "a late compilation": Planted(compiles_late, compiles_first, Cause.COMPILE, ("here",), "warm"),
    "a needless event": Planted(
        waits_for_an_event,
        waits_for_no_event,
        Cause.OTHER,
        ("here",),
        "other.wait(event)",
        transfers="ordered",
    ),
    "a full ring": Planted(
        fills_the_ring, stays_below_the_ring, Cause.BOUND, ("here",), "as an array", 2.0**-20
    ),
    "an unsubmitted tail": Planted(
        leaves_a_tail, flushes_the_tail, Cause.UNSUBMITTED, ("here",), "flush()"
    ),
}
# fmt: on
