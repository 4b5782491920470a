"""The examples of the reference: `docs/reference/*.txt`, by name, and their place in docs/api.md.

A section starts with `== NAME`, where NAME is what follows `penstock.` for a user (`Array.take`,
`llm.load`), and has a doctest. Before the section of a method, that of its class is run. Examples
are kept apart from the docstrings: examples of all methods would bury the code of `Array`.
`tests/test_reference.py` runs them and says which names need one.

mkdocs loads `Examples` (mkdocs.yml), which adds each section to the docstring of its name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

FOLDER = Path(__file__).parents[1] / "docs" / "reference"


def sections() -> dict[str, str]:
    """The doctest of each name."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        _, *parts = re.split(r"^== (.+)\n", path.read_text(), flags=re.M)
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"{path.name}: {name} has two sections")
            found[name] = text.strip()
    return found


def named(name: str) -> Any:
    """The object that a section is about."""
    import penstock
    from penstock import llm
    from penstock.ops.random import Generator, Random
    from penstock.xp.namespace import Namespace

    words = name.split(".")
    tops = {"llm": llm, "xp": Namespace, "Random": Random, "Generator": Generator}
    first = tops.get(words[0])
    found: Any = getattr(penstock, words[0]) if first is None else first
    for word in words[1:]:
        found = getattr(found, word)
    return found


class Examples(griffe.Extension):
    """Adds the examples to the docstrings that mkdocstrings renders."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        for name, text in sections().items():
            about = named(name)
            if hasattr(about, "__code__"):  # arrays' methods are called Array's, wherever they are
                path = f"{about.__module__}.{about.__code__.co_qualname}"
                self._texts.setdefault(path, text)
            elif hasattr(about, "__qualname__"):
                # A method that several classes inherit has the example of the first one.
                self._texts.setdefault(f"{about.__module__}.{about.__qualname__}", text)

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        text = self._texts.get(obj.path)
        if text is not None and obj.docstring is not None:
            indented = text.replace("\n", "\n    ")
            obj.docstring.value += f"\n\nExamples:\n    {indented}"
