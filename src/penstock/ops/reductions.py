"""Reductions of whole arrays (sum, min, argmax, dot, …): one launch each, which returns the value.

The device reduces the elements to a few hundred partial values, which are the result of the launch;
the host folds them when it reads the result. This replaces a second launch: it needs no barrier, no
intermediate memory that streams and threads could share by mistake, and no coherence between
groups. Folding costs the reading thread a few microseconds.
The number of partial values, and which elements each one covers, depend only on the number of
elements and the device, so the same array always gives the same bits.

Results follow NumPy: dtypes, NaN, ties, arrays without elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.array.host_access import capturing
from penstock.dtypes import Dtype
from penstock.errors import (
    ArgumentError,
    DtypeMismatch,
    InvalidValue,
    ShapeMismatch,
    Unsupported,
)
from penstock.launch.kernel import Kernel
from penstock.launch.result import Result
from penstock.memory.layout import Layout
from penstock.ops import along, result_operands
from penstock.ops.elements import DTYPES
from penstock.ops.word_texels import reads_texels
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.stream import Stream

Host = npt.NDArray[Any]

_SHADERS = Path(__file__).with_name("shaders")
_TEXEL = 16  # bytes
_BLOCK = 64  # consecutive elements that an invocation reduces
_MOST_ELEMENTS = 1 << 31  # the shader counts in 32 bits
# lavapipe ends the loops of an invocation after a total of 65,535 iterations, and a block takes two
# more iterations than it has elements.
_MOST_EACH = 60_000
_MOST_TEXELS = 40_000  # blocks of them are shorter

_KINDS = {"f": "FLOAT", "i": "SIGNED", "u": "UNSIGNED", "b": "UNSIGNED"}
_FOLDS = {
    "sum": "SUM", "mean": "SUM", "dot": "SUM", "min": "LARGEST", "max": "LARGEST",
    "argmin": "WHERE", "argmax": "WHERE", "any": "ANY", "all": "ALL",
}  # fmt: skip
_NOT_OF_NOTHING = ("min", "max", "argmin", "argmax")


class Shape(NamedTuple):
    """How a reduction is divided into groups and invocations."""

    tree: bool  # the invocations of a group combine their values in shared memory
    group_size: int
    most_groups: int
    elements: int  # per invocation, before another group is used

    @property
    def parts(self) -> int:
        return self.most_groups * (1 if self.tree else self.group_size)

    def groups(self, count: int) -> int:
        wanted = -(-count // (self.group_size * self.elements))
        return max(1, min(wanted, self.most_groups))

    def holds(self, count: int) -> bool:
        """Whether every invocation's share of `count` elements is within `_MOST_EACH`."""
        return count <= self.group_size * self.most_groups * _MOST_EACH


# The shape for GPUs holds every array of up to _MOST_ELEMENTS elements.
_ON_CPU = Shape(tree=False, group_size=8, most_groups=32, elements=256)
_ON_GPU = Shape(tree=True, group_size=256, most_groups=512, elements=16)


def shape_for(device: Device, count: int = 0) -> Shape:
    """The shape for `count` elements: a tree in shared memory on a GPU.

    A CPU driver, where a barrier is expensive, uses no tree as long as the loop limit allows it.
    Beyond that, more invocations without a tree would leave the host too many values to fold.
    """
    if device.info.kind == "cpu" and _ON_CPU.holds(count):
        return _ON_CPU
    most: Any = device.info.limits["group_invocations"]
    # Every device allows 128 invocations per group; the tree needs a power of two.
    return _ON_GPU if most >= 256 else _ON_GPU._replace(group_size=128)


