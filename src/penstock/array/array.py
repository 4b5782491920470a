"""A typed, shaped view of bytes on a device, with NumPy's names and semantics."""

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
from penstock.driver.protocol import PLACE
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
from penstock.memory.texel_views import KeptView
from penstock.schedule.pending import Pending
from penstock.shader.texels import format_named

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.launch.result import Result
    from penstock.memory.pool import Backing
    from penstock.schedule.stream import Stream

Host = npt.NDArray[Any]

_DLPACK_CPU = (1, 0)


@accelerator.share
class Bound:
    """An array's current backing, and its bytes there as the driver and the ledger take them."""

    __slots__ = ("backing", "place", "reading", "texels", "writing")

    def __init__(self, array: Array) -> None:
        self.backing = backing = array.buffer.backing
        self.place = PLACE.pack(
            backing.memory.handle, backing.offset + array.region.lo, array.nbytes
        )
        self.reading: Use = (backing.history, array.buffer.read_region(array.region), False)
        self.writing: Use = (backing.history, array.region, True)
        #: By format, or "" for the one that follows from the dtype: the bytes as a texel buffer,
        #: and the view, which is kept alive. Replaced, not changed.
        self.texels: dict[str, tuple[bytes, KeptView]] = _NO_TEXELS


class Unbound:
    """Stands for the `Bound` of an array that was never bound."""

    backing = None


_UNBOUND: Any = Unbound()
_NO_TEXELS: dict[str, tuple[bytes, KeptView]] = {}


