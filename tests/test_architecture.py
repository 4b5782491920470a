"""The shape of the package: its folders are the layers, in the order of docs/design.md."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

#: Modules that may be long, and why.
LONG = {
    "array.array": "one class: its views, transfers and roles, each method a few lines",
    "conformance.oracle": "the contract as a program: split, it could not be read as one",
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
        for imported, lazy in _imports_of(ast.parse(path.read_text()), package_of(name), lazy=False)
        if imported != name and name != "penstock"
    ]


def package_of(module: str) -> str:
    """The package that a module's relative imports start from."""
    is_package = modules()[module].name == "__init__.py"
    return f"penstock.{module}" if is_package else f"penstock.{module}".rpartition(".")[0]


def _imports_of(node: ast.AST, package: str, *, lazy: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            base = importlib.util.resolve_name("." * child.level + (child.module or ""), package)
            whole = [f"{base}.{alias.name}" for alias in child.names]
            names = [n if n.removeprefix("penstock.") in modules() else base for n in whole]
        for name in names:
            short = name.removeprefix("penstock.")
            if name.startswith("penstock.") and short in modules():
                yield short, lazy
        yield from _imports_of(child, package, lazy=lazy or isinstance(child, ast.FunctionDef))


@functools.cache
def rows() -> list[list[str]]:
    """The diagram, from the bottom up."""
    shape = (ROOT / "docs/design.md").read_text().partition("## Shape")[2]
    diagram = re.search(r"```\n(.*?)```", shape, re.S)
    assert diagram is not None
    lines = [re.split(r"\s{2,}", line, maxsplit=1) for line in diagram[1].splitlines()]
    return [names.split(" · ") for title, names in reversed(lines) if title]


def row_of(module: str) -> int:
    """The row of the folder that a module is in; of a module at the top, its own."""
    folder = module.partition(".")[0]
    for number, row in enumerate(rows()):
        if folder in row:
            return number
    pytest.fail(f"{folder} has no place in the diagram of docs/design.md")


def test_every_folder_has_one_place() -> None:
    listed = [name for row in rows() for name in row]
    there = {module.partition(".")[0] for module in modules()} - {"penstock"}
    assert sorted(listed) == sorted(there)


def test_imports_point_down() -> None:
    up = [each for each in imports() if row_of(each.imported) > row_of(each.module)]
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


def test_the_ledger_knows_no_driver_and_does_no_io() -> None:
    own = {name: path for name, path in modules().items() if name.startswith("ledger")}
    beyond = {each.imported for each in imports() if each.module in own} - own.keys()
    assert beyond == {"accelerator", "errors", "locks"}
    for path in own.values():
        text = path.read_text()
        assert not re.search(r"^(import|from) (os|io|socket|pathlib|ctypes|cffi)\b", text, re.M)


def test_language_models_use_the_public_interface_only() -> None:
    inside = [
        each
        for each in imports()
        if each.module.startswith("llm.") and not each.imported.startswith("llm")
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
            ("from penstock.array.array import Array", [("array.array", False)]),
            ("from penstock.tracing import receipt", [("tracing.receipt", False)]),
            ("import penstock.driver.protocol", [("driver.protocol", False)]),
            ("def f():\n    from penstock.cli import demo", [("cli.demo", True)]),
            ("class A:\n    import penstock.array.view", [("array.view", False)]),
            ("from .view import HostView", [("array.view", False)]),
            ("from . import view", [("array.view", False)]),
            ("from ..device import Device", [("device", False)]),
            ("from .. import device", [("device", False)]),
            ("if TYPE_CHECKING:\n    from penstock.device import Device", []),
            ("import numpy", []),
        ],
    )
    def test_imports_are_seen(self, source: str, seen: list[tuple[str, bool]]) -> None:
        assert list(_imports_of(ast.parse(source), "penstock.array", lazy=False)) == seen

    def test_rows_are_in_order(self) -> None:
        assert (
            row_of("errors")
            == 0
            < row_of("driver.vulkan.api")
            < row_of("ledger.hazards")
            < row_of("launch.kernel")
            < row_of("llm.model")
        )
