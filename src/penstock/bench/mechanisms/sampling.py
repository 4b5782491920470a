"""Sampling on the device: a token crosses to the host as four bytes, or as all of its logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from penstock.bench.mechanisms.comparison import Comparison, Mechanism, Plan, Row, Side
from penstock.bench.mechanisms.decoding import Decoding
from penstock.bench.mechanisms.public_figures import (
    BUS_NAME,
    EIGHT_BILLION,
    MEMORY,
    TRIP,
    TRIP_NAME,
    over_bus,
)
from penstock.llm.optimizations import ALL, Mechanisms


def compare(plan: Plan, ending: ExitStack) -> Iterator[Comparison]:
    for vocabulary in (320,) if plan.quick else (32_000, 151_936):
        count = 6 if plan.quick else 8
        decoding = Decoding(plan, ending, vocabulary, count)
        runs = [decoding.network(mechanisms) for mechanisms in (ALL, Mechanisms(sampling=False))]
        on, off = (Side(run.decode, run.check, run.prepare) for run in runs)
        yield Comparison(f"vocabulary of {vocabulary:,}", on, off, "token", count, 4 * vocabulary)


def _elsewhere(rows: Sequence[Row]) -> str:
    logits = max(row["size"] for row in rows)
    step = EIGHT_BILLION / MEMORY
    crossing = over_bus(logits) + 2 * TRIP
    return (
        f"{logits:,} bytes of logits cross {BUS_NAME} in {over_bus(logits) * 1e6:.0f} µs, and "
        f"logits and token each take {TRIP_NAME}. With {crossing * 1e6:.0f} µs more, a token of a "
        f"model of 8 billion weights in Q8_0 ({step * 1e3:.1f} ms at 1,008 GB/s) takes "
        f"{1 + crossing / step:.3f} times as long, plus what the host needs to find the likeliest, "
        "during which the device is idle."
    )


MECHANISM = Mechanism(
    "sampling", "sampling on the device",
    "the device samples, and four bytes reach the host",
    "the logits of each token are copied to the host, which sends the token back",
    compare,
    "The logits do not cross a bus here, and a copy of them and the search for the likeliest take "
    "well below a millisecond, while the device takes several for a token.",
    _elsewhere,
)  # fmt: skip
