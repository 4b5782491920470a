"""Raw HIP: the runtime library, its declarations, and error results as exceptions.

The library is found by name on the system, or is the file that `PENSTOCK_HIP` names. Only functions
whose binary interface is the same from HIP 5 to 7 are declared here. Handles and addresses are
declared as integers, which are the cheapest to pass, so no structure is needed. (The `hip-python`
package wraps each call in conversions that cost more than the call, and chooses the library
itself.)
"""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import cffi

from penstock.errors import DeviceLost, Error, NoDevice, OutOfMemory, Unsupported

#: A cffi object. cffi has no static types.
C = Any

#: File names of the runtime and of the compiler, in order of preference.
_RUNTIME = ("libamdhip64.so", *(f"libamdhip64.so.{n}" for n in (7, 6, 5)))
_COMPILER = ("libhiprtc.so", *(f"libhiprtc.so.{n}" for n in (7, 6, 5)))
_USUAL_PLACE = "/opt/rocm/lib/"  # of AMD's packages, which may not register it with the loader

INSTALL = (
    "Install AMD's ROCm, or on Debian and Ubuntu: apt install libamdhip64-5 libhiprtc-builtins5. "
    "If the library is elsewhere, name its file in PENSTOCK_HIP"
)

NOT_READY = 600
_OUT_OF_MEMORY = (2, 1052)
_NO_DEVICE = (3, 35, 100, 101)
#: Errors after which the device or context is unusable, including faults of a kernel.
_LOST = (4, 53, 201, 214, 304, 401, 700, 702, 709, 710, 719, 999, 1053)
_OTHER_DEVICE = (98, 200, 209)
_UNSUPPORTED = 801

_TYPES = """
typedef uintptr_t handle;
"""

_RUNTIME_CALLS = """
const char *hipGetErrorName(int error);
int hipInit(unsigned flags);
int hipRuntimeGetVersion(int *version);
int hipGetDeviceCount(int *count);
int hipSetDevice(int device);
int hipDeviceGetName(char *name, int len, int device);
int hipDeviceTotalMem(size_t *bytes, int device);
int hipDeviceGetAttribute(int *value, int attribute, int device);
int hipGetDeviceProperties(void *properties, int device);
int hipDeviceSynchronize(void);
int hipMalloc(handle *pointer, size_t size);
int hipFree(handle pointer);
int hipHostMalloc(handle *pointer, size_t size, unsigned flags);
int hipHostFree(handle pointer);
int hipHostRegister(handle pointer, size_t size, unsigned flags);
int hipHostUnregister(handle pointer);
int hipHostGetDevicePointer(handle *device, handle host, unsigned flags);
int hipStreamCreateWithFlags(handle *stream, unsigned flags);
int hipStreamDestroy(handle stream);
int hipStreamWaitEvent(handle stream, handle event, unsigned flags);
int hipEventCreateWithFlags(handle *event, unsigned flags);
int hipEventDestroy(handle event);
int hipEventRecord(handle event, handle stream);
int hipEventQuery(handle event);
int hipEventElapsedTime(float *ms, handle start, handle stop);
int hipMemcpyAsync(handle target, handle source, size_t size, int kind, handle stream);
int hipMemcpyWithStream(handle target, handle source, size_t size, int kind, handle stream);
int hipMemcpy2DAsync(handle target, size_t target_pitch, handle source, size_t source_pitch,
                     size_t width, size_t height, int kind, handle stream);
int hipMemsetD32Async(handle target, int value, size_t count, handle stream);
int hipModuleLoadData(handle *module, const void *image);
int hipModuleUnload(handle module);
int hipModuleGetFunction(handle *function, handle module, const char *name);
int hipModuleLaunchKernel(handle function, unsigned gx, unsigned gy, unsigned gz,
                          unsigned bx, unsigned by, unsigned bz, unsigned shared, handle stream,
                          void **parameters, void **extra);
int hipStreamBeginCapture(handle stream, int mode);
int hipStreamEndCapture(handle stream, handle *graph);
int hipGraphInstantiate(handle *executable, handle graph, handle *node, char *log, size_t size);
int hipGraphExecUpdate(handle executable, handle graph, handle *node, int *result);
int hipGraphLaunch(handle executable, handle stream);
int hipGraphDestroy(handle graph);
int hipGraphExecDestroy(handle executable);
"""

_COMPILER_CALLS = """
const char *hiprtcGetErrorString(int result);
int hiprtcCreateProgram(handle *program, const char *source, const char *name, int headers,
                        const char **sources, const char **names);
int hiprtcDestroyProgram(handle *program);
int hiprtcAddNameExpression(handle program, const char *expression);
int hiprtcCompileProgram(handle program, int count, const char **options);
int hiprtcGetLoweredName(handle program, const char *expression, const char **name);
int hiprtcGetProgramLogSize(handle program, size_t *size);
int hiprtcGetProgramLog(handle program, char *log);
int hiprtcGetCodeSize(handle program, size_t *size);
int hiprtcGetCode(handle program, char *code);
"""

