"""A compiled program with its reflected signature, and the launcher.

A call checks everything before anything is recorded: names, dtypes, sizes, limits. The call itself
is written out per kernel by `penstock.launcher`, because its cost is paid by the interpreter on
every launch; here is how a kernel is made, and how a bad call is explained.
"""

from __future__ import annotations

import operator
import os
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.array import Array
from penstock.closing import Closing
from penstock.errors import (
    ArgumentError,
    Closed,
    CompileError,
    DtypeMismatch,
    Error,
    InvalidSpirv,
    InvalidValue,
    ShapeMismatch,
    Unsupported,
)
from penstock.glsl import compile_glsl
from penstock.launcher import MISSING, make_launch
from penstock.memory import Backing
from penstock.spirv import Binding, Interface, Member, reflect

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.driver.protocol import DeviceInfo, Reference
    from penstock.stream import Stream

_SPIRV_MAGIC = b"\x03\x02\x23\x07"
_COUNTS_KEPT = 1024
_RESERVED = frozenset({"stream", "threads", "groups"})

#: SPIR-V capabilities that need a device feature, by the feature's Vulkan name.
_FEATURES = {
    "Float16": "shaderFloat16",
    "Float64": "shaderFloat64",
    "Int8": "shaderInt8",
    "Int16": "shaderInt16",
    "Int64": "shaderInt64",
    "Int64Atomics": "shaderBufferInt64Atomics",
    "StorageBuffer16BitAccess": "storageBuffer16BitAccess",
    "UniformAndStorageBuffer16BitAccess": "uniformAndStorageBuffer16BitAccess",
    "StoragePushConstant16": "storagePushConstant16",
    "StorageBuffer8BitAccess": "storageBuffer8BitAccess",
    "UniformAndStorageBuffer8BitAccess": "uniformAndStorageBuffer8BitAccess",
    "StoragePushConstant8": "storagePushConstant8",
    "VariablePointersStorageBuffer": "variablePointersStorageBuffer",
    "VariablePointers": "variablePointers",
    "VulkanMemoryModel": "vulkanMemoryModel",
    "VulkanMemoryModelDeviceScope": "vulkanMemoryModelDeviceScope",
    "GroupNonUniform": "subgroupBasic",
    "GroupNonUniformVote": "subgroupVote",
    "GroupNonUniformArithmetic": "subgroupArithmetic",
    "GroupNonUniformBallot": "subgroupBallot",
    "GroupNonUniformShuffle": "subgroupShuffle",
    "GroupNonUniformShuffleRelative": "subgroupShuffleRelative",
    "GroupNonUniformClustered": "subgroupClustered",
    "GroupNonUniformQuad": "subgroupQuad",
}


