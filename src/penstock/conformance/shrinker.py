"""Shrinks failing programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from penstock.conformance.oracle import is_valid
from penstock.conformance.parts import Part
from penstock.conformance.program import (
    Ask,
    BeginBatch,
    Declared,
    EndBatch,
    Launch,
    Operation,
    Program,
    keeping,
    parts_of,
    with_parts,
)
from penstock.conformance.runner import Failure

_SECONDS = 30.0  # time limit for shrinking one program


def shrink(
    program: Program, failure: Failure, again: Callable[[Program, Failure], Failure | None]
) -> tuple[Program, Failure]:
    """Return a small program that still fails, and its failure.

    `again` runs a program under the conditions of an earlier failure. Tries one simplification
    after another, in a fixed order; starts over from the first that still fails, until none does.
    """
    deadline = time.monotonic() + _SECONDS
    tried: set[Program] = set()
    better = True
    while better:
        better = False
        for candidate in _simpler(program):
            if candidate == program or candidate in tried or not is_valid(candidate):
                continue
            if time.monotonic() > deadline:
                return program, failure
            tried.add(candidate)
            found = again(candidate, failure)
            if found is not None:
                program, failure, better = candidate, found, True
                break
    return program, failure


def _simpler(program: Program) -> Iterator[Program]:
    """Yield simpler programs, those with the most removed first."""
    operations = program.operations
    size = len(operations) // 2
    while size:
        for start in range(0, len(operations), size):
            gone = range(start, start + size)
            yield keeping(program, (n for n in range(len(operations)) if n not in gone))
        size //= 2
    # Pairs, such as a view and its drop or the two ends of a batch, must be removed together.
    slots = {getattr(operation, "slot", None) for operation in operations} - {None}
    for slot in sorted(slots, key=repr):
        kept = (n for n, each in enumerate(operations) if getattr(each, "slot", None) != slot)
        yield keeping(program, kept)
    kept = (n for n, each in enumerate(operations) if not isinstance(each, BeginBatch | EndBatch))
    yield keeping(program, kept)
    yield from _simpler_shape(program)
    for number, operation in enumerate(operations):
        for other in _simpler_operation(operation):
            yield replace(
                program, operations=(*operations[:number], other, *operations[number + 1 :])
            )


def _simpler_shape(program: Program) -> Iterator[Program]:
    """Without closing or interrupts; one thread, default thresholds, fewer streams and arrays."""
    operations = program.operations
    if program.closed_at:
        yield replace(program, closed_at=0)
    for each in program.interrupted:
        yield replace(
            program, interrupted=tuple(other for other in program.interrupted if other != each)
        )
    if program.threads > 1:
        yield replace(program, threads=1)
    if program.small:
        yield replace(program, small=False)
    last = program.streams - 1
    for target in sorted({0, last - 1}) if last else ():
        moving: Any = {"stream": target}
        moved = tuple(
            replace(each, **moving) if getattr(each, "stream", 0) == last else each
            for each in operations
        )
        threads = min(last, program.threads)
        yield replace(program, streams=last, threads=threads, operations=moved)
    used = {part.array for each in operations for part in parts_of(each)}
    if max(used, default=-1) < len(program.arrays) - 1 and len(program.arrays) > 1:
        arrays = program.arrays[:-1]
        kept = (n for n, each in enumerate(operations) if getattr(each, "array", 0) < len(arrays))
        yield replace(keeping(program, kept), arrays=arrays)
    for number, declared in enumerate(program.arrays):
        for plainer in _plainer(declared):
            yield _with_array(program, number, plainer)
        parts = [part for each in operations for part in parts_of(each) if part.array == number]
        start = min((part.lo for part in parts), default=0)
        if start >= 4:
            yield _moved_down(program, number, start // 4 * 4)


def _plainer(declared: Declared) -> Iterator[Declared]:
    """Yield simpler declarations: generic, one dimension, made by the runtime, uint32, smaller."""
    if declared.role != "generic":
        yield replace(declared, role="generic")
    if declared.columns:
        yield replace(declared, columns=0)
        if declared.size > 2 * declared.columns:
            yield replace(declared, size=declared.size // 2 // declared.columns * declared.columns)
    for how in ("zeros", "array", "adopted"):
        if how == declared.how or declared.role != "generic":
            break
        yield replace(declared, how=how)
    if declared.dtype != "uint32":
        yield replace(declared, dtype="uint32")
    if not declared.columns and declared.size > 4:
        yield replace(declared, size=max(4, declared.size // 8 * 4))


def _with_array(program: Program, number: int, declared: Declared) -> Program:
    """The program with an array declared differently; its slices are clipped to fit."""
    before = program.arrays[number]
    arrays = (*program.arrays[:number], declared, *program.arrays[number + 1 :])
    # If columns are dropped, a row becomes this many elements.
    factor = before.columns if before.columns and not declared.columns else 1

    def cut(part: Part) -> Part:
        if part.array != number:
            return part
        across = None if factor > 1 else part.across
        way = "" if part.way == "transposed" and not declared.columns else part.way
        if part.way == "words" and declared.dtype == "uint32":
            way = ""
        lo, hi = part.lo * factor, min(part.hi * factor, declared.shape[0])
        return replace(part, lo=min(lo, hi), hi=hi, across=across, way=way)

    operations = tuple(with_parts(operation, cut) for operation in program.operations)
    return replace(program, arrays=arrays, operations=operations)


def _moved_down(program: Program, number: int, count: int) -> Program:
    """The program with all slices of an array moved down by `count` elements."""

    def down(part: Part) -> Part:
        moved = replace(part, lo=part.lo - count, hi=part.hi - count)
        return moved if part.array == number else part

    operations = tuple(with_parts(operation, down) for operation in program.operations)
    return replace(program, operations=operations)


def _simpler_operation(operation: Operation) -> Iterator[Operation]:
    """Yield simpler forms of the operation: shorter and plainer slices, fewer options."""
    parts = parts_of(operation)
    size = max((part.hi - part.lo for part in parts), default=0)
    half = max(4, size // 8 * 4) if isinstance(operation, Launch | Ask) else size // 2
    if 0 < half < size:
        yield with_parts(operation, lambda p: replace(p, hi=p.lo + half))
        yield with_parts(operation, lambda p: replace(p, lo=p.hi - half))
    yield with_parts(operation, lambda p: replace(p, step=1))
    yield with_parts(operation, lambda p: replace(p, across=None))
    yield with_parts(operation, lambda p: replace(p, way=""))
    for option in (
        "slow",
        "borrow",
        "pinned",
        "spread",
        "out",
        "close",
        "dlpack",
        "across",
        "stream",
    ):
        value: Any = getattr(operation, option, False)
        if value:
            less: Any = {option: type(value)()}
            yield replace(operation, **less)
    if getattr(operation, "mode", "r") == "rw":
        writable: Any = {"mode": "w"}
        yield replace(operation, **writable)
