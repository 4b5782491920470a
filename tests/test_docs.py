"""Every Python snippet in the README and the docs runs, and the commands they name exist."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

import penstock as ps
from penstock.__main__ import main
from tests.hip.standin import StandIn

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet_runs(code: str, request: pytest.FixtureRequest) -> None:
    with over_stand_in(request) if 'driver="hip"' in code else contextlib.nullcontext():
        exec(compile(code, "<snippet>", "exec"), {"__name__": "snippet"})


def over_stand_in(request: pytest.FixtureRequest) -> contextlib.AbstractContextManager[StandIn]:
    """What HIP finds here, where there is no AMD GPU."""
    library: StandIn = request.getfixturevalue("standin_library")
    return library.chosen()


def test_links_and_commands_exist(request: pytest.FixtureRequest) -> None:
    for page in PAGES:
        text = page.read_text()
        prose = re.sub(r"```.*?```", "", text, flags=re.S)
        for link in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
        for script in re.findall(r"^scripts/\w+", text, re.M):
            assert (ROOT / script).exists(), script
        for benchmark in re.findall(r"python -m\s+benchmarks (\w+)", text):
            assert (ROOT / "benchmarks" / f"{benchmark}.py").exists(), benchmark
        for line in re.findall(r"^penstock (check .*?)(?:  #.*)?$", text, re.M):
            quick = ["--programs", "2", "--transfers", "auto"]
            if "--driver hip" in line:
                with over_stand_in(request):
                    assert main([*line.split(), *quick]) == 0, line
                continue
            installed = any("llvmpipe" in info.name for info in ps.devices())
            if "vulkan" not in line or (installed and "--validate" not in line):
                assert main([*line.split(), *quick]) == 0, line


def test_traces_in_the_docs_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    lines = [
        line
        for page in PAGES
        for line in re.findall(r"^penstock (trace .*?)(?:  #.*)?$", page.read_text(), re.M)
    ]
    assert lines
    for line in lines:
        assert main(line.split()) == 0, line
    assert {file.name for file in tmp_path.iterdir()} > {"trace.html"}


def test_design_names_every_module() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    modules = {path.stem for path in (ROOT / "src" / "penstock").glob("*.py")}
    missing = [name for name in modules - _PLUMBING if not re.search(rf"\b{name}\b", text)]
    assert not missing


_PLUMBING = {"__init__", "__main__", "demo", "dtypes", "errors", "regions", "sources"}


def command(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(words) == 0
    return out.getvalue()


def test_demo_prints_a_correct_receipt() -> None:
    counts = json.loads(command("demo", "--json", "--size", "10000"))
    assert counts["correct"]
    assert (counts["copies"], counts["allocations"], counts["launches"]) == (0, 0, 1)
    assert "the result is correct" in command("demo", "--size", "1")


def test_devices_are_listed() -> None:
    listed = json.loads(command("devices", "--json"))
    assert listed
    assert all(info["name"] in command("devices") for info in listed)


def test_bad_commands_end_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--device", "no such device"]) == 1
    assert "no device has 'no such device' in its name" in capsys.readouterr().err
    assert main(["demo", "--size", "0"]) == 1
    assert "size must be at least 1" in capsys.readouterr().err
