"""Messages that finalisers and interrupted calls leave for the device, about what has ended.

A finaliser may run in any thread, in the middle of any call, so it does not change the device's
state. It leaves a message, and the next call that holds the device's lock acts on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from penstock import accelerator
from penstock.errors import Error


@accelerator.share
class FinaliserQueue:
    """Messages in the order of their arrival, and the function that acts on each kind.

    `acts` has a function for each type of message; a message of any other type is itself a function
    to call. Acting on a message twice must be the same as acting once: it stays in the queue until
    its function has returned, and an interrupt may come in between.
    """

    __slots__ = ("__dict__", "left")

    def __init__(self, acts: Mapping[type, Callable[[Any], None]]) -> None:
        self._acts = acts
        self.left: deque[Any] = deque()
        #: Safe in any thread, in the middle of any call, and as the callback of a weak reference:
        #: it is a C function, which no interrupt can stop half-way.
        self.leave: Callable[[Any], None] = self.left.append

    def drain(self) -> None:
        """Act on every message. Called under the device's lock."""
        left = self.left
        while left:
            message = left[0]
            act = self._acts.get(type(message))
            try:
                if act is None:
                    message()
                else:
                    act(message)
            except Error:
                left.rotate(-1)  # retried after the other messages, so that it does not block them
                raise
            left.popleft()
