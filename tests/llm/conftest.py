"""The decoder's kernels on the device under test, in each variant, compiled once."""

from __future__ import annotations

from dataclasses import replace

import pytest

import penstock as ps
from penstock.llm.layers import Layers

_made: dict[tuple[int, str, int | None], Layers] = {}


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
