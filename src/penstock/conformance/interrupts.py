"""Runs code in the middle of a call, at every point where CPython may run a signal handler.

CPython checks for signals when a function begins, after a call, and when a loop jumps back.
`at_point` runs a function and acts at the n-th such point within the package: it raises, as Ctrl-C
does, or it uses the device, as a signal handler or a finaliser may. Points are found by tracing
bytecodes, so they need no maintenance when code moves. The simulator's model of the device is left
out, because no signal handler runs inside hardware. So is this suite, so that a program and its
script pass the same points.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import penstock as ps

_PACKAGE = f"{Path(ps.__file__).parent}{os.sep}"
_SUITE = f"{Path(__file__).parent}{os.sep}"
#: Code without points: the simulator's model of the device, and the suite's kernels.
_LEFT_OUT = (f"{_PACKAGE}driver{os.sep}sim{os.sep}", f"{_SUITE}kernels.py")

_ATTEMPTS = 16  # the last one is not interrupted


@functools.cache
def _handlers(code: CodeType) -> dict[int, int]:
    """Map the offset of each instruction to the handler of exceptions raised there; -1: none."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    found = dict.fromkeys(range(0, len(code.co_code), 2), -1)
    for entry in table:
        for offset in range(entry.start, entry.end, 2):
            found[offset] = entry.target
    return found


@functools.cache
def _checks(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions after which CPython checks for signals."""
    return frozenset(
        each.offset
        for each in dis.get_instructions(code)
        if each.opname == "RESUME"
        or (each.opname.startswith("CALL") and "INTRINSIC" not in each.opname)
        or "JUMP_BACKWARD" in each.opname
    )


class _Tracer:
    """Counts the points that are passed in certain files; acts at the n-th."""

    def __init__(self, number: int, act: Callable[[], None], within: tuple[str, ...]) -> None:
        self._within = within
        self.count = 0
        self.place = ""
        self._number = number
        self._act = act
        self.before: dict[FrameType, int] = {}  # by frame, the offset of the previous instruction
        #: Held here, because CPython 3.11 may call a trace function that it no longer references.
        self._functions = (self.call, self.inside)

    def start(self) -> None:
        sys.settrace(self._functions[0])

    def call(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if not file.startswith(self._within) or file.startswith(_SUITE) or _is_left_out(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._functions[1]

    def inside(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        if event == "return":
            self.before.pop(frame, None)
        elif event == "opcode":
            before = self.before.get(frame)
            self.before[frame] = frame.f_lasti
            if before is not None and _is_point(frame.f_code, before, frame.f_lasti):
                self.count += 1
                if self.count == self._number:
                    self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                    # If `_act` raises, tracing ends. Release the frames first, because they keep
                    # their locals alive: after a finaliser is interrupted the program goes on, and
                    # its frame would keep the object that was being finalised.
                    self.before.clear()
                    self._act()
        return self._functions[1]


def _is_point(code: CodeType, before: int, now: int) -> bool:
    """Whether a signal handler may run between two instructions, and raise from the second one."""
    handlers = _handlers(code)
    return before in _checks(code) and handlers[before] == handlers[now]


def _is_left_out(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_LEFT_OUT):
            return True
        frame = frame.f_back
    return False


def _ignore(unraisable: Any) -> None:
    """Stands in for Python's report of an exception in a finaliser, after which it goes on."""
    assert isinstance(unraisable.exc_value, Interrupt)


class Interrupt(KeyboardInterrupt):
    """Raised at a point, as Ctrl-C raises `KeyboardInterrupt`."""


def at_point(
    number: int,
    act: Callable[[], None],
    run: Callable[[], None],
    kept: list[BaseException] | None = None,
    *,
    within: tuple[str, ...] = (_PACKAGE,),
) -> tuple[int, str]:
    """Run, and act at point `number`; return the points passed, and where it acted ("": nowhere).

    An `Interrupt` is appended to `kept`, if given; it keeps the frames that it ended alive. Points
    are in files whose paths begin with one of `within`.
    """
    tracer = _Tracer(number, act, within)
    earlier, hook = sys.gettrace(), sys.unraisablehook
    sys.unraisablehook = _ignore
    tracer.start()
    try:
        run()
    except Interrupt as stopped:
        if kept is not None:
            kept.append(stopped)
    finally:
        sys.settrace(earlier)
        sys.unraisablehook = hook
        tracer.before.clear()  # frames keep their locals alive
    return tracer.count, tracer.place


def points(run: Callable[[], None]) -> int:
    """Return how many points a run passes."""
    return at_point(0, lambda: None, run)[0]


def interrupt() -> None:
    raise Interrupt


def interrupted(every: int, *, keep: bool = True) -> Callable[[Callable[[], object]], None]:
    """Call the decorated function, interrupting it at point n, then 2n, 3n, …, until it completes.

    With `keep`, hold the exceptions meanwhile, as an interactive prompt holds the last one: a call
    must not depend on the release of what the frames of an interrupted call hold. Not for views: a
    view in such a frame counts as held.
    """

    def call(run: Callable[[], object]) -> None:
        kept: list[BaseException] | None = [] if keep else None
        if not any(_finishes(run, every * number, kept) for number in range(1, _ATTEMPTS)):
            run()

    return call


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector, whose finalisers would use the device at arbitrary points."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _finishes(run: Callable[[], object], point: int, kept: list[BaseException] | None) -> bool:
    """Run with an interrupt at a point; return whether the run completed before that point."""
    finished = False

    def attempt() -> None:
        nonlocal finished
        run()
        finished = True

    at_point(point, interrupt, attempt, kept)
    return finished
