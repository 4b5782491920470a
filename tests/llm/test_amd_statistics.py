"""Every kernel that GPUs run compiles for AMD GPUs, and none spills registers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.llm.shaders import every_kernel
from tools import amd_statistics

_SAMPLE = 7  # one in n kernels is compiled without --whole


@pytest.fixture(scope="module", params=amd_statistics.FAMILIES)
def rows(request: pytest.FixtureRequest) -> list[amd_statistics.Row]:
    if amd_statistics.driver_file() is None:
        pytest.skip("RADV is not installed")
    whole = request.config.getoption("--whole")
    if request.param != "gfx1100" and not whole:
        pytest.skip("a minute for each family: with --whole")
    try:
        every = 1 if whole else _SAMPLE
        return amd_statistics.statistics(request.param, for_gpus=True, every=every)
    except amd_statistics.NoCompiler as error:
        if "Unknown family" in str(error):
            pytest.skip(f"this RADV does not know {request.param}")
        raise


def test_every_kernel_for_gpus_compiles_and_none_spills(
    rows: list[amd_statistics.Row], request: pytest.FixtureRequest
) -> None:
    wanted = [shader.name for shader in every_kernel() if amd_statistics.is_for_gpus(shader)]
    assert len(wanted) > 200
    every = 1 if request.config.getoption("--whole") else _SAMPLE
    assert [row["kernel"] for row in rows] == wanted[::every]
    for row in rows:
        assert row["vgprs"] > 0
        assert row["sgprs"] > 0
    spilling = [r["kernel"] for r in rows if r["spilled_vgprs"] or r["spilled_sgprs"]]
    assert not spilling, f"these kernels have too few registers: {spilling}"


def test_every_kernel_has_a_name_of_its_own() -> None:
    names = [shader.name for shader in every_kernel()]
    assert len(set(names)) == len(names)


def test_the_table_and_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    if amd_statistics.driver_file() is None:
        pytest.skip("RADV is not installed")
    asked = ["--family", "gfx1100", "--only", "gate"]
    assert amd_statistics.main(asked) == 0
    assert "gfx1100: 1 kernels, 0 spill\nkernel  vgprs  sgprs" in capsys.readouterr().out
    assert amd_statistics.main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["kernel"] for row in found["gfx1100"]] == ["gate"]


def test_without_the_driver_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(amd_statistics, "driver_file", lambda: None)
    assert amd_statistics.main([]) == 1
    assert "RADV is not installed" in capsys.readouterr().err


def test_the_driver_is_found_by_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "vulkan" / "icd.d"
    directory.mkdir(parents=True)
    other = {"ICD": {"library_path": "libvulkan_lvp.so"}}
    radv = {"ICD": {"library_path": "libvulkan_radeon.so"}}
    (directory / "a.json").write_text(json.dumps(other))
    (directory / "b.json").write_text("no json")
    (directory / "c.json").write_text(json.dumps(radv))
    monkeypatch.setenv("XDG_DATA_DIRS", os.fspath(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", os.fspath(tmp_path))
    assert amd_statistics.driver_file() == directory / "c.json"


def test_a_family_that_there_is_not() -> None:
    if amd_statistics.driver_file() is None:
        pytest.skip("RADV is not installed")
    with pytest.raises(amd_statistics.NoCompiler, match="nothing for gfx1"):
        amd_statistics.statistics("gfx1")
