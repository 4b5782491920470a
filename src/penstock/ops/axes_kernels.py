"""The kernels that reduce arrays along axes: their families, variants, and NumPy forms.

A family is one SPIR-V module (`shaders/axes.comp`); what else a kernel depends on are
specialization constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.dtypes import Dtype, as_dtype
from penstock.launch.kernel import Kernel
from penstock.ops.elements import DTYPES, element_of
from penstock.ops.word_texels import reads_texels
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.device import Device

Host = npt.NDArray[Any]

SHADERS = Path(__file__).with_name("shaders")
UNIT = 16  # bytes that a kernel loads at once


class Family(NamedTuple):
    """A module of axes.comp: how it is compiled, and the dtype and size of its parts."""

    defines: dict[str, str | int | float]
    code: int  # of the parts' dtype; -1 if only the same family reads them
    size: int  # of a part, in bytes


#: Of families that compute numbers: the dtype of these.
NUMBERS = {"float": "float32", "double": "float64", "complex": "complex64", "dcomplex":
            "complex128", "whole": "int64"}  # fmt: skip

FAMILIES: dict[str, Family] = {
    name: Family(
        {"FOLD": 0, "NUMBER": number}, DTYPES.index(dtype), as_dtype(dtype).itemsize
    )
    for number, (name, dtype) in enumerate(NUMBERS.items())
}  # fmt: skip
FAMILIES["count"] = Family({"FOLD": 1}, -1, 4)
FAMILIES["extreme"] = Family({"FOLD": 2}, -1, 8)
FAMILIES["long"] = Family({"FOLD": 2, "LONG": 1}, -1, 16)

# The operations of families of numbers, as the shader has them; then what is done to the result.
SUM, PRODUCT, SQUARES = 0, 1, 2
DIVIDE, ROOT = 4, 8
# Of "count".
NUMBER, ANY, ALL = 0, 1, 2
# Of "extreme" and "long".
LARGEST, SMALLEST, INDEX = 0, 1, 2


class Variant(NamedTuple):
    """What a kernel depends on."""

    family: str
    operation: int
    source: Dtype  # of the elements; of parts, of the elements that they were made from
    out: Dtype | None  # None: parts are stored
    are_parts: bool = False
    along: bool = False
    across: bool = False
    aligned: bool = False
    sideways: bool = False
    several_kept: bool = False  # axes: up to four, or one
    several_reduced: bool = False
    short: bool = False
    fours: bool = False

    @property
    def stored(self) -> int:
        """Bytes of what is stored for an output."""
        return FAMILIES[self.family].size if self.out is None else self.out.itemsize

    @property
    def loaded(self) -> int:
        """Bytes of what is loaded for an element."""
        return FAMILIES[self.family].size if self.are_parts else self.source.itemsize


def every_variant() -> Iterator[tuple[str, dict[str, str | int | float]]]:
    """The shader and the defines of every module."""
    for texels in ({}, {"TEXELS": 1}):
        for family in FAMILIES.values():
            yield "axes", {**family.defines, **texels}


def make(device: Device, variant: Variant, group_size: int) -> Kernel:
    family = FAMILIES[variant.family]
    source = variant.source
    code = element_of(source).code
    if variant.are_parts and family.code >= 0:
        code = family.code
    constants = {
        "local_size_x": group_size,
        "SOURCE": code,
        "SIZE": variant.loaded,
        "ALIGNED": variant.aligned,
        "OUT": family.code if variant.out is None else element_of(variant.out).code,
        "OUT_SIZE": variant.stored,
        "FINISH": variant.out is not None,
        "OPERATION": variant.operation,
        "ALONG": variant.along,
        "ACROSS": variant.across,
        "SIDEWAYS": variant.sideways,
        "SEVERAL_KEPT": variant.several_kept,
        "SEVERAL_REDUCED": variant.several_reduced,
        "ARE_PARTS": variant.are_parts,
        "SHORT": variant.short,
        "FOURS": variant.fours,
    }
    if "NUMBER" not in family.defines:
        del constants["OUT"]  # which no module without numbers has
    texels = reads_texels(device)
    defines = {**family.defines, **({"TEXELS": 1} if texels else {})}
    name = f"{name_of(variant)} of {source}"
    return Kernel.of_forms(
        device,
        partial(_reference, variant),
        spirv=KernelSource(
            SHADERS / "axes.comp", name, defines, constants,
            formats={"x": "rgba32ui"} if texels else {},
        ),
        hip=hip_source("axes", name, family.defines, constants, ("m", _AXES_ARGUMENTS)),
    )  # fmt: skip


_AXES_ARGUMENTS = (
    "at last first jobs span units outputs step_splits rows_each steps_each rows kept_0 kept_1 "
    "kept_2 step_0 step_1 step_2 step_3 to_0 to_1 to_2 to_3 reduced_0 reduced_1 reduced_2 pace_0 "
    "pace_1 pace_2 pace_3 argument_0 argument_1"
)


def hip_source(
    shader: str, name: str, defines: Mapping[str, Any], constants: Mapping[str, Any],
    arguments: tuple[str, str],
) -> KernelSource:  # fmt: skip
    """The HIP form of a kernel: `arguments` are its second array, and its numbers."""
    given = {key: int(value) for key, value in constants.items() if key != "local_size_x"}
    array, numbers = arguments
    signature = f"in bytes x, in bytes {array}, out bytes y, " + ", ".join(
        f"uint32 {number}" for number in numbers.split()
    )
    return KernelSource(
        SHADERS / f"{shader}.hip", name, {**defines, **given}, signature=signature,
        group_size=constants["local_size_x"],
    )  # fmt: skip


def name_of(variant: Variant) -> str:
    operation = variant.operation
    if variant.family == "count":
        return ("count_nonzero", "any", "all")[operation]
    if variant.family in ("extreme", "long"):
        return ("max", "min", "argmax", "argmin")[operation]
    if operation & 3 == SQUARES or operation & ROOT:
        return "variance"
    return "prod" if operation & 3 == PRODUCT else "mean" if operation & DIVIDE else "sum"


def argument_of(divisor: float, *, double: bool) -> tuple[int, int]:
    """A number as the two words in which a kernel takes it."""
    if double:
        low, high = np.array([divisor], np.float64).view(np.uint32).tolist()
        return low, high
    return int(np.array([divisor], np.float32).view(np.uint32)[0]), 0


def _reference(variant: Variant, **given: Any) -> None:
    """The kernel in NumPy, for the simulator, where every output has one part."""
    axes = range(4)
    sizes = [given["kept_0"], given["kept_1"], given["kept_2"]]
    sizes.append(given["units"] // math.prod(sizes))
    inner = [given["reduced_0"], given["reduced_1"], given["reduced_2"]]
    inner.append(given["rows"] // math.prod(inner[1:]))
    steps = [signed(given[f"step_{axis}"]) for axis in axes]
    paces = [signed(given[f"pace_{axis}"]) for axis in axes]
    assert variant.out is not None
    x = np.ndarray(
        [*sizes[::-1], *inner[::-1]], variant.source, given["x"].view(np.uint8), given["at"],
        [*steps[::-1], *paces[::-1]],
    )  # fmt: skip
    x = x.reshape(*sizes[::-1], -1)
    to = [variant.out.itemsize * given[f"to_{axis}"] for axis in axes]
    y = np.ndarray(
        sizes[::-1], variant.out, given["y"].view(np.uint8), 4 * given["first"], to[::-1]
    )
    means = None
    if variant.family in NUMBERS and variant.operation & 3 == SQUARES:
        of = as_dtype(NUMBERS[variant.family])
        at = [of.itemsize * given[f"to_{axis}"] for axis in axes]
        means = np.ndarray(sizes[::-1], of, given["m"].view(np.uint8), 0, at[::-1])
    with np.errstate(all="ignore"):
        y[...] = _reduced(variant, x, means, given["argument_0"], given["argument_1"])


def _reduced(variant: Variant, x: Host, means: Host | None, low: int, high: int) -> Any:
    """The last axis of x, reduced."""
    operation = variant.operation
    if variant.family == "count":
        count = np.count_nonzero(x, -1)
        return (count, count != 0, count == low)[operation]
    if variant.family in ("extreme", "long"):
        best = (np.argmin if operation & SMALLEST else np.argmax)(x, -1)
        if operation & INDEX:
            return best + low
        return np.take_along_axis(x, best[..., None], -1)[..., 0]
    x = x.astype(as_dtype(NUMBERS[variant.family]))
    kind = operation & 3
    if means is not None:
        x = x - means[..., None]
        x = x.real**2 + x.imag**2 if variant.family in ("complex", "dcomplex") else x * x
    made = x.prod(-1) if kind == PRODUCT else x.sum(-1)
    words = np.array([low, high], np.uint32)
    if operation & DIVIDE:
        double = variant.family in ("double", "dcomplex")
        made = made / (words.view(np.float64)[0] if double else words.view(np.float32)[0])
    if operation & ROOT:
        made = np.sqrt(made)
    assert variant.out is not None
    return made.real if variant.out.kind != "c" and made.dtype.kind == "c" else made


def signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
