"""Generated text, streamed as the device completes it, and its cost.

`Network.tokens` issues a few steps ahead of the token that the host reads. While the host reads,
detokenizes and hands on a token, the device computes the next ones. The device never waits for the
host, and the host waits only for tokens that are still in flight. When a token ends the text, the
steps issued ahead are wasted: at most `AHEAD`, and their tokens are never shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NoReturn

import penstock as ps
from penstock.llm.errors import ModelError
from penstock.llm.network import End, Network
from penstock.llm.tokens import Decoder
from penstock.llm.variants import MEASURED, Variants

Finish = Literal["stop", "length", "closed"]


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
        return getattr(self, name) / max(1, self.tokens)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Receipt:
    """The cost of a generation: `prompt` up to the first token, `generation` for those after it.

    A stop token that ended the text is counted.
    """

    prompt: Cost
    generation: Cost
    variants: Variants = MEASURED  # how products were computed

    def as_dict(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name, cost in (("prompt", self.prompt), ("generation", self.generation)):
            found[name] = {**asdict(cost), "tokens_per_second": cost.rate}
            if not cost.verdict:
                del found[name]["busy"], found[name]["verdict"]
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
        ways = [way or "-" for way in (self.variants.batch, self.variants.decode)]
        lines.append(f"{'products by':24}{ways[0]:>12}{ways[1]:>14}")
        for name, cost in (("prompt", both[0]), ("generation", both[1])):
            if cost.verdict:
                lines.append(f"{name}: {cost.verdict}")
        return "\n".join(lines)


class Generation:
    """Text that is being generated. Iterate for pieces as they arrive, or read `.text`.

    A piece is whole characters, never part of one. The properties generate the rest of the text
    first; on a closed generation they return what was generated until then. Any thread may read
    or close it at any time; threads that iterate concurrently get different pieces. Dropping a
    `Generation` before its end closes it.
    """

    def __init__(self, run: Run) -> None:
        self.prompt_ids = run.prompt
        self._turn = threading.RLock()  # held by the thread that advances `_pieces`
        self._inside = False
        self._run = run
        self._pieces = run.pieces()

    def __reduce__(self) -> NoReturn:
        raise ps.ArgumentError("a Generation cannot be copied or pickled; take its text or ids")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._turn:
            if self._inside:
                raise ps.InvalidValue("a generation cannot be read in the middle of its own step")
            self._inside = True
            try:
                if self._run.left.is_set():
                    raise StopIteration
                return next(self._pieces)
            finally:
                self._inside = False
                if self._run.left.is_set():  # closed in the middle of the step
                    self._end()

    @property
    def ids(self) -> list[int]:
        """The token ids of the text, without the stop token that ended it."""
        self._finish_it()
        return self._run.ids

    @property
    def text(self) -> str:
        if self._run.decoder is None:
            raise ModelError("the model's file has no tokenizer; there are only ids")
        self._finish_it()
        return "".join(self._run.parts)

    @property
    def finish_reason(self) -> Finish:
        """Why the text ended.

        "stop": at a stop token or stop string; "length": at `max_tokens` or the end of the context;
        "closed": closed, or failed, before its end.
        """
        self._finish_it()
        return self._run.finish or "closed"

    @property
    def receipt(self) -> Receipt:
        """The cost of the generation, up to `close` if it was closed early."""
        self._finish_it()
        return self._run.receipt

    def close(self) -> None:
        """Stop generating. Safe to call twice, and from any thread.

        If another thread is iterating, waits for its current step; that thread's iteration then
        ends as if the text had ended.
        """
        self._run.left.set()
        with self._turn:
            # A signal handler of the iterating thread can get here in the middle of a step; then
            # `__next__` closes the generator when the step ends.
            if not self._inside:
                self._end()

    def _end(self) -> None:
        self._pieces.close()
        self._run.give_back()  # a generator that never started does not run its `finally`

    def __del__(self) -> None:
        if hasattr(self, "_pieces"):
            self._end()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._run.finish or ("closed" if self._run.left.is_set() else "in progress")
        return f"<Generation of {len(self._run.ids)} tokens: {state}>"

    def _finish_it(self) -> None:
        for _ in self:
            pass


class Run:
    """The generator behind a `Generation`, and its results.

    A separate object, so that the generator holds no reference to the `Generation`, which must be
    collected, and so closed, when the caller drops it.
    """

    def __init__(
        self,
        network: Network,
        prompt: list[int],
        *,
        most: int,
        end: End,
        stop_ids: Collection[int],
        stop: Sequence[str],
        decoder: Decoder | None,
        done: Callable[[], None],
        times: bool = False,
    ) -> None:
        """`done` is called once, when the generation no longer uses the network."""
        self.prompt = prompt
        self.decoder = decoder
        self.ids: list[int] = []
        self.parts: list[str] = []
        self.finish: Finish | None = None
        self.receipt = Receipt(Cost(), Cost())
        self.left = threading.Event()  # set by any thread to stop after the current step
        self._network = network
        self._most = most
        self._end = end
        self._stop_ids = stop_ids
        self._held = _HeldBack(stop)
        self._done = [done]
        self._times = times

    def give_back(self) -> None:
        """Return the network to the model. Only the first call has an effect."""
        try:
            done = self._done.pop()
        except IndexError:
            return
        done()

    def pieces(self) -> Generator[str, None, None]:
        try:
            # Compile and record before tracing: it happens once per network, and would swamp the
            # receipt of the first generation.
            self._network.prepare(len(self.prompt), self._most, self._end)
            with ps.trace(times=self._times) as trace:
                meter = _Meter(trace)
                try:
                    for piece in self._tokens(meter):
                        if piece:
                            self.parts.append(piece)
                            yield piece
                finally:
                    self.receipt = replace(
                        meter.receipt(len(self.prompt)), variants=self._network.variants
                    )
        finally:
            self.give_back()

    def _tokens(self, meter: _Meter) -> Iterator[str]:
        held = self._held
        for token in self._network.tokens(self.prompt, self._most, self._end):
            meter.token()
            if token in self._stop_ids:
                self.finish = "stop"
                break
            if self.left.is_set():
                return
            self.ids.append(token)
            if self.decoder is not None:
                yield held.push(self.decoder.push(token))
                if held.stopped:
                    self.finish = "stop"
                    return
        self.finish = self.finish or "length"
        if self.decoder is not None:
            yield held.push(self.decoder.finish())
            if not held.stopped:
                yield held.rest()


class _HeldBack:
    """Passes text up to the first stop string; holds back a possible beginning of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [text for text in stop if text]
        self._text = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        self._text += piece
        found = [at for text in self._stop if (at := self._text.find(text)) >= 0]
        if found:
            self.stopped = True
            return self._text[: min(found)]
        kept = max((_overlap(self._text, text) for text in self._stop), default=0)
        cut = len(self._text) - kept
        shown, self._text = self._text[:cut], self._text[cut:]
        return shown

    def rest(self) -> str:
        return self._text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)


