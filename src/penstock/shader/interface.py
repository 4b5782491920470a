"""The interface of a kernel: what a caller must pass to it, and what it needs of the device.

`shader.spirv` reads it from a module, `shader.signature` from a declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.dtypes import Dtype
from penstock.shader.texels import Fetched

Access: TypeAlias = Literal["r", "w", "rw"]
Kind: TypeAlias = Literal["storage", "uniform", "uniform_texel", "storage_texel"]
Purpose: TypeAlias = Literal["array", "arguments", "result"]


@dataclass(frozen=True, slots=True)
class Elements:
    """The layout of the array that a block ends with, or consists of.

    `pitches` are the strides in bytes, outermost dimension first, down to the first stride that is
    larger than its element: there the layout has a gap.
    """

    offset: int = 0  # of the first element
    pitches: tuple[int, ...] = ()  # empty if there are no gaps, or the layout is not known
    used: int = 0  # bytes used of the last pitch; all of them if there is no gap
    fields: tuple[tuple[str, int], ...] = ()  # name and offset of a struct's members


@dataclass(frozen=True, slots=True)
class Binding:
    """One buffer. Variables that alias a binding form one `Binding`, named after the first."""

    name: str
    set: int
    binding: int
    kind: Kind
    access: Access
    dtype: Dtype | None  # scalar of the last array, or of all members; None if not one of NumPy's
    header: int  # bytes before the runtime array
    stride: int | None  # of the runtime array
    min_size: int  # bytes of the fixed part and, of a runtime array, one element
    purpose: Purpose = "array"  # the caller passes only those with purpose "array"
    elements: Elements = Elements()
    fetched: Fetched | None = None  # of a texel buffer: what the shader gets from a texel
    format: str = ""  # of a texel buffer: declared, or given by the caller; see `shader.texels`

    @property
    def is_texel(self) -> bool:
        """Whether it is a texel buffer."""
        return self.fetched is not None


@dataclass(frozen=True, slots=True)
class Member:
    """A scalar argument or a part of a result: an array of `shape` and `strides` at `offset`.

    A matrix has shape (columns, rows), in either storage order. In an array of structs, each member
    of the struct gets one more leading dimension.
    """

    name: str
    offset: int
    dtype: Dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes from the first used to the last used, without trailing padding."""
        steps = zip(self.shape, self.strides, strict=True)
        return self.dtype.itemsize + sum((count - 1) * stride for count, stride in steps)


@dataclass(frozen=True, slots=True)
class Constant:
    """A specialization constant. A bool takes four bytes (VkBool32) when it is set."""

    name: str
    id: int
    dtype: Dtype
    default: bool | int | float


@dataclass(frozen=True, slots=True)
class Interface:
    """Everything needed to call a kernel, and what it needs of the device."""

    entry: str
    local_size: tuple[int, int, int]
    local_size_ids: tuple[int | None, int | None, int | None]  # constants that set the local size
    bindings: tuple[Binding, ...]
    push: tuple[Member, ...]
    push_size: int  # a multiple of four, as Vulkan requires; 0 if the scalars are in a buffer
    constants: tuple[Constant, ...]
    capabilities: frozenset[str]  # those that the device must support
    shared_size: int  # bytes of shared memory, at least
    version: tuple[int, int]  # of SPIR-V: 1.5 needs Vulkan 1.2, 1.6 needs Vulkan 1.3
    result: tuple[Member, ...] = ()
    parameters: tuple[str, ...] = ()  # their order, for kernels with positional parameters
    sized_by: frozenset[int] = frozenset()  # ids of constants that set the lengths of arrays

    @property
    def scalars_in_buffer(self) -> bool:
        """Whether the scalars are in a buffer, because they exceed the limit of push constants."""
        return any(binding.purpose == "arguments" for binding in self.bindings)

    @property
    def scalar_bytes(self) -> int:
        """The size of the block of all scalars, wherever they are passed."""
        passed = [b.min_size for b in self.bindings if b.purpose == "arguments"]
        return passed[0] if passed else self.push_size
