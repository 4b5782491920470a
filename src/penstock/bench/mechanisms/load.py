"""Zero-copy load: the device reads the weights in the mapped file, or a copy of them.

Each run is a process of its own, so that memory is that of one load. A second process that loads
the same file shows what is shared: its proportional share of memory (Pss), and what the first one's
falls by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.bench.measure import expect
from penstock.bench.mechanisms import model_files
from penstock.bench.mechanisms.comparison import (
    Comparison,
    Costs,
    Figure,
    Mechanism,
    Plan,
    Row,
    Side,
)
from penstock.bench.mechanisms.public_figures import BUS_NAME, over_bus
from penstock.bench.mechanisms.worker import Worker


class _Loading:
    """Loads of one file in one way. Every process must make the same first token."""

    def __init__(self, path: Path, index: int, tokens: set[int], *, copy: bool) -> None:
        self.asked = {"path": str(path), "copy": copy, "index": index}
        self.answers: list[dict[str, Any]] = []
        self.tokens = tokens  # the first tokens of all processes, of both ways
        self.added = 0  # bytes by which all processes' memory grew when a second one loaded it

    def once(self) -> Sequence[float]:
        with Worker() as process:
            answer = process.ask("load", **self.asked, trace=False)
        self.answers.append(answer)
        return [answer["seconds"]]

    def check(self) -> None:
        self.tokens.update(self.answers[-1]["ids"])
        expect(len(self.tokens) == 1, "loading a model")

    def costs(self) -> Costs:
        """Load it under a trace, then once more in a second process, while the first keeps it."""
        with Worker() as one, Worker() as other:
            first = one.ask("load", **self.asked, trace=True)
            second = other.ask("load", **self.asked, trace=False)
            self.added = one.ask("memory")["pss"] + second["pss"] - first["pss"]
        return Costs(first["counts"], first["span"], first["busy"])

    def side(self) -> Side:
        return Side(self.once, self.check, costs=self.costs)


def compare(plan: Plan, ending: ExitStack) -> Iterator[Comparison]:
    sizes = plan.sizes[:1] if plan.quick else plan.sizes
    for gigabytes in sizes:
        path = model_files.of_size(plan, gigabytes)
        index = plan.device.info.index
        tokens: set[int] = set()
        ways = [_Loading(path, index, tokens, copy=copy) for copy in (False, True)]

        def figures(_: Side, __: Side, ways: list[_Loading] = ways) -> list[Figure]:
            last = [way.answers[-1] for way in ways]
            rss, own = ([float(one[name]) for one in last] for name in ("rss", "own"))
            added = [float(way.added) for way in ways]
            return [
                Figure("resident memory", "bytes", *rss),
                Figure("private memory", "bytes", *own),
                Figure("a second process adds", "bytes", *added),
            ]

        size = path.stat().st_size
        on, off = (way.side() for way in ways)
        test = f"file of {size / 1e9:.1f} GB" if size > 5e7 else f"file of {size / 1e6:.1f} MB"
        yield Comparison(test, on, off, "first token", size=size, figures=figures, slow=True)


def _elsewhere(rows: Sequence[Row]) -> str:
    size = max(row["size"] for row in rows)
    return (
        f"a device with memory of its own needs the weights there: {size / 1e9:.1f} GB cross "
        f"{BUS_NAME} in {over_bus(size) * 1e3:.0f} ms at best, in place or not. There, mapping "
        "saves the copy into a staging buffer, and the memory of that buffer, but not the bus."
    )


MECHANISM = Mechanism(
    "load", "zero-copy load",
    "the device reads the weights in the mapped file",
    "the weights are copied from the mapped file into device memory",
    compare,
    "In a small file compiling kernels takes most of the time to the first token, on both sides.",
    _elsewhere,
)  # fmt: skip
