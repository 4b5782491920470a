"""The receipt: every copy, allocation, wait, barrier, submission and launch, with its reason.

`with trace() as t:` collects what all devices do, in all threads, while the block runs. With no
trace active, the runtime's only cost is looking at the empty tuple `active`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

_PACKAGE = str(Path(__file__).parent)
#: Parts of the package that use the runtime as anyone would; their lines are user code.
_APPLICATIONS = tuple(str(Path(_PACKAGE, name)) for name in ("demo.py",))
_lock = threading.Lock()

#: The traces that are collecting now.
active: tuple[Trace, ...] = ()


class TraceEvent(NamedTuple):
    """Something that cost, and why it was done."""

    kind: str  #: "copy", "fill", "wait", "barrier", "submission", "launch", "allocation", …
    reason: str
    nbytes: int = 0
    buffer: str = ""  #: the name of the buffer concerned
    lo: int = 0  #: first byte of it concerned
    hi: int = 0  #: one past the last
    path: str = ""  #: how a transfer travelled: direct, rename, staged, ordered, adopt, …
    where: str = ""  #: the user's file and line
    start: float = 0.0  #: seconds, `time.perf_counter`
    seconds: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.kind:<11}"]
        if self.path:
            parts.append(f"[{self.path}]")
        if self.buffer:
            parts.append(f"{self.buffer}[{self.lo}:{self.hi}]")
        if self.nbytes:
            parts.append(human_bytes(self.nbytes))
        parts.append(self.reason)
        if self.seconds:
            parts.append(f"({self.seconds * 1e6:.1f} µs)")
        if self.where:
            here = f"{os.getcwd()}{os.sep}"
            parts.append(f"at {self.where.removeprefix(here)}")
        return "  ".join(parts)


class Trace:
    """What happened while this was active. Counts are plain numbers."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []
        self._started = time.perf_counter()
        self._stopped: float | None = None

    def of_kind(self, kind: str) -> list[TraceEvent]:
        """The events of one kind, in order."""
        return [event for event in self.events if event.kind == kind]

    def _count(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)

    @property
    def waits(self) -> int:
        """How often the host blocked."""
        return self._count("wait")

    @property
    def copies(self) -> int:
        """How often bytes were copied, by the host or by the device."""
        return self._count("copy")

    @property
    def bytes_copied(self) -> int:
        return sum(event.nbytes for event in self.events if event.kind == "copy")

    @property
    def allocations(self) -> int:
        """How often the driver made memory, a timeline, a recording or a pool."""
        return self._count("allocation")

    @property
    def barriers(self) -> int:
        """Barriers between work on the device, and between device and host."""
        return self._count("barrier")

    @property
    def submissions(self) -> int:
        return self._count("submission")

    @property
    def launches(self) -> int:
        return self._count("launch")

    @property
    def replays(self) -> int:
        """How often a graph was replayed; its launches and barriers are not counted apart."""
        return self._count("replay")

    @property
    def renames(self) -> int:
        """How often a buffer got a fresh backing instead of a wait."""
        return self._count("rename")

    @property
    def fills(self) -> int:
        return self._count("fill")

    @property
    def seconds(self) -> float:
        """How long the trace has been, or was, active."""
        return (self._stopped or time.perf_counter()) - self._started

    def as_dict(self) -> dict[str, int | float]:
        """The counts, for machines."""
        return {
            "launches": self.launches,
            "replays": self.replays,
            "submissions": self.submissions,
            "barriers": self.barriers,
            "copies": self.copies,
            "bytes_copied": self.bytes_copied,
            "fills": self.fills,
            "renames": self.renames,
            "allocations": self.allocations,
            "waits": self.waits,
            "seconds": self.seconds,
        }

    def __enter__(self) -> Trace:
        global active
        with _lock:
            active = (*active, self)
        self._started = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global active
        with _lock:
            active = tuple(trace for trace in active if trace is not self)
        self._stopped = time.perf_counter()

    def __str__(self) -> str:
        lines = [f"penstock receipt, {self.seconds * 1e3:.2f} ms"]
        for name, value in self.as_dict().items():
            if name in ("seconds", "bytes_copied"):
                continue
            extra = f"  ({human_bytes(self.bytes_copied)})" if name == "copies" else ""
            lines.append(f"  {name:<12}{value:>7}{extra}")
        costly = [e for e in self.events if e.kind not in _CHEAP]
        if costly:
            lines.append("  in detail")
            lines += [f"    {event}" for event in costly[:20]]
            if len(costly) > 20:
                lines.append(f"    … and {len(costly) - 20} more in .events")
        return "\n".join(lines)

    __repr__ = __str__


_CHEAP = ("launch", "replay", "submission", "barrier")


def trace() -> Trace:
    """A receipt of everything done in the `with` block it opens."""
    return Trace()


def emit(kind: str, reason: str, **details: Any) -> None:
    """Tell every active trace. Callers look at `active` first, so that this costs nothing off."""
    event = TraceEvent(kind, reason, where=user_line(), **{"start": time.perf_counter(), **details})
    for receipt in active:
        receipt.events.append(event)


def user_line() -> str:
    """File and line of the code that called into Penstock."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        own = name.startswith(_PACKAGE) or name == contextlib.__file__
        if not own or name.startswith(_APPLICATIONS):
            # What a thread of the runtime's own does was not called by anyone.
            return "" if name == threading.__file__ else f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def human_bytes(count: int) -> str:
    """A byte count as people write it."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
