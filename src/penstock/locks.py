"""Locks that a `with` statement releases, whatever a signal handler raises.

`threading.RLock` is one, except on Python 3.14: there a handler may run after `__enter__` has taken
the lock and before the `with` block begins, and if it raises, `__exit__` is not called
(python/cpython#148874). It may run when a C function returns, but not when a Python function does.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from penstock import accelerator

_NEEDS_GUARD: bool = sys.version_info[:2] == (3, 14)


def _guarded(lock: Any) -> Any:
    """The class, with the moment after its lock is taken guarded. `__exit__` stays C code."""
    if not _NEEDS_GUARD:
        return lock

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


if TYPE_CHECKING:
    RLock = threading.RLock
else:
    RLock = _guarded(type(threading.RLock()))

#: The lock of a device: the native step takes its own without calling Python.
DeviceLock: Any = _guarded(accelerator.native.Lock) if accelerator.is_native() else RLock
