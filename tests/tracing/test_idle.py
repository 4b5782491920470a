"""Programs with a planted cause of idle time are blamed for it; their repaired twins are not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import Cause
from penstock.driver.sim import virtual_time
from penstock.driver.sim.virtual_time import COPY_RATE, TICK
from penstock.launch import launch_memory
from penstock.schedule import receipt_times
from tests.conftest import DRIVERS, HAS_VALIDATION, simulated
from tests.driver.test_virtual_time import run
from tests.tracing.planted import (
    LARGE,
    PLANTED,
    Planted,
    Program,
    Scene,
    waits_for_the_bytes,
)

Setting = Callable[[Planted, float], contextlib.AbstractContextManager[Scene]]
AMOUNT = 2.0**-6  # seconds that the planted cause takes


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few slots for arguments, and clocks that are compared however long that takes."""
    monkeypatch.setattr(launch_memory, "_LARGEST", 32 * 512)
    monkeypatch.setattr(receipt_times, "_MOMENT", 10.0)


@contextlib.contextmanager
def in_virtual_time(planted: Planted, amount: float = AMOUNT) -> Iterator[Scene]:
    with simulated(1, transfers=planted.transfers) as dev:
        driver: Any = dev.scheduler.driver
        with virtual_time(driver, command=planted.command) as clock:
            yield Scene(dev, clock, amount, planted.command)


@pytest.fixture(params=("simulator", *DRIVERS, "HIP"))
def setting(request: pytest.FixtureRequest) -> Setting:
    """Opens a scene on the simulator in virtual time, a Vulkan driver, or HIP's stand-in."""
    if request.param == "simulator":
        return in_virtual_time
    name = request.param
    if name != "HIP" and not any(name in info.name for info in ps.devices()):
        pytest.skip(f"{name} is not installed")

    @contextlib.contextmanager
    def opened(planted: Planted, amount: float = AMOUNT) -> Iterator[Scene]:
        with contextlib.ExitStack() as stack:
            if name == "HIP":
                library = request.getfixturevalue("standin_library")
                stack.enter_context(library.chosen(integrated=1))
                dev = stack.enter_context(library.device(transfers=planted.transfers))
            else:
                options = {"validate": HAS_VALIDATION, "transfers": planted.transfers}
                dev = stack.enter_context(ps.Device(name, **options))
            scene = Scene(dev, amount=amount)
            with ps.trace() as warm:  # the first trace of a device compares the clocks
                scene.work(x=scene.x, **scene.args)
                dev.synchronize()
            warm.wait_for_times()
            yield scene

    return opened


def traced(program: Program, scene: Scene) -> ps.Trace:
    with ps.trace() as t:
        program(scene)
        scene.dev.synchronize()
    t.wait_for_times()
    check_equation(t)
    return t


def check_equation(t: ps.Trace) -> None:
    """Busy time and gaps are the span, parts are their gap, and causes are all idle time."""
    assert t.busy is not None
    assert t.busy + sum(gap.seconds for gap in t.gaps) == t.span
    assert sum(t.use.by_cause.values()) == t.idle
    for gap in t.gaps:
        assert gap.seconds > 0
        assert sum(part.seconds for part in gap.parts) == gap.seconds
        now = gap.start
        for part in gap.parts:
            assert part.start == now
            assert part.seconds > 0
            now += part.seconds
        assert gap.cause in {part.cause for part in gap.parts}


def blamed(t: ps.Trace, cause: Cause, lines: tuple[str, ...]) -> list[ps.Gap]:
    """The gaps with a part of that cause at those lines."""
    return [
        gap
        for gap in t.gaps
        for part in gap.parts
        if part.cause is cause and part.lines[: len(lines)] == lines
    ]


#: Causes whose gap is as long as the program says, rather than the host's own work.
AS_LONG_AS_PLANTED = (Cause.CALLER, Cause.VIEW, Cause.OTHER, Cause.UNSUBMITTED)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cause_is_blamed_on_its_line(
    name: str, setting: Setting, request: pytest.FixtureRequest
) -> None:
    planted = PLANTED[name]
    if name == "a full ring" and "HIP" in request.node.name:
        pytest.skip("the arguments of a launch are HIP's own to keep")
    is_longest = setting is in_virtual_time or planted.cause in AS_LONG_AS_PLANTED
    again = is_longest and setting is not in_virtual_time
    for times in (1, 8, 32) if again else (1,):  # more if a busy machine stops for longer than that
        with setting(planted, times * AMOUNT) as scene:
            t = traced(planted.faulty, scene)
        longest = max(t.gaps, key=lambda gap: gap.seconds)
        if longest.cause is planted.cause:
            break
    assert blamed(t, planted.cause, planted.lines), t
    if is_longest:
        assert longest.cause is planted.cause, t
        assert longest.lines[: len(planted.lines)] == planted.lines
        assert longest.detail or planted.cause is Cause.CALLER
        numbers = [line.rpartition(":")[2] for line in planted.lines]
        assert all(number in t.verdict for number in numbers), t.verdict
        assert str(t).startswith(t.verdict)
        with pytest.raises(
            AssertionError, match=r"idle: 0\.\d+, expected at most 0\.001"
        ) as failed:
            t.expect(idle=0.001)
        assert t.verdict in str(failed.value)


