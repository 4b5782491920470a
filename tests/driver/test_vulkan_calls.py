"""What the Vulkan driver really asks for: the arguments of its calls, and what they do.

Software devices run in order, and the validation layer knows no host accesses and few waits, so a
weak barrier or wait would go unseen when programs run. Here each is looked at as it is called.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import accelerator
from penstock.driver.protocol import PLACE
from penstock.driver.vulkan import api, program
from penstock.driver.vulkan.memory import MemoryTypes, VulkanMemory
from penstock.driver.vulkan.timeline import SPENT
from penstock.memory import texel_views
from penstock.shader.texels import FORMATS
from tests.kernels import SLOW_ADD, add_texels, saxpy, slow_add
from tests.tracing.device_clock import check_bounds

INDIRECT, COMPUTE, TRANSFER, HOST = 0x2, 0x800, 0x1000, 0x4000
INDIRECT_READ = 0x1
SHADER_READ, SHADER_WRITE, UNIFORM_READ = 0x20, 0x40, 0x8
TRANSFER_READ, TRANSFER_WRITE = 0x800, 0x1000
HOST_READ, HOST_WRITE = 0x2000, 0x4000
ALL_COMMANDS = 0x10000
WHOLE_SIZE = (1 << 64) - 1
WORK = (COMPUTE | TRANSFER, SHADER_WRITE | TRANSFER_WRITE)
NEXT_WORK = (
    INDIRECT | COMPUTE | TRANSFER,
    INDIRECT_READ | SHADER_READ | SHADER_WRITE | UNIFORM_READ | TRANSFER_READ | TRANSFER_WRITE,
)


class Spied:
    """A device whose driver calls can be listened to."""

    def __init__(self, device: ps.Device) -> None:
        self.device = device
        self.driver: Any = device.scheduler.driver
        self.call: SimpleNamespace = self.driver.call

    def listen(self, name: str, hear: Callable[..., object]) -> None:
        """Call `hear` with the arguments of every call before it is made."""
        function = getattr(self.call, name)

        def heard(*arguments: Any) -> Any:
            hear(*arguments)
            return function(*arguments)

        setattr(self.call, name, heard)

    def listen_in_c(self, name: str, hear: Callable[..., object]) -> None:
        """`listen` by a C function, which the native step calls, too."""
        ffi, _ = api.load()
        self.listen(name, hear)
        setattr(self.call, name, ffi.callback(f"PFN_{name}", getattr(self.call, name)))


@pytest.fixture
def spied(driver: str) -> Iterator[Spied]:
    with ps.Device(driver) as device:
        yield Spied(device)


@pytest.mark.parametrize("call", ["vkCmdPipelineBarrier2", "vkCmdPipelineBarrier"])
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("barrier", WORK, NEXT_WORK),
        ("publish", WORK, (HOST, HOST_READ)),
        ("acquire", (HOST, HOST_WRITE), NEXT_WORK),
    ],
)
def test_barriers_cover_stages_and_accesses(
    spied: Spied, call: str, name: str, before: tuple[int, int], after: tuple[int, int]
) -> None:
    heard: list[tuple[int, int, int, int]] = []

    def hear_new(command: Any, info: Any) -> None:
        heard.extend(
            (each.srcStageMask, each.srcAccessMask, each.dstStageMask, each.dstAccessMask)
            for each in info.pMemoryBarriers[0 : info.memoryBarrierCount]
        )

    def hear_old(
        command: Any, source: int, target: int, flags: int, count: int, barriers: Any, *_: Any
    ) -> None:
        heard.extend(
            (source, each.srcAccessMask, target, each.dstAccessMask) for each in barriers[0:count]
        )

    if call == "vkCmdPipelineBarrier":
        spied.call.vkCmdPipelineBarrier2 = None
    spied.listen(call, hear_old if call == "vkCmdPipelineBarrier" else hear_new)
    queue = spied.driver.queue(0)
    (recording,) = queue.recordings(1)
    recording.begin()
    getattr(recording, name)()
    recording.end()
    assert len(heard) == 1
    asked = (*before, *after)
    assert [had & wanted for had, wanted in zip(heard[0], asked, strict=True)] == list(asked)
    queue.close()


def test_timestamps_are_times_of_the_host(spied: Spied) -> None:
    x = spied.device.zeros(4, np.uint32)
    with ps.trace() as t:
        for _ in range(3):
            slow_add(x, 1, spin=0)
            spied.device.synchronize()
    t.wait_for_times()
    assert len(check_bounds(t)) >= 3


def test_the_host_waits_for_every_value(spied: Spied) -> None:
    driver = spied.driver
    timelines = [driver.timeline() for _ in range(3)]
    points = [(timeline, 5) for timeline in timelines]
    assert not driver.wait(points, 0)
    for timeline in timelines:
        assert not driver.wait(points, 10**6)
        driver.signal(timeline, 4)
        assert timeline.value() == 4
        assert not driver.wait(points, 10**6)
        driver.signal(timeline, 5)
        assert timeline.value() == 5
    assert driver.wait(points, 0)
    for timeline in timelines:
        timeline.close()


class Streams:
    """Queues that share a `VkQueue`, each with a timeline, and one timeline of the host's."""

    def __init__(self, spied: Spied) -> None:
        self.driver = spied.driver
        self.queues = [self.driver.queue(0) for _ in range(3)]
        self.timelines = [self.driver.timeline() for _ in range(3)]
        self.host = self.driver.timeline()
        self.submitted: list[Any] = []  # by the driver: semaphore and value
        self.fails = False

        submit = spied.call.vkQueueSubmit

        def heard(queue: Any, count: int, info: Any, fence: Any) -> Any:
            if self.fails:
                return api.load()[1].VK_ERROR_OUT_OF_DEVICE_MEMORY
            times = api.load()[0].cast("VkTimelineSemaphoreSubmitInfo *", info.pNext)
            self.submitted.append((info.pSignalSemaphores[0], times.pSignalSemaphoreValues[0]))
            return submit(queue, count, info, fence)

        spied.call.vkQueueSubmit = heard

    def submit(self, stream: int, value: int, *waits: tuple[Any, int]) -> None:
        (recording,) = self.queues[stream].recordings(1)
        recording.begin()
        self.queues[stream].submit(recording, waits, self.timelines[stream], value)

    def reached(self, stream: int, value: int, timeout_ns: int = 10**10) -> bool:
        return bool(self.driver.wait([(self.timelines[stream], value)], timeout_ns))

    def close(self) -> None:
        for timeline in (*self.timelines, self.host):
            timeline.close()
        for queue in self.queues:
            queue.close()