class Kernel(Closing):
    """Call it with arrays and scalars by name, and `threads=` or `groups=`. Never waits."""

    def __init__(
        self,
        device: Device,
        source: str | bytes | os.PathLike[str],
        *,
        name: str = "",
        defines: Mapping[str, str | int | float],
        constants: Mapping[str, Any],
        reference: Reference | None = None,
    ) -> None:
        for given, what in ((defines, "defines"), (constants, "constants")):
            if not isinstance(given, Mapping):
                raise ArgumentError(f"{what}= is a dict of names and values, not {given!r}")
        code, self.name = _load(source, name, defines)
        self.device = device
        self.scheduler = device.scheduler
        self.interface: Interface = reflect(code)
        self._check_limits()
        chosen = self._constants(constants)
        self.local_size = self._local_size(chosen)
        with self.scheduler.lock:
            self.scheduler.check()
            self.program: Any = self.scheduler.driver.program(
                code, self.interface, chosen, reference
            )
        self._closed = False
        self._slots = [Slot(binding, device.info) for binding in self.interface.bindings]
        members = [member.name for member in self.interface.push]
        self._most_groups = device.info.limits["group_count"]
        self.what = f"kernel {self.name}"
        self.counts_of: dict[int, tuple[int, int, int]] = {}  # by threads, for the fast path
        launch = make_launch(self, self._slots, members, _packer(self.interface.push))
        self.__class__ = type("Kernel", (type(self),), {"__call__": launch, "__doc__": __doc__})

    def __call__(
        self,
        *,
        stream: Stream | None = None,
        threads: int | tuple[int, ...] | None = None,
        groups: int | tuple[int, ...] | None = None,
        **arguments: Any,
    ) -> None:
        """Launch on `stream`: `threads` in all (rounded up to whole groups), or whole `groups`.

        `penstock.launcher` writes this out for each kernel, with its own argument names.
        """
        raise AssertionError("replaced when the kernel was made")

    def close(self) -> None:
        """Give the program back; launches in flight finish first. Safe to call twice."""
        with self.scheduler.lock:
            if not self._closed:
                self._closed = True
                self.scheduler.retire_program(self.program)

    @property
    def closed(self) -> bool:
        return self._closed

    def __del__(self) -> None:
        # May run in any thread, in the middle of anything: only leave a message.
        if not getattr(self, "_closed", True):
            self.scheduler.program_dropped(self.program)

    def __repr__(self) -> str:
        return f"<Kernel {self.signature}>"

    @property
    def signature(self) -> str:
        """What to call the kernel with."""
        arrays = [f"{slot.name}: {slot.access} {slot.dtype or 'bytes'}[]" for slot in self._slots]
        scalars = [
            f"{m.name}: {m.dtype}{list(m.shape) if m.shape else ''}" for m in self.interface.push
        ]
        return f"{self.name}({', '.join(arrays + scalars)}) in groups of {self.local_size}"

    # Making.

    def _check_limits(self) -> None:
        info, interface = self.device.info, self.interface
        missing = [
            f"{capability} ({_FEATURES[capability]})" if capability in _FEATURES else capability
            for capability in sorted(interface.capabilities)
            if _FEATURES.get(capability) not in info.features
        ]
        if missing:
            raise Unsupported(f"{self.name} needs what {info.name} lacks: {', '.join(missing)}")
        for count, limit, what in (
            (len(interface.bindings), "bindings", "buffers"),
            (interface.shared_size, "shared_memory", "bytes of shared memory"),
        ):
            if count > info.limits[limit]:  # type: ignore[operator]
                raise Unsupported(
                    f"{self.name} uses {count} {what}; {info.name} has {info.limits[limit]}"
                )
        names = [b.name for b in interface.bindings] + [m.name for m in interface.push]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidSpirv(
                f"{self.name} calls two arguments {twice[0]!r}; give one of them another name"
            )
        clash = _RESERVED & set(names)
        if clash:
            raise InvalidSpirv(
                f"{self.name} calls an argument {', '.join(sorted(clash))!r}, which a call uses "
                "for itself; give it another name"
            )
        other = [b.name for b in interface.bindings if b.set]
        if other:
            raise Unsupported(f"{self.name}: {other[0]!r} is in another descriptor set than 0")
        room = info.limits["push_constants"]
        if interface.push_size > room:  # type: ignore[operator]
            raise Unsupported(
                f"{self.name} has {interface.push_size} bytes of push constants; {info.name} "
                f"has room for {room}. Put the rest into a buffer"
            )

    def _constants(self, chosen: Mapping[str, Any]) -> dict[int, bytes]:
        known = {constant.name: constant for constant in self.interface.constants}
        if unknown := chosen.keys() - known.keys():
            raise ArgumentError(
                f"{self.name} has no constant {sorted(unknown)[0]!r}; it has "
                f"{', '.join(known) or 'none'}"
            )
        values = {}
        for name, value in chosen.items():
            constant = known[name]
            dtype = np.dtype(np.uint32) if constant.dtype.kind == "b" else constant.dtype
            try:
                values[constant.id] = _exactly(value, dtype, ()).tobytes()
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidValue(f"constant {name}={value!r} does not fit {dtype}") from error
        return values

    def _local_size(self, chosen: Mapping[int, bytes]) -> tuple[int, int, int]:
        sizes = [
            int.from_bytes(chosen[number], "little")
            if number is not None and number in chosen
            else size
            for size, number in zip(
                self.interface.local_size, self.interface.local_size_ids, strict=True
            )
        ]
        limits = self.device.info.limits
        most: Any = limits["group_size"]
        if any(n > m or n < 1 for n, m in zip(sizes, most, strict=True)) or (
            sizes[0] * sizes[1] * sizes[2] > limits["group_invocations"]  # type: ignore[operator]
        ):
            raise Unsupported(
                f"{self.name} has groups of {tuple(sizes)}; {self.device.name} allows up to "
                f"{most} and {limits['group_invocations']} in all"
            )
        return sizes[0], sizes[1], sizes[2]

    # Calling.

    def _groups(self, threads: Any, groups: Any) -> tuple[int, int, int]:
        """How many groups to run in each dimension; (0, 0, 0) if none."""
        if (threads is None) == (groups is None):
            raise ArgumentError(
                f"{self.name}: say how much to run, with either threads= or groups="
            )
        if groups is None:
            x, y, z = _three(threads, "threads")
            local = self.local_size
            counts = (-(-x // local[0]), -(-y // local[1]), -(-z // local[2]))
        else:
            counts = _three(groups, "groups")
        most: Any = self._most_groups
        if any(count > limit for count, limit in zip(counts, most, strict=True)):
            raise InvalidValue(
                f"{self.name} in {counts} groups; {self.device.name} runs at most {most}. "
                "Use larger groups, or more dimensions"
            )
        counts = (0, 0, 0) if 0 in counts else counts
        if type(threads) is int and len(self.counts_of) < _COUNTS_KEPT:
            self.counts_of[threads] = counts
        return counts

    def _backing(self, slot: Slot, array: Array, stream: Stream) -> Backing:
        """The backing to use, where that takes a closer look."""
        array.buffer.check()
        return array.buffer.backing_for(stream, array.region, self.what, write=slot.writes)

    def _explain_names(self, unknown: Mapping[str, Any], given: Mapping[str, Any]) -> NoReturn:
        missing = [name for name, value in given.items() if value is MISSING]
        parts = []
        if unknown:
            parts.append(f"no argument {', '.join(map(repr, sorted(unknown)))}")
        if missing:
            parts.append(f"argument {', '.join(map(repr, missing))} is missing")
        raise ArgumentError(f"{self.name}: {'; '.join(parts)}. Its signature is {self.signature}")

    def _explain_closed(self) -> NoReturn:
        self.scheduler.check()
        raise Closed(f"{self.what} is closed")

    def _explain_stream(self, stream: Any) -> NoReturn:
        if getattr(stream, "scheduler", None) is not self.scheduler:
            raise ArgumentError(f"stream={stream!r} is not a stream of {self.device}")
        raise Closed(f"{stream.name} is closed")

    def _check_array(self, slot: Slot, array: Any, given: Mapping[str, Any]) -> None:
        """Everything about an array that does not change; remembered by the array if it fits."""
        if array is MISSING:
            self._explain_names({}, given)
        label = f"{self.name}: argument {slot.name!r}"
        if not isinstance(array, Array):
            hint = " (use dev.array or dev.adopt)" if isinstance(array, np.ndarray) else ""
            raise ArgumentError(
                f"{label} must be a penstock Array, not {type(array).__name__}{hint}"
            )
        if array.buffer.scheduler is not self.scheduler:
            raise ArgumentError(
                f"{label} is on {array.device}, the kernel on {self.device}; copy it over"
            )
        array.buffer.check()
        if slot.dtype is not None and not _same_bytes(array.dtype, slot.dtype):
            raise DtypeMismatch(f"{label} must be {slot.dtype}, not {array.dtype}")
        if not array.contiguous:
            raise ShapeMismatch(f"{label} is not contiguous; pass {slot.name}=x.copy()")
        if array.nbytes < slot.min_size:
            raise ShapeMismatch(
                f"{label} has {array.nbytes} bytes; the kernel needs at least {slot.min_size}"
            )
        if array.nbytes > slot.max_size:
            raise Unsupported(
                f"{label} has {array.nbytes:,} bytes; {self.device.name} binds at most "
                f"{slot.max_size:,}. Pass it in slices"
            )
        if array.region.lo % slot.alignment:  # backings themselves are aligned
            raise InvalidValue(
                f"{label} starts at byte {array.region.lo} of its buffer; {self.device.name} needs "
                f"multiples of {slot.alignment}. Slice at such multiples, or pass "
                f"{slot.name}=x.copy()"
            )
        if slot.writes:
            array.buffer.check_writable(self.what)
        array.accepted = {*array.accepted, slot.wants}

    def _explain_scalars(self, given: Mapping[str, Any]) -> None:
        """Say which scalar does not fit."""
        if any(value is MISSING for value in given.values()):
            self._explain_names({}, given)
        for name, value in given.items():
            if isinstance(value, Array) and name not in {slot.name for slot in self._slots}:
                raise ArgumentError(
                    f"{self.name}: argument {name!r} is a number, not an Array: a launch does not "
                    f"wait for a value. Pass {name}=float(x) to wait, or read x in the kernel"
                )
        for member in self.interface.push:
            value = given[member.name]
            try:
                _packer((member,))(bytearray(self.interface.push_size), 0, value)
            except (struct.error, TypeError, ValueError, OverflowError) as error:
                wanted = f"{member.dtype}{list(member.shape) if member.shape else ''}"
                message = f"{self.name}: argument {member.name!r} must be {wanted}, not {value!r}"
                kind: type[Error]
                if isinstance(error, OverflowError):
                    kind = InvalidValue
                elif isinstance(value, int | float | np.number) and member.shape == ():
                    fits = isinstance(value, int | np.integer) or member.dtype.kind == "f"
                    kind = InvalidValue if fits else DtypeMismatch
                else:
                    kind = ShapeMismatch if isinstance(error, ValueError) else ArgumentError
                raise kind(f"{message} ({error})") from None


class Slot:
    """A binding, as a call wants to see it.

    `wants` stands for all that an array must be; slots that want the same have the same.
    """

    __slots__ = ("access", "alignment", "dtype", "max_size", "min_size", "name", "wants", "writes")

    def __init__(self, binding: Binding, info: DeviceInfo) -> None:
        self.name = binding.name
        self.access = binding.access
        self.writes = binding.access != "r"
        self.dtype = binding.dtype
        self.min_size = binding.min_size
        uniform = binding.kind == "uniform"
        self.max_size: Any = info.limits["uniform_range" if uniform else "binding_range"]
        self.alignment: Any = info.limits["uniform_alignment" if uniform else "binding_alignment"]
        self.wants = sys.intern(f"{self.dtype} {self.min_size} {self.max_size} {self.writes}")


def _load(
    source: str | bytes | os.PathLike[str], name: str, defines: Mapping[str, str | int | float]
) -> tuple[bytes, str]:
    """SPIR-V and a name from whatever the user gave."""
    include_dir = None
    if isinstance(source, os.PathLike) or (isinstance(source, str) and "\n" not in source):
        path = Path(source)
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:
            raise CompileError(
                f"{source!r} is neither GLSL text nor a file that can be read ({error})"
            ) from error
        name = name or path.stem
        include_dir = path.parent
        if content[:4] == _SPIRV_MAGIC:
            source = content
        else:
            source = content.decode("utf-8", "replace")
    name = name or "kernel"
    if isinstance(source, str):
        return compile_glsl(source, name=name, defines=defines, include_dir=include_dir), name
    if not isinstance(source, (bytes, bytearray, memoryview)):
        raise ArgumentError(
            f"a kernel is GLSL text, SPIR-V bytes or a path, not {type(source).__name__}"
        )
    if defines:
        raise ArgumentError("defines= is for GLSL; use constants= with SPIR-V")
    return bytes(source), name


def _three(given: Any, what: str) -> tuple[int, int, int]:
    sizes = given if isinstance(given, (tuple, list)) else (given,)
    try:
        counts = [operator.index(n) for n in sizes]
    except TypeError as error:
        raise ArgumentError(
            f"{what}= is an int or a tuple of up to three, not {given!r}"
        ) from error
    if not 1 <= len(counts) <= 3 or any(n < 0 for n in counts):
        raise InvalidValue(f"{what}={given!r} must be one to three numbers, none negative")
    counts += [1] * (3 - len(counts))
    return counts[0], counts[1], counts[2]


def _same_bytes(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
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


def _packer(members: tuple[Member, ...]) -> Callable[..., None]:
    """A function (block, 0, *values) that puts the values of push constants into their block."""
    if all(member.shape == () for member in members):
        return struct.Struct(_format(members)).pack_into

    def pack_arrays(block: bytearray, at: int, *values: Any) -> None:
        for member, value in zip(members, values, strict=True):
            data = _exactly(value, member.dtype, member.shape)
            place = np.ndarray(
                member.shape, member.dtype, buffer=block, offset=at + member.offset,
                strides=member.strides,
            )  # fmt: skip
            place[...] = data

    return pack_arrays


def _exactly(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
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


def _format(members: tuple[Member, ...]) -> str:
    text, at = "<", 0
    for member in members:
        text += f"{member.offset - at}x" if member.offset > at else ""
        text += "e" if member.dtype == np.float16 else member.dtype.char
        at = member.offset + member.dtype.itemsize
    return text.replace("l", "q").replace("L", "Q")
