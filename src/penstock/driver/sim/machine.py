"""The scheduler of the simulator: runs submissions, commands and copies in any permitted order.

Nothing runs by itself. Whenever the layer above calls the driver, a seeded adversary may take some
steps: start a submission, let a command read its inputs or write a piece of its outputs, raise a
timeline, make a pending host copy. When the host waits, the adversary takes steps until what the
host waits for is reached. (`virtual_time` takes the steps in another order: as soon as they can be
taken, with commands that last.)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.driver.sim.clocks import HOST, Clock, Doing, join
from penstock.driver.sim.memory import Bytes, SimMemory
from penstock.errors import Error

if TYPE_CHECKING:
    from penstock.driver.sim.virtual_time import VirtualTime

LATENCY = 3  # ticks of virtual time from a submission to its first command, at least


class SimTimeline:
    """A counter, and what an agent knows once it has seen the counter reach a value."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.reached = self.seen = 0
        self.ordered: dict[int, Clock] = {}  # by value: what is complete
        self.published: dict[int, Clock] = {}  # by value: what is host-visible

    def value(self) -> int:
        self._machine.let_things_happen()
        self._machine.host_saw(self)
        self._machine.tell_failures()
        return self.reached

    def at(self, value: int) -> int:
        """The value of the first signal that reached `value`."""
        return min(signalled for signalled in self.ordered if signalled >= value)

    def close(self) -> None: ...


#: A byte range of a memory.
Place = tuple[SimMemory, int, int]


@dataclass(slots=True)
class Command:
    """A command of a queue: reads, then computes, then writes."""

    what: str
    where: str
    inputs: list[Place]  # what `compute` gets
    reads: list[Place]  # the part of `inputs` that it really reads
    writes: list[Place]
    compute: Callable[[list[Bytes]], list[Bytes]]
    number: int = 0
    after: int = 0  # commands up to this number must be complete before it starts
    ordered: Clock = field(default_factory=dict)  # what is complete when it starts
    visible: Clock = field(default_factory=dict)  # the part of that which is visible to it
    outputs: list[tuple[SimMemory, int, Bytes]] | None = None  # once it has started
    began: int = 0  # in virtual time
    ended: int = 0


@dataclass(slots=True)
class Submission:
    queue: SimQueue
    commands: list[Any]  # Command, or "barrier", "publish", "acquire"
    waits: list[tuple[SimTimeline, int]]
    timeline: SimTimeline
    value: int
    host_known: Clock  # what the host knew, and its own accesses, when it submitted
    last: int = 0  # number of its last command
    ordered: Clock = field(default_factory=dict)  # what is complete when it is
    published: Clock = field(default_factory=dict)  # the part of that which is host-visible
    ready: int = 0  # in virtual time: when the device has heard of it
    began: int = 0


class SimQueue:
    """A stream's queue: numbers its commands, and tracks what is ordered before the next one."""

    def __init__(self, machine: Machine, agent: int, fifo: deque[Submission]) -> None:
        self.machine = machine
        self.agent = agent
        self.fifo = fifo  # shared with the other streams on the same hardware queue
        self.ordered: Clock = {}
        self.visible: Clock = {}
        self.published: Clock = {}
        self.numbers = 0
        self.barrier_at = 0
        self.incomplete: list[int] = []
        self.held_back: Clock = {}  # host copies waited for, not yet acquired

    def complete_to(self, number: int) -> bool:
        return not self.incomplete or self.incomplete[0] > number

    def start(self, submission: Submission) -> Iterator[Command]:
        """Number each command of a submission and set its clocks."""
        for timeline, value in submission.waits:
            join(self.published, timeline.published[timeline.at(value)])
            clock = dict(timeline.ordered[timeline.at(value)])
            join(self.ordered, clock)
            copies = clock.pop(HOST, 0)
            self.held_back[HOST] = max(copies, self.held_back.get(HOST, 0))
            join(self.visible, clock)
        join(self.ordered, submission.host_known)
        join(self.visible, submission.host_known)
        for entry in submission.commands:
            if entry == "barrier":
                self.barrier_at = self.numbers
                join(self.ordered, {self.agent: self.numbers})
                join(self.visible, {self.agent: self.numbers})
            elif entry == "publish":
                join(self.published, {self.agent: self.numbers})
            elif entry == "acquire":
                join(self.visible, self.held_back)
            else:
                self.numbers += 1
                entry.number = self.numbers
                entry.after = self.barrier_at
                entry.ordered, entry.visible = dict(self.ordered), dict(self.visible)
                self.incomplete.append(self.numbers)
                yield entry
        submission.last = self.numbers
        submission.ordered = {**self.ordered, self.agent: self.numbers}
        submission.published = dict(self.published)


