"""Every example runs, in a process of its own as a user would start it, with small sizes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps

EXAMPLES = Path(__file__).parent.parent / "examples"
#: What to call each with, what it must say, and the files it must write.
RUNS: dict[str, tuple[list[str], str, list[str]]] = {
    "saxpy": (["--size", "1000"], "y[-1] = 1,999", []),
    "image_filter": (["--size", "64"], "copies            0", ["image_filter.png"]),
    "life": (["--size", "32", "--frames", "5", "--output", "x.png"], "5 replays", ["x.png"]),
    "streaming": (["--size", "5000", "--blocks", "9"], "launches 9", []),
    "torch_dlpack": (["--size", "4096"], "as PyTorch computes it", []),
    "service": (["--clients", "3", "--requests", "4"], "12 of 12 answers were right", []),
    "decode": (["--tokens", "4"], "tokens per second", []),
    "kmeans": (["--size", "400"], "as NumPy computes them", []),
    "blur": (["--size", "48"], "as NumPy computes it", ["blur.png"]),
    "normalise": (["--size", "50"], "as NumPy computes them", []),
    "mandelbrot": (["--size", "32"], "as NumPy computes it", ["mandelbrot.png"]),
    "histogram": (["--size", "500"], "as NumPy computes them", []),
}
#: Those with a NumPy version in the same file, and no kernel of their own.
BESIDE_NUMPY = ("kmeans", "blur", "normalise", "mandelbrot", "histogram")
NEEDS = {"torch_dlpack": "torch", "decode": "tokenizers"}


def run(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if not any("llvmpipe" in info.name for info in ps.devices()):
        pytest.skip("llvmpipe is not installed")
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--device", "llvmpipe", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    arguments, said, files = RUNS[name]
    done = run(name, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    for file in files:
        assert (tmp_path / file).read_bytes().startswith(b"\x89PNG")


def test_life_without_a_file(tmp_path: Path) -> None:
    done = run("life", tmp_path, "--size", "16", "--frames", "3", "--text")
    assert done.returncode == 0, done.stderr
    assert "#" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", BESIDE_NUMPY)
def test_arrays_alone_are_enough(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert "def with_numpy(" in text
    assert "def on_device(" in text
    assert not any(word in text for word in ("dev.kernel", "elementwise", "layout("))


def test_all_are_listed_and_run() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text()}
    assert programs == set(RUNS)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"[{name}.py]({name}.py)" in listed for name in programs)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_says_so(tmp_path: Path) -> None:
    done = run("torch_dlpack", tmp_path)
    assert done.returncode == 1
    assert "pip install torch" in done.stderr
