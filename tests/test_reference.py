"""Every public name has a sentence and an example that runs (`docs/reference/`)."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
import penstock.llm as llm
from penstock.handle import PUBLIC
from penstock.llm.random_model import shape_of, write_random_model
from penstock.ops.random import Generator, Random
from tools.reference import named, sections

SECTIONS = sections()
#: What a class inherits from `dict`, tuples and exceptions, and what only works on stacks of
#: experts, whose example would be a model of them.
_OTHERS = {*dir(dict), *dir(tuple), *dir(Exception), "halves", "matrices"}


def classes() -> Iterator[tuple[str, type]]:
    """The public classes by name, but for exceptions."""
    for prefix, package in (("", ps), ("llm.", llm)):
        for name in package.__all__:
            found = getattr(package, name)
            if inspect.isclass(found) and not issubclass(found, Exception):
                yield f"{prefix}{name}", found
    yield "Random", Random
    yield "Generator", Generator


def members(name: str, kind: type) -> list[str]:
    if name in PUBLIC:
        return PUBLIC[name].split()
    return [word for word in dir(kind) if word[0] != "_" and word not in _OTHERS]


def is_method(kind: type, member: str) -> bool:
    return callable(inspect.getattr_static(kind, member, None)) or isinstance(
        inspect.getattr_static(kind, member, None), classmethod | staticmethod
    )


def wanted() -> Iterator[str]:
    """The names that need an example of their own: functions, classes and methods."""
    for package, prefix in ((ps, ""), (llm, "llm.")):
        for name in package.__all__:
            found = getattr(package, name)
            if not (inspect.isclass(found) and issubclass(found, ps.Error) and name != "Error"):
                yield f"{prefix}{name}"
    yield "Error"  # all errors share it
    for name, kind in classes():
        yield name
        yield from (f"{name}.{each}" for each in members(name, kind) if is_method(kind, each))


def test_every_name_has_an_example() -> None:
    missing = sorted(set(wanted()) - SECTIONS.keys() - {"llm.ModelError"})
    assert not missing, f"docs/reference/*.txt lacks {', '.join(missing)}"
    for name in SECTIONS:
        assert named(name) is not None


def test_examples_of_handles_show_every_property() -> None:
    for name in PUBLIC:
        kind = getattr(ps, name)
        shown = "\n".join(
            text for each, text in SECTIONS.items() if each.partition(".")[0] in (name, "trace")
        )
        properties = [each for each in members(name, kind) if not is_method(kind, each)]
        missing = [each for each in properties if not re.search(rf"\.{each}\b", shown)]
        assert not missing, f"the examples of {name} do not show {', '.join(missing)}"


def test_the_reference_lists_every_name() -> None:
    page = (Path(__file__).parent.parent / "docs/api.md").read_text()
    listed = re.findall(r"^::: penstock\.([\w.]+)", page, re.M)
    for name in {*wanted()} | set(llm.__all__):
        top = name.removeprefix("llm.").partition(".")[0]
        assert top == "Error" or any(each.endswith(f".{top}") for each in listed), name


def test_every_name_has_a_sentence() -> None:
    for name in {*wanted()} - {"Role"}:  # an alias for type checkers, which has none
        text = inspect.getdoc(named(name)) or ""
        assert re.match(r"\S.*?[.:]", text, re.S), f"{name} has no docstring that starts so"
    for name in ps.__all__:
        assert name == "Role" or getattr(ps, name).__doc__, name


def test_examples_are_short() -> None:
    for name, text in SECTIONS.items():
        lines = len(re.findall(r"^>>> ", text, re.M))
        assert 1 <= lines <= (4 if "." in name.removeprefix("llm.") else 10), name


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the examples start from."""
    if not any("llvmpipe" in info.name for info in ps.devices()):
        pytest.skip("llvmpipe is not installed")
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    folder: Path = tmp_path_factory.mktemp("reference")
    path = folder / "tiny.gguf"
    write_random_model(path, shape_of("tiny"), "Q8_0")
    variants = llm.Variants(decode="rows", batch="rows", attention="rows")
    with ps.Device("llvmpipe") as dev, llm.load(path, dev, variants=variants) as model:
        yield {
            "np": np, "ps": ps, "llm": llm, "dev": dev, "model": model, "path": path,
            "folder": folder,
        }  # fmt: skip


@pytest.mark.parametrize("top", sorted({name.partition(".")[0] for name in SECTIONS}))
def test_examples_run(top: str, names: dict[str, Any]) -> None:
    """Each after that of its class."""
    parser = doctest.DocTestParser()
    for name, text in SECTIONS.items():
        if name.partition(".")[0] != top:
            continue
        before = SECTIONS.get(name.rpartition(".")[0], "")
        example = parser.get_doctest(f"{before}\n\n{text}", dict(names), name, None, 0)
        said: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
        assert not said, "".join(said)
