"""One mutant: load the runtime with it, and look for a program that tells. Run as a process."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

from mutation.mutants import MUTANTS, Mutant


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module from changed source, and never from a cache."""

    def __init__(self, mutant: Mutant, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        if source.count(self._mutant.old) != 1:
            raise ImportError(f"mutant {self._mutant.name!r} does not fit {path} any more")
        changed = source.replace(self._mutant.old, self._mutant.new)
        code: CodeType = self.source_to_code(changed.encode(), path)
        return code


class _Finder:
    """Puts the loader before the ordinary one for one module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != f"penstock.{self._mutant.module}":
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        loader = _Loader(self._mutant, fullname, found.origin)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


def hunt(programs: int) -> dict[str, Any]:
    """The first program that fails, made small."""
    from penstock.conformance import CORPUS, Lab, generate, shrink
    from penstock.conformance.script import as_script
    from penstock.transfer import MODES

    def candidates() -> Iterator[tuple[Any, str, int]]:
        for seed in range(6):
            for program in CORPUS:
                for mode in MODES:
                    yield program, mode, seed
        for seed in range(programs):
            yield generate(seed), MODES[seed % len(MODES)], seed

    lab = Lab("sim")
    for tried, (program, mode, seed) in enumerate(candidates(), 1):
        failure = lab.run(program, mode, seed)
        if failure is not None:
            small, why = shrink(program, failure, lab.run_any)
            return {
                "caught": True,
                "tried": tried,
                "by": program.name,
                "operations": len(small.operations),
                "script": as_script(small, lab.device_arguments(why)),
                "why": why.what,
            }
    return {"caught": False, "tried": tried}


if __name__ == "__main__":
    chosen = next(mutant for mutant in MUTANTS if mutant.name == sys.argv[1])
    sys.meta_path.insert(0, _Finder(chosen))  # type: ignore[arg-type]
    print(json.dumps(hunt(int(sys.argv[2]))))
