"""Finding, describing and opening HIP devices."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import starmap
from types import SimpleNamespace
from typing import Never, NoReturn

from penstock.driver.hip import front_end
from penstock.driver.hip.api import NOT_READY, Hip, ffi, load
from penstock.driver.hip.clock import HipClock, Round
from penstock.driver.hip.memory import HipMemory
from penstock.driver.hip.program import HipProgram
from penstock.driver.hip.recording import (
    _COPY_DEFAULT,
    _NON_BLOCKING,
    _RELAXED,
    Command,
    HipQueue,
    HipRecording,
    HipReplayable,
)
from penstock.driver.hip.timeline import Events, HipTimeline, wait
from penstock.driver.holding import Backlog
from penstock.driver.importing import import_noted
from penstock.driver.protocol import DeviceInfo, Notify, Reference
from penstock.errors import DeviceLost, Error, NoDevice, Unsupported
from penstock.shader.interface import Interface
from penstock.shader.source import KernelSource, LoadedKernel

_QUEUES = 4  # hardware queues, at least; streams share them
_PARAMETER_BYTES = 4096  # the limit for the parameters of a launch
_NULL = ffi.NULL
_GLANCE = 2e-4  # seconds between two polls of held submissions

#: HIP's numbers of device attributes.
_INTEGRATED, _MANAGED, _UNIFIED_ADDRESSING = 16, 24, 85
_GROUP_SIZE, _GROUP_COUNT = (26, 27, 28), (29, 30, 31)
_GROUP_INVOCATIONS, _SHARED_MEMORY, _SUBGROUP_SIZE = 56, 74, 87

_CALLS = (
    "hipDeviceSynchronize", "hipEventCreateWithFlags", "hipEventDestroy", "hipEventElapsedTime",
    "hipEventQuery", "hipEventRecord", "hipFree", "hipGraphDestroy", "hipGraphExecDestroy",
    "hipGraphExecUpdate", "hipGraphInstantiate", "hipGraphLaunch", "hipHostFree",
    "hipHostGetDevicePointer", "hipHostMalloc", "hipHostRegister", "hipHostUnregister",
    "hipMalloc", "hipMemcpy2DAsync", "hipMemcpyAsync", "hipMemcpyWithStream",
    "hipMemsetD32Async", "hipModuleGetFunction", "hipModuleLaunchKernel", "hipModuleLoadData",
    "hipModuleUnload", "hipSetDevice", "hipStreamBeginCapture", "hipStreamCreateWithFlags",
    "hipStreamDestroy", "hipStreamEndCapture", "hipStreamWaitEvent",
)  # fmt: skip


def enumerate_devices() -> list[DeviceInfo]:
    """Every device that HIP finds. Raises `NoDevice`, with the reason, if there is none."""
    hip = load()
    return [_describe(hip, index) for index in range(hip.device_count())]


def _describe(hip: Hip, index: int) -> DeviceInfo:
    def attribute(number: int) -> int:
        return hip.number("hipDeviceGetAttribute", number, index)

    name = ffi.new("char[]", 256)
    hip.check(hip.function("hipDeviceGetName")(name, 256, index), "hipDeviceGetName")
    memory = hip.number("hipDeviceTotalMem", index, ctype="size_t *")
    integrated = bool(attribute(_INTEGRATED))
    architecture = hip.architecture(index)
    features = {
        "managedMemory": attribute(_MANAGED), "unifiedAddressing": attribute(_UNIFIED_ADDRESSING),
    }  # fmt: skip
    return DeviceInfo(
        index=index,
        name=ffi.string(name).decode("utf-8", "replace") or architecture,
        kind="integrated" if integrated else "discrete",
        driver="hip",
        driver_info=f"HIP {hip.version}, {architecture}",
        api_version=hip.version,
        memory=memory,
        uma=integrated,
        can_import=True,
        limits={
            "allocation": memory,
            "binding_alignment": 4,
            "binding_range": memory,
            "bindings": 128,
            "group_count": tuple(attribute(number) for number in _GROUP_COUNT),
            "group_invocations": attribute(_GROUP_INVOCATIONS),
            "group_size": tuple(attribute(number) for number in _GROUP_SIZE),
            "import_alignment": 4096,
            "push_constants": _PARAMETER_BYTES,
            "shared_memory": attribute(_SHARED_MEMORY),
            "subgroup_size": attribute(_SUBGROUP_SIZE),
            "uniform_alignment": 4,
            "uniform_bindings": 128,
            "uniform_range": memory,
        },
        features=frozenset(feature for feature, has in features.items() if has),
    )


class HipDriver:
    """An opened HIP device. Everything made from it must be closed before it."""

    inline = False
    copies = True
    language = "hip"
    checks_accesses = False

    def __init__(self, index: int, notify: Notify) -> None:
        self.notify = notify
        self.hip = load()
        count = self.hip.device_count()
        if not 0 <= index < count:
            raise NoDevice(f"no HIP device number {index}; there are {count}")
        self.call = SimpleNamespace(**{name: self.hip.function(name) for name in _CALLS})
        self.info = _describe(self.hip, index)
        self.architecture = self.hip.architecture(index)
        self.queue_count = _QUEUES
        self.several = count > 1
        self.backlog = Backlog()
        #: Locked while commands are issued to HIP: all threads pass arguments in the same memory.
        self.issuing = self.backlog.lock
        self.events = Events(self)
        self.clock = HipClock(self)
        self.lost: DeviceLost | None = None
        self.handing_over: HipRecording | None = None  # the recording being issued
        self.replayed_on: dict[int, set[HipReplayable]] = {}  # by stream
        self._programs: set[HipProgram] = set()
        self._capturing: int | None = None  # the stream used for captures
        self._copying = ffi.new("handle *")  # the stream of `copy_in` and `copy_out`, once made
        self._counts: dict[int, deque[Counts]] = {}  # by stream: for its next launches
        self._spare_counts: list[Counts] = []
        self._made_counts: list[Counts] = []
        self._attendant: threading.Thread | None = None
        self.messages: list[str] = []
        self.select(always=True)

    def select(self, *, always: bool = False) -> None:
        """Make this the calling thread's current device; HIP has one per thread."""
        if self.several or always:
            self.must(self.call.hipSetDevice(self.info.index), "hipSetDevice")

    # Errors.

    def must(self, result: int, what: str) -> None:
        if result:
            self.failed(result, what)

    def failed(self, result: int, what: str) -> NoReturn:
        """Raise the exception for a result. A lost device stays lost."""
        try:
            self.hip.check(result, what)
        except DeviceLost as error:
            self.lost = error
            raise
        raise AssertionError("only called when something failed")

    # Memory.

    def allocate(self, nbytes: int, *, host: bool) -> HipMemory:
        self.select()
        memory = HipMemory(self, nbytes, host=host or self.info.uma)
        self.notify("memory", nbytes)
        return memory

    def import_host(self, address: int, nbytes: int) -> HipMemory:
        self.select()
        return import_noted(partial(HipMemory, self, imported=address), nbytes, self.notify)

    def free(self, memory: HipMemory) -> None:
        memory.close()

    def flush(self, memory: HipMemory, lo: int, hi: int) -> None:
        """All memory is coherent."""

    def invalidate(self, memory: HipMemory, lo: int, hi: int) -> None:
        """All memory is coherent."""

    def copy_in(self, memory: HipMemory, offset: int, address: int, nbytes: int) -> None:
        self._copy_now(memory.handle + offset, address, nbytes)

    def copy_out(self, memory: HipMemory, offset: int, address: int, nbytes: int) -> None:
        self._copy_now(address, memory.handle + offset, nbytes)

    def _copy_now(self, target: int, source: int, nbytes: int) -> None:
        """Copy on a stream that has no other work. HIP returns when the bytes have arrived.

        One call, so that no exception can come between the copy and its end. (`hipMemcpyAsync`
        from memory that is not pinned would wait for the work of its stream before it.)
        """
        self.select()
        if not self._copying[0]:
            with self.issuing:
                if not self._copying[0]:
                    result = self.call.hipStreamCreateWithFlags(self._copying, _NON_BLOCKING)
                    self.must(result, "hipStreamCreateWithFlags")
        copy, stream = self.call.hipMemcpyWithStream, self._copying[0]
        self.must(copy(target, source, nbytes, _COPY_DEFAULT, stream), "hipMemcpyWithStream")

    def texel_view(self, memory: HipMemory, offset: int, nbytes: int, texel: str) -> Never:
        """No HIP kernel declares a texel buffer: it takes a pointer instead."""
        raise Unsupported(f"{self.info.name} has no texel buffers")

    def drop_view(self, view: Never) -> None: ...

    # Programs.

    def load(self, source: KernelSource) -> LoadedKernel:
        return front_end.load(self, source)

    def program(
        self,
        code: bytes,
        interface: Interface,
        constants: Mapping[int, bytes],
        reference: Reference | None,
    ) -> HipProgram:
        self.select()
        made = HipProgram(self, code, interface)
        self._programs.add(made)
        return made

    def forget(self, program: HipProgram) -> None:
        self._programs.discard(program)
        program.close()

    # The commands as HIP calls. Called with `issuing` locked.

    def once(self, call: Callable[..., int], arguments: tuple[object, ...]) -> int:
        """Make a command's HIP call exactly once, even if issuing is interrupted and repeated."""
        recording = self.handing_over
        if recording is None:
            return call(*arguments)
        results = recording.results
        if len(results) == recording.issued:
            # One interpreter step: the call is made, and its result is stored.
            results.extend(starmap(call, (arguments,)))
        return results.pop() if results[-1] else 0  # a failed call may be repeated

    def launch(
        self,
        stream: int,
        program: HipProgram,
        bindings: bytes,
        block: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        # The arguments of the last launch are still in place; comparing is cheaper than writing.
        if bindings != program.bound:
            program.point_at(bindings)
        if block != program.passed:
            program.block[: len(block)] = block
            program.passed = block
        result = self.once(
            self.call.hipModuleLaunchKernel,
            (program.function, *groups, *program.size, 0, stream, program.parameters, _NULL),
        )
        if result:
            self.failed(result, "hipModuleLaunchKernel")

    def look_at_counts(self, stream: int, address: int) -> None:
        """Copy the group counts of the next indirect launch to the host, in stream order."""
        if not self._spare_counts:
            self._made_counts.append(Counts(self))
            self._spare_counts.append(self._made_counts[-1])
        counts = self._spare_counts.pop()
        counts.fetch(stream, address)  # if this fails, its state is unknown and it is not reused
        self._counts.setdefault(stream, deque()).append(counts)

    def launch_counted(
        self, stream: int, program: HipProgram, bindings: bytes, block: bytes
    ) -> bool:
        """Launch with the group counts copied to the host; False if they have not arrived yet."""
        counts = self._counts[stream][0]
        groups = counts.arrived()
        if groups is None:
            return False
        if 0 not in groups:
            self.launch(stream, program, bindings, block, groups)
        self._spare_counts.append(self._counts[stream].popleft())
        return True

    def copy(self, stream: int, target: int, source: int, nbytes: int) -> None:
        arguments = (target, source, nbytes, _COPY_DEFAULT, stream)
        result = self.once(self.call.hipMemcpyAsync, arguments)
        self.must(result, "hipMemcpyAsync")

    def copy_rows(self, stream: int, *rows: int) -> None:
        result = self.once(self.call.hipMemcpy2DAsync, (*rows, _COPY_DEFAULT, stream))
        self.must(result, "hipMemcpy2DAsync")

    def fill(self, stream: int, target: int, word: int, count: int) -> None:
        result = self.once(self.call.hipMemsetD32Async, (target, word, count, stream))
        self.must(result, "hipMemsetD32Async")

    def stamp(self, stream: int, event: int) -> None:
        """Take the time, in stream order."""
        self.must(self.once(self.call.hipEventRecord, (event, stream)), "hipEventRecord")

    def replay(self, stream: int, sequence: HipReplayable) -> None:
        sequence.replay(stream)

    def capture(self, commands: Sequence[Command]) -> int:
        """Capture these commands as a HIP graph; returns its handle."""
        graph = ffi.new("handle *")
        with self.issuing:
            self.select()
            self.handing_over = None
            if self._capturing is None:
                result = self.call.hipStreamCreateWithFlags(graph, _NON_BLOCKING)
                self.must(result, "hipStreamCreateWithFlags")
                self._capturing = int(graph[0])
            stream = self._capturing
            self.must(self.call.hipStreamBeginCapture(stream, _RELAXED), "hipStreamBeginCapture")
            try:
                for issue, arguments in commands:
                    issue(stream, *arguments)
            except BaseException:
                if self.call.hipStreamEndCapture(stream, graph) == 0:
                    self.call.hipGraphDestroy(graph[0])
                raise
            self.must(self.call.hipStreamEndCapture(stream, graph), "hipStreamEndCapture")
        return int(graph[0])

    # Queues and timelines.

    def queue(self, index: int) -> HipQueue:
        self.select()
        self.notify("queue", 0)
        return HipQueue(self)

    def replayable(self, *, timed: bool = False) -> HipReplayable:
        self.notify("clock: a graph with timestamps" if timed else "replayable", 0)
        return HipReplayable(self, timed=timed)

    def timeline(self) -> HipTimeline:
        self.notify("timeline", 0)
        return HipTimeline(self)

    has_clock = True
    clock_method = "HIP events, compared with the host's clock when it issues and sees them"

    @property
    def clock_error(self) -> float | None:
        return self.clock.alignment.error

    @property
    def knows_time(self) -> bool:
        return self.clock.alignment.fresh

    def learn_time(self) -> tuple[Round, int] | None:
        return self.clock.learn()

    def seconds(self, ticks: Sequence[int]) -> list[float]:
        return self.clock.alignment.seconds(ticks)

    def wait(self, points: Sequence[tuple[HipTimeline | Round, int]], timeout_ns: int) -> bool:
        if wait(points, timeout_ns):
            return True
        self.backlog.refuse_if_stuck(points)
        return False

    def signal(self, timeline: HipTimeline, value: int) -> None:
        timeline.raise_to(value)
        if self.backlog.queues:
            self.issue_held()

    def issue_held(self) -> None:
        """Issue every held submission whose waits are satisfied."""
        if self.lost is not None:
            raise DeviceLost(str(self.lost))
        self.backlog.hand_over()

    def attend_to_held(self) -> None:
        """Start a thread that issues held submissions even if no thread waits for them.

        Called with `issuing` locked.
        """
        if self._attendant is None:
            name = f"penstock {self.info.name}"
            thread = threading.Thread(target=self._attend, name=name, daemon=True)
            thread.start()
            self._attendant = thread  # last: an interrupted call is repeated

    def _attend(self) -> None:
        while True:
            with self.issuing:
                if not self.backlog.queues or self.lost is not None:
                    self._attendant = None
                    return
                with contextlib.suppress(Error):  # a thread that waits for the work gets the error
                    self.issue_held()
            time.sleep(_GLANCE)

    def settle(self) -> None:
        self.backlog.clear()
        self.call.hipDeviceSynchronize()  # returns at once if the device is lost

    def close(self) -> None:
        for program in list(self._programs):
            self.forget(program)
        if self._capturing is not None:
            self.call.hipStreamDestroy(self._capturing)
        if self._copying[0]:
            self.call.hipStreamDestroy(self._copying[0])
        for counts in self._made_counts:
            counts.close()
        self.clock.close()
        self.events.close()


class Counts:
    """The group counts of an indirect launch, while they are copied from the device to the host."""

    def __init__(self, driver: HipDriver) -> None:
        self._driver = driver
        self._memory = HipMemory(driver, 64, host=True)
        self._event = driver.events.take()
        self._bytes = ffi.buffer(ffi.cast("char *", self._memory.address), 12)

    def fetch(self, stream: int, address: int) -> None:
        driver = self._driver
        result = driver.call.hipMemcpyAsync(self._memory.handle, address, 12, _COPY_DEFAULT, stream)
        driver.must(result, "hipMemcpyAsync")
        driver.must(driver.call.hipEventRecord(self._event, stream), "hipEventRecord")

    def arrived(self) -> tuple[int, int, int] | None:
        """The counts, or None if the copy is not complete."""
        result = self._driver.call.hipEventQuery(self._event)
        if result == NOT_READY:
            return None
        self._driver.must(result, "hipEventQuery")
        x, y, z = struct.unpack("<3I", self._bytes)
        return x, y, z

    def close(self) -> None:
        self._memory.close()
