"""The simulated device: the driver protocol on top of `machine`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.driver.protocol import PLACE, CopyRegions, DeviceInfo, Notify, Reference
from penstock.driver.sim.machine import Command, Machine, Place, SimQueue, SimTimeline, Submission
from penstock.driver.sim.memory import Bytes, SimMemory
from penstock.driver.sim.virtual_time import TICK
from penstock.errors import Unsupported
from penstock.shader.interface import Interface, Member
from penstock.shader.source import KernelSource, LoadedKernel, load_spirv
from penstock.shader.texels import FORMATS, TexelFormat
from penstock.tracing import events

_LIMITS: dict[str, int | tuple[int, ...]] = {
    "allocation": 1 << 30,
    "binding_alignment": 16,
    "window_alignment": 1,  # of `Array.words`: a kernel accesses what it binds, to the byte
    "binding_range": 1 << 27,
    "bindings": 32,
    "group_count": (65535, 65535, 65535),
    "group_invocations": 1024,
    "group_size": (1024, 1024, 64),
    "import_alignment": 4096,
    "push_constants": 128,
    "shared_memory": 32768,
    "storage_texel_bindings": 4,
    "subgroup_size": 8,
    "texel_alignment": 64,
    "texel_bindings": 16,
    "texel_elements": 65536,
    "uniform_alignment": 64,
    "uniform_bindings": 15,
    "uniform_range": 65536,
}


class _EveryFeature(frozenset[str]):
    """Contains every feature: kernels run as Python functions, and need none."""

    def __contains__(self, name: object) -> bool:
        return True


class SimProgram:
    """A kernel as a Python function over NumPy arrays."""

    def __init__(self, interface: Interface, reference: Reference | None) -> None:
        if reference is None:
            raise Unsupported(
                "the simulator runs kernels as Python functions: give the kernel a reference="
            )
        self.interface = interface
        self.reference = reference


class SimTexelView:
    """Bytes of memory as texels."""

    def __init__(self, handle: int, memory: SimMemory, offset: int, texel: TexelFormat) -> None:
        self.handle = handle
        self.memory = memory
        self.offset = offset
        self.dropped = False
        self._texel = texel

    def texels(self, content: Bytes) -> npt.NDArray[Any]:
        """The texels as a kernel's reference gets them: a row for each, of its numbers."""
        texel = self._texel
        flat = content.view(texel.dtype)
        return flat if texel.count == 1 else flat.reshape(-1, texel.count)


