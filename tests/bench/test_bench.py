"""`penstock bench`: llama-bench's conventions, intervals, verdicts, and the page."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import random
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import accelerator
from penstock.__main__ import main
from penstock.bench import ablation, compare
from penstock.bench.jobs import CHAIN
from penstock.bench.measure import ratio
from penstock.bench.values import numbers, pairs
from tests.llm.model_builders import miniature

Row = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(miniature(tmp_path_factory.mktemp("model")))


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["bench", *words]) == 0
    return capsys.readouterr().out


# Values of options.


@pytest.mark.parametrize(
    ("given", "stands_for"),
    [
        ("512", [512]),
        ("128,256", [128, 256]),
        ("1-4", [1, 2, 3, 4]),
        ("16-64+16", [16, 32, 48, 64]),
        ("1-8*2", [1, 2, 4, 8]),
        ("1-9*2,7", [1, 2, 4, 8, 7]),
    ],
)
def test_lists_and_ranges(given: str, stands_for: list[int]) -> None:
    assert numbers("-p", given) == stands_for


@pytest.mark.parametrize(
    "given", ["", "x", "1-", "-1", "4-1", "0-8*2", "1-8*1", "1-5+0", "1-99999"]
)
def test_values_that_mean_nothing(given: str) -> None:
    with pytest.raises(ps.InvalidValue, match="-p"):
        numbers("-p", given)
    with pytest.raises(ps.InvalidValue, match="two numbers"):
        pairs("-pg", "512")


# A model.


def test_the_matrix_and_its_names(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-p", "4,8", "-n", "1-2*2", "-pg", "4,2", "-d", "0,6", "-r", "2", "-b", "4,8"]
    rows = json.loads(bench(capsys, model, *words, "-o", "json"))
    tests = ["pp4", "pp8", "tg1", "tg2", "pp4+tg2"]
    both = [*tests, *(f"{name} @ d6" for name in tests)]
    assert [row["test"] for row in rows] == both * 2
    assert [row["n_batch"] for row in rows] == [4] * 10 + [8] * 10


def test_the_fields_of_a_row(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = json.loads(bench(capsys, "-m", model, "-p", "0", "-n", "6", "-r", "3", "-o", "json"))
    named = (
        "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size "
        "model_n_params n_batch n_ubatch type_k type_v n_prompt n_gen n_depth test_time avg_ns "
        "stddev_ns avg_ts stddev_ts samples_ns samples_ts"
    )
    assert set(named.split()) <= set(row)
    assert (row["model_filename"], row["n_prompt"], row["n_gen"]) == (model, 0, 6)
    assert len(row["samples_ns"]) == len(row["samples_ts"]) == 3
    assert row["avg_ns"] == pytest.approx(sum(row["samples_ns"]) / 3, abs=1)
    for ns, rate in zip(row["samples_ns"], row["samples_ts"], strict=True):
        assert rate == pytest.approx(6e9 / ns, rel=1e-3)
    assert row["bytes_copied_per_token"] == 4  # its own, by the receipt
    assert row["allocations_per_token"] == 0
    assert row["submissions_per_token"] <= 1


def test_every_form_tells_the_same(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [model, "-p", "4", "-n", "2", "-r", "1", "-o"]
    table = bench(capsys, *words, "md").splitlines()
    assert [line.split("|")[5].strip() for line in table[2:4]] == ["pp4", "tg2"]
    assert re.search(r"\d+\.\d\d ± \d+\.\d\d", table[2])
    assert any(line.startswith("build: ") for line in table)
    assert any(line.endswith(f"native step {accelerator.status}") for line in table)
    listed = list(csv.DictReader(io.StringIO(bench(capsys, *words, "csv"))))
    assert [(row["n_prompt"], row["n_gen"]) for row in listed] == [("4", "0"), ("0", "2")]
    lines = [json.loads(line) for line in bench(capsys, *words, "jsonl").splitlines()]
    assert [row["test"] for row in lines] == ["pp4", "tg2"]
    with sqlite3.connect(":memory:") as database:
        database.executescript(bench(capsys, *words, "sql"))
        found = database.execute("SELECT n_prompt, avg_ts > 0 FROM llama_bench").fetchall()
    assert found == [(4, 1), (0, 1)]


@pytest.mark.parametrize("odd", [{"benchmark": []}, {"without": {"a": 1}}])
def test_rows_that_nothing_can_be_compared_by(tmp_path: Path, odd: dict[str, Any]) -> None:
    file = tmp_path / "odd.json"
    file.write_text(json.dumps([{"test": "a", "samples_ns": [1, 2, 3, 4], **odd}]))
    with pytest.raises(ps.InvalidValue, match=f"a row whose {next(iter(odd))} is no text or"):
        compare.read(file)


def test_what_is_wrong_is_said(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        ([], "which model?"),
        ([model, "-p", "x"], "'x' is not a number"),
        ([model, "-p", "0", "-n", "0"], "leaves nothing to measure"),
        ([model, "-r", "0"], "-r 0"),
        ([model, "-ctk", "q4_0"], "f16, f32, q8_0"),
        ([model, "-n", "1", "-d", "1000"], "made for up to 64"),
        ([model, "-n", "0", "--ablate"], "--ablate takes one model"),
        (["runtime", "--only", "lunch"], "not lunch"),
        (["compare", model, model], "is not JSON of penstock bench"),
    ):
        assert main(["bench", *words]) == 1, words
        assert says in capsys.readouterr().err


def test_ablation_has_every_mechanism(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [model, "-n", "6", "-r", "2", "--ablate", "-o", "json"]
    rows = {row["without"]: row for row in json.loads(bench(capsys, *words))}
    assert list(rows) == list(ablation.CASES)
    assert rows[ablation.NOTHING]["ratio"] == 1
    most = {name: row["bytes_copied_per_token"] for name, row in rows.items()}
    assert most[ablation.NOTHING] == 4
    assert most["GPU-side sampling"] == 4 + 4 * 16  # all logits, and the token back
    assert rows["graph replay"]["allocations_per_token"] > 0
    assert rows["resource-aware access"]["submissions_per_token"] == 1
    assert all(row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows.values())


# The runtime.


def test_the_runtime_compared_with_bare_calls(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["runtime", "-r", "1", "--only", "launch,access", "-o", "json"]
    rows = {row["test"]: row for row in json.loads(bench(capsys, *words))}
    assert rows["launch and wait"]["submissions"] == 1
    assert rows["read a weight that work reads"]["waits"] == 0
    assert rows[f"chain of {CHAIN} launches, replayed"]["submissions"] == 1
    for row in rows.values():
        assert row["allocations"] == 0, row["test"]
        assert row["median_ns"] > 0
        assert row["floor_median_ns"] > 0


# Intervals and verdicts.


def samples(median: float, spread: float, seed: int, count: int = 20) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(median, spread) for _ in range(count)]


def test_an_interval_holds_what_is_true() -> None:
    held = 0
    for seed in range(40):
        found = ratio(samples(200, 10, seed), samples(100, 5, seed + 1000), paired=False)
        assert found.low <= found.value <= found.high
        held += found.low <= 2 <= found.high
    assert held >= 34  # about 38 of 40, if it is worth its 95 %


def test_paired_rounds_cancel_what_disturbs_both() -> None:
    draw = random.Random(0)
    disturbed = [draw.uniform(1, 5) for _ in range(20)]
    twice = [2 * one for one in disturbed]
    paired = ratio(twice, disturbed, paired=True)
    apart = ratio(twice, disturbed, paired=False)
    assert paired.high - paired.low < 1e-9 < apart.high - apart.low


def row(test: str, ns: list[float], **counts: int) -> Row:
    return {"benchmark": "runtime", "test": test, "samples_ns": ns, "copies": 1, **counts}


@pytest.mark.parametrize(
    ("after", "verdict"), [(100.0, "no difference"), (150.0, "worse"), (60.0, "better")]
)
def test_verdicts(after: float, verdict: str) -> None:
    before = [row("launch", samples(100, 3, 1))]
    (found,) = compare.compare(before, [row("launch", samples(after, 3, 2))], 2.0)
    assert found.verdict == verdict
    assert compare.exit_code([found], "worse") == (verdict == "worse")
    assert compare.exit_code([found], "never") == compare.exit_code([found], "counts") == 0
    assert verdict in compare.as_text([found])


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_of_few_runs_nothing_can_be_told(runs: int) -> None:
    """Two runs of one commit differ, and two samples of each do not tell by how much."""
    before = row("launch", [100.0, 101.0, 102.0][:runs])
    after = row("launch", [130.0, 131.0, 132.0][:runs])
    (found,) = compare.compare([before], [after], 2.0)
    assert found.verdict == "cannot be told"
    assert compare.exit_code([found], "worse") == 0
    assert "1 cannot be told (measure at least 4 runs: -r 4)" in compare.as_text([found])
    (told,) = json.loads(compare.as_json([found]), parse_constant=pytest.fail)
    assert (told["low"], told["high"]) == (0, None)


@pytest.mark.parametrize("wrong", [[], [0.0], [-1.0], ["1"], [None], 3, [float("nan")]])
def test_times_that_are_none(wrong: Any) -> None:
    with pytest.raises(ps.InvalidValue, match="samples_ns of 'launch' must be"):
        compare.compare([row("launch", [1.0])], [row("launch", wrong)], 2.0)


def test_four_runs_can_tell_much() -> None:
    before, after = [100.0, 101.0, 102.0, 103.0], [150.0, 151.0, 152.0, 153.0]
    (found,) = compare.compare([row("launch", before)], [row("launch", after)], 2.0)
    assert found.verdict == "worse"


def test_one_thing_is_seldom_called_two() -> None:
    draw = random.Random(5)
    wrong = 0
    for count in (4, 5, 7) * 60:
        before, after = ([draw.lognormvariate(0, 0.1) for _ in range(count)] for _ in range(2))
        (found,) = compare.compare([row("launch", before)], [row("launch", after)], 0.0)
        wrong += found.verdict != "no difference"
    assert wrong <= 9  # of 180; an interval of 95 % alone would be wrong so often


def test_intervals_by_ranks_are_those_of_tables() -> None:
    """The critical values of U at 5 %, two-sided, from Mann's and Whitney's table."""
    for one, other, critical in ((4, 4, 0), (5, 5, 2), (8, 8, 13), (10, 10, 23), (20, 20, 127)):
        assert compare._outside(one, other) == critical + 1
    assert compare._outside(3, 3) == 0
    assert abs(compare._outside(60, 60) - 1426) <= 2


def test_noise_is_no_difference() -> None:
    """Half as slow again, but the rounds of a single run differ as much."""
    wild = [100.0, 200.0] * 10
    (found,) = compare.compare(
        [row("launch", wild)], [row("launch", [1.5 * one for one in wild])], 2
    )
    assert found.noise == 1
    assert found.verdict == "no difference"


def test_a_count_that_grew_is_worse_whatever_the_clock_says() -> None:
    before, after = row("launch", samples(100, 3, 1)), row("launch", samples(50, 3, 2), copies=2)
    (found,) = compare.compare([before], [after], 2.0)
    assert (found.verdict, found.counts_verdict) == ("better", "worse")
    assert found.counts == ["copies 1 → 2"]
    assert compare.exit_code([found], "counts") == 1


def test_effect_sizes() -> None:
    assert compare.effect_size([1, 2, 3], [4, 5, 6]) == 1
    assert compare.effect_size([4, 5, 6], [1, 2, 3]) == -1
    assert compare.effect_size([1, 2, 3], [1, 2, 3]) == 0


def test_files_with_nothing_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, test in zip(files, ("launch", "lunch"), strict=True):
        file.write_text(json.dumps([row(test, [1.0, 2.0, 1.5, 1.6])]))
    assert main(["bench", "compare", *map(str, files)]) == 1
    assert "no measurement in common" in capsys.readouterr().err
    assert main(["bench", "compare", str(files[0]), str(files[0])]) == 0
    assert "1 no difference" in capsys.readouterr().out


# The page.


def test_a_report_is_one_page_without_a_network(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    saved = [tmp_path / f"{number}.json" for number in range(2)]
    bench(capsys, model, "-p", "0", "-n", "2", "-d", "0,4", "-r", "2", "--save", str(saved[0]))
    bench(capsys, "runtime", "--only", "access", "-r", "1", "--save", str(saved[1]))
    made = bench(capsys, "report", *map(str, saved), "-o", str(tmp_path / "out")).split()
    assert {Path(file).name for file in made} == {
        "context.png", "context-dark.png", "launch.png", "launch-dark.png", "index.html",
    }  # fmt: skip
    page = (tmp_path / "out" / "index.html").read_text()
    assert "tg2 @ d4" in page
    assert "read a weight that work reads" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    file = tmp_path / "a.json"
    bench(capsys, "runtime", "--only", "access", "-r", "1", "--save", str(file))
    assert main(["bench", "report", str(file), "-o", str(tmp_path)]) == 1
    assert "pip install penstock-gpu[bench]" in capsys.readouterr().err
