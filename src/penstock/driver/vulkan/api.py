"""Raw Vulkan: the loader library, one instance per validation setting, error results as exceptions.

Uses only the declarations of the `vulkan` package. Its wrappers cost tens of microseconds a call
and do not keep the pointees of nested structures alive. So every structure here is made with
`ffi.new`, and the code that makes it keeps its pointees alive.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.errors import DeviceLost, Error, NoDevice, OutOfMemory
from penstock.install_hints import advice
from penstock.locks import RLock

#: A cffi object. cffi has no static types.
C = Any
T = TypeVar("T")

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"

#: The validation layer's message for an internal error of its own ("most likely a validation bug").
#: It occurs when one thread waits for a timeline while another signals it, which is valid.
_LAYER_ITSELF = "VkSemaphore-state-timeout"

_OUT_OF_MEMORY = (-1, -2)
_DEVICE_LOST = -4
_lock = RLock()


@functools.cache
def load() -> tuple[C, C]:
    """The `ffi` with Vulkan's declarations, and the opened loader library."""
    try:
        from vulkan._vulkan import ffi, lib
    except OSError as error:
        raise NoDevice(
            f"no Vulkan loader (libvulkan) on this machine. To install one and a driver, "
            f"{advice('loader', 'driver')}"
        ) from error
    return ffi, lib


def check(result: int, what: str) -> None:
    """Turn a failed `VkResult` into the exception a user should see."""
    if result >= 0:
        return
    ffi, _ = load()
    name = ffi.typeof("VkResult").elements.get(result, str(result))
    if result in _OUT_OF_MEMORY:
        raise OutOfMemory(f"{what}: the driver is out of memory ({name})")
    if result == _DEVICE_LOST:
        raise DeviceLost(f"{what}: the device was lost ({name})")
    raise Error(f"{what} failed: {name}")


def text(array: C) -> str:
    """A C string as Python text."""
    ffi, _ = load()
    return str(ffi.string(array).decode("utf-8", "replace"))


def listing(call: Any, ctype: str, *arguments: C) -> list[C]:
    """Call a Vulkan function twice: for the size of an array of `ctype`, then to fill it.

    Each returned item owns its memory: an element of a cffi array of structures is a reference into
    the array, and does not keep the array alive.
    """
    ffi, _ = load()
    count = ffi.new("uint32_t *")
    check(call(*arguments, count, ffi.NULL) or 0, ctype)
    items = ffi.new(f"{ctype}[]", max(1, count[0]))
    check(call(*arguments, count, items) or 0, ctype)
    return [ffi.new(f"{ctype} *", items[i])[0] for i in range(count[0])]


class Instance:
    """A Vulkan instance. Kept for the life of the process, as drivers do not reload reliably."""

    def __init__(self, validate: bool) -> None:
        ffi, lib = load()
        self.messages: list[str] = []
        self.validates = validate
        keep: list[C] = []

        def names(items: list[bytes]) -> C:
            strings = [ffi.new("char[]", item) for item in items]
            keep.extend(strings)
            array = ffi.new("char *[]", strings or [ffi.NULL])
            keep.append(array)
            return array

        application = ffi.new("VkApplicationInfo *")
        application.sType = lib.VK_STRUCTURE_TYPE_APPLICATION_INFO
        engine = ffi.new("char[]", b"penstock")
        application.pEngineName = application.pApplicationName = engine
        application.apiVersion = (1 << 22) | (3 << 12)
        info = ffi.new("VkInstanceCreateInfo *")
        info.sType = lib.VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO
        info.pApplicationInfo = application
        if validate:
            self._require_layer()
            features = ffi.new("VkValidationFeaturesEXT *")
            features.sType = lib.VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT
            enables = ffi.new(
                "VkValidationFeatureEnableEXT[]",
                [lib.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT],
            )
            features.enabledValidationFeatureCount = 1
            features.pEnabledValidationFeatures = enables
            messenger = self._messenger()
            features.pNext = messenger
            info.pNext = features
            info.enabledLayerCount = 1
            info.ppEnabledLayerNames = names([VALIDATION_LAYER.encode()])
            info.enabledExtensionCount = 1
            info.ppEnabledExtensionNames = names([b"VK_EXT_debug_utils"])
            keep += [features, enables, messenger]
        out = ffi.new("VkInstance *")
        check_instance(lib.vkCreateInstance(info, ffi.NULL, out))
        self.handle = out[0]
        if validate:
            create = self.function("vkCreateDebugUtilsMessengerEXT")
            check(
                create(self.handle, messenger, ffi.NULL, ffi.new("VkDebugUtilsMessengerEXT *")),
                "vkCreateDebugUtilsMessengerEXT",
            )

    def function(self, name: str) -> C:
        """An instance-level function by name."""
        ffi, lib = load()
        pointer = lib.vkGetInstanceProcAddr(self.handle, name.encode())
        return ffi.cast(f"PFN_{name}", pointer)

    def physical_devices(self) -> list[C]:
        _, lib = load()
        return listing(lib.vkEnumeratePhysicalDevices, "VkPhysicalDevice", self.handle)

    def _require_layer(self) -> None:
        _, lib = load()
        layers = listing(lib.vkEnumerateInstanceLayerProperties, "VkLayerProperties")
        if VALIDATION_LAYER not in [text(layer.layerName) for layer in layers]:
            raise NoDevice(
                f"validation was asked for, but the layer {VALIDATION_LAYER} is not installed. "
                f"To install it, {advice('validation')}"
            )

    def _messenger(self) -> C:
        """Collect the validation layer's messages in `messages`."""
        ffi, lib = load()

        def hear(severity: int, types: int, data: C, user: C) -> int:
            message = text(data.pMessage)
            if _LAYER_ITSELF not in message:
                self.messages.append(message)
            return 0

        self._callback = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", hear)
        info = ffi.new("VkDebugUtilsMessengerCreateInfoEXT *")
        info.sType = lib.VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT
        info.messageSeverity = (
            lib.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
            | lib.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT
        )
        info.messageType = (
            lib.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
            | lib.VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT
        )
        info.pfnUserCallback = self._callback
        return info


def native_object(kind: Callable[..., T], **parts: Any) -> T | None:
    """An object of the native step's, of handles and functions; None if one of them is not C."""
    ffi, _ = load()
    numbers: dict[str, int] = {}
    for name, part in parts.items():
        if isinstance(part, ffi.CData):
            numbers[name] = int(ffi.cast("uintptr_t", part))
        elif isinstance(part, int):
            numbers[name] = part
        else:
            return None
    return kind(**numbers)


def check_instance(result: int) -> None:
    """Raise if the instance could not be created; usually no driver is installed then."""
    if result in (-9, -7, -6, -3):
        raise NoDevice(
            f"a Vulkan loader is present, but no usable driver (code {result}). To install one, "
            f"{advice('driver')}"
        )
    check(result, "vkCreateInstance")


@functools.cache
def _instance(validate: bool) -> Instance:
    return Instance(validate)


os.register_at_fork(after_in_child=_instance.cache_clear)


def instance(validate: bool = False) -> Instance:
    """The process's instance; `PENSTOCK_VALIDATE=1` always enables the validation layer."""
    with _lock:
        return _instance(validate or os.environ.get("PENSTOCK_VALIDATE", "") not in ("", "0"))
