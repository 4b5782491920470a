"""What has an end: `close()`, and `with` to call it."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
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
