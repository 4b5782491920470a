"""Whole models beside llama.cpp on the CPU and beside another checkout, and what each kernel takes.

Every program runs in a process of its own, with one thread and with two: they take turns, round by
round, on the same prompts. A prompt is timed until the token after it has arrived, generated tokens
until the last has. Processor time is that of all threads; on a machine with other work it is the
better figure. Both checkouts must generate the same tokens, as far as they round alike.

The machine's limits are measured in the same run, by NumPy: bytes read per second (the dot product
of an array with itself), and multiply-adds per second (the product of two matrices in float32).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peers.conversation import Conversation, Lost
from benchmarks.peers.environments import LLAMA, NotInstalled, interpreter
from benchmarks.tables import Row, Section

PROGRAMS = ("penstock", "against", "llama.cpp")
_BATCH = 64  # tokens of a prompt whose kernels are timed: all are read at once, by the same kernels
_SMALL = 0.01  # share of the time: kernels with less are one row
_LONG = 900.0  # seconds for one answer, on a machine that others use, too


@dataclass(frozen=True)
class Plan:
    """What is measured: every model with every prompt and number of threads."""

    models: Sequence[Path]
    prompts: Sequence[int] = (64, 512)
    tokens: int = 32
    depth: int = 0  # tokens in the cache before the prompt
    threads: Sequence[int] = (1, 2)
    repeat: int = 3
    device: str | None = None
    against: Path | None = None  # another checkout
    only: Sequence[str] = PROGRAMS
    peers: Path = Path()
    reinstall: bool = False

    @property
    def context(self) -> int:
        return self.depth + max(*self.prompts, _BATCH) + self.tokens + 8


def run(plan: Plan) -> list[Section]:
    rows: list[Row] = []
    kernels: list[Row] = []
    limits = {count: _limits(count) for count in plan.threads}
    for model in plan.models:
        for count in plan.threads:
            with ExitStack() as stack:
                programs = _programs(plan, model, count, stack)
                for prompt in plan.prompts:
                    rows += _compare(plan, model, count, prompt, programs)
                mine = programs.get("penstock")
                if isinstance(mine, Conversation):
                    kernels += _kernels(plan, model, count, mine, limits[count])
    at = f" at a depth of {plan.depth:,}" if plan.depth else ""
    notes = (
        f"{plan.repeat} rounds in turn, medians; {plan.tokens} generated tokens{at}",
        "processor: ms of all threads; ×: how many times the processor time of --against is that",
    )
    bounds: list[Row] = [
        {"threads": count, "GB/s": one[0] / 1e9, "G multiply-adds/s": one[1] / 1e9}
        for count, one in limits.items()
    ]
    return [
        Section(
            f"Models{at}, ms per token", rows or [{"model": "none given: --model FILE"}], notes
        ),
        Section(
            f"Kernels{at}, of one token and of a prompt of {_BATCH}",
            kernels or [{"kernel": "none"}],
            ("a limit is the memory's for a token, and the multiply-adds' for a prompt",),
        ),
        Section("The machine's limits, by NumPy", bounds),
    ]


# Programs.


def _programs(
    plan: Plan, model: Path, threads: int, stack: ExitStack
) -> dict[str, Conversation | str]:
    """Start every program that is wanted; one that does not run is the reason."""
    found: dict[str, Conversation | str] = {}
    for name in plan.only:
        if name == "against" and plan.against is None:
            continue
        try:
            made = _llama(plan, model, threads) if name == "llama.cpp" else None
            made = made or _penstock(plan, model, threads, name)
        except (NotInstalled, Lost) as reason:
            found[name] = str(reason)
            continue
        stack.callback(made.close)
        found[name] = made
    return found


def _penstock(plan: Plan, model: Path, threads: int, name: str) -> Conversation:
    # Of one thread, lavapipe runs everything in the thread that submits.
    environment = {
        "LP_NUM_THREADS": "0" if threads == 1 else str(threads),
        "PENSTOCK_CONTEXT": str(plan.context),
    }
    root = plan.against if name == "against" and plan.against else Path(__file__).parents[1]
    return Conversation(
        str(model.absolute()), Path(sys.executable), Path(plan.device or "."), environment,
        module="benchmarks.peers.generating", patience=_LONG, source=root.absolute() / "src",
    )  # fmt: skip


def _llama(plan: Plan, model: Path, threads: int) -> Conversation:
    python = interpreter(LLAMA, plan.peers, reinstall=plan.reinstall, tell=print)
    environment = {"LLAMA_THREADS": str(threads), "LLAMA_CONTEXT": str(plan.context)}
    return Conversation(
        str(model.absolute()), python, Path(), environment, module="benchmarks.peers.llama",
        patience=_LONG,
    )  # fmt: skip


def _compare(
    plan: Plan, model: Path, threads: int, prompt: int, programs: dict[str, Conversation | str]
) -> Iterator[Row]:
    question = {"prompt": prompt, "tokens": plan.tokens, "depth": plan.depth}
    running = {name: one for name, one in programs.items() if isinstance(one, Conversation)}
    if prompt == plan.prompts[0]:  # compiles what others need, too
        for one in running.values():
            one.answer_to({**question, "tokens": 2})
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
    for number in range(plan.repeat):
        for name in sorted(running, reverse=number % 2 == 1):
            answers[name].append(running[name].answer_to(question))
    base = _figures(plan, prompt, answers["against"]) if "against" in answers else None
    same = {tuple(one["ids"]) for few in answers.values() for one in few if "ids" in one}
    for name, one in programs.items():
        row: Row = {
            "model": model.stem, "threads": threads, "prompt": prompt, "program": name,
            "prompt ms": None, "processor": None, "decode ms": None, "processor, decode": None,
            "prompt ×": None, "decode ×": None, "note": "",
        }  # fmt: skip
        if isinstance(one, str):
            row["note"] = f"does not take part: {one}"
        else:
            found = _figures(plan, prompt, answers[name])
            row.update(found)
            if base and name == "penstock":
                row["prompt ×"] = _times(base["processor"], found["processor"])
                row["decode ×"] = _times(base["processor, decode"], found["processor, decode"])
                row["note"] = "" if len(same) == 1 else "other tokens than before"
        yield row


def _figures(plan: Plan, prompt: int, answers: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds per token: medians of the rounds."""

    def of(kind: str, number: int, tokens: int) -> float:
        return median(one[kind][number] for one in answers) / tokens * 1e3

    return {
        "prompt ms": of("seconds", 1, prompt), "processor": of("processor", 1, prompt),
        "decode ms": of("seconds", 0, plan.tokens),
        "processor, decode": of("processor", 0, plan.tokens),
    }  # fmt: skip


