"""Append-only arrays whose length the device can read, such as a KV cache.

The host reads from the ledger how much of an append-only array is written (`Array.length`). The
device reads it from a counter in device memory. `Array.advance` raises both, in stream order.
Called while a graph is recorded, it makes every replay advance: the graph's kernels are bound to
the whole array and read from the counter where to write, and each replay is assumed to write
exactly the next rows. So a loop of replays can append as long as there is room, without the host
passing positions, and the host can read every complete row without waiting for the one in flight.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.array.append_counter import move_counter, settle_counter
from penstock.array.array import Array
from penstock.array.host_access import capturing
from penstock.array.transfer import fill_locked
from penstock.errors import ArgumentError, InvalidValue, RoleViolation
from penstock.launch.kernel import Kernel
from penstock.ledger.hazards import Region, Use
from penstock.ledger.roles import AppendHistory
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.schedule.stream import Stream

_SHADERS = Path(__file__).with_name("shaders")


class Growth(NamedTuple):
    """How many rows every replay of a graph appends to an array, and along which axis."""

    array: Array
    rows: int
    axis: int

    def next_rows(self) -> Rows:
        """The rows that the next replay writes; raises if there is no room for them."""
        array, start = self.array, self.array.appended.counted
        stop = start + self.rows
        if stop > array.shape[self.axis]:
            raise RoleViolation(
                f"a graph appends {self.rows} to array {array.name!r}, which has the role 'append' "
                f"and is full: {start} of {array.shape[self.axis]} are written; reset() starts anew"
            )
        region = rows_of(array, start, stop, self.axis).region
        array.buffer.check_write(region, "a graph")
        return Rows(array.appended, region, stop)


class Rows(NamedTuple):
    """The rows of an append-only array that one replay writes."""

    history: AppendHistory
    region: Region
    stop: int  # the length of the array including these rows

    @property
    def use(self) -> Use:
        return (self.history, self.region, True)

    def begun(self) -> None:
        """Note that the replay is about to be recorded: until then the counter is uncertain."""
        self.history.uncertain = True

    def not_recorded(self) -> None:
        """Note that the replay was not recorded, so the counter keeps its value."""
        self.history.uncertain = False

    def recorded(self) -> None:
        """Mark the rows as written, now that the replay is recorded. Calling it again is safe."""
        history = self.history
        written = history.written_with(self.region)
        # Nothing is called from here on, so no exception can leave length and counter different.
        history.written, history.pitch = written, self.region.pitch or history.pitch
        history.counted, history.uncertain = self.stop, False


class Counting:
    """The counters of a device's append-only arrays."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kernel: Kernel | None = None

    def counter(self, array: Array) -> Array:
        """The counter: one uint32 on the device, the number of rows that were advanced."""
        scheduler = array.buffer.scheduler
        with scheduler.lock:
            history = array.appended
            if history.counter is None:
                # Created and filled now, even while a graph is recorded: it is no part of it.
                made = self._device.new_array((1,), np.dtype(np.uint32), f"counter of {array.name}")
                fill_locked(made, history.counted, None)
                history.counter = made
            settle_counter(history, None)
            counter: Array = history.counter
        return counter

    def advance(self, array: Array, rows: int, axis: int, stream: Stream | None) -> None:
        history = array.appended
        _check(array, rows, axis)
        array.buffer.scheduler.stream_or_default(stream)
        counter = self.counter(array)
        graph = capturing(array.buffer.scheduler)
        if graph is not None:
            graph.grow(Growth(array, rows, axis))
            kernel = self._kernel or self._make()
            kernel(counter=counter, rows=rows, stream=stream, threads=1)
            return
        with array.buffer.scheduler.lock:
            stop = history.counted + rows
            if array.length < stop:
                raise RoleViolation(
                    f"advance({rows}) of array {array.name!r}: {array.length} are written, not "
                    f"{stop}; append them first"
                )
            move_counter(history, stop, stream, partial(history.note_counter, stop))

    def _make(self) -> Kernel:
        self._kernel = Kernel.of_forms(
            self._device,
            _reference,
            spirv=KernelSource(_SHADERS / "advance.comp"),
            hip=KernelSource(
                _SHADERS / "advance.hip",
                signature="inout uint32 counter, uint32 rows",
                group_size=1,
            ),
        )
        return self._kernel


def rows_of(array: Array, start: int, stop: int, axis: int) -> Array:
    """Rows of an array along one of its axes."""
    return array[(slice(None),) * axis + (slice(start, stop),)]


def _check(array: Array, rows: Any, axis: Any) -> None:
    if not isinstance(rows, int) or rows < 1:
        raise InvalidValue(f"advance({rows!r}) of array {array.name!r}; it takes a number from 1")
    if not isinstance(axis, int) or not 0 <= axis < array.ndim:
        raise InvalidValue(f"axis={axis!r} of array {array.name!r}, whose shape is {array.shape}")
    if array.nbytes != array.buffer.nbytes or not array.contiguous:
        raise ArgumentError(
            f"advance() of a part of array {array.name!r}; a counter is of the whole array"
        )


def _reference(*, counter: npt.NDArray[np.uint32], rows: Any, threads: object) -> None:
    """The shader in NumPy, for the simulator."""
    counter[0] += np.uint32(rows)
