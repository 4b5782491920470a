"""The real library of HIP, as Debian has it, on a machine without an AMD GPU.

It answers that there is no device; and it compiles, so that every kernel of Penstock's own is
compiled for three generations of GPUs. Skipped where the library is not installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.__main__ import main
from penstock.conformance.kernels import KERNELS, Kernels
from penstock.driver.hip import api, front_end
from tests.hip import standin
from tests.hip.standin import StandIn

_CLANG = next(filter(None, (shutil.which(f"clang++-{n}") for n in range(22, 14, -1))), None)
_DEVICE_CODE = (
    "-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-std=c++17", "-O2", "-S",
    "-include", str(Path(standin.__file__).with_name("device.h")),
)  # fmt: skip

ARCHITECTURES = ("gfx906", "gfx1030", "gfx1100")
DTYPES = ("int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64")
OPERATIONS = ("sum", "mean", "min", "argmax", "any", "all")

#: Compiles what it is given, and tells how much code that makes. In a process of its own: a library
#: that is older than an architecture does not refuse it, but takes the process along.
_COMPILE = """
import json, sys
from penstock.driver.hip.api import load
from penstock.driver.hip.program import compile_hip
architecture, kernels = json.load(sys.stdin)
compile_hip(load(), "__global__ void k() {}", name="k", entry="k", architecture=architecture,
            defines={}, include_dir=None)
print("knows", flush=True)
for kernel in kernels:
    code, _ = compile_hip(load(), architecture=architecture, include_dir=None, **kernel)
    assert code[:4] == b"\\x7fELF"
print("compiled", len(kernels))
"""


@pytest.fixture
def _real_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_HIP", raising=False)
    try:
        api.load()
    except ps.NoDevice:
        pytest.skip("libamdhip64 is not installed")


@pytest.mark.usefixtures("_real_library")
def test_without_a_device_it_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        ps.Device(driver="hip").close()
    except ps.NoDevice as error:
        assert "hipErrorNoDevice, 100" in str(error)  # noqa: PT017
        assert "libamdhip64" in str(error)  # noqa: PT017
    else:
        pytest.skip("there is a device here")
    assert ps.devices("hip") == []
    assert main(["check", "--driver", "hip"]) == 1
    said = capsys.readouterr().err
    assert "no device" in said
    assert "/dev/kfd" in said


class _Noted(ps.CompileError):
    """Instead of compiling."""


@pytest.fixture
def kernels(standin_library: StandIn, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every kernel that Penstock itself has in HIP C++, as it is given to the compiler."""
    noted: list[Any] = []

    def note(hip: Any, source: str, *, name: str, entry: str, defines: Any, **_: Any) -> Any:
        noted.append({"source": source, "name": name, "entry": entry, "defines": dict(defines)})
        raise _Noted(name)

    with standin_library.chosen() as library, library.device() as device:
        monkeypatch.setattr(front_end, "compile_hip", note)
        for dtype in DTYPES:
            x = device.zeros(4, dtype)
            for operation in OPERATIONS:
                with pytest.raises(_Noted):
                    getattr(x, operation)()
            with pytest.raises(_Noted):
                x.dot(x)
            with pytest.raises(_Noted):
                device.elementwise("y[i] = x[i]", f"in {dtype} x, out {dtype} y, {dtype} a")
        for name in (*KERNELS, "total"):
            with pytest.raises(_Noted):
                Kernels(device)[name]
        log = device.empty((4, 4), np.uint32, role="append")
        with pytest.raises(_Noted), device.record():
            log.advance(1)
    return noted


@pytest.mark.usefixtures("_real_library")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles(
    architecture: str, kernels: list[Any], request: pytest.FixtureRequest
) -> None:
    if architecture == "gfx906" and not request.config.getoption("--whole"):
        pytest.skip("half a minute for each architecture: with --whole")
    assert len(kernels) == len(DTYPES) * (len(OPERATIONS) + 2) + len(KERNELS) + 2
    command = [sys.executable, "-c", _COMPILE]
    done = subprocess.run(
        command, input=json.dumps([architecture, kernels]), capture_output=True, text=True
    )
    if "knows" not in done.stdout:
        pytest.skip(f"HIP {api.load().version} does not know {architecture}: {done.stderr[-80:]}")
    assert f"compiled {len(kernels)}" in done.stdout, done.stderr


@pytest.mark.skipif(_CLANG is None, reason="no clang from 15 on is installed")
@pytest.mark.parametrize("architecture", ["gfx1100"])
def test_every_kernel_compiles_where_the_library_is_too_old(
    architecture: str, kernels: list[Any], tmp_path: Path
) -> None:
    """The same sources through the same compiler, without its run-time half."""
    for kernel in kernels:
        source = tmp_path / "kernel.hip"
        source.write_text(kernel["source"])
        defines = [f"-D{name}={value}" for name, value in kernel["defines"].items()]
        done = subprocess.run(
            [str(_CLANG), *_DEVICE_CODE, f"--offload-arch={architecture}", *defines, str(source),
             "-o", str(tmp_path / "code")],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_kernels_name_no_other_file(kernels: list[Any]) -> None:
    """A compiler at run time has no directories of ours."""
    assert not any("#include" in kernel["source"] for kernel in kernels)
    assert Path(ps.__file__).with_name("ops").joinpath("shaders/reduction.hip").exists()
