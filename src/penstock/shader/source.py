"""Kernels as the user gives them, and as a driver loads them.

A driver's `load` turns a `KernelSource` into a `LoadedKernel`: code for the driver's `program`, and
the interface that calls are checked against. `load_spirv` does this for drivers that run SPIR-V.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.dtypes import exactly
from penstock.errors import ArgumentError, CompileError, InvalidValue
from penstock.shader.glsl import compile_glsl
from penstock.shader.interface import Interface
from penstock.shader.rewrite import arguments_in_buffer
from penstock.shader.spirv import reflect
from penstock.shader.texels import format_named

#: Magic numbers of SPIR-V, of a HIP code object, and of bundles of code objects.
_CODE = (b"\x03\x02\x23\x07", b"\x7fELF", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")


#: By what a texel gives: how the names of GLSL's types begin.
_PREFIXES = {"float": "", "int": "i", "uint": "u"}

_MAIN = re.compile(r"\bvoid\s+main\b")


class KernelSource(NamedTuple):
    """A kernel as the user gave it."""

    content: Any  #: source text, compiled code, or the path of a file with either
    name: str = ""
    defines: Mapping[str, str | int | float] = {}
    constants: Mapping[str, Any] = {}
    signature: str | None = None  #: for code without reflection: see `shader.signature`
    group_size: int | tuple[int, ...] | None = None
    formats: Mapping[str, str] = {}  #: of texel buffers that declare none, by name


class LoadedKernel(NamedTuple):
    """Code for a driver's `program`, and the interface of the kernel."""

    code: bytes
    interface: Interface
    constants: dict[int, bytes]  #: values of specialization constants by id
    name: str


def load_spirv(source: KernelSource, limits: Mapping[str, Any]) -> LoadedKernel:
    """Load GLSL or SPIR-V for a device with these limits."""
    if source.signature is not None or source.group_size is not None:
        raise ArgumentError(
            "signature= and group_size= are for HIP; SPIR-V and GLSL say both themselves"
        )
    content, name, include_dir = read(source, "GLSL", "SPIR-V bytes")
    if isinstance(content, str):
        if "__global__" in content and not _MAIN.search(content):
            raise CompileError(
                f"{name} is CUDA or HIP C++, with __global__ functions; kernels of this device are "
                "GLSL compute shaders with void main(): see docs/kernels.md"
            )
        content = compile_glsl(content, name=name, defines=source.defines, include_dir=include_dir)
    elif source.defines:
        raise ArgumentError("defines= is for GLSL; use constants= with SPIR-V")
    interface = reflect(content)
    constants = specialised(interface, source.constants, name)
    if interface.sized_by & constants.keys():
        interface = reflect(content, constants=constants)
    if source.formats:
        interface = with_formats(interface, source.formats, name)
    if interface.push_size > limits["push_constants"]:
        content, interface = arguments_in_buffer(content, interface)
    return LoadedKernel(content, interface, constants, name)


def with_formats(interface: Interface, given: Mapping[str, str], name: str) -> Interface:
    """The interface with the formats of texel buffers that the caller gives by name."""
    chosen = {unicodedata.normalize("NFKC", key): value for key, value in given.items()}
    known = [binding.name for binding in interface.bindings if binding.is_texel]
    if unknown := chosen.keys() - set(known):
        raise ArgumentError(
            f"{name} has no texel buffer {sorted(unknown)[0]!r} to give a format to; it has "
            f"{', '.join(known) or 'none'}"
        )
    bindings = []
    for binding in interface.bindings:
        if binding.name in chosen:
            found = format_named(chosen[binding.name], f"{name}: formats={{{binding.name!r}: …}}")
            if binding.format not in ("", found.name):
                raise ArgumentError(
                    f"{name}: texel buffer {binding.name!r} is declared as {binding.format}, and "
                    f"formats= says {found.name}; leave it out"
                )
            if found.fetched != binding.fetched:
                raise ArgumentError(
                    f"{name}: texel buffer {binding.name!r} gives the kernel {binding.fetched}, "
                    f"and format {found.name} has {found.fetched}; declare it as "
                    f"{_PREFIXES[found.fetched]}samplerBuffer, or choose another format"
                )
            binding = replace(
                binding, format=found.name, dtype=found.dtype, stride=found.nbytes,
                min_size=found.nbytes,
            )  # fmt: skip
        bindings.append(binding)
    return replace(interface, bindings=tuple(bindings))


def read(source: KernelSource, language: str, code: str) -> tuple[str | bytes, str, Path | None]:
    """Read a source: its text or compiled code, the kernel's name, and the include directory.

    `language` and `code` name the accepted forms in error messages.
    """
    content, name, include_dir = source.content, source.name, None
    if isinstance(content, os.PathLike) or (isinstance(content, str) and _is_path(content)):
        path = Path(content)
        try:
            found = path.read_bytes()
        except FileNotFoundError as error:
            raise CompileError(
                f"there is no file {str(path)!r}; a kernel is {language} text, {code} or the path "
                "of a file with either"
            ) from error
        except (OSError, ValueError) as error:
            raise CompileError(
                f"{content!r} is neither {language} text nor a file that can be read ({error})"
            ) from error
        name = name or path.stem
        include_dir = path.parent
        content = found if found.startswith(_CODE) else found.decode("utf-8", "replace")
    if isinstance(content, (bytearray, memoryview)):
        content = bytes(content)
    if not isinstance(content, (str, bytes)):
        raise ArgumentError(
            f"a kernel is {language} text, {code} or a path, not {type(content).__name__}"
        )
    return content, name or "kernel", include_dir


def specialised(interface: Interface, given: Mapping[str, Any], name: str) -> dict[int, bytes]:
    """Pack specialization constants given by name; returns the bytes of each by its id."""
    # Normalised as Python normalises the names of keyword arguments.
    chosen = {unicodedata.normalize("NFKC", key): value for key, value in given.items()}
    known = {constant.name: constant for constant in interface.constants}
    if unknown := chosen.keys() - known.keys():
        raise ArgumentError(
            f"{name} has no constant {sorted(unknown)[0]!r}; it has {', '.join(known) or 'none'}"
        )
    values = {}
    for key, value in chosen.items():
        constant = known[key]
        dtype = np.dtype(np.uint32) if constant.dtype.kind == "b" else constant.dtype
        try:
            values[constant.id] = exactly(value, dtype, ()).tobytes()
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidValue(f"constant {key}={value!r} does not fit {dtype}") from error
    return values


def _is_path(content: str) -> bool:
    """Whether text is the name of a file rather than a kernel, which has lines, or a function."""
    if "\n" in content:
        return False
    return not ("{" in content or _MAIN.search(content)) or os.path.exists(content)
