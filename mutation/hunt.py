"""Loads the runtime with one mutant, and searches for a program that fails. Run as a process."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mutation.loading import load

if TYPE_CHECKING:
    from penstock.conformance import Lab, Program

_TURNS = 6  # schedules of every named program, with random programs in between
_AGAIN = 40  # random programs per device and mode; devices that run in order show little more


def hunt(programs: int) -> dict[str, Any]:
    """Find the first program that fails on the simulator, and shrink it."""
    from penstock.array.transfer import MODES
    from penstock.conformance import CORPUS, Lab, generate, shrink
    from penstock.conformance.script import as_script

    def candidates() -> Iterator[tuple[Program, str, int]]:
        for turn in range(_TURNS):
            for program in CORPUS:
                for mode in MODES:
                    yield program, mode, turn
            for seed in range(turn, programs, _TURNS):
                yield generate(seed), MODES[seed // _TURNS % len(MODES)], seed

    lab = Lab("sim")
    for tried, (program, mode, seed) in enumerate(candidates(), 1):
        failure = lab.run(program, mode, seed)
        if failure is not None:
            small, why = shrink(program, failure, lab.run_any)
            return {
                "caught": True,
                "tried": tried,
                "by": program.name,
                "operations": len(small.operations),
                "script": as_script(small, lab.device_arguments(why)),
                "why": why.what,
            }
    return {"caught": False, "tried": tried}


def hunt_on_devices(programs: int) -> dict[str, Any]:
    """Find the first program that fails on a Vulkan device of this machine; do not shrink it."""
    import penstock as ps
    from penstock.conformance import CORPUS, Lab, generate, runner

    runner.PATIENCE = 3.0

    def candidates() -> Iterator[tuple[Lab, str, Program]]:
        for info in ps.devices():
            # Under validation, a thread that waits and one that signals stall each other, so the
            # mode "ordered" runs without it.
            for modes, validate in ((("auto", "staged", "unmapped"), True), (("ordered",), False)):
                lab = Lab("vulkan", info.name, validate=validate)
                yield from ((lab, mode, program) for mode in modes for program in CORPUS)
                for seed in range(min(programs, _AGAIN)):
                    for mode in modes:
                        yield lab, mode, generate(seed, alignment=lab.alignment(mode))

    for tried, (lab, mode, program) in enumerate(candidates(), 1):
        failure = lab.run(program, mode, 0)
        if failure is not None:
            return {
                "caught": True,
                "tried": tried,
                "by": program.name,
                "operations": len(program.operations),
                "mode": mode,
                "device": lab.device,
                "why": failure.what,
            }
    return {"caught": False, "tried": tried}


def hunt_over_stand_in(programs: int) -> dict[str, Any]:
    """Find the first program that fails over the stand-in for HIP's library; do not shrink it."""
    from penstock.array.transfer import MODES
    from penstock.conformance import CORPUS, Lab, generate, runner
    from tests.hip import standin

    runner.PATIENCE = 3.0
    with tempfile.TemporaryDirectory() as directory:
        library = standin.StandIn(standin.build(Path(directory)))
        tried = 0
        for integrated in (0, 1):
            with library.chosen(integrated=integrated):
                lab = Lab("hip")
                chosen = [*CORPUS, *(generate(seed) for seed in range(min(programs, _AGAIN)))]
                for program in chosen:
                    for mode in MODES:
                        tried += 1
                        failure = lab.run(program, mode, 0)
                        why = failure.what if failure else "".join(library.messages[:1])
                        if why:
                            return {
                                "caught": True, "tried": tried, "by": program.name,
                                "operations": len(program.operations), "mode": mode, "why": why,
                            }  # fmt: skip
    return {"caught": False, "tried": tried}


_HUNTS = {"sim": hunt, "vulkan": hunt_on_devices, "hip": hunt_over_stand_in}

if __name__ == "__main__":
    mutant = load(sys.argv[1])
    search = _HUNTS[mutant.driver]
    print(json.dumps(search(int(sys.argv[2]))), flush=True)
    os._exit(0)  # hanging threads must not keep the process alive
