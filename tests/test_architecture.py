"""The shape of the package: imports follow the diagram in docs/design.md."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

#: Imports inside functions that point up: what a trace saves is made above it, when it is asked.
LAZY_AND_UP = {("tracing", "timeline")}

#: Tools for developers in `penstock.llm`, which look into compiled kernels.
TOOLS = {("llm.amd", "glsl"), ("llm.amd", "spirv")}

#: Modules that may be long, and why.
LONG = {
    "array": "NumPy's names, each a few lines",
    "bench.runtime": "the jobs of one benchmark, each beside its floor",
    "conformance.oracle": "the contract as a program: split, it could not be read as one",
    "glsl": "the way of a text to SPIR-V: what a compiler may see, the compilers, the cache",
    "kernel": "how a kernel is made, and every way in which a call can be wrong",
    "llm.layers": "the kernels of a decoder layer in both variants, and their defines",
    "scheduler": "one owner of the state that everything shares",
    "stream": "what is recorded and not submitted, in steps that can be repeated",
    "spirv": "a parser of one binary format",
    "tracing": "what a receipt is, how it is written and how it is read",
    "transfer": "every way of host bytes to a device and back, chosen in one place",
}
MOST_LINES = 500


class Import(NamedTuple):
    module: str
    imported: str
    lazy: bool


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name, without `penstock.` in front."""
    found = {}
    for path in (SOURCE / "penstock").rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__").removeprefix("penstock.")] = path
    return found


@functools.cache
def imports() -> list[Import]:
    """What every module imports of the package, but for the type checker."""
    return [
        Import(name, imported, lazy)
        for name, path in modules().items()
        for imported, lazy in _imports_of(ast.parse(path.read_text()), lazy=False)
        if imported != name and name != "penstock"
    ]


def _imports_of(node: ast.AST, *, lazy: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.module:
            whole = [f"{child.module}.{alias.name}" for alias in child.names]
            names = [n if n.removeprefix("penstock.") in modules() else child.module for n in whole]
        for name in names:
            short = name.removeprefix("penstock.")
            if name.startswith("penstock.") and short in modules():
                yield short, lazy
        yield from _imports_of(child, lazy=lazy or isinstance(child, ast.FunctionDef))


@functools.cache
def rows() -> list[list[str]]:
    """The diagram, from the bottom up."""
    shape = (ROOT / "docs/design.md").read_text().partition("## Shape")[2]
    diagram = re.search(r"```\n(.*?)```", shape, re.S)
    assert diagram is not None
    lines = [re.split(r"\s{2,}", line, maxsplit=1) for line in diagram[1].splitlines()]
    return [names.split(" · ") for title, names in reversed(lines) if title]


def row_of(module: str) -> int:
    """The row of a module, or of the package that it is in."""
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        for number, row in enumerate(rows()):
            if name in row:
                return number
    pytest.fail(f"{module} has no place in the diagram of docs/design.md")


def test_every_module_has_one_place() -> None:
    listed = [name for row in rows() for name in row]
    assert len(listed) == len(set(listed))
    assert [name for name in listed if name not in modules()] == []
    for module in modules():
        if module != "penstock":
            row_of(module)


def test_imports_point_down() -> None:
    up = [
        each
        for each in imports()
        if row_of(each.imported) > row_of(each.module)
        and not (each.lazy and (each.module, each.imported.partition(".")[0]) in LAZY_AND_UP)
    ]
    assert not up, "\n".join(f"{each.module} imports {each.imported}" for each in up)


def test_imports_make_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for each in imports():
        if not each.lazy:
            graph.setdefault(each.module, set()).add(each.imported)
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_the_ledger_knows_no_driver() -> None:
    assert not [
        each for each in imports() if each.module == "hazards" and "driver" in each.imported
    ]


def test_language_models_use_the_public_interface_only() -> None:
    inside = [
        each
        for each in imports()
        if each.module.startswith("llm.")
        and not each.imported.startswith("llm")
        and (each.module, each.imported) not in TOOLS
    ]
    assert not inside, inside


def test_long_modules_have_a_reason() -> None:
    long = {
        name for name, path in modules().items() if len(path.read_text().splitlines()) > MOST_LINES
    }
    assert long - LONG.keys() == set(), "split it, or say here why not"
    assert LONG.keys() - long == set(), "no longer long"


def test_every_module_says_what_it_is() -> None:
    silent = [
        name
        for name, path in modules().items()
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


class TestTheCheckItself:
    """It must see what it is to forbid."""

    @pytest.mark.parametrize(
        ("source", "seen"),
        [
            ("from penstock.array import Array", [("array", False)]),
            ("from penstock import tracing", [("tracing", False)]),
            ("import penstock.driver.protocol", [("driver.protocol", False)]),
            ("def f():\n    from penstock import demo", [("demo", True)]),
            ("class A:\n    import penstock.view", [("view", False)]),
            ("if TYPE_CHECKING:\n    from penstock.device import Device", []),
            ("import numpy", []),
        ],
    )
    def test_imports_are_seen(self, source: str, seen: list[tuple[str, bool]]) -> None:
        assert list(_imports_of(ast.parse(source), lazy=False)) == seen

    def test_rows_are_in_order(self) -> None:
        assert (
            row_of("errors")
            == 0
            < row_of("driver.vulkan.api")
            < row_of("hazards")
            < row_of("kernel")
            < row_of("llm.model")
        )