@pytest.fixture
def streams(spied: Spied) -> Iterator[Streams]:
    made = Streams(spied)
    yield made
    made.close()


def test_what_waits_for_the_host_keeps_no_other_stream_waiting(streams: Streams) -> None:
    first, second, third = streams.timelines
    streams.submit(0, 1)
    streams.submit(0, 2, (streams.host, 1))
    streams.submit(0, 3)  # behind it
    streams.submit(1, 1, (first, 3))  # waits for it
    streams.submit(2, 1, (first, 1))  # has nothing to do with it
    assert streams.reached(2, 1)
    assert streams.reached(0, 1)
    assert streams.submitted == [(first.semaphore, 1), (third.semaphore, 1)]
    assert not streams.reached(0, 2, 10**6)
    streams.driver.signal(streams.host, 1)
    assert streams.submitted[2:] == [  # though nobody waits yet
        (first.semaphore, 2),
        (first.semaphore, 3),
        (second.semaphore, 1),
    ]
    assert streams.reached(0, 3)
    assert streams.reached(1, 1)
    assert not streams.driver.backlog.queues


def test_what_waits_for_a_value_that_is_reached_is_not_held(streams: Streams) -> None:
    streams.driver.signal(streams.host, 2)
    streams.submit(0, 1, (streams.host, 1))
    streams.submit(0, 2, (streams.host, 2))
    assert len(streams.submitted) == 2
    assert streams.reached(0, 2)


