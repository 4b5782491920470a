"""The properties of a device that decide how the kernels of a model are compiled."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

import penstock as ps
from penstock.llm.kernels import MOST_TURNS, takes_rows

Choice: TypeAlias = Literal["cpu", "gpu"]
Defines: TypeAlias = dict[str, str | int | float]


@dataclass(frozen=True)
class Traits:
    """The properties of a device that decide how kernels are compiled."""

    shared: bool  # large workgroups that share memory; else single subgroups
    lanes: int  # invocations of a subgroup
    plain: bool  # no subgroup arithmetic
    small: bool  # inputs that fit are read through uniform blocks of floats
    wide: bool  # 64-bit integers
    windows: bool  # so is the KV cache
    cores: int
    most_turns: int = 0  # limit on loop iterations of an invocation, all loops together; 0: none
    texels: bool = False  # attention reads through texel buffers

    @classmethod
    def of(cls, device: ps.Device, variant: Choice | None = None) -> Traits:
        info = device.info
        features = info.features
        lone = {"subgroupArithmetic", "subgroupShuffle"} <= features
        wanted = variant or ("cpu" if info.kind == "cpu" and lone else "gpu")
        if wanted == "cpu" and not lone:
            raise ps.Unsupported(
                f"the variant for CPU drivers needs subgroups; {info.name} has none"
            )
        return cls(
            shared=wanted == "gpu",
            lanes=int(info.limits["subgroup_size"]),  # type: ignore[arg-type]
            plain="subgroupArithmetic" not in features,
            small=wanted == "cpu" and "scalarBlockLayout" in features,
            wide="shaderInt64" in features,
            # SwiftShader takes minutes to compile attention_windows.comp.
            windows=wanted == "cpu" and "scalarBlockLayout" in features and "llvmpipe" in info.name,
            cores=os.cpu_count() or 1,
            most_turns=MOST_TURNS if info.kind == "cpu" else 0,
            texels=wanted == "cpu" and takes_rows(device) and "rgba32ui" in info.texel_formats,
        )

    @classmethod
    def typical(cls, subgroup_size: int) -> list[Traits]:
        """Those of a CPU driver, with subgroups of 8, and of a GPU, with subgroups of that size."""
        return [
            cls(
                shared,
                subgroup_size if shared else 8,
                False,
                not shared,
                True,
                not shared,
                2,
                texels=not shared,
            )
            for shared in (False, True)
        ]

    def group(self, size: int) -> tuple[Defines, dict[str, int]]:
        """Defines and constants of a kernel with workgroups of `size`, or of one subgroup."""
        if not self.shared:
            return {"LONE": 1}, {"local_size_x": self.lanes}
        return {"PLAIN": 1} if self.plain else {}, {"local_size_x": size}
