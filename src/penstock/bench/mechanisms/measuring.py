"""The mechanisms in the order in which they are reported, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from penstock.bench import machine
from penstock.bench.mechanisms import (
    busy_writes,
    launches,
    load,
    peeks,
    sampling,
    scratch,
    transfers,
)
from penstock.bench.mechanisms.comparison import Mechanism, Plan, Row, row_of
from penstock.errors import InvalidValue

MECHANISMS: dict[str, Mechanism] = {
    each.name: each
    for each in (
        load.MECHANISM, transfers.MECHANISM, busy_writes.MECHANISM, scratch.MECHANISM,
        peeks.MECHANISM, sampling.MECHANISM, launches.MECHANISM,
    )
}  # fmt: skip


def chosen(only: str | None) -> list[Mechanism]:
    """The mechanisms that a list of names stands for; None: all."""
    names = only.split(",") if only else list(MECHANISMS)
    if unknown := sorted(set(names) - set(MECHANISMS)):
        raise InvalidValue(f"--only knows {', '.join(MECHANISMS)}; not {', '.join(unknown)}")
    return [MECHANISMS[name] for name in MECHANISMS if name in names]


def measure(plan: Plan, mechanisms: Sequence[Mechanism]) -> Iterator[Row]:
    """The rows, each as soon as it is measured."""
    for mechanism in mechanisms:
        with ExitStack() as ending:
            for case in mechanism.compare(plan, ending):
                started = machine.now()
                row = row_of(mechanism, plan, case)
                yield {
                    "benchmark": "mechanisms",
                    **machine.build(),
                    **machine.environment(plan.device),
                    "test_time": started,
                    **row,
                }
