"""`penstock doctor --report`: what it says of a device, and that it says nothing of its user."""

from __future__ import annotations

import getpass
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.__main__ import main
from penstock.cli import report
from penstock.cli.timings import Timings, measure
from tests.hip.standin import StandIn

TIMED = Timings(launch=1e-4, add=2e-3, add_numpy=1e-3, write=1e-3, read=2e-3, elements=1 << 20)
FAILED = {
    "corpus": 3, "programs": 0, "seconds": 1.0, "passed": False,
    "failure": {
        "name": "a program", "what": f"{Path.home()}/x.py differs", "operations": 2,
        "messages": ["loaded /usr/lib/driver.so"], "script": "x = 1 / 2\ny = '\\n'\n",
    },
}  # fmt: skip


def outcomes(monkeypatch: pytest.MonkeyPatch, check: dict[str, Any], timed: dict[str, Any]) -> None:
    """What the processes of the suite and of the timings print."""
    found = {"penstock": check, "penstock.cli.timings": timed}
    monkeypatch.setattr(report, "_run", lambda module, *words: dict(found[module]))


def names_nobody(text: str) -> None:
    names = {str(Path.home()), platform.node(), getpass.getuser(), sys.prefix, str(Path.cwd())}
    for name in names - {"", "/"}:
        assert not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text), name
    assert not re.search(r"(?<![\w<])/\w+/", text)
    assert not re.search(r"\w\.(py|so|json)\b", text)


@pytest.mark.usefixtures("dev")
class TestHere:
    def test_it_runs(self, driver: str, capsys: pytest.CaptureFixture[str]) -> None:
        made = report.report(driver, programs=1, transfers="direct", elements=1000)
        assert made.passed, made
        assert made.check["programs"] == 1
        text = str(made)
        names_nobody(text)
        info = made.device.info
        for words in (
            f"### Penstock {ps.__version__} on {info.name}", info.driver_info,
            "named and 1 random programs", "all passed", "`x + y`, 1,000 float32", "GB/s",
            f"| group_invocations | {info.limits['group_invocations']:,} |",
        ):  # fmt: skip
            assert words in text
        progress = capsys.readouterr()
        assert f"timings on {info.name}" in progress.err
        assert not progress.out

    def test_a_failure_is_told_without_names(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        timed = {"problem": f"DeviceLost: see {Path.cwd()}/log of {platform.node()}"}
        outcomes(monkeypatch, FAILED, timed)
        assert main(["doctor", "--report"]) == 1
        text = capsys.readouterr().out
        names_nobody(text)
        assert "FAILED after 3 named and 0 random programs: a program" in text
        assert "```python\nx = 1 / 2\ny = '\\n'\n```" in text
        assert "**Timings:** none: DeviceLost: see … of …" in text

    def test_machines_get_the_same(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        passed = {"corpus": 3, "programs": 0, "seconds": 1.0, "passed": True}
        outcomes(monkeypatch, passed, vars(TIMED))
        assert main(["doctor", "--report", "--json"]) == 0
        text = capsys.readouterr().out
        names_nobody(text)
        found = json.loads(text)
        assert found["passed"]
        assert found["timings"] == vars(TIMED)
        assert found["device"]["name"] in [info.name for info in ps.devices()]
        assert found["limits"]["group_invocations"] >= 128


def test_a_device_of_hip_is_timed(standin_library: StandIn) -> None:
    with standin_library.chosen():
        timed = measure(None, "hip", 1000)
    assert timed.elements == 1000
    assert min(vars(timed).values()) > 0


def test_a_crash_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    (tmp_path / "crashing.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert report._run("crashing") == {"problem": "its process was ended by SIGSEGV"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("cannot open /dev/kfd", "cannot open …"),
        (r"C:\Users\jane\x.dll is missing", "… is missing"),
        ("~/.cache/penstock", "…"),
        (f"in {Path(ps.__file__).parent}/cli", "in …"),
        ("1/2 of a/b, 3 / 4 and // this", "1/2 of a/b, 3 / 4 and // this"),
    ],
)
def test_paths_are_scrubbed(text: str, kept: str) -> None:
    assert report.scrub(text) == kept
