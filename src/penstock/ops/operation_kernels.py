"""The kernels of elementwise functions, made when they are first needed, and their grids."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.dtypes import Dtype
from penstock.launch.kernel import Kernel
from penstock.ops import operation_hip
from penstock.ops.arithmetic import FUNCTIONS, Function
from penstock.ops.elements import Abilities, element_of
from penstock.ops.operation_text import (
    CAST,
    Family,
    Text,
    constant_ids,
    loops,
    operation_number,
    texel_format,
    unit_elements,
    write,
)
from penstock.ops.word_texels import reads_texels
from penstock.shader.glsl import compile_glsl
from penstock.shader.pruning import pruned
from penstock.shader.source import KernelSource

if TYPE_CHECKING:
    from penstock.device import Device

_NAMES = ("a", "b", "c")
STRIDED_UNIT = 4  # elements that an invocation computes at once if operands are strided
_MOST_TURNS = 60_000  # lavapipe ends the loops of an invocation after 65,535 in all


class Grid(NamedTuple):
    """How units are divided into groups and invocations."""

    size: int  # of a group in which each invocation computes one unit
    loop_size: int  # of a group that walks through a span
    turns: int  # of an invocation's loop, before another group is used
    most: int  # groups that loop, before they loop longer
    most_x: int  # groups along the first dimension

    @classmethod
    def of(cls, device: Device) -> Grid:
        limits: Any = device.info.limits
        most = min(limits["group_invocations"], limits["group_size"][0])
        most_x = limits["group_count"][0]
        if device.info.kind == "cpu":
            return cls(min(128, most), limits["subgroup_size"], 16, 512, most_x)
        return cls(min(256, most), min(256, most), 4, 1 << 15, most_x)

    def groups(self, units: int, *, loop: bool) -> int | tuple[int, int]:
        if loop:
            wanted = -(-units // (self.loop_size * self.turns))
            least = -(-units // (self.loop_size * _MOST_TURNS))
            return max(1, least, min(wanted, self.most))
        wanted = -(-units // self.size)
        return wanted if wanted <= self.most_x else (self.most_x, -(-wanted // self.most_x))


class KernelKey(NamedTuple):
    """What a kernel depends on."""

    function: str  # "" for a conversion
    dtypes: tuple[Dtype, ...]  # of the operands
    compute: Dtype
    out: Dtype
    numbers: int  # bits: which operands are numbers
    axes: int  # 0: flat
    adjacent: int  # bits: operands that are contiguous on the innermost axis; -1: no whole units
    shifts: tuple[int, ...]  # of flat operands: bytes of the first texel before the first element
    wide: bool  # whether units are stored as vectors

    @property
    def loop(self) -> bool:
        return loops(FUNCTIONS.get(self.function), element_of(self.compute).compute)


class Made(NamedTuple):
    """A kernel, and what its launches need to know of it."""

    kernel: Kernel
    unit: int  # elements that an invocation computes at once
    loop: bool


class OperationKernels:
    """The elementwise kernels of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._grid = Grid.of(device)
        self.texels = reads_texels(device)
        self.abilities = Abilities.of(device.info)
        self._made: dict[KernelKey, Made] = {}
        self._units: dict[tuple[str, Dtype], int] = {}

    def get(self, key: KernelKey) -> Made:
        """The kernel for a key, made if it is the first of it."""
        made = self._made.get(key)
        if made is None:
            unit = STRIDED_UNIT if key.axes else self.flat_unit(key.function, key.compute)
            # Another thread may have made the same kernel meanwhile.
            made = self._made.setdefault(key, Made(self._make(key), unit, key.loop))
        return made

    def groups(self, made: Made, size: int) -> int | tuple[int, int]:
        """The groups of a launch that computes `size` elements."""
        return self._grid.groups(-(-size // made.unit), loop=made.loop)

    def flat_unit(self, name: str, compute: Dtype) -> int:
        """The elements that an invocation computes at once from flat operands."""
        unit = self._units.get((name, compute))
        if unit is None:
            family = Family.of(FUNCTIONS[name]) if name else CAST
            unit = unit_elements(family, compute.itemsize, texels=self.texels)
            self._units[name, compute] = unit
        return unit

    def _make(self, key: KernelKey) -> Kernel:
        conversion = "copy" if key.out == key.compute else "astype"
        label = f"{key.function or conversion} of {key.compute}"
        function = FUNCTIONS.get(key.function)
        if self._device.scheduler.driver.language == "hip":
            return Kernel(self._device, self._hip(key, function, label))
        family = CAST if function is None else Family.of(function)
        own = element_of(key.compute)
        flat = 0 if key.axes else own.size
        text = Text(family, own.compute, flat, self.abilities, self.texels)
        constants = {
            "local_size_x": self._grid.loop_size if key.loop else self._grid.size,
            "LOOP": key.loop,
            "OPERATION": operation_number(key.function) if key.function else 0,
            "NUMBERS": key.numbers,
            "OUT_DTYPE": element_of(key.out).code,
            "OUT_SIZE": key.out.itemsize,
            "AXES": key.axes,
            "WHOLE": key.adjacent >= 0,
            "ADJACENT": max(0, key.adjacent),
            "WIDE": key.wide,
        }
        for name, dtype in zip(_NAMES, key.dtypes, strict=False):
            element = element_of(dtype)
            constants[f"{name.upper()}_DTYPE"] = element.code
            constants[f"{name.upper()}_SIZE"] = element.size
        for name, shift in zip(_NAMES, key.shifts, strict=False):
            constants[f"{name.upper()}_SHIFT"] = shift
        ids = constant_ids(family)
        values = {ids[name]: int(value) for name, value in constants.items() if name in ids}
        code = pruned(
            compile_glsl(write(text), name=label), values, self.abilities.kept(own.compute)
        )
        return Kernel(
            self._device,
            KernelSource(code, label, constants=constants, formats=self._formats(family, flat)),
            partial(_reference, function, key),
        )

    def _formats(self, family: Family, flat: int) -> dict[str, str]:
        """The texel formats of the operands, where they are texel buffers."""
        if not self.texels:
            return {}
        unit = unit_elements(family, flat, texels=True)
        made = {name: texel_format(unit * flat) for name in _NAMES[: family.operands]}
        if family.condition and flat:
            made["a"] = texel_format(unit)
        return made

    def _hip(self, key: KernelKey, function: Function | None, label: str) -> KernelSource:
        text = operation_hip.write(
            function, [*map(element_of, key.dtypes)], element_of(key.compute),
            element_of(key.out), key.axes, key.numbers,
        )  # fmt: skip
        names = "abc"[: len(key.dtypes)]
        size = self._grid.loop_size if key.loop else self._grid.size
        return KernelSource(text, label, signature=operation_hip.signature(names), group_size=size)


def _reference(function: Function | None, key: KernelKey, **given: Any) -> None:
    """The kernel in NumPy, for the simulator, where operands are always strided."""
    count, first = given["count"], given["first"]
    sizes = [given[f"size_{axis}"] for axis in range(key.axes - 1)]
    sizes.append(count // math.prod(sizes))
    values = []
    for index, (name, dtype) in enumerate(zip(_NAMES, key.dtypes, strict=False)):
        if key.numbers >> index & 1:
            label = "third" if name == "c" else "number"
            words = np.array([given[f"{label}_{part}"] for part in range(4)], np.uint32)
            values.append(words.view(np.uint8)[: dtype.itemsize].view(dtype)[0])
            continue
        steps = [given[f"{name}_step_{axis}"] for axis in range(key.axes)]
        content = np.ndarray(
            sizes[::-1], dtype, given[name], given[f"{name}_at"], steps[::-1]
        )  # fmt: skip
        condition = function is not None and function.condition and not index
        values.append(content if condition else content.astype(key.compute))
    with np.errstate(all="ignore"):
        found = values[0] if function is None else function.reference(*values)
        result = np.ascontiguousarray(found).astype(key.out).view(np.uint8).reshape(-1)
    given["out_words"][4 * first : 4 * first + result.size] = result