def test_a_signal_in_the_middle_of_handing_over_is_not_lost(streams: Streams) -> None:
    """As a finaliser's may be, in the thread that is at it."""
    other, driver = streams.driver.timeline(), streams.driver
    streams.submit(0, 1, (other, 1))
    streams.submit(1, 1, (streams.host, 1))
    submit, queue = driver.call.vkQueueSubmit, streams.queues[1]

    def signal_first(*arguments: Any) -> Any:
        driver.call.vkQueueSubmit = submit
        driver.signal(other, 1)  # what waits for this was looked at before
        return api.load()[1].VK_ERROR_OUT_OF_DEVICE_MEMORY

    driver.call.vkQueueSubmit = signal_first
    driver.signal(streams.host, 1)
    assert not queue.held
    assert not driver.backlog.queues
    assert streams.reached(0, 1)
    assert streams.reached(1, 1)
    other.close()


def test_what_was_held_and_does_not_fit_is_tried_again(streams: Streams) -> None:
    streams.submit(0, 1, (streams.host, 1))
    streams.fails = True
    streams.driver.signal(streams.host, 1)
    assert not streams.submitted
    with pytest.raises(ps.OutOfMemory, match="cannot be issued"):
        streams.reached(0, 1, 10**6)
    streams.fails = False
    assert streams.reached(0, 1)
    assert streams.submitted == [(streams.timelines[0].semaphore, 1)]


def test_a_submission_waits_and_signals_as_told(spied: Spied) -> None:
    driver = spied.driver
    heard: list[Any] = []

    def hear(queue: Any, count: int, info: Any, fence: Any) -> None:
        times = api.load()[0].cast("VkTimelineSemaphoreSubmitInfo *", info.pNext)
        for slot in range(info.waitSemaphoreCount):
            assert times.waitSemaphoreValueCount == info.waitSemaphoreCount
            semaphore, stage = info.pWaitSemaphores[slot], info.pWaitDstStageMask[slot]
            heard.append((semaphore, times.pWaitSemaphoreValues[slot], stage))
        heard.append((info.pSignalSemaphores[0], times.pSignalSemaphoreValues[0]))

    spied.listen("vkQueueSubmit", hear)
    queue = driver.queue(0)
    (recording,) = queue.recordings(1)
    done, *others = (driver.timeline() for _ in range(7))
    for number, timeline in enumerate(others, 1):
        driver.signal(timeline, 10 * number)
    waits = [(timeline, 10 * number) for number, timeline in enumerate(others, 1)]
    for value in range(1, 3):
        heard.clear()
        recording.begin()
        queue.submit(recording, waits[: 3 * value], done, value)
        assert heard == [
            *(
                (timeline.semaphore, reached, ALL_COMMANDS)
                for timeline, reached in waits[: 3 * value]
            ),
            (done.semaphore, value),
        ]
        assert driver.wait([(done, value)], 10**10)
        assert done.value() == value
    for timeline in (done, *others):
        timeline.close()
    queue.close()


@pytest.mark.parametrize("name", ["flush", "invalidate"])
def test_memory_that_is_not_coherent_is_flushed_whole(spied: Spied, name: str) -> None:
    driver = spied.driver
    heard: list[tuple[int, int]] = []
    call = f"vk{name.capitalize()}MappedMemoryRanges"

    def hear(device: Any, count: int, ranges: Any) -> None:
        for part in ranges[0:count]:
            size = memory.nbytes - part.offset if part.size == WHOLE_SIZE else part.size
            heard.append((part.offset, part.offset + size))

    spied.listen(call, hear)
    driver.atom = 64
    memory = VulkanMemory(driver, 1 << 16, host=True)
    for lo, hi in [(0, 1), (65, 127), (63, 65), (100, 1 << 16)]:
        heard.clear()
        getattr(driver, name)(memory, lo, hi)
        ((start, end),) = heard
        assert start <= lo
        assert hi <= end
        assert start % 64 == 0
    memory.close()