@pytest.mark.parametrize("name", PLANTED)
def test_the_repaired_twin_has_no_such_gap(name: str, setting: Setting) -> None:
    planted = PLANTED[name]
    with setting(planted, AMOUNT) as scene:
        t = traced(planted.repaired, scene)
    if setting is in_virtual_time:
        assert t.gaps == (), t
        assert t.advice == ()
        t.expect(idle=0.0)
    else:
        assert planted.cause not in {gap.cause for gap in t.gaps if gap.seconds >= AMOUNT}, t
        if planted.cause is not Cause.CALLER:  # the host is always between two calls for a moment
            assert planted.cause not in {part.cause for gap in t.gaps for part in gap.parts}, t


@pytest.mark.parametrize("name", PLANTED)
def test_advice_names_the_call_that_repairs_it(name: str) -> None:
    planted = PLANTED[name]
    with in_virtual_time(planted) as scene:
        t = traced(planted.faulty, scene)
    (advice,) = (each for each in t.advice if each.cause is planted.cause)
    assert planted.advice in str(advice)
    assert advice.seconds <= t.use.by_cause[planted.cause]


def copy_time(amount: float) -> float:
    """What the planted staged write takes in virtual time."""
    return -(-4 * int(LARGE * amount * 50) // COPY_RATE) * TICK


TIMES: dict[str, Callable[[float], float]] = {
    "a sleep": float,
    "a slow loader": float,
    "a held view": float,
    "an unsubmitted tail": float,
    "a big staged write": copy_time,
}


@pytest.mark.parametrize("name", TIMES)
def test_a_gap_is_as_long_as_what_was_planted(name: str) -> None:
    """Exactly: twice the amount makes the gap longer by what the amount takes."""
    planted, time = PLANTED[name], TIMES[name]
    longest = []
    for amount in (AMOUNT / 2, AMOUNT):
        with in_virtual_time(planted, amount) as scene:
            t = traced(planted.faulty, scene)
        longest.append(max(gap.seconds for gap in t.gaps))
    assert longest[1] - longest[0] == time(AMOUNT) - time(AMOUNT / 2)


def test_an_event_is_not_blamed_where_the_bytes_are_needed() -> None:
    planted = PLANTED["a needless event"]
    with in_virtual_time(planted) as scene:
        t = traced(waits_for_the_bytes, scene)
    (gap,) = t.gaps
    assert gap.cause is Cause.COPY
    assert "large" in gap.detail
    assert "Stream.wait" not in str(t.advice)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_add_up_to_what_the_machine_was_busy(seed: int) -> None:
    t, busy = run(seed)
    check_equation(t)
    assert t.busy == busy


def test_without_timestamps_the_receipt_says_so() -> None:
    with simulated(2) as dev, ps.trace() as t:
        scene = Scene(dev)
        scene.work(x=scene.x, **scene.args)
        dev.synchronize()
    assert (t.span, t.busy, t.idle, t.gaps, t.kernels) == (None, None, None, (), ())
    assert "no timestamps" in t.verdict
    assert str(t).startswith(t.verdict)
    with pytest.raises(AssertionError, match="no timestamps"):
        t.expect(idle=1.0)
    with ps.trace(times=False) as t:
        pass
    assert "times=False" in t.verdict
    with ps.trace() as t:
        pass
    assert "ran nothing" in t.verdict
    assert "busy" not in str(t)


def test_kernels_and_their_shares() -> None:
    with in_virtual_time(PLANTED["a sleep"]) as scene:
        t = traced(lambda s: [s.work(x=s.x, **s.args) for _ in range(4)] and None, scene)
        command = scene._command
    (kernel,) = t.kernels
    assert (kernel.name, kernel.launches, kernel.seconds) == ("work", 4, 4 * command)
    assert (kernel.median, kernel.share) == (command, 1.0)
    assert kernel.bytes_per_second == 4 * 4 * 64 / (4 * command)


# Advice is given where it helps, and not where it would not.


def advised(program: Program, **options: Any) -> set[Cause]:
    planted = PLANTED["a sleep"]._replace(**options)
    with in_virtual_time(planted) as scene:
        return {each.cause for each in traced(program, scene).advice}


def test_no_advice_to_read_later_what_the_next_work_is_given() -> None:
    def uses_the_value(s: Scene) -> None:
        s.work(x=s.x, **s.args)
        value = s.x.numpy()
        s.y.write(value)
        s.work(x=s.y, **s.args)

    assert Cause.WAITED not in advised(uses_the_value)


def test_no_advice_to_launch_before_the_code_that_makes_its_input() -> None:
    def makes_the_input(s: Scene) -> None:
        s.work(x=s.x, **s.args)
        s.settle()
        s.sleep()
        s.y.write(np.ones(64, np.uint32))
        s.work(x=s.y, **s.args)

    assert advised(makes_the_input) == set()  # once only: nothing could have run ahead


def test_advice_to_record_a_graph_where_launches_repeat() -> None:
    def repeats(s: Scene) -> None:
        for _ in range(8):
            s.work(x=s.x, **s.args)
            s.work(x=s.y, **s.args)

    def repeats_nothing(s: Scene) -> None:
        s.work(x=s.x, **s.args)
        s.work(x=s.y, **s.args)
        s.work(x=s.x, **s.args)

    assert Cause.ISSUING in advised(repeats, command=TICK)
    assert Cause.ISSUING not in advised(repeats_nothing, command=TICK)


def test_advice_to_submit_together_what_is_submitted_ahead() -> None:
    def one_by_one(s: Scene) -> None:
        for _ in range(8):
            s.work(x=s.x, **s.args)
            s.stream.flush()

    t = None
    with in_virtual_time(PLANTED["a sleep"]) as scene:
        t = traced(one_by_one, scene)
    assert t.gaps == ()  # a simulated driver begins at once what it has had for a while
    assert t.advice == ()