@accelerator.share
class Array(Closing):
    """Bytes of a buffer, interpreted as numbers. Slices and reshapes share the buffer.

    Only `numpy`, `view` and what needs values at once (`item`, `float(x)`, `np.asarray(x)`) wait,
    and only for the work that writes the bytes in question.
    """

    __slots__ = (
        "__weakref__", "accepted", "bound", "buffer", "contiguous", "dtype", "layout", "lead",
        "nbytes", "repeats", "region", "seen_by_host", "shape", "size",
    )  # fmt: skip

    def __init__(
        self, buffer: Buffer, layout: Layout, dtype: Dtype, *, repeats: bool = False
    ) -> None:
        self.accepted: Collection[object] = ()  # `KernelParameter.wants` that this array satisfies
        self.bound: Bound = _UNBOUND  # cached by `bind`
        self.seen_by_host: tuple[Backing, Host] | None = None  # cached by `host_access.host_array`
        self.buffer = buffer
        #: Whether it is from `broadcast_to`, where elements share bytes: then it is read-only.
        self.repeats = repeats
        self.layout = layout
        self.lead = 0  # bytes in front of it that its view as a texel buffer starts with
        self.dtype = dtype
        self.shape = layout.shape
        self.size = math.prod(layout.shape)
        self.nbytes = self.size * dtype.itemsize
        #: The bytes of the buffer that this array covers, and whether they are one block.
        self.region, self.contiguous = region_of(layout)

    def bind(self) -> Bound:
        """Its bytes in the current backing. The caller holds the device's lock."""
        if self.bound.backing is not self.buffer.backing:
            self.bound = Bound(self)
        return self.bound

    @property
    def is_whole(self) -> bool:
        """Whether it covers every byte of its buffer exactly once, in any order."""
        return self.nbytes == self.buffer.nbytes and self.region == self.buffer.whole

    @property
    def device(self) -> Device:
        return self.buffer.device

    @property
    def name(self) -> str:
        """The name it was made with, which errors and receipts use."""
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

    # Other arrays over the same bytes. Copies nothing, waits for nothing.

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
        """The same bytes repeated to a larger shape, by NumPy's rules. Read-only.

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
                f"cannot reinterpret rows of {last} bytes as {kind}, whose size is {kind.itemsize}"
            )
        dims = (*self.shape[:-1], last // kind.itemsize) if self.shape else ()
        strides = contiguous_strides(dims, kind.itemsize)
        return self._seen(Layout(self.layout.offset, dims, strides, kind.itemsize), kind)

    def texels(self, texel: str) -> tuple[Array, int]:
        """The same bytes for a texel buffer of a format, and the index of their first texel.

        A device lets a texel buffer start at multiples of `device.info.limits["texel_alignment"]`
        bytes only. So the texel buffer of the array that this returns may start before it: `w,
        first = x.texels("rgba32ui")`, then `kernel(w=w, first=first, …)`, and texel `first + i` is
        texel `i` of `x`. The kernel must not touch texels before `first`. As another dtype is
        needed for some formats, the array is one of the format's dtype, in one dimension.
        """
        self.buffer.check()
        found = format_named(texel, "texels()")
        self._need_contiguous("texels")
        alignment: Any = self.device.info.limits.get("texel_alignment")
        if alignment is None:
            raise Unsupported(f"{self.device.name} has no texel buffers; bind the array itself")
        lead = (self.buffer.backing.offset + self.region.lo) % alignment
        if lead % found.nbytes or self.nbytes % found.nbytes:
            raise ShapeMismatch(
                f"array {self.name!r} has {self.nbytes:,} bytes, from byte {self.region.lo:,} of "
                f"its buffer on; that is not whole texels of {found.nbytes} bytes ({texel}). Slice "
                "it at such multiples"
            )
        size = found.dtype.itemsize
        layout = Layout(self.region.lo, (self.nbytes // size,), (size,), size)
        made = self._seen(layout, found.dtype)
        made.lead = lead
        return made, lead // found.nbytes

    def pitched(self, rows: int, width: int, pitch: int, offset: int = 0) -> Array:
        """Rows of `width` bytes, `pitch` bytes from one to the next, starting at byte `offset`.

        A uint8 array of shape (rows, width). Accesses through it count for exactly those bytes.
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
        """Raise if elements share bytes, as after `broadcast_to`."""
        if self.repeats:
            raise ReadOnly(
                f"{what} writes array {self.name!r} through broadcast_to(), where elements share "
                "bytes; write the array itself, or a copy() of the broadcast"
            )

    # Comparisons raise: Python's default, identity, would pass for a comparison of values.

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
        """Copy `source` into the array, in stream order.

        Blocks only at a run-ahead bound (docs/performance.md).
        When the call returns, the caller may change `source`; with `borrow=True`, only after the
        returned `Pending` is done, which saves a copy when the array is busy. A large write that
        raises (`OutOfMemory`, Ctrl-C) may have been made in part; make it again.
        """
        self.check_written("write()")
        return transfer.write(self, source, stream, borrow)

    def read(
        self, stream: Stream | None = None, out: Host | None = None, *, force: bool = False
    ) -> Pending[Host]:
        """Read the content as of this point of the stream; `result()` waits for it.

        Blocks only at a run-ahead bound (docs/performance.md).
        The result is a new NumPy array, or `out`. `force` reads scratch, too.
        """
        self._check_read("read()", force)
        return transfer.read(self, stream, out)

    def numpy(self, *, force: bool = False) -> Host:
        """The content as a new NumPy array. Blocks until the work that writes it is done."""
        self._check_read("numpy()", force)
        return transfer.read_now(self)

    def view(self, mode: Literal["r", "w", "rw"] = "r", *, force: bool = False) -> Host:
        """A NumPy array over the device's own bytes, without a copy.

        Blocks until the work that conflicts with it is done. A live view is stable: device work
        does not write the bytes it shows (that work gets a fresh backing, or raises `ViewHeld`),
        and does not even read those of a writable view. Writes through one show in other views of
        the same thread; other threads get `ViewHeld`. Drop the array and its slices to end it.
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
        """A new contiguous array with the same content, copied in stream order."""
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
        """The contract of the whole buffer: see `penstock.ledger.roles`."""
        return self.buffer.role

    def seal(self) -> Array:
        """Make the buffer a weight, which nothing may write from now on; returns the array itself.

        Raises `ViewHeld` while a writable view of it is alive.
        """
        with self.buffer.scheduler.lock:
            self.buffer.check()
            self.buffer.seal()
        return self

    @property
    def length(self) -> int:
        """How many whole rows of an append-only array are written, counted from the first."""
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
        """The length of an append-only array as the device reads it: one uint32 in its memory."""
        return self.device.counting.counter(self)

    def advance(self, rows: int = 1, *, axis: int = 0, stream: Stream | None = None) -> None:
        """Advance the counter of an append-only array past `rows` rows that were appended to it.

        While a graph is recorded: every replay appends `rows` rows, starting at `counter`, and the
        counter advances at this point of the graph.
        """
        self.device.counting.advance(self, rows, axis, stream)

    def reset(self, stream: Stream | None = None) -> None:
        """Allow an append-only array to be written from its start again. Does not wait."""
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
        """Export the bytes to another library, as if by `view()`; with `copy`, a copy of them.

        DLPack before 1.0 cannot mark memory as read-only, so a library that uses it gets a writable
        view, and device work on the bytes waits until the library drops it.
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
        """Pickle the content, which unpickles as a NumPy array: a device cannot be pickled."""
        return _as_it_is, (self.numpy(),)

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return self.copy()

    def __str__(self) -> str:
        """The values, as NumPy prints them; for scratch and closed arrays, the `repr`."""
        shown = self.buffer.policy.host_reads and not self.closed
        return str(self.numpy()) if shown else repr(self)

    # Reductions of all elements, with NumPy's dtypes and rules. They return a pending value, and
    # only its use waits. `axis`, `dtype` and `out` must be None; np.sum(x) and the like pass them.

    def sum(
        self, axis: None = None, dtype: None = None, out: None = None, *,
        stream: Stream | None = None,
    ) -> Result:  # fmt: skip
        """The sum of all elements; integers are summed in 64 bits, float16 in float32."""
        return self._reduce("sum", stream, axis=axis, dtype=dtype, out=out)

    def mean(
        self, axis: None = None, dtype: None = None, out: None = None, *,
        stream: Stream | None = None,
    ) -> Result:  # fmt: skip
        """The mean of all elements; that of integers is a float64."""
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

    # Values that the host needs now; all of these wait.

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Host:
        """For `np.asarray(x)`: a copy, or with `copy=False` a view like `view("r")`."""
        if copy is False:
            if dtype is not None and np.dtype(dtype) != self.dtype:
                raise InvalidValue(
                    f"array {self.name!r} is {self.dtype}; converting it to {np.dtype(dtype)} "
                    "takes a copy, which copy=False forbids"
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

    # Closing.

    def close(self) -> None:
        """Release the buffer, for all arrays that share it; work in flight still finishes."""
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
