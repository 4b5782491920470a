"""Mutants of a driver against the tests that look at its calls. Run as a process.

What a mutant needs is loaded once; each is then looked at in a fork of its own.
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
from mutation.vulkan import VULKAN

_LIMIT = 150  # seconds for one mutant, which is more than all tests take
#: By driver: tests, and which of them not.
_TESTS = {
    "vulkan": ("tests/driver/test_vulkan_calls.py", "not SwiftShader"),
    "hip": ("tests/driver/test_hip_driver.py", "discrete and not compile and not declarations"),
}


def look(name: str) -> str:
    """The test that tells a mutant, or how it ended; empty if all pass."""
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
                os._exit(0)  # what the mutant left behind is not to be tidied up

    # Plain assertions: pytest rewrites the modules of packages that bring plugins, as this one
    # does, and would load them past the mutant.
    options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-k", which]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main([*options, tests], plugins=[Listener()])
    os._exit(0)


if __name__ == "__main__":
    wanted = sys.argv[1:] or [mutant.name for mutant in (*VULKAN, *HIP)]
    print(json.dumps({name: look(name) for name in wanted}))
