"""Loads HIP C++ and code objects as kernels with a declared signature."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.driver.hip.program import compile_hip
from penstock.dtypes import as_counts
from penstock.errors import ArgumentError, CompileError
from penstock.shader.signature import declared
from penstock.shader.source import KernelSource, LoadedKernel, read, specialised

if TYPE_CHECKING:
    from penstock.driver.hip.driver import HipDriver

_GROUP_SIZE = 256  # the default


def load(driver: HipDriver, source: KernelSource) -> LoadedKernel:
    """Compile HIP C++ for the driver's device, or use a code object unchanged."""
    content, name, include_dir = read(source, "HIP C++", "a code object's bytes")
    if source.signature is None:
        raise ArgumentError(
            f"{name}: a HIP kernel does not say what it is called with; declare it, such as "
            "signature='in float32 x, inout float32 y, float32 a, uint32 n'"
        )
    if source.formats:
        raise ArgumentError("formats= is for texel buffers, which HIP kernels do not have")
    group = as_counts(_GROUP_SIZE if source.group_size is None else source.group_size, "group_size")
    room: Any = driver.info.limits["push_constants"]
    interface = declared(source.signature, name, name, group, room)
    constants = specialised(interface, source.constants, name)
    if isinstance(content, bytes):
        if source.defines:
            raise ArgumentError("defines= is for HIP C++, not for a code object")
        return LoadedKernel(content, interface, constants, name)
    code, entry = compile_hip(
        driver.hip,
        content,
        name=name,
        entry=_entry(content, name),
        architecture=driver.architecture,
        defines=source.defines,
        include_dir=include_dir,
    )
    return LoadedKernel(code, replace(interface, entry=entry), constants, name)


def _entry(text: str, name: str) -> str:
    """The kernel function in HIP C++ text: the only one, or the one called `name`."""
    plain = re.sub(r"__launch_bounds__\s*\([^)]*\)", "", text)
    found = [str(each) for each in re.findall(r"__global__\b[^;{(]*?(\w+)\s*\(", plain)]
    if len(found) == 1:
        return found[0]
    if name in found:
        return name
    raise CompileError(
        f"{name}: which kernel? There are {', '.join(found) or 'no __global__ functions'} in the "
        "source; say which with name="
    )
