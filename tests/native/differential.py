"""Runs a random program on a Vulkan device, and prints its outcomes and every command it records.

    python -m tests.native.differential FIRST COUNT STEPS

With the native step and with `PENSTOCK_NATIVE=0` the output must be the same, line by line: the
commands in the driver's order with all they say, what each call of the program returned or raised,
the events of every trace, in every second program what was counted up to each step, and in the end
the pages of the ledger. How far the device has come when the host looks decides what is submitted
when. So here it is not the device's matter, but the seed's: at each step of the program a
submission is either complete before it returns, or runs when the host waits for it or a later step
lets it.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Event, Thread, current_thread, main_thread
from typing import Any

import numpy as np

import penstock as ps
from penstock import accelerator
from penstock.driver.vulkan import api, driver
from penstock.schedule.host_lane import HostLane
from penstock.schedule.idle_submission import IdleSubmitter
from penstock.schedule.ordered_copies import Copier, Task
from penstock.schedule.scheduler import Scheduler
from penstock.schedule.stream import Stream
from tests.kernels import HEAD, SAXPY
from tests.native.cases import CASES, WIDE, N

STEP = (
    HEAD
    + """
layout(std430, binding = 0) buffer X { float x[]; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < x.length()) x[i] += 1; }
"""
)
PICK = (
    HEAD
    + """
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) buffer Result { float value; };
layout(push_constant) uniform Scalars { int i; };
void main() { value = x[abs(i) % 16]; }
"""
)
COUNT = (
    HEAD
    + """
layout(std430, binding = 0) buffer Result { uint value; };
void main() { atomicAdd(value, 1); }
"""
)
ODD = STEP.replace("float", "uint")
FETCH = (
    HEAD
    + """
layout(binding = 0) uniform samplerBuffer x;
layout(binding = 1, r32f) uniform writeonly imageBuffer y;
layout(push_constant) uniform P { uint n; };
void main() {
    int i = int(gl_GlobalInvocationID.x);
    if (i < n) imageStore(y, i, texelFetch(x, i) + 1);
}
"""
)
#: An element per thread as well, so that x and y may be the same array.
FETCH4 = FETCH.replace("texelFetch(x, i)", "vec4(texelFetch(x, i / 4)[i % 4])")
RECORDED = (
    "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkCmdBindPipeline", "vkCmdPushConstants",
    "vkCmdPushDescriptorSetWithTemplateKHR", "vkCmdDispatch", "vkCmdPipelineBarrier2",
    "vkCmdCopyBuffer", "vkCmdFillBuffer", "vkCmdResetQueryPool", "vkCmdWriteTimestamp",
    "vkCmdCopyQueryPoolResults", "vkQueueSubmit",
)  # fmt: skip


HEARD = {
    "vkCreateDescriptorUpdateTemplate": "hear_template",
    "vkCmdBindPipeline": "hear_bind",
    "vkCmdPushConstants": "hear_push",
    "vkCmdPushDescriptorSetWithTemplateKHR": "hear_describe",
    "vkCmdPipelineBarrier2": "hear_barrier",
    "vkQueueSubmit": "hear_submit",
    "vkGetSemaphoreCounterValue": "hear_get",
    "vkWaitSemaphores": "hear_wait",
    "vkMapMemory": "hear_map",
    "vkCreateBufferView": "hear_view",
    "vkDestroyBuffer": "hear_destroy",
    "vkDestroyPipeline": "hear_destroy",
    "vkDestroyBufferView": "hear_destroy",
    "vkDestroySemaphore": "hear_destroy",
    "vkDestroyCommandPool": "hear_destroy",
}


class Log:
    """What is printed. Handles are numbered in the order in which they come up."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[tuple[str, int], int] = {}
        self._numbered = 0

    def say(self, *words: object) -> None:
        self.lines.append(" ".join(map(str, words)))

    def number(self, kind: str, handle: int) -> str:
        if (kind, handle) not in self._numbers:
            self._numbers[kind, handle] = self._numbered
            self._numbered += 1
        return f"{kind}{self._numbers[kind, handle]}"

    def forget(self, handle: int) -> None:
        """A later object may get the same handle, or another: chance decides that.

        With a pool its command buffers go; which they are is not known here, so all are forgotten.
        """
        known = [key for key in self._numbers if key[0] == "command" or key[1] == handle]
        for key in known:
            del self._numbers[key]


