"""The native step and graph replay: how many launches per second reach the device.

A launch of a small kernel is timed until the call returns (within a batch, which is submitted
afterwards), and until the work is done. The native step is switched off in a process of its own
(`PENSTOCK_NATIVE=0`); both processes stay, and take turns. Graph replay is compared with issuing
the same launches one by one, natively; and with decoding that records each token's step again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from penstock.bench.jobs import CHAIN, A
from penstock.bench.measure import expect
from penstock.bench.mechanisms.comparison import (
    Comparison,
    Costs,
    Figure,
    Mechanism,
    Parts,
    Plan,
    Row,
    Side,
)
from penstock.bench.mechanisms.decoding import Decoding
from penstock.bench.mechanisms.public_figures import EIGHT_BILLION, MEMORY, MEMORY_NAME
from penstock.bench.mechanisms.worker import Worker
from penstock.bench.tracked import Tracked
from penstock.llm.optimizations import ALL, Mechanisms

_NATIVE = "native step, call returns"
_RECORDED = 100  # launches in a batch: few enough that Penstock submits none by itself


def compare(plan: Plan, ending: ExitStack) -> Iterator[Comparison]:
    ways = [ending.enter_context(Worker()), ending.enter_context(Worker({"PENSTOCK_NATIVE": "0"}))]
    done = 100 if plan.quick else 1000
    for test, count, wait in (
        (_NATIVE, _RECORDED, False),
        ("native step, work is done", done, True),
    ):
        asked = {"index": plan.device.info.index, "count": count, "wait": wait}
        on, off = (_of_process(process, asked) for process in ways)
        yield Comparison(test, on, off, "launch", count, figures=partial(_rates, count))
    yield from _replays(plan)
    decoding = Decoding(plan, ending, 320, 6 if plan.quick else 12)
    runs = [decoding.network(mechanisms) for mechanisms in (ALL, Mechanisms(replay=False))]
    on, off = (Side(run.decode, run.check, run.prepare) for run in runs)
    yield Comparison("graph replay, a decoded token", on, off, "token", decoding.count)


def _of_process(process: Worker, asked: dict[str, Any]) -> Side:
    def work() -> Parts:
        return [process.ask("launch", **asked, trace=False)["seconds"] / asked["count"]]

    def costs() -> Costs:
        found = process.ask("launch", **asked, trace=True)
        return Costs(found["counts"], found["span"], found["busy"])

    return Side(work, lambda: None, costs=costs)  # the process checks its values


def _replays(plan: Plan) -> Iterator[Comparison]:
    own = Tracked(plan.device)
    own.prepare_replay()
    assert own._graph is not None
    graph = own._graph

    def prepare() -> None:
        own.x.fill(1)
        own.y.fill(1)
        own.stream.synchronize()

    def check() -> None:
        own.stream.synchronize()
        expect(bool((own.y.numpy() == 1 + CHAIN * A).all()), "launches")

    sides = {
        "call returns": (graph.replay, partial(own.launches, CHAIN)),
        "work is done": (own.replay, own.chain),
    }
    for until, (replay, issue) in sides.items():
        on = Side(_call(replay), check, prepare)
        off = Side(_call(issue), check, prepare)
        test = f"graph replay of {CHAIN} launches, {until}"
        yield Comparison(test, on, off, "launch", CHAIN, figures=partial(_rates, CHAIN))


def _call(work: Any) -> Any:
    def called() -> None:
        work()

    return called


def _rates(count: int, on: Side, off: Side) -> list[Figure]:
    """Launches per second, of all runs."""
    return [Figure("launches", "/s", *(_rate(count, side) for side in (on, off)))]


def _rate(count: int, side: Side) -> float:
    if side.parts:
        return len(side.parts) / sum(side.parts)
    return count * len(side.whole) / sum(side.whole)


def _elsewhere(rows: Sequence[Row]) -> str:
    step = EIGHT_BILLION / MEMORY
    found = next((row for row in rows if row["test"] == _NATIVE), None)
    measured = ""
    if found is not None:
        own, python = (found[name] / 1e9 for name in ("median_ns", "off_median_ns"))
        measured = (
            f" At the times measured here the host needs {python * 1e6:.1f} ms for 1,000 launches "
            f"in Python, {own * 1e6:.2f} ms natively and one call for a replayed graph."
        )
    return (
        "a GPU executes small launches faster than these drivers, so that the host is sooner the "
        f"limit. A token of 8 billion weights in Q8_0 takes {step * 1e3:.1f} ms at the speed of "
        f"{MEMORY_NAME}, in which the host must issue the launches of the next one.{measured}"
    )


MECHANISM = Mechanism(
    "launches", "the native step and graph replay",
    "launches are made in C; a chain of launches is recorded once and replayed",
    "launches are made in Python; each launch of the chain is issued, or recorded, again",
    compare,
    "If the device takes longer for a launch than the host, the host's time is hidden until the "
    "work is done.",
    _elsewhere,
)  # fmt: skip
