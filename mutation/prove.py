"""Runs the named programs that test a safeguard without it: each must fail. Run as a process.

Without a mutant, every program must pass, and the paths of its transfers are recorded.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from mutation.loading import load

if TYPE_CHECKING:
    from penstock.conformance import Program

SEEDS = 24  # schedules, one of which must make a program fail
_INTACT = 6  # schedules, on all of which an intact program must pass


def prove(mutant: str) -> list[dict[str, Any]]:
    """For every program and mode that test this mutant, how it fails; `why` is empty if not."""
    from mutation.litmus import programs_of
    from penstock.conformance import Lab

    lab = Lab("sim")
    found = []
    for program, mode in programs_of(mutant):
        runs = ((seed, lab.run(program, mode, seed)) for seed in range(SEEDS))
        seed, failure = next(((s, f) for s, f in runs if f is not None), (SEEDS, None))
        why = "" if failure is None else failure.what
        found.append({"program": program.name, "mode": mode, "seed": seed, "why": why})
    return found


def intact() -> list[dict[str, Any]]:
    """The same without a mutant: `why` must be empty; also the paths that transfers take."""
    from penstock.array.transfer import MODES
    from penstock.conformance import CORPUS, Lab

    lab = Lab("sim")
    found = []
    for program in CORPUS:
        for mode in MODES:
            failures = [f for seed in range(_INTACT) if (f := lab.run(program, mode, seed))]
            why = failures[0].what if failures else ""
            paths = sorted({p for seed in range(_INTACT) for p in paths_of(program, mode, seed)})
            found.append({"program": program.name, "mode": mode, "why": why, "paths": paths})
    return found


def paths_of(program: Program, mode: str, seed: int) -> list[str]:
    """The paths that the program's transfers and fills take, on one schedule."""
    import penstock as ps
    from penstock.conformance.program import Fill, Operation, Read, Write
    from penstock.conformance.runner import Bench, Host, Running

    paths: list[str] = []

    class Traced(Running):
        def _do(self, operation: Operation) -> Host | None:
            with ps.trace() as receipt:
                seen = super()._do(operation)
            kinds = {Write: "copy", Read: "copy", Fill: "fill"}
            kind = kinds.get(type(operation), "")
            name = type(operation).__name__.lower()
            paths.extend(f"{name} {event.path}" for event in receipt.of_kind(kind)[:1])
            return seen

    with ps.Device(driver="sim", seed=seed, transfers=mode) as device:
        Traced(program, Bench(device, seed)).all()
    return paths


if __name__ == "__main__":
    name = sys.argv[1]
    if name:
        load(name)
    print(json.dumps(prove(name) if name else intact()))
