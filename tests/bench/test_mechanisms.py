"""`penstock bench mechanisms`: its rows, what is said of them, the page, and the docs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.__main__ import main
from penstock.bench import compare
from penstock.bench.measure import FEWEST
from penstock.bench.mechanisms import document, findings
from penstock.bench.mechanisms.comparison import percentile
from penstock.bench.mechanisms.measuring import MECHANISMS

ROOT = Path(__file__).parents[2]
ENOUGH = {"samples_ns": [1.0] * FEWEST, "off_samples_ns": [1.0] * FEWEST}
KEPT = ROOT / "benchmarks/results/mechanisms-llvmpipe.json"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick run of all; every value is checked on the way."""
    if not any("llvmpipe" in info.name for info in ps.devices()):
        pytest.skip("llvmpipe is not installed")
    file = tmp_path_factory.mktemp("mechanisms") / "rows.json"
    words = ["-dev", "llvmpipe", "--quick", "-o", "jsonl", "--no-report", "--save", str(file)]
    assert main(["bench", "mechanisms", *words]) == 0
    return file


@pytest.fixture(scope="module")
def rows(saved: Path) -> list[Row]:
    return compare.read(saved)


def of(rows: list[Row], group: str) -> list[Row]:
    return [row for row in rows if row["group"] == group]


def test_every_mechanism_is_measured_on_and_off(rows: list[Row]) -> None:
    assert list(dict.fromkeys(row["group"] for row in rows)) == list(MECHANISMS)
    for row in rows:
        assert len(row["samples_ns"]) == len(row["off_samples_ns"]) > 0
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["idle_ns"] is None or row["idle_ns"] >= 0
        assert findings.effect(row) == "unclear"  # in two rounds


def test_receipts_show_what_is_switched_off(rows: list[Row]) -> None:
    (loaded,) = of(rows, "load")
    assert loaded["off_bytes_copied"] - loaded["bytes_copied"] >= 0.9 * loaded["size"]
    (frames,) = of(rows, "transfers")
    assert (frames["copies"], frames["bytes_copied"]) == (0, 0)
    assert frames["off_copies"] == 3  # to staging and on; and back
    from_driver, from_pool = of(rows, "scratch")
    assert (from_driver["allocations"], from_driver["off_allocations"]) == (0, 1)
    assert from_pool["off_allocations"] == 0
    (sampled,) = of(rows, "sampling")
    assert (sampled["bytes_copied"], sampled["off_bytes_copied"]) == (4, sampled["size"] + 4)
    replayed = next(row for row in rows if row["test"] == "graph replay, a decoded token")
    assert replayed["allocations"] == 0 < replayed["off_allocations"]


def test_figures_beside_the_time(rows: list[Row]) -> None:
    names = {one["what"] for row in rows for one in row["figures"]}
    assert names == {
        "resident memory", "private memory", "a second process adds", "steps",
        "99th percentile of an update", "99th percentile of a peek", "tokens", "launches",
    }  # fmt: skip
    assert all(one["on"] > 0 and one["off"] > 0 for row in rows for one in row["figures"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "load,nonsense"], f"--only knows {', '.join(MECHANISMS)}; not nonsense"),
        (["--sizes", "0.1,x"], "--sizes '0.1,x'; write gigabytes"),
        (["--sizes", "0"], "--sizes '0'; write gigabytes"),
        (["--only", "load", "--sizes", ",".join(["16"] * 10_000)], "GB in"),
        (["-r", "0"], "-r 0"),
        (["--docs", str(ROOT / "LICENSE")], "between which to write"),
        (["--docs", "no/such/page.md"], "No such file"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "mechanisms", *words]) == 1
    assert says in capsys.readouterr().err


# What is said follows from the figures.


def row(ratio: float, low: float, high: float, **changes: Any) -> Row:
    noise = {"noise": 1.0, "noise_low": 0.9, "noise_high": 1.1}
    return {
        "test": "a case", "unit": "step", "gpu_info": "llvmpipe (LLVM)", "figures": [], **noise,
        "ratio": ratio, "ratio_low": low, "ratio_high": high, **ENOUGH, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "effect", "says"),
    [
        ((2.0, 1.5, 2.5), "gain", "Without it, a step takes longer in its case, up to 2.00 times"),
        ((1.2, 1.05, 1.3), "none", "No effect is shown in its case"),  # meets the noise
        ((1.1, 0.9, 1.3), "none", "No effect is shown in its case"),  # includes 1
        ((1.4, 0.9, 2.0), "unclear", "Whether there is an effect cannot be told in its case"),
        ((0.5, 0.4, 0.6), "loss", "It costs time in its case"),
    ],
)
def test_effects_are_those_beyond_the_noise(
    ratio: tuple[float, float, float], effect: str, says: str
) -> None:
    found = row(*ratio)
    assert findings.effect(found) == effect
    assert findings.finding([found]).startswith(says)
    title = findings.headline("scratch", [found])
    assert ("takes up to" in title) == (effect == "gain")
    assert ("no effect on llvmpipe" in title) == (effect == "none")


