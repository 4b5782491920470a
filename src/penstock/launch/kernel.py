"""A compiled program with its reflected signature, and the launcher.

A call checks everything before anything is recorded: names, dtypes, sizes, limits. The call itself
is written out per kernel by `penstock.launch.call`, because its cost is paid by the interpreter
on every launch; here is how a kernel is made, and how a bad call is explained.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import struct
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from penstock.array.array import Array, Bound
from penstock.array.host_access import check_source, host_memory_at_rest, stream_of
from penstock.array.host_values import asked_once, memories
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
from penstock.handle import Closing
from penstock.launch import numpy_arguments
from penstock.launch.arguments import (
    KernelParameter,
    check_elements,
    exactly,
    how_to_pass,
    packer,
    same_bytes,
)
from penstock.launch.call import MISSING, make_launch
from penstock.launch.launch_memory import ArgumentRing, ResultMemory, ResultPool
from penstock.launch.result import Result
from penstock.ledger.hazards import Use
from penstock.shader.glsl import compile_glsl
from penstock.shader.rewrite import arguments_in_buffer
from penstock.shader.signature import block_size, declared
from penstock.shader.spirv import Interface, reflect
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.array.buffer import Buffer
    from penstock.device import Device
    from penstock.driver.protocol import Reference
    from penstock.launch.numpy_arguments import Carried
    from penstock.schedule.stream import Stream

#: How SPIR-V, a HIP code object, and a bundle of those begin.
_CODE = (b"\x03\x02\x23\x07", b"\x7fELF", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")
_HIP_GROUP = 256  # invocations in a group, unless said otherwise
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


class Launch(NamedTuple):
    """A call of a kernel whose arguments are checked."""

    kernel: Kernel
    arrays: tuple[Array, ...]  # in the order of the kernel's slots
    block: bytes  # the scalars
    groups: tuple[int, int, int] | Array  # an array if the device is to say how many


class Kernel(Closing):
    """Call it with arrays and scalars by name, and `threads=` or `groups=`.

    A call blocks only where it meets a run-ahead bound (docs/performance.md). If the kernel has a
    `Result` block, it returns a `Result`. NumPy arrays are moved to the device, and back if the
    kernel writes them; then the call waits, once.
    `groups=` may be an array of three uint32, which the device looks at when it gets there.
    """

    def __init__(
        self,
        device: Device,
        source: str | bytes | os.PathLike[str],
        *,
        name: str = "",
        defines: Mapping[str, str | int | float],
        constants: Mapping[str, Any],
        reference: Reference | None = None,
        signature: str | None = None,
        group_size: int | tuple[int, ...] | None = None,
    ) -> None:
        for given, what in ((defines, "defines"), (constants, "constants")):
            if not isinstance(given, Mapping):
                raise ArgumentError(f"{what}= is a dict of names and values, not {given!r}")
        called: Any = name
        if not isinstance(called, str) or "\0" in called:
            raise ArgumentError(f"name= is text without NUL, not {called!r}")
        self.device = device
        self.scheduler = device.scheduler
        self.interface: Interface
        if self.scheduler.driver.language == "hip":
            text, self.name, include_dir = _read(source, name, "HIP C++")
            code, self.interface = _load_hip(
                device, text, self.name, defines, include_dir, signature, group_size
            )
            self._block_size = block_size(self.interface)
        else:
            if signature is not None or group_size is not None:
                raise ArgumentError(
                    "signature= and group_size= are for HIP; SPIR-V and GLSL say both themselves"
                )
            code, self.name = _load(source, name, defines)
            self.interface = reflect(code)
            lengths = self._constants(constants)
            if self.interface.sized_by & lengths.keys():
                self.interface = reflect(code, constants=lengths)
            self._block_size = self.interface.push_size
            most: Any = device.info.limits["push_constants"]
            if self.interface.push_size > most:
                code, self.interface = arguments_in_buffer(code, self.interface)
        self._check_limits()
        chosen = self._constants(constants)
        self.local_size = self._local_size(chosen)
        with self.scheduler.lock:
            self.scheduler.check()
            self.program: Any = self.scheduler.driver.program(
                code, self.interface, chosen, reference
            )
        self._closed = False
        self.slots = [
            KernelParameter(binding, device.info, device.number)
            for binding in self.interface.bindings
            if binding.purpose == "array"
        ]
        self._most_groups = device.info.limits["group_count"]
        self.what = f"kernel {self.name}"
        self.counts_of: dict[int, tuple[int, int, int]] = {}  # by threads, for the fast path
        self.pack = packer(self.interface.push, self._block_size)
        self.results = self._result_slots()
        launch = make_launch(self)
        self.__class__ = type("Kernel", (type(self),), {"__call__": launch, "__doc__": __doc__})

    def __call__(
        self,
        *,
        stream: Stream | None = None,
        threads: int | tuple[int, ...] | None = None,
        groups: int | tuple[int, ...] | None = None,
        **arguments: Any,
    ) -> Any:
        """Launch on `stream`: `threads` in all (rounded up to whole groups), or whole `groups`.

        `penstock.launch.call` writes this out for each kernel, with its own argument names.
        """
        raise AssertionError("replaced when the kernel was made")

    def close(self) -> None:
        """Give the program back; launches in flight finish first. Safe to call twice."""
        with self.scheduler.lock:
            if not self._closed:
                self._closed = True
                for slot in self.slots:
                    slot.spare.clear()
                self.scheduler.retire_program(self.program)
                self.scheduler.forget_rings(self)
                if self.results is not None:
                    self.results.close()

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
        arrays = [f"{slot.name}: {slot.access} {slot.dtype or 'bytes'}[]" for slot in self.slots]
        scalars = [
            f"{m.name}: {m.dtype}{list(m.shape) if m.shape else ''}" for m in self.interface.push
        ]
        parts = [f"{m.name}: {m.dtype}{list(m.shape) or ''}" for m in self.interface.result]
        returns = f" -> {', '.join(parts)}" if parts else ""
        called = f"{self.name}({', '.join(arrays + scalars)}){returns}"
        return f"{called} in groups of {self.local_size}"

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
        uniform = [binding for binding in interface.bindings if binding.kind == "uniform"]
        for count, limit, what in (
            (len(interface.bindings), "bindings", "buffers"),
            (len(uniform), "uniform_bindings", "uniform blocks"),
            (interface.shared_size, "shared_memory", "bytes of shared memory"),
        ):
            if count > info.limits[limit]:  # type: ignore[operator]
                raise Unsupported(
                    f"{self.name} uses {count} {what}; {info.name} has {info.limits[limit]}"
                )
        for binding in interface.bindings:
            limit = "uniform_range" if binding.kind == "uniform" else "binding_range"
            if binding.min_size > info.limits[limit]:  # type: ignore[operator]
                raise Unsupported(
                    f"{self.name}: {binding.name!r} takes {binding.min_size:,} bytes or more; "
                    f"{info.name} binds at most {info.limits[limit]:,} of that kind"
                )
        arrays = [b.name for b in interface.bindings if b.purpose == "array"]
        names = arrays + [m.name for m in interface.push]
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

    def _constants(self, given: Mapping[str, Any]) -> dict[int, bytes]:
        # As the names of a kernel, and so those of keyword arguments, are.
        chosen = {unicodedata.normalize("NFKC", name): value for name, value in given.items()}
        known = {constant.name: constant for constant in self.interface.constants}
        if unknown := chosen.keys() - known.keys():
            raise ArgumentError(
                f"{self.name} has no constant {sorted(unknown)[0]!r}; it has "
                f"{', '.join(known) or 'none'}"
            )
        check_source(self.scheduler, [*chosen.values()])
        values = {}
        for name, value in chosen.items():
            constant = known[name]
            dtype = np.dtype(np.uint32) if constant.dtype.kind == "b" else constant.dtype
            try:
                values[constant.id] = exactly(value, dtype, ()).tobytes()
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidValue(f"constant {name}={value!r} does not fit {dtype}") from error
        return values

    def _result_slots(self) -> ResultPool | None:
        found = [binding for binding in self.interface.bindings if binding.purpose == "result"]
        if not found:
            return None
        block = found[0]
        return ResultPool(self.scheduler, self.interface.result, block.min_size, self.what)

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

    def _groups(
        self, threads: Any, groups: Any, index: Callable[[Any], int] = operator.index
    ) -> tuple[int, int, int]:
        """How many groups to run in each dimension; (0, 0, 0) if none.

        `index` makes an int of a number that is none.
        """
        if (threads is None) == (groups is None):
            raise ArgumentError(
                f"{self.name}: say how much to run, with either threads= or groups="
            )
        if groups is None:
            x, y, z = as_counts(threads, "threads", index)
            local = self.local_size
            counts = (-(-x // local[0]), -(-y // local[1]), -(-z // local[2]))
        else:
            counts = as_counts(groups, "groups", index)
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

    def ring(self, stream: Stream) -> ArgumentRing:
        """Where the scalars go on this stream if they are too many for push constants."""
        found = stream.rings.get(self)
        if found is None:
            found = ArgumentRing(self.scheduler, self._block_size, self.what)
            stream.rings[self] = found
        return found

    def bind(
        self, arrays: tuple[Array, ...], stream: Stream, groups: Array | None = None
    ) -> list[Bound]:
        """Where each array's bytes are, where that takes a closer look."""
        read = {a.buffer for slot, a in zip(self.slots, arrays, strict=True) if slot.access != "w"}
        if groups is not None:
            read.add(groups.buffer)
        for slot, array in zip(self.slots, arrays, strict=True):
            buffer = array.buffer
            buffer.check()
            if slot.writes and buffer.guarded:
                buffer.check_write(array.region, self.what)
            buffer.backing_for(
                stream, array.region, self.what, write=slot.writes, reads=buffer in read
            )
        # Only now: making way for a view of one array may have moved another of the same buffer.
        return [array.bind() for array in arrays]

    def pack_scalars(self, given: Mapping[str, Any], *, at_rest: bool = False) -> bytes:
        """The block of scalars; `at_rest` if they may be in memory that the device writes."""
        pack = self.pack_at_rest if at_rest else self.pack
        try:
            return pack(*(given[member.name] for member in self.interface.push))
        except Exception:
            self._explain_scalars(given)
            raise

    def pack_at_rest(self, *scalars: Any) -> bytes:
        """The block of scalars; of those in adopted memory, as the work in flight leaves them.

        May wait, and may run code of the caller's, so without the lock.
        """
        if any(type(scalar) is Array for scalar in scalars):
            raise TypeError("a launch does not wait for the value of an array")
        scalars = tuple(map(asked_once, scalars))
        with self._at_rest(scalars):
            return self.pack(*scalars)

    def _index_at_rest(self, number: Any) -> int:
        with self._at_rest(number):
            return operator.index(number)

    def _at_rest(self, value: Any) -> contextlib.AbstractContextManager[object]:
        """Wait for the work on what there is of the value in adopted memory, and keep it off."""
        found = memories(value) if self.scheduler.host_memory else ()
        what = f"{self.name}: an argument"
        return host_memory_at_rest(self.scheduler, *found, write=False, what=what)

    def prepare(self, given: Mapping[str, Any], block: bytes, threads: Any, groups: Any) -> Launch:
        """Check a call and gather its arguments, without launching anything. Under the lock."""
        counts: Any = groups
        if isinstance(groups, Array):
            self._check_group_counts(groups, threads)
        else:
            counts = self._groups(threads, groups)
        if self.scheduler.closed or self.scheduler.lost is not None or self._closed:
            self._explain_closed(None)
        for slot in self.slots:
            array = given[slot.name]
            if type(array) is not Array or slot.wants not in array.accepted:
                self.check_array(slot, array, given)
            array.buffer.check()
        return Launch(self, tuple(given[slot.name] for slot in self.slots), block, counts)

    def check_writes(self, arrays: Iterable[Array], growing: Collection[Buffer]) -> None:
        """Raise unless the roles of the arrays that it writes allow it, but for growing ones."""
        for slot, array in zip(self.slots, arrays, strict=True):
            if slot.writes and array.buffer.guarded and array.buffer not in growing:
                array.buffer.check_write(array.region, self.what)

    def bindings(
        self, arrays: Iterable[Array], block: tuple[int, int], result: ResultMemory | None
    ) -> tuple[int, ...]:
        """What the driver binds: the arrays, the block of scalars, the result, in order."""
        flat: list[int] = []
        left = iter(arrays)
        for binding in self.interface.bindings:
            if binding.purpose == "array":
                flat += next(left).bind().place
            elif binding.purpose == "arguments":
                flat += (*block, self._block_size)
            else:
                assert result is not None
                flat += (result.handle, result.offset, binding.min_size)
        return tuple(flat)

    def _launch_indirect(
        self, given: Mapping[str, Any], stream: Stream | None, threads: Any, groups: Array,
        carried: list[Carried] | None,
    ) -> Result | None:  # fmt: skip
        """A launch whose number of groups is in device memory."""
        scheduler = self.scheduler
        block = self.pack_scalars(given, at_rest=True)
        on = scheduler.admit(stream)
        room = on.rings.get(self)
        if room is not None:
            room.make_room(on.lane)
        with scheduler.lock:
            launch = self.prepare(given, block, threads, groups)
            on = stream_of(groups.buffer, on)
            places = self.bind(launch.arrays, on, groups)
            uses: list[Use] = [
                bound.writing if slot.writes else bound.reading
                for slot, bound in zip(self.slots, places, strict=True)
            ]
            counts = groups.buffer.backing_for(on, groups.region, self.what, write=False)
            uses.append((counts.history, groups.region, False))
            ring = self.ring(on) if self._block_size > self.interface.push_size else None
            place = (0, 0)
            if ring is not None:
                block, place = b"", (ring.handle, ring.put(launch.block, on.lane))
                uses.append(ring.use)
            result = None if self.results is None else self.results.new(self.what)
            slot_of = None if result is None else result.slot
            if slot_of is not None:
                uses.append(slot_of.use)
            flat = self.bindings(launch.arrays, place, slot_of)
            lo = counts.offset + groups.region.lo
            commands = on.begin(uses, self.what)
            if ring is not None:
                ring.taken(on.recorded)
            if result is not None:
                result.launched(on.lane, on.recorded)
            commands.dispatch_indirect(self.program, flat, block, counts.memory, lo)
            if events.active:
                why = ("%s in groups of %r", self.name, groups.name)
                events.emit("launch", why, at=on.here())
            if result is not None:
                on.expect_result()
            value = on.end()
        if carried:
            numpy_arguments.bring_back(carried, on, value)
        return result

    def _check_group_counts(self, groups: Array, threads: Any) -> None:
        label = f"{self.name}: groups="
        if threads is not None:
            raise ArgumentError(f"{self.name}: say how much to run with threads= or groups=")
        if groups.buffer.scheduler is not self.scheduler:
            raise ArgumentError(f"{label} is on {groups.device}, the kernel on {self.device}")
        groups.buffer.check()
        if groups.dtype != np.uint32:
            raise DtypeMismatch(f"{label} must be an array of three uint32, not {groups.dtype}")
        if groups.size != 3 or not groups.contiguous or groups.region.lo % 4:
            raise ShapeMismatch(
                f"{label} must be three uint32 side by side; its shape is {groups.shape}"
            )

    def _carry(
        self, slot: KernelParameter, given: Any, stream: Stream | None, carried: list[Carried],
        everything: Mapping[str, Any],
    ) -> Array:  # fmt: skip
        """An array of the device for an argument that is not one."""
        if not isinstance(given, np.ndarray):
            self.check_array(slot, given, everything)
            array: Array = given
            return array
        return numpy_arguments.bring_in(self.device, self.name, slot, given, stream, carried)

    def _explain_names(
        self, unknown: Mapping[str, Any], given: Mapping[str, Any], positional: tuple[Any, ...] = ()
    ) -> NoReturn:
        if positional:
            names = ", ".join(f"{name}=..." for name in given)
            raise ArgumentError(
                f"{self.name}: {len(positional)} of the arguments have no name; a kernel is called "
                f"by name: {self.name}({names}, threads=...). Its signature is {self.signature}"
            )
        missing = [name for name, value in given.items() if value is MISSING]
        parts = []
        if unknown:
            parts.append(f"no argument {', '.join(map(repr, sorted(unknown)))}")
        if missing:
            parts.append(f"argument {', '.join(map(repr, missing))} is missing")
        raise ArgumentError(f"{self.name}: {'; '.join(parts)}. Its signature is {self.signature}")

    def _explain_closed(self, stream: Stream | None) -> NoReturn:
        self.scheduler.check()
        raise Closed(f"{self.what if stream is None or self._closed else stream.name} is closed")

    def _explain_stream(self, stream: Any) -> None:
        self.scheduler.stream_or_default(stream)

    def check_array(self, slot: KernelParameter, array: Any, given: Mapping[str, Any]) -> None:
        """Everything about an array that does not change; remembered by the array if it fits."""
        if array is MISSING:
            self._explain_names({}, given)
        label = f"{self.name}: argument {slot.name!r}"
        if not isinstance(array, Array):
            raise ArgumentError(
                f"{label} must be a penstock or NumPy array, not {type(array).__name__}"
                f"{how_to_pass(array)}"
            )
        if array.buffer.scheduler is not self.scheduler:
            raise ArgumentError(
                f"{label} is on {array.device}, the kernel on {self.device}; copy it over"
            )
        array.buffer.check()
        if slot.dtype is not None and not same_bytes(array.dtype, slot.dtype):
            raise DtypeMismatch(f"{label} must be {slot.dtype}, not {array.dtype}")
        if slot.writes:
            array.check_written(label)
        if not array.contiguous:
            raise ShapeMismatch(f"{label} is not contiguous; pass {slot.name}=x.copy()")
        check_elements(slot, array, label)
        if array.nbytes < slot.min_size:
            raise ShapeMismatch(
                f"{label} has {array.nbytes} bytes; the kernel needs at least {slot.min_size}"
            )
        if array.nbytes > slot.max_size:
            raise Unsupported(
                f"{label} has {array.nbytes:,} bytes; {self.device.name} binds at most "
                f"{slot.max_size:,}. Pass it in slices"
            )
        # The backings of a pool are aligned for any kernel; adopted memory is where it is.
        if (array.buffer.backing.offset + array.region.lo) % slot.alignment:
            raise InvalidValue(
                f"{label} starts at byte {array.region.lo} of its buffer; {self.device.name} needs "
                f"multiples of {slot.alignment}. Slice at such multiples, or pass "
                f"{slot.name}=x.copy()"
            )
        array.accepted = {*array.accepted, slot.wants}

    def _explain_scalars(self, given: Mapping[str, Any]) -> None:
        """Say which scalar does not fit."""
        if any(value is MISSING for value in given.values()):
            self._explain_names({}, given)
        for name, value in given.items():
            if isinstance(value, Array) and name not in {slot.name for slot in self.slots}:
                raise ArgumentError(
                    f"{self.name}: argument {name!r} is a number, not an Array: a launch does not "
                    f"wait for a value. Pass {name}=float(x) to wait, or read x in the kernel"
                )
        for member in self.interface.push:
            value = given[member.name]
            try:
                packer((member,), self._block_size)(value)
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