class _Commands:
    """A list of commands."""

    def __init__(self, driver: SimDriver) -> None:
        self._driver = driver
        self.commands: list[Any] = []

    def begin(self) -> None:
        self._driver.called("begin")
        self.commands = []
        self._marks: list[int] = []  # by timestamp: how many commands are before it

    def mark(self, *, end: bool) -> int | None:
        if not self._driver.has_clock:
            return None
        self._marks.append(len(self.commands))
        return len(self._marks) - 1

    def _ticks_of(self, commands: Sequence[Any], began: int) -> list[int]:
        """The timestamps, which come in pairs around commands; `began` if there are none inside."""
        ticks: list[int] = []
        for lo, hi in zip(self._marks[::2], self._marks[1::2], strict=True):
            inside = [each for each in commands[lo:hi] if isinstance(each, Command)]
            ticks.append(min((each.began for each in inside), default=began))
            ticks.append(max((each.ended for each in inside), default=began))
        return ticks

    def dispatch(
        self,
        program: SimProgram,
        bindings: bytes,
        block: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        self._driver.called("dispatch")
        self._kernel(program, bindings, block, [], lambda _: groups)

    def dispatch_indirect(
        self,
        program: SimProgram,
        bindings: bytes,
        block: bytes,
        memory: SimMemory,
        offset: int,
    ) -> None:
        self._driver.called("dispatch_indirect")
        counts: list[Place] = [(memory, offset, offset + 12)]
        self._kernel(
            program, bindings, block, counts, lambda inputs: inputs[-1].view(np.uint32).tolist()
        )

    def _kernel(
        self,
        program: SimProgram,
        bindings: bytes,
        pushed: bytes,
        counts: list[Place],
        groups: Callable[[list[Bytes]], Iterable[int]],
    ) -> None:
        interface = program.interface
        places: list[Place] = []
        views: list[SimTexelView | None] = []
        driver, where = self._driver, events.user_line()
        all_bound = zip(interface.bindings, PLACE.iter_unpack(bindings), strict=True)
        for binding, (handle, offset, nbytes) in all_bound:
            view = driver.views[handle] if binding.is_texel else None
            views.append(view)
            memory = driver.machine.memories[handle] if view is None else view.memory
            places.append((memory, offset, offset + nbytes))
        access = [binding.access for binding in interface.bindings]

        def compute(inputs: list[Bytes]) -> list[Bytes]:
            arrays: dict[str, Any] = {}
            block = pushed
            bound = zip(interface.bindings, inputs, views, places, strict=False)
            for number, (binding, content, view, place) in enumerate(bound):
                if view is not None:
                    if view.dropped:
                        driver.messages.append(f"use after free: a view of texels, at {where}")
                    lead = place[1] - view.offset
                    whole = np.concatenate((driver.machine.garbage(lead), content))
                    inputs[number] = whole[lead:]
                    arrays[binding.name] = view.texels(whole)
                elif binding.purpose == "arguments":
                    block = content.tobytes()
                elif binding.purpose == "result":
                    arrays["result"] = _parts(interface.result, content)
                else:
                    arrays[binding.name] = content.view(binding.dtype or np.uint8)
            sizes = zip(groups(inputs), interface.local_size, strict=True)
            threads = tuple(count * size for count, size in sizes)
            if 0 not in threads:
                program.reference(**arrays, **_scalars(interface, block), threads=threads)
            return [c for c, mode in zip(inputs, access, strict=False) if mode != "r"]

        self._add(
            "a kernel",
            [*places, *counts],
            [place for place, mode in zip(places, access, strict=True) if mode != "w"] + counts,
            [place for place, mode in zip(places, access, strict=True) if mode != "r"],
            compute,
        )

    def copy(self, source: SimMemory, target: SimMemory, regions: CopyRegions) -> None:
        self._driver.called("copy")
        reads = [(source, int(lo), int(lo + size)) for lo, _, size in regions.tolist()]
        writes = [(target, int(lo), int(lo + size)) for _, lo, size in regions.tolist()]
        if source is target and any(a < d and c < b for _, a, b in reads for _, c, d in writes):
            self._driver.messages.append(
                f"forbidden: source and target of a copy overlap, at {events.user_line()}"
            )
        self._add("a copy", reads, reads, writes, lambda inputs: inputs)

    def fill(self, target: SimMemory, offset: int, nbytes: int, word: int) -> None:
        self._driver.called("fill")
        content = np.frombuffer(word.to_bytes(4, "little") * (nbytes // 4), np.uint8)
        place = (target, offset, offset + nbytes)
        self._add("a fill", [], [], [place], lambda inputs: [content])

    def barrier(self) -> None:
        self.commands.append("barrier")

    def _add(
        self,
        what: str,
        inputs: list[Place],
        reads: list[Place],
        writes: list[Place],
        compute: Callable[[list[Bytes]], list[Bytes]],
    ) -> None:
        self.commands.append(Command(what, events.user_line(), inputs, reads, writes, compute))


class SimReplayable(_Commands):
    """Commands that can be executed many times."""

    executed: Sequence[Any] = ()  # the commands of its last execution

    def ticks(self) -> list[int]:
        return self._ticks_of(self.executed, 0)

    def end(self) -> None:
        self._driver.called("end")

    def close(self) -> None: ...


class SimRecording(_Commands):
    """The commands of one submission."""

    def execute(self, replayable: SimReplayable, recorded: list[None]) -> None:
        self._driver.called("execute")
        replayable.executed = [
            replace(command) if isinstance(command, Command) else command
            for command in replayable.commands
        ]
        self.commands += replayable.executed
        recorded += [None]

    def begin(self) -> None:
        super().begin()
        self.submission: Submission | None = None

    def ticks(self) -> list[int]:
        began = 0 if self.submission is None else self.submission.began
        return self._ticks_of(self.commands, began)

    def publish(self) -> None:
        self.commands.append("publish")

    def acquire(self) -> None:
        self.commands.append("acquire")


class SimStreamQueue:
    """The queue that a stream submits to."""

    def __init__(self, driver: SimDriver, queue: SimQueue) -> None:
        self._driver = driver
        self._queue = queue
        self._submitted: tuple[SimTimeline, int] | None = None  # the last submission

    def recordings(self, count: int) -> list[SimRecording]:
        self._driver.called("recordings")
        self._driver.notify("recordings", 0)
        return [SimRecording(self._driver) for _ in range(count)]

    def submit(
        self,
        recording: SimRecording,
        waits: Sequence[tuple[SimTimeline, int]],
        timeline: SimTimeline,
        value: int,
    ) -> None:
        if self._submitted == (timeline, value):
            return  # an interrupted call has submitted it already
        self._driver.called("submit")
        machine = self._driver.machine
        known = machine.host_knows()
        commands = list(recording.commands)
        submission = Submission(self._queue, commands, list(waits), timeline, value, known)
        recording.submission = submission
        machine.submit(submission)
        self._submitted = (timeline, value)

    def close(self) -> None: ...


class SimDriver:
    """A simulated device. The same seed and the same calls give exactly the same run.

    With every fourth seed its memory is coherent. Host accesses then need no flush or invalidate
    that would announce them: values must still be right, but fewer races can be detected.
    """

    inline = True
    copies = False
    language = "spirv"
    checks_accesses = True

    def __init__(
        self,
        seed: int,
        notify: Notify,
        *,
        mapped: bool = True,
        queues: int = 2,
        fault: Callable[[str, int], BaseException | None] | None = None,
    ) -> None:
        self.notify = notify
        self.seed = seed
        self.machine = Machine(seed)
        self.queue_count = queues
        self._mapped = mapped
        self._coherent = seed % 4 == 3
        self._fault = fault
        self.calls: dict[str, int] = {}
        self._handles = 0
        self.views: dict[int, SimTexelView] = {}
        self._agents = 0
        self.machine.fifos = [deque() for _ in range(queues)]
        self.info = DeviceInfo(
            index=0,
            name=f"simulator (seed {seed})",
            kind="cpu",
            driver="sim",
            driver_info="penstock simulator",
            api_version="1",
            memory=1 << 30,
            uma=mapped,
            can_import=True,
            limits=_LIMITS,
            features=_EveryFeature(),
            texel_formats=frozenset(FORMATS),
        )

    @property
    def messages(self) -> list[str]:
        """The races seen so far, each with both accesses."""
        return self.machine.reports

    def called(self, name: str) -> None:
        """Count a call, and fail it if a fault is due."""
        count = self.calls[name] = self.calls.get(name, 0) + 1
        if self.machine.time is not None:
            self.machine.time.called(name)
        if self._fault is not None:
            error = self._fault(name, count)
            try:
                if error is not None:
                    raise error
            finally:
                del error  # breaks the reference cycle with its traceback

    def allocate(self, nbytes: int, *, host: bool) -> SimMemory:
        self.called("allocate")
        self.notify("memory", nbytes)
        mapped = host or self._mapped
        return self._memory(nbytes, mapped=mapped, shared=host or (mapped and self._coherent))

    def import_host(self, address: int, nbytes: int) -> SimMemory:
        self.called("import_host")
        self.notify("import of host memory", nbytes)
        return self._memory(nbytes, imported=address, shared=True)

    def _memory(self, nbytes: int, **options: Any) -> SimMemory:
        self._handles += 1
        chance = self.machine.chance
        memory = SimMemory(self._handles, nbytes, chance, coherent=self._coherent, **options)
        self.machine.memories[memory.handle] = memory
        return memory

    def free(self, memory: SimMemory) -> None:
        self.machine.memories.pop(memory.handle, None)
        memory.free()

    def texel_view(self, memory: SimMemory, offset: int, nbytes: int, texel: str) -> SimTexelView:
        self.called("texel_view")
        self.notify(f"view of texels ({texel})", 0)
        self._handles += 1
        view = SimTexelView(self._handles, memory, offset, FORMATS[texel])
        self.views[view.handle] = view
        return view

    def drop_view(self, view: SimTexelView) -> None:
        view.dropped = True
        self.views.pop(view.handle, None)

    def flush(self, memory: SimMemory, lo: int, hi: int) -> None:
        self.machine.let_things_happen()
        self.machine.host_did(memory, lo, hi, write=True, where=events.user_line())

    def invalidate(self, memory: SimMemory, lo: int, hi: int) -> None:
        self.machine.let_things_happen()
        self.machine.host_did(memory, lo, hi, write=False, where=events.user_line())

    def load(self, source: KernelSource) -> LoadedKernel:
        return load_spirv(source, self.info.limits)

    def program(
        self,
        code: bytes,
        interface: Interface,
        constants: Mapping[int, bytes],
        reference: Reference | None,
    ) -> SimProgram:
        self.called("program")
        return SimProgram(interface, reference)

    def forget(self, program: SimProgram) -> None: ...

    def queue(self, index: int) -> SimStreamQueue:
        self.called("queue")
        self._agents += 1
        fifo = self.machine.fifos[index % self.queue_count]
        return SimStreamQueue(self, SimQueue(self.machine, self._agents, fifo))

    @property
    def has_clock(self) -> bool:
        """Whether it runs in virtual time (`virtual_time`)."""
        return self.machine.time is not None

    clock_method = "virtual time"

    @property
    def clock_error(self) -> float | None:
        return 0.0 if self.has_clock else None

    @property
    def knows_time(self) -> bool:
        return True

    def learn_time(self) -> None:
        """Nothing to measure: the host's clock is the same."""

    def seconds(self, ticks: Sequence[int]) -> list[float]:
        return [tick * TICK for tick in ticks]

    def replayable(self, *, timed: bool = False) -> SimReplayable:
        self.called("replayable")
        self.notify("clock: a graph with timestamps" if timed else "replayable", 0)
        return SimReplayable(self)

    def timeline(self) -> SimTimeline:
        self.called("timeline")
        self.notify("timeline", 0)
        return SimTimeline(self.machine)

    def wait(self, points: Sequence[tuple[SimTimeline, int]], timeout_ns: int) -> bool:
        self.called("wait")
        if timeout_ns:
            self.machine.run_until(lambda: all(t.reached >= v for t, v in points))
        for timeline, _ in points:
            self.machine.host_saw(timeline)
        return all(timeline.reached >= value for timeline, value in points)

    def signal(self, timeline: SimTimeline, value: int) -> None:
        if timeline.reached >= value:
            return  # an interrupted call has signalled it already
        self.called("signal")
        self.machine.signal(timeline, value)

    def attend(self, actor: Callable[[], bool]) -> None:
        self.machine.actors.append(actor)

    def leave(self, actor: Callable[[], bool]) -> None:
        self.machine.actors.remove(actor)

    def run_until(self, condition: Callable[[], bool]) -> None:
        self.machine.run_until(condition)

    def settle(self) -> None:
        self.machine.run_dry()

    def close(self) -> None: ...


def _scalars(interface: Interface, block: bytes) -> dict[str, Any]:
    """The scalars of a launch, by name."""
    values = _parts(interface.push, np.frombuffer(block, np.uint8))
    return {
        name: value.item() if value.shape == () else value.copy() for name, value in values.items()
    }


def _parts(members: tuple[Member, ...], block: Bytes) -> dict[str, Bytes]:
    """By name: arrays over the parts of a block."""
    return {
        member.name: np.ndarray(
            member.shape, member.dtype, buffer=block, offset=member.offset, strides=member.strides
        )
        for member in members
    }
