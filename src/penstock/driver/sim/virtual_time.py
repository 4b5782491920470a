"""Virtual time: a simulated device whose commands take time, on the same clock as the host's calls.

    with ps.Device(driver="sim", seed=3) as dev, virtual_time(dev.scheduler.driver) as clock:
        with ps.trace() as t:
            ...
            clock.sleep(2e-3)  # the program does something else; the device goes on meanwhile

The adversary of `machine` has no notion of time. Here every step happens at the earliest tick at
which the protocol allows it: a submission starts `LATENCY` after the call, or when its waits are
reached; a command begins when its barrier is complete, and ends after its duration; commands that
no barrier separates overlap. Host time passes only in calls of the driver (`CALL`, `SUBMIT`,
`COMPILE`), in host copies (`COPY_RATE`), in waits, and in `sleep`. All of it follows from the seed.

The device is simulated up to the host's time whenever the host calls the driver, and beyond it when
the host waits. A host copy in stream order is made by an actor at the device's time, as a thread of
the runtime would: it takes none of the host's.

A tick is 2**-20 s, so that sums and differences of times are exact in floating point.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.errors import Error
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.driver.sim.driver import SimDriver
    from penstock.driver.sim.machine import Command, Machine, SimQueue, Submission

TICK = 2.0**-20  # seconds
_START = 1 << 20  # ticks; more than 0, which stands for "not measured" in events
CALL = 1  # ticks of a call of the driver
SUBMIT = 4  # ticks of a submission
COMPILE = 1 << 10  # ticks of making a program
_COSTS = {"submit": SUBMIT, "program": COMPILE}
COPY_RATE = 1 << 12  # bytes that the host copies in a tick
_DURATIONS = (8, 64)  # ticks of a command: a random number from the first to the last


class VirtualTime:
    """The clock of one simulated device and of the host. Made by `virtual_time`."""

    def __init__(self, machine: Machine, seed: int, command: float | None) -> None:
        self._machine = machine
        self._chance = random.Random(f"durations {seed}")
        self._fixed = None if command is None else ticks_of(command)
        self._host = self._device = _START
        self._actor: int | None = None  # the time of the actor that is running
        self._ends: list[tuple[int, tuple[SimQueue, Command]]] = []  # of the running commands
        self._signals: list[tuple[int, Callable[[], None]]] = []  # by actors, when their copy ends
        self._acting: dict[Callable[[], bool], int] = {}  # by actor: when its copy ends
        self._condition: Callable[[], bool] | None = None  # what the host waits for
        self._made_true = 0  # the end of the copy by which an actor makes it true
        self._lasts = 0  # the duration of the command that begins
        self._busy = 0

    def __call__(self) -> float:
        return self.now * TICK

    @property
    def now(self) -> int:
        """The time in ticks: the host's, or that of the actor that is running."""
        return self._host if self._actor is None else self._actor

    @property
    def busy(self) -> float:
        """Seconds in which at least one command ran, by the machine's own account.

        It is kept tick by tick, as the machine runs, and not made from the timestamps of commands.
        """
        return self._busy * TICK

    def sleep(self, seconds: float) -> None:
        """Let the host's time pass, as a program does that is busy with something else."""
        self.spend(ticks_of(seconds))
        self.catch_up()

    def takes(self, seconds: float) -> None:
        """Called by the Python reference of a kernel: how long the launch takes on the device."""
        self._lasts = ticks_of(seconds)

    def spend(self, ticks: int) -> None:
        """Let the time of the host, or of the running actor, pass. The device is not moved on."""
        if self._actor is None:
            self._host += ticks
        else:
            self._actor += ticks

    def called(self, name: str) -> None:
        """Let the time of a call of the driver pass."""
        self.spend(_COSTS.get(name, CALL))

    def copied(self, nbytes: int) -> None:
        self.spend(-(-nbytes // COPY_RATE))

    # The machine's steps, each at its time.

    def catch_up(self) -> None:
        """Simulate the device up to the host's time."""
        if self._actor is not None:
            return  # called by an actor, and so in the middle of this
        while True:
            self._step()
            soonest = self._soonest()
            if soonest is None or soonest > self._host:
                break
            self._pass(soonest)
        self._pass(self._host)

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Simulate the device until the condition holds: the host waits until then.

        An actor makes it hold as soon as it begins its copy; the host then waits for its end, too.
        """
        self.catch_up()
        self._condition, self._made_true = condition, 0
        while not condition() or self._device < self._made_true:
            soonest = self._soonest()
            if soonest is None:
                raise Error("simulator: deadlock; the host waits, and nothing can happen any more")
            self._pass(soonest)
            self._step()
        self._condition = None
        self._host = max(self._host, self._device)

    def run_dry(self) -> None:
        self.catch_up()
        while (soonest := self._soonest()) is not None:
            self._pass(soonest)
            self._step()

    def signal(self, raise_timeline: Callable[[], None]) -> None:
        """Raise a timeline from the host, or from an actor when the time of its copy has passed."""
        if self._actor is None:
            self.catch_up()
            raise_timeline()
        else:
            self._signals.append((self._actor, raise_timeline))

    def _pass(self, until: int) -> None:
        """Move the device's time on, to which nothing happens in between."""
        if until > self._device:
            if self._ends:
                self._busy += until - self._device
            self._device = until

    def _soonest(self) -> int | None:
        """The next time at which anything can happen, after everything at this one has."""
        times = [end for end, _ in self._ends]
        times += [head.ready for head in self._startable()]
        times += [at for at, _ in self._signals]
        times += [until for until in self._acting.values() if until > self._device]
        return min(times, default=None)

    def _startable(self) -> list[Submission]:
        heads = [fifo[0] for fifo in self._machine.fifos if fifo]
        return [head for head in heads if all(t.reached >= v for t, v in head.waits)]

    def _step(self) -> None:
        """Take all steps that can be taken at this time, in a fixed order."""
        machine = self._machine
        while True:
            for head in self._startable():
                if head.ready <= self._device:
                    machine.start(head.queue.fifo)
                    head.began = self._device
                    break
            else:
                signals = [each for each in self._signals if each[0] <= self._device]
                ended = [each for each in self._ends if each[0] <= self._device]
                begun = [each for each in machine.waiting if each[0].complete_to(each[1].after)]
                done = machine.signallable()
                if signals:
                    self._signals.remove(signals[0])
                    signals[0][1]()
                elif ended:
                    self._end(*ended[0])
                elif begun:
                    self._begin(begun[0])
                elif done:
                    machine.raise_timeline(done[0])
                elif not self._act():
                    return

    def _begin(self, entry: tuple[SimQueue, Command]) -> None:
        self._lasts = self._chance.randint(*_DURATIONS) if self._fixed is None else self._fixed
        self._machine.begin(entry)  # its reference may call `takes`
        entry[1].began = self._device
        self._ends.append((self._device + self._lasts, entry))

    def _end(self, end: int, entry: tuple[SimQueue, Command]) -> None:
        self._ends.remove((end, entry))
        self._machine.end(entry)
        entry[1].ended = self._device

    def _act(self) -> bool:
        """Let the actors do what they can, each at the device's time; whether any did anything."""
        acted = False
        for actor in list(self._machine.actors):
            if self._acting.get(actor, 0) > self._device:
                continue  # a thread makes one copy at a time
            waits = self._condition is not None and not self._condition()
            self._actor = self._device
            try:
                acted = actor() or acted
                self._acting[actor] = self.now
            finally:
                self._actor = None
            if waits and self._condition is not None and self._condition():
                self._made_true = self._acting[actor]
        return acted


def ticks_of(seconds: float) -> int:
    """The nearest number of ticks."""
    return round(seconds / TICK)


@contextlib.contextmanager
def virtual_time(driver: SimDriver, *, command: float | None = None) -> Iterator[VirtualTime]:
    """Let a simulated device run in virtual time, and take the time of all events from its clock.

    It is opened before the trace and closed after it, with no other device in use: their times
    would be of another clock. `command` is the duration of every command in seconds; without it,
    the seed decides each.
    """
    machine = driver.machine
    machine.run_dry()
    clock = VirtualTime(machine, driver.seed, command)
    events.use_clock(clock)
    machine.time = clock
    try:
        yield clock
    finally:
        machine.run_dry()
        machine.time = None
        events.use_clock(None)
