"""A compiled program with its signature, and how it is launched.

`Kernel.__call__` does everything that a call may need. Where the native step is built
(`penstock.accelerator`), it makes the common calls: arrays that the kernel was called with before,
plain numbers, and nothing to wait for. It leaves all other calls to `__call__`.
"""

from __future__ import annotations

import contextlib
import inspect
import keyword
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock import accelerator
from penstock.array.array import Array, Bound
from penstock.array.host_access import capturing, check_source, host_memory_at_rest
from penstock.array.host_values import asked_once, memories
from penstock.dtypes import as_counts
from penstock.errors import ArgumentError, Closed, InvalidValue
from penstock.handle import Closing
from penstock.launch import numpy_arguments
from penstock.launch.arguments import KernelParameter, packed_scalars, packer, values_of
from penstock.launch.checks import (
    check_array,
    check_group_counts,
    explain_names,
    explain_scalars,
)
from penstock.launch.launch import Bindings, Launch
from penstock.launch.launch_memory import ArgumentRing, ResultPool
from penstock.launch.limits import check_limits, local_size
from penstock.launch.numpy_arguments import Carried
from penstock.launch.texels import bind_texels
from penstock.shader.source import KernelSource, LoadedKernel
from penstock.tracing import events

if TYPE_CHECKING:
    from penstock.array.buffer import Buffer
    from penstock.device import Device
    from penstock.driver.protocol import Reference
    from penstock.schedule.stream import Stream

_COUNTS_KEPT = 1024

#: Types of numbers that are packed as they are, without a look at who else may be writing them.
PLAIN_NUMBERS = frozenset(
    {int, float, bool, *(np.dtype(code).type for code in "?" + np.typecodes["AllInteger"] + "efdg")}
)


