"""Language models by llama-bench's rules: `pp512` reads a prompt, `tg128` makes tokens.

Tokens are random. A test is run once to warm up, then `repeat` times; with a depth, that many
tokens are in the cache before the time starts. A prompt is timed until the token after it has
arrived; generated tokens from an idle device to the arrival of the last, each read by the host.

Rows also have the receipt's counts: what a token cost in waits, copies, bytes, allocations,
submissions, launches and barriers, which noise does not change.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.bench import machine
from penstock.llm.costs import COUNTS, counted
from penstock.llm.model import CacheType, Model, load
from penstock.llm.modelfile import ModelFile
from penstock.llm.optimizations import AHEAD, ALL, Mechanisms

Row = dict[str, Any]
#: Called with what is measured, the runs that are done of it, and how many there are.
OnProgress = Callable[[str, int, int], None]

#: What GGUF's number for the kind of a whole file stands for.
_FILE_TYPES = {
    0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K", 11: "Q3_K - Small", 12: "Q3_K - Medium", 13: "Q3_K - Large",
    14: "Q4_K - Small", 15: "Q4_K - Medium", 16: "Q5_K - Small", 17: "Q5_K - Medium", 18: "Q6_K",
    25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16", 38: "MXFP4 MoE",
}  # fmt: skip


@dataclass(frozen=True)
class Test:
    """A prompt, then tokens, at a depth; one of the first two may be none."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0

    @property
    def name(self) -> str:
        parts = [f"pp{self.n_prompt}"] * bool(self.n_prompt) + [f"tg{self.n_gen}"] * bool(
            self.n_gen
        )
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def short(self) -> Test:
        """With few tokens, for the warm-up."""
        return Test(self.n_prompt, min(self.n_gen, AHEAD + 1), self.n_depth)

    @property
    def room(self) -> int:
        return self.n_depth + self.n_prompt + self.n_gen + 1


@dataclass
class Run:
    """One run of a test: how long it took, what it cost, and the tokens, for checking."""

    seconds: float
    counts: dict[str, int]
    ids: list[int] = field(default_factory=list)
    use: Any = None  # how busy the device was, if its times were taken


@dataclass(frozen=True)
class Plan:
    """The matrix: every model with every batch and cache, and every test on each of them."""

    models: Sequence[Path]
    tests: Sequence[Test]
    batches: Sequence[int] = (64,)
    caches: Sequence[CacheType] = ("f16",)
    repeat: int = 5
    warm_up: bool = True
    delay: float = 0.0


def measure(plan: Plan, device: ps.Device, progress: OnProgress) -> Iterator[Row]:
    """The rows, each as soon as it is there."""
    for path, batch, cache in itertools.product(plan.models, plan.batches, plan.caches):
        room = max(test.room for test in plan.tests)
        with load(path, device, context=room, batch=batch, cache=cache) as model:
            for test in plan.tests:
                started = machine.now()
                runs = list(_runs(plan, model, test, progress))
                about = identity(model, batch, cache)
                use = run(model, test, times=True).use
                yield {**about, "test_time": started, **row_of(test, runs), **busy_of(use)}


def _runs(plan: Plan, model: Model, test: Test, progress: OnProgress) -> Iterator[Run]:
    if plan.warm_up:
        progress(f"{test.name}: warm-up", 0, plan.repeat)
        run(model, test.short)
    for number in range(plan.repeat):
        progress(test.name, number, plan.repeat)
        if plan.delay:
            time.sleep(plan.delay)
        yield run(model, test)
    progress(test.name, plan.repeat, plan.repeat)


def run(
    model: Model, test: Test, mechanisms: Mechanisms = ALL, seed: int = 0, *, times: bool = False
) -> Run:
    """Run a test once. `times` takes the device's times as well, which costs some speed."""
    draw = random.Random(seed)
    vocabulary = model.config.vocabulary
    depth = [draw.randrange(vocabulary) for _ in range(test.n_depth)]
    prompt = [draw.randrange(vocabulary) for _ in range(test.n_prompt)]
    with model.network(mechanisms) as network:
        network.read(depth, "nothing")
        network.prepare(max(1, test.n_prompt), test.n_gen, "greedy")
        ids: list[int] = []
        if not test.n_prompt:  # any token makes the first, which is not timed
            ids += network.tokens([draw.randrange(vocabulary)], 1, "greedy")
        model.device.synchronize()
        with ps.trace(times=times) as trace:
            start = time.perf_counter()
            if test.n_prompt:
                ids += network.tokens(prompt, 1 + test.n_gen, "greedy")
            else:
                ids += network.steps(test.n_gen, "greedy")
            seconds = time.perf_counter() - start
        if times:
            trace.wait_for_times()
    return Run(seconds, counted(trace), ids, trace.use if times else None)


def busy_of(use: Any) -> Row:
    """How busy the device was in one more run, with its times taken, and what the rest was."""
    share = f"{use.busy / use.span:.1%}" if use.span else "not known"
    return {"busy": share, "verdict": use.verdict}


def row_of(test: Test, runs: Sequence[Run]) -> Row:
    """The fields of llama-bench that are about times, and the receipt's."""
    tokens = test.n_prompt + test.n_gen
    seconds = [one.seconds for one in runs]
    rates = [tokens / one for one in seconds]
    several = len(runs) > 1
    return {
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test": test.name,
        "avg_ns": round(statistics.mean(seconds) * 1e9),
        "stddev_ns": round(statistics.stdev(seconds) * 1e9) if several else 0,
        "avg_ts": statistics.mean(rates),
        "stddev_ts": statistics.stdev(rates) if several else 0.0,
        "samples_ns": [round(one * 1e9) for one in seconds],
        "samples_ts": rates,
        **{
            f"{name}_per_token": statistics.median(one.counts[name] for one in runs) / tokens
            for name in COUNTS
        },
    }


def identity(model: Model, batch: int, cache: str) -> Row:
    """The fields that say what was measured, and where."""
    file = model.file
    return {
        "benchmark": "model",
        **machine.build(),
        **machine.environment(model.device),
        "model_filename": str(file.path),
        "model_type": model_type(file),
        "model_size": file.nbytes,
        "model_n_params": _parameters(file),
        "n_batch": batch,
        "n_ubatch": batch,
        "type_k": cache,
        "type_v": cache,
    }


def model_type(file: ModelFile) -> str:
    """Architecture, size and kind, as in "qwen3 0.6B Q8_0"."""
    kind = _FILE_TYPES.get(file.metadata.get("general.file_type", -1))
    if kind is None:
        kinds = [tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1]
        kind = statistics.mode(kinds)
    count = _parameters(file)
    size = f"{count / 1e9:.1f}B" if count >= 5e8 else f"{count / 1e6:.0f}M"
    return f"{file.config.architecture} {size} {kind}"


def _parameters(file: ModelFile) -> int:
    return sum(int(t.rows) * int(t.columns) for t in file.tensors.values())
