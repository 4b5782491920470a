"""Models of random weights, made once for each shape in the folder that a plan names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from penstock.bench.mechanisms.comparison import Plan
from penstock.errors import InvalidValue
from penstock.llm.config import Config
from penstock.llm.random_model import shape_of, write_random_model

_LAYER = 16_720_000  # bytes of a layer in the shape of Qwen3-0.6B, in Q8_0
_SPARE = 1 << 30  # bytes of disk that are left to others


def of_size(plan: Plan, gigabytes: float) -> Path:
    """A file of about this size: as many layers of Qwen3-0.6B as it takes, of few words."""
    layers = max(1, round((gigabytes * 1e9 - 4.4e6) / _LAYER))
    if plan.quick:
        return small(plan)
    return _made(
        plan, f"layers-{layers}", shape_of("qwen3-0.6b", layers=layers, vocabulary=4096), layers
    )


def small(plan: Plan, vocabulary: int = 320) -> Path:
    """A model of which a token takes milliseconds: two layers, or four if it knows few words."""
    if plan.quick or vocabulary > 320:
        return _made(plan, f"tiny-{vocabulary}", shape_of("tiny", vocabulary=vocabulary), 1)
    shape = shape_of("tiny", layers=4, hidden=512, ffn=1536, context=1024, vocabulary=vocabulary)
    return _made(plan, f"small-{vocabulary}", shape, 4)


def check_room(directory: Path, sizes: list[float]) -> None:
    """Raise unless the disk has room for files of these sizes, in GB."""
    needed = sum(sizes) * 1e9 + _SPARE
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise InvalidValue(
            f"--sizes {','.join(f'{size:g}' for size in sizes)} needs {needed / 1e9:.1f} GB in "
            f"{directory}, which has {free / 1e9:.1f}; name smaller sizes, or another folder with "
            "--models"
        )


def _made(plan: Plan, name: str, shape: Config, parts: int) -> Path:
    path = plan.models / f"penstock-{name}.gguf"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        plan.progress(f"writing {path.name}", 0, parts)
        write_random_model(unfinished, shape, "Q8_0", tokenizer=False)
        unfinished.rename(path)
        plan.progress(f"writing {path.name}", parts, parts)
    return path
