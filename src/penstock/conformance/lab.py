"""Opens devices and runs programs on them, always within a time limit.

Waits have a timeout. Some calls have none, so a program runs in a thread of its own, which the lab
abandons when the time is up.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from dataclasses import replace
from typing import Any

import penstock as ps
from penstock.conformance.oracle import is_valid
from penstock.conformance.program import Program
from penstock.conformance.runner import PATIENCE, Bench, Failure, run
from penstock.handle import Closing

_SIMULATED = 5.0  # seconds for a program on the simulator, which normally takes milliseconds
_HANGS = "the program hangs"
_SCHEDULES = 12  # seeds of the simulator to try on a smaller program


class Lab(Closing):
    """Opens devices for programs: one per program on the simulator, else one per transfer mode.

    A program that closes its device always gets one of its own.
    """

    def __init__(
        self, driver: str = "sim", device: str | None = None, *, validate: bool = False
    ) -> None:
        self.driver = driver
        self.device = device
        self.validate = validate
        self._benches: dict[str, Bench] = {}

    def run(self, program: Program, transfers: str, seed: int) -> Failure | None:
        """Run a program in a transfer mode; the seed is the simulator's."""
        if self.driver == "sim":
            device = ps.Device(driver="sim", seed=seed, transfers=transfers)
            bench = Bench(device, seed)
            failure = _run_with_limit(program, bench, _SIMULATED)
            if failure is not None and failure.what == _HANGS:
                return failure
            try:
                bench.close()
            except ps.Error as error:
                return failure or Failure(f"close: {error}", None, transfers, seed)
            return failure
        if program.closed_at:
            with self._open(transfers) as bench:
                failure = _run_with_limit(program, bench, 2 * PATIENCE)
            return replace(failure, seed=seed) if failure else None
        failure = _run_with_limit(program, self._bench(transfers), 2 * PATIENCE)
        if failure is not None:
            self._benches.pop(transfers)  # may hang or be lost: leave it to the garbage collector
        return replace(failure, seed=seed) if failure else None

    def run_any(self, program: Program, failed: Failure) -> Failure | None:
        """Run a program as in an earlier failure; on the simulator, under further schedules too."""
        if not is_valid(program, self.alignment(failed.transfers)):
            return None  # this device refuses it, which would be another failure
        seeds = range(failed.seed, failed.seed + (_SCHEDULES if self.driver == "sim" else 1))
        runs = (self.run(program, failed.transfers, seed) for seed in seeds)
        return next((failure for failure in runs if failure is not None), None)

    def device_arguments(self, failure: Failure) -> str:
        """The arguments of `ps.Device` that open the device of a failure, as text."""
        if self.driver == "sim":
            return f'driver="sim", seed={failure.seed}, transfers="{failure.transfers}"'
        which = "" if self.device is None else f'"{self.device}", '
        if self.driver != "vulkan":
            which += f'driver="{self.driver}", '
        validate = ", validate=True" if self.validate else ""
        return f'{which}transfers="{failure.transfers}"{validate}'

    def name_of(self, transfers: str) -> str:
        return "simulator" if self.driver == "sim" else self._bench(transfers).device.name

    def alignment(self, transfers: str) -> int:
        """Where slices for kernels may start: multiples of this many 4-byte words."""
        if self.driver == "sim":
            return 4
        nbytes: Any = self._bench(transfers).device.info.limits["binding_alignment"]
        return max(4, int(nbytes) // 4)

    def close(self) -> None:
        for bench in self._benches.values():
            bench.close()
        self._benches.clear()

    def _bench(self, transfers: str) -> Bench:
        if transfers not in self._benches:
            self._benches[transfers] = self._open(transfers)
        return self._benches[transfers]

    def _open(self, transfers: str) -> Bench:
        device = ps.Device(
            self.device, driver=self.driver, transfers=transfers, validate=self.validate
        )
        return Bench(device, validate=self.validate)


def _run_with_limit(program: Program, bench: Bench, seconds: float) -> Failure | None:
    """Run in a thread; if it takes too long, ask it to end, and return without waiting for it."""
    outcome: list[Failure | None] = []

    def work() -> None:
        with contextlib.suppress(_Ended):
            outcome.append(run(program, bench))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if outcome:
        return outcome[0]
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_Ended))
    return Failure(_HANGS, None, bench.transfers, bench.seed)


class _Ended(BaseException):
    """Raised in a thread that exceeded its time limit."""
