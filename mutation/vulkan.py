"""Every barrier, wait, signal and retirement of the Vulkan driver, removed or weakened."""

from __future__ import annotations

from mutation.mutants import Mutant

_BETWEEN = "_Barrier(driver, self.command, (_GPU, _GPU_WRITE), (_GPU, _GPU_ACCESS))"
_TO_HOST = "_Barrier(driver, self.command, (_GPU, _GPU_WRITE), (_HOST, _HOST_READ))"
_FROM_HOST = "_Barrier(driver, self.command, (_HOST, _HOST_WRITE), (_GPU, _GPU_ACCESS))"


def _mutant(name: str, module: str, old: str, new: str, also: tuple[Mutant, ...] = ()) -> Mutant:
    return Mutant(name, f"driver.vulkan.{module}", old, new, also, driver="vulkan")


def _barrier(name: str, old: str, source: str, target: str) -> Mutant:
    new = f"_Barrier(driver, self.command, ({source}), ({target}))"
    return _mutant(name, "commands", old, new)


VULKAN = [
    # The barrier between commands.
    _mutant(
        "barrier: not recorded",
        "recording",
        "        self._commands.barrier()\n",
        "        pass\n",
    ),
    _mutant(
        "barrier: not recorded in a graph",
        "commands",
        "        self.barrier = self._between.record\n",
        "        if type(self) is VulkanReplayable:\n            self.barrier = lambda: None\n"
        "        else:\n            self.barrier = self._between.record\n",
    ),
    _barrier("barrier: execution only", _BETWEEN, "_GPU, 0", "_GPU, 0"),
    _barrier(
        "barrier: not before indirect launches",
        _BETWEEN,
        "_GPU, _GPU_WRITE",
        "_GPU & ~_INDIRECT, _GPU_ACCESS",
    ),
    _barrier(
        "barrier: not after kernels", _BETWEEN, "_TRANSFER, _TRANSFER_WRITE", "_GPU, _GPU_ACCESS"
    ),
    _barrier(
        "barrier: not after copies", _BETWEEN, "_COMPUTE_STAGE, _SHADER_WRITE", "_GPU, _GPU_ACCESS"
    ),
    _barrier(
        "barrier: not before kernels", _BETWEEN, "_GPU, _GPU_WRITE", "_TRANSFER, _TRANSFER_ACCESS"
    ),
    _barrier(
        "barrier: not before copies",
        _BETWEEN,
        "_GPU, _GPU_WRITE",
        "_COMPUTE_STAGE, _SHADER_ACCESS | _UNIFORM_READ",
    ),
    _barrier(
        "barrier: kernels' writes not made available",
        _BETWEEN,
        "_GPU, _TRANSFER_WRITE",
        "_GPU, _GPU_ACCESS",
    ),
    _barrier(
        "barrier: copies' writes not made available",
        _BETWEEN,
        "_GPU, _SHADER_WRITE",
        "_GPU, _GPU_ACCESS",
    ),
    _barrier(
        "barrier: writes not visible to kernels",
        _BETWEEN,
        "_GPU, _GPU_WRITE",
        "_GPU, _TRANSFER_ACCESS",
    ),
    _barrier(
        "barrier: writes not visible to uniform reads",
        _BETWEEN,
        "_GPU, _GPU_WRITE",
        "_GPU, _SHADER_ACCESS | _TRANSFER_ACCESS",
    ),
    _barrier(
        "barrier: writes not visible to copies",
        _BETWEEN,
        "_GPU, _GPU_WRITE",
        "_GPU, _SHADER_ACCESS | _UNIFORM_READ",
    ),
    # Visibility to the host, and from the host.
    _mutant(
        "publish: not recorded",
        "recording",
        "        if self._started:\n            self._commands.publish()\n",
        "        if self._started:\n            pass\n",
    ),
    _mutant(
        "publish: not recorded for a lone launch",
        "recording",
        "        if self._published:\n            commands.publish()\n",
        "",
    ),
    _mutant(
        "a lone launch is used again although it is another",
        "recording",
        "            if content != self._content:\n",
        "            if self._content is None:\n",
    ),
    _mutant(
        "a lone launch is used again although something it names may be gone",
        "recording",
        "(self._driver.generation, self._published, self._first)",
        "(0, self._published, self._first)",
    ),
    _mutant(
        "what a graph bound counts as bound after it",
        "commands",
        "        self._program = None  # what was bound before is not bound any more\n",
        "",
    ),
    _barrier("publish: execution only", _TO_HOST, "_GPU, 0", "_HOST, 0"),
    _barrier("publish: not to the host", _TO_HOST, "_GPU, _GPU_WRITE", "_GPU, _GPU_ACCESS"),
    _barrier(
        "publish: not what kernels wrote",
        _TO_HOST,
        "_TRANSFER, _TRANSFER_WRITE",
        "_HOST, _HOST_READ",
    ),
    _barrier(
        "publish: not what copies wrote",
        _TO_HOST,
        "_COMPUTE_STAGE, _SHADER_WRITE",
        "_HOST, _HOST_READ",
    ),
    _mutant(
        "acquire: not recorded",
        "commands",
        "        self._from_host.record()\n",
        "        pass\n",
    ),
    _barrier("acquire: execution only", _FROM_HOST, "_HOST, 0", "_GPU, 0"),
    _barrier("acquire: not from the host", _FROM_HOST, "_GPU, _GPU_WRITE", "_GPU, _GPU_ACCESS"),
    _barrier(
        "acquire: not for kernels", _FROM_HOST, "_HOST, _HOST_WRITE", "_TRANSFER, _TRANSFER_ACCESS"
    ),
    _barrier(
        "acquire: not for copies",
        _FROM_HOST,
        "_HOST, _HOST_WRITE",
        "_COMPUTE_STAGE, _SHADER_ACCESS | _UNIFORM_READ",
    ),
    # The same through vkCmdPipelineBarrier, on older devices.
    _mutant(
        "old barrier: no stages",
        "commands",
        "            stages, none = (source[0], target[0]), (0, ffi.NULL)\n",
        "            stages, none = (0x2000, 0x1), (0, ffi.NULL)\n",
    ),
    _mutant(
        "old barrier: execution only",
        "commands",
        "command, *stages, 0, 1, self._barrier,",
        "command, *stages, 0, 0, self._barrier,",
    ),
    _mutant(
        "old barrier: nothing made available",
        "commands",
        "    barrier.srcAccessMask = source\n",
        "",
    ),
    _mutant(
        "old barrier: nothing made visible", "commands", "    barrier.dstAccessMask = target\n", ""
    ),
    # Submissions.
    _mutant(
        "submit: waits for nothing",
        "recording",
        "= self._times.waitSemaphoreValueCount = self._waited",
        "= self._times.waitSemaphoreValueCount = 0",
    ),
    _mutant(
        "submit: waits for the value before",
        "recording",
        "            self._wait_values[slot] = reached\n",
        "            self._wait_values[slot] = reached - 1\n",
    ),
    _mutant(
        "submit: waits for one timeline only",
        "recording",
        "            self._wait_semaphores[slot] = other.semaphore\n",
        "            self._wait_semaphores[slot] = waits[0][0].semaphore\n",
    ),
    _mutant(
        "submit: waits at no stage", "recording", "[_ALL_COMMANDS] * count", "[0x2000] * count"
    ),
    _mutant(
        "submit: signals the value before",
        "recording",
        "        self._signal_value[0] = value\n",
        "        self._signal_value[0] = value - 1\n",
    ),
    _mutant(
        "submit: signals the value after",
        "recording",
        "        self._signal_value[0] = value\n",
        "        self._signal_value[0] = value + 1\n",
    ),
    # Timelines on the host.
    _mutant(
        "a wait on the host that ran out of time counts as over",
        "driver",
        "        if result == 0:\n            return True\n",
        "        if result >= 0:\n            return True\n",
    ),
    _mutant(
        "a wait on the host is for the value before",
        "timeline",
        "            self._values[slot] = value\n",
        "            self._values[slot] = value - 1\n",
    ),
    _mutant(
        "a wait on the host is for any timeline",
        "timeline",
        "        self._info.semaphoreCount = len(points)\n",
        "        self._info.semaphoreCount = len(points)\n        self._info.flags = 1\n",
    ),
    _mutant(
        "a wait on the host is for one timeline only",
        "timeline",
        "        self._info.semaphoreCount = len(points)\n",
        "        self._info.semaphoreCount = 1\n",
    ),
    _mutant(
        "a timeline tells more than it reached",
        "timeline",
        "        return int(self._value[0])\n",
        "        return int(self._value[0]) + 1\n",
    ),
    _mutant(
        "a host copy is signalled too early",
        "timeline",
        "            info.value = value\n",
        "            info.value = value + 1\n",
    ),
    _mutant(
        "a host copy is not signalled",
        "timeline",
        "map(self._driver.call.vkSignalSemaphore, (self.device,), (info,))",
        "[0]",
    ),
    # Lifetimes.
    _mutant(
        "descriptor sets are rewritten while in use",
        "program",
        "            self._free = [s for s in self._stale if s.uses == 0]\n"
        "            self._stale = [s for s in self._stale if s.uses]\n",
        "            self._free, self._stale = self._stale, []\n",
    ),
    _mutant(
        "descriptor sets are evicted while in use",
        "program",
        "[key for key, s in self._sets.items() if s.uses == 0]",
        "list(self._sets)",
    ),
    _mutant(
        "a recording does not hold its descriptor sets",
        "commands",
        "        bound.uses += 1\n",
        "        bound.uses += 0 * len(self._sets)\n",
    ),
    _mutant(
        "descriptor sets outlive their buffers",
        "driver",
        "            program.drop_sets()\n",
        "            pass\n",
    ),
    _mutant(
        "a recording keeps what was bound before it began",
        "commands",
        "        self._program = None\n        result = self._vk_begin(",
        "        result = self._vk_begin(",
    ),
    _mutant(
        "a program of another layout keeps the bindings of the last",
        "commands",
        "                self._bindings = self._pushed = None\n",
        "                pass\n",
    ),
    _mutant(
        "closing does not wait for the device",
        "driver",
        "        self.call.vkDeviceWaitIdle(self.handle)  # returns at once if it is lost\n",
        "        pass\n",
    ),
    Mutant(
        "a recording is used again while it runs",
        "schedule.stream",
        "        while in_flight and in_flight[0].value <= complete:\n",
        "        while in_flight:\n",
        driver="vulkan",
    ),
    Mutant(
        "programs and streams go while they are in use",
        "schedule.retirement",
        "if what not in awaited and all(_reached(at(), value) for at, value in points):\n",
        "if True:\n",
        driver="vulkan",
    ),
    Mutant(
        "adopted memory goes while it is in use",
        "schedule.retirement",
        "            elif backing.idle:\n",
        "            else:\n",
        driver="vulkan",
    ),
    # Submissions that wait for the host.
    _mutant(
        "work that waits for the host is not held",
        "recording",
        "(not self.held and all_issued(waits))\n",
        "(not self.held)\n",
        also=(
            _mutant(
                "",
                "recording",
                "        if not backlog.queues and (not waits or all_issued(waits)):\n",
                "        if not backlog.queues:\n",
            ),
        ),
    ),
    _mutant(
        "work behind what is held is not held",
        "recording",
        "(not self.held and all_issued(waits))\n",
        "all_issued(waits)\n",
    ),
    _mutant(
        "a signal does not let go of what is held",
        "driver",
        "        timeline.signal(value)\n        if self.backlog.queues:\n"
        "            self.backlog.hand_over()\n",
        "        timeline.signal(value)\n",
    ),
    # Views of texels.
    Mutant(
        "a view of texels goes at once",
        "schedule.retirement",
        "self.free_later(end.view, partial(self._driver.drop_view, end.view))",
        "self._driver.drop_view(end.view)",
        driver="vulkan",
    ),
    _mutant(
        "a dropped view is not forgotten",
        "driver",
        "        self._forget_bindings()\n        view.close()\n",
        "        view.close()\n",
    ),
    _mutant(
        "views outlive their memory",
        "memory",
        "        for view in tuple(self.views):\n            view.close()\n",
        "",
    ),
    _mutant(
        "memory is not for texels",
        "memory",
        "        | lib.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT\n",
        "",
    ),
    _mutant(
        "semaphores go at the end of their timeline",
        "timeline",
        "            self._driver.spent.add(self._handle)\n",
        "            self._handle.close()\n",
    ),
    # Timestamps.
    _mutant(
        "the device's clock is taken for a second ahead of the host's",
        "clock",
        "series.append((before, time.perf_counter(), int(tick[0])))",
        "series.append((before, time.perf_counter(), int(tick[0]) - 10**9))",
    ),
    # Memory that is not coherent.
    _mutant(
        "flush: too few bytes",
        "memory",
        "        end = -(-hi // atom) * atom\n",
        "        end = hi // atom * atom\n",
    ),
    _mutant(
        "flush: nothing",
        "driver",
        "self.call.vkFlushMappedMemoryRanges(self.handle, 1, memory.range(lo, hi))",
        "0",
    ),
    _mutant(
        "invalidate: nothing",
        "driver",
        "self.call.vkInvalidateMappedMemoryRanges(self.handle, 1, memory.range(lo, hi))",
        "0",
    ),
    _mutant(
        "memory that is not coherent is chosen",
        "memory",
        "            mapped = visible and coherent\n",
        "            mapped = visible\n",
    ),
]
