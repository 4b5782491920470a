"""Every kernel of this package in every variant, for whoever wants to compile or weigh them all."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.llm.kernels import Shader, weight_kernels


def every_kernel(subgroup_size: int = 64) -> Iterable[Shader]:
    """All kernels, as name, path, defines and constants, for subgroups of that size."""
    return [*weight_kernels(subgroup_size)]