@pytest.mark.parametrize("side", ["samples_ns", "off_samples_ns"])
def test_a_few_rounds_tell_nothing(side: str) -> None:
    found = row(0.7, 0.7, 0.7, noise_low=1.0, noise_high=1.0)
    assert findings.effect(found) == "loss"
    assert (findings.within(found), findings.within(found, "noise")) == ("0.70–0.70", "1.00–1.00")
    found[side] = [1.0] * (FEWEST - 1)
    assert findings.effect(found) == "unclear"
    assert findings.within(found) == findings.within(found, "noise") == "–"
    assert findings.finding([found]) == (
        "Whether there is an effect cannot be told in its case, because there were fewer than 4 "
        "rounds."
    )
    title = findings.headline("scratch", [found])
    assert title == "Scratch: too few rounds to show an effect on llvmpipe"
    assert findings.summary([[found]]).startswith("Too few rounds to tell which mechanisms")


def test_a_quick_run_says_that_it_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    if not any("llvmpipe" in info.name for info in ps.devices()):
        pytest.skip("llvmpipe is not installed")
    words = ["-dev", "llvmpipe", "--quick", "--only", "sampling", "--no-report"]
    assert main(["bench", "mechanisms", *words]) == 0
    said = capsys.readouterr()
    assert "| cannot be told |" in " ".join(said.out.split())
    assert "--quick only tries that everything runs" in said.err


def test_a_lower_rate_is_told() -> None:
    figures = [{"what": "steps", "unit": "/s", "on": 90.0, "off": 100.0}]
    found = findings.finding([row(2.0, 1.5, 2.5, figures=figures)])
    assert "Its price: steps per second are fewer with it on in its case (90 against 100" in found


def test_reasons_are_given_where_nothing_is_shown(rows: list[Row]) -> None:
    quiet = {"noise": 1.0, "noise_low": 1.0, "noise_high": 1.0, **ENOUGH}
    clear = [{**one, **quiet, "ratio_low": 2.0, "ratio_high": 3.0} for one in rows]
    assert not any(each.why for each in document.sections(clear))
    flat = [{**one, **quiet, "ratio_low": 0.9, "ratio_high": 1.1} for one in rows]
    for each in document.sections(flat):
        assert each.why == MECHANISMS[each.name].why
        assert each.why in document.markdown(flat)
        assert "No effect is shown" in each.finding


def test_percentiles() -> None:
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([3.0], 0.99) == 3
    assert percentile([1, 2, 3, 4], 0.5) == 2


# Page and docs.


def test_a_report_has_tables_plots_and_the_docs(
    saved: Path, rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    some = tmp_path / "some.json"
    some.write_text(json.dumps([one for one in rows if one["group"] == "load"]))
    docs = tmp_path / "page.md"
    docs.write_text(f"before\n\n{document.BLOCK.begin}\nold\n{document.BLOCK.end}\n\nafter\n")
    words = ["report", str(some), "-o", str(tmp_path / "out"), "--docs", str(docs)]
    assert main(["bench", *words]) == 0
    made = {Path(file).name for file in capsys.readouterr().out.split()}
    panels = ("time-of-the-first-token", "resident-memory", "private-memory")
    plots = {"mechanisms", *(f"mechanism-load-{panel}" for panel in panels)}
    drawn = {f"{plot}{end}" for plot in plots for end in (".png", "-dark.png")}
    assert made == {*drawn, "index.html", "page.md"}
    page = (tmp_path / "out/index.html").read_text()
    images = re.findall(r'<img class="(light|dark)" alt="(.*?)"', page)
    assert len(set(images)) == len(drawn)
    titles = re.findall(r"<(?:h\d|figcaption)>(.*?)</", page)
    assert len(titles) == len(set(titles)) == 3  # of the page, of all mechanisms, of this one
    assert titles[2].startswith("Zero-copy load: ")
    assert "Arithmetic, not measured:" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    text = docs.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "\nold\n" not in text
    assert "### Zero-copy load" in text
    images_shown = set(re.findall(r"\]\(images/(.*?)\)", text))
    assert images_shown == {f"{plot}.png" for plot in plots}
    assert {file.name for file in (tmp_path / "images").iterdir()} == images_shown
    document.BLOCK.write(
        docs, document.markdown(compare.read(some))
    )  # once more, on its own outcome
    assert docs.read_text() == text


def test_docs_need_rows_of_mechanisms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"benchmark": "model", "test": "x", "samples_ns": [1]}]))
    assert (
        main(["bench", "report", str(file), "--docs", str(ROOT / "docs/performance-tables.md")])
        == 1
    )
    assert "takes rows of penstock bench mechanisms" in capsys.readouterr().err


def test_the_docs_are_made_from_the_kept_rows() -> None:
    kept = document.BLOCK.read(ROOT / "docs/performance-tables.md")
    assert kept == document.markdown(compare.read(KEPT)), (
        f"penstock bench report {KEPT.relative_to(ROOT)} --docs docs/performance-tables.md"
    )
