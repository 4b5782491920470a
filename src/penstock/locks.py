"""Locks that a `with` statement releases, whatever a signal handler raises.

`threading.RLock` is one, except on Python 3.14: there a handler may run after `__enter__` has taken
the lock and before the `with` block begins, and if it raises, `__exit__` is not called
(python/cpython#148874). It may run when a C function returns, but not when a Python function does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock import accelerator


def guarded(lock: Any) -> Any:
    """A class of lock, with the moment after it is taken guarded. `__exit__` stays C code."""

    class Guarded(lock):  # type: ignore[misc]
        __slots__ = ()

        def __enter__(self) -> bool:
            try:
                self.acquire()
                return True
            except BaseException:
                try:  # noqa: SIM105 (the first call here must be the one that cannot be interrupted)
                    self.release()
                except RuntimeError:
                    pass  # it was not taken
                raise

    return Guarded


def if_free(lock: Any, act: Callable[[], None]) -> None:
    """Call `act` with the lock taken, unless another thread has it. The caller does not have it."""
    try:
        if lock.acquire(blocking=False):
            act()
    finally:
        try:  # noqa: SIM105 (the first call here must be the one that cannot be interrupted)
            lock.release()
        except RuntimeError:
            pass  # it was not taken


def _as_needed(lock: Any) -> Any:
    return guarded(lock) if sys.version_info[:2] == (3, 14) else lock


if TYPE_CHECKING:
    RLock = threading.RLock
else:
    RLock = _as_needed(type(threading.RLock()))

#: The lock of a device: the native step takes its own without calling Python.
DeviceLock: Any = _as_needed(accelerator.native.Lock) if accelerator.is_native() else RLock
