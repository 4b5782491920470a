"""A progress bar on the terminal."""

from __future__ import annotations

import sys
import time


class Bar:
    """Call with (done, total) to update; prints nothing if stderr is not a terminal.

    Counts are bytes, shown in MiB, unless `unit` names another unit. Work that takes no more than
    `after` seconds has no bar.
    """

    def __init__(self, what: str, unit: str = "", *, after: float = 0.0) -> None:
        self._what = what
        self._unit = unit
        self._begin = time.monotonic() + after
        self._shown = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or (now < self._begin and not self._shown):
            return
        if done < total and now - self._shown < 0.1:
            return
        self._shown = now
        bar = "█" * (30 * done // max(1, total))
        end = "\n" if done >= total else ""
        count = f"{done:,} of {total:,} {self._unit}"
        if not self._unit:
            count = f"{done >> 20:,} of {total >> 20:,} MiB"
        sys.stderr.write(f"\r{self._what} |{bar:30}| {count}{end}")
        sys.stderr.flush()