class Machine:
    """All possible next steps, and the seeded adversary that picks one."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        # How much runs before the host waits: from nothing to nearly everything.
        self._eagerness = self.chance.choice((0.0, 0.1, 0.5, 2.0, 8.0))
        self.reports: list[str] = []
        self.host_number = 0
        self.host_ordered: Clock = {}
        self.host_visible: Clock = {}
        self.memories: dict[int, SimMemory] = {}
        self.fifos: list[deque[Submission]] = []
        self.actors: list[Callable[[], bool]] = []
        self.waiting: list[tuple[SimQueue, Command]] = []
        self._running: list[tuple[SimQueue, Command]] = []
        self._unsignalled: list[Submission] = []
        self._acting: set[int] = set()
        self._failures: deque[BaseException] = deque()  # not yet raised
        self.time: VirtualTime | None = None  # orders the steps, in place of the adversary

    # The host.

    def host_did(self, memory: SimMemory, lo: int, hi: int, *, write: bool, where: str) -> None:
        """Note that the host has written, or is about to read, these bytes."""
        self._check_alive(memory, "the host", where)
        self.host_number += 1
        doing = Doing(lo, hi, write, HOST, self.host_number, "the host", where)
        ordered = {**self.host_ordered, HOST: self.host_number}
        visible = {**self.host_visible, HOST: self.host_number}
        # Accesses before a host write need only be complete, not visible to the host.
        self._log(memory, doing, ordered, ordered if write else visible)
        if write:
            memory.write(HOST, self.host_number, lo, memory.host[lo:hi], on_host=True)
        else:
            memory.arrive(lo, hi, visible, device=False)

    def host_saw(self, timeline: SimTimeline) -> None:
        """Note that the host has read the value of a timeline."""
        if timeline.reached == timeline.seen:
            return
        timeline.seen = timeline.reached
        join(self.host_ordered, timeline.ordered[timeline.reached])
        join(self.host_visible, timeline.published[timeline.reached])
        for memory in self.memories.values():
            if memory.is_watched:
                memory.arrive(0, memory.nbytes, self.host_visible, device=False)

    def host_knows(self) -> Clock:
        """The clock of a submission or signal made now, including the host's unannounced writes."""
        for memory in self.memories.values():
            for lo, hi, only in memory.unsaid_writes():
                self.host_number += 1
                content = memory.host[lo:hi]
                end = hi if only is None else lo + int(only.argmin())  # only the first piece
                doing = Doing(lo, end, True, HOST, self.host_number, "the host", "")
                ordered = {**self.host_ordered, HOST: self.host_number}
                self._log(memory, doing, ordered, ordered)
                memory.write(HOST, self.host_number, lo, content, on_host=True, only=only)
        return {**self.host_ordered, HOST: self.host_number}

    def signal(self, timeline: SimTimeline, value: int) -> None:
        if value <= timeline.reached:
            raise Error(f"simulator: a timeline at {timeline.reached} is signalled {value}")
        if self.time is not None:
            self.time.signal(partial(self._host_raises, timeline, value, self.host_knows()))
        else:
            self._host_raises(timeline, value, self.host_knows())

    def _host_raises(self, timeline: SimTimeline, value: int, known: Clock) -> None:
        timeline.ordered[value] = known
        timeline.published[value] = {}
        timeline.reached = value

    # The device.

    def submit(self, submission: Submission) -> None:
        if self.time is not None:
            submission.ready = self.time.now + LATENCY
        submission.queue.fifo.append(submission)
        try:
            self.let_things_happen()
        except BaseException as error:  # of a signal handler; the work is submitted all the same
            self._failures.append(error)

    def garbage(self, nbytes: int) -> Bytes:
        """Bytes that no kernel may depend on."""
        return np.frombuffer(self.chance.randbytes(nbytes), np.uint8)

    def let_things_happen(self) -> None:
        """Take a random number of steps, possibly none; in virtual time, those that are due."""
        if self.time is not None:
            self.time.catch_up()
            return
        while self.chance.random() < self._eagerness / (1 + self._eagerness):
            if not self._happen():
                return

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Take steps until the condition holds: the host waits."""
        if self.time is not None:
            self.time.run_until(condition)
        while not condition():
            if not self._happen():
                raise Error("simulator: deadlock; the host waits, and nothing can happen any more")
        self.tell_failures()

    def tell_failures(self) -> None:
        """Raise what a reference or a signal handler raised, once."""
        if self._failures:
            raise self._failures.popleft()

    def run_dry(self) -> None:
        if self.time is not None:
            self.time.run_dry()
        while self._happen():
            pass

    def _happen(self) -> bool:
        """Take one possible step, picked at random; False if there is none."""
        actions: list[Callable[[], bool | None]] = []
        for fifo in self.fifos:
            head = fifo[0] if fifo else None
            if head is not None and all(t.reached >= v for t, v in head.waits):
                actions.append(partial(self.start, fifo))
        actions += [
            partial(self.begin, entry)
            for entry in self.waiting
            if entry[0].complete_to(entry[1].after)
        ]
        actions += [partial(self._write_piece, entry) for entry in self._running]
        actions += [partial(self.raise_timeline, submission) for submission in self.signallable()]
        actions += [partial(self._act, a) for a in self.actors if id(a) not in self._acting]
        self.chance.shuffle(actions)
        return any(action() is not False for action in actions)

    def _act(self, actor: Callable[[], bool]) -> bool:
        self._acting.add(id(actor))
        try:
            return actor()
        finally:
            self._acting.discard(id(actor))

    def start(self, fifo: deque[Submission]) -> None:
        submission = fifo.popleft()
        queue = submission.queue
        self.waiting += [(queue, command) for command in queue.start(submission)]
        self._unsignalled.append(submission)

    def begin(self, entry: tuple[SimQueue, Command]) -> None:
        """Let a command read its inputs and compute; it writes its outputs later, in pieces.

        If a signal handler raises meanwhile, the command still waits, and begins again. A reference
        that raises writes nothing, and the next wait or poll of the host raises its error.
        """
        queue, command = entry
        for accesses, write in ((command.reads, False), (command.writes, True)):
            for memory, lo, hi in accesses:
                self._check_alive(memory, command.what, command.where)
                doing = Doing(
                    lo, hi, write, queue.agent, command.number, command.what, command.where
                )
                self._log(memory, doing, command.ordered, command.visible)
        inputs = [memory.read(lo, hi, command.visible) for memory, lo, hi in command.inputs]
        try:
            outputs = command.compute(inputs)
        except Exception as error:
            self._failures.append(error)
            command.outputs = []
        else:
            command.outputs = [
                piece
                for (memory, lo, _), content in zip(command.writes, outputs, strict=True)
                for piece in self._pieces(memory, lo, content)
            ]
        self._running.append(entry)
        self.waiting.remove(entry)

    def _pieces(
        self, memory: SimMemory, lo: int, content: Bytes
    ) -> list[tuple[SimMemory, int, Bytes]]:
        if len(content) < 2 or self.chance.random() < 0.5:
            return [(memory, lo, content)]
        cut = self.chance.randrange(1, len(content))
        return [(memory, lo, content[:cut]), (memory, lo + cut, content[cut:])]

    def _write_piece(self, entry: tuple[SimQueue, Command]) -> None:
        queue, command = entry
        assert command.outputs is not None
        if command.outputs:
            index = self.chance.randrange(len(command.outputs))
            memory, lo, content = command.outputs.pop(index)
            self._check_alive(memory, command.what, command.where)
            memory.write(queue.agent, command.number, lo, content, on_host=False)
        if not command.outputs:
            self._running.remove(entry)
            queue.incomplete.remove(command.number)

    def end(self, entry: tuple[SimQueue, Command]) -> None:
        """Let a command write the rest of its outputs."""
        while entry in self._running:
            self._write_piece(entry)

    def signallable(self) -> list[Submission]:
        """The submissions that are complete, and whose timelines can be raised."""
        return [
            submission
            for submission in self._unsignalled
            if submission.queue.complete_to(submission.last)
            and submission.timeline.reached == submission.value - 1
        ]

    def raise_timeline(self, submission: Submission) -> None:
        self._unsignalled.remove(submission)
        timeline, value = submission.timeline, submission.value
        timeline.ordered[value] = submission.ordered
        timeline.published[value] = submission.published
        timeline.reached = value

    def _check_alive(self, memory: SimMemory, what: str, where: str) -> None:
        if memory.freed:
            place = f", issued at {where}" if where else ""
            self.reports.append(f"use after free: {what} uses memory that was given back{place}")

    def _log(self, memory: SimMemory, doing: Doing, ordered: Clock, visible: Clock) -> None:
        raced = memory.log.add(doing, ordered, visible)
        if raced is not None:
            self.reports.append(f"race: {doing}; but {raced}, and nothing orders the two")
