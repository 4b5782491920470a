"""Faults at every driver call: for every N, the N-th call of each kind fails while a program runs.

Running out of memory is transient: the program catches the error, tries the same operation once
more, and must give the right results (rule 8: a call that fails changes nothing). Losing the device
is permanent: everything pending and every new call must raise `DeviceLost`, and closing must still
work. In both cases nothing may hang, and everything the driver handed out must be returned by the
end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import penstock as ps
from penstock.conformance.program import Copy, Program
from penstock.conformance.runner import Bench, Failure, Running, Wrong
from penstock.driver.sim import SimDriver

#: Driver calls that may run out of memory, and driver calls that may report a lost device.
OUT_OF_MEMORY = (
    "allocate", "import_host", "queue", "timeline", "recordings", "begin", "dispatch", "submit",
)  # fmt: skip
LOST = ("submit", "wait", "signal", "begin")


class Trying(Running):
    """Runs a program, and retries once each operation that runs out of memory."""

    def _do(self, operation: Any) -> Any:
        if isinstance(operation, Copy):
            # A copy from another device may fail when part of it is done. A retry must not read its
            # source again, because the copy may have overwritten it.
            source = _again(lambda: self._source_of(operation))
            return _again(lambda: self._copy(operation, source))
        return _again(lambda: super(Trying, self)._do(operation))

    def _make(self, number: int) -> ps.Array:
        made: ps.Array = _again(lambda: super(Trying, self)._make(number))
        return made

    def _finish(self) -> None:
        _again(super()._finish)


def faults_of(program: Program, transfers: str, seed: int) -> Iterator[tuple[str, Failure | None]]:
    """Run the program with each fault in turn; yield the fault, and the failure or None.

    The program does not close the device: an error from a closed device would hide the fault.
    """
    program = replace(program, closed_at=0)
    for calls, run in ((OUT_OF_MEMORY, _out_of_memory), (LOST, _lost)):
        for call in calls:
            yield from _every(call, partial(run, program, transfers, seed, call))


def _every(
    call: str, run: Callable[[int], tuple[bool, Failure | None]]
) -> Iterator[tuple[str, Failure | None]]:
    """Run for N = 1, 2, … until a run makes fewer than N such calls."""
    number, reached = 1, True
    while reached:
        reached, failure = run(number)
        if reached:
            yield f"{call} {number}", failure
        number += 1


class _Fault:
    """Fails the n-th call of a kind; `reached` says whether that call was made."""

    def __init__(self, call: str, number: int, error: Callable[[str], BaseException]) -> None:
        self.call, self.number, self.error = call, number, error
        self.reached = False

    def __call__(self, name: str, count: int) -> BaseException | None:
        if name != self.call or count != self.number:
            return None
        self.reached = True
        return self.error(f"fault at {name} {count}")


def _out_of_memory(
    program: Program, transfers: str, seed: int, call: str, number: int
) -> tuple[bool, Failure | None]:
    fault = _Fault(call, number, ps.OutOfMemory)
    try:
        device = ps.Device(driver="sim", seed=seed, transfers=transfers, fault=fault)
    except ps.OutOfMemory:
        return True, None  # opening failed as a whole, as it should
    what = ""
    with device:
        running: Trying | None = None
        try:
            bench = _again(lambda: Bench(device, seed))
            _again(lambda: bench.streams(program.streams))
            running = Trying(program, bench)
            running.all()
        except Wrong as wrong:
            what = str(wrong)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
        finally:
            if running is not None:
                running.end_batches()
        at = running.at if running is not None else None
        messages = tuple(device.messages)
        del running
    what = what or (messages[0] if messages else "")
    if not what and not program.interrupted:  # the driver frees an interrupted allocation
        what = _left_behind(device)
    failure = Failure(f"after {call} {number} failed: {what}", at, transfers, seed, messages)
    return fault.reached, failure if what else None


def _lost(
    program: Program, transfers: str, seed: int, call: str, number: int
) -> tuple[bool, Failure | None]:
    # An interrupt may hide the loss from the scheduler, which meets it again at its next call. The
    # simulator loses the device once only, so that there is no next time.
    program = replace(program, interrupted=())
    fault = _Fault(call, number, ps.DeviceLost)
    what = ""
    try:
        device = ps.Device(driver="sim", seed=seed, transfers=transfers, fault=fault)
    except ps.DeviceLost:
        return True, None
    with device:
        running = None
        try:
            running = Running(program, Bench(device, seed))
            running.all()
        except ps.DeviceLost:
            what = _after_the_loss(device, running)
        except Exception as error:
            what = f"{type(error).__name__} instead of DeviceLost: {error}"
        else:
            # The program needed nothing that was lost, but the scheduler must know of the loss.
            if fault.reached and device.scheduler.lost is None:
                what = "the loss went unnoticed"
    failure = Failure(f"lost at {call} {number}: {what}", None, transfers, seed)
    return fault.reached, failure if what else None


def _after_the_loss(device: ps.Device, running: Running | None) -> str:
    """Check that new calls, and pending values not yet done, raise `DeviceLost`."""
    if device.scheduler.lost is None:
        return "a call raised DeviceLost, but the device does not know that it is lost"
    calls: list[Callable[[], Any]] = [device.stream, lambda: device.zeros(1), device.synchronize]
    for call in calls:
        with contextlib.suppress(ps.DeviceLost):
            call()
            return f"{call} worked on a lost device"
    for pending in running.pending.values() if running is not None else ():
        with contextlib.suppress(ps.DeviceLost):
            pending.result(1)  # a value that has arrived stays readable; any other must raise
    return ""


def _left_behind(device: ps.Device) -> str:
    """Describe memory that the driver handed out and `close` did not return; "" if none."""
    driver = device.scheduler.driver
    assert isinstance(driver, SimDriver)
    left = driver.machine.memories
    return (
        f"{len(left)} memories were never freed"
        if left and not device.scheduler.views.exports
        else ""
    )


def _again(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ps.OutOfMemory:
        return call()
