"""What an event is, and the words for it, as `advice` needs them."""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING

from penstock.tracing.source_lines import file_and_line
from penstock.tracing.split_calls import split_read, view_of

if TYPE_CHECKING:
    from penstock.tracing.gaps import Gap
    from penstock.tracing.receipt import TraceEvent

_ARRAY_FUNCTION = re.compile(r"(.*\.)?(xp|np|numpy)\.\w+\(")
_SHORT = 2e-4  # seconds of a launch that is worth merging with others
#: Reasons of copies that carry values from the device to the host.
_READS = (
    "the work that writes the bytes is done",
    "nothing pending writes the bytes",
    "to the caller's array",
)


def is_read(event: TraceEvent) -> bool:
    """Whether a transfer carries values to the host only."""
    return event.kind == "copy" and event.reason in _READS


def work(gap: Gap) -> str:
    """What ended a gap: a launch, replay, copy or fill."""
    return gap.after.kind


def stream(command: TraceEvent) -> str:
    """How a program names the stream of a command, as far as Penstock knows."""
    return "dev.default_stream" if command.stream == "default stream" else "stream"


def is_short(command: TraceEvent) -> bool:
    return command.kind == "launch" and (command.device_seconds or 0.0) <= _SHORT


def returns_array(launch: TraceEvent) -> bool:
    """Whether a launch is of an operator or a function of arrays, as far as its line tells."""
    if launch.call:
        return _ARRAY_FUNCTION.match(launch.call) is not None
    return bool(linecache.getline(*file_and_line(launch.where)))


def takes_no_value(wait: TraceEvent) -> bool:
    return wait.reason.startswith("synchronize()") or wait.call.endswith(".wait()")


def wait_in_words(wait: TraceEvent) -> str:
    """The part of a call that only waits: what it is called on may do work."""
    done, dot, _ = wait.call.rpartition(".wait()")
    if dot and done.endswith(")"):
        return f"`.wait()` after `{done}`"
    return f"`{wait.call or 'synchronize()'}`"


def is_one_call(wait: TraceEvent, command: TraceEvent) -> bool:
    """Whether a call of the user's both waits and issues the work: it cannot be split."""
    same = wait.instruction == command.instruction >= 0
    return same and (wait.where, wait.call) == (command.where, command.call)


def read_in_words(read: TraceEvent) -> tuple[str, str]:
    """How to begin a read without a wait, and how to take its value."""
    split = split_read(read.call)
    if split is None:
        return f"`pending = ….read()` of the same part of {read.buffer!r}", "`pending.result()`"
    return f"`pending = {split.begin}`", f"`{split.take}`"


def view_in_words(read: TraceEvent) -> str:
    view = view_of(read.call)
    return f"`{view}`" if view else "`….view('r')` of the same part"
