"""The checks of a kernel call's arguments, and their error messages.

A call checks names, dtypes, sizes and limits before it records anything.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock.array.array import Array
from penstock.errors import (
    ArgumentError,
    DtypeMismatch,
    Error,
    InvalidValue,
    ShapeMismatch,
    Unsupported,
)
from penstock.launch.arguments import (
    KernelParameter,
    check_elements,
    how_to_convert,
    how_to_pass,
    one_by_one,
    packer,
    same_bytes,
)
from penstock.launch.texels import check_texels

if TYPE_CHECKING:
    from penstock.launch.kernel import Kernel


def explain_names(
    kernel: Kernel, given: Mapping[str, Any], positional: tuple[Any, ...] = ()
) -> NoReturn:
    """Raise the error that names the unknown or missing arguments."""
    wanted = kernel.argument_names
    if positional:
        names = ", ".join(f"{name}=..." for name in wanted)
        raise ArgumentError(
            f"{kernel.name}: {len(positional)} of the arguments have no name; a kernel is called "
            f"by name: {kernel.name}({names}, threads=...). Its signature is {kernel.signature}"
        )
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    parts = []
    if unknown:
        parts.append(f"no argument {', '.join(map(repr, sorted(unknown)))}")
    if missing:
        parts.append(f"argument {', '.join(map(repr, missing))} is missing")
    raise ArgumentError(f"{kernel.name}: {'; '.join(parts)}. Its signature is {kernel.signature}")


def check_array(
    kernel: Kernel, parameter: KernelParameter, array: Any, given: Mapping[str, Any]
) -> None:
    """Check all properties of an array that cannot change; if it fits, note that on the array."""
    label = f"{kernel.name}: argument {parameter.name!r}"
    if not isinstance(array, Array):
        raise ArgumentError(
            f"{label} must be a penstock or NumPy array, not {type(array).__name__}"
            f"{how_to_pass(array)}"
        )
    if array.buffer.scheduler is not kernel.scheduler:
        raise ArgumentError(
            f"{label} is on {array.device}, the kernel on {kernel.device}; copy it to that device"
        )
    array.buffer.check()
    if parameter.format is None and not _has_dtype(array, parameter):
        raise DtypeMismatch(
            f"{label} must be {parameter.dtype}, not {array.dtype}"
            f"{how_to_convert(parameter, array.shape, 'dev')}"
        )
    if parameter.writes:
        array.check_written(label)
    if not array.contiguous:
        raise ShapeMismatch(f"{label} is not contiguous; pass {parameter.name}=x.copy()")
    if parameter.format is not None:
        check_texels(parameter, array, label, kernel.device.info)
    else:
        _check_range(kernel, parameter, array, label)
    array.accepted = {*array.accepted, parameter.wants}


def _has_dtype(array: Array, parameter: KernelParameter) -> bool:
    return parameter.dtype is None or same_bytes(array.dtype, parameter.dtype)


def _check_range(kernel: Kernel, parameter: KernelParameter, array: Array, label: str) -> None:
    """Raise unless the bytes of an array can be bound as a storage or uniform buffer."""
    check_elements(parameter, array, label)
    if array.nbytes < parameter.min_size and not array.window:
        raise ShapeMismatch(
            f"{label} has {array.nbytes} bytes; the kernel needs at least {parameter.min_size}"
        )
    if array.nbytes > parameter.max_size:
        raise Unsupported(
            f"{label} has {array.nbytes:,} bytes; {kernel.device.name} binds at most "
            f"{parameter.max_size:,}. Pass it in slices"
        )
    if array.window:
        return  # aligned by `Array.words`
    # Pool backings are aligned for any kernel; slices and adopted memory may not be.
    if (array.buffer.backing.offset + array.region.lo) % parameter.alignment:
        raise InvalidValue(
            f"{label} starts at byte {array.region.lo} of its buffer; {kernel.device.name} needs "
            f"multiples of {parameter.alignment}. Slice at such multiples, or pass "
            f"{parameter.name}=x.copy()"
        )


def check_group_counts(kernel: Kernel, groups: Array, threads: Any) -> None:
    """Raise unless the array can hold the group counts of an indirect launch."""
    label = f"{kernel.name}: groups="
    if threads is not None:
        raise ArgumentError(f"{kernel.name}: say how much to run with threads= or groups=")
    if groups.buffer.scheduler is not kernel.scheduler:
        raise ArgumentError(f"{label} is on {groups.device}, the kernel on {kernel.device}")
    groups.buffer.check()
    if groups.dtype != np.uint32:
        raise DtypeMismatch(f"{label} must be an array of three uint32, not {groups.dtype}")
    if groups.size != 3 or not groups.contiguous or groups.region.lo % 4:
        raise ShapeMismatch(
            f"{label} must be three uint32 side by side; its shape is {groups.shape}"
        )


def _number_of(kernel: Kernel, name: str) -> str:
    """The type of Python's numbers for an argument."""
    kinds = {each.name: each.dtype.kind for each in kernel.interface.push}
    return "float" if kinds.get(name, "f") == "f" else "int"


def explain_scalars(kernel: Kernel, given: Mapping[str, Any]) -> None:
    """Raise the error for the scalar that cannot be packed; returns if all can."""
    for name, value in given.items():
        if isinstance(value, Array) and name not in {each.name for each in kernel.parameters}:
            raise ArgumentError(
                f"{kernel.name}: argument {name!r} is a number, not an Array: a launch does not "
                f"wait for a value. Pass {name}={_number_of(kernel, name)}(x) to wait, or read x "
                "in the kernel"
            )
    members = kernel.interface.push
    pack = one_by_one if any(member.shape for member in members) else packer
    for member in members:
        value = given[member.name]
        try:
            pack((member,), kernel.interface.scalar_bytes)(value)
        except (struct.error, TypeError, ValueError, OverflowError) as error:
            wanted = f"{member.dtype}{list(member.shape) if member.shape else ''}"
            message = f"{kernel.name}: argument {member.name!r} must be {wanted}, not {value!r}"
            kind: type[Error]
            if isinstance(error, OverflowError):
                kind = InvalidValue
            elif isinstance(value, int | float | np.number) and member.shape == ():
                fits = isinstance(value, int | np.integer) or member.dtype.kind == "f"
                kind = InvalidValue if fits else DtypeMismatch
            else:
                kind = ShapeMismatch if isinstance(error, ValueError) else ArgumentError
            raise kind(f"{message} ({error})") from None