def _read(source: Any, name: str, language: str) -> tuple[str | bytes, str, Path | None]:
    """Text or code, a name, and where to look for includes, from whatever the user gave."""
    include_dir = None
    if isinstance(source, os.PathLike) or (isinstance(source, str) and _is_path(source)):
        path = Path(source)
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:
            raise CompileError(
                f"{source!r} is neither {language} text nor a file that can be read ({error})"
            ) from error
        name = name or path.stem
        include_dir = path.parent
        if content.startswith(_CODE):
            source = content
        else:
            source = content.decode("utf-8", "replace")
    if isinstance(source, (bytearray, memoryview)):
        source = bytes(source)
    if not isinstance(source, (str, bytes)):
        code = "SPIR-V bytes" if language == "GLSL" else "a code object's bytes"
        raise ArgumentError(
            f"a kernel is {language} text, {code} or a path, not {type(source).__name__}"
        )
    return source, name or "kernel", include_dir


def _is_path(source: str) -> bool:
    """Whether text is the name of a file rather than a kernel: a kernel has braces in it."""
    return "\n" not in source and not ("{" in source and "}" in source and ";" in source)


def _load(
    source: str | bytes | os.PathLike[str], name: str, defines: Mapping[str, str | int | float]
) -> tuple[bytes, str]:
    """SPIR-V and a name."""
    found, name, include_dir = _read(source, name, "GLSL")
    if isinstance(found, str):
        return compile_glsl(found, name=name, defines=defines, include_dir=include_dir), name
    if defines:
        raise ArgumentError("defines= is for GLSL; use constants= with SPIR-V")
    return found, name


