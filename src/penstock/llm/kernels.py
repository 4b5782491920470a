"""The kernels that read weights, as they are compiled: files, defines and constants.

What is decided here, once for the host and the device, is how rows of each kind are made of blocks,
and in which portions each way of computing a product (shaders/product.comp) takes its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import penstock as ps

DIRECTORY = Path(__file__).with_name("shaders")

#: The kinds of weights, and how each lies in memory.
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
PLAIN = ("F32", "F16", "BF16")

#: How many turns of loops an invocation may take on a CPU driver: lavapipe ends all its loops after
#: 65,535 turns together, and counts one more for each loop than it has turns.
MOST_TURNS = 60_000

Define = str | int | float


class Shader(NamedTuple):
    """One compilation: a file with its defines and its specialization constants."""

    name: str
    path: Path
    defines: Mapping[str, Define]
    constants: Mapping[str, int]

    @classmethod
    def of(
        cls, name: str, file: str, defines: Mapping[str, Define], constants: Mapping[str, int]
    ) -> Shader:
        """The shader of that file in this package."""
        return cls(name, DIRECTORY / f"{file}.comp", defines, constants)


class Compiled:
    """The kernels of a device, each compiled when it is first asked for, and kept."""

    def __init__(self, device: ps.Device) -> None:
        self._device = device
        self._kernels: dict[tuple[Any, ...], ps.Kernel] = {}

    def __call__(self, shader: Shader) -> ps.Kernel:
        key = (shader.path, *shader.defines.items(), *shader.constants.items())
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = self._device.kernel(
                shader.path, name=shader.name, defines=shader.defines, constants=shader.constants
            )
        return found


class Blocks(NamedTuple):
    """How rows of a kind are made of blocks, and of units: see blocks.glsl."""

    columns: int  # in a block
    bytes: int
    unit: int  # columns

    def pitch(self, columns: int) -> int:
        """The bytes of a row."""
        return columns // self.columns * self.bytes


def blocks_of(kind: str, steps: int) -> Blocks:
    """The blocks of a kind; `steps` decides how many plain numbers are a unit."""
    columns, size, unit = _BLOCKS[kind]
    return Blocks(columns, size, unit or 4 * steps)


_BLOCKS = {
    "F32": (1, 4, 0), "F16": (1, 2, 0), "BF16": (1, 2, 0),
    "Q8_0": (32, 34, 32), "Q4_0": (32, 18, 32), "Q4_1": (32, 20, 32),
    "Q5_0": (32, 22, 32), "Q5_1": (32, 24, 32),
    "Q4_K": (256, 144, 64), "Q5_K": (256, 176, 64), "Q6_K": (256, 210, 128),
}  # fmt: skip


class Way(NamedTuple):
    """How a product is computed (see product.comp), and in which portions."""

    name: str
    group_size: int
    tiles: Mapping[int, int]  # the most rows of a lane, by its tokens
    steps: int  # of units of plain numbers
    lanes: int  # that share a row; at least so many are in a subgroup
    window: int = 0  # words

    def tokens(self, count: int) -> int:
        """How many tokens a lane should take of so many."""
        return next((n for n in self.tiles if n >= count), max(self.tiles))

    def rows(self, kind: str, tokens: int) -> int:
        """How many rows a lane takes of a matrix."""
        most = _MOST_ROWS.get(kind, 32) if self.window else 32
        return min(self.tiles[tokens], most)


#: On lavapipe, kinds that take more code to decode are faster with fewer rows for a lane.
_MOST_ROWS = {"Q5_0": 8, "Q5_1": 8, "Q5_K": 8, "Q6_K": 4}


def way(name: str, subgroup_size: int) -> Way:
    """A way for a device whose subgroups are that large."""
    if name == "alone":
        return Way(name, 8, {1: 2, 4: 2}, steps=8, lanes=1)
    if name == "subgroup":
        size = max(subgroup_size, 32)
        return Way(name, size, {1: 4, 4: 2}, steps=2, lanes=subgroup_size)
    if name == "shared":
        return Way(name, 64, {1: 2, 4: 2}, steps=2, lanes=64)
    if name == "windowed":
        return Way(name, 32, {1: 12, 4: 8, 8: 4}, steps=2, lanes=subgroup_size, window=1 << 14)
    raise KeyError(name)


WAYS = ("alone", "subgroup", "shared", "windowed")


def product(
    kind: str, how: Way, tokens: int, *, aligned: bool, vectors: bool, add: bool, columns: int,
    cut: bool = False,
) -> Shader:  # fmt: skip
    """A product of a matrix of that kind with a batch of tokens.

    With `cut`, of some of the units of its rows: see `units_each`.
    """
    rows = how.rows(kind, tokens)
    defines: dict[str, Define] = {
        "WAY": how.name.upper(),
        "KIND": kind,
        "ALIGNED": int(aligned),
        "ROWS": rows,
        "TOKENS": tokens,
        "OUTPUTS": rows * tokens,
        "UNROLL": _unroll(kind, how, tokens),
    }
    if kind in PLAIN:
        defines["STEPS"] = how.steps
    if how.name in ("subgroup", "windowed"):
        defines["WRITERS"] = min(how.lanes, 8)
    if how.window:
        defines["WINDOW"] = how.window
        defines["COLUMNS"] = columns
    elif vectors:
        defines["VECTORS"] = 1
    if add:
        defines["ADD"] = 1
    if cut:
        defines["CUT"] = 1
    name = f"product {kind} {how.name} {rows}x{tokens}"
    return Shader(name, DIRECTORY / "product.comp", defines, {"local_size_x": how.group_size})


def units_each(kind: str, how: Way, tokens: int) -> int:
    """How many units of a row a launch may take on a CPU driver, which ends long loops.

    As if no compiler unrolled a loop of product.comp.
    """
    steps, quads = (how.steps, 1) if kind in PLAIN else _STEPS[kind]
    unroll = _unroll(kind, how, tokens)
    row = quads + 1 + quads * (tokens + 1)
    turns = 1 + (steps // unroll) * (2 + unroll) + 1
    turns += steps * (quads + 1 + how.rows(kind, tokens) * row)
    return MOST_TURNS // turns * how.lanes


#: By kind: STEPS and QUADS of blocks.glsl.
_STEPS = {
    "Q8_0": (8, 1), "Q4_0": (4, 2), "Q4_1": (4, 2), "Q5_0": (4, 2), "Q5_1": (4, 2),
    "Q4_K": (8, 2), "Q5_K": (8, 2), "Q6_K": (8, 4),
}  # fmt: skip


def _unroll(kind: str, how: Way, tokens: int) -> int:
    """As measured on lavapipe: loops cost there, but so does code that is too long."""
    if how.name != "windowed":
        return 1
    return 2 if kind in PLAIN or (kind == "Q8_0" and tokens == 1) else 1


def embedding(kind: str, *, aligned: bool) -> Shader:
    """Rows of a matrix, by number."""
    defines: dict[str, Define] = {"KIND": kind, "ALIGNED": int(aligned)}
    return Shader(f"embed {kind}", DIRECTORY / "embed.comp", defines, {"local_size_x": 32})


def addition(kind: str, *, aligned: bool) -> Shader:
    """A vector of plain numbers, added to every row."""
    defines: dict[str, Define] = {"KIND": kind, "ALIGNED": int(aligned)}
    return Shader(f"bias {kind}", DIRECTORY / "bias.comp", defines, {"local_size_x": 64})


def gating() -> Shader:
    """silu of one array times another."""
    return Shader("gate", DIRECTORY / "gate.comp", {}, {"local_size_x": 64})


def blocks_are_words(kind: str) -> bool:
    """Whether all blocks begin at whole words if the first does."""
    return kind in PLAIN or _BLOCKS[kind][1] % 4 == 0


def weight_kernels(subgroup_size: int) -> Iterable[Shader]:
    """All of them, each as a model would use it, for a device with subgroups of that size."""
    yield from _products(subgroup_size)
    for kind in KINDS:
        yield embedding(kind, aligned=blocks_are_words(kind))
    for kind in PLAIN:
        yield addition(kind, aligned=True)
    yield gating()


def _products(subgroup_size: int) -> Iterable[Shader]:
    for name in WAYS:
        how = way(name, subgroup_size)
        for kind in KINDS:
            for tokens in (min(how.tiles), max(how.tiles)):
                yield product(
                    kind, how, tokens, aligned=blocks_are_words(kind), vectors=True, add=True,
                    columns=1024,
                )  # fmt: skip
