"""The conformance suite: it passes on every driver, and it would tell if something were wrong."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

import penstock as ps
from penstock.__main__ import main
from penstock.array.transfer import MODES
from penstock.conformance import (
    CORPUS,
    Bench,
    Failure,
    Lab,
    Program,
    as_script,
    generate,
    lab,
    run,
    shrink,
)
from penstock.conformance.faults import faults_of
from penstock.conformance.interrupts import no_collection
from penstock.conformance.kernels import KERNELS
from penstock.conformance.oracle import is_valid
from penstock.conformance.parts import WAYS, Part
from penstock.conformance.program import (
    DTYPES,
    HOWS,
    Change,
    Collect,
    Copy,
    Declared,
    Drop,
    EndBatch,
    EventDone,
    EventWait,
    Fill,
    Launch,
    Misuse,
    Numpy,
    Operation,
    Poke,
    Read,
    Record,
    Renew,
    Reopen,
    StreamWait,
    Synchronize,
    Touch,
    View,
    Write,
    accesses_of,
    parts_of,
)
from penstock.conformance.scripting import MISUSES
from penstock.conformance.threads import dependencies
from penstock.driver.sim.driver import SimRecording
from penstock.ledger.roles import POLICIES
from tests.conftest import HAS_VALIDATION


def execute(script: str, name: str = "program.py") -> None:
    """Run a script in this process. Some turn the garbage collector off, which is on again then."""
    with no_collection():
        exec(compile(script, name, "exec"), {})


@pytest.mark.parametrize("program", CORPUS, ids=lambda program: program.name)
def test_named_programs_on_the_simulator(program: Program) -> None:
    with Lab() as lab:
        for mode in MODES:
            for seed in (0, 3):  # with 3 memory is coherent
                assert lab.run(program, mode, seed) is None


@pytest.mark.parametrize("mode", MODES)
def test_named_programs_on_a_device(mode: str, driver: str) -> None:
    with Lab("vulkan", driver, validate=HAS_VALIDATION and mode != "ordered") as lab:
        for program in CORPUS:
            assert lab.run(program, mode, 0) is None, program.name


@pytest.mark.parametrize("mode", MODES)
def test_random_programs_on_the_simulator(mode: str) -> None:
    with Lab() as lab:
        for seed in range(50):
            program = generate(seed)
            assert lab.run(program, mode, seed) is None, as_script(program)


@pytest.mark.parametrize("mode", MODES)
def test_random_programs_on_a_device(mode: str, driver: str) -> None:
    # The validation layer stalls for 10 s when threads wait and signal, which this mode does.
    validate = HAS_VALIDATION and mode != "ordered"
    with Lab("vulkan", driver, validate=validate) as lab:
        for seed in range(10):
            program = generate(seed, alignment=lab.alignment(mode))
            assert lab.run(program, mode, seed) is None, as_script(program)


def test_programs_depend_on_the_seed_alone() -> None:
    assert [generate(seed) for seed in range(20)] == [generate(seed) for seed in range(20)]
    assert len({generate(seed) for seed in range(20)}) == 20
    assert len(generate(3, size=7).operations) == 7


def traits(program: Program) -> set[object]:
    """Everything of the public API that a program uses."""
    operations = program.operations
    parts = [part for each in operations for part in parts_of(each)]
    found: set[object] = {*map(type, operations), ("small", program.small)}
    found.add(("threads", program.threads))
    found.add(("closed", program.closed_at > 0, program.threads > 1))
    found |= {("interrupted", type(operations[number])) for number, _ in program.interrupted}
    found |= {(each.dtype, each.how, bool(each.columns)) for each in program.arrays}
    found |= {("kernel", each.kernel) for each in operations if isinstance(each, Launch)}
    found |= {("misuse", each.what) for each in operations if isinstance(each, Misuse)}
    found |= {("across", each.across) for each in operations if isinstance(each, Copy)}
    found |= {("view", each.mode) for each in operations if isinstance(each, View)}
    found |= {("DLPack", each.dlpack) for each in operations if isinstance(each, View)}
    found |= {("role", each.role) for each in program.arrays}
    found |= {
        (type(each), program.arrays[part.array].role)
        for each in operations
        for part, write in accesses_of(each)
        if write
    }
    return found | {("way", part.way) for part in parts} | {("step", part.step) for part in parts}


def test_everything_is_generated() -> None:
    found = set().union(*(traits(generate(seed)) for seed in range(600)))
    assert found >= set(get_args(Operation))
    assert found >= {("kernel", name) for name in KERNELS}
    assert found >= {("misuse", name) for name in MISUSES}
    assert found >= {("way", way) for way in WAYS}
    assert found >= {("role", role) for role in POLICIES}
    assert found >= {(kind, "append") for kind in (Write, Fill, Copy, Launch)}
    assert ("DLPack", True) in found
    assert ("across", True) in found
    assert found >= {("closed", True, several) for several in (True, False)}
    assert found >= {("interrupted", kind) for kind in (Write, Copy, Launch, Read, View)}
    assert {each[:2] for each in found if isinstance(each, tuple)} >= {
        (dtype, how) for dtype in DTYPES for how in HOWS
    }


def test_named_programs_are_valid_and_named_once() -> None:
    assert all(is_valid(program) for program in CORPUS)
    assert len({program.name for program in CORPUS}) == len(CORPUS)
    assert all(program.about for program in CORPUS)


@pytest.mark.parametrize(
    "program", [*CORPUS[::6], *map(generate, range(10))], ids=lambda program: program.name
)
def test_scripts_do_what_programs_do(program: Program) -> None:
    for mode in ("auto", "unmapped"):
        execute(as_script(program, f'driver="sim", transfers="{mode}"'))


def test_scripts_of_everything_run() -> None:
    seen: set[object] = set()
    for seed in range(300):
        program = generate(seed)
        if not traits(program) <= seen and all(each.size < 1000 for each in program.arrays):
            seen |= traits(program)
            for mode in ("auto", "unmapped"):
                script = as_script(program, f'driver="sim", seed={seed}, transfers="{mode}"')
                execute(script, f"seed {seed}")
    assert seen >= set(get_args(Operation))


@pytest.mark.parametrize("kind", get_args(Operation), ids=lambda kind: kind.__name__)
def test_programs_shrink_to_what_matters(kind: type) -> None:
    def again(program: Program, failure: Failure) -> Failure | None:
        assert is_valid(program)
        return failure if any(isinstance(each, kind) for each in program.operations) else None

    program = next(p for p in map(generate, range(1000)) if kind in traits(p) and p.arrays[1:])
    small, _ = shrink(program, Failure("", None, "auto", 0), again)
    needed = {Touch: 2, Drop: 2, Change: 2, Collect: 2, Poke: 2, EndBatch: 2}
    waits = (StreamWait, EventWait, EventDone)
    assert len(small.operations) == (2 if kind in waits else needed.get(kind, 1))
    assert not small.small
    assert small.threads == 1
    assert small.streams == (2 if kind is Reopen else 1)
    assert all((each.dtype, each.columns) == ("uint32", 0) for each in small.arrays)
    execute(as_script(small))


def test_programs_in_threads_replay_exactly() -> None:
    def outcome(seed: int) -> tuple[object, ...]:
        with no_collection(), ps.Device(driver="sim", seed=seed) as device:
            assert run(program, Bench(device, seed)) is None
            driver = device.scheduler.driver
            # A copy: what finalisers do later depends on when the collector runs.
            return dict(driver.calls), driver.machine.chance.random()  # type: ignore[attr-defined]

    program = next(p for p in map(generate, range(100)) if p.threads > 1)
    assert outcome(5) == outcome(5)
    assert any(outcome(5) != outcome(seed) for seed in range(6, 10))


def test_an_interrupted_operation_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    fill = ps.Array.fill

    def noted(array: ps.Array, value: int, stream: ps.Stream) -> None:
        done.append("begun")
        fill(array, value, stream)
        done.append("ended")

    monkeypatch.setattr(ps.Array, "fill", noted)
    part = Part(0, 0, 64)
    operations = (Fill(part, 1), Fill(part, 2), Numpy(part))
    program = Program((Declared(64, "array"),), 1, operations, interrupted=((0, 20), (1, 10_000)))
    assert is_valid(program)
    with ps.Device(driver="sim") as device:
        assert run(program, Bench(device)) is None
    assert done.count("begun") > 3
    assert done.count("ended") == 2
    script = as_script(program)
    assert script.count("@interrupted(") == 2
    execute(script)


@pytest.mark.parametrize(
    "operation",
    [
        Launch("add", (Part(0, 0, 64),), 1),
        Launch("store", (Part(0, 0, 64),), 1, again=2),
        Copy(Part(0, 0, 32), Part(0, 16, 48)),
        Misuse("no event", Part(0, 0, 64)),
        Renew(0),
    ],
)
def test_what_may_not_be_done_twice_is_not_interrupted(operation: Operation) -> None:
    program = Program((Declared(64),), 1, (operation,))
    assert is_valid(program)
    assert not is_valid(replace(program, interrupted=((0, 5),)))


def test_interrupted_programs_replay_exactly() -> None:
    def outcome(program: Program) -> tuple[object, ...]:
        with no_collection(), ps.Device(driver="sim", seed=5) as device:
            assert run(program, Bench(device, 5)) is None
            driver = device.scheduler.driver
            # A copy: what finalisers do later depends on when the collector runs.
            return dict(driver.calls), driver.machine.chance.random()  # type: ignore[attr-defined]

    programs = [p for p in map(generate, range(200)) if p.interrupted and p.streams == 1]
    assert programs
    for program in programs:
        assert outcome(program) == outcome(program)


CLOSED = Program(
    (Declared(64, "adopted"), Declared(64)),
    2,
    (
        Fill(Part(0, 0, 64), 7),
        Read(Part(0, 0, 32), 1),
        View(Part(1, 0, 64), 2),
        Fill(Part(0, 0, 64), 8, 1),
        Record(4, 1),
        EventWait(4),
        Collect(1),
        Numpy(Part(0, 0, 64)),
        Drop(2),
    ),
    closed_at=3,
)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_may_close_its_device(threads: int) -> None:
    program = replace(CLOSED, threads=threads)
    for seed in range(5):
        with Lab() as lab:
            assert lab.run(program, "auto", seed) is None
        script = as_script(program, f'driver="sim", seed={seed}')
        assert "dev.close" in script
        execute(script)


def test_a_closed_device_that_goes_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ps.Array, "numpy", lambda array: np.zeros(array.shape, array.dtype))
    failure = Lab().run(CLOSED, "auto", 0)
    assert failure is not None
    assert failure.operation == 7
    assert "numpy: 64 of 64 elements are wrong" in failure.what


def test_calls_that_depend_on_each_other_keep_their_order() -> None:
    left, right = Part(0, 0, 32), Part(0, 32, 64)
    operations = (Fill(left, 1), Fill(right, 2, 1), Numpy(left), Fill(left, 3, 1), Synchronize())
    program = Program((Declared(64),), 2, operations, threads=2)
    assert dependencies(program) == [set(), set(), {0}, {1, 2}, {3}]


def test_a_broken_runtime_is_found_by_a_small_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimRecording, "barrier", lambda self: None)
    with Lab() as lab:
        for seed in range(30):
            program = generate(seed)
            failure = lab.run(program, "auto", seed)
            if failure is not None:
                break
        else:
            pytest.fail("not found")
        small, failure = shrink(program, failure, lab.run_any)
        assert len(small.operations) <= 4
        assert failure.messages
        script = as_script(small, lab.device_arguments(failure))
        assert f"seed={failure.seed}" in script
        with pytest.raises(AssertionError):
            execute(script)


def test_a_program_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(array: ps.Array) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(lab, "_SIMULATED", 0.2)
    monkeypatch.setattr(ps.Array, "numpy", hang)
    failure = Lab().run(CORPUS[0], "auto", 0)
    assert failure is not None
    assert "hangs" in failure.what


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["check", "--programs", "5", "--seed", "100", "--transfers", "staged"]
    assert main(command) == 0
    assert "5 random programs on simulator" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    monkeypatch.setattr(SimRecording, "barrier", lambda self: None)
    assert main(command) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "program.py:" in printed
    assert 'dev = ps.Device(driver="sim"' in printed


def test_faults_change_nothing() -> None:
    for number, program in enumerate((*CORPUS[::3], generate(1), generate(2))):
        for what, failure in faults_of(program, MODES[number % len(MODES)], number):
            assert failure is None, f"{program.name}, {what}: {failure}"
