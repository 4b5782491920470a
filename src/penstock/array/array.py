"""A typed, shaped view of bytes on a device, with NumPy's names and semantics."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from penstock import accelerator
from penstock.array import transfer
from penstock.array.append_counter import move_counter
from penstock.array.buffer import Buffer
from penstock.array.conversions import Conversions
from penstock.array.element_methods import ElementMethods
from penstock.array.host_access import check_source
from penstock.array.host_values import as_source
from penstock.array.operators import Operators
from penstock.array.rearranging import Rearranging
from penstock.array.reducing import Reducing
from penstock.array.view import show
from penstock.driver.protocol import PLACE
from penstock.dtypes import Dtype, Shape, as_dtype, as_integers, as_shape
from penstock.errors import (
    ArgumentError,
    InvalidValue,
    ReadOnly,
    RoleViolation,
    ShapeMismatch,
    Unsupported,
)
from penstock.handle import Closing
from penstock.ledger.hazards import Region, Use
from penstock.ledger.roles import AppendHistory, Role
from penstock.memory.layout import (
    Layout,
    contiguous_strides,
    index_layout,
    region_of,
    reshaped_strides,
)
from penstock.memory.texel_views import KeptView
from penstock.schedule.pending import Pending
from penstock.shader.texels import format_named

if TYPE_CHECKING:
    from penstock.device import Device
    from penstock.memory.backing import Backing
    from penstock.schedule.stream import Stream

Host = npt.NDArray[Any]


@accelerator.share
class Bound:
    """An array's current backing, and its bytes there as the driver and the ledger take them."""

    __slots__ = ("backing", "place", "reading", "texels", "writing")

    def __init__(self, array: Array) -> None:
        self.backing = backing = array.buffer.backing
        self.place = PLACE.pack(
            backing.memory.handle, backing.offset + array.layout.offset, array.nbytes
        )
        self.reading: Use = (backing.history, array.buffer.read_region(array.touched), False)
        self.writing: Use = (backing.history, array.touched, True)
        #: By format, or "" for the one that follows from the dtype: the bytes as a texel buffer,
        #: and the view, which is kept alive. Replaced, not changed.
        self.texels: dict[str, tuple[bytes, KeptView]] = _NO_TEXELS


class Unbound:
    """Stands for the `Bound` of an array that was never bound."""

    backing = None


_UNBOUND: Any = Unbound()
_NO_TEXELS: dict[str, tuple[bytes, KeptView]] = {}
_NO_WINDOWS: dict[int, Any] = {}


