"""Every kernel of this package in every variant, for tools that compile or measure them all."""

from __future__ import annotations

from penstock.llm.delta_layers import delta_kernels
from penstock.llm.device_state import STATE
from penstock.llm.gpu_kernels import gpu_kernels
from penstock.llm.kernels import Shader, weight_kernels
from penstock.llm.layers import layer_kernels
from penstock.llm.routing import routing_kernels
from penstock.llm.sampling import CONTROL, CURSOR, NONE, ROW, sampling_kernels
from penstock.llm.sampling_settings import SETTINGS


def every_kernel(subgroup_size: int = 64) -> list[Shader]:
    """All kernels, as name, path, defines and constants, for subgroups of that size.

    Kernels that have shapes compiled in get those of Qwen3-0.6B, and of DeltaNet
    layers those of Qwen3.5-27B.
    """
    others = [
        *layer_kernels(subgroup_size),
        *delta_kernels(subgroup_size),
        *routing_kernels(subgroup_size),
        *sampling_kernels(subgroup_size),
    ]
    return [
        *weight_kernels(subgroup_size),
        *gpu_kernels(subgroup_size),
        *(shader._replace(name=f"{shader.name} {_told_apart(shader)}") for shader in others),
    ]


def _told_apart(shader: Shader) -> str:
    """Return the defines and constants that distinguish the variant, as short text."""
    chosen = {**shader.defines, **shader.constants}
    words = [f"{key}={value}" for key, value in chosen.items() if key not in _ALWAYS]
    return " ".join([*words, FOR_CPUS] if chosen.keys() & _OF_CPUS else words)


#: In the names of kernels that only CPU drivers run.
FOR_CPUS = "for CPUs"
_OF_CPUS = {"LONE", "LANES", "SMALL", "WINDOW_ROWS", "EACH"}
#: Defines that are equal in all variants of a kernel, and so left out of names.
_ALWAYS = {*STATE, *SETTINGS, *CONTROL, *CURSOR, *ROW, *NONE, "CURSOR_WORDS"}