def every_variant() -> Iterator[dict[str, str | int | float]]:
    """The defines of every reduction, on CPUs and on GPUs."""
    for shape, texels in ((_ON_CPU, False), (_ON_CPU, True), (_ON_GPU, False)):
        for operation in _FOLDS:
            if texels and operation == "dot":
                continue
            for kind, sizes in (("f", (2, 4, 8)), ("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8))):
                for size in sizes:
                    yield _defines(operation, kind, 8 * size, shape, texels=texels)


def _defines(
    operation: str, kind: str, bits: int, shape: Shape, *, texels: bool
) -> dict[str, str | int | float]:
    """The defines to compile the shader with; `kind` is that of a NumPy dtype."""
    wide = operation == "mean" and kind in "iu" and bits == 64
    defines: dict[str, str | int | float] = {
        "BITS": bits,
        "KIND": _KINDS[kind],
        "FOLD": "WIDE_SUM" if wide else _FOLDS[operation],
        "BLOCK": _BLOCK,
        "PARTS": shape.parts,
    }
    if operation == "dot":
        defines["PRODUCT"] = 1
    if operation in ("min", "argmin"):
        defines["SMALLEST"] = 1
    if shape.tree:
        defines["TREE"] = 1
    if texels:
        defines["TEXELS"] = 1
    return defines


class Reductions:
    """The reductions of one device, each made when it is first called for a dtype."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._shape = shape_for(device)
        self._texels = reads_texels(device)
        self._kernels: dict[tuple[str, Dtype, bool, bool], Kernel] = {}
        self._nothing: Array | None = None

    def reduce(
        self, operation: str, x: Array, y: Array | None = None, stream: Stream | None = None
    ) -> Any:
        """Launch a reduction; returns its pending value.

        Of elements that its kernels do not take (complex numbers, bfloat16), and of more bytes than
        a kernel can bind, `along` computes it, as an array without dimensions.
        """
        count = x.size
        x.buffer.check()
        if not count and operation in _NOT_OF_NOTHING:
            raise InvalidValue(f"{operation} of array {x.name!r}, which has no elements")
        if count > _MOST_ELEMENTS:
            raise Unsupported(f"{operation} of {count:,} elements; take it of slices")
        shape = self._shape
        texels = y is None and self._as_texels(x)
        if not texels and not shape.holds(count):
            shape = shape_for(self._device, count)
        kernel = self._kernels.get((operation, x.dtype, shape.tree, texels))
        most: Any = self._device.info.limits["binding_range"]
        if y is None and (
            x.nbytes > most
            or (kernel is None and not _has_kernel(x.dtype) and x.dtype.name in DTYPES)
        ):
            return self.along(operation, x, stream)
        if kernel is None:
            kernel = self._make(operation, x, shape, texels=texels)
        if texels:
            bound, at = x.words(_TEXEL)
            first = at // x.itemsize
        else:
            bound, first = self._bind(kernel, x, stream)
        threads = shape.groups(count) * shape.group_size
        if y is None:
            made = kernel(x=bound, count=count, first=first, stream=stream, threads=threads)
        else:
            other, first_y = self._bind(kernel, y, stream)
            made = kernel(
                x=bound, y=other, count=count, first=first, first_y=first_y, stream=stream,
                threads=threads,
            )  # fmt: skip
        return made

    def along(self, operation: str, x: Array, stream: Stream | None, **given: Any) -> Array:
        """A reduction or running sum with arguments of its own, by its name in NumPy: an array."""
        x.buffer.check()
        keepdims = given.pop("keepdims", None)
        options: dict[str, Any] = {"stream": stream}
        if keepdims is not None:
            options["keepdims"] = bool(keepdims)
        if operation in ("mean", "var", "std"):
            wide = self._device.operations.abilities.float64
            options["default"] = np.dtype(np.float64 if wide else np.float32)
        match operation:
            case "sum" | "prod":
                return along.total(operation, x, **given, **options)
            case "mean":
                return along.mean(x, **given, **options)
            case "var" | "std":
                return along.variance(x, **given, root=operation == "std", **options)
            case "min" | "max":
                return along.extreme(operation, x, **given, **options)
            case "argmin" | "argmax":
                return along.extreme_index(operation, x, **given, **options)
            case "any" | "all":
                return along.truth(operation, x, **given, **options)
        return along.running(operation, x, **given, **options)

    def dot(self, x: Array, y: Any, stream: Stream | None = None) -> Result:
        if not isinstance(y, Array):
            raise ArgumentError(f"dot takes an Array, not {type(y).__name__}; dev.array makes one")
        if x.device is not y.device:
            raise ArgumentError(f"dot of arrays on {x.device} and on {y.device}; copy one over")
        if x.dtype != y.dtype:
            raise DtypeMismatch(f"dot of {x.dtype} and {y.dtype}: nothing is cast")
        if x.ndim != 1 or x.shape != y.shape:
            advice = "; for products of matrices, use x @ y" if max(x.ndim, y.ndim) > 1 else ""
            raise ShapeMismatch(
                f"dot takes two arrays of one dimension and the same size, not {x.shape} and "
                f"{y.shape}{advice}"
            )
        result: Result = self.reduce("dot", x, y, stream)
        return result

    def _as_texels(self, x: Array) -> bool:
        """Whether the elements of x can be read as texels, where that is faster."""
        return (
            self._texels
            and 0 < x.nbytes <= _TEXEL * self._shape.parts * _MOST_TEXELS
            and x.contiguous
            and x.is_settled
            and self._device.operations.has_room(x, _TEXEL)
        )

    def _bind(self, kernel: Kernel, x: Array, stream: Stream | None) -> tuple[Array, int]:
        """The array to bind for x, and the index in it of x's first element.

        The shader reads whole words, starting at an offset with the device's binding alignment.
        """
        if not x.size:
            if self._nothing is None:
                self._nothing = self._device.empty(2, np.uint32)
            return self._nothing, 0
        slot = kernel.parameters[0]
        if x.contiguous and not x.region.lo % slot.alignment and not x.nbytes % 4:
            return x, 0
        begin = x.region.lo - x.region.lo % slot.alignment
        # Widening the binding also reads (and ignores) bytes around x. Copy x instead if a host
        # view may be writing those bytes, or if a replay may bind another array in its place.
        exact = x.buffer.backing.views or capturing(x.buffer.scheduler) is not None
        if not x.contiguous or exact or x.region.lo % x.itemsize:
            x = x.copy(stream)
            begin = 0
        words = -(-(x.region.hi - begin) // 4)
        around = Array(x.buffer, Layout(begin, (words,), (4,), 4), np.dtype(np.uint32))
        return around, (x.region.lo - begin) // x.itemsize

    def _make(self, operation: str, x: Array, shape: Shape, *, texels: bool) -> Kernel:
        dtype = x.dtype
        advice = f"take it on the host: x.numpy().{operation}()"
        name = f"{operation} of {dtype}"
        if not _has_kernel(dtype):
            raise DtypeMismatch(f"there is no {name} on a device; {advice}")
        defines = _defines(operation, dtype.kind, 8 * dtype.itemsize, shape, texels=texels)
        try:
            kernel = Kernel.of_forms(
                self._device,
                partial(_reference, operation, dtype),
                spirv=KernelSource(
                    _SHADERS / "reduction.comp", name, defines,
                    {"local_size_x": shape.group_size},
                    formats={"x": "rgba32ui"} if texels else {},
                ),
                hip=KernelSource(
                    _SHADERS / "reduction.hip", name, {**defines, "GROUP": shape.group_size},
                    signature=_signature(operation, dtype, shape.parts),
                    group_size=shape.group_size,
                ),
            )  # fmt: skip
        except Unsupported as error:
            raise Unsupported(f"{error}; {advice}") from None
        assert kernel.results is not None
        kernel.results.convert = partial(_fold, operation, dtype)
        kernel.results.instead = (
            "dev.xp.vecdot(x, y) instead of x.dot(y)"
            if operation == "dot"
            else f"dev.xp.{operation}(x) instead of x.{operation}()"
        )
        if result_operands.folds_on_device(operation, dtype):
            kernel.results.fold = partial(result_operands.fold, operation, dtype)
        # Another thread may have made the same kernel meanwhile.
        return self._kernels.setdefault((operation, dtype, shape.tree, texels), kernel)


def _has_kernel(dtype: Dtype) -> bool:
    """Whether there is a kernel that reduces whole arrays of a dtype."""
    return dtype.kind in _KINDS and dtype.itemsize <= 8 and dtype.isbuiltin != 2


def _signature(operation: str, dtype: Dtype, parts: int) -> str:
    """The signature of reduction.hip: its arguments and its result."""
    fold, words = _FOLDS[operation], _words(dtype)
    out = "uint32"
    if fold == "SUM" and dtype.kind == "f":
        out, words = ("float64" if dtype.itemsize == 8 else "float32"), 1
    elif fold == "SUM":
        words = 4 if operation == "mean" and dtype.itemsize == 8 else 2
    elif fold == "WHERE":
        words *= 2
    elif fold != "LARGEST":
        words = 1
    size = f"[{parts}]" + (f"[{words}]" if words > 1 else "")
    arguments = "in bytes x, uint32 count, uint32 first"
    if operation == "dot":
        arguments = "in bytes x, in bytes y, uint32 count, uint32 first, uint32 first_y"
    return f"{arguments} -> uint32 used, uint32 elements, {out} parts{size}"


# Folding the partial values.


def _fold(operation: str, dtype: Dtype, used: Host, elements: Host, parts: Host) -> Any:
    """The value of the reduction, from the partial values in the launch's result.

    The arguments show the memory of the result, so what is returned must not.
    """
    parts = parts[: used.item()]
    if operation in ("any", "all"):
        return np.bool_(parts.any() == (operation == "any"))
    if operation in ("min", "max"):
        return _value(operation, dtype, int(np.maximum.reduce(_joined(parts))))
    if operation in ("argmin", "argmax"):
        words = _words(dtype)
        keys = _joined(parts[:, :words])
        return np.intp(parts[keys == keys.max(), words].min())
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            total = np.add.reduce(parts, dtype=np.float64)
            return dtype.type(total / np.float64(elements) if operation == "mean" else total)
    return _whole(operation, dtype, parts, elements.item())


def _whole(operation: str, dtype: Dtype, parts: Host, elements: int) -> Any:
    """Fold integers: a sum, which wraps at 64 bits, or a mean, which is exact."""
    long = np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    if operation == "mean":
        exact = sum(_joined(parts[:, -2:]).view(long).tolist())
        if dtype.itemsize == 8:  # those were only the high words
            exact = (exact << 32) + sum(_joined(parts[:, :2]).tolist())
        return np.float64(exact / elements if elements else np.nan)
    total = _joined(parts).sum(dtype=np.uint64)
    if operation == "sum":
        return total.astype(long)
    return total != 0 if dtype.kind == "b" else total.astype(dtype)


def _words(dtype: Dtype) -> int:
    """The number of 32-bit words in a key."""
    return 2 if dtype.itemsize == 8 else 1


def _joined(words: Host) -> Host:
    """Combine pairs of words to 64-bit numbers; leave single words as they are."""
    if words.ndim == 1:
        return words
    if words.shape[1] == 1:
        return words[:, 0]
    joined: Host = np.ascontiguousarray(words).view(np.uint64)[:, 0]
    return joined


def _keys(operation: str, elements: Host) -> Host:
    """Map elements to unsigned integers that sort in the same order, as the shader does."""
    dtype = elements.dtype
    unsigned, sign, every = _bits_of(dtype)
    keys = elements.view(unsigned).astype(np.uint64)
    if dtype.kind == "f":
        if operation.startswith("arg"):
            keys[elements == 0] = 0
        keys = np.where(keys & np.uint64(sign), keys ^ np.uint64(every), keys | np.uint64(sign))
    elif dtype.kind == "i":
        keys ^= np.uint64(sign)
    if operation.endswith("min"):
        keys ^= np.uint64(every)
    if dtype.kind == "f":
        keys[np.isnan(elements)] = every
    return keys


def _value(operation: str, dtype: Dtype, key: int) -> Any:
    """The element that a key was made from: the inverse of `_keys`."""
    unsigned, sign, every = _bits_of(dtype)
    if dtype.kind == "f" and key == every:
        return dtype.type(np.nan)
    if operation == "min":
        key ^= every
    if dtype.kind == "f":
        key ^= sign if key & sign else every
    elif dtype.kind == "i":
        key ^= sign
    return np.array(key, unsigned).view(dtype)[()]


def _bits_of(dtype: Dtype) -> tuple[Dtype, int, int]:
    """The unsigned integer of the same size, its highest bit, and all its bits."""
    bits = 8 * dtype.itemsize
    return np.dtype(f"u{dtype.itemsize}"), 1 << (bits - 1), (1 << bits) - 1


def _reference(
    operation: str, dtype: Dtype, *, x: Host, count: int, first: int, result: dict[str, Host],
    threads: object, y: Host | None = None, first_y: int = 0,
) -> None:  # fmt: skip
    """The shader in NumPy, for the simulator; it returns a single partial value."""
    elements = x.view(dtype)[first : first + count]
    part = result["parts"][0, ...]
    words = part.reshape(-1)
    result["used"][...] = 1
    result["elements"][...] = count
    if operation in ("any", "all"):
        true = elements != 0
        part[...] = true.any() if operation == "any" else not true.all()
    elif _FOLDS[operation] in ("LARGEST", "WHERE"):
        keys = _keys(operation, elements)
        at = int(keys.argmax())
        size = _words(dtype)
        words[:size] = keys[at : at + 1].view(np.uint32)[:size]
        if operation.startswith("arg"):
            words[size] = at
    elif dtype.kind == "f":
        numbers = elements.astype(part.dtype)
        if y is not None:
            numbers = numbers * y.view(dtype)[first_y : first_y + count]
        part[...] = numbers.sum()
    else:
        numbers = elements.astype(np.int64).view(np.uint64)
        if y is not None:
            numbers = numbers * y.view(dtype)[first_y : first_y + count].astype(np.uint64)
        if words.size == 4:
            low = numbers & np.uint64(0xFFFFFFFF)
            high = numbers >> np.uint64(32)
            if dtype.kind == "i":
                high = (numbers.view(np.int64) >> np.int64(32)).view(np.uint64)
            words[:] = np.array([low.sum(), high.sum()], np.uint64).view(np.uint32)
        else:
            words[:] = np.array([numbers.sum()], np.uint64).view(np.uint32)
