"""Device memory with one owner, kept between launches and growing on demand."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.array.array import Array
from penstock.array.buffer import Buffer
from penstock.dtypes import Shape, as_dtype, as_shape
from penstock.errors import ArgumentError, Closed, Error, InvalidValue, OutOfMemory
from penstock.handle import Closing
from penstock.ledger.hazards import Region
from penstock.memory.backing import Backing
from penstock.memory.layout import Layout, contiguous_strides
from penstock.memory.pool import Pool

if TYPE_CHECKING:
    from penstock.schedule.scheduler import Scheduler
    from penstock.schedule.stream import Stream


class Growing:
    """One allocation that can only be replaced by a larger one. The caller holds the lock.

    `grow` allocates the new memory first, so that the old one survives an `OutOfMemory`. The pool
    reuses the old memory when the last work in flight that uses it completes.
    """

    __slots__ = ("_name", "_pool", "_scheduler", "buffer")

    def __init__(self, scheduler: Scheduler, pool: Pool, name: str) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._name = name
        self.buffer: Buffer | None = None

    @property
    def capacity(self) -> int:
        return 0 if self.buffer is None else self.buffer.nbytes

    def grow(self, nbytes: int, keep_on: Stream | None = None) -> None:
        """Make room for `nbytes`; with a stream, copy the content to the new memory on it."""
        scheduler, old = self._scheduler, self.buffer
        scheduler.drain()
        backing = self._take(nbytes)
        try:
            if old is not None and keep_on is not None:
                whole = Region(0, old.nbytes)
                rows = np.array([[old.backing.offset, backing.offset, old.nbytes]], np.uint64)
                keep_on.copy(
                    old.backing,
                    whole,
                    backing,
                    whole,
                    rows,
                    f"{self._name} grows",
                    (self._name, whole),
                )
        except BaseException:
            scheduler.retire(backing)
            raise
        made = Buffer(scheduler, backing, backing.nbytes, self._name, pinned=True)
        # No call, and so no interrupt, between the next lines: once the new memory is in place,
        # arrays over the old memory are closed.
        self.buffer = made
        if old is not None:
            old.closed = True
            old.give_back()

    def _take(self, nbytes: int) -> Backing:
        try:
            return self._pool.allocate(max(nbytes, 2 * self.capacity))
        except OutOfMemory:
            if nbytes >= 2 * self.capacity:
                raise
            return self._pool.allocate(nbytes)

    def release(self) -> None:
        old, self.buffer = self.buffer, None
        if old is not None:
            old.closed = True  # with no call, and so no interrupt, before it, as in `grow`
            old.give_back()


class Scratch(Closing):
    """Memory for intermediate values of one stream's work. Made by `Device.scratch`.

    Nothing is allocated before it is needed. `reserve` and `array` grow it, to at least twice its
    size if memory allows, and never shrink it; if growing fails, nothing changes. All arrays made
    from it start at its first byte, and are closed when it grows or is released; work in flight
    that uses them still finishes.
    """

    def __init__(self, stream: Stream, name: str) -> None:
        self.stream = stream
        self.name = name
        self._closed = False
        self._memory = self._new_memory()

    @property
    def capacity(self) -> int:
        """The bytes allocated so far."""
        return self._memory.capacity

    def reserve(self, nbytes: int, *, keep: bool = False) -> None:
        """Grow to at least `nbytes` bytes; with `keep`, the content is copied to the new memory."""
        try:
            wanted = operator.index(nbytes)
        except TypeError as error:
            raise ArgumentError(f"reserve takes a number of bytes, not {nbytes!r}") from error
        if wanted < 0:
            raise InvalidValue(f"cannot reserve {wanted} bytes")
        keep = bool(keep)
        with self.stream.scheduler.lock:
            self._reserve(wanted, keep)

    def _reserve(self, nbytes: int, keep: bool) -> None:
        self._check()
        if nbytes > self.capacity:
            self._memory.grow(nbytes, self.stream if keep else None)

    def array(
        self, shape: Shape, dtype: npt.DTypeLike = np.float32, *, keep: bool = False
    ) -> Array:
        """An array over the first bytes; grows the scratch if needed.

        The content is undefined after a growth without `keep`.
        """
        dims, kind = as_shape(shape), as_dtype(dtype)
        layout = Layout(0, dims, contiguous_strides(dims, kind.itemsize), kind.itemsize)
        keep = bool(keep)
        with self.stream.scheduler.lock:
            self._reserve(max(1, kind.itemsize * math.prod(dims)), keep)
            assert self._memory.buffer is not None
            return Array(self._memory.buffer, layout, kind)

    def move(self) -> Scratch:
        """Move the memory to a new `Scratch`; this one is then empty, and can be used again."""
        with self.stream.scheduler.lock:
            self._check()
            other = Scratch(self.stream, self.name)
            other._memory, self._memory = self._memory, other._memory
            return other

    def release(self) -> None:
        """Release the memory; the scratch can be used again. Work in flight still finishes.

        Never raises.
        """
        with contextlib.suppress(Error), self.stream.scheduler.lock:
            self._memory.release()

    def close(self) -> None:
        """Release the memory and refuse further use. Safe to call twice."""
        self.release()
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.capacity:,} bytes"
        return f"<Scratch {self.name!r} on {self.stream.name}: {state}>"

    def _new_memory(self) -> Growing:
        scheduler = self.stream.scheduler
        return Growing(scheduler, scheduler.pool, self.name)

    def _check(self) -> None:
        self.stream._check()
        if self._closed:
            raise Closed(f"{self.name} is closed")
