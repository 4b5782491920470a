"""A pytest plugin: the fixture `receipt`, a trace that is active during the test.

Every pytest run on a machine with Penstock loads this module, so it loads nothing of the runtime
until a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.tracing.receipt import Trace


@pytest.fixture
def receipt() -> Iterator[Trace]:
    """What Penstock does from here to the end of the test; see `Trace.expect`."""
    from penstock.tracing.receipt import trace

    with trace() as collecting:
        yield collecting
