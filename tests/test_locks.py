"""The lock of `with` statements is released, whatever a signal handler raises."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from penstock.locks import DeviceLock, RLock, guarded


class Interrupt(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.parametrize(
    "kind", [RLock, guarded(type(threading.RLock())), DeviceLock, guarded(type(DeviceLock()))]
)
def test_a_handler_that_raises_leaves_it_free(kind: Any) -> None:
    lock = kind()

    def interrupt(*_: Any) -> None:
        raise Interrupt

    def take_and_release() -> None:
        for _ in range(1_000_000):  # not for ever: a finaliser may swallow what the handler raises
            with lock:
                pass

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                take_and_release()
            except Interrupt:
                pass
            assert not lock._is_owned()
    finally:
        signal.signal(signal.SIGALRM, before)
