"""How the ways to compute products are chosen, remembered, fixed and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import llm
from penstock.llm import products, variants
from penstock.llm.variants import MEASURED, Variants, choose
from tests.llm.model_builders import gguf
from tests.llm.weight_builders import encoded, upload

on_lavapipe = pytest.mark.parametrize("driver", ["llvmpipe"], indirect=True)


class Stand:
    """Measures nothing: returns the seconds that a test gives each way and number of tokens."""

    def __init__(self, seconds: dict[tuple[str, int], float]) -> None:
        self.seconds = seconds
        self.asked: list[tuple[str, int]] = []

    def __call__(
        self, device: ps.Device, made: products.Products, weight: Any, x: Any, y: Any, count: int
    ) -> float:
        self.asked.append((made.way, count))
        return self.seconds[made.way, count]


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
    assert choose(dev, weights, MEASURED) == Variants("windowed", "rows")
    assert sorted(stand.asked) == sorted(DECODE_BY_WINDOWS)
    assert choose(dev, weights, Variants(decode="alone")) == Variants("alone", "rows")
    assert len(stand.asked) == 4, "measured again"
    variants._known.clear()  # as another process
    assert choose(dev, weights, MEASURED) == Variants("windowed", "rows")
    assert len(stand.asked) == 4, "measured again, although the file says it"


@on_lavapipe
@pytest.mark.parametrize("content", ["", "[]", "{", '{"KEY": 3}', '{"KEY": {"decode": "old"}}'])
def test_a_file_without_a_valid_choice_is_replaced(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch,
    content: str,
) -> None:  # fmt: skip
    file.parent.mkdir()
    file.write_text(content.replace("KEY", variants._key(dev)))
    monkeypatch.setattr(variants, "_time", Stand(DECODE_BY_WINDOWS))
    assert choose(dev, weights, MEASURED) == Variants("windowed", "rows")
    written = json.loads(file.read_text())
    assert written[variants._key(dev)] == {"decode": "windowed", "batch": "rows"}


@on_lavapipe
def test_without_time_the_expected_way_is_taken(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(DECODE_BY_WINDOWS)
    monkeypatch.setattr(variants, "_time", stand)
    monkeypatch.setattr(variants, "BUDGET", 0.0)
    assert choose(dev, weights, MEASURED) == Variants.expected(dev) == Variants("rows", "rows")
    assert stand.asked == [("rows", 1), ("rows", 16)]


def test_what_is_fixed_is_not_measured(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_time", Stand({}))
    assert choose(dev, weights, Variants("shared", "alone")) == Variants("shared", "alone")
    with pytest.raises(ps.InvalidValue, match="'fast' is no way to compute products; choose one"):
        Variants(batch="fast")


@on_lavapipe
def test_it_is_measured_for_real(
    dev: ps.Device, weights: dict[str, llm.Weight], file: Path
) -> None:
    found = choose(dev, weights, MEASURED)
    assert {found.decode, found.batch} <= set(products.ways_for(dev))
    assert file.exists()


@on_lavapipe
def test_all_variants_generate_the_same_and_the_receipt_names_them(
    dev: ps.Device, tmp_path: Path
) -> None:
    path = gguf(tmp_path, "qwen3", "Q8_0")
    texts = []
    for fixed in (
        Variants("rows", "rows"),
        Variants("windowed", "alone"),
        Variants("alone", "rows"),
    ):
        with llm.load(path, dev, variants=fixed, progress=False) as model:
            made = model.generate(list(range(1, 21)), max_tokens=12, stop_ids=())
            texts.append(made.ids)
            assert made.receipt.variants == fixed
            assert made.receipt.as_dict()["variants"] == {
                "decode": fixed.decode, "batch": fixed.batch,
            }  # fmt: skip
            last = str(made.receipt).splitlines()[-1].split()
            assert last == ["products", "by", fixed.batch, fixed.decode]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 12
