"""The arguments of a kernel: what each must be, and how scalars become bytes."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.spirv import Binding, Member

if TYPE_CHECKING:
    from penstock.array import Array
    from penstock.driver.protocol import DeviceInfo


class Slot:
    """A binding, as a call wants to see it.

    `wants` stands for all that an array must be, the device it is on included; slots that want the
    same have the same. It is a string, whose hash Python keeps: a launch looks it up per array.
    """

    __slots__ = (
        "access", "alignment", "dtype", "max_size", "min_size", "name", "spare", "wants", "writes",
    )  # fmt: skip

    def __init__(self, binding: Binding, info: DeviceInfo, device: int) -> None:
        """`device` is the number of the opened device, which no other ever has."""
        self.name = binding.name
        self.access = binding.access
        self.writes = binding.access != "r"
        self.dtype = binding.dtype
        self.min_size = binding.min_size
        self.spare: list[Array] = []  # temporaries for NumPy arguments; see `penstock.carrying`
        uniform = binding.kind == "uniform"
        self.max_size: Any = info.limits["uniform_range" if uniform else "binding_range"]
        self.alignment: Any = info.limits["uniform_alignment" if uniform else "binding_alignment"]
        sizes = f"{self.min_size} {self.max_size} {self.alignment}"
        self.wants = sys.intern(f"{device} {self.dtype} {sizes} {self.writes}")


def same_bytes(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether an array of `given` can be bound where the shader says `wanted`.

    GLSL has no bool, bfloat16, complex or date in buffers: they are bound as what they consist of.
    """
    if given == wanted:
        return True
    if given.kind == "c":
        return wanted.kind == "f" and given.itemsize == 2 * wanted.itemsize
    if given.kind in "bmMV" or given.isbuiltin == 2:  # 2: defined by another package
        return wanted.kind in "iu" and given.itemsize == wanted.itemsize
    return False


def packer(members: tuple[Member, ...], nbytes: int) -> Callable[..., bytes]:
    """A function that makes the block of bytes that a kernel reads its scalars from."""
    if all(member.shape == () for member in members):
        return struct.Struct(_format(members, nbytes)).pack

    def pack_arrays(*values: Any) -> bytes:
        block = bytearray(nbytes)
        for member, value in zip(members, values, strict=True):
            place = np.ndarray(member.shape, member.dtype, block, member.offset, member.strides)
            place[...] = exactly(value, member.dtype, member.shape)
        return bytes(block)

    return pack_arrays


def exactly(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The value as an array of this dtype and shape; refuses what NumPy would bend to fit."""
    data = np.asarray(value)
    if data.shape != shape:
        raise ValueError(f"its shape is {data.shape}")
    whole = data.dtype.kind in "iub"
    if dtype.kind in "iu":
        if not whole:
            raise TypeError(f"its dtype is {data.dtype}")
        info = np.iinfo(dtype)
        if data.size and not (info.min <= int(data.min()) and int(data.max()) <= info.max):
            raise OverflowError(f"{dtype} holds {info.min} to {info.max}")
    elif not whole and data.dtype.kind != "f":
        raise TypeError(f"its dtype is {data.dtype}")
    with np.errstate(over="ignore"):
        exact = data.astype(dtype)
    if dtype.kind == "f" and not np.array_equal(np.isfinite(exact), np.isfinite(data)):
        raise OverflowError(f"too large for {dtype}")
    return exact


def _format(members: tuple[Member, ...], nbytes: int) -> str:
    text, at = "<", 0
    for member in members:
        text += f"{member.offset - at}x" if member.offset > at else ""
        text += "e" if member.dtype == np.float16 else member.dtype.char
        at = member.offset + member.dtype.itemsize
    text += f"{nbytes - at}x"
    return text.replace("l", "q").replace("L", "Q")
