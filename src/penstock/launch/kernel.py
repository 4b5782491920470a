"""A compiled program with its signature, and how it is launched.

`Kernel.launch` does everything that a call may need. The `__call__` that users call is generated
for each kernel by `launch.call`; it handles the common case and leaves the rest to `launch`.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock.array.array import Array, Bound
from penstock.array.host_access import capturing, check_source, host_memory_at_rest
from penstock.array.host_values import asked_once, memories
from penstock.dtypes import as_counts
from penstock.errors import ArgumentError, Closed, InvalidValue
from penstock.handle import Closing
from penstock.launch import numpy_arguments
from penstock.launch.arguments import KernelParameter, packer
from penstock.launch.call import PLAIN_NUMBERS, make_call
from penstock.launch.checks import check_array, check_group_counts, explain_scalars
from penstock.launch.launch import Bindings, Launch
from penstock.launch.launch_memory import ArgumentRing, ResultPool
from penstock.launch.limits import check_limits, local_size
from penstock.launch.numpy_arguments import Carried
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.array.buffer import Buffer
    from penstock.device import Device
    from penstock.driver.protocol import Reference
    from penstock.schedule.stream import Stream

_COUNTS_KEPT = 1024


class Kernel(Closing):
    """Call it with arrays and scalars by name, and `threads=` or `groups=`.

    A call blocks only at a run-ahead bound (docs/performance.md). If the kernel has a `Result`
    block, it returns a `Result`. NumPy arrays are copied to the device, and back if the kernel
    writes them; then the call waits, once.
    `groups=` may be an array of three uint32, which the device reads when it runs the launch.
    """

    def __init__(
        self, device: Device, source: KernelSource, reference: Reference | None = None
    ) -> None:
        _check_source(source)
        self.device = device
        self.scheduler = device.scheduler
        check_source(self.scheduler, [*source.constants.values()])
        loaded = self.scheduler.driver.load(source)
        self.name, self.interface = loaded.name, loaded.interface
        check_limits(self.name, self.interface, device.info)
        self.local_size = local_size(self.name, self.interface, device.info, loaded.constants)
        with self.scheduler.lock:
            self.scheduler.check()
            self.program: Any = self.scheduler.driver.program(
                loaded.code, self.interface, loaded.constants, reference
            )
        self._closed = False
        self.parameters = [
            KernelParameter(binding, device.info, device.number)
            for binding in self.interface.bindings
            if binding.purpose == "array"
        ]
        self.bindings = Bindings(self.interface)
        self._most_groups = device.info.limits["group_count"]
        self.what = f"kernel {self.name}"
        self.counts_of: dict[int, tuple[int, int, int]] = {}  # by threads, for `launch.call`
        self.pack = packer(self.interface.push, self.interface.scalar_bytes)
        self.results = (
            ResultPool(self.scheduler, self.interface.result, self.bindings.result_bytes, self.what)
            if "result" in self.bindings.order
            else None
        )
        doc = f"{self.signature}\n\n{Kernel.__doc__}"
        self.__class__ = type(
            "Kernel", (type(self),), {"__call__": make_call(self), "__doc__": doc}
        )

    @classmethod
    def of_forms(
        cls, device: Device, reference: Reference | None = None, **forms: KernelSource
    ) -> Kernel:
        """One of Penstock's own kernels, in the language that the device's driver loads."""
        return cls(device, forms[device.scheduler.driver.language], reference)

    def __call__(
        self,
        *,
        stream: Stream | None = None,
        threads: int | tuple[int, ...] | None = None,
        groups: int | tuple[int, ...] | Array | None = None,
        **arguments: Any,
    ) -> Any:
        """Launch on `stream`: `threads` in all (rounded up to whole groups), or whole `groups`.

        `launch.call` generates this for each kernel, with the kernel's argument names; it does the
        same as `launch`.
        """
        return self.launch(arguments, stream, threads, groups)

    def launch(
        self, given: Mapping[str, Any], stream: Stream | None, threads: Any, groups: Any
    ) -> Any:
        """Launch with the arguments given by name.

        Everything that may wait, or run the caller's code, comes before the lock is taken.
        """
        scheduler = self.scheduler
        if (graph := capturing(scheduler)) is not None:
            return graph.launch(self, dict(given), stream, threads, groups)
        carried: list[Carried] = []
        given = {**given, **self._carry(given, stream, carried)}
        counts = self.group_counts(threads, groups, self._index_at_rest)
        block = self.pack_scalars(given, at_rest=True)
        on = scheduler.admit(stream)
        if (ring := on.rings.get(self)) is not None:
            ring.make_room(on.lane)
        with scheduler.lock:
            launch = self.prepare(given, block, counts)
            if on.closed:
                raise Closed(f"{on.name} is closed")
            result, value = launch.record(on)
        if carried and value:
            numpy_arguments.bring_back(carried, on, value)
        return result

    def close(self) -> None:
        """Release the program once launches in flight are done. Safe to call twice."""
        with self.scheduler.lock:
            if not self._closed:
                self._closed = True
                for parameter in self.parameters:
                    parameter.spare.clear()
                self.scheduler.retirement.retire_program(self.program)
                self.scheduler.forget_rings(self)
                if self.results is not None:
                    self.results.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def __del__(self) -> None:
        # May run in any thread, in the middle of any call: only leave a message.
        if not getattr(self, "_closed", True):
            self.scheduler.program_dropped(self.program)

    def __repr__(self) -> str:
        return f"<Kernel {self.signature}>"

    @property
    def signature(self) -> str:
        """The kernel's arguments, result and group size, as text."""
        arrays = [f"{p.name}: {p.access} {p.dtype or 'bytes'}[]" for p in self.parameters]
        scalars = [
            f"{m.name}: {m.dtype}{list(m.shape) if m.shape else ''}" for m in self.interface.push
        ]
        parts = [f"{m.name}: {m.dtype}{list(m.shape) or ''}" for m in self.interface.result]
        returns = f" -> {', '.join(parts)}" if parts else ""
        called = f"{self.name}({', '.join(arrays + scalars)}){returns}"
        return f"{called} in groups of {self.local_size}"

    # The parts of a call.

    def _carry(
        self, given: Mapping[str, Any], stream: Stream | None, carried: list[Carried]
    ) -> dict[str, Array]:
        """Device arrays for the arguments that are NumPy arrays, by name."""
        made = {}
        for parameter in self.parameters:
            value = given[parameter.name]
            if isinstance(value, np.ndarray):
                made[parameter.name] = numpy_arguments.bring_in(
                    self.device, self.name, parameter, value, stream, carried
                )
            elif type(value) is not Array:
                check_array(self, parameter, value, given)
        return made

    def group_counts(
        self, threads: Any, groups: Any, index: Callable[[Any], int] = operator.index
    ) -> tuple[int, int, int] | Array:
        """How many groups to run in each dimension, (0, 0, 0) if none; or the array of counts.

        `index` converts a number of another type to an int.
        """
        if isinstance(groups, Array):
            check_group_counts(self, groups, threads)
            return groups
        if groups is None and type(threads) is int and threads in self.counts_of:
            return self.counts_of[threads]
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

    def pack_scalars(self, given: Mapping[str, Any], *, at_rest: bool = False) -> bytes:
        """The scalars as bytes. With `at_rest`, waits for work on scalars in adopted memory."""
        scalars = [given[member.name] for member in self.interface.push]
        if all(type(scalar) in PLAIN_NUMBERS for scalar in scalars):
            at_rest = False
        try:
            return self._pack_at_rest(*scalars) if at_rest else self.pack(*scalars)
        except Exception:
            explain_scalars(self, given)
            raise

    def _pack_at_rest(self, *scalars: Any) -> bytes:
        """The scalars as bytes, read after the work in flight on those in adopted memory.

        May wait, and may run the caller's code, so it is called without the lock.
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
        """`host_memory_at_rest` for the parts of a value that are in adopted memory."""
        found = memories(value) if self.scheduler.host_memory else ()
        what = f"{self.name}: an argument"
        return host_memory_at_rest(self.scheduler, *found, write=False, what=what)

    # Under the device's lock.

    def prepare(
        self, given: Mapping[str, Any], block: bytes, groups: tuple[int, int, int] | Array
    ) -> Launch:
        """Check a call and gather its arguments, without recording anything."""
        if self.scheduler.closed or self.scheduler.lost is not None or self._closed:
            self._explain_closed()
        for parameter in self.parameters:
            array = given[parameter.name]
            if type(array) is not Array or parameter.wants not in array.accepted:
                check_array(self, parameter, array, given)
            array.buffer.check()
        if isinstance(groups, Array):
            groups.buffer.check()
        arrays = tuple(given[parameter.name] for parameter in self.parameters)
        return Launch(self, arrays, block, groups)

    def check_writes(self, arrays: Iterable[Array], growing: Collection[Buffer]) -> None:
        """Raise unless the roles of the arrays that it writes allow that; `growing` are exempt."""
        for parameter, array in zip(self.parameters, arrays, strict=True):
            if parameter.writes and array.buffer.guarded and array.buffer not in growing:
                array.buffer.check_write(array.region, self.what)

    def bind(
        self, arrays: tuple[Array, ...], stream: Stream, groups: Array | None = None
    ) -> list[Bound]:
        """Where each array's bytes are, after resolving conflicts with live host views."""
        self.check_writes(arrays, ())
        if any(array.buffer.backing.views for array in arrays):
            pairs = list(zip(self.parameters, arrays, strict=True))
            read = {array.buffer for parameter, array in pairs if parameter.access != "w"}
            if groups is not None:
                read.add(groups.buffer)
            for parameter, array in pairs:
                reads = array.buffer in read
                array.buffer.backing_for(
                    stream, array.region, self.what, write=parameter.writes, reads=reads
                )
        # Only now: a view of one array may have renamed the buffer that another one shares.
        return [array.bind() for array in arrays]

    def ring(self, stream: Stream) -> ArgumentRing:
        """The ring for this stream's scalars, if they do not fit push constants."""
        found = stream.rings.get(self)
        if found is None:
            found = ArgumentRing(self.scheduler, self.interface.scalar_bytes, self.what)
            stream.rings[self] = found
        return found

    def _explain_closed(self) -> NoReturn:
        self.scheduler.check()
        raise Closed(f"{self.what} is closed")


def _check_source(source: KernelSource) -> None:
    for given, what in ((source.defines, "defines"), (source.constants, "constants")):
        if not isinstance(given, Mapping):
            raise ArgumentError(f"{what}= is a dict of names and values, not {given!r}")
    name: Any = source.name
    if not isinstance(name, str) or "\0" in name:
        raise ArgumentError(f"name= is text without NUL, not {name!r}")