#: The counters of a receipt, in the order in which it prints them.
COUNTS = (
    "waits", "copies", "bytes_copied", "allocations", "submissions", "launches", "barriers"
)  # fmt: skip


def counted(trace: ps.Trace) -> dict[str, int]:
    """Return the current `COUNTS` of a trace, replayed commands and barriers included."""
    found = {name: getattr(trace, name) for name in COUNTS}
    found["launches"] += trace.replayed_commands
    found["barriers"] += trace.replayed_barriers
    return found


class _Meter:
    """Splits the counts of a trace between the prompt and the tokens after it."""

    def __init__(self, trace: ps.Trace) -> None:
        self._trace = trace
        self._start = time.perf_counter()
        self._tokens = 0
        self._first: tuple[float, dict[str, int]] | None = None
        self._last = (self._start, counted(trace))

    def token(self) -> None:
        """Count a token that the host has read."""
        self._tokens += 1
        self._last = (time.perf_counter(), counted(self._trace))
        if self._first is None:
            self._first = self._last

    def receipt(self, prompt: int) -> Receipt:
        if self._first is None:
            return Receipt(Cost(), Cost())
        at, first = self._first
        until, everything = self._last
        counts: dict[str, Any] = {**first}
        rest: dict[str, Any] = {name: everything[name] - counts[name] for name in counts}
        return Receipt(
            replace(Cost(prompt, at - self._start, **counts), **self._use(self._start, at)),
            replace(Cost(self._tokens - 1, until - at, **rest), **self._use(at, until)),
        )

    def _use(self, start: float, end: float) -> dict[str, Any]:
        """How busy the device was in a time, if the trace has device times."""
        if not self._trace.wants_times:
            return {}
        self._trace.wait_for_times()
        use = self._trace.use_between(start, end)
        share = use.busy / use.span if use.span and use.busy is not None else None
        return {"busy": share, "verdict": use.verdict}