@accelerator.share
class Array(ElementMethods, Reducing, Rearranging, Operators, Conversions, Closing):
    """Bytes of a buffer, interpreted as numbers. Slices and reshapes share the buffer.

    Only `numpy`, `view` and what needs values at once (`item`, `float(x)`, `np.asarray(x)`) wait,
    and only for the work that writes the bytes in question.
    """

    __slots__ = (
        "__weakref__", "accepted", "bound", "buffer", "contiguous", "dtype", "layout", "lead",
        "nbytes", "repeats", "region", "seen_by_host", "shape", "size", "touched", "window",
        "windows",
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
        self.touched = self.region  # what the ledger notes for kernels that it is bound to
        #: Whether it is from `words`: then `region` is only a part of what kernels bind.
        self.window = False
        self.windows: dict[int, tuple[Array, int]] = _NO_WINDOWS  # cached by `words`; replaced

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

    # Other arrays over the same bytes. Copies nothing, waits for nothing.

    def __getitem__(self, index: Any) -> Array:
        """A slice that shares the bytes; or new elements, if there is an array in the index.

        Arrays of integers, and masks, choose as in NumPy. A mask waits for its number of True.
        """
        if not _is_basic(index):
            return self.device.indexing.get(self, index)
        self.buffer.check()
        return self.seen(index_layout(self.layout, index))

    def reshape(self, *shape: Any) -> Array:
        """The same bytes in another shape; one dimension may be -1.

        Of elements that no strides reach in that shape, a copy, as in NumPy: a launch or a copy on
        the receipt. `xp.reshape(x, shape, copy=False)` raises instead.
        """
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
        strides = reshaped_strides(self.layout, dims)
        if strides is None:
            return self.copy().reshape(dims)
        return self.seen(self.layout._replace(shape=dims, strides=strides))

    @property
    def T(self) -> Array:  # noqa: N802
        """The same bytes with the dimensions reversed."""
        self.buffer.check()
        shape, strides = self.shape[::-1], self.strides[::-1]
        return self.seen(self.layout._replace(shape=shape, strides=strides))

    @property
    def mT(self) -> Array:  # noqa: N802
        """The same bytes with the last two dimensions exchanged: a stack of transposed matrices."""
        self.buffer.check()
        if self.ndim < 2:
            raise ShapeMismatch(f"mT needs two dimensions or more; the array has {self.ndim}")
        *shape, rows, columns = self.shape
        *strides, down, across = self.strides
        layout = self.layout._replace(
            shape=(*shape, columns, rows), strides=(*strides, across, down)
        )
        return self.seen(layout)

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
        return self.seen(Layout(self.layout.offset, dims, strides, kind.itemsize), kind)

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
        made = self.seen(layout, found.dtype)
        made.lead = lead
        return made, lead // found.nbytes

    def words(self, unit: int = 4) -> tuple[Array, int]:
        """The 32-bit words that it lies in, and the byte in them at which its first element starts.

        With a `unit`, their number of bytes is a multiple of it; the array must have room for that.

        For kernels that access elements at any offset and stride: a device binds memory from
        multiples of `device.info.limits["binding_alignment"]` bytes only. Accesses count for the
        bytes of this array alone, so a kernel must not use, nor change, any others of the words.
        """
        if (known := self.windows.get(unit)) is not None:
            return known
        self.buffer.check()
        assert unit != 4 or self.is_settled, f"settle array {self.name!r} for a kernel of words"
        limits: Any = self.device.info.limits
        region, base = self.region, self.buffer.backing.offset
        alignment = limits.get("window_alignment", limits["binding_alignment"])
        start = region.lo - (base + region.lo) % alignment
        size = region.hi - start if alignment == 1 else -(-(region.hi - start) // unit) * unit
        made = Array(self.buffer, Layout(start, (size,), (1,), 1), np.dtype(np.uint8))
        made.region = made.touched = region
        if self.buffer.scheduler.driver.checks_accesses:
            made.touched = Region(max(0, start), min(start + size, self.buffer.nbytes))
        made.window, made.repeats = True, self.repeats
        found = made, self.layout.offset - start
        self.windows = {**self.windows, unit: found}
        return found

    def settled(self, stream: Stream | None = None) -> Array:
        """The array, or a copy if its elements do not start at multiples of their size.

        Kernels that take the `words` of an array load elements of up to 4 bytes from one word.
        """
        return self if self.is_settled else self.copy(stream)

    @property
    def is_settled(self) -> bool:
        """Whether its elements start at multiples of their size, or of 4 bytes."""
        size = min(self.itemsize, 4)
        start = self.buffer.backing.offset + self.layout.offset
        return size == 1 or not (start % size or any(step % size for step in self.strides))

    def follow_window(self, other: Array, shift: int) -> None:
        """Stand for a window (`words`) of another buffer, `shift` bytes later in this one."""
        alignment: Any = self.device.info.limits["binding_alignment"]
        if shift % alignment and "window_alignment" not in self.device.info.limits:
            raise InvalidValue(
                f"array {self.name!r} starts {shift} bytes from where the array starts that was "
                f"recorded; {self.device.name} needs a multiple of {alignment}. Pass a copy()"
            )
        lo, hi, width, pitch = other.region
        self.region = self.touched = Region(lo + shift, hi + shift, width, pitch)
        if other.touched != other.region:
            self.touched = Region(other.touched.lo + shift, other.touched.hi + shift)
        self.window = True

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
        return self.seen(layout, np.dtype(np.uint8))

    def seen(self, layout: Layout, dtype: Dtype | None = None) -> Array:
        """An array over the same buffer; the layout must be within this array's bytes."""
        kind = self.dtype if dtype is None else dtype
        return Array(self.buffer, layout, kind, repeats=self.repeats)

    def check_written(self, what: str) -> None:
        """Raise if elements share bytes, as after `broadcast_to`."""
        if self.repeats:
            raise ReadOnly(
                f"{what} writes array {self.name!r} through broadcast_to(), where elements share "
                "bytes; write the array itself, or a copy() of the broadcast"
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

    def to_device(self, device: Device, /, *, stream: Stream | None = None) -> Array:
        """The array itself, or a copy on another device: read by the host, which waits for it."""
        if device is self.device:
            return self
        return device.array(self.numpy(), name=self.name)

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
        made = self.device.new_result(self.shape, self.dtype, stream, name=name)
        made.copy_from(self, stream)
        return made

    def __setitem__(self, index: Any, value: Any) -> None:
        if not _is_basic(index):
            self.device.indexing.set(self, index, value)
            return
        part = self[index]
        if isinstance(value, Array):
            same = value.shape == part.shape
            part.copy_from(
                value if same else _without_ones(value, part.ndim).broadcast_to(part.shape)
            )
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
            source = np.broadcast_to(_without_ones(source, part.ndim), part.shape)
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

    def reset(self, stream: Stream | None = None, *, keep: int = 0, axis: int = 0) -> None:
        """Allow an append-only array to be written from its start again. Does not wait.

        With `keep`, from that row along `axis` on: the rows before it stay, and stay protected.
        """
        scheduler = self.buffer.scheduler
        scheduler.stream_or_default(stream)
        with scheduler.lock:
            self.buffer.check()
            history = self.appended
            kept = self._kept(keep, axis) if keep else None
            note = partial(history.reset, kept, keep)
            if history.counter is None:
                note()
            else:
                move_counter(history, keep, stream, note)

    def _kept(self, rows: int, axis: int) -> Region:
        """The region of the first `rows` rows; raises unless all of it is written."""
        if not 0 <= axis < self.ndim or not 0 < rows <= self.shape[axis]:
            raise InvalidValue(
                f"reset(keep={rows}, axis={axis}) of array {self.name!r}, whose shape is "
                f"{self.shape}"
            )
        region = self[(slice(None),) * axis + (slice(0, rows),)].region
        if not any(written.covers_rows(region) for written in self.appended.written):
            raise RoleViolation(
                f"reset(keep={rows}) of array {self.name!r}: only {self.length} are written"
            )
        return region

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

    # Copies.

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the content, which unpickles as a NumPy array: a device cannot be pickled."""
        return _as_it_is, (self.numpy(),)

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return self.copy()

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


def _without_ones(source: Any, ndim: int) -> Any:
    """What is assigned to `ndim` axes: without axes of one element before as many."""
    extra = source.ndim - ndim
    return source[(0,) * extra] if extra > 0 and source.shape[:extra] == (1,) * extra else source


def _is_basic(index: Any) -> bool:
    """Whether an index has no arrays, so that it chooses a view."""
    if not isinstance(index, tuple):
        return not isinstance(index, _CHOOSING)
    return not any(isinstance(each, (*_CHOOSING, tuple)) for each in index)


# Python's own errors name a method by this: its users know `Array.mean()`, not `Reducing.mean()`.
for _part in (ElementMethods, Reducing, Rearranging, Operators, Conversions):
    for _method in vars(_part).values():
        if isinstance(_method, FunctionType):
            _method.__qualname__ = f"Array.{_method.__name__}"

_CHOOSING = (Array, np.ndarray, list, range)


# Pickles name it, so it stays here.
def _as_it_is(content: Host) -> Host:
    return content
