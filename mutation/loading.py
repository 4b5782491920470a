"""Loads the runtime with a mutant applied."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

from mutation.hip import HIP
from mutation.mutants import MUTANTS, Mutant
from mutation.recurrence import RECURRENCE
from mutation.reuse import REUSE
from mutation.tracing import TRACING
from mutation.vulkan import VULKAN


def load(name: str) -> Mutant:
    """Apply the mutant of that name to all later imports of Penstock's modules."""
    assert "penstock" not in sys.modules
    os.environ["PENSTOCK_NATIVE"] = "0"  # else the mutated line may never run
    every = (*MUTANTS, *VULKAN, *HIP, *TRACING, *RECURRENCE, *REUSE)
    mutant = next(mutant for mutant in every if mutant.name == name)
    sys.meta_path.insert(0, _Finder(mutant))
    return mutant


class _Finder:
    """Finds the modules that a mutant changes, before the ordinary finders do."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in [f"penstock.{module}" for module, _, _ in self._mutant.changes]:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        loader = _Loader(self._mutant, fullname, found.origin)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module from mutated source, never from a bytecode cache."""

    def __init__(self, mutant: Mutant, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        for module, old, new in self._mutant.changes:
            if fullname != f"penstock.{module}":
                continue
            if source.count(old) != 1:
                raise ImportError(f"mutant {self._mutant.name!r} does not fit {path} any more")
            source = source.replace(old, new)
        code: CodeType = self.source_to_code(source.encode(), path)
        return code
