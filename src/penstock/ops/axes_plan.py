"""How a reduction along axes is divided into jobs: pure arithmetic on shapes and strides.

A kernel (`shaders/axes.comp`) walks the reduced axes for each output. It loads four elements at
once where they lie side by side: of one output (`along`), or of four (`across`). The elements of an
output are split into parts where the outputs are few, and on CPUs also where they are far apart, so
that neighbouring groups read neighbouring memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

MOST_AXES = 4  # kept ones, and reduced ones, that a kernel walks
MOST_TURNS = 60_000  # lavapipe ends the loops of an invocation after 65,535 in all
BLOCK = 16  # steps that are added together plainly
_NEARBY = 1 << 18  # bytes that the rows of a part should span on a CPU
_FEWEST_ROWS = 32  # of a part, when an output is split only for that


class Axis(NamedTuple):
    size: int
    step: int  # bytes from one element to the next
    to: int = 0  # of a kept axis: elements from one output to the next


class Walk(NamedTuple):
    """The elements of a reduction: where the first is, and the axes, innermost first."""

    at: int  # bytes
    kept: tuple[Axis, ...]
    reduced: tuple[Axis, ...]

    @property
    def outputs(self) -> int:
        return math.prod(axis.size for axis in self.kept)

    @property
    def each(self) -> int:
        """The number of elements of an output."""
        return math.prod(axis.size for axis in self.reduced)


def walk_of(
    at: int, shape: tuple[int, ...], strides: tuple[int, ...], reduced: frozenset[int], *,
    ordered: bool, to: Sequence[int] | None = None,
) -> Walk:  # fmt: skip
    """The walk over an array, with as few axes as its strides allow.

    With `ordered`, the elements of an output are walked in C order: their indices matter. Outputs
    are in C order, or as far apart as `to` says, by axis.
    """
    kept_axes, reduced_axes = [], []
    outputs = 1
    for axis in range(len(shape) - 1, -1, -1):
        size, step = shape[axis], strides[axis]
        if axis in reduced:
            if step < 0 and not ordered:
                at, step = at + (size - 1) * step, -step
            reduced_axes.append(Axis(size, step))
        else:
            kept_axes.append(Axis(size, step, outputs if to is None else to[axis]))
            outputs *= size
    kept_axes = _merged(sorted(kept_axes, key=_nearness))
    if not ordered:
        reduced_axes.sort(key=_nearness)
    return Walk(at, tuple(kept_axes), tuple(_merged(reduced_axes)))


def _nearness(axis: Axis) -> tuple[bool, int]:
    return axis.step <= 0, abs(axis.step)


def _merged(axes: list[Axis]) -> list[Axis]:
    """The axes, where two that are walked through evenly become one."""
    made: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if made:
            size, step, to = made[-1]
            if axis.step == size * step and axis.to == size * to:
                made[-1] = Axis(size * axis.size, step, to)
                continue
        made.append(axis)
    return made or [Axis(1, 0, 1)]


class Grid(NamedTuple):
    """What a device runs at once."""

    on_cpu: bool
    group_size: int
    most_groups: int
    enough: int  # invocations that occupy it
    singles: bool = False  # kernels load one element at a time


class Plan(NamedTuple):
    """The jobs of one launch."""

    walk: Walk
    along: bool
    across: bool
    aligned: bool  # the four elements of a load start at a multiple of their size
    sideways: bool
    units: int
    row_splits: int
    step_splits: int
    rows: int
    rows_each: int
    steps_each: int
    jobs: int
    groups: tuple[int, int, int]
    span: int

    @property
    def splits(self) -> int:
        return self.row_splits * self.step_splits

    @property
    def short(self) -> bool:
        """Whether a part has few enough steps for one block of a sum."""
        return self.rows_each == 1 and self.steps_each <= BLOCK

    @property
    def fours(self) -> bool:
        """Whether the four outputs of a job are side by side, from a multiple of four on."""
        inner, *others = self.walk.kept
        each = not self.walk.outputs % 4 if self.splits > 1 else True
        return self.across and inner.to == 1 and each and not (others and inner.size % 4)

    @property
    def packs(self) -> bool:
        """Whether what a job stores are whole words, even of small outputs."""
        return self.fours or self.walk.outputs == 1


def plan(
    walk: Walk, itemsize: int, grid: Grid, *, ordered: bool = False, of_parts: bool = False
) -> Plan:
    """Divide a reduction into jobs."""
    block = 1 if of_parts else BLOCK
    fewest_across = 2 if of_parts else 4  # outputs side by side
    inner = walk.kept[0]
    near = walk.reduced[0].step == itemsize and walk.reduced[0].size >= 16
    along = near and not grid.singles
    across = not near and inner.step == itemsize and inner.size >= fewest_across
    across = across and not grid.singles
    reduced = walk.reduced
    if not near and not ordered:  # then the longest loop is the inner one
        longest = max(range(len(reduced)), key=lambda k: reduced[k].size)
        reduced = (reduced[longest], *reduced[:longest], *reduced[longest + 1 :])
        walk = walk._replace(reduced=reduced)
    units = -(-inner.size // 4) if across else inner.size
    units *= math.prod(axis.size for axis in walk.kept[1:])
    steps = reduced[0].size // 4 if along else reduced[0].size
    rows = math.prod(axis.size for axis in reduced[1:])
    sideways = near and not grid.on_cpu
    row_splits, step_splits = _splits(walk, units, steps, rows, grid, block, along=near)
    rows_each, steps_each = -(-rows // row_splits), max(1, -(-steps // step_splits))
    row_splits, step_splits = -(-rows // rows_each), max(1, -(-steps // steps_each))
    turns = rows_each * _turns(steps_each, block) + 4
    layers = row_splits if sideways else row_splits * step_splits
    jobs = units * step_splits if sideways else units
    each = max(1, MOST_TURNS // turns)  # jobs that an invocation can take
    groups = max(
        -(-jobs // (grid.group_size * each)),
        min(-(-jobs // grid.group_size), max(1, grid.most_groups // layers)),
    )
    span = -(-jobs // groups)
    span = -(-span // grid.group_size) * grid.group_size
    count = -(-jobs // span), 1 if sideways else step_splits, row_splits
    unit = 4 * itemsize
    aligned = along or (
        across
        and not walk.at % unit
        and not any(axis.step % unit for axis in (*walk.kept[1:], *reduced))
    )
    return Plan(
        walk, along, across, aligned, sideways, units, row_splits, step_splits, rows, rows_each,
        steps_each, jobs, count, span,
    )  # fmt: skip


def _turns(steps: int, block: int) -> int:
    """Turns of the loops over a row: over its blocks, their steps, and what is left at the ends."""
    return steps + 2 * -(-steps // block) + 12


def _splits(
    walk: Walk, units: int, steps: int, rows: int, grid: Grid, block: int, *, along: bool
) -> tuple[int, int]:
    """Into how many parts to divide the rows of an output, and the steps of a row."""
    wanted, fewest = -(-grid.enough // units), 128 if grid.on_cpu else 8
    if not grid.on_cpu:
        if along:  # neighbours read neighbouring fours
            wanted = max(wanted, min(32, steps))
    elif not along and units > grid.group_size:
        pitch = max(1, abs(walk.reduced[0].step))
        if pitch * steps > 4 * _NEARBY:
            fewest = max(_FEWEST_ROWS, _NEARBY // pitch)
            wanted = max(wanted, steps // fewest)
    # No part may have too many turns, whatever else.
    row_splits = step_splits = 1
    if wanted > 1:
        if rows >= 4 * steps or rows >= wanted:
            row_splits = min(wanted, max(1, rows * steps // fewest), rows)
        step_splits = min(-(-wanted // row_splits), max(1, steps // fewest))
    if _turns(steps, block) > MOST_TURNS * step_splits:
        step_splits = -(-2 * _turns(steps, block) // MOST_TURNS)
    of_row = _turns(max(1, -(-steps // step_splits)), block)
    if -(-rows // row_splits) * of_row > MOST_TURNS:
        row_splits = -(-rows // max(1, (MOST_TURNS - 4) // of_row))
    return row_splits, step_splits
