"""The native step: C code that does the common case of what Python functions of this package do.

`penstock._native` is optional. The Python functions are the specification, and run alone where the
module is not built or `PENSTOCK_NATIVE=0` is set. A native function does all that the Python
function would do, or refuses before it has changed anything; then the Python function does it.

The C code works on the objects of the Python code: a class whose slots it reads or changes is
handed to it with `share`, where the class is defined. What makes a call unusual is not looked for
one by one: `Scheduler.ready` and `Stream.plain` say whether anything does. A module of another
version, or one that does not find a slot that it needs, is refused with a warning.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, TypeVar

_VERSION = 4  # of what the Python code relies on; `native/module.c` has the same
C = TypeVar("C", bound=type)


class InPython:
    """In place of the module: everything is left to Python."""

    class Callable:
        """The base of `Kernel`."""

        __slots__ = ()

        def _retire(self) -> None:
            """Leave every call to Python from now on."""

    def share_events(self, names: dict[str, Any], file: str) -> None:
        """Learn what `events.emit` uses: its module's names, and the file of threads."""

    def note_traces(self, active: bool) -> None:
        """Learn whether a trace is active, so that a launch takes the time of its call."""

    def note_counting(self, on: bool) -> None:
        """Learn whether something counts what the runtime does."""

    def counts(self) -> tuple[int, ...]:
        """What was counted here so far, in the order of `tracing.counting.NATIVE`."""
        return ()

    def start(self, stream: Any) -> None:
        """Open a batch and return it, as `Stream._start` does, or return None."""
        return

    def submit(self, stream: Any) -> bool:
        """Submit what is recorded, as `Stream._submit` does, or return False."""
        return False

    def poll(self, stream: Any) -> bool:
        """Ask the driver how far it has come, as `Stream.poll` does, or return False."""
        return False

    def reach(self, lane: Any, value: int) -> bool:
        """Note that a lane has reached a value, as `Lane.reach` does, or return False."""
        return False

    def wait(self, scheduler: Any, points: Any) -> bool:
        """Wait for one point, as one turn of `Scheduler.await_points`; whether it was reached."""
        return False

    def synchronize(self, stream: Any) -> bool:
        """Wait for all work of a stream, as `Stream.synchronize` does, or return False."""
        return False

    def result(self, result: Any) -> Any:
        """The value of a result, as `Result.result` returns it, or None."""
        return

    def read(self, array: Any) -> Any:
        """The content of a small array, as `transfer.read_now` returns it, or None."""
        return

    def write(self, array: Any, source: Any) -> bool:
        """Copy into a small array that is at rest, as `transfer.write` does, or return False."""
        return False


def _load() -> tuple[Any, str]:
    """The module, if it is to be used, and what to say of it."""
    if os.environ.get("PENSTOCK_NATIVE") == "0":
        return InPython(), "off (PENSTOCK_NATIVE=0)"
    try:
        from penstock import _native  # type: ignore[attr-defined]
    except ImportError as error:
        if "_native" in str(error) and "cannot import name" in str(error):
            return InPython(), "not built; launches are made in Python"
        return InPython(), _refuse(str(error))
    if _native.VERSION != _VERSION:
        return InPython(), _refuse(f"it has version {_native.VERSION}, and {_VERSION} is needed")
    return _native, "in use"


def _refuse(why: str) -> str:
    warnings.warn(
        f"penstock._native does not fit this version of Penstock ({why}), so launches are made in "
        "Python; build it again with scripts/setup, or install penstock-gpu again",
        RuntimeWarning,
        stacklevel=2,
    )
    return f"refused: {why}"


#: The module, or what leaves everything to Python.
native: Any
native, status = _load()
#: The base of `Kernel`.
Callable: Any = native.Callable


def is_native() -> bool:
    return not isinstance(native, InPython)


def launches() -> tuple[int, int]:
    """How many calls of kernels were made natively so far, and how many were left to Python."""
    return native.launches() if is_native() else (0, 0)


def left_to_python() -> dict[str, int]:
    """By reason: how many calls of kernels were left to Python so far."""
    return native.left() if is_native() else {}


def share(class_: C) -> C:
    """Let the native step use the slots of a class. A decorator."""
    global native, status
    if is_native():
        try:
            native.share(class_)
        except TypeError as error:
            native, status = InPython(), _refuse(str(error))
    return class_
