"""An opened GPU: memory, queues, capabilities. All other objects are made through it."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.array import adoption, transfer
from penstock.array.array import Array
from penstock.array.buffer import Buffer
from penstock.array.host_access import check_source
from penstock.array.host_values import as_array, default_dtype
from penstock.driver import list_devices, open_device
from penstock.driver.protocol import DeviceInfo, OpenOptions, Reference
from penstock.dtypes import Dtype, Shape, as_dtype, as_name, as_shape
from penstock.errors import InvalidValue, NoDevice, OutOfMemory, Timeout
from penstock.graph.append_counters import Counting
from penstock.graph.graph import Graph
from penstock.handle import Block, Closing
from penstock.launch.kernel import Kernel
from penstock.launch.scratch import Scratch
from penstock.ledger.hazards import Lane
from penstock.ledger.roles import POLICIES, Role, policy_of
from penstock.memory.layout import Layout, contiguous_strides
from penstock.memory.pool import MemoryStats
from penstock.ops.axes import Axes
from penstock.ops.elementwise import Elementwise
from penstock.ops.indexing import Indexing
from penstock.ops.moves import Moves
from penstock.ops.operations import Operations
from penstock.ops.products import Products
from penstock.ops.ramps import Ramps
from penstock.ops.random import Random
from penstock.ops.reductions import Reductions
from penstock.ops.scans import Scans
from penstock.ops.selection import Selection
from penstock.ops.sets import Sets
from penstock.ops.sorting import Sorting
from penstock.schedule.scheduler import Scheduler
from penstock.schedule.stream import Stream
from penstock.shader.source import KernelSource
from penstock.tracing import events
from penstock.xp.namespace import Namespace

_opened = itertools.count(1)


def devices(driver: str = "vulkan") -> list[DeviceInfo]:
    """Every device of a driver ("vulkan" or "hip"): name, kind, memory, uma, limits.

    Empty if there is no device, loader or driver; then `Device()` says what to install.
    """
    try:
        return list_devices(driver)
    except NoDevice:
        return []


class Device(Closing):
    """An opened device.

    `which` is a part of its name ("llvmpipe"), its number in `devices()`, or None for the best: a
    GPU if there is one, else the CPU driver that knows most types. `transfers` forces the path of
    transfers, see `penstock.array.transfer`. `validate` turns on the Khronos validation layer.
    `clear_memory` fills memory with zeros before an array gets it, so that no array shows another's
    old content. `driver="hip"` is AMD's own runtime, for which kernels are written in HIP C++.
    `driver="sim"` is the simulator: kernels need a `reference`, `seed` determines the order of
    events, and `fault` may make the n-th call of any of its methods fail.
    """

    def __init__(
        self,
        which: str | int | None = None,
        *,
        driver: str = "vulkan",
        transfers: str = "auto",
        validate: bool = False,
        clear_memory: bool = False,
        seed: int = 0,
        fault: Callable[[str, int], BaseException | None] | None = None,
    ) -> None:
        modes = (*transfer.MODES, transfer.FIXED)
        if transfers not in modes:
            raise InvalidValue(f"transfers={transfers!r}; choose one of {', '.join(modes)}")
        mapped = transfers != "unmapped"
        opened = open_device(driver, OpenOptions(which, _notify, validate, mapped, seed, fault))
        #: Counts the devices opened by this process; never reused, unlike `id(device)`.
        self.number = next(_opened)
        self.info: DeviceInfo = opened.info
        self.name = self.info.name
        try:
            self.scheduler = Scheduler(self, opened, transfers, clear_memory=clear_memory)
        except BaseException:
            opened.close()
            raise
        self.default_stream = self.stream(name="default stream")
        self.reductions = Reductions(self)
        self.moves = Moves(self)
        self.selection = Selection(self, self.moves.programs)
        self.indexing = Indexing(self, self.moves, self.selection)
        programs = self.moves.programs
        self.ramps = Ramps(self, programs)
        self.sorting = Sorting(self, programs, self.moves, self.selection)
        self.sets = Sets(self, programs, self.moves, self.selection, self.indexing, self.sorting)
        self.operations = Operations(self)
        self.axes = Axes(self)
        self.scans = Scans(self)
        self.products = Products(self)
        #: Random numbers on this device: `rng = dev.random.default_rng(seed)`.
        self.random = Random(self)
        #: The Array API standard on this device: `dev.xp.sin(x)`, `dev.xp.zeros(3)`, …
        self.xp = Namespace(self)
        self.counting = Counting(self)

    # Arrays.

    def empty(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = np.float32,
        *,
        name: str = "",
        role: Role = "generic",
    ) -> Array:
        """An array of undefined content. `role` is a contract: see `penstock.ledger.roles`."""
        made = self._new(shape, dtype, name, role, at_work=True)
        made.buffer.take_role(role)
        return made

    def array(
        self,
        source: npt.ArrayLike,
        dtype: npt.DTypeLike | None = None,
        *,
        name: str = "",
        role: Role = "generic",
    ) -> Array:
        """A new array with a copy of `source`. With `role="weight"` it is sealed at once.

        Python's floats become float32, unless `dtype` says otherwise; integers become int64.
        """
        check_source(self.scheduler, source)
        data = as_array(source, default_dtype(source) if dtype is None else as_dtype(dtype))
        made = self._new(data.shape, data.dtype, name, role)
        made.write(data)
        made.buffer.take_role(role)
        if made.buffer.policy.sealed_with_content:
            made.seal()
        return made

    def asarray(self, source: Array | npt.ArrayLike) -> Array:
        """`source` itself if it is an array of this device, else a new array with a copy."""
        return source if isinstance(source, Array) and source.device is self else self.array(source)

    def full(
        self,
        shape: Shape,
        value: Any,
        dtype: npt.DTypeLike | None = None,
        *,
        name: str = "",
        role: Role = "generic",
    ) -> Array:
        """An array filled with one value; a Python float makes it float32."""
        kind = dtype if dtype is not None else default_dtype(value) or np.asarray(value).dtype
        made = self._new(shape, kind, name, role, at_work=True)
        made.fill(value)
        made.buffer.take_role(role)
        return made

    def zeros(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = np.float32,
        *,
        name: str = "",
        role: Role = "generic",
    ) -> Array:
        """A new array of zeros."""
        kind = as_dtype(dtype)
        # In a record, text must be empty and not "0".
        nothing: Any = 0 if kind.names is None else np.zeros((), kind)[()]
        return self.full(shape, nothing, kind, name=name, role=role)

    def ones(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = np.float32,
        *,
        name: str = "",
        role: Role = "generic",
    ) -> Array:
        """A new array of ones."""
        return self.full(shape, 1, as_dtype(dtype), name=name, role=role)

    def empty_like(
        self, x: Array | npt.NDArray[Any], dtype: npt.DTypeLike | None = None, *, name: str = ""
    ) -> Array:
        """A new array of the shape and dtype of `x`; its content is undefined."""
        return self.empty(x.shape, x.dtype if dtype is None else dtype, name=name)

    def zeros_like(
        self, x: Array | npt.NDArray[Any], dtype: npt.DTypeLike | None = None, *, name: str = ""
    ) -> Array:
        """A new array of zeros, of the shape and dtype of `x`."""
        return self.zeros(x.shape, x.dtype if dtype is None else dtype, name=name)

    def ones_like(
        self, x: Array | npt.NDArray[Any], dtype: npt.DTypeLike | None = None, *, name: str = ""
    ) -> Array:
        """A new array of ones, of the shape and dtype of `x`."""
        return self.ones(x.shape, x.dtype if dtype is None else dtype, name=name)

    def full_like(self, x: Array | npt.NDArray[Any], value: Any, *, name: str = "") -> Array:
        """A new array of one value, of the shape and dtype of `x`."""
        return self.full(x.shape, value, x.dtype, name=name)

    def new_result(
        self, shape: Shape, dtype: npt.DTypeLike, stream: Stream | None = None, *, name: str = ""
    ) -> Array:
        """An array that work on the stream is about to write, all of it; the host is not."""
        lane = self.scheduler.stream_or_default(stream).lane
        return self._new(shape, dtype, name, "generic", result_of=lane)

    def _new(
        self, shape: Shape, dtype: npt.DTypeLike, name: str, role: Role, *, at_work: bool = False,
        result_of: Lane | None = None,
    ) -> Array:  # fmt: skip
        """An array in memory that suits the role; the caller applies the role itself.

        With `at_work`, scratch may get memory that work in flight still uses, and so may the result
        of work on a lane. That does not suit an array that the host writes next, which would need a
        fresh backing at once. If memory runs out, waits for what was dropped in flight.
        """
        # Before the lock is taken: a dimension may be a result or an array, whose value is awaited.
        dims, kind = as_shape(shape), as_dtype(dtype)
        role, name = policy_of(role).role, as_name(name)
        scheduler = self.scheduler
        for last in (False, True):
            try:
                with scheduler.lock:
                    scheduler.check()
                    return self.new_array(
                        dims, kind, name, role, at_work=at_work, result_of=result_of
                    )
            except OutOfMemory:
                if last or not self._wait_for_dropped():
                    raise
        raise AssertionError

    def _wait_for_dropped(self) -> bool:
        """Wait for the work that uses memory of dropped arrays; returns whether there was any."""
        scheduler = self.scheduler
        with scheduler.lock:
            scheduler.drain()
            points = scheduler.pool.points_of_dropped()
            for lane, value in scheduler.host_pool.points_of_dropped().items():
                points[lane] = max(value, points.get(lane, 0))
        why = "memory of dropped arrays in flight, and there is no other"
        return bool(points) and scheduler.wait_for(points, None, why, path="bound")

    def new_array(
        self, dims: tuple[int, ...], kind: Dtype, name: str, role: Role = "generic", *,
        at_work: bool = False, result_of: Lane | None = None,
    ) -> Array:  # fmt: skip
        """`_new`, for a caller that holds the device's lock."""
        nbytes = kind.itemsize * math.prod(dims)
        layout = Layout(0, dims, contiguous_strides(dims, kind.itemsize), kind.itemsize)
        scheduler = self.scheduler
        scheduler.drain()
        policy = POLICIES[role]
        pool = scheduler.host_pool if policy.host_cached else scheduler.pool
        if at_work and policy.reused_in_flight:
            backing = pool.allocate_scratch(nbytes)
        elif result_of is not None:
            # Work of another lane may wait for a view, whose holder may wait for this result.
            others = not self.scheduler.views.held
            backing = pool.allocate_result(nbytes, result_of, others=others)
        else:
            backing = pool.allocate(nbytes, for_device=at_work and not policy.published)
        buffer = Buffer(scheduler, backing, nbytes, name or scheduler.new_name())
        return Array(buffer, layout, kind)

    def adopt(self, source: npt.NDArray[Any], *, name: str = "") -> Array:
        """An array over the caller's memory, used in place: no copy, now or later.

        Read the memory through the array (`view`, `numpy`), or after the work on it is done. The
        NumPy array is kept alive as long as the device uses it. Writes that NumPy itself makes to
        it are not checked, not even if it is a sealed weight. Raises `CannotAdopt` if the device
        cannot use the memory in place; an array from `host_empty` always works.
        """
        return adoption.adopt(self, source, as_name(name))

    def host_empty(self, shape: Shape, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """A NumPy array of undefined content that this device can always adopt."""
        return adoption.host_empty(self, as_shape(shape), as_dtype(dtype))

    def from_dlpack(self, source: Any, *, name: str = "") -> Array:
        """Another library's array (a PyTorch tensor, …) as an array of this device.

        Its memory is used in place if the device can, as by `adopt`; else it is copied once, and
        the receipt says so.
        """
        return adoption.from_dlpack(self, source, as_name(name))

    def from_file(
        self,
        path: str | os.PathLike[str],
        dtype: npt.DTypeLike,
        shape: Shape,
        offset: int = 0,
        *,
        name: str = "",
    ) -> Array:
        """A read-only array over a part of a file: mapped and used in place, not copied.

        If the device cannot import the file's pages, the bytes are copied once, and the receipt
        says so. The file must not shrink while it is in use.
        """
        kind, dims = as_dtype(dtype), as_shape(shape)
        return adoption.from_file(self, Path(path), kind, dims, offset, as_name(name))

    # Work.

    def kernel(
        self,
        source: str | bytes | os.PathLike[str],
        *,
        name: str = "",
        defines: Mapping[str, str | int | float] | None = None,
        constants: Mapping[str, Any] | None = None,
        reference: Reference | None = None,
        signature: str | None = None,
        group_size: int | tuple[int, ...] | None = None,
        formats: Mapping[str, str] | None = None,
    ) -> Kernel:
        """A kernel from GLSL text, SPIR-V bytes, or a file of either.

        `defines` are preprocessor macros for GLSL, `constants` are specialisation constants.
        `formats` are the formats of texel buffers that declare none, such as `{"w": "rgba32ui"}`;
        without it, each element of the array is a texel.
        With HIP, the source is HIP C++ text, a code object, or a file of either, and the arguments
        are declared: `signature="in float32 x, inout float32 y, float32 a, uint32 n"`, and
        `group_size=` if not 256; see `penstock.shader.signature`.
        `reference` is a Python function that the simulator runs instead of the kernel. It gets, by
        name, the arrays as flat NumPy arrays to change in place, the scalars, and `threads`.
        """
        made = KernelSource(
            source, name, defines or {}, constants or {}, signature, group_size, formats or {}
        )
        return Kernel(self, made, reference)

    def elementwise(
        self,
        operation: str,
        parameters: str,
        *,
        name: str = "",
        preamble: str = "",
        reference: Reference | None = None,
    ) -> Elementwise:
        """A kernel given by its operation on element `i` of `n`; called without `threads=`.

        `saxpy = dev.elementwise("y[i] = a * x[i] + y[i]", "in float32 x, inout float32 y, float32
        a")`, then `saxpy(x, y, 2.0)`. `preamble` is GLSL placed before it, such as functions.
        `reference` is for the simulator: a Python function of the same parameters, which changes
        the flat arrays in place.
        """
        return Elementwise(
            self, operation, parameters, name=name, preamble=preamble, reference=reference
        )

    def scratch(self, stream: Stream | None = None, *, name: str = "scratch") -> Scratch:
        """Memory for intermediate values of one stream, kept between launches, growing on demand.

        Nothing is allocated until it is needed.
        """
        on, name = self.scheduler.stream_or_default(stream), as_name(name)
        with self.scheduler.lock:
            self.scheduler.check()
            return Scratch(on, name)

    def record(self, **parameters: Any) -> Block[Graph]:
        """Record launches, copies and fills without executing them: `with dev.record() as g:`.

        Then `g.replay()` executes them all, as one command. Parameters may change from replay to
        replay: an array (`dev.record(x=x)`, then `g.replay(x=other)`), or a number
        (`dev.record(a=2.0)`, called with `a=g["a"]`, then `g.replay(a=3.0)`). Everything else is
        fixed, and `repr(g)` says what. Only the calling thread's work is recorded.
        """
        return Graph(self, parameters).recording()

    def stream(self, *, name: str = "") -> Stream:
        """A new stream: an ordered queue of work, independent of the others."""
        name = as_name(name)
        with self.scheduler.lock:
            self.scheduler.check()
            return self.scheduler.new_stream(name)

    def synchronize(self, timeout: float | None = None) -> None:
        """Block until everything on every stream is done."""
        scheduler = self.scheduler
        with scheduler.lock:
            scheduler.check()
            points: dict[Lane, int] = scheduler.everything_recorded()
        if not scheduler.wait_for(points, timeout, "synchronize() of the whole device"):
            raise Timeout(f"{self.name} was not done within {timeout} s; the work continues")

    # State.

    @property
    def messages(self) -> list[str]:
        """Errors that the driver found: races (simulator), messages of the validation layer."""
        return self.scheduler.driver.messages

    @property
    def memory(self) -> MemoryStats:
        """How much memory is reserved, used and free."""
        with self.scheduler.lock:
            self.scheduler.check()
            return self.scheduler.memory_stats()

    def trim(self) -> int:
        """Return unused memory of the pools to the driver; returns the number of bytes."""
        with self.scheduler.lock:
            self.scheduler.check()
            return self.scheduler.trim()

    @property
    def closed(self) -> bool:
        return self.scheduler.closed

    def close(self) -> None:
        """Finish all work, then release everything. Safe to call twice.

        NumPy arrays that show the device's memory stay valid; that memory is released when the last
        of them is gone. If work does not end within 30 s, nothing is released: it may still write.
        """
        self.scheduler.shutdown.close()

    def __del__(self) -> None:
        # Arrays, events and pending values refer to the device, so none is left that could use it.
        scheduler = getattr(self, "scheduler", None)
        if scheduler is not None:
            scheduler.shutdown.close()

    if not TYPE_CHECKING:  # a type checker would take it for every name

        def __getattr__(self, name: str) -> Any:
            """Names that `dev.xp` has: the error says so."""
            found = name[:1] != "_" and hasattr(Namespace, name)
            raise AttributeError(
                f"'Device' object has no attribute {name!r}"
                f"{f'; it is dev.xp.{name}' if found else ''}",
                name=name, obj=self,
            )  # fmt: skip

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Device #{self.number} {self.name!r} ({self.info.kind}){state}>"


def _notify(what: str, nbytes: int, start: float = 0.0) -> None:
    """Put an allocation of the driver on the receipt; of kind "clock" if it is for timestamps."""
    if events.active:
        kind = "clock" if what.startswith("clock: ") else "allocation"
        events.emit(kind, what, nbytes=nbytes, start=start, seconds=events.since(start))
