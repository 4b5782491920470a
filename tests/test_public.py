"""What strangers see of the package: names, `dir()`, the reference and type hints agree."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import penstock as ps
import penstock.llm as llm
from penstock.handle import PUBLIC, Handle

ROOT = Path(__file__).parent.parent
PACKAGES = [ps, llm]


def text_of(module: ModuleType) -> str:
    assert module.__file__
    return Path(module.__file__).read_text()


# Names of the packages.


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_what_there_is_and_nothing_else(package: ModuleType) -> None:
    """A module's `__getattr__` stands for every name, misspelt ones too, so it is hidden."""
    tree = ast.parse(text_of(package))
    assert not [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    (visible,) = (
        each
        for each in tree.body
        if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"
    )
    imported = {
        alias.name: each.module
        for each in visible.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert imported == {n: f"{package.__name__}.{home}" for n, home in package._HOMES.items()}
    assert set(imported) <= set(package.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_shows_public_names_only(package: ModuleType) -> None:
    shown = {name for name in dir(package) if not name.startswith("__")}
    assert shown - {"llm"} == set(package.__all__)
    assert all(hasattr(package, name) for name in shown)


def programs() -> Iterator[tuple[str, str]]:
    for folder in ("src", "tests", "examples", "benchmarks", "tools", "mutation", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            yield str(path.relative_to(ROOT)), path.read_text()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            yield page.name, code


def test_every_name_that_is_used_exists() -> None:
    """Tests and snippets are not type-checked, and annotations are not evaluated."""
    names = {*ps.__all__, "llm", "Gpu"}  # one of them on purpose
    wrong = [
        f"{place}: ps.{each.attr}"
        for place, code in programs()
        for each in ast.walk(ast.parse(code))
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "ps"
        and not each.attr.startswith("_")
        and each.attr not in names
    ]
    assert not wrong


def test_the_program_that_help_shows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"\n\n(    .*?)\n\nA `Device`", ps.__doc__ or "", re.S)
    exec(textwrap.dedent(program), {})
    assert "penstock receipt" in capsys.readouterr().out


# Handles.


def handles(dev: ps.Device) -> dict[str, Any]:
    """One of each."""
    double = dev.elementwise("y[i] = 2 * y[i]", "inout float32 y")
    y = dev.ones(4)
    kernel = dev.kernel(
        "layout(local_size_x = 1) in; layout(binding = 0) readonly buffer Y { float y[]; };"
        "layout(binding = 1) writeonly buffer Result { float result; };"
        "void main() { result = y[0]; }"
    )
    with dev.record() as graph:
        double(y=y)
    with ps.trace() as trace:
        made = {
            "Array": y,
            "Device": dev,
            "Elementwise": double,
            "Event": dev.default_stream.record(),
            "Graph": graph,
            "Kernel": kernel,
            "Pending": y.read(),
            "Result": kernel(y=y, threads=1),
            "Scratch": dev.scratch(),
            "Stream": dev.default_stream,
        }
    return made | {"Trace": trace, "Counts": ps.count()}


def test_dir_of_a_handle_shows_what_users_may_use(dev: ps.Device) -> None:
    made = handles(dev)
    assert made.keys() == PUBLIC.keys()
    for kind, handle in made.items():
        assert type(handle).__name__ == kind
        shown = [name for name in dir(handle) if not name.startswith("__")]
        assert shown == sorted(PUBLIC[kind].split())
        for name in shown:
            inspect.getattr_static(handle, name)  # `counter` of most arrays raises
        assert "__class__" in dir(handle)


def test_every_handle_of_the_package_is_listed() -> None:
    public = {name for name in ps.__all__ if inspect.isclass(getattr(ps, name))}
    kinds = {name for name in public if issubclass(getattr(ps, name), Handle)}
    assert kinds == PUBLIC.keys()


def test_a_handle_that_is_not_listed_shows_everything() -> None:
    class Own(Handle):
        def __init__(self) -> None:
            self.inside = 1

    assert "inside" in dir(Own())


def test_the_reference_lists_what_dir_shows() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    options = r"    options:\n      inherited_members: true\n      members: "
    listed = {
        kind: members.replace(",", " ").split()
        for kind, members in re.findall(rf"^::: \S+\.(\w+)\n{options}\[([^]]*)\]", page, re.M)
    }
    assert listed == {kind: names.split() for kind, names in PUBLIC.items()}


# Type hints.


def callables(package: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function, class, method and property, and how it is called."""
    for name in package.__all__:
        thing = getattr(package, name)
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            yield name, thing
            if name in ("Device", "Trace"):  # users make no other
                yield f"{name}.__init__", thing.__init__
            for member in PUBLIC[name].split() if name in PUBLIC else dir(thing):
                found = inspect.getattr_static(thing, member, None)
                found = getattr(found, "fget", None) or getattr(found, "__func__", found)
                if inspect.isfunction(found) and not member.startswith("_"):
                    yield f"{name}.{member}", found


@pytest.mark.parametrize("package", PACKAGES)
def test_type_hints_can_be_resolved(package: ModuleType) -> None:
    """With the public names of `penstock`, as `typing.get_type_hints(ps.Array.read, None, vars)`.

    Layers import downwards only, so `Array.device` cannot have `Device` in its module's names
    before `penstock.device` is loaded. What a hint names is either there or public, so it is
    resolved without knowing a private module.
    """
    names: dict[str, Any] = {name: getattr(ps, name) for name in ps.__all__}
    names["tokenizers"] = SimpleNamespace(Tokenizer=Any)  # the package need not be installed
    wrong = []
    count = 0
    for name, each in callables(package):
        count += 1
        try:
            typing.get_type_hints(each, localns=names)
        except (NameError, AttributeError, TypeError) as error:
            wrong.append(f"{name}: {error}")
    assert not wrong
    assert count > 30