ffi: C = cffi.FFI()
ffi.cdef(_TYPES + _RUNTIME_CALLS + _COMPILER_CALLS)


class Hip:
    """The opened runtime library. Kept for the life of the process."""

    def __init__(self, names: tuple[str, ...], *, alone: bool) -> None:
        self.path, self.lib = _open(names, alone=alone)

    @functools.cached_property
    def compiler(self) -> C:
        """The library that contains hiprtc: the runtime itself, or since HIP 6 a separate one."""
        if hasattr(self.lib, "hiprtcCreateProgram"):
            return self.lib
        directory = os.path.dirname(self.path)
        beside = tuple(os.path.join(directory, name) for name in _COMPILER) if directory else ()
        return _open((*beside, *_COMPILER), alone=False)[1]

    def function(self, name: str) -> C:
        """A function by name. Raises `NoDevice` if the library lacks it, as it is too old."""
        found = getattr(self.lib, name, None)
        if found is None:
            raise NoDevice(f"{self.path} has no {name}; Penstock needs HIP 5.2 or newer")
        return found

    def check(self, result: int, what: str) -> None:
        """Turn a failed `hipError_t` into the exception a user should see."""
        if result == 0:
            return
        name = self.error_name(result)
        if result in _OUT_OF_MEMORY:
            raise OutOfMemory(f"{what}: the device is out of memory ({name})")
        if result in _LOST:
            raise DeviceLost(f"{what}: the device was lost ({name})")
        if result in _NO_DEVICE:
            raise NoDevice(f"{what}: {name}")
        if result == _UNSUPPORTED:
            raise Unsupported(f"{what}: this device or version of HIP cannot do it ({name})")
        raise Error(f"{what} failed: {name}")

    def check_image(self, result: int, what: str, device: str) -> None:
        """Like `check`, for loading code, which may be compiled for another device."""
        if result in _OTHER_DEVICE:
            name = self.error_name(result)
            raise Unsupported(f"{what} has no code for {device} ({name}); compile it for that")
        self.check(result, what)

    def error_name(self, result: int) -> str:
        name = ffi.string(self.lib.hipGetErrorName(result)).decode("utf-8", "replace")
        return f"{name}, {result}"

    def number(self, call: str, *arguments: Any, ctype: str = "int *") -> int:
        """Call a function and return the number it stores through its first argument."""
        out = ffi.new(ctype)
        self.check(self.function(call)(out, *arguments), call)
        return int(out[0])

    @property
    def version(self) -> str:
        """The version, such as 5.2.21153."""
        number = self.number("hipRuntimeGetVersion")
        return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"

    def device_count(self) -> int:
        """The number of devices. Raises `NoDevice`, with the reason, if there is none."""
        out = ffi.new("int *")
        result = self.function("hipGetDeviceCount")(out)
        if result in _NO_DEVICE or (result == 0 and not out[0]):
            raise NoDevice(
                f"HIP {self.version} is installed ({self.path}), but answers that there is no "
                f"device ({self.error_name(result)}): it needs an AMD GPU that ROCm supports, the "
                "kernel's amdgpu driver, and permission to open /dev/kfd and /dev/dri/render*"
            )
        self.check(result, "hipGetDeviceCount")
        return int(out[0])

    def architecture(self, device: int) -> str:
        """The compiler's name for the device, such as gfx1100 or gfx90a:sramecc+:xnack-.

        It is searched as text in a structure whose layout changes with every version of HIP.
        """
        room = ffi.new("char[]", 16 << 10)
        self.check(self.function("hipGetDeviceProperties")(room, device), "hipGetDeviceProperties")
        found = re.search(rb"gfx[0-9a-f]+(:[a-z]+[+-])*", ffi.buffer(room)[:])
        return found.group().decode() if found else ""


@functools.cache
def _opened(path: str) -> Hip:
    if path:
        return Hip((path,), alone=True)
    return Hip((*_RUNTIME, *(_USUAL_PLACE + name for name in _RUNTIME)), alone=False)


def load() -> Hip:
    """The runtime that `PENSTOCK_HIP` names, or else the system's. Raises `NoDevice`."""
    return _opened(os.environ.get("PENSTOCK_HIP", ""))


def _open(names: tuple[str, ...], *, alone: bool) -> tuple[str, C]:
    said = ""
    for name in names:
        try:
            return name, ffi.dlopen(name)
        except OSError as error:
            said = str(error) if alone or not said else said
    what = f"{names[0]} cannot be opened" if alone else f"no HIP library ({names[0]})"
    raise NoDevice(f"{what} on this machine: {said}. {INSTALL}")
