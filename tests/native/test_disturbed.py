"""The native step when something happens in the middle of its C code: rule 8, as for Python code.

`tests.native.disturbed` does the work, in processes of its own, with the build of
`tests.native.points`. `PENSTOCK_INTERRUPTS=1` tries all points of all programs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mutation.disturbed import DISTURBED, survives
from mutation.native import run_module
from penstock import accelerator
from tests.conftest import _installed
from tests.interrupts import STRIDE
from tests.native import disturbed, points
from tools import build_native

pytestmark = pytest.mark.skipif(not accelerator.is_native(), reason=accelerator.status)

_ALL = STRIDE == 1
_MORE = {"interrupt": ("leaks",), "memory": ("leaks",), "thread": ("closing",)}
#: In CI, programs in which most is done natively.
_SOME = {
    "llvmpipe": ("many", "lone", "results", "reads", "texels", "closed streams"),
    "simulator": ("many", "results"),
}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("points")
    points.build(folder)
    return str(folder)


@pytest.mark.parametrize("disturbance", disturbed.DISTURBANCES)
@pytest.mark.parametrize("driver", ["llvmpipe", "simulator", *(["SwiftShader"] if _ALL else [])])
def test_a_disturbed_call_does_all_or_nothing(driver: str, disturbance: str, module: str) -> None:
    if driver != "simulator":
        _installed(driver)
    elif disturbance == "thread":
        pytest.skip("the simulator runs one thread at a time")
    more = _MORE.get(disturbance, ()) if driver != "simulator" else ()
    names = disturbed.PROGRAMS if _ALL else _SOME[driver]
    words = (driver, disturbance, *names, *more)
    done = run_module("tests.native.disturbed", module, words, limit=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    tried = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(tried) == len(names) + len(more)
    assert sum(tried) > 10


@pytest.mark.parametrize("name", ["noted before it is recorded", "a batch that is not taken out"])
def test_a_fault_in_it_would_be_seen(name: str, tmp_path: Path) -> None:
    """`python -m mutation native` runs them all."""
    (chosen,) = (each for each in DISTURBED if each.mutant.name == name)
    assert not survives(*chosen, tmp_path / "mutant")


def test_every_mutant_fits_the_source() -> None:
    for mutant, _ in DISTURBED:
        for file, old, _ in mutant.changes:
            assert (build_native.SOURCES / file).read_text().count(old) == 1, (mutant.name, old)


def test_there_is_a_point_wherever_something_can_happen() -> None:
    """Every function of CPython that the C code calls has a point, or needs none."""
    header = (Path(points.__file__).with_name("points.h")).read_text()
    replaced = set(re.findall(r"#define (Py\w+)\b", header))
    harmless = re.compile("|".join(points.HARMLESS))
    for source in build_native.SOURCES.glob("*.[ch]"):
        text = re.sub(r"/\*.*?\*/", "", source.read_text(), flags=re.DOTALL)
        for name in set(re.findall(r"\b(_?Py\w+)\(|\b(Py_BEGIN_ALLOW_THREADS)\b", text)):
            (called,) = filter(None, name)
            assert called in replaced or harmless.fullmatch(called), f"{source.name}: {called}"


def test_every_call_of_the_driver_has_a_point(tmp_path: Path) -> None:
    made = points.instrumented(tmp_path / "sources")
    recorder = (made / "recorder.c").read_text()
    for name in ("begin", "end", "bind", "push", "describe", "dispatch", "barrier"):
        assert f"AT_DRIVER(recorder->{name})(" in recorder
    for name in ("submit", "get"):
        assert f"AT_DRIVER(native->{name})(" in recorder
