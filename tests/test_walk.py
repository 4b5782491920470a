"""`python -m tools.walk`, which tells how much code an everyday call passes."""

from __future__ import annotations

import penstock as ps
from tools.walk import Walk, measure


def test_every_call_is_followed(dev: ps.Device) -> None:
    for name, walk in measure(dev).items():
        assert walk.files >= 3, name
        assert walk.lines >= len(walk.functions) >= walk.files, name


def test_only_lines_of_the_package_count() -> None:
    walk = Walk()
    walk.follow(lambda: sorted([3, 2, 1]))
    assert (walk.files, walk.lines) == (0, 0)