def _load_hip(
    device: Device,
    source: str | bytes,
    name: str,
    defines: Mapping[str, str | int | float],
    include_dir: Path | None,
    signature: str | None,
    group_size: int | tuple[int, ...] | None,
) -> tuple[bytes, Interface]:
    """A code object, and what was declared of it."""
    if signature is None:
        raise ArgumentError(
            f"{name}: a HIP kernel does not say what it is called with; declare it, such as "
            "signature='in float32 x, inout float32 y, float32 a, uint32 n'"
        )
    group = as_counts(_HIP_GROUP if group_size is None else group_size, "group_size")
    room: Any = device.info.limits["push_constants"]
    interface = declared(signature, name, name, group, room)
    if isinstance(source, bytes):
        if defines:
            raise ArgumentError("defines= is for HIP C++, not for a code object")
        return source, interface
    code, entry = device.scheduler.driver.compile(
        source,
        name=name,
        entry=_entry(source, name),
        defines=defines,
        include_dir=include_dir,
    )
    return code, replace(interface, entry=entry)


def _entry(source: str, name: str) -> str:
    """Which of the functions in HIP C++ text is the kernel: the only one, or the one so named."""
    plain = re.sub(r"__launch_bounds__\s*\([^)]*\)", "", source)
    found = [str(each) for each in re.findall(r"__global__\b[^;{(]*?(\w+)\s*\(", plain)]
    if len(found) == 1:
        return found[0]
    if name in found:
        return name
    raise CompileError(
        f"{name}: which kernel? There are {', '.join(found) or 'no __global__ functions'} in the "
        "source; say which with name="
    )


def as_counts(
    given: Any, what: str, index: Callable[[Any], int] = operator.index
) -> tuple[int, int, int]:
    """How many in each of three dimensions. May run code of the caller's, so without the lock."""
    sizes = given if isinstance(given, (tuple, list)) else (given,)
    try:
        counts = [n if type(n) is int else index(n) for n in sizes]
    except TypeError as error:
        raise ArgumentError(
            f"{what}= is an int or a tuple of up to three, not {given!r}"
        ) from error
    if not 1 <= len(counts) <= 3 or any(n < 0 for n in counts):
        raise InvalidValue(f"{what}={given!r} must be one to three numbers, none negative")
    counts += [1] * (3 - len(counts))
    return counts[0], counts[1], counts[2]
