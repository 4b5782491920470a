"""Make the picture in this folder: `python docs/images/make.py`, from the repository's root.

`decode.py` is traced, and Chromium takes a picture of the page, with a gap selected.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import penstock as ps
from penstock.cli.script import run_program

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.tracing.browser import Browser  # noqa: E402


def main() -> None:
    with ps.trace() as receipt:
        run_program([str(HERE / "decode.py")])
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "trace.html")
        receipt.save_html(page, "decode.py")
        with Browser(Path(folder, "profile"), size=(1200, 860)) as browser:
            browser.prefer("light")
            browser.open(page)
            browser.ask("document.querySelector('#causes button').click()")
            start, gap = receipt.started, receipt.gaps[browser.ask("penstock.state().selected.gap")]
            middle = (gap.start + gap.seconds / 2 - start) * 1e9
            browser.ask(f"penstock.show({middle - 1.2e8}, {middle + 1.2e8})")
            browser.ask("new Promise(requestAnimationFrame)")
            browser.picture(HERE / "trace.png")


if __name__ == "__main__":
    main()
