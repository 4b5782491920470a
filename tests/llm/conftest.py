"""Models, and the decoder's kernels in each variant, on the device under test; compiled once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import llm
from penstock.llm import variants
from penstock.llm.layers import Layers

_loaded: dict[Any, llm.Model] = {}
_made: dict[tuple[int, str, int | None], Layers] = {}


@pytest.fixture
def fast(dev: ps.Device) -> None:
    """For tests that would take minutes on SwiftShader, and show nothing that others do not."""
    if "SwiftShader" in dev.name:
        pytest.skip("slow on SwiftShader")


@pytest.fixture
def load(dev: ps.Device) -> Any:
    """Loads a model on the device under test; kept, so that kernels are compiled once."""

    def loader(path: Path, **options: Any) -> llm.Model:
        key = (id(dev), path, *options.items())
        if key not in _loaded:
            _loaded[key] = llm.load(path, dev, **{"cache": "f32", **options})
        return _loaded[key]

    return loader


@pytest.fixture(params=["cpu", "gpu"])
def variant(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def layers(dev: ps.Device, variant: str) -> Layers:
    return layers_of(dev, variant)


def layers_of(dev: ps.Device, variant: str, splits: int | None = None) -> Layers:
    """Kept as long as the shared device lives, as its kernels do.

    "windows" is the variant "cpu" on a device without large texel buffers, and "shared" is "gpu"
    without tiles.
    """
    key = (id(dev), variant, splits)
    if key not in _made:
        kinds = {"windows": "cpu", "shared": "gpu"}
        made = _made[key] = Layers(
            dev, variant=kinds.get(variant, variant), splits=splits,  # type: ignore[arg-type]
            attention="shared" if variant == "shared" else None,
        )  # fmt: skip
        if variant == "windows":
            made.traits = replace(made.traits, texels=False)
    return _made[key]


@pytest.fixture(autouse=True)
def _few_measurements(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the ways of products once for a type of weights, and not for each size of model."""
    if request.path.name != "test_variants.py":
        monkeypatch.setattr(variants, "_named", lambda weight: weight.kind)
