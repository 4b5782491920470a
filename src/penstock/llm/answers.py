"""Takes a chat model's answer apart, as it arrives: reasoning, text, and calls of tools.

A thinking model writes its reasoning first, between two tags, usually `<think>` and `</think>`;
some templates end the prompt with the first, so that the answer begins in the middle of it. Calls
of tools come after it; Qwen3-Coder sometimes leaves out the `<tool_call>` before `<function=…>`.
What may be the beginning of a tag is held back until more has arrived. A call that is malformed, or
not complete, is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from penstock.llm.tools import ToolCall, is_cut_short, parse_call

_CALL, _CALLED = "<tool_call>", "</tool_call>"
_FUNCTION, _END_OF_FUNCTION = "<function=", "</function>"
_THINKING = ("<think>", "</think>")


class Part(NamedTuple):
    """A piece of an answer: of its reasoning, of its text, or a whole call of a tool."""

    kind: Literal["reasoning", "text", "tool_call"]
    text: str
    call: ToolCall | None = None


class AnswerReader:
    """Turns the text of an answer into parts. Reads calls if there are `tools`."""

    def __init__(
        self,
        *,
        prompt: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        thinking_tags: tuple[str, str] = _THINKING,
    ) -> None:
        """If the end of the `prompt` begins the reasoning, the answer begins within it."""
        self._think, self._thought = thinking_tags
        thinking = prompt.rstrip().endswith(self._think)
        self._tools = tools
        self._held = ""
        self._read = self._reasoning if thinking else self._start
        self._begun = False  # whether the reasoning, or the text, has begun
        self._called = False
        self._gap = ""  # spaces before a call
        self._bare = False  # whether the call lacks its first tag
        self._done = False

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags that are tokens of some models; shown even where those are control tokens."""
        return self._think, self._thought, _CALL, _CALLED

    def push(self, piece: str) -> Iterator[Part]:
        """The parts that this piece of text completes."""
        self._held += piece
        while True:
            before = self._read
            part = self._read()
            if part is not None and part.text:
                yield part
            if self._read == before:  # waits for more
                return

    def finish(self) -> Iterator[Part]:
        """The parts that were held back for what might have followed."""
        self._done = True
        yield from self.push("")

    # Each reads what it can of the text held, and says which reads on.

    def _start(self) -> Part | None:
        """Before anything but spaces: reasoning or text?"""
        begun = self._held.lstrip()
        if begun.startswith(self._think):
            self._held = begun.removeprefix(self._think)
            self._read = self._reasoning
        elif self._done or not self._think.startswith(begun):
            self._read = self._text
            self._begun = True
        return None

    def _reasoning(self) -> Part | None:
        if not self._begun:
            self._held = self._held.lstrip("\n")
            self._begun = bool(self._held)
        thought, found, after = self._held.partition(self._thought)
        if found:
            self._held, self._begun, self._read = after, False, self._text
        else:
            thought, self._held = self._split(self._thought)
        return Part("reasoning", thought)

    def _text(self) -> Part | None:
        if not self._begun:  # after the reasoning, or a call
            self._held = self._held.lstrip() if self._called else self._held.lstrip("\n")
            if self._bare and not self._done and _CALLED.startswith(self._held[: len(_CALLED)]):
                if len(self._held) < len(_CALLED):
                    return None
                self._held = self._held.removeprefix(_CALLED).lstrip()
            self._begun = bool(self._held)
        if not self._tools:
            said, self._held = self._held, ""
            return Part("text", said)
        found = [(at, tag) for tag in (_CALL, _FUNCTION) if (at := self._held.find(tag)) >= 0]
        if found:
            at, tag = min(found)
            self._bare = tag == _FUNCTION
            said, self._held = self._held[:at], self._held[at + len(tag) :]
            self._read = self._call
            kept = said.rstrip()
            self._gap = said[len(kept) :]
            return Part("text", kept)
        said, self._held = min((self._split(tag) for tag in (_CALL, _FUNCTION)), key=_first_length)
        # Spaces before and after a call are not part of the text.
        kept = said.rstrip() if not self._done or self._called else said
        if not self._done:
            self._held = said[len(kept) :] + self._held
        return Part("text", kept)

    def _call(self) -> Part | None:
        first, last = (_FUNCTION, _END_OF_FUNCTION) if self._bare else (_CALL, _CALLED)
        end = self._held.find(last)
        while end >= 0 and is_cut_short(self._held[:end]) and not self._done:
            end = self._held.find(last, end + 1)
        if end < 0 and not self._done:
            return None
        body = self._held[:end] if end >= 0 else self._held
        whole = first + body + (last if end >= 0 else "")
        call = parse_call(whole if self._bare else body, self._tools) if end >= 0 else None
        if call is None and first in body:  # another call begins within
            whole = first + body[: body.index(first)]
        self._held = self._held[len(whole) - len(first) :]
        self._read = self._text
        if call is None:
            self._begun = True
            return Part("text", self._gap + whole)
        self._called, self._begun = True, False
        return Part("tool_call", whole, call)

    def _split(self, tag: str) -> tuple[str, str]:
        """The text held, split before what may be the beginning of the tag."""
        if self._done:
            return self._held, ""
        most = min(len(self._held), len(tag) - 1)
        kept = next((n for n in range(most, 0, -1) if self._held.endswith(tag[:n])), 0)
        return self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]


def _first_length(pair: tuple[str, str]) -> int:
    return len(pair[0])