def test_coherent_memory_is_chosen() -> None:
    local, visible, coherent, cached = 1, 2, 4, 8
    kinds = [local | visible | cached, local | visible | coherent, visible | coherent | cached]
    properties = SimpleNamespace(
        memoryTypeCount=len(kinds),
        memoryTypes=[SimpleNamespace(propertyFlags=flags, heapIndex=0) for flags in kinds],
        memoryHeaps=[SimpleNamespace(size=1 << 30)],
    )
    types = MemoryTypes(properties)
    assert types.pick(0b111, host=False) == 1
    assert types.pick(0b111, host=True) == 2
    assert types.pick(0b011, host=True) == 1


def test_closing_waits_for_the_device(driver: str) -> None:
    heard: list[str] = []
    device = ps.Device(driver)
    Spied(device).listen("vkDeviceWaitIdle", lambda handle: heard.append("idle"))
    Spied(device).listen("vkDestroyDevice", lambda *_: heard.append("destroyed"))
    device.close()
    assert heard == ["idle", "destroyed"]


def test_a_semaphore_is_destroyed_after_those_of_later_streams(driver: str) -> None:
    destroyed: list[int] = []
    with ps.Device(driver) as device:
        spied = Spied(device)
        spied.listen(
            "vkDestroySemaphore", lambda _device, semaphore, _: destroyed.append(semaphore)
        )
        x = device.zeros(64, np.uint32)

        def closed_stream() -> int:
            with device.stream() as other:
                slow_add(x, 1, other, spin=0)
                slow_add(x, 1, spin=0)  # waits for the other stream, on the device
                device.synchronize()
                semaphore: int = other.timeline.semaphore
            device.zeros(1).close()  # a call that acts on what has ended
            return semaphore

        first = closed_stream()
        assert first not in destroyed, "the driver may not have let go of it"
        for _ in range(SPENT - 1):
            last = closed_stream()
            assert first not in destroyed
        last = closed_stream()
        assert first in destroyed
        destroyed.clear()  # a handle may come again
    assert destroyed.count(last) == 1


def test_a_recording_starts_with_nothing_bound(spied: Spied) -> None:
    """What is bound already is not bound again, but only within a recording and a layout."""
    device, driver = spied.device, spied.driver
    array = device.zeros(64, np.uint32)
    elsewhere = SLOW_ADD.replace("binding = 0", "binding = 3")
    kernels = [device.kernel(source) for source in (SLOW_ADD, SLOW_ADD, elsewhere)]
    for kernel in kernels:
        kernel(x=array, n=64, spin=0, add=1, threads=64)
    device.synchronize()
    first, second, third = (kernel.program for kernel in kernels)
    calls: list[str] = []
    for name in ("vkCmdBindPipeline", "vkCmdPushConstants", "vkCmdDispatch"):
        spied.listen(name, lambda *_, name=name: calls.append(name))
    describe = (
        "vkCmdPushDescriptorSetWithTemplateKHR"
        if first.layout.pushes
        else "vkCmdBindDescriptorSets"
    )
    spied.listen(describe, lambda *_: calls.append(describe))
    queue, timeline = driver.queue(0), driver.timeline()
    (recording,) = queue.recordings(1)
    backing = array.buffer.backing
    bindings = PLACE.pack(backing.memory.handle, backing.offset, 256)
    pipeline, dispatch = "vkCmdBindPipeline", "vkCmdDispatch"
    everything = [pipeline, describe, "vkCmdPushConstants", dispatch]
    for value in (1, 2):
        calls.clear()
        recording.begin()
        for used in (first, first, second, third, first):
            recording.dispatch(used, bindings, bytes(12), (1, 1, 1))
            recording.barrier()
        alike = [dispatch, pipeline, dispatch]
        assert calls == [*everything, *alike, *everything, *everything]
        queue.submit(recording, [], timeline, value)
        assert driver.wait([(timeline, value)], 10**10)
    timeline.close()
    queue.close()


