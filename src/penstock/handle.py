"""Handles, which are not copied; what has an end has `close()`, and `with` to call it.

And `with` blocks that know whether they go on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from penstock.errors import ArgumentError

T = TypeVar("T")


#: What users may use of each handle: what `dir()` and completion show, and docs/api.md lists. Every
#: other name is for the layers of this package, which take handles apart without a call.
PUBLIC = {
    "Array": (
        "T advance all any argmax argmin broadcast_to close closed copy copy_from counter device "
        "dot dtype fill item itemsize length max mean min name nbytes ndim numpy pitched ravel "
        "read reinterpret reset reshape role seal shape size strides sum tolist view write"
    ),
    "Device": (
        "adopt array asarray close closed default_stream elementwise empty empty_like from_dlpack "
        "from_file full full_like host_empty info kernel memory messages name number ones "
        "ones_like record scratch stream synchronize trim zeros zeros_like"
    ),
    "Elementwise": "close closed device name signature",
    "Event": "done wait",
    "Graph": "close closed device replay",
    "Kernel": "close closed device local_size name signature",
    "Pending": "done result wait",
    "Result": "done result wait",
    "Scratch": "array capacity close closed move name release reserve stream",
    "Stream": "batch close closed flush name record synchronize wait",
    "Trace": (
        "allocations as_dict barriers bounds_met bytes_copied copies events expect fills launches "
        "of_kind renames replayed_barriers replayed_commands replays save_html save_json "
        "save_perfetto seconds started started_at submissions wait_for_times waits"
    ),
}


class Handle:
    """Stands for something that exists once: two of it would close, give back or read it twice.

    `copy`, `deepcopy` and `pickle` all ask for `__reduce__`, unless a class says otherwise.
    """

    __slots__ = ()

    def __dir__(self) -> list[str]:
        names = object.__dir__(self)
        for kind in type(self).__mro__:
            if kind.__name__ in PUBLIC:
                special = [name for name in names if name.startswith("__")]
                return sorted(special + PUBLIC[kind.__name__].split())
        return list(names)

    def __reduce__(self) -> tuple[Any, ...]:
        raise ArgumentError(
            f"a {type(self).__name__} cannot be copied or pickled, as it stands for something that "
            "exists once; pass the object itself, and take values out of it before they travel"
        )


class Closing(Handle):
    """Makes anything that has `close()` a context manager that closes it."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Exit:
    """The `__exit__` of a block: for each `with` statement an object that it alone holds."""

    def __get__(self, block: Block[Any] | None, kind: type[Block[Any]]) -> Callable[..., None]:
        if block is None:
            return kind.leave  # `contextlib.ExitStack` asks the class
        made = partial(block.leave)
        if not block._entered:
            block._exit = weakref.ref(made)
        return made


class Block(Handle, Generic[T]):
    """A `with` block that begins with one function and ends with another.

    An exception may come before the second function begins, from a signal handler, or after the
    first has done its work; and whatever keeps the exception keeps the frames of the block and all
    in them. The `__exit__` that the `with` statement has taken is in none of them. So `goes_on`
    tells by that whether the statement is still under way, whatever was called at its end.
    """

    def __init__(
        self, begin: Callable[[Block[T]], T], end: Callable[[Block[T], bool], None]
    ) -> None:
        self._begin = begin
        self._end = end  # is told whether the block has failed
        self._exit: Callable[[], object] = object
        self._entered = False

    @property
    def goes_on(self) -> bool:
        return self._exit() is not None

    def __enter__(self) -> T:
        self._entered = True
        if not self.goes_on:
            self._exit = object  # it was looked at before, and is not called by `with`
        return self._begin(self)

    def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._end(self, kind is not None)

    __exit__ = _Exit()
