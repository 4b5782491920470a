"""Handles: they are not copied, and what has an end has `close()`, and `with` to call it."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from penstock.errors import ArgumentError


class Handle:
    """Stands for something that exists once: two of it would close, give back or read it twice.

    `copy`, `deepcopy` and `pickle` all ask for `__reduce__`, unless a class says otherwise.
    """

    __slots__ = ()

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
