"""Make the picture of a receipt: `python docs/images/receipt.py`, from the repository's root.

It is a receipt of a real run, of the README's ten lines, drawn as SVG; only paths are shortened.
"""

from __future__ import annotations

import re
import textwrap
from html import escape
from pathlib import Path

import numpy as np

import penstock as ps

HERE = Path(__file__).parent
WIDTH, LINE, LEFT, TOP = 720, 22, 36, 84
COLUMNS = 76  # of the reasons
PAPER, INK, FAINT, MARK = "#fdfcf7", "#22303c", "#7b8794", "#0b7285"


def main() -> None:
    (HERE / "receipt.svg").write_text(picture(*take()), "utf-8")


def take() -> tuple[str, ps.Trace]:
    """Run the program of the README, for the second time; the device's name, and what it cost."""
    with ps.Device() as dev:
        saxpy = dev.kernel(HERE.parent.parent / "src/penstock/cli/shaders/saxpy.comp")
        mine = dev.host_empty(1 << 20)
        mine[:] = 1
        x = dev.array(np.arange(1 << 20, dtype=np.float32), name="x")
        y = dev.adopt(mine, name="y")
        for _ in range(2):
            with ps.trace() as receipt:
                saxpy(x=x, y=y, a=2.0, n=x.size, threads=x.size)
                y.view()
        receipt.wait_for_times()
        return dev.name, receipt


def picture(device: str, receipt: ps.Trace) -> str:
    """The receipt as SVG."""
    counts = [
        ("launches", receipt.launches), ("submissions", receipt.submissions),
        ("barriers", receipt.barriers), ("copies", receipt.copies),
        ("allocations", receipt.allocations), ("waits", receipt.waits),
    ]  # fmt: skip
    reasons = [
        line
        for event in receipt.of_kind("wait")
        for line in textwrap.wrap(_short(str(event)), COLUMNS, subsequent_indent="    ")
    ]
    verdict = textwrap.wrap(re.sub(r" at line \d+", " at your line", receipt.verdict), COLUMNS)
    height = TOP + LINE * (len(counts) + len(reasons) + len(verdict) + 5)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="A receipt of Penstock">',
        f'<path d="{_torn(height)}" fill="{PAPER}" stroke="#d9d4c3"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">',
        f'<text x="{LEFT}" y="42" font-size="20" font-weight="700" fill="{INK}">penstock</text>',
        f'<text x="{WIDTH - LEFT}" y="42" text-anchor="end" fill="{FAINT}">'
        f"{1000 * receipt.seconds:.2f} ms</text>",
        f'<text x="{LEFT}" y="64" fill="{FAINT}">saxpy on 1,048,576 floats of NumPy’s own, '
        f"{escape(device.partition(' (')[0])}</text>",
    ]
    at = TOP
    parts.append(_rule(at))
    for name, count in counts:
        at += LINE
        weight = ' font-weight="700"' if count == 0 else ""
        parts.append(
            f'<text x="{LEFT}" y="{at}" fill="{INK}"{weight}>{name}</text>'
            f'<line x1="{LEFT + 9 * len(name) + 8}" x2="{WIDTH - LEFT - 18}" y1="{at - 2}" '
            f'y2="{at - 2}" stroke="#c9c3b0" stroke-dasharray="2 6"/>'
            f'<text x="{WIDTH - LEFT}" y="{at}" text-anchor="end" '
            f'fill="{MARK if count == 0 else INK}" font-weight="700">{count}</text>'
        )
    at += LINE // 2 + 4
    parts.append(_rule(at))
    for line in reasons:
        at += LINE
        parts.append(
            f'<text x="{LEFT}" y="{at}" fill="{FAINT}" xml:space="preserve">{escape(line)}</text>'
        )
    at += LINE // 2 + 4
    parts.append(_rule(at))
    for line in verdict:
        at += LINE
        parts.append(
            f'<text x="{LEFT}" y="{at}" fill="{INK}" xml:space="preserve">{escape(line)}</text>'
        )
    parts.append(
        f'<text x="{WIDTH / 2}" y="{at + LINE + 14}" text-anchor="middle" fill="{MARK}">'
        "no copy, no allocation, one wait: the one that was asked for</text>"
    )
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _short(text: str) -> str:
    text = re.sub(r"\s{2,}", "  ", text.strip())
    return re.sub(r"  at \S+", "  at your line", text)


def _rule(at: int) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{at}" y2="{at}" stroke="#c9c3b0" '
        'stroke-dasharray="5 4"/>'
    )


def _torn(height: int) -> str:
    """Paper, torn off at the lower edge."""
    teeth = " ".join(
        f"L{WIDTH - 8 - 16 * n} {height - (4 if n % 2 else 12)}" for n in range(WIDTH // 16)
    )
    return f"M8 8 H{WIDTH - 8} {teeth} L8 {height - 12} Z"


if __name__ == "__main__":
    main()
