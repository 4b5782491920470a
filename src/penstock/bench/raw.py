"""The floor: the same work as bare Vulkan calls through cffi, every structure built beforehand.

Shares nothing with Penstock's driver, so that it can be compared with it. It tracks nothing and
checks nothing; its caller places the barriers. One mapped buffer holds all arrays, and the bindings
of a launch are prepared once and then only pointed at.

The `vulkan` package is used for its declarations alone: its wrappers cost more than what is
measured here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from vulkan._vulkan import ffi, lib

C = Any  # cffi has no static types
NULL = ffi.NULL

_COMPUTE = 0x20  # as a shader stage
_COMPUTE_STAGE, _HOST_STAGE = 0x800, 0x4000
_SHADER_READ, _SHADER_WRITE, _HOST_READ = 0x20, 0x40, 0x2000
_COMPUTE_QUEUE = 0x2
_MAPPED = 0x2 | 0x4 | 0x8  # visible, coherent, cached
_PUSH_DESCRIPTOR = b"VK_KHR_push_descriptor"
_FOREVER = 2**64 - 1


class Raw:
    """A device, a kernel of `bindings` buffers, a queue, a command buffer, and `arrays` arrays.

    Array number i is `nbytes` bytes of the mapped buffer. `constants` are the push constants of
    every launch.
    """

    def __init__(
        self, name: str, code: bytes, constants: bytes, *, bindings: int, arrays: int, nbytes: int
    ) -> None:
        self._kept: list[C] = []  # what structures point to
        self._bindings = bindings
        self._nbytes = nbytes
        self._open(name)
        self._make_buffer(arrays * nbytes)
        self._make_kernel(code, constants)
        self._make_commands()
        self._make_submission()

    # What is measured.

    def record(self, bound: Sequence[C], groups: int, *, barriers: bool) -> None:
        """Begin the command buffer, and record a launch for each of the prepared bindings.

        A launch is five calls: bind the pipeline, bind the buffers, push the constants, dispatch,
        and a barrier; or four, if nothing later depends on it.
        """
        command, pipeline, layout = self._command, self._pipeline, self._layout
        template, constants, size = self._template, self._constants, self._constants_size
        bind, describe, push = self._vk_bind, self._vk_describe, self._vk_push
        dispatch, barrier = self._vk_dispatch, self._vk_barrier
        between, stage = self._between, _COMPUTE_STAGE
        self._vk_begin(command, self._begin)
        for bindings in bound:
            bind(command, 1, pipeline)
            if template:
                describe(command, template, layout, 0, bindings)
            else:
                describe(command, 1, layout, 0, 1, bindings, 0, NULL)
            push(command, layout, _COMPUTE, 0, size, constants)
            dispatch(command, groups, 1, 1)
            if barriers:
                barrier(command, stage, stage, 0, 1, between, 0, NULL, 0, NULL)

    def end(self) -> None:
        """Make the results visible to the host, and end the command buffer."""
        barrier, to_host = self._vk_barrier, self._to_host
        barrier(self._command, _COMPUTE_STAGE, _HOST_STAGE, 0, 1, to_host, 0, NULL, 0, NULL)
        _check(self._vk_end(self._command), "vkEndCommandBuffer")

    def submit_and_wait(self) -> None:
        """Run what is recorded. Calling it again replays it."""
        self._value[0] += 1
        _check(self._vk_submit(self._queue, 1, self._submission, NULL), "vkQueueSubmit")
        _check(self._vk_wait(self._device, self._wait, _FOREVER), "vkWaitSemaphores")

    # What is prepared beforehand.

    def host(self, index: int) -> npt.NDArray[np.float32]:
        """An array as the host sees it. Valid until `close`."""
        return np.frombuffer(
            self._bytes, np.float32, count=self._nbytes // 4, offset=index * self._nbytes
        )

    def bind(self, *arrays: int) -> C:
        """The bindings of a launch on these arrays: a pointer that `record` hands on."""
        infos = [
            {"buffer": self._buffer, "offset": index * self._nbytes, "range": self._nbytes}
            for index in arrays
        ]
        pointer = self._array("VkDescriptorBufferInfo", infos)
        return self._keep(ffi.cast("void *", pointer)) if self._template else self._set(pointer)

    def constants(self) -> C:
        """The push constants of every launch, as bytes that can be changed between launches."""
        return ffi.buffer(self._constants)

    def prepared(self, names: Sequence[str]) -> dict[str, C]:
        """What launches hand to Vulkan, by the names it has here: for callers in C."""
        return {name: getattr(self, f"_{name}") for name in names}

    def close(self) -> None:
        """Release everything. Arrays from `host` must not be used any more."""
        lib.vkDeviceWaitIdle(self._device)
        for destroy, thing in reversed(self._made):
            destroy(self._device, thing, NULL)
        lib.vkDestroyDevice(self._device, NULL)
        lib.vkDestroyInstance(self._instance, NULL)

    # Device and memory.

    def _open(self, name: str) -> None:
        application = self._struct("VkApplicationInfo", apiVersion=1 << 22 | 3 << 12)
        create = self._struct("VkInstanceCreateInfo", pApplicationInfo=application)
        self._instance = self._out("VkInstance", lib.vkCreateInstance, create, NULL)
        self._physical = physical = _find(self._instance, name)
        extensions = _listing(
            lib.vkEnumerateDeviceExtensionProperties, "VkExtensionProperties", physical, NULL
        )
        wanted = {_PUSH_DESCRIPTOR} & {bytes(ffi.string(e.extensionName)) for e in extensions}
        self._pushes = bool(wanted)
        families = _listing(
            lib.vkGetPhysicalDeviceQueueFamilyProperties, "VkQueueFamilyProperties", physical
        )
        self._family = next(i for i, f in enumerate(families) if f.queueFlags & _COMPUTE_QUEUE)
        queue = self._struct(
            "VkDeviceQueueCreateInfo",
            queueFamilyIndex=self._family,
            queueCount=1,
            pQueuePriorities=self._array("float", [1.0]),
        )
        names = [self._array("char", name) for name in wanted]
        create = self._struct(
            "VkDeviceCreateInfo",
            pNext=self._struct("VkPhysicalDeviceTimelineSemaphoreFeatures", timelineSemaphore=1),
            queueCreateInfoCount=1,
            pQueueCreateInfos=queue,
            enabledExtensionCount=len(names),
            ppEnabledExtensionNames=self._array("char *", names),
            # As Penstock has it: what the driver's bounds checks cost, they cost both.
            pEnabledFeatures=self._struct("VkPhysicalDeviceFeatures", robustBufferAccess=1),
        )
        self._device = self._out("VkDevice", lib.vkCreateDevice, physical, create, NULL)
        self._made: list[tuple[C, C]] = []  # how to destroy it, and what
        out = ffi.new("VkQueue *")
        lib.vkGetDeviceQueue(self._device, self._family, 0, out)
        self._queue = out[0]

    def _make_buffer(self, nbytes: int) -> None:
        create = self._struct(
            "VkBufferCreateInfo", size=nbytes, usage=lib.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
        )
        self._buffer = self._make("Buffer", create)
        needs = ffi.new("VkMemoryRequirements *")
        lib.vkGetBufferMemoryRequirements(self._device, self._buffer, needs)
        types = ffi.new("VkPhysicalDeviceMemoryProperties *")
        lib.vkGetPhysicalDeviceMemoryProperties(self._physical, types)
        mapped = next(
            i
            for i in range(types.memoryTypeCount)
            if needs.memoryTypeBits >> i & 1
            and types.memoryTypes[i].propertyFlags & _MAPPED == _MAPPED
        )
        request = self._struct(
            "VkMemoryAllocateInfo", allocationSize=needs.size, memoryTypeIndex=mapped
        )
        memory = self._out("VkDeviceMemory", lib.vkAllocateMemory, self._device, request, NULL)
        self._made.append((lib.vkFreeMemory, memory))
        _check(lib.vkBindBufferMemory(self._device, self._buffer, memory, 0), "vkBindBufferMemory")
        address = self._out("void *", lib.vkMapMemory, self._device, memory, 0, nbytes, 0)
        self._bytes = ffi.buffer(address, nbytes)

    # The kernel.

    def _make_kernel(self, code: bytes, constants: bytes) -> None:
        self._constants = self._array("char", constants)
        self._constants_size = len(constants)
        self._set_layout = self._make("DescriptorSetLayout", self._set_layout_info())
        push = self._struct("VkPushConstantRange", stageFlags=_COMPUTE, size=len(constants))
        create = self._struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=self._array("VkDescriptorSetLayout", [self._set_layout]),
            pushConstantRangeCount=1,
            pPushConstantRanges=push,
        )
        self._layout = self._make("PipelineLayout", create)
        words = self._keep(ffi.from_buffer(code))
        create = self._struct(
            "VkShaderModuleCreateInfo", codeSize=len(code), pCode=ffi.cast("uint32_t *", words)
        )
        stage = self._struct(
            "VkPipelineShaderStageCreateInfo",
            stage=_COMPUTE,
            module=self._make("ShaderModule", create),
            pName=self._array("char", b"main\0"),
        )
        create = self._struct("VkComputePipelineCreateInfo", stage=stage[0], layout=self._layout)
        self._pipeline = self._out(
            "VkPipeline", lib.vkCreateComputePipelines, self._device, NULL, 1, create, NULL
        )
        self._made.append((lib.vkDestroyPipeline, self._pipeline))
        self._template = NULL
        if self._pushes:
            self._template = self._make("DescriptorUpdateTemplate", self._template_info())

    def _set_layout_info(self) -> C:
        kind = lib.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        slots = [
            {"binding": n, "descriptorType": kind, "descriptorCount": 1, "stageFlags": _COMPUTE}
            for n in range(self._bindings)
        ]
        push = lib.VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR
        return self._struct(
            "VkDescriptorSetLayoutCreateInfo",
            flags=push if self._pushes else 0,
            bindingCount=self._bindings,
            pBindings=self._array("VkDescriptorSetLayoutBinding", slots),
        )

    def _template_info(self) -> C:
        size = ffi.sizeof("VkDescriptorBufferInfo")
        entries = [
            {
                "dstBinding": n,
                "descriptorCount": 1,
                "descriptorType": lib.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                "offset": n * size,
                "stride": size,
            }
            for n in range(self._bindings)
        ]
        return self._struct(
            "VkDescriptorUpdateTemplateCreateInfo",
            descriptorUpdateEntryCount=self._bindings,
            pDescriptorUpdateEntries=self._array("VkDescriptorUpdateTemplateEntry", entries),
            templateType=lib.VK_DESCRIPTOR_UPDATE_TEMPLATE_TYPE_PUSH_DESCRIPTORS_KHR,
            pipelineBindPoint=lib.VK_PIPELINE_BIND_POINT_COMPUTE,
            pipelineLayout=self._layout,
        )

    def _set(self, infos: C) -> C:
        """For devices without push descriptors: a descriptor set, written once."""
        kind = lib.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        size = self._struct("VkDescriptorPoolSize", type=kind, descriptorCount=self._bindings)
        create = self._struct(
            "VkDescriptorPoolCreateInfo", maxSets=1, poolSizeCount=1, pPoolSizes=size
        )
        request = self._struct(
            "VkDescriptorSetAllocateInfo",
            descriptorPool=self._make("DescriptorPool", create),
            descriptorSetCount=1,
            pSetLayouts=self._array("VkDescriptorSetLayout", [self._set_layout]),
        )
        made = self._out("VkDescriptorSet", lib.vkAllocateDescriptorSets, self._device, request)
        for number in range(self._bindings):
            write = self._struct(
                "VkWriteDescriptorSet",
                dstSet=made,
                dstBinding=number,
                descriptorCount=1,
                descriptorType=kind,
                pBufferInfo=infos + number,
            )
            lib.vkUpdateDescriptorSets(self._device, 1, write, 0, NULL)
        return self._array("VkDescriptorSet", [made])

    # Commands and submission.

    def _make_commands(self) -> None:
        create = self._struct(
            "VkCommandPoolCreateInfo",
            flags=lib.VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
            queueFamilyIndex=self._family,
        )
        request = self._struct(
            "VkCommandBufferAllocateInfo",
            commandPool=self._make("CommandPool", create),
            commandBufferCount=1,
        )
        self._command = self._out(
            "VkCommandBuffer", lib.vkAllocateCommandBuffers, self._device, request
        )
        self._begin = self._struct("VkCommandBufferBeginInfo")
        self._between = self._struct(
            "VkMemoryBarrier",
            srcAccessMask=_SHADER_WRITE,
            dstAccessMask=_SHADER_READ | _SHADER_WRITE,
        )
        self._to_host = self._struct(
            "VkMemoryBarrier", srcAccessMask=_SHADER_WRITE, dstAccessMask=_HOST_READ
        )
        self._vk_begin = self._function("vkBeginCommandBuffer")
        self._vk_bind = self._function("vkCmdBindPipeline")
        self._vk_push = self._function("vkCmdPushConstants")
        self._vk_dispatch = self._function("vkCmdDispatch")
        self._vk_barrier = self._function("vkCmdPipelineBarrier")
        self._vk_end = self._function("vkEndCommandBuffer")
        self._vk_describe = self._function(
            "vkCmdPushDescriptorSetWithTemplateKHR" if self._pushes else "vkCmdBindDescriptorSets"
        )

    def _make_submission(self) -> None:
        kind = self._struct(
            "VkSemaphoreTypeCreateInfo", semaphoreType=lib.VK_SEMAPHORE_TYPE_TIMELINE
        )
        semaphore = self._make("Semaphore", self._struct("VkSemaphoreCreateInfo", pNext=kind))
        semaphores = self._array("VkSemaphore", [semaphore])
        self._value = self._array("uint64_t", [0])
        self._submission = self._struct(
            "VkSubmitInfo",
            pNext=self._struct(
                "VkTimelineSemaphoreSubmitInfo",
                signalSemaphoreValueCount=1,
                pSignalSemaphoreValues=self._value,
            ),
            commandBufferCount=1,
            pCommandBuffers=self._array("VkCommandBuffer", [self._command]),
            signalSemaphoreCount=1,
            pSignalSemaphores=semaphores,
        )
        self._wait = self._struct(
            "VkSemaphoreWaitInfo", semaphoreCount=1, pSemaphores=semaphores, pValues=self._value
        )
        self._vk_submit = self._function("vkQueueSubmit")
        self._vk_wait = self._function("vkWaitSemaphores")

    # How things are made.

    def _keep(self, thing: C) -> C:
        self._kept.append(thing)
        return thing

    def _array(self, ctype: str, items: Any) -> C:
        return self._keep(ffi.new(f"{ctype}[]", items))

    def _struct(self, ctype: str, **fields: Any) -> C:
        """A structure that lives as long as this object, with its `sType` set if it has one."""
        if any(name == "sType" for name, _ in ffi.typeof(ctype).fields):
            kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", ctype.removeprefix("Vk")).upper()
            fields["sType"] = getattr(lib, f"VK_STRUCTURE_TYPE_{kind}")
        return self._keep(ffi.new(f"{ctype} *", fields))

    def _out(self, ctype: str, call: C, *arguments: C) -> C:
        """What a Vulkan function puts where its last argument points."""
        out = ffi.new(f"{ctype} *" if ctype != "void *" else "void **")
        _check(call(*arguments, out), ctype)
        return out[0]

    def _make(self, what: str, create: C) -> C:
        """A Vulkan object of the device, destroyed by `close`."""
        call = getattr(lib, f"vkCreate{what}")
        made = self._out(f"Vk{what}", call, self._device, create, NULL)
        self._made.append((getattr(lib, f"vkDestroy{what}"), made))
        return made

    def _function(self, name: str) -> C:
        """A function of the device, without the loader in between."""
        pointer = lib.vkGetDeviceProcAddr(self._device, name.encode())
        return ffi.cast(f"PFN_{name}", pointer)


def _find(instance: C, name: str) -> C:
    """The physical device of exactly this name."""
    for physical in _listing(lib.vkEnumeratePhysicalDevices, "VkPhysicalDevice", instance):
        properties = ffi.new("VkPhysicalDeviceProperties *")
        lib.vkGetPhysicalDeviceProperties(physical, properties)
        if ffi.string(properties.deviceName).decode() == name:
            return physical
    raise LookupError(f"no Vulkan device is called {name!r}")


def _listing(call: C, ctype: str, *arguments: C) -> list[C]:
    """What a Vulkan function lists, after asking it how much that is."""
    count = ffi.new("uint32_t *")
    call(*arguments, count, NULL)
    items = ffi.new(f"{ctype}[]", count[0])
    call(*arguments, count, items)
    # Copies: an element of an array of structures does not keep the array.
    return [ffi.new(f"{ctype} *", item)[0] for item in items]


def _check(result: int, what: str) -> None:
    if result:
        raise RuntimeError(f"{what}: Vulkan returned {result}")
