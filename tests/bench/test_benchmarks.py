"""The comparison with peers: its protocol and its floors; and the loop shaped like decoding.

Nothing is installed, nothing fetched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from benchmarks import access, arrays, loads, models
from benchmarks.peers import comparison, environments
from benchmarks.peers.conversation import Conversation, Lost
from penstock.bench.floors import programs as kernels
from penstock.bench.jobs import JOBS
from penstock.bench.measure import SHADERS, Samples
from penstock.llm.random_model import shape_of, write_random_model
from penstock.shader.glsl import compile_glsl
from tests.conftest import simulated

ROOT = Path(__file__).parents[2]
OWN = [name for name, kind in environments.KINDS.items() if not kind.requirements]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("programs")
    for name, code in kernels().items():
        (directory / f"{name}.spv").write_bytes(code)
    return directory


def need_compiler() -> None:
    if not shutil.which(os.environ.get("CC", "cc")):
        pytest.skip("there is no C compiler")


def talk(name: str, programs: Path) -> Conversation:
    if name == "c":
        need_compiler()
    found = [info.name for info in ps.devices() if "llvmpipe" in info.name]
    if not found:
        pytest.skip("llvmpipe is not installed")
    settings = {"PENSTOCK_PEERS_DEVICE": found[0], "LP_NUM_THREADS": "0"}
    return Conversation(name, Path(sys.executable), programs, settings)


@pytest.mark.parametrize("name", OWN)
def test_worker_runs_every_row_it_claims(name: str, programs: Path) -> None:
    peer = talk(name, programs)
    try:
        assert peer.about["version"]
        assert peer.how
        for row in peer.how:
            seconds = peer.ask(row, 2)
            assert len(seconds) == 2
            assert min(seconds) > 0
    finally:
        peer.close()


def test_wrong_values_are_told_and_do_not_count(programs: Path, tmp_path: Path) -> None:
    wrong = (SHADERS / "saxpy.comp").read_text().replace("a * x[i] +", "x[i] +")
    for name in ("pick", "touch"):
        (tmp_path / f"{name}.spv").write_bytes((programs / f"{name}.spv").read_bytes())
    (tmp_path / "saxpy.spv").write_bytes(compile_glsl(wrong, name="wrong"))
    peer = talk("cffi", tmp_path)
    try:
        with pytest.raises(Lost, match="wrong result"):
            peer.ask("wait", 1)
        assert peer.ask("array", 1)  # the worker goes on
    finally:
        peer.close()


def test_peer_that_cannot_start_says_why(programs: Path) -> None:
    with pytest.raises(Lost, match=r"^ModuleNotFoundError: .*nobody"):
        Conversation("nobody", Path(sys.executable), programs, {})


def test_peer_that_dies_is_lost_with_its_last_words(programs: Path) -> None:
    peer = talk("numpy", programs)
    try:
        with pytest.raises(Lost, match="ended with 1: KeyError: 'no such row'"):
            peer.ask("no such row", 1)
    finally:
        peer.close()


def test_failed_installation_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def install(place: Path, requirements: tuple[str, ...]) -> str:
        tried.append(place.name)
        place.mkdir(parents=True)
        return "there is no network"

    monkeypatch.setattr(environments, "_install", install)
    told: list[str] = []
    for _ in range(2):
        with pytest.raises(environments.NotInstalled, match="there is no network"):
            environments.interpreter("wgpu", tmp_path, reinstall=False, tell=told.append)
    assert tried == ["wgpu"]
    assert str(tmp_path) in told[0]


def test_command_compares_and_reports_the_absent(tmp_path: Path) -> None:
    need_compiler()
    absent = {"requirements": ["kp", "numpy"], "failed": "there is no network"}
    (tmp_path / "kp").mkdir()
    (tmp_path / "kp" / "installed.json").write_text(json.dumps(absent))
    only = ["--only", "c,numpy,penstock,kp", "--peers-dir", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "launch", "--peers", "--repeat", "1", "--json", *only],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    sections = json.loads(ran.stdout)["sections"]
    titles = [section["title"] for section in sections]
    assert titles[0] == "Who takes part"
    assert len(sections) == 1 + len(JOBS) + 2
    by_peer = {row["peer"]: row for row in sections[0]["rows"]}
    assert "there is no network" in by_peer["kp"]["device"]
    waits = {row["peer"]: row for row in sections[1]["rows"]}
    assert waits["c"]["ratio_of_minima"] == 1
    assert waits["penstock"]["min_us"] > 0
    assert {row["row"] for row in sections[-1]["rows"]} == {aim[0] for aim in comparison._AIMS}


def test_a_peer_on_another_driver_is_not_the_fastest() -> None:
    devices = {"numpy": "none", "penstock": "card", "wgpu": "card, Vulkan", "warp": "the processor"}
    apart = comparison.elsewhere(devices, "card")
    assert apart == ["warp"]
    taken = {name: Samples([time]) for name, time in (("penstock", 9), ("wgpu", 8), ("warp", 1))}
    standing = comparison._standing({"wait": taken}, apart)
    assert standing.rows[0]["fastest_peer"] == "wgpu"
    assert "warp (on another driver)" in standing.title


def test_models_are_compared_with_another_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this one: the same tokens. What cannot be installed is a row that says why."""
    model = tmp_path / "model.gguf"
    write_random_model(model, shape_of("tiny"), "Q8_0", tokenizer=False)

    def install(place: Path, _: tuple[str, ...]) -> str:
        place.mkdir(parents=True)
        return "there is no network"

    monkeypatch.setattr(environments, "_install", install)
    monkeypatch.setattr(models, "_limits", lambda _: (1e9, 1e9))
    plan = models.Plan(
        [model], [20], 3, 8, [1], 1, "llvmpipe", against=ROOT, peers=tmp_path / "peers"
    )
    compared, each, limits = models.run(plan)
    rows = {str(row["program"]): row for row in compared.rows}
    assert list(rows) == ["penstock", "against", "llama.cpp"]
    assert "there is no network" in str(rows["llama.cpp"]["note"])
    assert rows["penstock"]["note"] == "", "other tokens"
    figures = ("prompt ms", "processor", "decode ms", "processor, decode")
    assert all(
        float(str(rows[one][name])) > 0 for one in ("penstock", "against") for name in figures
    )
    assert float(str(rows["penstock"]["decode ×"])) > 0
    for part in ("token", "prompt"):
        of_part = [row for row in each.rows if row["part"] == part]
        assert sum(float(str(row["share %"])) for row in of_part) == pytest.approx(100)
        product = next(  # by whichever way was measured to be the best
            row for row in of_part if re.match(r"product Q8_0 \w+ \d+x\d+", str(row["kernel"]))
            and (part == "token" or not str(row["kernel"]).endswith("x1"))
        )  # fmt: skip
        assert (
            0
            < float(str(product["% of limit"]))
            == pytest.approx(
                100 * float(str(product["GB/s" if part == "token" else "G multiply-adds/s"]))
            )
        )
    assert limits.rows == [{"threads": 1, "GB/s": 1.0, "G multiply-adds/s": 1.0}]


def test_waits_for_cpu_access_in_a_decode_shaped_loop(dev: ps.Device) -> None:
    (table,) = access.run(dev, 1)
    waits = {row["rule"]: int(str(row["waits"])) for row in table.rows}
    # A step that is done before the host looks costs no wait: up to 64 by their rules, 8 by ours.
    assert max(waits["split + rename"], waits["roles"]) <= 8
    assert min(waits["everything"], waits["last use"], waits["read/write split"]) > 16, waits


def test_loads_by_every_way(dev: ps.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "ITERATIONS", 65)
    (table,) = loads.run(dev, 2)
    assert [row["way"] for row in table.rows] == list(loads.WAYS)


def test_array_operations_wait_only_where_the_shape_depends_on_values() -> None:
    with simulated(1) as device:
        (section,) = arrays.run(device, 1, (400,))
    waiting = {row["operation"] for row in section.rows if row["waits"]}
    assert waiting == {"x[mask]", "nonzero", "unique_values"}
    assert all(row["launches"] or row["copies"] for row in section.rows)
