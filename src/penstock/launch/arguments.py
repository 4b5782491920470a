"""The arguments of a kernel: what each array must be, and how scalars are packed into bytes."""

from __future__ import annotations

import operator
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import accelerator
from penstock.dtypes import exactly
from penstock.errors import DtypeMismatch, ShapeMismatch
from penstock.shader.interface import Binding, Member

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.driver.protocol import DeviceInfo


#: By kind of binding: the limits of its size, in bytes or texels, and of its offset.
_LIMITS = {
    "uniform": ("uniform_range", "uniform_alignment"),
    "uniform_texel": ("texel_elements", "texel_alignment"),
    "storage_texel": ("texel_elements", "texel_alignment"),
}


@accelerator.share
class KernelParameter:
    """An array argument of a kernel: its binding, and what an array must be to fit it.

    `wants` encodes all that an array must be, including the device it is on; parameters with the
    same requirements share it. A launch looks it up for each array, so it is a string, whose hash
    Python caches.
    """

    __slots__ = (
        "access", "alignment", "dtype", "elements", "fetched", "format", "max_size", "min_size",
        "name", "spare", "wants", "writes",
    )  # fmt: skip

    def __init__(self, binding: Binding, info: DeviceInfo, device: int) -> None:
        """`device` is the number of the opened device, which is never reused."""
        self.name = binding.name
        self.access = binding.access
        self.writes = binding.access != "r"
        self.dtype = binding.dtype
        self.elements = binding.elements
        self.min_size = binding.min_size
        self.spare: list[Array] = []  # temporaries for NumPy arguments
        #: The format of a texel buffer, "" if it follows from the array; None of other buffers.
        self.format: str | None = binding.format if binding.is_texel else None
        self.fetched = binding.fetched
        size, alignment = _LIMITS.get(binding.kind, ("binding_range", "binding_alignment"))
        self.max_size: Any = info.limits[size]
        self.alignment: Any = info.limits[alignment]
        sizes = f"{self.min_size} {self.max_size} {self.alignment}"
        texels = f"{binding.kind} {self.fetched} {self.format}" if binding.is_texel else ""
        wants = f"{device} {self.dtype} {sizes} {self.writes} {self.elements} {texels}"
        self.wants = sys.intern(wants)


