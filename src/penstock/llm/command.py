"""`penstock generate`: writes generated text to stdout, and its cost to stderr."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.llm.generation import Generation
from penstock.llm.kv_cache import CACHE_TYPES
from penstock.llm.model import Model, load
from penstock.llm.modelfile import find


def add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("model", help="a .gguf file, a directory of safetensors, or 'smollm2'")
    given = command.add_mutually_exclusive_group(required=True)
    given.add_argument("-p", "--prompt", help="the text to continue")
    given.add_argument("-f", "--file", type=Path, help="a file with the text to continue; -: stdin")
    add("-n", "--tokens", type=int, default=128, help="most tokens to generate (%(default)s)")
    add("--chat", action="store_true", help="the prompt is a user's message to a chat model")
    add("--system", help="system message, with --chat")
    add(
        "--thinking", action=argparse.BooleanOptionalAction,
        help="think before the answer, or not, with --chat (default: as the template has it)",
    )  # fmt: skip
    add("--tools", type=Path, help="a JSON file: a list of tools that may be called, with --chat")
    add("--temp", type=float, default=0.0, help="temperature; 0: take the likeliest (%(default)s)")
    add("--top-k", type=int, default=0, help="draw from the k likeliest; 0: from all (%(default)s)")
    add("--top-p", type=float, default=1.0, help="share of probability to keep (%(default)s)")
    add("--min-p", type=float, default=0.0, help="at least this share of the best (%(default)s)")
    add("--repeat-penalty", type=float, default=1.0, help="1: none (%(default)s)")
    add("--repeat-last-n", type=int, default=64, help="tokens it looks back at (%(default)s)")
    add("--presence-penalty", type=float, default=0.0, help="for tokens generated (%(default)s)")
    add("--frequency-penalty", type=float, default=0.0, help="for each time (%(default)s)")
    add(
        "-l", "--logit-bias", action="append", default=[], metavar="ID=BIAS",
        help="add to the logit of a token (-inf bans it); may be repeated",
    )  # fmt: skip
    add("--logprobs", type=int, metavar="N", help="log-probabilities of N likeliest tokens, too")
    add("--seed", type=int, help="seed of the draw (default: random)")
    add("--stop", action="append", default=[], help="end before this text; may be repeated")
    add("-c", "--context", type=int, help="most tokens of prompt and text (default: up to 4096)")
    add("-b", "--batch", type=int, default=64, help="prompt tokens per prefill batch (%(default)s)")
    add("--cache", choices=CACHE_TYPES, default="f16", help="KV cache format (%(default)s)")
    add("--device", help="part of a device's name (default: the best)")
    add("--busy", action="store_true", help="tell how busy the device was, and why not more")
    add("--json", action="store_true", help="print JSON, for machines")


def run(arguments: argparse.Namespace) -> int:
    for name in ("system", "thinking", "tools"):
        if getattr(arguments, name) is not None and not arguments.chat:
            raise ps.InvalidValue(f"--{name} is for --chat")
    prompt = arguments.prompt if arguments.file is None else _text("--file", arguments.file)
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
        _show(text)
        about = f"{model.device.name}, {model.file.path.name}; {_ending(text, arguments.tokens)}"
        print(f"\n{about}\n{text.receipt}", file=sys.stderr)
    return 0


def _ending(text: Generation, most: int) -> str:
    """Why the text ended, and which option would have let it go on."""
    if text.finish_reason != "length":
        return text.finish_reason
    count = len(text.ids)
    if count < most:
        return f"stopped at {count} tokens, where the context ends"
    return f"stopped at {count} tokens; -n allows more"


def _show(text: Generation) -> None:
    """Print the text, and calls as JSON, to stdout; reasoning and log-probabilities to stderr."""
    for part in text.parts():
        if part.call is not None:
            print(f"\n{json.dumps(asdict(part.call))}", end="", flush=True)
        else:
            stream = sys.stderr if part.kind == "reasoning" else sys.stdout
            print(part.text, end="", flush=True, file=stream)
    print(flush=True)
    for one in text.logprobs or []:
        top = "  ".join(f"{each.text!r} {each.logprob:.3f}" for each in one.top)
        print(f"{one.text!r:16}{one.logprob:>9.3f}  {top}".rstrip(), file=sys.stderr)


def _biases(given: list[str]) -> dict[int, float]:
    """ID=BIAS, or ID+BIAS and ID-BIAS, as llama.cpp writes them."""
    found: dict[int, float] = {}
    for one in given:
        parts = re.fullmatch(r"(\d+)(?:=|(?=[+-]))(.+)", one)
        try:
            if parts is None:
                raise ValueError
            found[int(parts[1])] = float(parts[2])
        except ValueError as error:
            raise ps.InvalidValue(
                f"--logit-bias {one}: give a token's id and a number, as in 42=-1.5 or 42=-inf"
            ) from error
    return found


def _tools(path: Path | None) -> list[Any] | None:
    if path is None:
        return None
    text = _text("--tools", path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ps.InvalidValue(f"--tools {path} is not JSON: {error}") from error
    if not isinstance(found, list):
        raise ps.InvalidValue(f"--tools {path} is not a list of tools")
    return found


def _start(model: Model, prompt: str, arguments: argparse.Namespace) -> Generation:
    options: dict[str, Any] = {
        "max_tokens": arguments.tokens, "temperature": arguments.temp, "top_k": arguments.top_k,
        "top_p": arguments.top_p, "min_p": arguments.min_p, "seed": arguments.seed,
        "repetition_penalty": arguments.repeat_penalty, "penalty_last": arguments.repeat_last_n,
        "presence_penalty": arguments.presence_penalty,
        "frequency_penalty": arguments.frequency_penalty,
        "logit_bias": _biases(arguments.logit_bias), "logprobs": arguments.logprobs,
        "stop": arguments.stop, "stream": True, "times": arguments.busy,
    }  # fmt: skip
    if not arguments.chat:
        return model.generate(prompt, **options)
    said = [{"role": "user", "content": prompt}]
    if arguments.system is not None:
        said.insert(0, {"role": "system", "content": arguments.system})
    tools = _tools(arguments.tools)
    return model.chat(said, tools=tools, enable_thinking=arguments.thinking, **options)


def _plain(model: Model, text: Generation) -> dict[str, Any]:
    logprobs = text.logprobs
    return {
        "model": str(model.file.path),
        "device": model.device.name,
        "prompt_ids": text.prompt_ids,
        "text": text.text,
        "reasoning": text.reasoning,
        "tool_calls": [asdict(call) for call in text.tool_calls],
        "ids": text.ids,
        "logprobs": None if logprobs is None else [asdict(one) for one in logprobs],
        "finish_reason": text.finish_reason,
        "receipt": text.receipt.as_dict(),
    }


def _text(option: str, path: Path) -> str:
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read().decode()
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ps.InvalidValue(f"{option}: there is no file {str(path)!r}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ps.InvalidValue(f"{option} {path} cannot be read as text: {error}") from error
