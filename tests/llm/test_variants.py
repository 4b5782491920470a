"""How the ways to compute products are chosen, remembered, fixed and shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import llm
from penstock.llm import attention_choice, products, variants
from penstock.llm.compiling import Compiled
from penstock.llm.costs import Cost, Receipt
from penstock.llm.variants import MEASURED, Variants, choose
from tests.llm.model_builders import gguf, miniature
from tests.llm.weight_builders import encoded, upload

on_lavapipe = pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)


class Stand:
    """Measures nothing: returns the seconds that a test gives each way and number of tokens."""

    def __init__(self, seconds: dict[tuple[str, int], float], compiling: float = 0.0) -> None:
        self.seconds = seconds
        self.compiling = compiling
        self.asked: list[tuple[str, int]] = []

    def __call__(
        self, device: ps.Device, made: products.Products, weight: Any, x: Any, y: Any, count: int
    ) -> variants._Time:
        self.asked.append((made.way, count))
        taken = self.seconds[made.way, count]
        return variants._Time(self.compiling + taken, 3 * taken, taken)


@pytest.fixture
def weights(dev: ps.Device) -> dict[str, llm.Weight]:
    raw = encoded("Q8_0", 40, 64, np.random.default_rng(0))
    return {"a matrix": upload(dev, "Q8_0", raw)}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the choice is kept, and nothing known yet."""
    monkeypatch.setattr(variants, "_known", {})
    monkeypatch.setattr(variants, "_file", lambda: tmp_path / "new" / "variants.json")
    monkeypatch.setattr(variants, "BUDGET", 1e9)
    return tmp_path / "new" / "variants.json"


DECODE_BY_WINDOWS = {("rows", 1): 2.0, ("windowed", 1): 1.0, ("rows", 16): 1.0,
                     ("windowed", 16): 2.0}  # fmt: skip


