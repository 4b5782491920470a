"""The validation layer that watches all other tests is really there, and really looks."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as ps
from penstock.driver.vulkan import api
from penstock.driver.vulkan.recording import VulkanRecording
from tests.conftest import HAS_VALIDATION

pytestmark = pytest.mark.skipif(not HAS_VALIDATION, reason="no validation layer installed")


@pytest.mark.parametrize("barriers", [True, False])
def test_a_missing_barrier_is_reported(
    barriers: bool, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not barriers:
        monkeypatch.setattr(VulkanRecording, "barrier", lambda self: None)
    messages = api.instance(validate=True).messages
    messages.clear()
    with ps.Device(driver, validate=True, transfers="unmapped") as dev:
        x = dev.empty(1 << 20, np.uint32)
        for value in range(4):
            x.fill(value)
            x[:1000].fill(value)
        assert (x.numpy() == 3).all()
    assert any("SYNC-HAZARD-WRITE-AFTER-WRITE" in m for m in messages) == (not barriers)
    messages.clear()
