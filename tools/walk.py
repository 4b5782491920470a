"""Counts how much of Penstock a call executes: files, functions and lines.

`python -m tools.walk` makes each of a handful of common calls in the steady state (after several
calls of the same kind) and counts what the interpreter executes under `src/penstock`: distinct
files, distinct functions, and lines (a line executed twice counts twice). That is the code that a
reader must follow to understand a call, and most of what the call costs. `--list` also names the
functions, in the order of their first calls.

An array is made busy by a launch that is recorded but not yet submitted, so that the counts do not
depend on the speed of the device. (The number of polls of a wait does depend on it, so each count
is the smallest of several.) No trace is active. The runtime's own threads are not counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import penstock as ps
from penstock import accelerator

_PACKAGE = f"{Path(ps.__file__).parent}/"
_SIZE = 256  # elements: a transfer of them is small
_WARM_UP = 5  # calls before those that count
_TRIES = 5  # calls that count; the one with the fewest lines is reported

_TWICE = """
    layout(local_size_x = 64) in;
    layout(binding = 0) buffer X { float x[]; };
    void main() { x[gl_GlobalInvocationID.x] *= 2.0; }
"""


class Walk:
    """The functions and lines that the calling thread executes while `follow` makes a call."""

    def __init__(self) -> None:
        #: (file, function): lines, in the order of first calls.
        self.functions: dict[tuple[str, str], int] = {}

    @property
    def files(self) -> int:
        return len({file for file, _ in self.functions})

    @property
    def lines(self) -> int:
        return sum(self.functions.values())

    def follow(self, call: Callable[[], Any]) -> None:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            return None
        at = (file.removeprefix(_PACKAGE), frame.f_code.co_qualname)
        self.functions.setdefault(at, 0)

        def passed(_: FrameType, event: str, __: Any) -> Any:
            if event == "line":
                self.functions[at] += 1
            return passed

        return passed


def calls(dev: ps.Device) -> Iterator[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Yield each call's name, its preparation and the call itself; both run in a batch."""
    k = dev.kernel(_TWICE, name="twice")
    x, y = dev.ones(_SIZE, name="x"), dev.ones(_SIZE, name="y")
    a = np.ones(_SIZE, np.float32)
    part, half = x[: _SIZE // 2], a[: _SIZE // 2]
    with dev.record() as g:
        k(x=y, threads=_SIZE)

    def nothing() -> None:
        pass

    def launch() -> None:
        k(x=x, threads=_SIZE)

    yield "k(x=x)", launch, launch
    yield "x.write(a), idle", nothing, lambda: x.write(a)
    yield "x.write(a), busy: renamed", launch, lambda: x.write(a)
    yield "x[:n].write(a), busy: staged", launch, lambda: part.write(half)
    yield "x.read(), idle", nothing, lambda: x.read()
    yield "x.numpy(), idle", nothing, lambda: x.numpy()
    yield "x.numpy(), busy: waits", launch, lambda: x.numpy()
    yield "x.view(), idle", nothing, lambda: x.view()
    yield "x.fill(1), idle", nothing, lambda: x.fill(1)
    yield "g.replay()", g.replay, lambda: g.replay()


def measure(dev: ps.Device) -> dict[str, Walk]:
    """Return the walk of each call, by name. Made in Python alone, as the native step specifies."""
    found: dict[str, Walk] = {}
    native, accelerator.native = accelerator.native, accelerator.InPython()
    try:
        _measure(dev, found)
    finally:
        accelerator.native = native
    return found


def _measure(dev: ps.Device, found: dict[str, Walk]) -> None:
    for name, before, call in calls(dev):
        walks = []
        for _ in range(_WARM_UP + _TRIES):
            dev.synchronize()
            walk = Walk()
            with dev.default_stream.batch():
                before()
                walk.follow(call)
            walks.append(walk)
        found[name] = min(walks[_WARM_UP:], key=lambda walk: walk.lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.walk", description=__doc__)
    parser.add_argument("--driver", default="vulkan", help="the driver (%(default)s)")
    parser.add_argument("--list", action="store_true", help="also name the functions")
    chosen = parser.parse_args(arguments)
    with ps.Device(driver=chosen.driver) as dev:
        found = measure(dev)
    width = max(map(len, found))
    print(f"{'call':{width}}  files  functions  lines")
    for name, walk in found.items():
        print(f"{name:{width}}  {walk.files:5}  {len(walk.functions):9}  {walk.lines:5}")
        if chosen.list:
            for (file, function), lines in walk.functions.items():
                print(f"    {lines:4}  {file}  {function}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
