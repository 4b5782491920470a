"""A process that does measured work for another one: loads models, or launches without C code.

`python -m penstock.bench.mechanisms.worker` reads a JSON object per line, `{"do": …}`, and answers
with one. A `Worker` is the other end. What a process loads stays loaded until it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.bench.measure import timed
from penstock.errors import Error

_PATIENCE = 30  # seconds in which a worker ends by itself


class Worker:
    """Starts a process; `close()`, or leaving the `with` block, ends it."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.bench.mechanisms.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **(settings or {})},
        )  # fmt: skip

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        """Have the process do something, and return its answer. Waits."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise Error(f"the process that was to {do} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Error(f"the process that was to {do} failed: {answer['error']}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# In the process.


class _Jobs:
    def __init__(self) -> None:
        self._device: ps.Device | None = None
        self._kept: list[Any] = []
        self._tracked: Any = None

    def device(self, index: int) -> ps.Device:
        if self._device is None:
            self._device = ps.Device(index)
        return self._device

    def load(self, path: str, copy: bool, index: int, trace: bool) -> dict[str, Any]:
        """Open a model and make its first token."""
        from penstock.llm.model import Model
        from penstock.llm.modelfile import open_model
        from penstock.llm.variants import Variants
        from penstock.llm.weights import place

        device = self.device(index)

        def first_token() -> list[int]:
            file = open_model(Path(path))
            model = Model(
                device, file, place(device, file, False, copy=copy), context=16, batch=1,
                cache="f16", show_progress=False, variants=Variants.expected(device),
            )  # fmt: skip
            self._kept.append(model)
            with model.network() as network:
                return list(network.tokens([1], 1, "greedy"))

        start = time.perf_counter()
        if trace:
            with ps.trace() as receipt:
                ids = first_token()
            found = _costs(receipt)
        else:
            ids, found = first_token(), {}
        return {"seconds": time.perf_counter() - start, "ids": ids, **found, **self.memory()}

    def memory(self) -> dict[str, Any]:
        """What this process holds, in bytes, by the system's account."""
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
        kib = {
            name: int(rest.split()[0]) for name, _, rest in (one.partition(":") for one in lines)
        }
        return {"rss": kib["Rss"] << 10, "pss": kib["Pss"] << 10, "own": kib["Anonymous"] << 10}

    def launch(self, index: int, count: int, wait: bool, trace: bool) -> dict[str, Any]:
        """Launch a small kernel: the time until the calls return, or until the work is done."""
        from penstock import accelerator
        from penstock.bench.tracked import Tracked

        if self._tracked is None:
            self._tracked = Tracked(self.device(index))
        own: Tracked = self._tracked

        def recorded() -> float:
            with own.stream.batch():
                seconds = timed(1, own.launches, count)
            own.stream.synchronize()
            return seconds

        def done() -> float:
            return timed(1, partial(_and_wait, own, count))

        run = done if wait else recorded
        if not trace:
            return {"seconds": own.checked(count, run), "native": accelerator.status}
        own.stream.synchronize()
        with ps.trace() as receipt:
            run()
        return _costs(receipt)


def _and_wait(own: Any, count: int) -> None:
    own.launches(count)
    own.stream.synchronize()


def _costs(trace: ps.Trace) -> dict[str, Any]:
    from penstock.bench.mechanisms.comparison import Costs

    found = Costs.of(trace)
    return {"counts": found.counts, "span": found.span, "busy": found.busy}


def main() -> int:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything else prints must not be taken for an answer
    jobs = _Jobs()
    known: dict[str, Callable[..., dict[str, Any]]] = {
        "load": jobs.load, "memory": jobs.memory, "launch": jobs.launch,
    }  # fmt: skip
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = known[asked.pop("do")](**asked)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