class Kernel(Closing, accelerator.Callable):  # type: ignore[misc]
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
        self.program: Any = self._make_program(loaded, reference)
        # Made here, because a finaliser may run when the globals of this module are gone.
        self._end = partial(self.scheduler.retirement.retire_program, self.program)
        self._closed = False
        self.parameters = [
            KernelParameter(binding, device.info, device.number)
            for binding in self.interface.bindings
            if binding.purpose == "array"
        ]
        self.writes = tuple(parameter.writes for parameter in self.parameters)
        scalars = tuple(member.name for member in self.interface.push)
        self.bindings = Bindings(self.interface)
        self.scalars_in_buffer = self.interface.scalars_in_buffer
        self._most_groups = device.info.limits["group_count"]
        self.what = f"kernel {self.name}"
        #: Group counts that were checked: by threads, and by groups, of plain calls.
        self._counts_of_threads: dict[Any, tuple[int, int, int]] = {}
        self._counts_of_groups: dict[Any, tuple[int, int, int]] = {}
        self.pack = packer(self.interface.push, self.interface.scalar_bytes)
        self.results = (
            ResultPool(self.scheduler, self.interface.result, self.bindings.result_bytes, self.what)
            if "result" in self.bindings.order
            else None
        )
        arrays = tuple(parameter.name for parameter in self.parameters)
        self.argument_names = (*arrays, *scalars)
        self._names = {*self.argument_names}
        self._arrays_of = values_of(arrays)
        self._scalars_of = values_of(scalars)
        self._describe()
        self._call_natively()

    def _make_program(self, loaded: LoadedKernel, reference: Reference | None) -> Any:
        scheduler = self.scheduler
        driver = scheduler.driver
        make = partial(driver.program, loaded.code, loaded.interface, loaded.constants, reference)
        start = events.clock() if events.active else 0.0
        with scheduler.lock:
            scheduler.check()
            made = make() if driver.inline else None
        if made is None:
            # Without the lock: the compiler takes its time, and threads may compile at once.
            made = scheduler.shutdown.use(make)
        events.compiled(self.name, "for the device", "driver", start)
        return made

    def _describe(self) -> None:
        """Give the kernel a class of its own, so that `help` and completion show its arguments."""
        own = {
            "__doc__": f"{self.signature}\n\n{Kernel.__doc__}",
            "__signature__": _signature(self.argument_names),
        }
        self.__class__ = type("Kernel", (type(self),), own)

    def _call_natively(self) -> None:
        """Have calls of the common kind made by the native step, if that can make this kernel's."""
        scalars = packed_scalars(self.interface.push)
        if not accelerator.is_native() or scalars is None or self.scalars_in_buffer:
            return
        scheduler = self.scheduler
        objects = (
            self._counts_of_threads, self._counts_of_groups, scheduler, self.device.default_stream,
            self.program, self.name, self.what, self.results, (*self.parameters,),
            numpy_arguments.bring_back_carried, PLAIN_NUMBERS, self.bindings.formats,
        )  # fmt: skip
        order = tuple(each if isinstance(each, int) else -1 for each in self.bindings.order)
        with contextlib.suppress(ValueError):  # more arguments than it has room for
            self._get_ready(
                tuple(map(sys.intern, self.argument_names)),
                tuple(each.wants for each in self.parameters),
                self.writes, order, scalars, self.interface.scalar_bytes, objects,
            )  # fmt: skip
            accelerator.native.called_natively(type(self))

    @classmethod
    def of_forms(
        cls, device: Device, reference: Reference | None = None, **forms: KernelSource
    ) -> Kernel:
        """One of Penstock's own kernels, in the language that the device's driver loads."""
        return cls(device, forms[device.scheduler.driver.language], reference)

    def __call__(
        self,
        /,
        *positional: Any,
        stream: Stream | None = None,
        threads: int | tuple[int, ...] | None = None,
        groups: int | tuple[int, ...] | Array | None = None,
        **given: Any,
    ) -> Any:
        """Launch on `stream`: `threads` in all (rounded up to whole groups), or whole `groups`."""
        began = events.clock() if events.active else 0.0
        # Everything that may wait, or run the caller's code, comes before the lock is taken.
        if positional or given.keys() != self._names:
            explain_names(self, given, positional)
        scheduler = self.scheduler
        if scheduler.captures and (graph := capturing(scheduler)) is not None:
            return graph.launch(self, given, stream, threads, groups)
        carried: list[Carried] = []
        for array in self._arrays_of(given):
            if type(array) is not Array:
                given |= self._carry(given, stream, carried)
                began = events.clock() if events.active else 0.0  # copies are events of their own
                break
        counts = self.group_counts(threads, groups, self._index_at_rest)
        block = self.pack_scalars(given, at_rest=True)
        on = scheduler.admit(stream)
        if self.scalars_in_buffer and (ring := on.rings.get(self)) is not None:
            ring.make_room(on.lane)
        with scheduler.lock:
            launch = self.prepare(given, block, counts)
            if on._closed:
                raise Closed(f"{on.name} is closed")
            result, value = launch.record(on, began)
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
                self._retire()
                self.scheduler.retirement.retire_program(self.program)
                for stream in self.scheduler.all_streams():
                    stream.rings.pop(self, None)
                if self.results is not None:
                    self.results.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def __del__(self) -> None:
        # May run in any thread, in the middle of any call: only leave a message.
        if not getattr(self, "_closed", True):
            self.scheduler.ended.leave(self._end)

    def __repr__(self) -> str:
        return f"<Kernel {self.signature}>"

    @property
    def signature(self) -> str:
        """The kernel's arguments, result and group size, as text."""
        arrays = [f"{p.name}: {p.access} {_elements(p)}[]" for p in self.parameters]
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
        if groups is None and _is_plain_count(threads) and threads in self._counts_of_threads:
            return self._counts_of_threads[threads]
        if isinstance(groups, Array):
            check_group_counts(self, groups, threads)
            return groups
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
        if _is_plain_count(threads) and len(self._counts_of_threads) < _COUNTS_KEPT:
            self._counts_of_threads[threads] = counts
        elif _is_plain_count(groups) and len(self._counts_of_groups) < _COUNTS_KEPT:
            self._counts_of_groups[groups] = counts
        return counts

    def pack_scalars(self, given: Mapping[str, Any], *, at_rest: bool = False) -> bytes:
        """The scalars as bytes. With `at_rest`, waits for work on scalars in adopted memory."""
        scalars = self._scalars_of(given)
        pack = self.pack
        if at_rest:
            for scalar in scalars:
                if type(scalar) not in PLAIN_NUMBERS:
                    pack = self._pack_at_rest
                    break
        try:
            return pack(*scalars)
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
        arrays = []
        for parameter in self.parameters:
            array = given[parameter.name]
            if type(array) is not Array or parameter.wants not in array.accepted:
                check_array(self, parameter, array, given)
            if array.buffer.closed:
                array.buffer.check()
            arrays.append(array)
        if isinstance(groups, Array):
            groups.buffer.check()
        return Launch(self, arrays, block, groups)

    def check_writes(self, arrays: Iterable[Array], growing: Collection[Buffer]) -> None:
        """Raise unless the roles of the arrays that it writes allow that; `growing` are exempt."""
        for parameter, array in zip(self.parameters, arrays, strict=True):
            if parameter.writes and array.buffer.guarded and array.buffer not in growing:
                array.buffer.check_write(array.region, self.what)

    def bind(
        self, arrays: Sequence[Array], stream: Stream, groups: Array | None = None
    ) -> list[Bound]:
        """Where each array's bytes are, after resolving conflicts with live host views."""
        bound = []
        for array in arrays:
            buffer, known = array.buffer, array.bound
            if buffer.guarded or buffer.backing.views:
                break
            bound.append(known if known.backing is buffer.backing else array.bind())
        else:
            self.bind_texels(arrays, bound)
            return bound
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
        bound = [array.bind() for array in arrays]
        self.bind_texels(arrays, bound)
        return bound

    def bind_texels(self, arrays: Sequence[Array], bound: Sequence[Bound]) -> None:
        """Have the views that the kernel's texel buffers need."""
        if self.bindings.has_texels:
            bind_texels(self.scheduler, self.parameters, arrays, bound)

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


