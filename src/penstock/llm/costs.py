"""The cost of a generation: of its prompt, and of the tokens after it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import penstock as ps
from penstock.llm.recurrent_memory import Held
from penstock.llm.variants import MEASURED, Variants


@dataclass(frozen=True)
class Cost:
    """The cost of one phase of a generation.

    Launches and barriers include those that graphs replay.
    """

    tokens: int = 0
    seconds: float = 0.0
    waits: int = 0
    copies: int = 0
    bytes_copied: int = 0
    allocations: int = 0
    submissions: int = 0
    launches: int = 0
    barriers: int = 0
    #: How busy the device was, and what most of the rest was, if `times=True` asked for it.
    busy: float | None = None  #: share of the time from its first command to its last
    verdict: str = ""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def per_token(self, name: str) -> float:
        """A field of this, divided by the number of tokens."""
        return getattr(self, name) / max(1, self.tokens)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Receipt:
    """The cost of a generation: `prompt` up to the first token, `generation` for those after it.

    `reused` tokens of the prompt were in the KV cache already; `prompt` counts the others. A stop
    token that ended the text is counted. Neither includes what is done once for a network:
    compiling kernels and recording graphs, which took `preparation` seconds.
    """

    prompt: Cost
    generation: Cost
    preparation: float = 0.0
    reused: int = 0
    variants: Variants = MEASURED  # how products and attention were computed
    recurrent: Held | None = None  # the states of DeltaNet layers, if the model has such layers

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """The receipt as JSON-compatible values."""
        found: dict[str, dict[str, Any]] = {}
        for name, cost in (("prompt", self.prompt), ("generation", self.generation)):
            found[name] = {**asdict(cost), "tokens_per_second": cost.rate}
            if not cost.verdict:
                del found[name]["busy"], found[name]["verdict"]
        found["prompt"]["reused"] = self.reused
        found["preparation"] = {"seconds": self.preparation}
        if self.recurrent is not None:
            found["recurrent"] = asdict(self.recurrent)
        return {**found, "variants": asdict(self.variants)}

    def __str__(self) -> str:
        lines = [f"{'':24}{'prompt':>12}{'generation':>14}{'per token':>12}"]
        both = (self.prompt, self.generation)
        lines.append(f"{'tokens':24}{both[0].tokens:>12,}{both[1].tokens:>14,}")
        rates = [f"{cost.rate:,.2f}" if cost.tokens else "-" for cost in both]
        lines.append(f"{'tokens per second':24}{rates[0]:>12}{rates[1]:>14}")
        for name in COUNTS:
            values = [getattr(cost, name) for cost in both]
            each = f"{both[1].per_token(name):.4g}" if both[1].tokens else "-"
            label = name.replace("_", " ")
            lines.append(f"{label:24}{values[0]:>12,}{values[1]:>14,}{each:>12}")
        if self.reused:
            lines.append(f"{'reused tokens':24}{self.reused:>12,}")
        lines.append(f"compiled and recorded before, in {self.preparation:.2f} s")
        ways = [way or "-" for way in (self.variants.batch, self.variants.decode)]
        lines.append(f"{'products by':24}{ways[0]:>12}{ways[1]:>14}")
        if self.variants.attention is not None:
            lines.append(f"{'attention by':24}{self.variants.attention:>12}")
        if self.recurrent is not None:
            held = self.recurrent
            lines.append(
                f"{'recurrent states':24}{held.slots:>12} in a ring, {held.copies} copied: "
                f"{held.nbytes:,} bytes"
            )
        if self.variants.seconds:
            lines.append(f"{'seconds to choose them':24}{self.variants.seconds:>12.3f}")
        for name, cost in (("prompt", both[0]), ("generation", both[1])):
            if cost.verdict:
                lines.append(f"{name}: {cost.verdict}")
        if not any(cost.verdict for cost in both):
            lines.append("idle time was not recorded; --busy (times=True) records it")
        return "\n".join(lines)


#: The counters of a receipt, in the order in which it prints them.
COUNTS = (
    "waits", "copies", "bytes_copied", "allocations", "submissions", "launches", "barriers"
)  # fmt: skip


def counted(receipt: ps.Trace | ps.Counts) -> dict[str, int]:
    """Return the current `COUNTS` of a trace, replayed commands and barriers included."""
    names = (*COUNTS, "replayed_commands", "replayed_barriers")
    if isinstance(receipt, ps.Counts):
        every = receipt.as_dict()
    else:
        every = {name: getattr(receipt, name) for name in names}
    found = {name: every[name] for name in COUNTS}
    found["launches"] += every["replayed_commands"]
    found["barriers"] += every["replayed_barriers"]
    return found


class Meter:
    """Splits counts between the prompt and the tokens after it.

    Leaves out what is done `apart`: compiling and recording happen once for a network, and would
    swamp the receipt of its first generation.
    """

    def __init__(self, counts: ps.Trace | ps.Counts) -> None:
        self._counts = counts
        self._tokens = 0
        self._left_out = 0.0, dict.fromkeys(COUNTS, 0)
        #: When prompt and generation began, by the clock of the trace: after what came first apart.
        self._began = [time.perf_counter()] * 2
        self._read = self._ended = self._began[0]  # the first token, and the last so far
        self._start = self._last = self._now()
        self._first: tuple[float, dict[str, int]] | None = None

    def _now(self) -> tuple[float, dict[str, int]]:
        seconds, counts = self._left_out
        now = counted(self._counts)
        return time.perf_counter() - seconds, {name: now[name] - counts[name] for name in now}

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave out the time and the counts of the block."""
        began, before = self._now()
        try:
            yield
        finally:
            until, after = self._now()
            seconds, counts = self._left_out
            more = {name: counts[name] + after[name] - before[name] for name in counts}
            self._left_out = seconds + until - began, more
            if self._tokens < 2:
                self._began[self._tokens] = time.perf_counter()

    def token(self) -> None:
        """Count a token that the host has read."""
        self._tokens += 1
        self._last = self._now()
        if self._first is None:
            self._first = self._last
            self._read = self._began[1] = time.perf_counter()
        self._ended = time.perf_counter()

    def receipt(self, prompt: int) -> Receipt:
        seconds, _ = self._left_out
        if self._first is None:
            return Receipt(Cost(), Cost(), preparation=seconds)
        (start, none), (at, counts), (until, everything) = self._start, self._first, self._last
        first: dict[str, Any] = {name: counts[name] - none[name] for name in counts}
        rest: dict[str, Any] = {name: everything[name] - counts[name] for name in counts}
        return Receipt(
            replace(Cost(prompt, at - start, **first), **self._use(self._began[0], self._read)),
            replace(
                Cost(self._tokens - 1, until - at, **rest),
                **self._use(self._began[1], self._ended),
            ),
            preparation=seconds,
        )

    def _use(self, start: float, end: float) -> dict[str, Any]:
        """How busy the device was in a time, if the trace has device times."""
        trace = self._counts
        if isinstance(trace, ps.Counts):
            return {}
        trace.wait_for_times()
        use = trace.use_between(start, end)
        share = use.busy / use.span if use.span and use.busy is not None else None
        return {"busy": share, "verdict": use.verdict}
