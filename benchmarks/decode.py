"""Decoding with whole models: how fast, what bounds it, and what each mechanism is worth.

`--model` names files; without, a small random model is written and used, which shows counts but
means nothing for speed. The prompt is arbitrary tokens. Speeds are those that a generation's own
receipt tells.

The mechanisms, each taken away alone, and what is left of them then:

==============  ================================================================================
everything on   a step recorded once, sampled on the device, two steps ahead of the reader
staged          no mapped memory: weights are copied once, tokens travel through staging blocks
anew            no recorded step: the launches of each token are issued, and encoded, again
waiting         no resource-aware access: the host waits for all work before it touches anything
by the host     no sampling on the device: logits go to the host, and the token comes back
none            all four taken away
==============  ================================================================================

All of them must give the same tokens.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import penstock as ps
from benchmarks.measure import expect
from benchmarks.report import Row, Section
from penstock import llm
from penstock.llm.generation import AHEAD
from penstock.llm.network import Network
from penstock.llm.random_model import shape_of, write_random_model
from penstock.llm.sampling import Sampling

PROMPT = 32
TOKENS = 16
_COUNTS = ("waits", "copies", "bytes_copied", "allocations", "submissions")
_REPLAYED = re.compile(r"(\d+) commands with (\d+) barriers")


def run(device: ps.Device, repeat: int, models: Sequence[Path] = ()) -> list[Section]:
    with tempfile.TemporaryDirectory() as directory:
        files = list(models)
        if not files:
            files = [Path(directory) / "random-tiny.gguf"]
            write_random_model(files[0], shape_of("tiny"), "Q8_0")
        sections = [_speeds(device, repeat, files)]
        return sections + [_mechanisms(device.name, repeat, file) for file in files[:1]]


def _speeds(device: ps.Device, repeat: int, files: Sequence[Path]) -> Section:
    loaded = [llm.load(file, device, context=256) for file in files]
    receipts: list[list[llm.Receipt]] = [[] for _ in files]
    for model in loaded:
        model.generate(_prompt(model), max_tokens=2, stop_ids=[])  # compiles, and reads the file
    for _ in range(repeat):
        for model, found in zip(loaded, receipts, strict=True):
            made = model.generate(_prompt(model), max_tokens=TOKENS, stop_ids=[])
            found.append(made.receipt)
    rows = []
    for model, found in zip(loaded, receipts, strict=True):
        row: Row = {"model": model.file.path.name, "MB": round(model.file.nbytes / 1e6)}
        for short, name in (("pp", "prompt"), ("tg", "generation")):
            rates = [getattr(receipt, name).rate for receipt in found]
            row[f"{short} median t/s"] = statistics.median(rates)
            row[f"{short} best t/s"] = max(rates)
        seconds = 1 / row["tg best t/s"]  # type: ignore[operator]
        row["GB/s of weights"] = model.file.nbytes / 1e9 / seconds
        rows.append(row)
        model.close()
    title = f"Tokens per second: a prompt of {PROMPT} (pp), then {TOKENS} more (tg)"
    return Section(title, rows, (f"{repeat} rounds of each, in turn",))


def _prompt(model: llm.Model) -> list[int]:
    return [(7919 * number) % model.config.vocabulary for number in range(1, PROMPT + 1)]


def _mechanisms(device_name: str, repeat: int, file: Path) -> Section:
    with ps.Device(device_name) as device, ps.Device(device_name, transfers="unmapped") as staged:
        model = llm.load(file, device, context=256)
        copied = llm.load(file, staged, context=256, progress=False)
        cases: dict[str, Callable[[], _Run]] = {
            "everything on": partial(_Run, model),
            "staged": partial(_Run, copied),
            "anew": partial(_Run, model, anew=True),
            "waiting": partial(_Run, model, waiting=True),
            "by the host": partial(_Run, model, by_host=True),
            "none": partial(_Run, copied, anew=True, waiting=True, by_host=True),
        }
        runs: dict[str, list[_Run]] = {name: [case()] for name, case in cases.items()}  # warm
        for name in runs:
            runs[name].clear()
        for _ in range(repeat):
            for name, case in cases.items():
                runs[name].append(case())
        first = runs["everything on"]
        rows: list[Row] = []
        for name, found in runs.items():
            expect(all(one.ids == first[0].ids for one in found), f"the tokens of {name!r}")
            counts = {count: number / TOKENS for count, number in found[-1].counts.items()}
            median = statistics.median(one.seconds for one in found)
            ratio = median / statistics.median(one.seconds for one in first)
            rows.append(
                {"mechanisms": name, **counts, "t/s": TOKENS / median, "time, ratio": ratio}
            )
        model.close()
        copied.close()
    title = f"What each mechanism is worth, per token of {file.name}"
    return Section(title, rows, (f"{repeat} rounds of {TOKENS} tokens of each, in turn",))


def _counts(trace: ps.Trace) -> dict[str, int]:
    """What happened, that in recorded steps included."""
    found = {name: int(number) for name, number in trace.as_dict().items() if name in _COUNTS}
    found |= {"commands": trace.launches, "barriers": trace.barriers}
    for event in trace.of_kind("replay"):
        inside = _REPLAYED.search(event.reason)
        expect(inside is not None, "what a replay says of itself")
        assert inside is not None
        found["commands"] += int(inside[1])
        found["barriers"] += int(inside[2])
    return found


class _Run:
    """Some tokens, with mechanisms taken away; what they were, and what they cost."""

    def __init__(
        self, model: llm.Model, *, anew: bool = False, waiting: bool = False, by_host: bool = False
    ) -> None:
        self._network: Network = model._take()
        self._device = model.device
        self._anew, self._waiting, self._by_host = anew, waiting, by_host
        self.ids: list[int] = []
        self._network.restart(Sampling())
        if by_host:
            self._network.read(_prompt(model)[:-1], "nothing")
            self.ids.append(self._chosen(_prompt(model)[-1]))
        else:
            self._network.read(_prompt(model), "greedy")
            self.ids.append(self._network.token(0))
        self._device.synchronize()
        with ps.trace(times=False) as trace:
            start = time.perf_counter()
            self._run()
            self.seconds = time.perf_counter() - start
        self.counts = _counts(trace)
        model._give_back(self._network)

    def _run(self) -> None:
        ahead = 0 if self._waiting else AHEAD
        issued = 0
        for number in range(TOKENS):
            if self._by_host:
                self.ids.append(self._chosen(self.ids[-1]))
                continue
            while issued < min(number + 1 + ahead, TOKENS):
                self._prepare()
                self._network.step("greedy")
                issued += 1
            if self._waiting:
                self._device.synchronize()
            self.ids.append(self._network.token(number + 1))

    def _prepare(self) -> None:
        if self._anew:
            self._network.close()
        if self._waiting:
            self._device.synchronize()

    def _chosen(self, token: int) -> int:
        """The token after this one, as the host chooses it."""
        self._prepare()
        return int(self._network.logits([token])[0].argmax())
