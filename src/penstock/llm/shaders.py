"""Every kernel of this package in every variant, for whoever wants to compile or weigh them all."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.llm.kernels import DIRECTORY, Shader, weight_kernels
from penstock.llm.layers import layer_kernels
from penstock.llm.sampling import sampling_kernels


def every_kernel(subgroup_size: int = 64) -> Iterable[Shader]:
    """All kernels, as name, path, defines and constants, for subgroups of that size.

    Where shapes are compiled in, they are those of Qwen3-0.6B.
    """
    yield from weight_kernels(subgroup_size)
    for name, file, defines, constants in (
        *layer_kernels(subgroup_size),
        *sampling_kernels(subgroup_size),
    ):
        yield Shader(name, DIRECTORY / f"{file}.comp", defines, constants)
