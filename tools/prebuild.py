"""Compiles Penstock's own kernels, in all variants that are shipped, into an archive.

`hatch_build.py` writes the archive when a wheel is built; nothing calls this at run time.
`python -m tools.prebuild` compiles them all into the cache, where the tests then find them.

Kernels of language models that have a model's shapes compiled in are shipped for the models that
`penstock.llm.shaders` names. Other shapes, and the user's own GLSL, need a compiler at run time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from penstock.conformance.kernels import KERNELS, TOTAL
from penstock.llm.kernels import Shader
from penstock.llm.shaders import every_kernel
from penstock.ops import (
    axes_kernels,
    indexing,
    moves,
    operation_text,
    product_plans,
    ramps,
    random,
    reductions,
    scans,
    selection,
    sets,
    sorting,
)
from penstock.ops.portable import Program
from penstock.shader import glsl, prebuilt

#: Kernels that are generated for GLSL and for HIP from one text.
_PROGRAMS: tuple[Program, ...] = (
    indexing.COMBINE, moves.MOVE, moves.MOVE_BY_TABLE, ramps.RAMP, ramps.RAMP32, ramps.RAMP64,
    selection.PEEK, selection.SCAN, selection.SELECT, selection.UNRAVEL, sets.CHANGES, sets.GAPS,
    sorting.RADIX, sorting.ROWSORT, sorting.SEARCH,
)  # fmt: skip

_PACKAGE = Path(reductions.__file__).parents[1]
_BENCH = _PACKAGE / "bench/shaders"

#: Texts that are handed to the compiler at once: glslc takes all that wait in one process.
_AT_ONCE = 256

#: The subgroup sizes of known devices: SwiftShader 4; lavapipe and Intel 8; Intel 16; AMD and
#: NVIDIA 32; AMD 64.
_SUBGROUPS = (4, 8, 16, 32, 64)


def every_shader() -> Iterable[Shader]:
    """Yield every kernel that is in a file, once for each variant."""
    for folder, name in (("graph", "advance"), ("cli", "saxpy")):
        yield Shader(name, _PACKAGE / folder / f"shaders/{name}.comp", {}, {})
    for name in ("pick", "saxpy", "touch"):
        yield Shader(name, _BENCH / f"{name}.comp", {}, {})
    yield Shader("pick", _BENCH / "pick.comp", {"AS_RESULT": 1}, {})
    for defines in reductions.every_variant():
        yield Shader("reduction", _PACKAGE / "ops/shaders/reduction.comp", defines, {})
    in_files = (
        *axes_kernels.every_variant(), *scans.every_variant(), *product_plans.every_variant(),
        *(("random", defines) for defines in random.every_variant()),
    )  # fmt: skip
    for name, defines in in_files:
        yield Shader(name, _PACKAGE / f"ops/shaders/{name}.comp", defines, {})
    for size in _SUBGROUPS:
        yield from every_kernel(size)


def compile_all() -> dict[str, bytes]:
    """Return the SPIR-V of every kernel, by the key of its text. Needs a compiler and seconds."""
    texts = {prebuilt.key_of(one.text): one for one in _compilations()}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(texts, pool.map(_Compilation.compile, texts.values()), strict=True))


def write(path: str | os.PathLike[str]) -> int:
    """Write the archive; return the number of kernels in it."""
    made = compile_all()
    prebuilt.write(path, made)
    return len(made)


class _Compilation(NamedTuple):
    name: str
    source: str
    defines: glsl.Defines
    folder: Path | None

    @property
    def text(self) -> str:
        name, source, defines, folder = self
        return glsl.assemble(source, name=name, defines=defines, include_dir=folder)

    def compile(self) -> bytes:
        name, source, defines, folder = self
        return glsl.compile_glsl(source, name=name, defines=defines, include_dir=folder)


def _compilations() -> Iterable[_Compilation]:
    seen = set()
    for shader in every_shader():
        variant = shader.path, tuple(sorted(shader.defines.items()))
        if variant in seen:  # of several subgroup sizes, for which most kernels are the same
            continue
        seen.add(variant)
        source = shader.path.read_text("utf-8")
        yield _Compilation(shader.name, source, shader.defines, shader.path.parent)
    for program in _PROGRAMS:
        yield _Compilation(program.name, program.glsl, {}, None)
        yield _Compilation(program.name, program.texel_glsl, {}, None)
    for text in operation_text.every_text():
        yield _Compilation("operation", text, {}, None)
    kernels = KERNELS.values()
    with_texels = (kernel.texel_source for kernel in kernels if kernel.texels)
    for source in (TOTAL, *(kernel.source for kernel in kernels), *with_texels):
        yield _Compilation("conformance", source, {}, None)


if __name__ == "__main__":
    print(f"{len(compile_all()):,} kernels compile, and are in the cache")
