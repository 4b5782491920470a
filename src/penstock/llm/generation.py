"""Generated text, streamed as the device completes it, and its cost.

`Network.tokens` issues a few steps ahead of the token that the host reads. While the host reads,
detokenizes and hands on a token, the device computes the next ones. The device never waits for the
host, and the host waits only for tokens that are still in flight. When a token ends the text, the
steps issued ahead are wasted: at most `AHEAD`, and their tokens are never shown.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import penstock as ps
from penstock.llm.answers import AnswerReader, Part
from penstock.llm.costs import Cost, Meter, Receipt
from penstock.llm.errors import ModelError
from penstock.llm.network import End, Network
from penstock.llm.tokens import Decoder
from penstock.llm.tools import ToolCall

Finish = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True)
class Logprob:
    """A token and its log-probability, by the logits as the model computed them."""

    id: int
    text: str  #: the token alone, with U+FFFD for parts of characters; empty without a tokenizer
    logprob: float


@dataclass(frozen=True)
class TokenLogprobs(Logprob):
    """A generated token, its log-probability, and the likeliest tokens in its place, best first."""

    top: tuple[Logprob, ...] = ()


class Generation:
    """Text that is being generated. Iterate for pieces as they arrive, or read `.text`.

    A piece is whole characters, never part of one. `async for` takes pieces without blocking the
    event loop. The properties generate the rest of the text first; on a closed generation they
    return what was generated until then. Any thread may read or close it at any time; threads that
    iterate concurrently get different pieces. Dropping a `Generation` before its end closes it.

    An answer of `Model.chat` is taken apart: `.text` and the pieces are what the model says, and
    `.reasoning` and `.tool_calls` are apart from it. `parts()` iterates over all of them.
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
        while (part := self._next_part()) is not None:
            if part.kind == "text":
                return part.text
        raise StopIteration

    def parts(self) -> Iterator[Part]:
        """The parts of the answer as they arrive: of its reasoning, its text, and calls."""
        while (part := self._next_part()) is not None:
            yield part

    def _next_part(self) -> Part | None:
        with self._turn:
            if self._inside:
                raise ps.InvalidValue("a generation cannot be read in the middle of its own step")
            self._inside = True
            try:
                return None if self._run.left else next(self._pieces, None)
            finally:
                self._inside = False
                if self._run.left:  # closed in the middle of the step
                    self._end()

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        """The next piece, which a thread waits for. If the awaiting task is cancelled, closes."""
        try:
            piece = await asyncio.to_thread(next, self, None)
        except asyncio.CancelledError:
            # The thread may be in the middle of a step; it closes the generation after that.
            self._run.left = True
            if self._turn.acquire(blocking=False):
                try:
                    if not self._inside:
                        self._end()
                finally:
                    self._turn.release()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def ids(self) -> list[int]:
        """The token ids of the text, without the stop token that ended it."""
        self._finish_it()
        return self._run.ids

    @property
    def text(self) -> str:
        """The text, of an answer without its reasoning and calls of tools."""
        return "".join(part.text for part in self._texts() if part.kind == "text")

    @property
    def reasoning(self) -> str:
        """What a thinking model wrote before its answer; empty if it wrote none."""
        thought = "".join(part.text for part in self._texts() if part.kind == "reasoning")
        return thought.strip("\n")

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of tools in an answer. Malformed ones are in its text."""
        return [part.call for part in self._texts() if part.call is not None]

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to append to the conversation before the next turn."""
        calls = [call.as_message() for call in self.tool_calls]
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        return {**found, "tool_calls": calls} if calls else found

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """Log-probabilities for each of `ids`, if `logprobs=` asked for them.

        They are of the logits as the model computed them: without bias, penalties, temperature.
        """
        self._finish_it()
        return self._run.logprobs

    def _texts(self) -> list[Part]:
        if self._run.decoder is None:
            raise ModelError("the model's file has no tokenizer; there are only ids")
        self._finish_it()
        return self._run.parts

    @property
    def finish_reason(self) -> Finish:
        """Why the text ended.

        "stop": at a stop token or stop string; "tool_calls": there, in an answer with calls of
        tools; "length": at `max_tokens` or the end of the context; "cancelled": closed, dropped by
        its reader, or failed, before its end.
        """
        self._finish_it()
        if self._run.finish == "stop" and any(part.call for part in self._run.parts):
            return "tool_calls"
        return self._run.finish or "cancelled"

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
        self._run.left = True
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
        over = self._run.left or inspect.getgeneratorstate(self._pieces) == "GEN_CLOSED"
        state = self._run.finish or ("cancelled" if over else "in progress")
        return f"<Generation of {len(self._run.ids)} tokens: {state}>"

    def _finish_it(self) -> None:
        for _ in self.parts():
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
        reader: AnswerReader | None = None,
        logprobs: int | None = None,
        reused: int = 0,
        times: bool = False,
    ) -> None:
        """`done` is called once, when the generation no longer uses the network.

        The first `reused` tokens of the prompt are in its KV cache already.
        """
        self.prompt = prompt
        self.decoder = decoder
        self.ids: list[int] = []
        self.parts: list[Part] = []
        self.logprobs: list[TokenLogprobs] | None = None if logprobs is None else []
        self.finish: Finish | None = None
        self.receipt = Receipt(Cost(), Cost())
        self.left = False  # set by any thread, to stop after the current step
        self._network = network
        self._most = most
        self._end = end
        self._stop_ids = stop_ids
        self._held = _HeldBack(stop)
        self._reader = reader
        self._most_logprobs = logprobs or 0
        self._reused = reused
        self._done = [done]
        self._times = times

    def give_back(self) -> None:
        """Return the network to the model. Only the first call has an effect."""
        try:
            done = self._done.pop()
        except IndexError:
            return
        done()

    def pieces(self) -> Generator[Part, None, None]:
        try:
            # Counts, unless device times are asked for: a trace would keep every event.
            with ps.trace() if self._times else ps.count() as counts:
                meter = Meter(counts)
                batch = self._network.variants.batch  # after the first token they may be others
                try:
                    with meter.apart():
                        self._network.prepare(len(self.prompt) - self._reused, 0, self._end)
                    for part in self._parts(meter):
                        self.parts.append(part)
                        yield part
                finally:
                    self.receipt = replace(
                        meter.receipt(len(self.prompt) - self._reused),
                        reused=self._reused,
                        variants=replace(self._network.variants, batch=batch),
                        recurrent=self._network.recurrent,
                    )
        finally:
            self.give_back()

    def _parts(self, meter: Meter) -> Iterator[Part]:
        """The text of the tokens in parts; all of it is text unless there is a reader."""
        for piece in self._tokens(meter):
            if self._reader is not None:
                yield from self._reader.push(piece)
            elif piece:
                yield Part("text", piece)
        if self._reader is not None and self.finish is not None:
            yield from self._reader.finish()

    def _tokens(self, meter: Meter) -> Iterator[str]:
        held = self._held
        unread = self.prompt[self._reused :]
        tokens = self._network.tokens(unread, self._most, self._end, meter.apart)
        for number, token in enumerate(tokens):
            meter.token()
            if token in self._stop_ids:
                self.finish = "stop"
                break
            if self.left:
                return
            self.ids.append(token)
            if self.logprobs is not None:
                self.logprobs.append(self._logprobs(number, token))
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

    def _logprobs(self, number: int, token: int) -> TokenLogprobs:
        """Of a token that was read. So its step is complete, and reading its row does not wait."""
        own, ids, logprobs = self._network.logprobs(number, self._most_logprobs)
        top = [
            Logprob(one, self._text_of(one), logprob)
            for one, logprob in zip(ids, logprobs, strict=True)
        ]
        return TokenLogprobs(token, self._text_of(token), own, tuple(top))

    def _text_of(self, token: int) -> str:
        return (
            ""
            if self.decoder is None
            else self.decoder.tokenizer.bytes_of(token).decode(errors="replace")
        )


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
