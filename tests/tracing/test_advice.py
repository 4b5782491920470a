"""Advice names the line to change and how; a program that follows it is busier, and still right."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import Cause
from penstock.tracing.advice import Advice, advice
from penstock.tracing.idle import use_of
from penstock.tracing.receipt import Point, TraceEvent
from penstock.tracing.split_calls import Split, split_pending, split_read, view_of
from penstock.tracing.verdict import place
from tests.kernels import REFERENCES, SLOW_ADD, new_kernel
from tests.tracing.planted import PLANTED, Planted, Scene
from tests.tracing.test_gaps import host, launch, submitted
from tests.tracing.test_idle import in_virtual_time, traced

TURNS = 6
SHORT = PLANTED["a sleep"]._replace(command=2.0**-16)  # seconds that a command takes
Values = list[Any]


def reads_an_element(s: Scene) -> Values:
    values = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        values.append(float(s.x[0]))  # here
    return values


def takes_elements_after_the_loop(s: Scene) -> Values:
    pendings = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        pending = s.x[0].read()
        pendings.append(pending)
    return [float(pending.result()) for pending in pendings]


def converts(s: Scene) -> Values:
    values = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        values.append(np.asarray(s.x).sum())  # here
    return values


def converts_after_the_loop(s: Scene) -> Values:
    pendings = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        pending = s.x.read()
        pendings.append(pending)
    return [pending.result().sum() for pending in pendings]


def asks_for_a_sum(s: Scene) -> Values:
    values = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        values.append(s.x.sum().item())  # here
    return values


def asks_after_the_loop(s: Scene) -> Values:
    pendings = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        pending = s.x.sum()
        pendings.append(pending)
    return [pending.item() for pending in pendings]


def synchronizes(s: Scene) -> Values:
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        s.dev.synchronize()  # here
    return [s.x.numpy().sum()]


def does_not(s: Scene) -> Values:
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
    return [s.x.numpy().sum()]


def works_in_the_loop(s: Scene) -> Values:
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)  # here
        s.settle()
        s.sleep()
    return [s.x.numpy().sum()]


def works_after_the_loop(s: Scene) -> Values:
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
    s.stream.flush()  # in virtual time no thread submits what is left
    for _ in range(TURNS):
        s.sleep()
    return [s.x.numpy().sum()]


def uses_the_value(s: Scene) -> Values:
    values = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        value = s.x[1].item()  # here
        s.sleep()
        values.append(value)
    return values


def uses_it_after_the_loop(s: Scene) -> Values:
    pendings = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        pending = s.x[1].read()
        pendings.append(pending)
    values = []
    for pending in pendings:
        values.append(pending.result().item())
        s.sleep()
    return values


Run = Callable[[Scene], Values]
FOLLOWED: list[tuple[Run, Run, Cause, str]] = [
    (
        reads_an_element, takes_elements_after_the_loop, Cause.WAITED,
        "read at line HERE without a wait: `pending = s.x[0].read()`, and take "
        "`float(pending.result())` after the loop, or two or more turns later",
    ),
    (
        converts, converts_after_the_loop, Cause.WAITED,
        "read at line HERE without a wait: `pending = s.x.read()`, and take "
        "`pending.result()` after the loop, or two or more turns later",
    ),
    (
        asks_for_a_sum, asks_after_the_loop, Cause.WAITED,
        "keep `pending = s.x.sum()` at line HERE, and take `pending.item()` after the loop, or "
        "two or more turns later",
    ),
    (
        synchronizes, does_not, Cause.WAITED,
        "leave out `s.dev.synchronize()` at line HERE: the work at line LAUNCH keeps its order "
        "without it; only NumPy code needs it, if it uses adopted memory",
    ),
    (
        works_in_the_loop, works_after_the_loop, Cause.CALLER,
        "run the code between line HERE and the same line in the next turn after the loop, or in "
        "another thread, if the launch at line HERE does not need it",
    ),
    (
        uses_the_value, uses_it_after_the_loop, Cause.CALLER,
        "read at line HERE without a wait: `pending = s.x[1].read()`, and take "
        "`pending.result().item()` two or more turns later, or after the loop; of the code between "
        "line HERE and, in the next turn, line LAUNCH, what needs the value goes with it, and the "
        "rest stays where it is",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("faulty", "followed", "cause", "sentence"), FOLLOWED)
def test_a_program_that_follows_advice_is_busier_and_right(
    faulty: Run, followed: Run, cause: Cause, sentence: str
) -> None:
    busy, found, traces = [], [], []
    for program in (faulty, followed):
        with in_virtual_time(SHORT) as scene:
            scene.x.sum().result()  # compiles
            t = traced(lambda s, run=program: found.append(run(s)), scene)
        assert t.busy is not None
        assert t.span is not None
        busy.append(t.busy / t.span)
        traces.append(t)
    here, launched = number_of(faulty, "# here"), number_of(faulty, "s.work(")
    wanted = sentence.replace("HERE", str(here)).replace("LAUNCH", str(launched))
    largest = traces[0].advice[0]
    assert (largest.cause, largest.sentence) == (cause, wanted)
    assert here in {int(line.rpartition(":")[2]) for line in largest.lines}
    assert found[0] == found[1]
    assert busy[1] > busy[0]
    assert sum(map(saving, traces[1].advice)) < largest.seconds


def adds(s: Scene) -> Values:
    total = 0.0
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        total += float(s.x[0])  # here
        s.sleep()
    return [total]


def adds_after_the_loop(s: Scene) -> Values:
    pendings = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        pendings.append(s.x[0].read())
        s.sleep()
    return [sum(float(pending.result()) for pending in pendings)]


def does_all_after_the_loop(s: Scene) -> Values:
    pendings = []
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        pendings.append(s.x[0].read())
    total = 0.0
    for pending in pendings:
        total += float(pending.result())
        s.sleep()
    return [total]


def uses_the_sum(s: Scene) -> Values:
    total = 0.0
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        total += float(s.x[0])  # here
        s.sleep()
        print(total)
    return [total]


def uses_it_two_turns_later(s: Scene) -> Values:
    total, pendings = 0.0, []
    for turn in range(TURNS + 2):
        if turn < TURNS:
            s.work(x=s.x, **s.args)
            pendings.append(s.x[0].read())
            s.stream.flush()  # in virtual time no thread submits it while the program sleeps
        if turn >= 2:
            total += float(pendings[turn - 2].result())
            s.sleep()
            print(total)
    return [total]


LEAVE = (
    "after the loop, or two or more turns later; leave the code between line HERE and, in the "
    "next turn, line LAUNCH where it is: it does not use the value, and can run while the device "
    "works"
)
GOES = (
    "two or more turns later, or after the loop; of the code between line HERE and, in the next "
    "turn, line LAUNCH, what needs the value goes with it, and the rest stays where it is"
)


@pytest.mark.parametrize(
    ("faulty", "followed", "sentence"),
    [(adds, adds_after_the_loop, LEAVE), (uses_the_sum, uses_it_two_turns_later, GOES)],
)
def test_a_program_that_follows_advice_about_a_value_is_faster(
    faulty: Run, followed: Run, sentence: str
) -> None:
    """As a whole: one that does all after the loop is only busier, and ends as late."""
    found, seconds, traces = [], [], []
    for program in (faulty, followed, does_all_after_the_loop):
        with lasting(2.0**-6, 2.0**-7) as scene:
            start = scene.clock()
            traces.append(traced(lambda s, run=program: found.append(run(s)), scene))
            seconds.append(scene.clock() - start)
    here, launched = number_of(faulty, "# here"), number_of(faulty, "s.work(")
    wanted = sentence.replace("HERE", str(here)).replace("LAUNCH", str(launched))
    largest = traces[0].advice[0]
    assert largest.cause is Cause.CALLER
    assert largest.sentence == (
        f"read at line {here} without a wait: `pending = s.x[0].read()`, and take "
        f"`float(pending.result())` {wanted}"
    )
    assert found[0] == found[1] == found[2]
    least = (TURNS - 2) * 2.0**-7  # the first gap may not count, nor does the last
    assert least <= largest.seconds <= seconds[0] - seconds[1] + 2.0**-7
    assert seconds[2] == pytest.approx(seconds[0], rel=1e-2)
    busy = [(t.busy or 0.0) / (t.span or 1.0) for t in traces]
    assert min(busy[1:]) > busy[0]
    assert sum(map(saving, traces[1].advice)) < largest.seconds / 4


def test_code_that_takes_much_longer_than_the_device_is_to_run_elsewhere() -> None:
    with lasting(2.0**-7, 2.0**-5) as scene:
        t = traced(adds, scene)
    here, launched = number_of(adds, "# here"), number_of(adds, "s.work(")
    assert t.advice[0].sentence == (
        f"run the code between line {here} and, in the next turn, line {launched} after the loop, "
        f"or in another thread, if the launch at line {launched} does not need it"
    )


def test_a_value_taken_two_turns_later_is_late_enough() -> None:
    """One turn later, the read shares a submission with the launch that is to run meanwhile."""

    def takes_it(s: Scene, turns: int) -> None:
        pendings = []
        for _ in range(TURNS):
            s.work(x=s.x, **s.args)
            pendings.append(s.x[0].read())
            if len(pendings) > turns:
                pendings.pop(0).result()

    idle = []
    for turns in range(4):
        with lasting(2.0**-6) as scene:
            idle.append(traced(lambda s, turns=turns: takes_it(s, turns), scene).idle)
    assert idle[0] > idle[1] > idle[2] == idle[3]


@contextlib.contextmanager
def lasting(seconds: float, slept: float = 0.0) -> Iterator[Scene]:
    """A scene in virtual time in which only launches last long, and how long the program sleeps."""
    with in_virtual_time(SHORT, slept) as scene:

        def reference(**arguments: Any) -> None:
            scene.clock.takes(seconds)
            REFERENCES[SLOW_ADD](**arguments)

        scene.work = new_kernel(scene.dev, SLOW_ADD, "work", reference=reference)
        scene.work(x=scene.x, **scene.args)
        scene.x.sum().result()  # compiles
        yield scene


def decides(s: Scene) -> Values:
    turns = 0
    while float(s.x[0]) < 1e9 and turns < TURNS:  # here
        s.work(x=s.x, **s.args)
        turns += 1
    return []


def decides_by_a_name(s: Scene) -> Values:
    value, turns = 0.0, 0
    while value < 1e9 and turns < TURNS:
        s.work(x=s.x, **s.args)
        value = float(s.x[0])  # here
        turns += 1
    return []


def decides_by_an_operator(s: Scene) -> Values:
    """In which NumPy's code calls Penstock's."""
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        if s.x.sum() > 1e9:  # here
            break
    return []


def passes_by_a_name(s: Scene) -> Values:
    for _ in range(TURNS):
        value = int(s.x[0])  # here
        s.work(x=s.x, n=s.args["n"], spin=0, add=value, threads=s.args["threads"])  # launch
    return []


def replays(s: Scene) -> Values:
    with s.dev.record() as graph:
        s.work(x=s.x, **s.args)
    for _ in range(TURNS):
        graph.replay().wait()  # here
    return []


def operates(s: Scene) -> Values:
    y = s.x
    for _ in range(TURNS):
        y = y + 1
        y = y * 2
    s.dev.synchronize()
    return []


def flushes(s: Scene) -> Values:
    for _ in range(TURNS):
        s.work(x=s.x, **s.args)
        s.stream.flush()  # here
    s.dev.synchronize()
    return []


def passes(s: Scene) -> Values:
    for _ in range(TURNS):
        s.work(x=s.x, n=s.args["n"], spin=0, add=int(s.x[0]), threads=s.args["threads"])
    return []


@pytest.mark.parametrize("program", [decides, decides_by_a_name, decides_by_an_operator])
def test_a_value_that_decides_is_not_taken_later(program: Run) -> None:
    with in_virtual_time(SHORT) as scene:
        t = traced(program, scene)
    (waited,) = (each.sentence for each in t.advice if each.cause is Cause.WAITED)
    assert waited.startswith(f"decide at line {number_of(program, '# here')} in some turns only")
    assert "after the loop" not in str(t.advice)


def test_a_value_that_a_launch_takes_by_name_is_kept_on_the_device() -> None:
    with in_virtual_time(SHORT) as scene:
        t = traced(passes_by_a_name, scene)
    (waited,) = (each.sentence for each in t.advice if each.cause is Cause.WAITED)
    here, there = (number_of(passes_by_a_name, mark) for mark in ("# here", "# launch"))
    assert waited.startswith(f"keep on the device what the host waits for at line {here}: the ")
    assert f"the launch at line {there} can read it from an array" in waited


def test_what_a_wait_waits_for_is_not_to_be_left_out() -> None:
    with in_virtual_time(SHORT) as scene:
        t = traced(replays, scene)
    (waited,) = (each.sentence for each in t.advice if each.cause is Cause.WAITED)
    here = number_of(replays, "# here")
    assert waited.startswith(f"leave out `.wait()` after `graph.replay()` at line {here}: ")


def test_no_graph_is_advised_of_operators() -> None:
    with in_virtual_time(SHORT) as scene:
        t = traced(operates, scene)
    assert t.launches >= 2 * TURNS
    assert "graph" not in " ".join(each.sentence for each in t.advice)


def test_a_flush_in_each_turn_is_to_be_left_out() -> None:
    with in_virtual_time(SHORT) as scene:
        t = traced(flushes, scene)
    latency = [each.sentence for each in t.advice if each.cause is Cause.LATENCY]
    here = number_of(flushes, "# here")
    assert not [each for each in latency if "batch()" in each]
    for each in latency:
        assert each.startswith(f"leave out `s.stream.flush()` at line {here}: ")


def test_a_value_that_the_launch_takes_is_not_taken_later() -> None:
    with in_virtual_time(SHORT) as scene:
        t = traced(passes, scene)
    assert t.waits >= TURNS
    assert not [each for each in t.advice if each.cause is Cause.WAITED]


def number_of(program: Run, mark: str) -> int:
    source, first = inspect.getsourcelines(program)
    (number,) = (i for i, text in enumerate(source) if mark in text)
    return first + number


def saving(each: Advice) -> float:
    return each.seconds


def test_a_change_that_undoes_another_is_not_advised() -> None:
    """To read later and to look in place, of the same line: the one that saves more."""

    def events(copied: float) -> list[TraceEvent]:
        read = {"buffer": "x", "where": "p.py:2", "path": "direct"}
        reason = "the work that writes the bytes is done"
        found = []
        for turn in range(4):
            start = turn * 100e-3
            found += [
                launch(turn + 1, (start + 1e-3, 10e-3), start=start, seconds=1e-3, line=1),
                host("wait", start + 1e-3, 12e-3, 2)._replace(
                    **{**read, "path": ""},
                    awaited=(Point("gpu", "s", 1, turn + 1),),
                ),
                host("copy", start + 13e-3, copied, 2)._replace(**read, reason=reason),
            ]
        return found

    for copied in (0.1e-3, 80e-3):
        made = events(copied)
        given = advice(use_of(made), made)
        about_reading = [
            each for each in given if "read" in each.sentence or "view" in each.sentence
        ]
        assert len(about_reading) == 1, given


@pytest.mark.parametrize("ahead", [False, True])
def test_a_flush_is_advised_where_the_next_command_could_begin_earlier(ahead: bool) -> None:
    """Otherwise the device would be idle after the command in place of before it."""
    recorded = 12e-3 if ahead else 30e-3
    events = [
        launch(1, (1e-3, 1e-3), start=0.0, seconds=1e-3, line=1),
        launch(2, (31e-3, 1e-4), start=10e-3, seconds=1e-3, line=2),
        launch(2, (31.1e-3, 1e-4), start=recorded, seconds=1e-3, line=3, command=2),
        submitted(2, 31e-3, reason="2 commands: synchronize() waits for it"),
    ]
    given = advice(use_of(events), events)
    assert [each.sentence for each in given if each.cause is Cause.UNSUBMITTED] == [
        "call `stream.flush()` after the launch at line 2"
    ] * ahead


def test_code_that_can_run_ahead_is_hidden_behind_all_work_of_a_turn() -> None:
    """Not only behind the work since a short gap in the middle of the turn."""
    events = []
    for turn in range(4):
        start = turn * 100e-3
        events += [
            host("copy", start, 1e-3, 1)._replace(buffer="x", path="direct"),
            launch(2 * turn + 1, (start + 2e-3, 30e-3), start=start + 1e-3, line=2),
            launch(2 * turn + 2, (start + 33e-3, 1e-3), start=start + 1e-3, line=3),
            host("wait", start + 1e-3, 33e-3, 4),
        ]
    (ahead,) = (each for each in advice(use_of(events), events) if "ahead" in each.sentence)
    assert ahead.sentence.startswith("run the code between line 4 and, in the next turn, line 1")
    assert ahead.seconds == pytest.approx(2 * 31e-3 + 1e-3)  # of the first turn, since its gap


@pytest.mark.parametrize(("length", "expected"), [(10e-6, True), (10e-3, False)])
def test_short_launches_of_one_submission_are_advised_to_be_fewer(
    length: float, expected: bool
) -> None:
    gap = length * 2
    events = [submitted(1, 0.9e-3)]
    for number in range(8):
        begun = 1e-3 + number * (length + gap)
        events.append(
            launch(1, (begun, length), start=number * 1e-6, line=1 + number % 2, command=number + 1)
        )
    given = advice(use_of(events), events)
    assert bool(given) is expected
    for each in given:
        assert each.sentence.startswith("make fewer, larger launches between lines 1 and 2: ")
        assert each.seconds == pytest.approx(7 * gap / 2, rel=1e-3)


@pytest.mark.parametrize("repeats", [False, True])
def test_a_graph_is_advised_for_the_lines_that_repeat(repeats: bool) -> None:
    events = []
    for number in range(6):
        start, line = number * 100e-6, 1 + number % 2 if repeats else number
        made = launch(number + 1, (start + 80e-6, 10e-6), start=start, seconds=70e-6, line=line)
        events += [made, submitted(number + 1, start + 70e-6, 10e-6, line=line)]
    given = advice(use_of(events), events)
    issuing = [each.sentence for each in given if each.cause is Cause.ISSUING]
    assert [sentence.partition(" (")[0] for sentence in issuing] == [
        "record the launches between lines 1 and 2, which repeat, as a graph"
    ] * repeats


def test_no_graph_is_advised_around_a_wait() -> None:
    events = []
    for number in range(6):
        start, line = number * 100e-6, (1, 3)[number % 2]
        made = launch(number + 1, (start + 80e-6, 10e-6), start=start, seconds=70e-6, line=line)
        events += [made, submitted(number + 1, start + 70e-6, 10e-6, line=line)]
    for waited_at, expected in ((2, 0), (4, 1)):
        waits = host("wait", 550e-6, 1e-6, waited_at)
        given = advice(use_of(events), [*events, waits])
        assert sum(each.cause is Cause.ISSUING for each in given) == expected


@pytest.mark.parametrize(
    ("call", "read", "pending", "view"),
    [
        ("float(x[0])", ("x[0].read()", "float(pending.result())"), ("x[0]", "float(pending)"),
         "x[0].view('r')"),
        ("(x + y).numpy()", ("(x + y).read()", "pending.result()"), ("x + y", "pending.numpy()"),
         "(x + y).view('r')"),
        ("np.asarray(x, dtype=float)",
         ("x.read()", "np.asarray(pending.result(), dtype=float)"),
         ("x", "np.asarray(x, dtype=float)"), "x.view('r')"),
        ("loss.result(1)", None, ("loss", "loss.result(1)"), "loss.view('r')"),
        ("np.asarray([x, y])", None, None, ""),
        ("print(x)", None, None, ""),
        ("not a call", None, None, ""),
        (f"float({'x' * 80})", None, None, f"{'x' * 80}.view('r')"),
    ],
)  # fmt: skip
def test_calls_are_split(
    call: str, read: tuple[str, str] | None, pending: tuple[str, str] | None, view: str
) -> None:
    assert split_read(call) == (None if read is None else Split(*read))
    assert split_pending(call) == (None if pending is None else Split(*pending))
    assert view_of(call) == view


def test_a_call_on_several_lines_is_quoted_on_one() -> None:
    def program(s: Scene) -> None:
        s.work(x=s.x, **s.args)
        value = float(
            s.x[  # é: columns count bytes
                3
            ]
        )
        s.work(x=s.y, **s.args)
        assert value

    with in_virtual_time(SHORT) as scene:
        t = traced(program, scene)
    (waited,) = (each for each in t.advice if each.cause is Cause.WAITED)
    assert "`pending = s.x[3].read()`" in waited.sentence
    assert re.search(
        r"`float\(pending\.result\(\)\)` after the launch at line \d+$", waited.sentence
    )


def test_an_expression_of_hundreds_of_parts_is_not_quoted() -> None:
    source = f"def program(s):\n s.work(x=s.x, **s.args)\n float(s.x[{'0+' * 900}0])\n"
    made: dict[str, Any] = {}
    linecache.cache["long.py"] = (len(source), None, source.splitlines(keepends=True), "long.py")
    exec(compile(source, "long.py", "exec"), made)
    with in_virtual_time(SHORT) as scene:
        t = traced(made["program"], scene)
    assert str(t)
    assert [each.call for each in t.events if each.kind == "wait"] == [""]


def test_a_file_that_was_edited_and_run_again_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "edited.py"
    for number in (0, 11):
        file.write_text(f"def program(s):\n s.work(x=s.x, **s.args)\n float(s.x[{number}])\n")
        made: dict[str, Any] = {}
        exec(compile(file.read_text(), str(file), "exec"), made)
        with in_virtual_time(SHORT) as scene:
            t = traced(made["program"], scene)
        assert [e.call for e in t.events if e.kind == "wait"] == [f"float(s.x[{number}])"]


def test_an_expression_that_is_not_evident_is_not_guessed() -> None:
    def program(s: Scene) -> None:
        s.work(x=s.x, **s.args)
        print(s.x)
        s.work(x=s.y, **s.args)

    with in_virtual_time(SHORT) as scene:
        t = traced(program, scene)
    (waited,) = (each for each in t.advice if each.cause is Cause.WAITED)
    assert "`pending = ….read()` of the same part of 'x'" in waited.sentence


def test_lines_in_words() -> None:
    assert place(["a.py:3"], names=False) == "at line 3"
    assert place(["a.py:3", "a.py:5"], names=False) == "between lines 3 and 5"
    assert place(["a.py:5", "a.py:3"], names=True) == (
        "between line 5 and, in the next turn, line 3 of a.py"
    )
    assert place(["a.py:5", "a.py:5"], names=False) == (
        "between line 5 and the same line in the next turn"
    )
    assert place(["cell [3], line 2"], names=True) == "at line 2 of cell [3]"


def test_code_in_the_middle_of_a_line_is_of_that_line() -> None:
    def program(s: Scene) -> None:
        for _ in range(2):
            (s.work(x=s.x, **s.args), s.settle(), s.sleep(), s.work(x=s.y, **s.args))

    with in_virtual_time(PLANTED["a sleep"]) as scene:
        t = traced(program, scene)
    longest = sorted(t.gaps, key=lambda gap: -gap.seconds)[:2]
    assert [len(gap.lines) for gap in longest] == [1, 1]
    assert "before the code" not in str(t.advice)


def test_what_a_receipt_has_is_shown_in_one_line() -> None:
    planted: Planted = PLANTED["a sleep"]
    with in_virtual_time(planted) as scene:
        t = traced(planted.faulty, scene)
    gap = max(t.gaps, key=lambda gap: gap.seconds)
    for thing, name in ((gap, "Gap"), (gap.parts[0], "Part"), (t.advice[0], "Advice")):
        shown = repr(thing)
        assert shown.startswith(f"<{name}: ")
        assert len(shown) < 100
        assert "\n" not in shown
    first, last = (line.rpartition(":")[2] for line in planted.lines)
    assert repr(gap) == f"<Gap: caller, 16 ms, between lines {first} and {last} of planted.py>"
    assert len(repr(t.use)) < 200
    assert len(repr(t.use.devices[0])) < 100
