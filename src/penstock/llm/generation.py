"""Text as it comes, and what it cost.

`Network.tokens` stays a few steps ahead of what is read. While the host reads a token, decodes it
and hands it on, the device is at work on the next ones; it never waits for the host, and the host
waits only for tokens that are not there yet. When a token ends the text, the steps issued ahead of
it are for nothing: at most `AHEAD`, and nobody sees them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NoReturn

import penstock as ps
from penstock.llm.errors import ModelError
from penstock.llm.network import End, Network
from penstock.llm.tokens import Decoder

Finish = Literal["stop", "length", "closed"]


@dataclass(frozen=True)
class Cost:
    """What some of the work of a generation cost.

    Launches and barriers count wherever they are, in recorded steps too.
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

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def per_token(self, name: str) -> float:
        return getattr(self, name) / max(1, self.tokens)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Receipt:
    """What a generation cost: reading the prompt, up to the first token, and the tokens after.

    A token that ended the text counts among those.
    """

    prompt: Cost
    generation: Cost

    def as_dict(self) -> dict[str, dict[str, float]]:
        return {
            name: {**asdict(cost), "tokens_per_second": cost.rate}
            for name, cost in (("prompt", self.prompt), ("generation", self.generation))
        }

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
        return "\n".join(lines)


class Generation:
    """A text on its way. Iterate over it for the pieces as they come; or ask for `.text`.

    Pieces are text, never half a character. Whatever is asked for that is not there yet is
    generated first; closing it before the end leaves it as it is. Any thread may read or close it
    at any time; threads that read at once get different pieces. A `Generation` that is dropped
    before its end is closed.
    """

    def __init__(
        self,
        network: Network,
        prompt: Sequence[int],
        *,
        most: int,
        end: End,
        stop_ids: Collection[int],
        stop: Sequence[str],
        decoder: Decoder | None,
        done: Callable[[], None],
    ) -> None:
        """`done` is called once, when the network is not used any more."""
        self.prompt_ids = list(prompt)
        self._turn = threading.RLock()  # held by the thread that is in `_pieces`
        self._inside = False
        self._run = _Run(network, self.prompt_ids, most, end, stop_ids, stop, decoder, done)
        self._pieces = self._run.pieces()

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
        """The tokens of the text, without the one that ended it."""
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
        """ "stop": a stop token or string came; "length": there was no room for more; "closed":
        it was closed, or failed, before its end.
        """
        self._finish_it()
        return self._run.finish or "closed"

    @property
    def receipt(self) -> Receipt:
        """What the generation cost; of one that was closed, up to there."""
        self._finish_it()
        return self._run.receipt

    def close(self) -> None:
        """Generate no more. Safe to call twice, and from any thread.

        Where another thread is reading, this waits for the step that it is in; that thread's
        iteration ends as if the text had.
        """
        self._run.left.set()
        with self._turn:
            # A signal handler of the reading thread gets here in the middle of a step, and leaves
            # the rest to the end of the step.
            if not self._inside:
                self._end()

    def _end(self) -> None:
        self._pieces.close()
        self._run.give_back()  # a generator that was never begun has not done it

    def __del__(self) -> None:
        if hasattr(self, "_pieces"):
            self._end()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._run.finish or ("closed" if self._run.left.is_set() else "on its way")
        return f"<Generation of {len(self._run.ids)} tokens: {state}>"

    def _finish_it(self) -> None:
        for _ in self:
            pass


class _Run:
    """The work of a generation, and what has come of it.

    Apart from `Generation`, so that the generator does not keep that one alive: its end is when
    the caller drops it.
    """

    def __init__(
        self,
        network: Network,
        prompt: Sequence[int],
        most: int,
        end: End,
        stop_ids: Collection[int],
        stop: Sequence[str],
        decoder: Decoder | None,
        done: Callable[[], None],
    ) -> None:
        self.decoder = decoder
        self.ids: list[int] = []
        self.parts: list[str] = []
        self.finish: Finish | None = None
        self.receipt = Receipt(Cost(), Cost())
        self.left = threading.Event()  # set by any thread: no more steps
        self._network = network
        self._prompt = prompt
        self._most = most
        self._end = end
        self._stop_ids = stop_ids
        self._held = _HeldBack(stop)
        self._done = [done]

    def give_back(self) -> None:
        """Give the network back to the model, the first time that this is called."""
        try:
            done = self._done.pop()
        except IndexError:
            return
        done()

    def pieces(self) -> Generator[str, None, None]:
        try:
            # Compiling is for the first time only, and would make the receipt of that one useless.
            self._network.prepare(len(self._prompt), self._most, self._end)
            with ps.trace(times=False) as trace:
                meter = _Meter(trace)
                try:
                    for piece in self._tokens(meter):
                        if piece:
                            self.parts.append(piece)
                            yield piece
                finally:
                    self.receipt = meter.receipt(len(self._prompt))
        finally:
            self.give_back()

    def _tokens(self, meter: _Meter) -> Iterator[str]:
        held = self._held
        for token in self._network.tokens(self._prompt, self._most, self._end):
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
    """Text up to the first stop string; what may be the beginning of one is held back."""

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
    """How much of the end of `text` is a beginning of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)


#: What is counted of a generation, in the order in which it is shown.
COUNTS = (
    "waits", "copies", "bytes_copied", "allocations", "submissions", "launches", "barriers"
)  # fmt: skip


def counted(trace: ps.Trace) -> dict[str, int]:
    """What a trace has of `COUNTS` by now, what graphs did included."""
    found = {name: getattr(trace, name) for name in COUNTS}
    found["launches"] += trace.replayed_commands
    found["barriers"] += trace.replayed_barriers
    return found


class _Meter:
    """Divides what a trace counts between the prompt and the generation."""

    def __init__(self, trace: ps.Trace) -> None:
        self._trace = trace
        self._start = time.perf_counter()
        self._tokens = 0
        self._first: tuple[float, dict[str, int]] | None = None
        self._last = (self._start, counted(trace))

    def token(self) -> None:
        """A token has arrived."""
        self._tokens += 1
        self._last = (time.perf_counter(), counted(self._trace))
        if self._first is None:
            self._first = self._last

    def receipt(self, prompt: int) -> Receipt:
        if self._first is None:
            return Receipt(Cost(), Cost())
        at, counts = self._first
        until, everything = self._last
        rest = {name: everything[name] - counts[name] for name in counts}
        return Receipt(
            Cost(tokens=prompt, seconds=at - self._start, **counts),
            Cost(tokens=self._tokens - 1, seconds=until - at, **rest),
        )
