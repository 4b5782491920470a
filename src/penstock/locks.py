"""A reentrant lock that a `with` statement releases, whatever a signal handler raises.

`threading.RLock` is that, except on Python 3.14: there a handler may run after `__enter__` has
taken the lock and before the `with` block begins, and if it raises, `__exit__` is not called
(python/cpython#148874). It may run when a C function returns, but not when a Python function does.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

_RLock: Any = type(threading.RLock())


class GuardedRLock(_RLock):  # type: ignore[misc]
    """`threading.RLock`, with the moment after it is taken guarded. `__exit__` stays C code."""

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


if TYPE_CHECKING:
    RLock = threading.RLock
else:
    RLock = GuardedRLock if sys.version_info[:2] == (3, 14) else threading.RLock
