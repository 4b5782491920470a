"""Programs in several threads: which calls depend on each other, and how to run the rest at once.

A program is a sequence of calls. Of that order, only the part that its outcome depends on is kept;
all other calls may run in any thread and order. So the oracle can ignore threads.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import penstock as ps
from penstock.conformance.parts import Part
from penstock.conformance.program import (
    Drop,
    Length,
    Operation,
    Poke,
    Program,
    Renew,
    Reset,
    Synchronize,
    Touch,
    View,
    accesses_of,
    parts_of,
)
from penstock.driver.protocol import as_inline

#: A call: its thread, the function, and the numbers of the calls that must return before it.
Step = tuple[int, Callable[[], object], set[int]]

_SLICE = 0.1  # seconds; a joining thread wakes up this often


def thread_of(program: Program, number: int) -> int:
    """Return the operation's thread: that of its stream, or by its number if it has none."""
    stream: int = getattr(program.operations[number], "stream", number)
    return stream % program.threads


def dependencies(program: Program) -> list[set[int]]:
    """For each operation, the earlier ones that it depends on, without those implied by others."""
    operations = program.operations
    views = {each.slot: each.of.array for each in operations if isinstance(each, View)}
    touched = [_touched(each, program, views) for each in operations]
    found: list[set[int]] = []
    implied: list[set[int]] = []
    for number, operation in enumerate(operations):
        needed: set[int] = set()
        before: set[int] = set()
        for other in reversed(range(number)):
            if other not in before and (
                _depends(operation, operations[other])
                or any(a.conflicts(b) for a in touched[other] for b in touched[number])
            ):
                needed.add(other)
                before |= {other, *implied[other]}
        found.append(needed)
        implied.append(before)
    return found


def _depends(later: Operation, earlier: Operation) -> bool:
    """Whether two operations name the same slot or stream, or one of them synchronizes."""
    if isinstance(later, Synchronize) or isinstance(earlier, Synchronize):
        return True
    return any(
        getattr(later, name, None) == getattr(earlier, name, -1) for name in ("slot", "stream")
    )


class _Touched(NamedTuple):
    """An access to a part of an array or, if `part` is None, to a whole allocation.

    Several arrays may share an allocation.
    """

    memory: int
    part: Part | None
    write: bool

    def conflicts(self, other: _Touched) -> bool:
        if self.memory != other.memory or not (self.write or other.write):
            return False
        if self.part is None or other.part is None or self.part.array != other.part.array:
            return True
        return self.part.overlaps(other.part)


def _touched(operation: Operation, program: Program, views: dict[int, int]) -> list[_Touched]:
    # Holding or dropping a view affects every operation on the memory, so it conflicts with all.
    match operation:
        case Renew(array=array) | Reset(array=array) | Length(array=array):
            return [_Touched(_memory(program, array), None, True)]
        case View(of=Part(array=array)):
            return [_Touched(_memory(program, array), None, True)]
        case Touch(slot=slot) | Drop(slot=slot):
            return [_Touched(_memory(program, views[slot]), None, True)]
    written = [part for part, write in accesses_of(operation) if write]
    return [
        _Touched(_memory(program, part.array), part, isinstance(operation, Poke) or part in written)
        for part in parts_of(operation)
    ]


def _memory(program: Program, array: int) -> int:
    """The number of the first array over the same memory."""
    while program.arrays[array].how == "again":
        array -= 1
    return array


def together(device: ps.Device, steps: Sequence[Step], seed: int = 0) -> None:
    """Run the calls concurrently in their threads, each after those it depends on.

    On the simulator one thread runs at a time. The seed chooses which, at every call and, within
    calls, whenever the device's lock is not held. So a program in threads replays exactly, too.
    """
    kind = _InTurns if device.scheduler.driver.inline else _AtOnce
    kind(device, steps, seed).run()


class _Stopped(BaseException):
    """Ends a thread because another one failed."""


class _AtOnce:
    """Threads that the operating system schedules."""

    def __init__(self, device: ps.Device, steps: Sequence[Step], seed: int) -> None:
        self.device = device
        self.steps = steps
        self.chance = random.Random(seed)
        self.changed = threading.Condition()
        self.alive = {thread for thread, _, _ in steps}
        self.called: set[int] = set()
        self.error: BaseException | None = None

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in sorted(self.alive)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_SLICE)
        except BaseException as error:
            self._stop(error)
            raise
        if self.error is not None:
            raise self.error

    def _work(self, me: int) -> None:
        try:
            self._begin(me)
            for number, (thread, call, after) in enumerate(self.steps):
                if thread == me:
                    self._wait_for(me, after)
                    call()
                    with self.changed:
                        self.called.add(number)
                        self.changed.notify_all()
        except BaseException as error:
            self._stop(error)
        finally:
            self._end(me)

    def _stop(self, error: BaseException) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def _check(self) -> None:
        if self.error is not None:
            raise _Stopped

    def _begin(self, me: int) -> None: ...

    def _end(self, me: int) -> None: ...

    def _wait_for(self, me: int, after: set[int]) -> None:
        with self.changed:
            self.changed.wait_for(lambda: after <= self.called or self.error is not None)
        self._check()


class _InTurns(_AtOnce):
    """Threads that run one at a time, in an order that the seed chooses."""

    turn = 0

    def run(self) -> None:
        self.turn = min(self.alive, default=0)
        driver = as_inline(self.device.scheduler.driver)
        assert driver is not None
        actors = [self._actor(me) for me in sorted(self.alive)]
        for actor in actors:
            driver.attend(actor)
        try:
            with mock.patch.object(
                self.device.scheduler.shutdown, "dismiss_guests", self._let_leave
            ):
                super().run()
        finally:
            for actor in actors:
                driver.leave(actor)

    def _actor(self, me: int) -> Callable[[], bool]:
        """Return a function that the driver calls in this thread, to let another thread run."""
        lock: Any = self.device.scheduler.lock

        def go_on() -> bool:
            if self.turn != me or lock._is_owned() or len(self.alive) < 2:
                return False
            self._pass_on(me, self.alive)
            return True

        return go_on

    def _let_leave(self) -> None:
        """Called by the thread that closes the device: run the others until none is inside it."""
        me, ident = self.turn, threading.get_ident()
        while any(guest.thread != ident for guest in self.device.scheduler.shutdown.guests.copy()):
            self._pass_on(me, self.alive - {me})

    def _begin(self, me: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == me or self.error is not None)

    def _wait_for(self, me: int, after: set[int]) -> None:
        self._pass_on(me, self.alive)
        while not after <= self.called:
            self._pass_on(me, self.alive - {me})

    def _end(self, me: int) -> None:
        with self.changed:
            self.alive.discard(me)
            if self.alive:
                self.turn = self.chance.choice(sorted(self.alive))
            self.changed.notify_all()

    def _pass_on(self, me: int, others: set[int]) -> None:
        with self.changed:
            self.turn = self.chance.choice(sorted(others))
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.turn == me or self.error is not None)
        self._check()
