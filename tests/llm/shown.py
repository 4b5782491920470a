"""`python -m tests.llm.shown [formats|caches|large|refused …]`: tables of the docs.

Those of docs/llm.md (what is refused) and of docs/llm-internals.md (all others).

How far logits are off in each format, and what a token costs; how far in each format of the KV
cache; what is read for a token of large models; and what is refused, with the errors. Logits are
compared with those of `reference_model`, in float64, of small random models.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import llm
from penstock.llm.config import ARCHITECTURES, Config
from penstock.llm.delta_net import WITH_DELTA_NET
from penstock.llm.kinds import nbytes_of
from penstock.llm.kv_cache import CACHE_TYPES
from penstock.llm.modelfile import wanted_tensors
from penstock.llm.random_model import PRESETS, TYPES, _kind_of, shape_of, write_random_model
from tests.llm.model_builders import gguf, hugging_face
from tests.llm.reference_model import Reference
from tests.llm.refusals import REFUSALS, row

PROMPT = [(7 * number) % 251 for number in range(40)]
TOKENS = 30
LARGE = {
    "Qwen3-30B-A3B": PRESETS["qwen3-30b-a3b"],
    "Qwen3.5-0.8B": PRESETS["qwen3.5-0.8b"],
    "Qwen3-Next-80B-A3B": PRESETS["qwen3-next-80b-a3b"],
}


class Row(NamedTuple):
    """A model in one format: its largest error, as a share of the largest logit, and its costs."""

    architecture: str
    format: str
    error: float
    waits: float
    allocations: float
    nbytes: float  # copied for a token
    read: int  # bytes of weights for a token
    held: int  # bytes of weights in the file


def measured(folder: Path, arch: str, kind: str) -> Row:
    """Write a random model, and compare and count."""
    if kind == "safetensors":
        path = hugging_face(folder / arch, arch, vocabulary=288, sizes=_layers(arch))
    else:
        path = gguf(folder, arch, kind, **_layers(arch))
    with llm.load(path, cache="f32", progress=False) as model:
        wanted = Reference(model.file).logits(PROMPT)
        error = np.abs(model.logits(PROMPT) - wanted).max() / np.abs(wanted).max()
        for _ in range(2):
            cost = model.generate(PROMPT, max_tokens=TOKENS, stop_ids=[]).receipt.generation
        counts = (cost.per_token(name) for name in ("waits", "allocations", "bytes_copied"))
        name = kind if kind == "safetensors" else f"GGUF {kind}"
        read = read_for_a_token(model.config, {n: t.nbytes for n, t in model.file.tensors.items()})
        return Row(arch, name, float(error), *counts, read, model.file.nbytes)


def read_for_a_token(config: Config, sizes: Mapping[str, int]) -> int:
    """The bytes of weights that a decoded token reads: of experts and embeddings, only some."""
    read = 0
    for name, nbytes in sizes.items():
        if "_exps." in name and config.mixture is not None:
            nbytes = nbytes * config.mixture.chosen // config.mixture.experts
        if name == "token_embd.weight" and not config.tied:
            nbytes //= config.vocabulary
        read += nbytes
    return read


def sizes_of(config: Config, kind: str) -> dict[str, int]:
    """The bytes of each tensor of a file that `random_model` would write."""
    found = {}
    for name, shape, needed in wanted_tensors(config):
        if needed:
            own = _kind_of(name, shape, kind, config.layers)
            found[name] = nbytes_of(own, int(np.prod(shape[:-1], dtype=np.int64)), shape[-1])
    return found


def errors_of_caches(folder: Path, arch: str) -> dict[str, npt.NDArray[Any]]:
    """How much each format of the KV cache changes logits: of each model and position, the largest.

    In shares of the largest logit. Several models, because one choice of experts decides much.
    """
    found: dict[str, list[npt.NDArray[Any]]] = {cache: [] for cache in CACHE_TYPES}
    for seed in range(4):
        path = folder / f"{arch}-{seed}.gguf"
        write_random_model(path, shape_of("tiny", arch, **_layers(arch)), "F32", seed=seed)
        for cache, logits in found.items():
            with llm.load(path, cache=cache, progress=False) as model:  # type: ignore[arg-type]
                logits.append(model.logits(PROMPT))
    exact = np.array(found.pop("f32"))
    largest = np.abs(exact).max(axis=(1, 2), keepdims=True)
    return {
        cache: (np.abs(np.array(logits) - exact) / largest).max(axis=2)
        for cache, logits in found.items()
    }


def _layers(arch: str) -> dict[str, int]:
    return {"layers": 4} if arch in WITH_DELTA_NET else {}


def table(titles: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    print("|", " | ".join(titles), "|")
    print("|" + "---|" * len(titles))
    for cells in rows:
        print("|", " | ".join(cells), "|", flush=True)
    print()


def formats(folder: Path) -> None:
    every = [
        [measured(folder, arch, kind) for kind in (*TYPES, "safetensors")] for arch in ARCHITECTURES
    ]
    table(
        ["format", *(f"`{arch}`" for arch in ARCHITECTURES)],
        (
            [rows[0].format, *(f"{1e6 * one.error:.1f}" for one in rows)]
            for rows in zip(*every, strict=True)
        ),
    )
    table(
        ["", "waits", "allocations", "bytes copied", "weights read, bytes", "in the file"],
        (
            [
                f"`{rows[0].architecture}`",
                f"{max(one.waits for one in rows):.2f}",
                f"{max(one.allocations for one in rows):g}",
                f"{max(one.nbytes for one in rows):g}",
                f"{rows[0].read:,}",
                f"{rows[0].held:,}",
            ]
            for rows in every
        ),
    )


def caches(folder: Path) -> None:
    errors = {arch: errors_of_caches(folder, arch) for arch in ARCHITECTURES}
    table(
        ["`cache`", "", *(f"`{arch}`" for arch in ARCHITECTURES)],
        (
            [f'`"{cache}"`', name, *(f"{100 * of(errors[arch][cache]):.2g} %" for arch in errors)]
            for cache in CACHE_TYPES
            if cache != "f32"
            for name, of in (("largest", np.max), ("median", np.median))
        ),
    )


def large(folder: Path) -> None:
    table(["model", "type", "in the file, GB", "read for a token, GB"], large_models())


def large_models() -> Iterator[Sequence[str]]:
    for name, config in LARGE.items():
        for kind in ("BF16", "Q8_0", "Q4_K_M"):
            sizes = sizes_of(config, kind)
            both = (sum(sizes.values()), read_for_a_token(config, sizes))
            yield [name, kind, *(f"{size / 1e9:.1f}" for size in both)]


def refused(folder: Path) -> None:
    print("| what | why | what is said |\n|---|---|---|")
    for number, refusal in enumerate(REFUSALS):
        print(row(refusal, folder / str(number)))


SECTIONS = {"formats": formats, "caches": caches, "large": large, "refused": refused}


def main(sections: Sequence[str]) -> None:
    for section in sections or SECTIONS:
        with tempfile.TemporaryDirectory() as made:
            SECTIONS[section](Path(made))


if __name__ == "__main__":
    main(sys.argv[1:])
