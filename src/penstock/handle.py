"""Base classes: handles that cannot be copied, handles that `with` closes, and `with` blocks that
know whether they are still active.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from penstock.errors import ArgumentError

T = TypeVar("T")


#: The public names of each handle: `dir()` and completion show them, and docs/api.md lists them.
#: All other names are for the layers of this package, which access them directly for speed.
PUBLIC = {
    "Array": (
        "T advance all any argmax argmin argsort astype broadcast_to clip close closed conj "
        "conjugate copy copy_from counter cumprod cumsum device diagonal dot dtype fill flatten "
        "imag item itemsize length mT max mean min name nbytes ndim nonzero numpy pitched prod "
        "ravel read real reinterpret repeat reset reshape role round seal searchsorted shape size "
        "sort squeeze std strides sum swapaxes take texels to_device tobytes tolist trace "
        "transpose var view write"
    ),
    "Counts": (
        "allocations as_dict barriers bytes_copied copies fills launches renames replayed_barriers "
        "replayed_commands replays submissions waits"
    ),
    "Device": (
        "adopt array asarray close closed default_stream elementwise empty empty_like from_dlpack "
        "from_file full full_like host_empty info kernel memory messages name number ones "
        "ones_like random record scratch stream synchronize trim xp zeros zeros_like"
    ),
    "Elementwise": "close closed device name signature",
    "Event": "done wait",
    "Graph": "close closed device encode replay",
    "Kernel": "close closed device local_size name signature",
    "Pending": "done result wait",
    "Result": "done result wait",
    "Scratch": "array capacity close closed move name release reserve stream",
    "Stream": "batch close closed flush name record synchronize wait",
    "Trace": (
        "advice allocations as_dict barriers bounds_met busy bytes_copied clock_error clocks "
        "copies cost events expect fills gaps idle kernels launches of_kind renames "
        "replayed_barriers replayed_commands replays save_html save_json save_perfetto seconds "
        "span started started_at submissions use use_between verdict wait_for_times waits"
    ),
}


class Handle:
    """An object for a resource that exists once; a copy would close, free or read it a second time.

    `copy`, `deepcopy` and `pickle` all call `__reduce__`, which raises.
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
            f"a {type(self).__name__} cannot be copied or pickled: it represents a resource that "
            "exists once; pass the object itself, or read its values first and pass those"
        )


class Closing(Handle):
    """A handle with `close()`, as a context manager that calls it."""

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
    """The `__exit__` of a block: makes a new object for each `with` statement."""

    def __get__(self, block: Block[Any] | None, kind: type[Block[Any]]) -> Callable[..., None]:
        if block is None:
            return kind.leave  # `contextlib.ExitStack` looks it up on the class
        made = partial(block.leave)
        if not block._entered:
            block._exit = weakref.ref(made)
        return made


class Block(Handle, Generic[T]):
    """A `with` block that begins with one function and ends with another.

    A signal handler may raise after the first function has done its work, or before the second one
    starts, so the end of the block may never be called. Nor can a finaliser of the block detect the
    end: a stored exception keeps the block's frames alive, and everything in them. But only the
    `with` statement itself refers to its `__exit__` object. So `is_active` tests whether that
    object is still alive.
    """

    def __init__(
        self, begin: Callable[[Block[T]], T], end: Callable[[Block[T], bool], None]
    ) -> None:
        self._begin = begin
        self._end = end  # called with whether the block has failed
        self._exit: Callable[[], object] = object
        self._entered = False

    @property
    def is_active(self) -> bool:
        return self._exit() is not None

    def __enter__(self) -> T:
        self._entered = True
        if not self.is_active:
            self._exit = object  # `__exit__` was looked up earlier, not by this `with`
        return self._begin(self)

    def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._end(self, kind is not None)

    __exit__ = _Exit()
