"""llama.cpp on the CPU in a process of its own: `python -m benchmarks.peers.llama MODEL`.

Speaks JSON like the other workers, a line each way: first what it is, then for every line
`{"prompt": 8, "tokens": 16}` the seconds of both, tokens first, as llama.cpp measures them itself,
and their processor time, divided between the two like the seconds. With `"depth": n` the prompt
comes after n tokens that are in the cache already. The environment has `LLAMA_THREADS` and
`LLAMA_CONTEXT`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from benchmarks.peers.worker import answering


def main(path: str) -> None:
    answer = answering()
    try:
        server, version = _open(path)
    except Exception as error:
        answer({"unavailable": f"{type(error).__name__}: {error}"})
        return
    answer({"about": {"version": version, "device": "the CPU"}, "how": {}, "lacks": {}})
    for number, line in enumerate(sys.stdin):
        answer(_run(server, json.loads(line), number))


def _open(path: str) -> tuple[Any, str]:
    import importlib.metadata

    import xllamacpp  # type: ignore[import-not-found]

    settings = xllamacpp.CommonParams()
    settings.model.path = path
    settings.n_ctx = int(os.environ.get("LLAMA_CONTEXT", "512"))
    settings.n_gpu_layers = 0
    settings.n_parallel = 1
    threads = int(os.environ.get("LLAMA_THREADS", "1"))
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.warmup = True
    return xllamacpp.Server(settings), importlib.metadata.version("xllamacpp")


def _run(server: Any, asked: dict[str, int], number: int) -> dict[str, Any]:
    depth = [1 + (104_729 * n) % 200 for n in range(asked.get("depth", 0))]
    prompt = [1 + (7919 * (number + n)) % 200 for n in range(asked["prompt"])]
    if depth:
        _complete(server, depth, 1, keep=True)
    begun = time.process_time()
    last = _complete(server, depth + prompt, asked["tokens"], keep=bool(depth))
    used = time.process_time() - begun
    timings = last.get("timings")
    if not timings:
        return {"wrong": f"no timings in {json.dumps(last)[:200]}"}
    if timings["predicted_n"] != asked["tokens"]:
        return {"wrong": f"{timings['predicted_n']} tokens instead of {asked['tokens']}"}
    if abs(timings["prompt_n"] - len(prompt)) > 1:
        return {"wrong": f"a prompt of {timings['prompt_n']} instead of {len(prompt)}"}
    seconds = [timings["predicted_ms"] / 1e3, timings["prompt_ms"] / 1e3]
    return {"seconds": seconds, "processor": [used * one / sum(seconds) for one in seconds]}


def _complete(server: Any, prompt: list[int], tokens: int, *, keep: bool) -> Any:
    return server.handle_completions(
        {
            "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "cache_prompt": keep,
        }
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
