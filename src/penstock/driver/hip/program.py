"""Kernels: HIP C++ compiled at run time by hiprtc, modules, and the passing of arguments.

A module is loaded and its function looked up once. The arguments of a launch are written to a fixed
block of memory per program, from which HIP copies them during the launch call.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.driver.hip.api import C, Hip, ffi
from penstock.driver.protocol import PLACE
from penstock.errors import CompileError, CompilerNotFound, NoDevice
from penstock.shader.interface import Interface
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.driver.hip.driver import HipDriver


_FILE = b"penstock.hip"
_OWN_FILES = ("penstock.hip", "CompileSource")  # names of the source in compilers' messages
_CONTINUED = re.compile(r"(?:\\|\?\?/)[ \t\v\f]*(?:\r\n|\r|\n)")
_FILES = re.compile(
    r"(?:\#|%:|\?\?=)(?:\s|/\*.*?\*/)*(?:include|import|embed|__include)\w*"
    r"|__has_(?:include|embed)\w*|pragma[^\n]*\bdependency\b",
    re.DOTALL | re.IGNORECASE,
)
_ERROR = re.compile(r"^(.*?):(\d+)(?::\d+)?: (?:fatal )?error: (.*)$", re.M)


class HipProgram:
    """A function of a module, and the memory for its arguments."""

    __slots__ = (
        "_code", "_driver", "_keep", "_module", "_pointers", "block", "bound", "function",
        "interface", "pack_into", "parameters", "passed", "size", "what",
    )  # fmt: skip

    def __init__(self, driver: HipDriver, code: bytes, interface: Interface) -> None:
        self._driver = driver
        self.interface = interface
        self.size = interface.local_size
        self.what = f"the kernel {interface.entry}"
        self._code = code  # AMD's runtime may read the image for as long as the module is loaded
        self._module = self._load(code)
        try:
            self.function = self._find(interface.entry)
        except BaseException:
            self.close()
            raise
        self._lay_out(interface)

    def close(self) -> None:
        self._driver.call.hipModuleUnload(self._module)

    def _load(self, code: bytes) -> int:
        driver = self._driver
        out = ffi.new("handle *")
        result = driver.call.hipModuleLoadData(out, ffi.from_buffer(code))
        driver.hip.check_image(result, self.what, f"{driver.info.name} ({driver.architecture})")
        return int(out[0])

    def _find(self, entry: str) -> int:
        out = ffi.new("handle *")
        result = self._driver.call.hipModuleGetFunction(out, self._module, entry.encode())
        if result == 500:
            raise CompileError(f"the code has no kernel called {entry!r}; say which with name=")
        self._driver.hip.check(result, "hipModuleGetFunction")
        return int(out[0])

    def _lay_out(self, interface: Interface) -> None:
        """Lay out the arguments: addresses first, then the packed scalars, and pointers to each."""
        count = len(interface.bindings)
        pointers = bytearray(8 * max(1, count))
        block = bytearray(max(1, interface.push_size))
        places = {}
        for number, binding in enumerate(interface.bindings):
            places[binding.name] = ffi.cast("char *", ffi.from_buffer(pointers)) + 8 * number
        if interface.push_size:
            for member in interface.push:
                places[member.name] = ffi.cast("char *", ffi.from_buffer(block)) + member.offset
        wanted = [ffi.cast("void *", places[name]) for name in interface.parameters]
        self.parameters: C = ffi.new("void *[]", wanted or [ffi.NULL])
        self._pointers = pointers
        self.block = block
        self._keep = (places, ffi.from_buffer(pointers), ffi.from_buffer(block))
        self.pack_into = struct.Struct(f"{count}Q").pack_into
        self.bound: bytes | None = None  # the bindings of the last launch
        self.passed: bytes | None = None

    def point_at(self, bindings: bytes) -> None:
        """Write the addresses of these bindings, a `PLACE` each."""
        addresses = [handle + offset for handle, offset, _ in PLACE.iter_unpack(bindings)]
        self.pack_into(self._pointers, 0, *addresses)
        self.bound = bindings


def compile_hip(
    hip: Hip,
    source: str,
    *,
    name: str,
    entry: str,
    architecture: str,
    defines: Mapping[str, str | int | float],
    include_dir: Path | None,
) -> tuple[bytes, str]:
    """Compile to a code object for an architecture; returns it and the kernel's name in it.

    Without `include_dir`, as for source given as text, the source must not name any file.
    """
    if include_dir is None:
        _refuse_files(source, name)
    try:
        lib = hip.compiler
    except NoDevice as error:
        raise CompilerNotFound(f"no HIP compiler (hiprtc) on this machine: {error}") from None
    start = events.clock() if events.active else 0.0
    program = ffi.new("handle *")
    made = lib.hiprtcCreateProgram(program, source.encode(), _FILE, 0, ffi.NULL, ffi.NULL)
    _check(lib, made)
    try:
        expression = ffi.new("char[]", entry.encode())
        _check(lib, lib.hiprtcAddNameExpression(program[0], expression))
        options = [f"--gpu-architecture={architecture}", "-std=c++17"]
        options += [f"-D{key}={value}" for key, value in defines.items()]
        if include_dir is not None:
            options.append(f"-I{include_dir}")
        texts = [ffi.new("char[]", option.encode()) for option in options]
        result = lib.hiprtcCompileProgram(program[0], len(texts), ffi.new("char *[]", texts))
        if result:
            raise _explain(lib, program[0], result, name, source)
        lowered = ffi.new("char **")
        _check(lib, lib.hiprtcGetLoweredName(program[0], expression, lowered))
        called = ffi.string(lowered[0]).decode()
        size = ffi.new("size_t *")
        _check(lib, lib.hiprtcGetCodeSize(program[0], size))
        code = ffi.new("char[]", size[0])
        _check(lib, lib.hiprtcGetCode(program[0], code))
        events.compiled(name, "HIP C++ to a code object", "source", start)
        return bytes(ffi.buffer(code)), called
    finally:
        lib.hiprtcDestroyProgram(program)


def _refuse_files(source: str, name: str) -> None:
    """Raise if the source includes or tests for a file: the compiler would read any file it names.

    Comments are searched, too, because only a C++ parser could reliably recognize them.
    """
    found = _FILES.search(_CONTINUED.sub("", source))
    if found:
        raise CompileError(
            f"{name}: {' '.join(found[0].split())!r} in a kernel from text, which can name no "
            "file; put the kernel into a file, next to what it includes"
        )


def _check(lib: C, result: int) -> None:
    if result:
        said = ffi.string(lib.hiprtcGetErrorString(result)).decode("utf-8", "replace")
        raise CompileError(f"hiprtc failed: {said}")


def _explain(lib: C, program: int, result: int, name: str, source: str) -> CompileError:
    """The compiler's messages by line, as an exception."""
    size = ffi.new("size_t *")
    log = ""
    if lib.hiprtcGetProgramLogSize(program, size) == 0 and size[0]:
        text = ffi.new("char[]", size[0] + 1)
        lib.hiprtcGetProgramLog(program, text)
        log = ffi.string(text).decode("utf-8", "replace").strip()
    found = []
    for file, line, message in re.findall(_ERROR, log):
        own = file.rpartition("/")[2] in _OWN_FILES
        found.append((int(line), message) if own else (0, f"{file}, line {line}: {message}"))
    lines = source.splitlines()
    said = []
    for at, message in found:
        place = f"{name}, line {at}" if at else name
        said.append(f"{place}: {message}\n    {lines[at - 1].strip() if at else ''}".rstrip())
    fallback = ffi.string(lib.hiprtcGetErrorString(result)).decode("utf-8", "replace")
    made = CompileError("\n".join(said) or f"{name} does not compile ({fallback}):\n{log}")
    made.errors = found
    return made
