"""What the tests of traces share: a browser, for those of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tracing.browser import CHROMIUM, Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