def test_nothing_is_bound_after_a_graph(spied: Spied) -> None:
    device = spied.device
    array = device.zeros(64, np.uint32)
    kernel = device.kernel(SLOW_ADD)
    with device.record() as graph:
        kernel(x=array, n=64, spin=0, add=1, threads=64)
    graph.replay()
    device.synchronize()
    binds: list[str] = []
    spied.listen("vkCmdBindPipeline", lambda *_: binds.append("bind"))
    stream = device.stream()  # recordings look calls up when they are made
    with stream.batch():
        for _ in range(2):
            kernel(x=array, n=64, spin=0, add=1, threads=64, stream=stream)
            graph.replay(stream)
    assert binds == ["bind", "bind"]
    assert (array.numpy() == 5).all()


def test_a_graph_has_the_barriers_it_needs(spied: Spied) -> None:
    device = spied.device
    array = device.zeros(64, np.uint32)
    kernel = device.kernel(SLOW_ADD)
    with device.record() as graph:
        for _ in range(3):
            kernel(x=array, n=64, spin=0, add=1, threads=64)
    barriers: list[str] = []
    spied.listen("vkCmdPipelineBarrier2", lambda *_: barriers.append("barrier"))
    graph.replay(device.stream())
    device.synchronize()
    assert len(barriers) == 3  # two between the launches, one to the host


@pytest.mark.parametrize(
    ("launches", "wanted"),
    [
        ("ab cd ef", "ddd"),
        ("ab ac ad", "ddd"),  # they read the same
        ("aX aY", "dd"),  # they write parts of one array
        ("aX aY xb", "ddbd"),
        ("aa bb cc aa", "dddbd"),
        ("ab bc de", "dbdd"),
        ("ab ca de", "dbdd"),
        ("ab cd be df", "ddbdd"),  # one barrier is enough for all that came before it
        ("ab cd bd ef", "ddbdd"),  # both of its arrays are in use
        ("ab bc cd ae", "dbdbdd"),
    ],
)
def test_launches_have_only_the_barriers_that_their_data_demands(
    launches: str, wanted: str, spied: Spied
) -> None:
    """`ab` reads a and adds to b; X and Y are the halves of x. In the log, d is a dispatch."""
    log: list[str] = []
    spied.listen_in_c("vkCmdDispatch", lambda *_: log.append("d"))
    spied.listen_in_c("vkCmdPipelineBarrier2", lambda *_: log.append("b"))
    device, half = spied.device, 256
    stream, kernel = device.stream(), saxpy(device)
    arrays = {name: device.zeros(2 * half) for name in "abcdefx"}
    arrays |= {"X": arrays["x"][:half], "Y": arrays["x"][half:]}

    def run() -> str:
        stream.synchronize()
        log.clear()
        with stream.batch():
            for read, written in launches.split():
                x, y = arrays[read], arrays[written]
                kernel(x=x, y=y, a=1.0, n=half, threads=half, stream=stream)
        stream.synchronize()
        return "".join(log)

    assert run() == f"{wanted}b"  # the last makes the writes visible to the host
    made, _ = accelerator.launches()
    assert run() == f"{wanted}b"
    if accelerator.is_native():
        assert accelerator.launches()[0] > made
    with ps.trace(times=False) as trace:
        run()
    between = [event for event in trace.of_kind("barrier") if event.path == "device"]
    assert len(between) == wanted.count("b")


def test_the_same_lone_launch_is_recorded_once(spied: Spied) -> None:
    device = spied.device
    kernel = device.kernel(SLOW_ADD)
    first, second = device.zeros(64, np.uint32), device.zeros(64, np.uint32)
    begun: list[str] = []
    published: list[str] = []
    spied.listen("vkBeginCommandBuffer", lambda *_: begun.append("begin"))
    spied.listen("vkCmdPipelineBarrier2", lambda *_: published.append("publish"))

    stream = device.stream()

    def launch(array: ps.Array, add: int) -> int:
        kernel(x=array, n=64, spin=0, add=add, threads=64, stream=stream)
        stream.synchronize()
        times = len(begun)
        begun.clear()
        return times

    launch(first, 1)
    assert [launch(first, 1) for _ in range(3)] == [0, 0, 0]
    assert launch(first, 2) == 1
    assert launch(second, 2) == 1
    assert launch(second, 2) == 0
    assert len(published) == (3 if spied.driver.call.vkCmdPipelineBarrier2 else 0)
    device.empty(32 << 20, np.uint8).close()
    assert device.trim()  # something that a recording might name is gone
    assert launch(second, 2) == 1
    assert (first.numpy() == 6).all()
    assert (second.numpy() == 6).all()