def _elements(parameter: KernelParameter) -> str:
    """What an array consists of, for a signature: its dtype, or its texels."""
    if parameter.format is not None:
        return parameter.format or f"texels of {parameter.fetched}"
    return str(parameter.dtype or "bytes")


def _is_plain_count(asked: Any) -> bool:
    """Whether a dict may be asked by it: numbers of other types are equal to ints, too."""
    return type(asked) is int or (type(asked) is tuple and {*map(type, asked)} == {int})


def _signature(names: Iterable[str]) -> inspect.Signature:
    """What `help` shows: the kernel's arguments by name, and how much to run."""
    named = inspect.Parameter.KEYWORD_ONLY
    shown = [name for name in names if name.isidentifier() and not keyword.iskeyword(name)]
    return inspect.Signature(
        [inspect.Parameter(name, named) for name in shown]
        + [inspect.Parameter(name, named, default=None) for name in ("threads", "groups", "stream")]
    )


def _check_source(source: KernelSource) -> None:
    given: Any
    for given, what in (
        (source.defines, "defines"), (source.constants, "constants"), (source.formats, "formats")
    ):  # fmt: skip
        if not isinstance(given, Mapping):
            raise ArgumentError(f"{what}= is a dict of names and values, not {given!r}")
        for key in given:
            if not isinstance(key, str):
                raise ArgumentError(f"{what}= is a dict of names and values: {key!r} is no name")
    name: Any = source.name
    if not isinstance(name, str) or "\0" in name:
        raise ArgumentError(f"name= is text without NUL, not {name!r}")
