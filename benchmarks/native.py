"""The floor without an interpreter: the calls of `Raw` made by `native.c`.

What is launched and waited for is the same, made in the same way; only the loops around the calls
are C.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cffi import FFI
from vulkan._vulkan import ffi as vk

from benchmarks.compiled import compile_c
from penstock.bench.raw import Raw

#: What `Raw` has prepared, by the names it has there.
_PREPARED = (
    "device", "queue", "command", "pipeline", "layout", "template", "constants", "constants_size",
    "begin", "between", "to_host", "submission", "wait", "value", "vk_begin", "vk_bind",
    "vk_describe", "vk_push", "vk_dispatch", "vk_barrier", "vk_end", "vk_submit", "vk_wait",
)  # fmt: skip
_MEMBERS = (*_PREPARED, "bindings", "groups")

_ffi = FFI()
_ffi.cdef(
    "typedef struct {"
    + "".join(f" uintptr_t {name};" for name in _MEMBERS)
    + """} Native;
    int native_record(const Native *n, uint32_t times);
    int native_end(const Native *n);
    int native_run(const Native *n);
    int native_chain(const Native *n, uint32_t times);
    int native_wait(const Native *n, uint32_t times);
    int native_results(const Native *n, uint32_t times, const uint32_t *indices, float *values,
                       const float *left);
    int native_trips(const Native *n, uint32_t times, size_t nbytes, const char *sources, char *x,
                     const char *y, char *results);
    """
)


class Native:
    """A prepared launch of `raw`'s, called through C: `call("wait", 20)` is `native_wait(n, 20)`.

    Must not outlive `raw`.
    """

    def __init__(self, raw: Raw, bindings: Any, groups: int, directory: Path) -> None:
        source = Path(__file__).with_name("native.c")
        self._library = _ffi.dlopen(str(compile_c(source, directory / "native.so")))
        members = raw.prepared(_PREPARED) | {"bindings": bindings, "groups": groups}
        self._native = _ffi.new(
            "Native *",
            {
                name: value if isinstance(value, int) else int(vk.cast("uintptr_t", value))
                for name, value in members.items()
            },
        )

    def call(self, what: str, *arguments: Any) -> None:
        """Call a function of native.c; NumPy arrays are handed over as pointers to their memory."""
        handed = [
            argument if isinstance(argument, int) else _ffi.cast("void *", argument.ctypes.data)
            for argument in arguments
        ]
        result = getattr(self._library, f"native_{what}")(self._native, *handed)
        if result:
            raise RuntimeError(f"native_{what}: Vulkan returned {result}")