@pytest.fixture
def open_gate(spied: Spied) -> Iterator[Callable[[], None]]:
    """Nothing that is submitted runs before this is called."""
    driver = spied.driver
    gate, passed = driver.timeline(), driver.timeline()
    queue = driver.queue(0)
    (recording,) = queue.recordings(1)
    recording.begin()
    recording.end()
    queue.issue(recording, [(gate, 1)], passed, 1)  # a submission would be held, and no other

    def open_it() -> None:
        if gate.value() == 0:
            driver.signal(gate, 1)
            assert driver.wait([(passed, 1)], 10**10)

    yield open_it
    open_it()
    queue.close()
    gate.close()
    passed.close()


def test_a_recording_is_not_used_again_while_it_may_run(
    spied: Spied, open_gate: Callable[[], None]
) -> None:
    running: set[Any] = set()

    def hear(command: Any, info: Any) -> None:
        assert command not in running
        running.add(command)

    spied.listen("vkBeginCommandBuffer", hear)
    array = spied.device.zeros(64, np.uint32)
    for _ in range(40):
        slow_add(array, 1, spin=0)
        spied.device.default_stream.flush()
    open_gate()
    spied.device.synchronize()
    used, running = running, set()
    slow_add(array, 1, spin=0)
    assert running <= used
    assert array.tolist() == [41] * 64


@pytest.mark.parametrize(
    ("what", "destroy"),
    [
        ("adopted memory", "vkDestroyBuffer"),
        ("a kernel", "vkDestroyPipeline"),
        ("a stream", "vkDestroyCommandPool"),
        ("a view of texels", "vkDestroyBufferView"),
    ],
)
def test_nothing_goes_while_it_may_be_in_use(
    spied: Spied,
    open_gate: Callable[[], None],
    what: str,
    destroy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(texel_views, "_KEPT", 0)
    device = spied.device
    gone: list[str] = []
    kernel = device.kernel(SLOW_ADD)
    stream = device.stream()
    if not device.info.can_import:
        pytest.skip("the device cannot import memory")
    array = device.adopt(np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint32))
    kernel(x=array, n=1024, spin=0, add=1, threads=1024)
    other = device.zeros(1024, np.uint32)
    add_texels(other, 1)
    device.default_stream.flush()
    spied.listen(destroy, lambda *_: gone.append(destroy))
    if what == "adopted memory":
        array.close()
    elif what == "a kernel":
        kernel.close()
    elif what == "a stream":
        stream.close()
    else:
        del other
    with device.scheduler.lock:
        device.scheduler.drain()
        assert not gone
    open_gate()
    device.synchronize()
    with device.scheduler.lock:
        device.scheduler.drain()
        assert gone


