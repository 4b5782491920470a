"""What each mechanism is worth: decoding without it, compared with decoding with all of them.

All cases alternate, round by round, and must make the same tokens. `noise` compares all of them on
with itself: a ratio no further from 1 than that of `noise` shows nothing.

=====================  =========================================================================
zero-copy transfers    no mapped memory: weights are copied once, tokens through staging blocks
persistent scratch     activations are made for every token, of memory that the pool has kept
resource-aware access  the host waits for all work before it touches anything
renaming               a busy buffer that is overwritten gets no fresh backing
graph replay           the work of every token is recorded and encoded again
GPU-side sampling      the logits go to the host, and the token comes back
=====================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.bench import machine, models
from penstock.bench.measure import expect, interleave, ratio
from penstock.bench.models import OnProgress, Run, Test
from penstock.llm.model import CacheType, Model, load
from penstock.llm.optimizations import ALL, Mechanisms

Row = dict[str, Any]

NOTHING, NOISE = "nothing", "noise: nothing, again"
_NONE = Mechanisms(scratch=False, replay=False, access=False, sampling=False)
#: By what is taken away: how transfers go, and what else is left.
CASES: dict[str, tuple[str, Mechanisms]] = {
    NOTHING: ("auto", ALL),
    NOISE: ("auto", ALL),
    "zero-copy transfers": ("unmapped", ALL),
    "persistent scratch": ("auto", Mechanisms(scratch=False)),
    "resource-aware access": ("auto", Mechanisms(access=False)),
    "renaming": ("fixed", ALL),
    "graph replay": ("auto", Mechanisms(replay=False)),
    "GPU-side sampling": ("auto", Mechanisms(sampling=False)),
    "any of them": ("unmapped", _NONE),
}


def ablate(
    path: Path,
    device: str | int | None,
    test: Test,
    *,
    batch: int,
    cache: CacheType,
    repeat: int,
    progress: OnProgress,
) -> Iterator[Row]:
    """A row per case, once all are measured."""
    started = machine.now()
    with ExitStack() as ending:
        loaded: dict[str, Model] = {}
        for transfers, _ in CASES.values():
            if transfers not in loaded:
                opened = ending.enter_context(ps.Device(device, transfers=transfers))
                made = load(path, opened, context=test.room, batch=batch, cache=cache)
                loaded[transfers] = ending.enter_context(made)
        runs = _run_all(loaded, test, repeat, progress)
        wanted = runs[NOTHING][0].ids
        for name, found in runs.items():
            expect(all(one.ids == wanted for one in found), f"decoding without {name}")
            transfers, _ = CASES[name]
            times = [one.seconds for one in found]
            base = [one.seconds for one in runs[NOTHING]]
            yield {
                **models.identity(loaded[transfers], batch, cache),
                "benchmark": "ablation",
                "test_time": started,
                "without": name,
                **models.row_of(test, found),
                **ratio(times, base, paired=True).columns("ratio"),
            }


def _run_all(
    loaded: dict[str, Model], test: Test, repeat: int, progress: OnProgress
) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {name: [] for name in CASES}

    def once(name: str) -> float:
        transfers, mechanisms = CASES[name]
        runs[name].append(models.run(loaded[transfers], test, mechanisms))
        return runs[name][-1].seconds

    for name, (transfers, mechanisms) in CASES.items():  # compiles
        progress(f"warm-up without {name}", 0, repeat)
        models.run(loaded[transfers], test.short, mechanisms)
    cases = {name: partial(once, name) for name in CASES}
    interleave(cases, repeat, warm_up=0, progress=lambda done, of: progress("ablation", done, of))
    progress("ablation", repeat, repeat)
    return runs