class Calls:
    """The driver's functions, each of them heard; to their callers they are C functions still."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.visible = True  # whether submissions run at once, and the host sees that they did
        self._late: list[Callable[[], Any]] = []  # submissions that have not run yet
        self.slots: dict[int, int] = {}  # by template
        self._seen: dict[int, int] = {}  # by semaphore
        self._kept: list[Any] = []
        self.meanwhile: Callable[[], None] | None = None  # to be called within the next call
        self.at_wait: Callable[[], None] | None = None  # or at the end of the next wait
        self.failing = 0  # submissions that fail, from the next on

    def wrap(self, functions: Any) -> Any:
        ffi, _ = api.load()
        real = dict(vars(functions))
        for name in {**HEARD, **dict.fromkeys(RECORDED)}:
            heard = getattr(self, HEARD.get(name, ""), None) or self._plain(name)
            made = ffi.callback(f"PFN_{name}", self._calling(heard, real[name], real))
            self._kept.append(made)
            setattr(functions, name, made)
        return functions

    def _calling(self, heard: Callable[..., Any], function: Any, real: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.meanwhile is not None and heard.__name__ == "heard":
                act, self.meanwhile = self.meanwhile, None
                act()
            return heard(real, function, *arguments)

        return call

    def _plain(self, name: str) -> Callable[..., Any]:
        def heard(real: Any, function: Any, command: Any, *arguments: Any) -> Any:
            numbers = [each for each in arguments if isinstance(each, int)]
            self.log.say(name[2:], self._handle("command", command), *numbers)
            return function(command, *arguments)

        return heard

    def _handle(self, kind: str, handle: Any) -> str:
        ffi, _ = api.load()
        return self.log.number(kind, int(ffi.cast("uintptr_t", handle)))

    def hear_template(self, _: Any, function: Any, device: Any, info: Any, *rest: Any) -> Any:
        ffi, _lib = api.load()
        result = function(device, info, *rest)
        address = int(ffi.cast("uintptr_t", rest[-1][0]))
        self.slots[address] = info.descriptorUpdateEntryCount
        return result

    def hear_bind(self, _: Any, function: Any, command: Any, point: int, pipe: Any) -> None:
        words = self._handle("command", command), point, self._handle("pipeline", pipe)
        self.log.say("bind", *words)
        function(command, point, pipe)

    def hear_push(self, _: Any, function: Any, command: Any, layout: Any, *rest: Any) -> None:
        ffi, _lib = api.load()
        stages, offset, size, values = rest
        content = bytes(ffi.buffer(values, size)).hex()
        self.log.say("push", self._handle("command", command), stages, offset, content)
        function(command, layout, stages, offset, size, values)

    def hear_describe(
        self, _: Any, function: Any, command: Any, template: Any, layout: Any, *rest: Any
    ) -> None:
        ffi, _lib = api.load()
        address = int(ffi.cast("uintptr_t", template))
        infos = ffi.cast("VkDescriptorBufferInfo *", rest[1])
        bound = [
            (self._handle("buffer", infos[i].buffer), infos[i].offset, infos[i].range)
            for i in range(self.slots.get(address, 0))  # none of a kernel of Penstock itself
        ]
        self.log.say("describe", self._handle("command", command), rest[0], bound)
        function(command, template, layout, *rest)

    def hear_map(self, _: Any, function: Any, device: Any, memory: Any, *rest: Any) -> Any:
        """Clear memory when it is allocated, which is when it is mapped.

        A program may read content that the contract leaves undefined: what a kernel that only
        writes an output leaves unwritten, while a view shows the content from before. It reads what
        the memory held, and that must not be what the process happened to have there.
        """
        ffi, _lib = api.load()
        result = function(device, memory, *rest)
        if result == 0:
            _, nbytes, _, pointer = rest
            ctypes.memset(int(ffi.cast("uintptr_t", pointer[0])), 0, nbytes)
        return result

    def hear_view(self, _: Any, function: Any, device: Any, info: Any, *rest: Any) -> Any:
        words = self._handle("buffer", info.buffer), info.format, info.offset, info.range
        self.log.say("view", *words)
        return function(device, info, *rest)

    def hear_barrier(self, _: Any, function: Any, command: Any, info: Any) -> None:
        (one,) = info.pMemoryBarriers[0 : info.memoryBarrierCount]
        masks = one.srcStageMask, one.srcAccessMask, one.dstStageMask, one.dstAccessMask
        self.log.say("barrier", self._handle("command", command), *map(hex, masks))
        function(command, info)

    def hear_submit(
        self, real: Any, function: Any, queue: Any, count: int, info: Any, fence: Any
    ) -> Any:
        ffi, _ = api.load()
        times = ffi.cast("VkTimelineSemaphoreSubmitInfo *", info.pNext)
        waits = [
            (self._handle("semaphore", info.pWaitSemaphores[i]), times.pWaitSemaphoreValues[i])
            for i in range(info.waitSemaphoreCount)
        ]
        command = self._handle("command", info.pCommandBuffers[0])
        signalled = self._handle("semaphore", info.pSignalSemaphores[0])
        self.log.say("submit", command, waits, signalled, times.pSignalSemaphoreValues[0])
        if self.failing:
            self.failing -= 1
            return api.load()[1].VK_ERROR_OUT_OF_DEVICE_MEMORY
        # The caller uses its structures again, so a submission that runs later has its own.
        self._late.append(partial(function, queue, count, _copied(info, times), fence))
        if self.visible:
            self.catch_up(real)
        return 0

    def catch_up(self, real: Any) -> None:
        """Run what was submitted, to its end."""
        late, self._late = self._late, []
        for submit in late:
            assert submit() == 0
        if late:
            real["vkDeviceWaitIdle"](self.device)

    device: Any = None

    def hear_destroy(self, _: Any, function: Any, device: Any, handle: Any, how: Any) -> None:
        ffi, _lib = api.load()
        self.log.forget(int(ffi.cast("uintptr_t", handle)))
        function(device, handle, how)

    def hear_wait(self, real: Any, function: Any, device: Any, info: Any, limit: int) -> Any:
        if current_thread() is main_thread():  # a thread that copies waits when it comes to it
            points = [
                (self._handle("semaphore", info.pSemaphores[i]), info.pValues[i])
                for i in range(info.semaphoreCount)
            ]
            self.log.say("wait", points)
        self.catch_up(real)
        result = function(device, info, limit)
        act, self.at_wait = self.at_wait, None
        if act is not None:
            act()
        return result

    def hear_get(self, real: Any, function: Any, device: Any, semaphore: Any, value: Any) -> Any:
        ffi, _lib = api.load()
        if self.visible:
            self.catch_up(real)
        result = function(device, semaphore, value)
        handle = int(ffi.cast("uintptr_t", semaphore))
        if self.visible:
            self._seen[handle] = int(value[0])
        value[0] = self._seen.get(handle, 0)
        return result


def _copied(info: Any, times: Any) -> Any:
    """A copy of a VkSubmitInfo and of all that it points to."""
    ffi, _ = api.load()
    made, made_times = (
        ffi.new("VkSubmitInfo *", info[0]),
        ffi.new("VkTimelineSemaphoreSubmitInfo *", times[0]),
    )
    made.pNext = made_times
    kept: list[Any] = [made_times]

    def copy(owner: Any, name: str, kind: str, count: int) -> None:
        source = getattr(owner, name)
        array = ffi.new(f"{kind}[]", [source[i] for i in range(count)])
        setattr(owner, name, array)
        kept.append(array)

    copy(made, "pWaitSemaphores", "VkSemaphore", info.waitSemaphoreCount)
    copy(made, "pWaitDstStageMask", "VkPipelineStageFlags", info.waitSemaphoreCount)
    copy(made, "pCommandBuffers", "VkCommandBuffer", info.commandBufferCount)
    copy(made, "pSignalSemaphores", "VkSemaphore", info.signalSemaphoreCount)
    copy(made_times, "pWaitSemaphoreValues", "uint64_t", info.waitSemaphoreCount)
    copy(made_times, "pSignalSemaphoreValues", "uint64_t", info.signalSemaphoreCount)
    _KEPT[made] = kept
    return made


_KEPT: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


class Program:
    """A random program; every choice is the seed's."""

    def __init__(self, seed: int, log: Log, calls: Calls, device: ps.Device) -> None:
        self.chance = random.Random(seed)
        self.counts = seed % 2 == 1  # whether what is not traced is counted
        self.log, self.calls, self.device = log, calls, device
        self.streams = [None, device.stream(name="second")]
        self.kernels = {
            name: device.kernel(source, name=name)
            for name, source in (
                ("axpy", SAXPY),
                ("step", STEP),
                ("pick", PICK),
                ("odd", ODD),
                ("again", SAXPY),
                ("count", COUNT),
                ("wide", WIDE),
                ("fetch", FETCH),
            )
        }
        self.kernels["fetch4"] = device.kernel(FETCH4, name="fetch4", formats={"x": "rgba32f"})
        self.arrays = [self.new_array(number) for number in range(5)]
        self.one = device.ones(1)
        self.integers = device.zeros(N, np.uint32, name="integers")
        self.hosts = [np.ones(N, np.float32), np.arange(N, dtype=np.float32), np.ones(N // 2)]
        self.hosts += [np.ones(N // 2, np.float32), np.ones((8, 8), np.float32)]
        self.adopted: list[Any] = []
        self.results: list[Any] = []
        self.views: list[Any] = []
        self.events: list[Any] = []
        self.files = 0
        with ps.trace() as t:  # a trace's first look at the clock waits for it
            self.kernels["step"](x=self.one, threads=1)
        t.wait_for_times()

    def new_array(self, number: int) -> ps.Array:
        role = self.chance.choice(["generic", "generic", "output", "scratch"])
        return self.device.zeros(N, name=f"a{number}", role=role)

    def array(self) -> Any:
        chosen = self.chance.choice(self.arrays)
        way = self.chance.random()
        if way < 0.8:
            return chosen
        if way < 0.97:
            return self.chance.choice([chosen[: N // 2], chosen[: N // 4], self.integers])
        return self.chance.choice([chosen[::2], np.ones(N, np.float32), None, 3, chosen[N // 2 :]])

    def scalar(self, kind: str) -> Any:
        usual: list[Any] = [1, 2, 5] if kind == "int" else [0.5, 1.0, 2]
        if self.chance.random() < 0.9:
            return self.chance.choice(usual)
        return self.chance.choice(
            [-1, 2**31, 2**32, 2**70, -(2**40), True, 1e300, float("inf"), float("nan"), 1.5, "x",
             None, np.float32(2), np.int64(3), np.uint8(7), np.array(2.0), self.arrays[0],
             self.one]
        )  # fmt: skip

    def much(self) -> dict[str, Any]:
        if self.chance.random() < 0.85:
            return {"threads": N}
        return self.chance.choice(
            [{"groups": 1}, {"groups": (1, 1, 1)}, {"groups": (2,)}, {"threads": (N, 1)},
             {"threads": 0}, {"groups": 0}, {"threads": -1}, {}, {"threads": 1, "groups": 1},
             {"threads": True}, {"groups": 1.0}, {"threads": np.int32(N)}, {"groups": (1.0, 1, 1)},
             {"groups": (True,)}, {"threads": N, "groups": None}, {"threads": "x"}]
        )  # fmt: skip

    def launch(self) -> Any:
        name = self.chance.choice(["axpy", "axpy", "step", "pick", "odd", "fetch", "fetch4"])
        given: dict[str, Any] = {"x": self.array()}
        if name in ("fetch", "fetch4"):
            given |= {"y": self.array(), "n": self.scalar("int")}
        if name == "axpy":
            given |= {"y": self.array(), "a": self.scalar("float"), "n": self.scalar("int")}
        if name == "pick":
            given["i"] = self.scalar("int")
        if self.chance.random() < 0.05:
            given.pop(self.chance.choice(list(given)))
        if self.chance.random() < 0.03:
            given["other"] = 1
        given |= self.much()
        if self.chance.random() < 0.4:
            given["stream"] = self.chance.choice([*self.streams, "x"])
        if self.chance.random() < 0.3:
            names = list(given)
            self.chance.shuffle(names)
            given = {each: given[each] for each in names}
        return self.kernels[name](**given)

    def steps(self) -> dict[Callable[[], Any], int]:
        chance, device = self.chance, self.device
        return {
            self.kept: 40,
            self.several: 6,
            self.repeated: 12,
            self.reentering: 2,
            self.alone: 6,
            self.dropped: 3,
            self.out_of_memory: 2,
            self.in_a_batch: 3,
            self.traced: 6,
            lambda: device.synchronize(): 3,
            lambda: (chance.choice(self.streams) or device.default_stream).synchronize(): 3,
            lambda: (chance.choice(self.streams) or device.default_stream).flush(): 2,
            lambda: self.array().numpy().tolist()[:4]: 4,
            lambda: self.array().write(self.source()): 6,
            lambda: self.array().read(out=np.zeros(N, np.float32)).result()[:3]: 1,
            self.carried: 5,
            self.host_access: 3,
            self.ends: 2,
            self.trips: 5,
            self.adopt: 1,
            lambda: self.adopted.clear(): 1,
            lambda: self.array().fill(chance.randrange(9)): 3,
            lambda: self.array().copy_from(self.array()): 2,
            lambda: self.array().role: 1,
            lambda: self.array().max().result(): 2,
            lambda: self.array()[::2].fill(chance.randrange(9)): 1,
            self.read_result: 6,
            lambda: self.results.clear(): 1,
            lambda: self.views.append(self.array().view(chance.choice(["r", "rw"]))): 2,
            lambda: self.views.clear(): 3,
            self.replace_array: 2,
            lambda: self.array().seal(): 0.3,  # type: ignore[dict-item]
            self.event: 2,
            self.replay: 1,
        }

    def attempt(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:
            self.log.say(f"{type(error).__name__}: {error}")
            return None

    def kept(self) -> None:
        made = self.attempt(self.launch)
        if made is not None:
            self.results.append(made)
            self.results[:-20] = []

    def several(self) -> None:
        for _ in range(self.chance.randrange(2, 40)):
            self.kept()

    def repeated(self) -> None:
        """The same launch again and again: what the native step is for."""
        name = self.chance.choice(["axpy", "step", "pick", "fetch", "fetch4"])
        usual = [each for each in self.arrays if not each.closed]
        given: dict[str, Any] = {"x": self.chance.choice(usual), "threads": N}
        if name == "axpy":
            given |= {"y": self.chance.choice(usual), "a": 0.5, "n": self.chance.randrange(N)}
        if name in ("fetch", "fetch4"):
            given |= {"y": self.chance.choice(usual), "n": self.chance.randrange(N)}
        if name == "pick":
            given["i"] = self.chance.randrange(N)
        if self.chance.random() < 0.3:
            given["stream"] = self.chance.choice(self.streams)
        for _ in range(self.chance.randrange(2, 40)):
            self.results.append(self.kernels[name](**given))
            if self.chance.random() < 0.1:
                self.calls.visible = not self.calls.visible
        self.results = [each for each in self.results if each is not None][-20:]

    def alone(self) -> None:
        """Launches that are waited for one by one: a submission each, often the same as before."""
        x, y = (each for each in self.chance.sample(self.arrays, 2))
        self.calls.visible = True
        for _ in range(self.chance.randrange(2, 12)):
            a = self.chance.choice([0.5, 0.5, 0.5, 1.5, 1.5, self.one])
            name = self.chance.choice(["axpy", "axpy", "again", "step"])
            given = {"x": y} if name == "step" else {"x": x, "y": y, "a": a, "n": N}
            self.attempt(partial(self.kernels[name], **given, threads=N))
            self.device.synchronize()
            if self.chance.random() < 0.2:
                self.device.kernel(STEP).close()  # what was recorded before counts as stale

    def dropped(self) -> None:
        """Results that are not read: before their memory is used again, the stream is polled."""
        x, y = self.chance.sample(self.arrays, 2)
        self.calls.visible = False
        for name, given in (("step", {"x": x}), ("pick", {"x": y, "i": 1})):
            self.attempt(partial(self.kernels[name], **given, threads=N))
        self.device.default_stream.flush()
        self.calls.visible = True
        self.attempt(partial(self.kernels["pick"], x=x, i=1, threads=N))

    def out_of_memory(self) -> None:
        """Submissions that fail: no command is lost, and a call that needs one raises."""
        self.calls.failing = self.chance.randrange(1, 4)
        for _ in range(4):
            self.kept()
            if self.chance.random() < 0.5:
                self.attempt(self.device.synchronize)
        self.calls.failing = 0

    @contextmanager
    def copies_when_waited_for(self) -> Iterator[None]:
        """Have host copies in stream order begin when the host waits for one, and not before."""
        begin = Event()
        make, wait = Copier._make, HostLane.wait

        def held(self: Copier, task: Task) -> None:
            begin.wait()
            make(self, task)

        def waited(self: HostLane, value: int, timeout: float) -> bool:
            begin.set()
            done = wait(self, value, timeout)
            begin.clear()
            return done

        Copier._make, HostLane.wait = held, waited  # type: ignore[method-assign]
        try:
            yield
        finally:
            begin.set()
            Copier._make, HostLane.wait = make, wait  # type: ignore[method-assign]

    def reentering(self) -> None:
        """A launch within the launch, from code that runs in the middle of a driver's call."""
        x = self.arrays[0]

        def launch() -> None:
            try:
                self.kernels["step"](x=x, threads=N)
            except ps.Error as error:
                self.log.say(f"{type(error).__name__}: {error}")

        self.calls.meanwhile = launch
        self.kernels["step"](x=x, threads=N)
        self.kernels["step"](x=x, threads=N)
        self.calls.meanwhile = None

    def source(self) -> Any:
        """What to write into an array: mostly a plain array that fits."""
        fitting = np.full(N, self.chance.random(), np.float32)
        if self.chance.random() < 0.7:
            return fitting
        return self.chance.choice(
            [fitting[: N // 2], fitting.astype(np.float64), fitting.tolist(), fitting.reshape(8, 8),
             np.ma.masked_array(fitting), np.full(2 * N, 2.0, np.float32)[::2], 1.0, None,
             fitting.view(np.uint32), *self.adopted]
        )  # fmt: skip

    def carried(self) -> list[Any]:
        """Launches on NumPy arrays: brought to the device, and back."""
        said = []
        for _ in range(self.chance.randrange(1, 6)):
            host, other = self.chance.choice(self.hosts), self.chance.choice(self.hosts)
            if self.chance.random() < 0.05:
                host.flags.writeable = not host.flags.writeable
            name = self.chance.choice(["step", "step", "axpy", "pick"])
            given: dict[str, Any] = {"x": host, "threads": N}
            if name == "axpy":
                y = self.chance.choice([other, other, self.arrays[0]])
                given |= {"x": self.chance.choice([host, self.arrays[1]]), "y": y, "a": 0.5, "n": N}
            if name == "pick":
                given["i"] = 3
            said.append(self.attempt(partial(self.kernels[name], **given)))
            said += [each.tolist()[:4] for each in self.hosts]
        return [float(each) if isinstance(each, ps.Result) else each for each in said]

    def trips(self) -> list[Any]:
        """Write, launch, read, again and again: what a synchronous program does."""
        x, y = self.chance.sample(self.arrays, 2)
        said: list[Any] = []
        for _ in range(self.chance.randrange(1, 5)):
            self.attempt(lambda: x.write(np.full(N, self.chance.random(), np.float32)))
            self.attempt(partial(self.kernels["axpy"], x=x, y=y, a=0.5, n=N, threads=N))
            said.append(self.attempt(lambda: y.numpy()[:3]))
            said.append(self.attempt(lambda: self.kernels["pick"](x=y, i=2, threads=1).result()))
            if self.chance.random() < 0.3:
                self.calls.visible = not self.calls.visible
        return said

    def host_access(self) -> list[Any]:
        """Reads, writes and results that are not quite as the ones before."""
        x = self.device.zeros(N, name="plain")
        fitting = np.full(N, 3, np.float32)
        said: list[Any] = []
        for source in (fitting, fitting, fitting[: N // 2], fitting.reshape(8, 8), fitting[:1]):
            said.append(self.attempt(partial(x.write, source)))
            said.append(x.numpy()[:2])
        for stream in self.streams:  # both of them write it
            self.kernels["step"](x=x, threads=N, stream=stream)
        said.append(x.numpy()[:2])
        said.append(x.max().result())
        first = self.kernels["pick"](x=x, i=1, threads=1)
        said += [float(first), first.result()]
        y = self.device.ones(N, name="other")
        for part, stream in zip((x[: N // 2], x[N // 2 :]), self.streams, strict=True):
            self.calls.visible = False
            self.kernels["step"](x=part, threads=N // 2, stream=stream)
        said.append(x.numpy()[:: N // 2])
        with self.device.default_stream.batch():
            x[::2].copy_from(y[::2])
            said.append(x[1::2].numpy()[:2])
        self.calls.visible = False
        self.adopt()
        memory = self.adopted[-2]
        said.append(self.attempt(partial(x.write, memory)))
        for _ in range(2):
            said.append(self.attempt(partial(self.kernels["step"], x=memory, threads=N)))
        x.close()
        said.append(self.attempt(x.numpy))
        said.append(self.attempt(partial(x.write, fitting)))
        return said

    def ends(self) -> None:
        """Streams that wait for another, and that are closed; a stream of another device."""
        first, second = self.device.stream(), self.device.stream()
        x, y = self.device.zeros(N), self.device.zeros(N)
        self.calls.visible = False
        self.kernels["step"](x=x, threads=N, stream=first)
        second.wait(first.record())
        second.synchronize()
        self.log.say(first.lane.complete, second.lane.complete)
        self.kernels["step"](x=y, threads=N, stream=second)
        self.kernels["step"](x=x, threads=N, stream=first)
        first.close()
        self.attempt(first.synchronize)
        self.log.say(x.numpy()[:2], y.numpy()[:2])
        second.close()

    def adopt(self) -> None:
        """Memory that the device uses in place: from now on a source may be such memory."""
        room = np.zeros(2 * 4096, np.uint8)
        start = -int(room.ctypes.data) % 4096
        host = room[start : start + 4 * N].view(np.float32)
        self.adopted += [host, self.device.adopt(host)]
        self.kernels["step"](x=self.adopted[-1], threads=N)

    def in_a_batch(self) -> None:
        with self.device.default_stream.batch():
            self.several()

    def traced(self) -> None:
        """Under a trace, or two: each of them gets every event, with all that it says."""
        acts = [
            self.kept, self.several, self.repeated, self.alone, self.in_a_batch, self.at_length,
            self.from_a_thread, self.from_new_code, self.summed,
        ]  # fmt: skip
        with ps.trace(times=self.chance.random() < 0.5) as t:
            self.chance.choice(acts)()
            with ps.trace(times=self.chance.random() < 0.5) as inner:
                self.chance.choice(acts)()
            self.kept()
        self.calls.visible = True
        for each in (t, inner):
            self.log.say(each.as_dict() | {"seconds": 0})
            each.wait_for_times()
            for event in each.events:
                if event.path == "source":  # a cache may have had what the compiler made
                    continue
                timed = event.device_start is not None
                self.log.say(
                    *event._replace(
                        start=0, seconds=0, thread_id=0, device_start=None, device_seconds=None
                    ),
                    event.seconds > 0,
                    timed,
                )

    def at_length(self) -> None:
        """More launches in one recording than it has timestamps for."""
        with self.device.default_stream.batch():
            for _ in range(self.chance.choice([3, 300])):
                self.kernels["step"](x=self.one, threads=1)

    def from_a_thread(self) -> None:
        """Launches below which no code of the user's is."""
        launch = partial(self.kernels["step"], x=self.one, threads=1)
        pool = ThreadPoolExecutor(1, "another thread")
        threads = [Thread(target=launch, name=f"thread {number}") for number in range(2)]
        for each in threads:
            each.start()
            each.join()
        with pool:
            pool.submit(launch).result()
            pool.submit(launch).result()

    def from_new_code(self) -> None:
        """Launches from a file that no trace has seen before, and from functions in it."""
        launch = partial(self.kernels["step"], x=self.one, threads=1)
        self.files += 1
        text = "def f():\n  launch()\n\nlaunch()\nf(); [f() for _ in range(2)]"
        exec(compile(text, f"file {self.files}", "exec"), {"launch": launch})

    def summed(self) -> None:
        """Launches from functions of Penstock's own."""
        for _ in range(3):
            self.results.append(self.one.sum())

    def read_result(self) -> Any:
        if self.results:
            one = self.results.pop(self.chance.randrange(len(self.results)))
            return float(one)
        return None

    def replace_array(self) -> None:
        number = self.chance.randrange(len(self.arrays))
        if self.chance.random() < 0.5:
            self.arrays[number].close()
            for _ in range(3):
                self.attempt(partial(self.kernels["step"], x=self.arrays[number], threads=N))
        self.arrays[number] = self.new_array(number)

    def event(self) -> None:
        on = self.chance.choice(self.streams) or self.device.default_stream
        if self.events and self.chance.random() < 0.5:
            on.wait(self.events.pop())
        else:
            self.events.append(on.record())

    def replay(self) -> None:
        with self.device.record() as graph:
            self.launch()
        graph.replay()
        self.launch()

    def run(self, steps: int) -> None:
        for case in CASES:
            self.log.say(f"{case.__name__}:", self.attempt(partial(case, self)))
        acts = self.steps()
        counts = ps.count()
        with counts if self.counts else nullcontext():
            self.run_steps(acts, steps, counts)
        self.calls.visible = True
        self.views.clear()
        self.device.synchronize()
        for array in self.arrays:
            self.log.say(array.name, *self.page(array))

    def run_steps(self, acts: dict[Any, int], steps: int, counts: ps.Counts) -> None:
        for number in range(steps):
            (act,) = self.chance.choices(list(acts), list(acts.values()))
            self.calls.visible = self.chance.random() < 0.5
            try:
                outcome = act()
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            self.log.say(f"step {number}:", outcome, *counts.as_dict().values())

    def page(self, array: ps.Array) -> list[Any]:
        history = array.buffer.backing.history
        return [
            (each.region, each.write, each.lane.name, each.value, each.epoch, each.what)
            for each in (*history.reads, *history.writes)
        ]


def in_order(streams: Iterable[Stream]) -> list[Stream]:
    return sorted(streams, key=lambda stream: stream.lane.number)


def run(seed: int, steps: int) -> list[str]:
    """Everything that a program says."""
    log = Log()
    calls = Calls(log)
    real = driver.VulkanDriver._functions
    IdleSubmitter.wake = lambda self: None  # type: ignore[method-assign]
    driver.VulkanDriver._functions = lambda self: calls.wrap(real(self))  # type: ignore[method-assign]
    opened = driver.VulkanDriver.__init__

    def noted(self: Any, *given: Any, **more: Any) -> None:
        opened(self, *given, **more)
        calls.device = self.handle

    driver.VulkanDriver.__init__ = noted  # type: ignore[method-assign]
    gc.disable()
    all_streams, living_streams = Scheduler.all_streams, Scheduler.living_streams
    Scheduler.all_streams = lambda self: in_order(all_streams(self))  # type: ignore[method-assign,assignment,return-value]
    Scheduler.living_streams = lambda self: in_order(living_streams(self))  # type: ignore[method-assign]
    try:
        with ps.Device("llvmpipe") as device:
            Program(seed, log, calls, device).run(steps)
    finally:
        driver.VulkanDriver._functions = real  # type: ignore[method-assign]
        driver.VulkanDriver.__init__ = opened  # type: ignore[method-assign]
        Scheduler.all_streams = all_streams  # type: ignore[method-assign]
        Scheduler.living_streams = living_streams  # type: ignore[method-assign]
    return log.lines


if __name__ == "__main__":
    first, count, steps = map(int, sys.argv[1:4])
    for seed in range(first, first + count):
        print("seed", seed)
        print("\n".join(run(seed, steps)))
    print("native launches", *accelerator.launches(), file=sys.stderr)