def test_descriptor_sets_in_use_are_left_alone(
    spied: Spied, open_gate: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_SETS_PER_POOL", 2)
    monkeypatch.setattr(program, "_SETS_KEPT", 4)
    spied.driver.push_descriptors = 0  # as on a device that has none
    bound: dict[Any, set[Any]] = {}

    def hear_bind(
        command: Any, point: int, layout: Any, first: int, count: int, sets: Any, *_: Any
    ) -> None:
        bound.setdefault(command, set()).add(sets[0])

    def hear_write(device: Any, count: int, writes: Any, *_: Any) -> None:
        assert writes[0].dstSet not in set().union(*bound.values())

    spied.listen("vkCmdBindDescriptorSets", hear_bind)
    spied.listen("vkUpdateDescriptorSets", hear_write)
    spied.listen("vkBeginCommandBuffer", lambda command, info: bound.pop(command, None))
    device = spied.device
    arrays = [device.zeros(64, np.uint32) for _ in range(12)]
    for _ in range(3):
        for array in arrays:
            slow_add(array, 1, spin=0)
            device.default_stream.flush()
        spied.driver.free(spied.driver.allocate(4096, host=False))  # forgets all bindings
    open_gate()
    assert all(array.tolist() == [3] * 64 for array in arrays)


def test_freed_memory_is_forgotten_by_descriptor_sets(spied: Spied) -> None:
    """A new buffer may have the handle of an old one, and a kept set would name the old one."""
    driver = spied.driver
    driver.push_descriptors = 0
    array = spied.device.zeros(64, np.uint32)
    slow_add(array, 1, spin=0)
    kept = [made for made in driver._programs if made._sets]
    assert kept
    driver.free(driver.allocate(4096, host=False))
    assert not any(made._sets for made in kept)


# Views of texels.


def test_a_view_is_of_the_bytes_and_the_format(spied: Spied) -> None:
    made: list[tuple[int, int, int]] = []

    def hear(device: Any, info: Any, *_: Any) -> None:
        assert info.buffer == memory.buffer
        made.append((info.format, info.offset, info.range))

    memory = spied.driver.allocate(4096, host=False)
    spied.listen("vkCreateBufferView", hear)
    numbers = {
        "r32f": 100, "rg32f": 103, "rgba32f": 109, "r16f": 76, "rgba16f": 97, "r8ui": 13,
        "rgba8ui": 41, "r32ui": 98, "rg32ui": 101, "rgba32ui": 107, "rgba32i": 108, "r16i": 75,
        "r8": 9, "rgba8": 37, "rg16": 77, "r16_snorm": 71, "rgb10_a2": 64, "rgb10_a2ui": 68,
        "r11f_g11f_b10f": 122,
    }  # fmt: skip
    for name in numbers:
        if name in spied.device.info.texel_formats:
            spied.driver.texel_view(memory, 256, 1024, name)
    expected = [numbers[name] for name in numbers if name in spied.device.info.texel_formats]
    assert made == [(number, 256, 1024) for number in expected]
    assert set(numbers) <= set(FORMATS)
    spied.driver.free(memory)


def test_views_go_before_their_buffer_and_once(spied: Spied) -> None:
    order: list[str] = []
    memory = spied.driver.allocate(4096, host=False)
    views = [spied.driver.texel_view(memory, 0, 1024, name) for name in ("r32f", "r32ui")]
    spied.listen("vkDestroyBufferView", lambda *_: order.append("view"))
    spied.listen("vkDestroyBuffer", lambda *_: order.append("buffer"))
    spied.driver.drop_view(views[0])
    assert order == ["view"]
    spied.driver.free(memory)
    assert order == ["view", "view", "buffer"]
    for view in views:
        spied.driver.drop_view(view)
    assert order == ["view", "view", "buffer"]


def test_a_dropped_view_is_forgotten_by_what_was_recorded(spied: Spied) -> None:
    """A new view may have the handle of an old one."""
    driver = spied.driver
    driver.push_descriptors = 0
    array = spied.device.zeros(64, np.uint32)
    add_texels(array, 1)
    kept = [made for made in driver._programs if made._sets]
    assert kept
    before = driver.generation
    memory = driver.allocate(4096, host=False)
    driver.drop_view(driver.texel_view(memory, 0, 1024, "r32ui"))
    assert driver.generation > before
    assert not any(made._sets for made in kept)
    driver.free(memory)


def test_memory_may_be_bound_as_texels(spied: Spied) -> None:
    usages: list[int] = []
    spied.listen("vkCreateBuffer", lambda device, info, *_: usages.append(info.usage))
    spied.driver.free(spied.driver.allocate(4096, host=True))
    if spied.device.info.can_import:
        pages = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
        address = pages.__array_interface__["data"][0]
        spied.driver.free(spied.driver.import_host(address, mmap.PAGESIZE))
    assert usages
    assert all(usage & 0xC == 0xC for usage in usages)
