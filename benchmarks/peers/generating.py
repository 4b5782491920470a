"""Penstock in a process of its own: `python -m benchmarks.peers.generating MODEL DEVICE`.

Its environment says which checkout of Penstock it runs, so it uses only what older ones have, too;
`PENSTOCK_CONTEXT` is the model's context. It speaks JSON like the other workers: to
`{"prompt": 64, "tokens": 32, "depth": 0}` it answers the seconds of tokens and prompt, in this
order, their processor time, and the tokens; to `{"kernels": 1, "prompt": 64, "depth": 0}` what each
kernel took in a generated token and in the prompt.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.worker import answering


def main(path: str, device: str) -> None:
    answer = answering()
    try:
        import penstock as ps
        from penstock import llm

        own = ps.Device(None if device == "." else device)
        context = int(os.environ.get("PENSTOCK_CONTEXT", "4096"))
        model = llm.load(path, own, context=context, progress=False)
    except Exception as error:
        answer({"unavailable": f"{type(error).__name__}: {error}"})
        return
    answer({"about": {"version": ps.__version__, "device": own.name}, "how": {}, "lacks": {}})
    for line in sys.stdin:
        asked = json.loads(line)
        answer((_kernels if asked.get("kernels") else _run)(model, asked))
    model.close()


def _run(model: Any, asked: dict[str, int]) -> dict[str, Any]:
    prompt = _ids(model, asked["prompt"], 1)
    with _at_depth(model, asked, asked["tokens"]) as network:
        steps = network.tokens(prompt, 1 + asked["tokens"], "greedy")
        clocks = [_clocks()]
        ids = [next(steps)]
        clocks.append(_clocks())
        ids += steps
        clocks.append(_clocks())
    (wall, used), (wall_after, used_after), (wall_end, used_end) = clocks
    return {
        "seconds": [wall_end - wall_after, wall_after - wall],
        "processor": [used_end - used_after, used_after - used],
        "ids": ids,
    }


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


@contextmanager
def _at_depth(model: Any, asked: dict[str, int], tokens: int) -> Iterator[Any]:
    """Lend a network whose cache has `depth` tokens, and that is compiled for what comes."""
    with model.network() as network:
        if asked.get("depth"):
            network.read(_ids(model, asked["depth"], 2), "nothing")
        network.prepare(asked["prompt"], tokens, "greedy")
        model.device.synchronize()
        yield network


def _ids(model: Any, count: int, seed: int) -> list[int]:
    most = model.config.vocabulary
    return [(seed * 7919 + 104_729 * n) % most for n in range(count)]


# Kernels.


def _kernels(model: Any, asked: dict[str, int]) -> dict[str, Any]:
    """What every kernel took, of a token and of the prompt, and what it had to do.

    The prompt must be one batch: parts of it would be read by other kernels. Each is measured a few
    times, and the fastest counts.
    """
    prompt = _ids(model, asked["prompt"], 1)
    with _at_depth(model, asked, 4) as network:
        list(network.tokens(prompt, 1, "greedy"))
        decode = _timed(model, lambda: network.step("greedy"))
    reading = []
    for _ in range(2):
        with _at_depth(model, asked, 1) as network:
            reading.append(_timed(model, lambda: network.read(prompt, "greedy"), repeat=1))
    rows = asked.get("depth", 0) + len(prompt)
    parts = {"token": _fastest(decode), "prompt": _fastest([one for few in reading for one in few])}
    work = {"token": _work(model, 1, rows + 2), "prompt": _work(model, len(prompt), rows)}
    found = [
        {"part": part, "kernel": name, "launches": launches, "seconds": seconds,
         **_work_of(work[part], name)}
        for part, times in parts.items()
        for name, (launches, seconds) in times.items()
    ]  # fmt: skip
    return {"kernels": found}


def _timed(
    model: Any, work: Callable[[], None], repeat: int = 3
) -> list[dict[str, tuple[int, float]]]:
    import penstock as ps

    found = []
    for _ in range(repeat + 1):  # the first encodes the graph again, with timestamps
        with ps.trace(kernels=True) as trace:
            work()
            model.device.synchronize()
        times: dict[str, tuple[int, float]] = {}
        for event in trace.events:
            if event.kind == "replayed" and event.kernel:
                launches, seconds = times.get(event.kernel, (0, 0.0))
                times[event.kernel] = launches + 1, seconds + (event.device_seconds or 0.0)
        found.append(times)
        if repeat == 1:  # reading a prompt again would need another network
            break
    return found if repeat == 1 else found[1:]


def _fastest(runs: list[dict[str, tuple[int, float]]]) -> dict[str, tuple[int, float]]:
    return min(runs, key=lambda one: sum(seconds for _, seconds in one.values()))


def _work(model: Any, tokens: int, rows: int) -> dict[str, tuple[float, float]]:
    """By the beginning of kernels' names: bytes of weights or cache, and multiply-adds."""
    config = model.config
    found: dict[str, tuple[float, float]] = {}

    def add(name: str, nbytes: float, products: float) -> None:
        before = found.get(name, (0.0, 0.0))
        found[name] = before[0] + nbytes, before[1] + products

    for weight, count in _matrices(model, tokens):
        tile = "x1" if count == 1 else ""
        add(f"product {weight.kind}{tile}", _nbytes(weight), weight.rows * weight.columns * count)
    seen = sum(rows - tokens + t + 1 for t in range(tokens))
    width = config.heads * config.head_size
    element = 2 if model._cache == "f16" else 4
    cache = 2 * rows * config.kv_heads * config.head_size * element * config.layers
    add("attention", cache, 2 * seen * width * config.layers)
    return found


def _matrices(model: Any, tokens: int) -> Iterator[tuple[Any, int]]:
    """Every matrix of a product, and of how many tokens: the last one is of one."""
    for name, weight in model._weights.items():
        if weight.rows > 1 and name.startswith("blk."):
            yield weight, tokens
    weights = model._weights
    yield weights.get("output.weight") or weights["token_embd.weight"], 1


def _nbytes(weight: Any) -> int:
    from penstock.llm.kinds import KINDS

    block = KINDS[weight.kind]
    return int(weight.rows * weight.columns // block.columns * block.nbytes)


def _work_of(work: dict[str, tuple[float, float]], kernel: str) -> dict[str, float]:
    """The work of a kernel: of a product, all matrices of its kind, of one token or of several."""
    words = kernel.split()
    if words[0] == "product":
        one = any(word.endswith("x1") for word in words)
        name = f"product {words[1]}" + ("x1" if one else "")
    else:
        name = words[0]
    nbytes, products = work.get(name, (0.0, 0.0))
    return {"bytes": nbytes, "products": products}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
