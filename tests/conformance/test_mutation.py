"""The suite catches the runtime with any one safeguard taken out, and passes it with all in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from mutation.hip import HIP
from mutation.litmus import GUARDS, SAFEGUARDS, guards_of
from mutation.mutants import MUTANTS
from mutation.prove import paths_of
from mutation.recurrence import RECURRENCE
from mutation.reuse import REUSE
from mutation.tracing import TRACING
from mutation.vulkan import VULKAN
from penstock.array.transfer import MODES
from penstock.conformance import CORPUS, Lab, Program
from tests.hip import standin

ROOT = Path(__file__).parents[2]
PROGRAMS = {program.name: program for program in CORPUS}
OTHERS = [mutant.name for mutant in MUTANTS if mutant.name not in SAFEGUARDS.values()]


def in_process(module: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", f"mutation.{module}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_docs_list_every_mutant_and_program() -> None:
    text = (ROOT / "docs/conformance-tables.md").read_text()
    listed = [re.findall(r"^\| (.*?) \|", part, re.M)[1:] for part in text.split("\n## ")[1:]]
    assert listed[0] == [mutant.name for mutant in MUTANTS]
    assert {*listed[1]} >= {program for program, guards in GUARDS.items() if guards}
    assert sorted(listed[2]) == sorted(mutant.name for mutant in VULKAN)
    page = re.sub(r"\s+", " ", (ROOT / "docs/conformance.md").read_text())
    for count in (
        f"All {len(MUTANTS)} mutants are caught", f"{len(PROGRAMS)} programs in {len(MODES)} modes",
        f"catch all {len(TRACING)} mutants", f"catch all {len(RECURRENCE)} mutants",
        f"The tests catch all {len(VULKAN)}", f"catch all {len(REUSE)} mutants",
    ):  # fmt: skip
        assert count in page, count


@pytest.mark.parametrize("mutant", SAFEGUARDS.values())
def test_programs_fail_without_their_safeguard(mutant: str) -> None:
    lab = Lab()
    proofs = in_process("prove", mutant)
    assert proofs
    for proof in proofs:
        assert proof["why"], f"{proof['program']} [{proof['mode']}] passes although {mutant}"
        assert lab.run(PROGRAMS[proof["program"]], proof["mode"], proof["seed"]) is None


@pytest.mark.parametrize("mutant", OTHERS)
def test_mutant_is_caught(mutant: str) -> None:
    found = in_process("hunt", mutant, "300")
    assert found["caught"], f"{mutant} survived {found['tried']} programs"
    compile(found["script"], "program.py", "exec")


@pytest.mark.parametrize("mutant", [mutant.name for mutant in HIP])
def test_mutant_of_the_hip_driver_is_caught(mutant: str) -> None:
    if not standin.compilers():
        pytest.skip("no C and C++ compiler to build the stand-in for HIP with")
    assert in_process("calls", mutant)[mutant]


@pytest.mark.parametrize("mutant", [mutant.name for mutant in VULKAN])
def test_mutant_of_the_driver_is_caught(mutant: str) -> None:
    if not any("llvmpipe" in info.name for info in ps.devices()):
        pytest.skip("llvmpipe is not installed")
    assert in_process("calls", mutant)[mutant]


@pytest.mark.parametrize("mutant", [mutant.name for mutant in TRACING])
def test_mutant_of_a_trace_is_caught(mutant: str) -> None:
    assert in_process("calls", mutant)[mutant]


@pytest.mark.parametrize("mutant", [mutant.name for mutant in RECURRENCE])
def test_mutant_of_recurrence_is_caught(mutant: str) -> None:
    assert in_process("calls", mutant)[mutant]


@pytest.mark.parametrize("mutant", [mutant.name for mutant in REUSE])
def test_mutant_of_reuse_is_caught(mutant: str) -> None:
    assert in_process("calls", mutant)[mutant]


def test_every_program_names_its_safeguard() -> None:
    for program in CORPUS:
        guards = guards_of(program)
        assert not guards or set(guards) == set(MODES), program.name
        assert all(guards.values()), program.name
    assert set(GUARDS) <= set(PROGRAMS)


@pytest.mark.parametrize(
    "name", ["read, then write", "write, then write", "blocking write", "event covers a write"]
)
def test_writes_take_every_path(name: str) -> None:
    borrowed = PROGRAMS.get(f"{name}, borrowed", PROGRAMS[name])
    assert "write rename" in _paths(PROGRAMS[name], "direct")
    assert _paths(PROGRAMS[name], "rename") == {"write rename"}
    assert _paths(PROGRAMS[name], "staged") == {"write staged"}
    assert _paths(borrowed, "ordered") == {"write ordered"}
    assert _paths(PROGRAMS[name], "unmapped") == {"write staged"}


def _paths(program: Program, mode: str) -> set[str]:
    return {path for seed in range(3) for path in paths_of(program, mode, seed)}
