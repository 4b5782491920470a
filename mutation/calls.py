"""Runs the tests that check a driver's calls, or a trace, against the mutants. Run as a process.

Imports what the tests need once; then tests each mutant in a fork.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy  # noqa: F401
import pytest
import vulkan  # noqa: F401

from mutation.hip import HIP
from mutation.loading import load
from mutation.recurrence import RECURRENCE
from mutation.reuse import REUSE
from mutation.tracing import TRACING
from mutation.vulkan import VULKAN

_LIMIT = 150  # seconds for one mutant: more than all tests take
#: By driver, or part of the runtime: the test files, and the `-k` expression for their tests.
_TESTS = {
    "tracing": (
        "tests/tracing/test_advice.py tests/tracing/test_gaps.py tests/tracing/test_idle.py",
        "not llvmpipe and not SwiftShader and not HIP",
    ),
    "recurrence": ("tests/llm/test_recurrent_memory.py", ""),
    "reuse": ("tests/memory/test_results_in_flight.py", "not SwiftShader"),
    "vulkan": ("tests/driver/test_vulkan_calls.py", "not SwiftShader"),
    "hip": ("tests/driver/test_hip_driver.py", "discrete and not compile and not declarations"),
}


def look(name: str) -> str:
    """Return the test that fails for a mutant, or "a hang" or "a crash"; empty if all pass."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_test, args=(name, send))
    child.start()
    child.join(_LIMIT)
    if child.is_alive():
        child.kill()
        return "a hang"
    if receive.poll():
        failed: str = receive.recv()
        return failed
    return "" if child.exitcode == 0 else "a crash"


def _test(name: str, told: Connection) -> None:
    tests, which = _TESTS[load(name).driver]

    class Listener:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                told.send(report.nodeid.split("::")[1].split("[")[0])
                os._exit(0)  # without cleaning up what the mutant left behind

    # Plain assertions: pytest rewrites the modules of packages that provide plugins, as Penstock
    # does, and would load them without the mutation.
    options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-k", which]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main([*options, *tests.split()], plugins=[Listener()])
    os._exit(0)


if __name__ == "__main__":
    every = (*VULKAN, *HIP, *TRACING, *RECURRENCE, *REUSE)
    wanted = sys.argv[1:] or [mutant.name for mutant in every]
    print(json.dumps({name: look(name) for name in wanted}))
