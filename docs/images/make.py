"""Make the picture in this folder: `python docs/images/make.py`, from the repository's root.

`decode.py` is traced, and Chromium takes a picture of the page, with a wait selected.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import penstock as ps
from penstock.cli.script import run_program

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "tests"))

from tests.tracing.browser import Browser  # noqa: E402


def main() -> None:
    with ps.trace() as receipt:
        run_program([str(HERE / "decode.py")])
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "trace.html")
        receipt.save_html(page, "decode.py")
        with Browser(Path(folder, "profile"), size=(1200, 700)) as browser:
            browser.prefer("light")
            browser.open(page)
            for _ in range(3):
                browser.key("w")
            waits = [event.start - receipt.started for event in receipt.of_kind("wait")]
            browser.ask(f"penstock.show({min(waits) * 1e9 - 1e7}, {receipt.seconds * 1e9})")
            browser.ask("new Promise(requestAnimationFrame)")
            browser.picture(HERE / "trace.png")


if __name__ == "__main__":
    main()
