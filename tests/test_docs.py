"""Every Python snippet in the README and the docs runs, and the commands they name exist."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import benchmarks.__main__
import penstock as ps
from penstock.__main__ import main
from penstock.conformance import check
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


def test_links_and_commands_exist(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CORPUS", check.CORPUS[:5])
    for page in PAGES:
        text = page.read_text()
        prose = re.sub(r"```.*?```", "", text, flags=re.S)
        for link in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
        for script in re.findall(r"^scripts/\w+", text, re.M):
            assert (ROOT / script).exists(), script
        for benchmark in re.findall(r"python -m\s+benchmarks (\w+)", text):
            assert benchmark in benchmarks.__main__._REPEAT, benchmark
        for line in re.findall(r"^penstock (check .*?)(?:  #.*)?$", text, re.M):
            quick = ["--programs", "2", "--transfers", "auto"]
            if "--driver hip" in line:
                with over_stand_in(request):
                    assert main([*line.split(), *quick]) == 0, line
                continue
            installed = any("llvmpipe" in info.name for info in ps.devices())
            if "vulkan" not in line or (installed and "--validate" not in line):
                assert main([*line.split(), *quick]) == 0, line


def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "api.html").read_text()
    for name in ("array.array.Array.view", "device.Device"):
        assert f"penstock.{name}" in reference


def test_the_site_leads_to_every_page() -> None:
    led_to = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    assert sorted(led_to) == sorted(pages), "every page of docs/ stands in the nav, and once"


#: Macros of C, which are spelled like variables of the environment.
_MACROS = {"PENSTOCK_LAYOUT_H", "PENSTOCK_POINTS_H", "PENSTOCK_SOURCES"}


def test_every_variable_of_the_environment_is_listed() -> None:
    places = ("src", "native", "tests", "tools", "scripts", "benchmarks", "mutation", "examples")
    files = [path for place in places for path in (ROOT / place).rglob("*")]
    text = "\n".join(
        path.read_text("utf-8", "replace")
        for path in files
        if path.suffix in ("", ".py", ".c", ".h") and path.is_file()
    )
    page = (ROOT / "docs/environment.md").read_text()
    listed = dict(re.findall(r"^\| `(PENSTOCK_\w+)` \|.*\| (.*) \|$", page, re.M))
    assert sorted(listed) == sorted({*re.findall(r"\bPENSTOCK_[A-Z_]+\b", text)} - _MACROS)
    numbers = dict(re.findall(r'environ\.get\("(PENSTOCK_\w+)", "([\d_]+)"\)', text))
    assert len(numbers) >= 5
    for name, number in numbers.items():
        assert re.match(rf"{int(number)}\b", listed[name].replace(",", "")), name


def test_pictures_can_be_made_again() -> None:
    spec = importlib.util.spec_from_file_location("receipt", ROOT / "docs/images/receipt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.picture(*module.take())
    ElementTree.fromstring(made)
    kept = (ROOT / "docs/images/receipt.svg").read_text()
    labels = [re.findall(r">([a-z]+)</text>", text) for text in (made, kept)]
    assert labels[0] == labels[1]


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
    source = ROOT / "src" / "penstock"
    modules = {
        path.relative_to(source).with_suffix("").as_posix()
        for path in source.rglob("*.py")
        if path.stem not in _PLUMBING and path.relative_to(source).parts[0] not in _LISTED_ELSEWHERE
    }
    missing = [name for name in modules if not re.search(rf"\b{name}\b", text)]
    assert not missing
    named = set(re.findall(rf"`((?:{'|'.join(_folders())})/\w+)(?:\.\w+)?`", text))
    gone = [n for n in named if not (source / f"{n}.py").exists() and not (source / n).is_dir()]
    assert not gone


_PLUMBING = {"__init__", "__main__"}
#: docs/driver.md has the modules of drivers; programs on top of the runtime have many small ones.
_LISTED_ELSEWHERE = {"driver", "llm", "bench", "conformance", "cli"}


def _folders() -> list[str]:
    source = ROOT / "src" / "penstock"
    return [path.name for path in source.iterdir() if (path / "__init__.py").exists()]


def test_contributing_names_what_exists() -> None:
    """Recipes name files, and names in them: `PUBLIC` of `src/penstock/handle.py`."""
    text = re.sub(r"\s+", " ", (ROOT / "CONTRIBUTING.md").read_text())
    tops = "src|tests|tools|mutation|benchmarks|docs|scripts|examples"
    for path in re.findall(rf"`((?:{tops})/[\w/.]*)`", text):
        assert "NAME" in path or (ROOT / path).exists(), path
    pairs = re.findall(rf"`(\w+)` of `((?:{tops})/[\w/]+\.py)`", text)
    pairs += [
        (name, path) for path, name in re.findall(rf"`((?:{tops})/[\w/]+\.py)`: in `(\w+)`", text)
    ]
    pairs += [(n, p) for n, p in re.findall(rf"`(\w+)` \(`((?:{tops})/[\w/]+\.py)`\)", text)]
    assert pairs
    for name, path in pairs:
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{path}: {name}"


def test_forms_of_issues_are_valid() -> None:
    yaml = pytest.importorskip("yaml")
    forms = {p.stem: p.read_text() for p in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    assert {"bug", "device", "feature"} <= forms.keys()
    for name in ("bug", "device", "feature"):
        form = yaml.safe_load(forms[name])
        assert {"name", "description", "body"} <= form.keys()
        assert all(part["attributes"] for part in form["body"])
    assert "`penstock doctor --report`" in forms["device"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["authors"]


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
