"""One peer in a process of its own: `python -m benchmarks.peers.worker NAME PROGRAMS`.

It speaks JSON, a line each way. First it says what it is, or why it cannot be:

    {"about": {"version": …, "device": …}, "how": {row: words}, "lacks": {row: reason}}
    {"unavailable": reason}

Then, for every line `{"row": "wait", "rounds": 5}`, it runs the row and answers `{"seconds": […]}`,
or `{"wrong": what}` if a value was not what it should be. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.bench.jobs import JOBS, Peer, Unavailable
from penstock.bench.measure import WrongResult


def main(name: str, programs: Path) -> None:
    answer = answering()
    try:
        peer = open_peer(name, programs)
    except Unavailable as reason:
        answer({"unavailable": str(reason)})
        return
    except Exception as error:
        answer({"unavailable": f"{type(error).__name__}: {error}"})
        return
    answer({"about": peer.about(), "how": peer.how, "lacks": peer.lacks})
    for line in sys.stdin:
        asked = json.loads(line)
        job = JOBS[asked["row"]]
        try:
            answer({"seconds": [job.run(peer) for _ in range(asked["rounds"])]})
        except WrongResult as error:
            answer({"wrong": str(error)})
    peer.close()


def answering() -> Callable[[dict[str, Any]], None]:
    """Return what sends an answer; whatever else the process prints goes where errors go."""
    answers = os.fdopen(os.dup(1), "w")  # some peers print greetings
    os.dup2(2, 1)
    return lambda message: print(json.dumps(message), file=answers, flush=True)


def open_peer(name: str, programs: Path) -> Peer:
    """The peer of that name: class `Worker` in the module of that name."""
    module, _, variant = name.partition("-")
    kind: Callable[[Path], Peer] = getattr(
        import_module(f"benchmarks.peers.{module}"), f"{variant.capitalize()}Worker"
    )
    return kind(programs)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
