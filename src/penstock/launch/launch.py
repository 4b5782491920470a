"""One launch: its checked arguments, the bytes it accesses, its bindings and its dispatch.

Streams (`record`) and graphs (`graph.encoding`, which keep the commands) both record a `Launch`.
`Bindings` alone defines the order in which a driver takes a kernel's buffers; the native step is
told it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.array.array import Array, Bound
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.array.buffer import Buffer
    from penstock.launch.kernel import Kernel
    from penstock.launch.launch_memory import ResultMemory
    from penstock.launch.result import Result
    from penstock.ledger.hazards import Region, Use
    from penstock.schedule.stream import Stream
    from penstock.shader.interface import Interface


class Bindings:
    """The order in which a driver takes the buffers of a kernel."""

    def __init__(self, interface: Interface) -> None:
        arrays = iter(range(len(interface.bindings)))
        #: For each binding: the index of the array, or "arguments", or "result".
        self.order: list[int | str] = [
            next(arrays) if binding.purpose == "array" else binding.purpose
            for binding in interface.bindings
        ]
        self.result_bytes = sum(b.min_size for b in interface.bindings if b.purpose == "result")
        #: By array: the key of its view in `Bound.texels`, or None if it is no texel buffer.
        self.formats = tuple(
            binding.format if binding.is_texel else None
            for binding in interface.bindings
            if binding.purpose == "array"
        )
        self.has_texels = self.formats.count(None) < len(self.formats)
        self._only_plain_arrays = (
            "arguments" not in self.order and "result" not in self.order and not self.has_texels
        )

    def flat(
        self, arrays: Sequence[Bound], arguments: bytes | None, result: ResultMemory | None
    ) -> bytes:
        """All places (`driver.protocol.PLACE`) in a row, as the driver's `dispatch` takes them."""
        flat = b""
        if self._only_plain_arrays:
            for bound in arrays:
                flat += bound.place
            return flat
        others: dict[Any, Any] = {"arguments": arguments}
        if result is not None:
            others["result"] = result.place
        for each in self.order:
            if not isinstance(each, int):
                flat += others[each]
            elif (key := self.formats[each]) is None:
                flat += arrays[each].place
            else:
                flat += arrays[each].texels[key][0]
        return flat


class Launch:
    """A call of a kernel with checked arguments."""

    __slots__ = ("arrays", "block", "groups", "is_empty", "kernel")

    def __init__(
        self,
        kernel: Kernel,
        arrays: Sequence[Array],
        block: bytes,
        groups: tuple[int, int, int] | Array,
    ) -> None:
        self.kernel = kernel
        self.arrays = arrays  # in the order of the kernel's parameters
        self.block = block  # the scalars
        self.groups = groups  # an array: the device reads the counts at dispatch
        #: Whether the host knows that it runs no group.
        self.is_empty = type(groups) is tuple and not groups[0]

    def touched(self) -> list[tuple[Buffer, Region, bool]]:
        """The bytes of arrays that it reads or writes, and whether it writes them."""
        found = [
            (a.buffer, a.touched if p.writes else a.buffer.read_region(a.touched), p.writes)
            for p, a in zip(self.kernel.parameters, self.arrays, strict=True)
        ]
        if isinstance(self.groups, Array):
            found.append((self.groups.buffer, self.groups.region, False))
        return found

    def dispatch(
        self,
        commands: Any,
        bound: Sequence[Bound],
        arguments: bytes | None,
        result: ResultMemory | None,
    ) -> None:
        """Record the dispatch into the driver's `commands`.

        `bound` is where the arrays are, and `arguments` where the scalars are, unless they are push
        constants.
        """
        kernel = self.kernel
        flat = kernel.bindings.flat(bound, arguments, result)
        block = b"" if arguments is not None else self.block
        if isinstance(self.groups, Array):
            counts = self.groups.buffer.backing
            lo = counts.offset + self.groups.region.lo
            commands.dispatch_indirect(kernel.program, flat, block, counts.memory, lo)
        else:
            commands.dispatch(kernel.program, flat, block, self.groups)

    def record(self, stream: Stream, began: float) -> tuple[Result | None, int]:
        """Record it on a stream; returns its result and the value of its completion.

        The value is 0 if it runs no group. The caller holds the device's lock. `began` is for the
        receipt: when the kernel was called.
        """
        kernel, groups = self.kernel, self.groups
        indirect = groups if isinstance(groups, Array) else None
        bound = kernel.bind(self.arrays, stream, indirect)
        uses: list[Use] = []
        for each, writes in zip(bound, kernel.writes):  # noqa: B905 (the check costs, here)
            uses.append(each.writing if writes else each.reading)
        if indirect is not None:
            counts = indirect.buffer.backing_for(stream, indirect.region, kernel.what, write=False)
            uses.append((counts.history, indirect.region, False))
        ring = kernel.ring(stream) if kernel.scalars_in_buffer else None
        arguments = None if ring is None else ring.put(self.block, stream.lane)
        result = None if kernel.results is None else kernel.results.new(kernel.what)
        memory = None if result is None else result.memory
        if self.is_empty:
            return result, 0
        if ring is not None:
            uses.append(ring.use)
        if memory is not None:
            uses.append(memory.use)
        commands = stream.begin(uses, kernel.what)
        # Before the driver records the launch: if an exception comes in between, ring and result
        # slot count as used.
        if ring is not None:
            ring.taken(stream.recorded)
        if result is not None:
            result.launched(stream.lane, stream.recorded)
        self.dispatch(commands, bound, arguments, memory)
        if events.active:
            arrays = uses[: len(bound)]  # each contiguous
            nbytes = sum([region.hi - region.lo for _, region, _ in arrays])
            events.emit(
                "launch", self.in_words(), nbytes=nbytes, start=began,
                seconds=events.since(began), at=stream.here(),
            )  # fmt: skip
        if result is not None:
            stream.expect_result()
        return result, stream.end()

    def in_words(self) -> tuple[Any, ...]:
        """For the receipt: the kernel and the number of groups."""
        if isinstance(self.groups, Array):
            return ("%s in groups of %r", self.kernel.name, self.groups.name)
        return ("%s in %s groups", self.kernel.name, self.groups)
