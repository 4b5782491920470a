"""Decoding beside llama.cpp on the CPU: the same file, in turn, tokens per second.

llama.cpp runs its own CPU kernels, Penstock Vulkan kernels on a driver that translates them for the
CPU: the ratio says what a GPU's program costs where there is none, not how the two compare on one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import penstock as ps
from benchmarks.peers.conversation import Conversation, Lost
from benchmarks.peers.environments import LLAMA, NotInstalled, interpreter
from benchmarks.tables import Row, Section
from penstock.bench.measure import Samples, interleave
from penstock.bench.models import Test, model_type, run
from penstock.llm.model import load

TOKENS = 8
_LONG = 900.0  # seconds for one answer, on a machine that others use, too


def compare(
    device: ps.Device, repeat: int, models: Iterable[Path], *, directory: Path, reinstall: bool
) -> Section:
    """A row for each model and program."""
    rows: list[Row] = []
    for path in models:
        try:
            rows += _of_model(device, repeat, path, directory, reinstall)
        except (NotInstalled, Lost) as reason:
            rows.append(_row(path.name, "llama.cpp", f"does not take part: {reason}", Samples()))
    title = f"Decoding {TOKENS} tokens, tokens per second, with one thread of the CPU each"
    notes = (
        f"{repeat} rounds of each, in turn. llama.cpp times itself. It has one thread, because "
        "several wait for each other in",
        "a busy loop, which is slow where others use the cores, too; lavapipe has one by "
        "LP_NUM_THREADS=0",
    )
    return Section(title, rows or [{"model": "none given: --model FILE"}], notes)


def _of_model(
    device: ps.Device, repeat: int, path: Path, directory: Path, reinstall: bool
) -> list[Row]:
    python = interpreter(LLAMA, directory, reinstall=reinstall, tell=print)
    test = Test(0, TOKENS)
    with load(path, device, context=64) as model:
        peer = Conversation(
            str(path), python, Path(), {}, module="benchmarks.peers.llama", patience=_LONG
        )
        try:
            peer.ask({"prompt": 1, "tokens": 2})
            run(model, test.short)
            samples = interleave(
                {
                    "llama.cpp": lambda: peer.ask({"prompt": 1, "tokens": TOKENS})[:1],
                    "penstock": lambda: run(model, test).seconds,
                },
                repeat,
                warm_up=0,
            )
        finally:
            peer.close()
        name = model_type(model.file)
        versions = {"llama.cpp": peer.about["version"], "penstock": device.name}
        return [_row(name, one, versions[one], taken) for one, taken in samples.items()]


def _row(model: str, program: str, what: str, taken: Samples) -> Row:
    return {
        "model": model,
        "program": program,
        "version or device": what,
        "median t/s": TOKENS / taken.median,
        "best t/s": TOKENS / taken.minimum,
    }
