"""llama.cpp on the CPU in a process of its own: `python -m benchmarks.peers.llama MODEL`.

Speaks JSON like the other workers, a line each way: first what it is, then for every line
`{"prompt": 8, "tokens": 16}` the seconds of each, as llama.cpp measures them itself.
"""

from __future__ import annotations

import json
import sys
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
    settings.n_ctx = 512
    settings.n_gpu_layers = 0
    settings.n_parallel = 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.warmup = True
    return xllamacpp.Server(settings), importlib.metadata.version("xllamacpp")


def _run(server: Any, asked: dict[str, int], number: int) -> dict[str, Any]:
    prompt = [1 + (7919 * (number + n)) % 200 for n in range(asked["prompt"])]
    last = server.handle_completions(
        {
            "prompt": prompt, "max_tokens": asked["tokens"], "temperature": 0, "ignore_eos": True,
            "cache_prompt": False,
        }
    )  # fmt: skip
    timings = last.get("timings")
    if not timings:
        return {"wrong": f"no timings in {json.dumps(last)[:200]}"}
    if timings["predicted_n"] != asked["tokens"]:
        return {"wrong": f"{timings['predicted_n']} tokens instead of {asked['tokens']}"}
    return {"seconds": [timings["predicted_ms"] / 1e3, timings["prompt_ms"] / 1e3]}


if __name__ == "__main__":
    main(sys.argv[1])
