"""Resource-aware access: a service looks at weights and cache rows while the device decodes.

After each token, with two more steps in flight, the host reads 64 words of a weight, or the row of
the KV cache that the token's step wrote. On: such a read waits for the work that writes its bytes,
and there is none. Off: the host waits for all work first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.bench.measure import expect
from penstock.bench.mechanisms.comparison import (
    Comparison,
    Figure,
    Mechanism,
    Plan,
    Row,
    Side,
    percentile,
)
from penstock.bench.mechanisms.decoding import Decoding, Run
from penstock.bench.mechanisms.public_figures import (
    EIGHT_BILLION,
    MEMORY,
    MEMORY_NAME,
    TRIP_NAME,
)

Host = npt.NDArray[np.uint32]
_WORDS = 64
_WEIGHT = "blk.0.ffn_up.weight"


class _Peeks:
    """Peeks during a decode, in one of two ways. `at` is what is read after a token."""

    def __init__(
        self, run: Run, device: ps.Device, at: Callable[[int], ps.Array], *, wait: bool
    ) -> None:
        self._run = run
        self._device = device
        self._at = at
        self._wait = wait
        self._seen: list[Host] = []
        self._seconds: list[float] = []

    def work(self) -> Sequence[float]:
        self._seen, self._seconds = [], []
        self._run.decode_and(self._peek)
        return self._seconds

    def _peek(self, number: int) -> None:
        start = time.perf_counter()
        if self._wait:
            self._device.synchronize()
        seen: Host = self._at(number).numpy()
        self._seconds.append(time.perf_counter() - start)
        self._seen.append(seen)

    def check(self) -> None:
        self._run.check()
        self._device.synchronize()
        for number, seen in enumerate(self._seen):
            expect(bool((seen == self._at(number).numpy()).all()), "a peek")

    def side(self) -> Side:
        return Side(self.work, self.check, self._run.prepare)


def compare(plan: Plan, ending: ExitStack) -> Iterator[Comparison]:
    decoding = Decoding(plan, ending, 320, 8 if plan.quick else 24)
    run = decoding.network()
    weight: ps.Array = decoding.model._weights[_WEIGHT].pieces[0].words
    cache = run.network._cache

    def of_weight(number: int) -> ps.Array:
        return weight[number * _WORDS : (number + 1) * _WORDS]

    def of_cache(number: int) -> ps.Array:
        return cache[0, number + 1]  # row 0 is that of the token before

    for what, at in (("a weight", of_weight), ("a row of the KV cache", of_cache)):
        on, off = (_Peeks(run, plan.device, at, wait=wait).side() for wait in (False, True))
        yield Comparison(f"peek at {what}", on, off, "peek", decoding.count, figures=_figures)


def _figures(on: Side, off: Side) -> list[Figure]:
    tails = (percentile(side.parts, 0.99) for side in (on, off))
    rates = (len(side.parts) / sum(side.whole) for side in (on, off))
    return [
        Figure("99th percentile of a peek", "s", *tails),
        Figure("tokens", "/s", *rates),
    ]


def _elsewhere(rows: Sequence[Row]) -> str:
    step = EIGHT_BILLION / MEMORY
    return (
        f"a token of a model of 8 billion weights in Q8_0 takes at least {step * 1e3:.1f} ms at "
        f"the speed of {MEMORY_NAME}, and up to three steps are in flight, so waiting for all "
        f"costs a peek up to {3 * step * 1e3:.0f} ms. A peek that waits for nothing costs "
        f"{TRIP_NAME}, plus the microseconds of Python measured here."
    )


MECHANISM = Mechanism(
    "access", "resource-aware access",
    "a peek waits for the work that writes its bytes: none",
    "a peek waits for all work in flight",
    compare,
    "If the step in flight is shorter than the host's own time for a peek, there is nothing to "
    "wait for.",
    _elsewhere,
)  # fmt: skip
