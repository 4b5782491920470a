"""The suite catches the runtime with any one safeguard taken out, and passes it with all in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mutation.hunt", mutant.name, "300"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["caught"], f"{mutant.name} survived {found['tried']} programs"
    compile(found["script"], "program.py", "exec")
