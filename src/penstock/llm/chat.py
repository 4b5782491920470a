"""Renders a conversation with the model's chat template, as the text it was trained on.

Templates come with model files, so they are untrusted programs; `sandbox` bounds what they do. What
the conversation says is untrusted, too: `ChatTemplate.encode` turns only those names of control
tokens into tokens that the template itself wrote, and leaves those in messages as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Number
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.llm.errors import ModelError
from penstock.llm.modelfile import ModelFile
from penstock.llm.safetensors_file import read_json
from penstock.llm.sandbox import Sandboxed
from penstock.llm.tokens import Tokenizer

_LONGEST_TEMPLATE = 1 << 20
_DEEPEST = 100  # lists and dicts within one another, in a message
#: Characters that no text has (noncharacters of Unicode), to mark names in messages with.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

#: The names of templates: of the usual one, and of one for conversations with tools.
_DEFAULT, _TOOL_USE = "default", "tool_use"
#: The roles whose misspellings are refused.
_ROLES = ("user", "assistant", "system", "developer")
#: The tags that models write around their reasoning. The first is that of most.
THINKING = (
    ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"),
)  # fmt: skip

Message = Mapping[str, Any]


class ChatTemplate:
    """Made by `ChatTemplate.of(model)`, or from the template itself.

    `bos_token` and `eos_token` are the values of these variables in the template.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        if len(source) > _LONGEST_TEMPLATE:
            raise ModelError(f"a chat template of {len(source):,} characters is too long")
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = Sandboxed(source)

    @classmethod
    def of(cls, model: ModelFile) -> ChatTemplate:
        """The template that is stored with the model; where there are several, the default."""
        stored, tokens = _stored(model)
        if _DEFAULT not in stored:
            others = f" but for {', '.join(sorted(stored))}" if stored else ""
            raise ModelError(
                f"{model.path} has no chat template{others}; give the prompt as text: "
                "model.generate(prompt), or on the command line leave out --chat"
            )
        return cls(stored[_DEFAULT], **tokens)

    @classmethod
    def for_tools(cls, model: ModelFile) -> ChatTemplate | None:
        """The template for conversations with tools; None if the usual one serves these, too."""
        stored, tokens = _stored(model)
        return cls(stored[_TOOL_USE], **tokens) if _TOOL_USE in stored else None

    @property
    def thinking_tags(self) -> tuple[str, str]:
        """The tags around a model's reasoning: those that the template has, or else <think>."""
        return next(
            (tags for tags in THINKING if all(tag in self.source for tag in tags)), THINKING[0]
        )

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The text of a conversation.

        A message is `{"role": "user", "content": "…"}`. `variables` are further variables of the
        template, such as `enable_thinking=False` or `tools=[…]`. `encode` gives its tokens, and
        keeps names of control tokens in messages text.
        """
        given = self._variables(listed(messages), add_generation_prompt, variables)
        return _whole(self._template.render(**given))

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The token ids of a conversation.

        Names of control tokens that the template writes become those tokens. Where messages and
        variables spell one, it stays text, so that a message cannot pose as another's.
        """
        said = listed(messages)
        names = _Names(tokenizer)
        mark = names.mark_for([said, variables])
        if mark:
            said, variables = names.marked(said, mark), names.marked(variables, mark)
        given = self._variables(said, add_generation_prompt, variables)
        text = _whole(self._template.render(**given))
        return names.encode(text, mark) if mark else tokenizer.encode(text)

    def _variables(
        self, messages: list[Message], add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> dict[str, Any]:
        # Templates test the value of `tools`, not whether the variable is defined.
        own = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        return {"tools": None, "documents": None} | self._tokens | dict(variables) | own


def listed(messages: Iterable[Message]) -> list[Message]:
    """The messages of a conversation, each of them a dict."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise ps.ArgumentError(
            f"a conversation is a list of messages, dicts with role and content, not "
            f"{type(messages).__name__}"
        )
    found = list(messages)
    for one in found:
        if not isinstance(one, Mapping):
            raise ps.ArgumentError(
                f"a message is a dict with role and content, not {type(one).__name__}"
            )
    return found


def complete(messages: Iterable[Message]) -> list[Message]:
    """`listed`, checked to have what nearly every template asks for."""
    found = listed(messages)
    for number, one in enumerate(found):
        if not isinstance(one.get("role"), str):
            raise ps.ArgumentError(f"message {number} has no role: 'user', 'assistant', 'system' …")
        if "content" not in one and not one.get("tool_calls"):
            raise ps.ArgumentError(f"message {number}, of role {one['role']!r}, has no content")
    if not found:
        raise ps.ArgumentError("the conversation has no messages; give it at least one")
    return found


def check_roles(messages: Iterable[Message], template: ChatTemplate) -> None:
    """Refuse misspelt roles: many templates write any role, and the model would not know it.

    Other roles than the usual ones are accepted, as a model may be trained on them.
    """
    for number, one in enumerate(messages):
        role = one["role"]
        meant = get_close_matches(role.lower(), _ROLES, n=1, cutoff=0.8)
        if meant and role != meant[0] and role not in template.source:
            raise ps.ArgumentError(
                f"message {number} has the role {role!r:.40}, which the chat template does not "
                f"name; did you mean {meant[0]!r}?"
            )


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ModelError(
            f"the text of the conversation has half of a character, a lone surrogate: {error}"
        ) from error
    return text


class _Names:
    """The names of a tokenizer's control tokens, and how those in messages are kept apart.

    A name that a message spells gets a mark after its first character before the template is
    rendered, and so does the beginning of a name at the end of a string, which a template could
    complete with the next. In the rendered text a name without a mark is the template's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        named = {tokenizer.name_of(token): token for token in sorted(tokenizer.control_ids)}
        self._ids = {name: token for name, token in named.items() if len(name) > 1}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._name = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        begun = sorted({name[:n] for name in self._ids for n in range(1, len(name))}, key=len)
        ends = "|".join(map(re.escape, reversed(begun))) or r"(?!)"
        self._spelled = re.compile(rf"(?:{self._name.pattern})|(?:{ends})(?=\s*\Z)")

    def mark_for(self, given: object) -> str:
        """A character to mark names with; empty if no string spells one."""
        texts = list(_strings(given))
        if not any(self._spelled.search(text) for text in texts):
            return ""
        for mark in _MARKS:
            if not any(mark in text or _escape(mark) in text.lower() for text in texts):
                return mark
        raise ModelError("the conversation has all of the noncharacters U+FDD0 to U+FDEF")

    def marked(self, value: Any, mark: str) -> Any:
        """A copy of the value with all names marked, in keys of dicts, too."""
        if isinstance(value, str):
            return self._spelled.sub(lambda found: found[0][0] + mark + found[0][1:], value)
        if isinstance(value, Mapping):
            return {self.marked(key, mark): self.marked(one, mark) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.marked(one, mark) for one in value]
        return value

    def encode(self, text: str, mark: str) -> list[int]:
        """The ids of a rendered text, without its marks."""
        tokenizer = self._tokenizer
        # Some control tokens swallow the spaces before or after them.
        added = tokenizer._engine.get_added_tokens_decoder()
        ids: list[int] = []
        at, strip = 0, False
        for found in [*self._name.finditer(text), None]:
            plain = text[at : found.start() if found else len(text)]
            plain = plain.replace(mark, "").replace(_escape(mark), "")
            token = None if found is None else self._ids[found[0]]
            plain = plain.lstrip() if strip else plain
            described = None if token is None else added.get(token)
            if described is not None and described.lstrip:
                plain = plain.rstrip()
            if plain:
                ids += tokenizer.encode(plain, special=False)
            if found is not None and token is not None:
                ids.append(token)
                at, strip = found.end(), described is not None and described.rstrip
        if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids.insert(0, tokenizer.bos)
        return ids


def _escape(mark: str) -> str:
    """The mark as JSON without other characters than ASCII's writes it."""
    return f"\\u{ord(mark):04x}"


def _strings(value: Any, depth: int = 0) -> Iterable[str]:
    """All strings in a value. Refuses objects in which a template could find others."""
    if depth > _DEEPEST:
        raise ModelError(f"a message holds lists and dicts more than {_DEEPEST} deep")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(one, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _strings(one, depth + 1)
    elif value is not None and not isinstance(value, Number):
        raise ps.ArgumentError(
            f"a conversation holds a value of type {type(value).__name__}; a template shows text, "
            "numbers, lists and dicts"
        )


def _stored(model: ModelFile) -> tuple[dict[str, str], dict[str, str]]:
    """The templates of a model by name, and the tokens that they may use."""
    if model.format == "gguf":
        return _stored_in_keys(model.metadata)
    settings_path = model.directory / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.exists() else {}
    tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name in ("bos_token", "eos_token")
        if (value := settings.get(name))
    }
    kept = {name: value for name, value in tokens.items() if isinstance(value, str)}
    # As in transformers, files of templates replace those of the settings.
    alone = {
        _DEFAULT: "chat_template.jinja",
        _TOOL_USE: f"additional_chat_templates/{_TOOL_USE}.jinja",
    }
    files = {name: model.directory / path for name, path in alone.items()}
    found = {name: _text(path) for name, path in files.items() if path.exists()}
    return found or _named(settings.get("chat_template")), kept


def _named(source: Any) -> dict[str, str]:
    """The templates of a tokenizer_config.json, which has one, or several by name."""
    listed = source if isinstance(source, list) else [{"name": _DEFAULT, "template": source}]
    return {
        str(one.get("name")): one["template"]
        for one in listed
        if isinstance(one, dict) and isinstance(one.get("template"), str)
    }


def _stored_in_keys(metadata: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    keys = {_DEFAULT: "tokenizer.chat_template", _TOOL_USE: f"tokenizer.chat_template.{_TOOL_USE}"}
    found = {
        name: source for name, key in keys.items() if isinstance(source := metadata.get(key), str)
    }
    names = metadata.get("tokenizer.ggml.tokens", [])
    tokens: dict[str, str] = {}
    for name in ("bos", "eos"):
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(number, int) and 0 <= number < len(names):
            tokens[f"{name}_token"] = str(names[number])
    return found, tokens


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4 * _LONGEST_TEMPLATE).decode()
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
