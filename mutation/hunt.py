"""One mutant: load the runtime with it, and look for a program that tells. Run as a process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from mutation.loading import load
from mutation.mutants import named


def hunt(programs: int) -> dict[str, Any]:
    """The first program that fails, made small."""
    from penstock.conformance import CORPUS, Lab, generate, shrink
    from penstock.conformance.script import as_script
    from penstock.transfer import MODES

    def candidates() -> Iterator[tuple[Any, str, int]]:
        for seed in range(6):
            for program in CORPUS:
                for mode in MODES:
                    yield program, mode, seed
        for seed in range(programs):
            yield generate(seed), MODES[seed % len(MODES)], seed

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


if __name__ == "__main__":
    load(named(sys.argv[1]))
    print(json.dumps(hunt(int(sys.argv[2]))))
