"""Every kernel of the decoder in every variant, for whoever wants to compile or weigh them all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.llm.layers import layer_kernels
from penstock.llm.sampling import sampling_kernels

DIRECTORY = Path(__file__).parent / "shaders"


class Variant(NamedTuple):
    """What `Device.kernel` takes: a shader and what it is compiled with."""

    name: str
    path: Path
    defines: Mapping[str, str | int | float]
    constants: Mapping[str, int]


def every_kernel(subgroup_size: int = 64) -> list[Variant]:
    """All kernels, for the shapes of Qwen3-0.6B where shapes are compiled in.

    Variants for GPUs are for subgroups of that size.
    """
    found = [*layer_kernels(subgroup_size), *sampling_kernels(subgroup_size)]
    return [
        Variant(name, DIRECTORY / f"{file}.comp", defines, constants)
        for name, file, defines, constants in found
    ]
