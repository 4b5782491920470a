"""The pytest plugin: a receipt for a test, and nothing for tests that want none."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import penstock as ps

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "penstock.pytest_plugin")

STEP = """
import penstock as ps
from penstock.tracing import events

def step():
    with ps.Device(driver="sim", seed=1) as dev:
        x = dev.zeros(16, name="tokens")
        x.write([1.0] * 16)
        return float(x[3])
"""


def test_a_receipt_collects_what_its_test_does(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        STEP
        + """
def test_right(receipt):
    assert step() == 1
    receipt.expect(bytes_copied=16 * 4 + 4, waits=0)
    assert events.active == (receipt,)

def test_wrong(receipt):
    step()
    receipt.expect(copies=0)

def test_without():
    assert events.active == ()
"""
    )
    outcome = pytester.runpytest_inprocess(*PLUGIN)
    outcome.assert_outcomes(passed=2, failed=1)
    outcome.stdout.fnmatch_lines(
        [
            ">*receipt.expect(copies=0)",
            "E *AssertionError: the receipt is not as expected",
            "E *copies: 2, expected 0",
            "E *copy * tokens?0:64?  64 B  nothing pending touches the bytes *at test_*.py:7",
        ]
    )
    outcome.stdout.no_fnmatch_line("*raise AssertionError*")


def test_a_receipt_tells_how_idle_the_device_was(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import penstock as ps
import pytest
from penstock.driver.sim import virtual_time

@pytest.fixture
def timed():
    with ps.Device(driver="sim", seed=1) as dev, virtual_time(dev.scheduler.driver) as clock:
        yield dev, clock

def step(timed, sleep):
    dev, clock = timed
    x, y = dev.zeros(16, dtype="uint32"), dev.zeros(16, dtype="uint32")
    x.copy_from(y)
    dev.default_stream.flush()
    clock.sleep(sleep)
    y.copy_from(x)
    dev.synchronize()

def test_busy(timed, receipt):
    step(timed, 0)
    receipt.expect(idle=0.1)

def test_idle(timed, receipt):
    step(timed, 1)
    receipt.expect(idle=0.1)
"""
    )
    outcome = pytester.runpytest_inprocess(*PLUGIN)
    outcome.assert_outcomes(passed=1, failed=1)
    outcome.stdout.fnmatch_lines(
        [
            ">*receipt.expect(idle=0.1)",
            "E *idle: 0.99*, expected at most 0.1",
            "E *device busy 71 µs of 1 s (0 %); 1 s of the rest: your code between lines 13 and 16",
            "E *1 s  your code between lines 13 and 16*, between copy of * and copy of *",
        ]
    )


def test_tests_that_use_no_receipt_load_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(ps.__file__).parent.parent))
    pytester.makepyfile(
        """
import sys

def test_nothing():
    loaded = {name for name in sys.modules if name.split(".")[0] in ("penstock", "numpy", "vulkan")}
    assert loaded == {"penstock", "penstock.errors", "penstock.pytest_plugin"}
"""
    )
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


def test_pytest_finds_the_plugin_by_itself_when_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN[1]: PLUGIN[1]}


def test_the_package_gives_every_name_it_promises_when_asked() -> None:
    code = "import penstock, sys; assert 'numpy' not in sys.modules; from penstock import *"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(ps._HOMES) <= set(ps.__all__) <= set(dir(ps))
    assert all(getattr(ps, name) for name in ps.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Gpu'"):
        ps.Gpu  # noqa: B018