def same_bytes(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether an array of dtype `given` can be bound where the shader declares `wanted`.

    GLSL has no bool, bfloat16, complex or date in buffers. Complex numbers are bound as floats, the
    others as integers of the same size.
    """
    if given == wanted:
        return True
    if given.kind == "c":
        return wanted.kind == "f" and given.itemsize == 2 * wanted.itemsize
    if given.kind in "bmMV" or given.isbuiltin == 2:  # 2: defined by another package
        return wanted.kind in "iu" and given.itemsize == wanted.itemsize
    return False


def how_to_pass(value: Any) -> str:
    """The end of an error message: how to make an array of this value."""
    if hasattr(value, "__dlpack__"):
        return "; dev.from_dlpack(x) makes it one, in place where the device can"
    return "; dev.array(x) makes one" if hasattr(value, "__len__") else ""


def how_to_convert(parameter: KernelParameter, shape: tuple[int, ...], maker: str) -> str:
    """The end of an error message: how to give an argument the dtype that the kernel declares.

    An argument that the kernel writes is converted before the call: the kernel would write to a
    temporary, and its values be lost. `maker` has the function `empty`: "np" or "dev".
    """
    name, dtype = parameter.name, str(parameter.dtype)
    converted = f"{name}.astype({dtype!r})"
    if not parameter.writes:
        return f"; pass {name}={converted}"
    return (
        f"; the kernel writes {name}, so make that array before the call: "
        f"{name} = {maker}.empty({shape}, {dtype!r}), or {name} = {converted} to keep its values"
    )


def check_elements(parameter: KernelParameter, array: Array, label: str) -> None:
    """Raise unless the elements of the array lie where the kernel reads them.

    If the kernel's layout has gaps between elements, the rows of the array must have the same
    distance. If it has none, the array may have any shape.
    """
    dtype, elements = array.dtype, parameter.elements
    if dtype.names is not None:
        _check_records(parameter, array, label)
        return
    pitches, used = elements.pitches, elements.used
    if not pitches or pitches[-1] == used:
        return
    if elements.offset and array.ndim < 2:
        return  # the block has a header before its elements, so the caller lays out all of it
    if parameter.dtype is None and (dtype == np.uint8 or dtype.kind == "V"):
        return  # raw bytes
    if any(step in pitches for step in _steps(array)):
        return
    pitch, scalar = pitches[-1], parameter.dtype or dtype
    fitting = f"(..., {pitch // dtype.itemsize})" if pitch % dtype.itemsize == 0 else "of bytes"
    raise ShapeMismatch(
        f"{label} is read {pitch} bytes at a time, of which {used} are used, and the rows of shape "
        f"{array.shape} of {dtype} are not {pitch} bytes long. Pass an array of shape {fitting} "
        f"with padding, or let the kernel read single numbers of {scalar} from a storage buffer,"
        " or declare the block with layout(scalar) (GL_EXT_scalar_block_layout)"
    )


def _check_records(parameter: KernelParameter, array: Array, label: str) -> None:
    """`check_elements` for an array of a structured dtype."""
    dtype, elements = array.dtype, parameter.elements
    pitches = elements.pitches
    if pitches:
        record = pitches[-1]
        packed = record == elements.used and dtype.itemsize % record == 0
        placed = any(step in pitches for step in _steps(array))
        if not packed and not placed and array.size != 1:
            raise DtypeMismatch(
                f"{label} has records of {dtype.itemsize} bytes; the kernel reads one every "
                f"{record} bytes. Pad the dtype to that itemsize: np.dtype({{'names': ..., "
                f"'formats': ..., 'offsets': ..., 'itemsize': {record}}})"
            )
    if array.size == 1 if not pitches else dtype.itemsize == pitches[-1]:
        found: Any = dtype.fields or {}
        for name, offset in elements.fields:
            if name in found and found[name][1] != offset:
                raise DtypeMismatch(
                    f"{label} has {name!r} at byte {found[name][1]} of a record; the kernel reads "
                    f"it at byte {offset}. Give the dtype the kernel's offsets: np.dtype({{'names':"
                    " ..., 'formats': ..., 'offsets': ...})"
                )


def _steps(array: Array) -> tuple[int, int]:
    """The distance in bytes from one element to the next, and from one row to the next."""
    rows = [count for count in array.shape if count != 1]
    return array.itemsize, array.itemsize * (rows[-1] if rows else 1)


def values_of(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function that returns a mapping's values by these names."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda given: tuple([given[name] for name in names])


def packer(members: tuple[Member, ...], nbytes: int) -> Callable[..., bytes]:
    """A function that packs a kernel's scalars into the block of bytes that it reads."""
    if all(member.shape == () for member in members) and _in_order(members):
        return struct.Struct(_format(members, nbytes)).pack
    return one_by_one(members, nbytes)


def one_by_one(members: tuple[Member, ...], nbytes: int) -> Callable[..., bytes]:
    """The same for members of any shape and order."""

    def pack_arrays(*values: Any) -> bytes:
        block = bytearray(nbytes)
        for member, value in zip(members, values, strict=True):
            if not member.shape:
                value = _number(value, member)
            place = np.ndarray(member.shape, member.dtype, block, member.offset, member.strides)
            place[...] = exactly(value, member.dtype, member.shape)
        return bytes(block)

    return pack_arrays


def _number(value: Any, member: Member) -> Any:
    """Convert what `struct` takes for a number, such as a `Fraction`, and NumPy does not."""
    if np.asarray(value).dtype != object:
        return value
    return float(value) if member.dtype.kind == "f" else operator.index(value)


def packed_scalars(members: tuple[Member, ...]) -> tuple[tuple[str, int], ...] | None:
    """For the native step: the `struct` code and offset of each scalar; None if one is an array."""
    if any(member.shape for member in members) or not _in_order(members):
        return None
    return tuple((_code(member), member.offset) for member in members)


def _in_order(members: tuple[Member, ...]) -> bool:
    """Whether the members are in order of their offsets, which SPIR-V does not require."""
    ends = [0, *(member.offset + member.dtype.itemsize for member in members)]
    return all(member.offset >= end for member, end in zip(members, ends, strict=False))


def _format(members: tuple[Member, ...], nbytes: int) -> str:
    text, at = "<", 0
    for member in members:
        text += f"{member.offset - at}x" if member.offset > at else ""
        text += _code(member)
        at = member.offset + member.dtype.itemsize
    return f"{text}{nbytes - at}x"


def _code(member: Member) -> str:
    """The code of a scalar in `struct`, with standard sizes."""
    return {"l": "q", "L": "Q"}.get(member.dtype.char, member.dtype.char)
