"""A typed, shaped view of bytes on a device, with NumPy's names and habits."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from penstock import accelerator
from penstock.array import transfer
from penstock.array.append_counter import move_counter
from penstock.array.buffer import Buffer
from penstock.array.host_access import check_source
from penstock.array.host_values import as_source
from penstock.array.view import show
from penstock.dtypes import Dtype, Shape, as_dtype, as_integers, as_shape
from penstock.errors import (
    ArgumentError,
    DtypeMismatch,
    InvalidValue,
    ReadOnly,
    RoleViolation,
    ShapeMismatch,
    Unsupported,
)
from penstock.handle import Closing
from penstock.ledger.hazards import Use
from penstock.ledger.roles import AppendHistory, Role
from penstock.memory.layout import Index, Layout, contiguous_strides, index_layout, region_of
from penstock.schedule.pending import Pending

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.launch.result import Result
    from penstock.memory.pool import Backing
    from penstock.schedule.stream import Stream

Host = npt.NDArray[Any]

_DLPACK_CPU = (1, 0)


@accelerator.share
class Bound:
    """An array in the memory that it has at the moment, in the words of ledger and driver."""

    __slots__ = ("backing", "place", "reading", "writing")

    def __init__(self, array: Array) -> None:
        self.backing = backing = array.buffer.backing
        self.place = (backing.memory.handle, backing.offset + array.region.lo, array.nbytes)
        self.reading: Use = (backing.history, array.buffer.read_region(array.region), False)
        self.writing: Use = (backing.history, array.region, True)


class Unbound:
    """In place of a `Bound` before the first launch."""

    backing = None


_UNBOUND: Any = Unbound()


@accelerator.share
class Array(Closing):
    """Bytes of a buffer, seen as numbers. Slices and reshapes share the buffer.

    Nothing here waits but `numpy`, `view` and what asks for values at once (`item`, `float(x)`,
    `np.asarray(x)`), and those wait for exactly the work that writes the bytes they show.
    """

    __slots__ = (
        "__weakref__", "accepted", "bound", "buffer", "contiguous", "dtype", "layout", "nbytes",
        "repeats", "region", "seen_by_host", "shape", "size",
    )  # fmt: skip

    def __init__(
        self, buffer: Buffer, layout: Layout, dtype: Dtype, *, repeats: bool = False
    ) -> None:
        self.accepted: Collection[object] = ()  # what kernels want and this array is known to be
        self.bound: Bound = _UNBOUND  # kept by `bind`
        self.seen_by_host: tuple[Backing, Host] | None = None  # kept by `host_access.host_array`
        self.buffer = buffer
        #: Whether it is from `broadcast_to`, where elements share bytes: then it is not written.
        self.repeats = repeats
        self.layout = layout
        self.dtype = dtype
        self.shape = layout.shape
        self.size = math.prod(layout.shape)
        self.nbytes = self.size * dtype.itemsize
        #: The bytes of the buffer that this array covers, and whether they are one block.
        self.region, self.contiguous = region_of(layout)

    def bind(self) -> Bound:
        """Where its bytes are now. Under the device's lock."""
        if self.bound.backing is not self.buffer.backing:
            self.bound = Bound(self)
        return self.bound

    @property
    def is_whole(self) -> bool:
        """Whether it has every byte of its buffer, in whatever order, and none twice."""
        return self.nbytes == self.buffer.nbytes and self.region == self.buffer.whole

    @property
    def device(self) -> Device:
        return self.buffer.device

    @property
    def name(self) -> str:
        """What errors and receipts call the array: the name it was made with."""
        return self.buffer.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return self.layout.strides

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("len() of a 0-d array")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise ArgumentError("iteration over a 0-d array")
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        state = ", closed" if self.buffer.closed else ""
        return f"<Array {self.name!r} {self.shape} {self.dtype} on {self.device.name}{state}>"

    # The same bytes, seen otherwise. Copies nothing, waits for nothing.

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Array:
        """A slice that shares the bytes, by NumPy's basic indexing."""
        self.buffer.check()
        return self._seen(index_layout(self.layout, index))

    def reshape(self, *shape: Any) -> Array:
        """The same bytes in another shape; one dimension may be -1."""
        self.buffer.check()
        alone = len(shape) == 1 and isinstance(shape[0], Sequence | np.ndarray)
        dims = as_integers(shape[0] if alone else shape)
        if dims.count(-1) == 1:
            rest = math.prod(n for n in dims if n != -1)
            if rest and self.size % rest == 0:
                dims = tuple(self.size // rest if n == -1 else n for n in dims)
        dims = as_shape(dims) if -1 not in dims else dims
        if -1 in dims or math.prod(dims) != self.size:
            raise ShapeMismatch(f"cannot reshape {self.shape}, {self.size} elements, to {dims}")
        self._need_contiguous("reshape")
        strides = contiguous_strides(dims, self.itemsize)
        return self._seen(self.layout._replace(shape=dims, strides=strides))

    @property
    def T(self) -> Array:  # noqa: N802
        """The same bytes with the dimensions reversed."""
        self.buffer.check()
        shape, strides = self.shape[::-1], self.strides[::-1]
        return self._seen(self.layout._replace(shape=shape, strides=strides))

    def broadcast_to(self, shape: Shape) -> Array:
        """The same bytes repeated to a larger shape, by NumPy's rules; to read from only.

        Writing it, or a slice of it, raises `ReadOnly`.
        """
        self.buffer.check()
        dims = as_shape(shape)
        try:
            strides = np.broadcast_to(np.empty(self.shape, np.uint8), dims).strides
        except ValueError as error:
            raise ShapeMismatch(f"cannot broadcast {self.shape} to {dims}") from error
        missing = len(dims) - len(self.shape)
        own = (0,) * missing + self.strides
        steps = tuple(
            0 if step == 0 and n > 1 else mine
            for step, mine, n in zip(strides, own, dims, strict=True)
        )
        layout = self.layout._replace(shape=dims, strides=steps)
        return Array(self.buffer, layout, self.dtype, repeats=True)

    def ravel(self) -> Array:
        """The same bytes in one dimension."""
        return self.reshape(-1)

    def reinterpret(self, dtype: npt.DTypeLike) -> Array:
        """The same bytes as another dtype; the last dimension changes size to match."""
        self.buffer.check()
        kind = as_dtype(dtype)
        self._need_contiguous("reinterpret")
        last = (self.shape[-1] if self.shape else 1) * self.itemsize
        if last % kind.itemsize or (not self.shape and kind.itemsize != self.itemsize):
            raise ShapeMismatch(
                f"cannot see rows of {last} bytes as {kind}, whose size is {kind.itemsize}"
            )
        dims = (*self.shape[:-1], last // kind.itemsize) if self.shape else ()
        strides = contiguous_strides(dims, kind.itemsize)
        return self._seen(Layout(self.layout.offset, dims, strides, kind.itemsize), kind)

    def pitched(self, rows: int, width: int, pitch: int, offset: int = 0) -> Array:
        """Rows of `width` bytes, `pitch` bytes from one to the next, from byte `offset` on.

        A uint8 array of shape (rows, width); what it reads and writes is exactly those bytes.
        """
        self.buffer.check()
        self._need_contiguous("pitched")
        rows, width, pitch, offset = as_integers((rows, width, pitch, offset))
        end = offset + (rows - 1) * pitch + width
        if min(rows, width) < 1 or pitch < width or offset < 0 or end > self.nbytes:
            raise InvalidValue(
                f"{rows} rows of {width} bytes at pitch {pitch} from byte {offset} do not fit "
                f"the {self.nbytes} bytes of array {self.name!r}"
            )
        layout = Layout(self.layout.offset + offset, (rows, width), (pitch, 1), 1)
        return self._seen(layout, np.dtype(np.uint8))

    def _seen(self, layout: Layout, dtype: Dtype | None = None) -> Array:
        kind = self.dtype if dtype is None else dtype
        return Array(self.buffer, layout, kind, repeats=self.repeats)

    def check_written(self, what: str) -> None:
        """Raise unless the elements have bytes of their own."""
        if self.repeats:
            raise ReadOnly(
                f"{what} writes array {self.name!r} through broadcast_to(), where elements share "
                "bytes; write the array itself, or a copy() of the broadcast"
            )

    # Comparisons. Identity would be taken for a comparison of values, silently.

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> NoReturn:
        self._not_compared("==", other)

    def __ne__(self, other: object) -> NoReturn:
        self._not_compared("!=", other)

    def __lt__(self, other: object) -> NoReturn:
        self._not_compared("<", other)

    def __le__(self, other: object) -> NoReturn:
        self._not_compared("<=", other)

    def __gt__(self, other: object) -> NoReturn:
        self._not_compared(">", other)

    def __ge__(self, other: object) -> NoReturn:
        self._not_compared(">=", other)

    def __contains__(self, value: object) -> NoReturn:
        raise ArgumentError(
            f"{type(value).__name__} in array {self.name!r}: arrays do not compare their elements; "
            "use value in x.numpy()"
        )

    def _not_compared(self, operation: str, other: object) -> NoReturn:
        one = f"x.item() {operation} ... or " if self.size == 1 else ""
        raise ArgumentError(
            f"array {self.name!r} {operation} {type(other).__name__}: arrays do not compare their "
            f"elements; use {one}x.numpy() {operation} ..., and 'is' to ask whether two names are "
            "the same array, or for None"
        )

    # Transfers.

    def write(
        self, source: npt.ArrayLike, stream: Stream | None = None, borrow: bool = False
    ) -> Pending[None]:
        """Put `source` into the array, in stream order.

        Blocks only where it meets a run-ahead bound (docs/performance.md).
        When the call returns, the caller may change `source`; with `borrow=True`, only after the
        returned `Pending` is done, which saves a copy when the array is busy. A large write that
        raises (`OutOfMemory`, Ctrl-C) may have been made in part; make it again.
        """
        self.check_written("write()")
        return transfer.write(self, source, stream, borrow)

    def read(
        self, stream: Stream | None = None, out: Host | None = None, *, force: bool = False
    ) -> Pending[Host]:
        """The content at this point of the stream, on its way to the host.

        Blocks only where it meets a run-ahead bound (docs/performance.md).
        The result is a NumPy array of its own, or `out`. `force` reads scratch, too.
        """
        self._check_read("read()", force)
        return transfer.read(self, stream, out)

    def numpy(self, *, force: bool = False) -> Host:
        """The content as a NumPy array of its own; waits for the work that writes it."""
        self._check_read("numpy()", force)
        return transfer.read_now(self)

    def view(self, mode: Literal["r", "w", "rw"] = "r", *, force: bool = False) -> Host:
        """A NumPy array over the device's own bytes: no copy, after exactly the waits it needs.

        A held view is stable: the device does not write what a view shows (it gets a fresh
        backing, or the call raises `ViewHeld`), and does not touch what a writable view shows.
        Writes through one show in other views of the same thread; other threads are refused.
        Drop the array and its slices to end the view.
        """
        if mode != "r":
            self.check_written(f"view({mode!r})")
        if mode != "w":
            self._check_read("view()", force)
        undo: list[Callable[[], None]] = []
        try:
            return show(self, mode, undo)
        except BaseException:
            for each in undo:
                each()
            raise

    def copy_from(self, source: Array, stream: Stream | None = None) -> Pending[None]:
        """Copy another array of the same shape and dtype into this one, in stream order."""
        self.check_written("copy_from()")
        return transfer.copy(self, source, stream)

    def fill(self, value: Any, stream: Stream | None = None) -> Pending[None]:
        """Set every element to `value`, in stream order."""
        self.check_written("fill()")
        return transfer.fill(self, value, stream)

    def copy(self, stream: Stream | None = None, *, name: str = "") -> Array:
        """A contiguous array of its own with the same content, in stream order."""
        made = self.device.empty(self.shape, self.dtype, name=name)
        made.copy_from(self, stream)
        return made

    def __setitem__(self, index: Index | tuple[Index, ...], value: Any) -> None:
        part = self[index]
        if isinstance(value, Array):
            same = value.shape == part.shape
            part.copy_from(value if same else value.broadcast_to(part.shape))
            return
        if isinstance(value, int | float | complex | np.generic):
            part.fill(value)
            return
        check_source(self.buffer.scheduler, value)
        source = as_source(value, self.dtype)
        if source.shape == () and not isinstance(value, np.ndarray):
            part.fill(value)
            return
        try:
            source = np.broadcast_to(source, part.shape)
        except ValueError as error:
            raise ShapeMismatch(
                f"cannot put shape {source.shape} into shape {part.shape}"
            ) from error
        part.write(source)

    # Roles.

    @property
    def role(self) -> Role:
        """The contract that the whole buffer is under: see `penstock.ledger.roles`."""
        return self.buffer.role

    def seal(self) -> Array:
        """Make the buffer a weight: from now on nothing may write it. The array itself.

        Raises `ViewHeld` while a writable view of it is alive.
        """
        with self.buffer.scheduler.lock:
            self.buffer.check()
            self.buffer.seal()
        return self

    @property
    def length(self) -> int:
        """How much of an append-only array is written: whole rows, from the first on."""
        history = self.appended
        start = self.region.lo
        first = next(
            (written for written in history.written if written.lo <= start < written.hi), None
        )
        if first is None:
            return 0
        for count, stride in zip(self.shape, self.strides, strict=True):
            if history.pitch and count * stride == history.pitch:  # appended as a[:, length]
                return first.width // stride if first.pitch else count
        return min(len(self), (first.hi - start) // max(1, self.strides[0]))

    @property
    def counter(self) -> Array:
        """How much of an append-only array the device was told of: one uint32 in its memory."""
        return self.device.counting.counter(self)

    def advance(self, rows: int = 1, *, axis: int = 0, stream: Stream | None = None) -> None:
        """Move the counter of an append-only array on, past rows that were appended to it.

        While a graph is recorded: its kernels append so many rows at every replay, from
        `counter` on, and the counter moves on at this place.
        """
        self.device.counting.advance(self, rows, axis, stream)

    def reset(self, stream: Stream | None = None) -> None:
        """Let an append-only array be written from its start again; waits for nothing."""
        scheduler = self.buffer.scheduler
        scheduler.stream_or_default(stream)
        with scheduler.lock:
            self.buffer.check()
            history = self.appended
            if history.counter is None:
                history.reset()
            else:
                move_counter(history, 0, stream, history.reset)

    @property
    def appended(self) -> AppendHistory:
        """The ledger page of an append-only array."""
        history = self.buffer.backing.history
        if not isinstance(history, AppendHistory):
            raise RoleViolation(f"array {self.name!r} has the role {self.role!r}, not 'append'")
        return history

    def _check_read(self, what: str, force: bool) -> None:
        if not force:
            self.buffer.check_host_read(self.region, what)

    # Other libraries.

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The bytes themselves for another library, as if by `view()`; with `copy`, a copy.

        A library that cannot be told that memory is read-only gets a writable view, and the device
        keeps away from the bytes until it lets go of them.
        """
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"array {self.name!r} can be exported for the CPU only")
        if copy:
            return self.numpy().__dlpack__(max_version=max_version)
        shown = self.view("r" if max_version is not None else "rw")
        return shown.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CPU

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as its content, which unpickles as a NumPy array: a device does not travel."""
        return _as_it_is, (self.numpy(),)

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return self.copy()

    def __str__(self) -> str:
        """The values, as NumPy prints them; of scratch, which has none, what it is."""
        shown = self.buffer.policy.host_reads and not self.closed
        return str(self.numpy()) if shown else repr(self)

    # Reductions: of all elements, with NumPy's dtypes and rules. The value is on its way, and
    # nothing waits before it is used. The arguments of NumPy's that are refused are there for
    # np.sum(x) and its like, which pass them.

    def sum(
        self, axis: None = None, dtype: None = None, out: None = None, *,
        stream: Stream | None = None,
    ) -> Result:  # fmt: skip
        """The sum of all elements; of integers in 64 bits, of float16 in float32."""
        return self._reduce("sum", stream, axis=axis, dtype=dtype, out=out)

    def mean(
        self, axis: None = None, dtype: None = None, out: None = None, *,
        stream: Stream | None = None,
    ) -> Result:  # fmt: skip
        """The mean of all elements; of integers as float64."""
        return self._reduce("mean", stream, axis=axis, dtype=dtype, out=out)

    def min(self, axis: None = None, out: None = None, *, stream: Stream | None = None) -> Result:
        """The smallest element, or NaN if there is one."""
        return self._reduce("min", stream, axis=axis, out=out)

    def max(self, axis: None = None, out: None = None, *, stream: Stream | None = None) -> Result:
        """The largest element, or NaN if there is one."""
        return self._reduce("max", stream, axis=axis, out=out)

    def argmin(
        self, axis: None = None, out: None = None, *, stream: Stream | None = None
    ) -> Result:
        """The index of the first smallest element, or of the first NaN, in the flat array."""
        return self._reduce("argmin", stream, axis=axis, out=out)

    def argmax(
        self, axis: None = None, out: None = None, *, stream: Stream | None = None
    ) -> Result:
        """The index of the first largest element, or of the first NaN, in the flat array."""
        return self._reduce("argmax", stream, axis=axis, out=out)

    def any(self, axis: None = None, out: None = None, *, stream: Stream | None = None) -> Result:
        """Whether any element is true."""
        return self._reduce("any", stream, axis=axis, out=out)

    def all(self, axis: None = None, out: None = None, *, stream: Stream | None = None) -> Result:
        """Whether all elements are true."""
        return self._reduce("all", stream, axis=axis, out=out)

    def dot(self, y: Array, *, stream: Stream | None = None) -> Result:
        """The inner product with another array of one dimension and the same dtype."""
        return self.device.reductions.dot(self, y, stream)

    def _reduce(self, operation: str, stream: Stream | None, **refused: Any) -> Result:
        for name, value in refused.items():
            if value is not None:
                raise Unsupported(
                    f"{operation} with {name}={value!r}: a device reduces whole arrays; use "
                    f"x.numpy().{operation}({name}=…), or a kernel"
                )
        return self.device.reductions.reduce(operation, self, stream=stream)

    # Values at once.

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Host:
        """What `np.asarray(x)` gives: a copy; with `copy=False`, a view like `view("r")`."""
        if copy is False:
            if dtype is not None and np.dtype(dtype) != self.dtype:
                raise InvalidValue(
                    f"array {self.name!r} is {self.dtype}; as {np.dtype(dtype)} it is a copy, "
                    "which copy=False forbids"
                )
            return self.view("r")
        content = self.numpy()
        return content if dtype is None else content.astype(dtype, copy=False)

    def item(self, *index: Any) -> Any:
        """The one element, or the one at `index`, as a Python number."""
        if index:
            return self[index].item()
        if self.size != 1:
            raise ShapeMismatch(f"only an array of one element has an item; this has {self.size}")
        return self.numpy().item()

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeMismatch(
                f"the truth of an array of {self.size} elements is ambiguous; "
                "take its values with numpy() first"
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        value = self.item()
        if not isinstance(value, int):
            raise DtypeMismatch(f"an array of {self.dtype} is not an index")
        return value

    def __int__(self) -> int:
        return int(self.item())

    # The end.

    def close(self) -> None:
        """Give the buffer back, for all arrays that share it; work in flight still finishes."""
        self.buffer.close()

    @property
    def closed(self) -> bool:
        return self.buffer.closed

    def _need_contiguous(self, what: str) -> None:
        if not self.contiguous:
            raise ShapeMismatch(
                f"{what} needs a contiguous array; take a contiguous copy with copy() first"
            )


def _as_it_is(content: Host) -> Host:
    return content
