"""Which device is the best."""

from __future__ import annotations

import pytest

from penstock.driver.choosing import choose
from penstock.driver.protocol import DeviceInfo

#: Kinds, and how many features each device has.
Found = list[tuple[str, int]]


def info(index: int, kind: str, features: int) -> DeviceInfo:
    return DeviceInfo(
        index, f"{kind} {index}", kind, "vulkan", "", "1.3", 1 << 30, uma=False, can_import=False,
        limits={}, features=frozenset(map(str, range(features))),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ([("cpu", 9), ("integrated", 1), ("discrete", 1)], 2),
        ([("cpu", 9), ("virtual", 1)], 1),
        ([("discrete", 1), ("discrete", 9)], 0),  # the system's order, such as the user's choice
        ([("cpu", 18), ("cpu", 33), ("cpu", 33)], 1),
    ],
)
def test_the_best_device(found: Found, best: int) -> None:
    infos = [info(index, *each) for index, each in enumerate(found)]
    assert choose(None, infos) == best
