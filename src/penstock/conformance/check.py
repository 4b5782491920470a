"""`penstock check`: the corpus in every transfer mode, then random programs, until one fails."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.conformance.corpus import CORPUS
from penstock.conformance.faults import faults_of
from penstock.conformance.generator import generate
from penstock.conformance.lab import Lab
from penstock.conformance.program import Program
from penstock.conformance.runner import Failure
from penstock.conformance.script import as_script
from penstock.conformance.shrinker import shrink

_SIZE = 20  # operations of a random program


@dataclass(frozen=True)
class Report:
    """How many programs ran, how fast, and the one that failed, if any, shrunk."""

    device: str
    corpus: int
    programs: int  # random ones
    seconds: float
    failure: Failure | None = None
    name: str = ""
    operations: int = 0
    script: str = ""

    @property
    def per_second(self) -> float:
        return (self.corpus + self.programs) / max(self.seconds, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-compatible values."""
        plain = {"device": self.device, "corpus": self.corpus, "programs": self.programs}
        plain |= {"seconds": round(self.seconds, 3), "per_second": round(self.per_second, 1)}
        if self.failure is None:
            return {**plain, "passed": True}
        failed = {
            "name": self.name, "seed": self.failure.seed, "transfers": self.failure.transfers,
            "what": self.failure.what, "messages": list(self.failure.messages),
            "operations": self.operations, "script": self.script,
        }  # fmt: skip
        return {**plain, "passed": False, "failure": failed}

    def __str__(self) -> str:
        ran = f"{self.corpus:,} named and {self.programs:,} random programs on {self.device}"
        speed = f"in {self.seconds:.1f} s, {self.per_second:.0f} per second"
        if self.failure is None:
            return f"{ran} {speed}: all passed"
        found = f"FAILED: {self.name}\n{self.failure}"
        small = f"The smallest program that was found, {self.operations} operations:"
        return f"{ran} {speed}\n{found}\n\n{small}\n\n{self.script}"


def check(lab: Lab, programs: int, seed: int, modes: Sequence[str]) -> Report:
    """Run the corpus and random programs; stop at the first that fails, and shrink it."""
    bar = _Bar(len(CORPUS) * len(modes) + programs)
    start = time.perf_counter()
    named = others = 0
    report = Report(lab.name_of(modes[0]), 0, 0, 0.0)
    for program, mode, number in _all(lab, programs, seed, modes):
        bar.show(named + others)
        failure = lab.run(program, mode, number)
        if program in CORPUS:
            named += 1
        else:
            others += 1
        if failure is not None:
            seconds = time.perf_counter() - start
            bar.clear()
            report = replace(report, corpus=named, programs=others, seconds=seconds)
            return _explain(lab, report, program, failure)
    bar.clear()
    return replace(report, corpus=named, programs=others, seconds=time.perf_counter() - start)


def check_faults(programs: int, seed: int, modes: Sequence[str]) -> Report:
    """Inject a fault at every call of the simulator in turn, for the corpus and random programs."""
    chosen = [*CORPUS, *(generate(number, _SIZE) for number in range(seed, seed + programs))]
    bar = _Bar(len(chosen))
    start = time.perf_counter()
    runs = 0
    for number, program in enumerate(chosen):
        bar.show(number)
        for _, failure in faults_of(program, modes[number % len(modes)], seed + number):
            runs += 1
            if failure is not None:
                bar.clear()
                seconds = time.perf_counter() - start
                arguments = Lab("sim").device_arguments(failure)
                return Report(
                    "simulator, with faults", runs, 0, seconds, failure, program.name,
                    len(program.operations), as_script(program, arguments),
                )  # fmt: skip
    bar.clear()
    return Report("simulator, with faults", runs, 0, time.perf_counter() - start)


def _all(
    lab: Lab, programs: int, seed: int, modes: Sequence[str]
) -> Iterator[tuple[Program, str, int]]:
    """Yield every program with a transfer mode and a seed for the simulator."""
    for number, (program, mode) in enumerate(itertools.product(CORPUS, modes)):
        yield program, mode, seed + number
    for number in range(seed, seed + programs):
        mode = modes[number % len(modes)]  # by seed, so that a replay has it too
        yield generate(number, _SIZE, lab.alignment(mode)), mode, number


def _explain(lab: Lab, report: Report, program: Program, failure: Failure) -> Report:
    name = program.name
    if name.startswith("seed"):
        options = f"--driver {lab.driver}" + (f" --device {lab.device}" if lab.device else "")
        options += f" --transfers {failure.transfers} --seed {failure.seed} --programs 1"
        name += f" (again: penstock check {options})"
    small, failure = shrink(program, failure, lab.run_any)
    script = as_script(small, lab.device_arguments(failure))
    if lab.driver == "sim" and failure.messages:
        failure = replace(failure, messages=_located(script) or failure.messages)
    return replace(
        report, failure=failure, name=name, operations=len(small.operations), script=script
    )


def _located(script: str) -> tuple[str, ...]:
    """Run a script on the simulator; return its messages, whose races name the script's lines."""
    scope: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # it is known to fail
        exec(compile(script, "program.py", "exec"), scope)
    device = scope.get("dev")
    return () if device is None else tuple(device.messages)


class _Bar:
    """A progress bar; prints nothing if stderr is not a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._start = self._shown = time.perf_counter()
        self._visible = sys.stderr.isatty()

    def show(self, count: int) -> None:
        now = time.perf_counter()
        if not self._visible or now - self._shown < 0.1:
            return
        self._shown = now
        done = 30 * count // self._total
        speed = count / (now - self._start)
        sys.stderr.write(
            f"\r[{'#' * done}{'.' * (30 - done)}] {count:,} of {self._total:,}, {speed:.0f} per s "
        )
        sys.stderr.flush()

    def clear(self) -> None:
        if self._visible:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