@on_lavapipe
def test_the_fastest_way_is_taken_and_remembered(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(DECODE_BY_WINDOWS)
    monkeypatch.setattr(variants, "_time", stand)
    assert choose(dev, weights, MEASURED) == Variants("windowed", "rows", "rows")
    assert sorted(stand.asked) == sorted(DECODE_BY_WINDOWS)
    assert choose(dev, weights, Variants(decode="alone")) == Variants("alone", "rows", "rows")
    assert len(stand.asked) == 4, "measured again"
    variants._known.clear()  # as another process
    assert choose(dev, weights, MEASURED) == Variants("windowed", "rows", "rows")
    assert len(stand.asked) == 4, "measured again, although the file says it"


@on_lavapipe
@pytest.mark.parametrize("content", ["", "[]", "{", '{"KEY": 3}', '{"KEY": {"decode": "old"}}'])
def test_a_file_without_a_valid_choice_is_replaced(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch,
    content: str,
) -> None:  # fmt: skip
    file.parent.mkdir()
    file.write_text(content.replace("KEY", variants._key(dev, "Q8_0 of 40 × 64")))
    monkeypatch.setattr(variants, "_time", Stand(DECODE_BY_WINDOWS))
    assert choose(dev, weights, MEASURED) == Variants("windowed", "rows", "rows")
    written = json.loads(file.read_text())
    assert written[variants._key(dev, "Q8_0 of 40 × 64")] == {"decode": "windowed", "batch": "rows"}


def test_another_processor_is_measured_again(
    dev: ps.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = variants._key(dev, "Q8_0 of 40 × 64")
    monkeypatch.setattr(variants, "cpu_name", lambda: "another")
    assert variants._key(dev, "Q8_0 of 40 × 64") != here


def test_variants_are_of_their_class(dev: ps.Device, tmp_path: Path) -> None:
    file = miniature(tmp_path, layers=1)
    with pytest.raises(ps.ArgumentError, match=r"not llm.Variants, such as llm.Variants\("):
        llm.load(file, dev, variants={"decode": "rows"})  # type: ignore[arg-type]


@on_lavapipe
def test_without_time_the_expected_way_is_taken(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(DECODE_BY_WINDOWS)
    monkeypatch.setattr(variants, "_time", stand)
    monkeypatch.setattr(variants, "BUDGET", 0.0)
    assert choose(dev, weights, MEASURED) == Variants.expected(dev)
    assert Variants.expected(dev) == Variants("rows", "rows", "rows")
    assert stand.asked == [("rows", 1), ("rows", 16)]
    assert not file.exists(), "remembered without a comparison"


@on_lavapipe
def test_what_does_not_fit_into_the_time_is_left_to_the_next_model(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling the kernels of the way that is taken is no delay, that of others is."""
    stand = Stand({key: t / 1000 for key, t in DECODE_BY_WINDOWS.items()}, compiling=0.12)
    monkeypatch.setattr(variants, "_time", stand)
    monkeypatch.setattr(variants, "BUDGET", 0.2)
    first = choose(dev, weights, MEASURED)
    assert first == Variants("windowed", "rows", "rows")
    assert stand.asked == [("rows", 1), ("windowed", 1), ("rows", 16)]
    assert first.seconds == pytest.approx(0.12 + 0.002 + 0.006 + 0.003 + 0.003)
    second = choose(dev, weights, MEASURED)
    assert second == Variants("windowed", "rows", "rows")
    assert stand.asked[3:] == [("rows", 16), ("windowed", 16)]
    assert choose(dev, weights, MEASURED).seconds == 0.0, "everything is remembered"


@on_lavapipe
def test_each_kind_and_size_is_measured_of_its_own(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind that most weights have counts."""
    stand = Stand(DECODE_BY_WINDOWS)
    monkeypatch.setattr(variants, "_time", stand)
    choose(dev, weights, MEASURED)
    raw = encoded("Q4_0", 80, 64, np.random.default_rng(0))
    choose(dev, {**weights, "another": upload(dev, "Q4_0", raw)}, MEASURED)
    assert len(stand.asked) == 8
    assert list(json.loads(file.read_text())) == [
        variants._key(dev, what) for what in ("Q8_0 of 40 × 64", "Q4_0 of 80 × 64")
    ]


def test_what_is_fixed_is_not_measured(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_time", Stand({}))
    fixed = Variants("shared", "alone", "tiles")
    assert choose(dev, weights, fixed) == fixed
    with pytest.raises(ps.InvalidValue, match="'fast' is no way to compute products; choose one"):
        Variants(batch="fast")
    with pytest.raises(ps.InvalidValue, match="'fast' is no way to compute attention; choose one"):
        Variants(attention="fast")


@on_lavapipe
def test_it_is_measured_for_real(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path
) -> None:
    found = choose(dev, weights, MEASURED)
    assert found.seconds > 0
    receipt = Receipt(Cost(), Cost(), variants=found)
    assert f"seconds to choose them{found.seconds:14.3f}" in str(receipt)
    assert {found.decode, found.batch} <= set(products.ways_for(dev))
    assert file.exists()


def pass_for_a_gpu(dev: ps.Device, monkeypatch: pytest.MonkeyPatch, *without: str) -> None:
    """Have a device say that it is a GPU, and lacks these features."""
    info = replace(dev.info, kind="discrete", features=dev.info.features - {*without})
    monkeypatch.setattr(dev, "info", info)


@on_lavapipe
def test_gpus_have_ways_of_their_own(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_for_a_gpu(dev, monkeypatch)
    assert Variants.expected(dev) == Variants("vector", "tiles", "tiles")
    stand = Stand(
        {(way, count): 1.0 for way in ("vector", "tiles", "subgroup") for count in (1, 16)}
    )
    stand.seconds["subgroup", 1] = stand.seconds["vector", 16] = 0.5
    monkeypatch.setattr(variants, "_time", stand)
    assert choose(dev, weights, MEASURED) == Variants("subgroup", "vector", "tiles")
    assert stand.asked == [
        ("vector", 1), ("subgroup", 1), ("tiles", 16), ("vector", 16), ("subgroup", 16),
    ]  # fmt: skip


@on_lavapipe
def test_gpus_without_subgroup_arithmetic(dev: ps.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_for_a_gpu(dev, monkeypatch, "subgroupArithmetic")
    assert products.ways_for(dev) == ["shared"]
    assert products.ways_for(dev, 16) == ["tiles", "shared"]


@on_lavapipe
def test_packed_dots_need_a_feature(dev: ps.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_for_a_gpu(dev, monkeypatch, "shaderIntegerDotProduct")
    with pytest.raises(ps.Unsupported, match=r"'packed': llvmpipe .* no shaderIntegerDotProduct"):
        products.Products(dev, batch_way="packed")


HEADS = attention_choice.Heads(4, 2, 64, "f16")


@on_lavapipe
@pytest.mark.parametrize(("tiles", "budget", "fastest"), [(2.0, 1e9, "shared"), (2.0, 0, "tiles"),
                                                          (0.5, 1e9, "tiles")])  # fmt: skip
def test_attention_is_measured_and_remembered(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch,
    tiles: float, budget: float, fastest: str,
) -> None:  # fmt: skip
    pass_for_a_gpu(dev, monkeypatch)
    asked: list[str] = []

    def measure(layers: Any, *arrays: Any) -> float:
        asked.append(layers._way)
        return {"tiles": tiles, "shared": 1.0}[layers._way]

    monkeypatch.setattr(attention_choice, "measure", measure)
    monkeypatch.setattr(attention_choice, "BUDGET", budget)
    fixed = Variants("vector", "tiles")
    for _ in range(2):
        assert choose(dev, weights, fixed, heads=HEADS) == Variants("vector", "tiles", fastest)
        variants._known.clear()  # as another process
    assert asked == ["tiles", "shared"][: 2 if budget else 1]
    assert choose(dev, weights, fixed, heads=HEADS._replace(head_size=32)).attention == fastest
    assert len(asked) == 2 * (2 if budget else 1), "other heads are measured on their own"


@on_lavapipe
def test_attention_is_measured_for_real(
    dev: ps.Device, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_choice, "BUDGET", 1e9)
    ways = ["tiles", "shared"]
    assert attention_choice.fastest(dev, HEADS, ways, Compiled(dev)) in ways


@on_lavapipe
def test_all_variants_generate_the_same_and_the_receipt_names_them(
    dev: ps.Device, tmp_path: Path
) -> None:
    path = gguf(tmp_path, "qwen3", "Q8_0")
    texts = []
    for fixed in (
        Variants("rows", "rows", "rows"),
        Variants("windowed", "alone", "lanes"),
        Variants("alone", "rows", "shared"),
    ):
        with llm.load(path, dev, variants=fixed, progress=False) as model:
            made = model.generate(list(range(1, 21)), max_tokens=12, stop_ids=())
            texts.append(made.ids)
            assert made.receipt.variants == fixed
            assert made.receipt.as_dict()["variants"] == {
                "decode": fixed.decode, "batch": fixed.batch, "attention": fixed.attention,
                "seconds": 0.0,
            }  # fmt: skip
            shown = [line.split() for line in str(made.receipt).splitlines()]
            assert ["products", "by", fixed.batch, fixed.decode] in shown
            assert ["attention", "by", fixed.attention] in shown
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 12