def _times(before: float, after: float) -> float:
    return before / after if after else float("nan")


# Kernels and limits.


def _kernels(
    plan: Plan, model: Path, threads: int, program: Conversation, limits: tuple[float, float]
) -> Iterator[Row]:
    question = {"kernels": 1, "prompt": _BATCH, "depth": plan.depth}
    found = program.answer_to(question)["kernels"]
    for part in ("token", "prompt"):
        few = sorted((one for one in found if one["part"] == part), key=lambda one: -one["seconds"])
        whole = sum(one["seconds"] for one in few)
        small = [one for one in few if one["seconds"] < _SMALL * whole]
        rest = {
            "kernel": "others", "launches": sum(one["launches"] for one in small),
            "seconds": sum(one["seconds"] for one in small), "bytes": 0.0, "products": 0.0,
        }  # fmt: skip
        for one in [*(one for one in few if one not in small), rest]:
            seconds = one["seconds"] or float("nan")
            if part == "token":
                limit = one["bytes"] / seconds / limits[0]
            else:
                limit = one["products"] / seconds / limits[1]
            yield {
                "model": model.stem, "threads": threads, "part": part, "kernel": one["kernel"],
                "launches": one["launches"], "ms": one["seconds"] * 1e3,
                "share %": 100 * one["seconds"] / whole if whole else float("nan"),
                "GB/s": one["bytes"] / seconds / 1e9 if one["bytes"] else None,
                "G multiply-adds/s": one["products"] / seconds / 1e9 if one["products"] else None,
                "% of limit": 100 * limit if one["bytes"] else None,
            }  # fmt: skip


def _limits(threads: int) -> tuple[float, float]:
    """Bytes, and multiply-adds, per second, of this number of threads at once."""
    size, order = (1 << 29) // 4, 1024
    arrays = [np.ones(size, np.float32) for _ in range(threads)]
    matrices = [np.ones((order, order), np.float32) for _ in range(threads)]
    read = min(_together(lambda n: arrays[n] @ arrays[n], threads) for _ in range(5))
    products = min(_together(lambda n: matrices[n] @ matrices[n], threads) for _ in range(10))
    return threads * 4 * size / read, threads * order**3 / products


def _together(work: Any, threads: int) -> float:
    """Seconds until every thread has done its work."""
    everyone = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    start = time.perf_counter()
    for one in everyone:
        one.start()
    for one in everyone:
        one.join()
    return time.perf_counter() - start
