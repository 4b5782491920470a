"""Renders a conversation with the model's chat template, as the text it was trained on.

Templates come with model files, so they are untrusted programs. They run in Jinja's sandbox, which
keeps them away from the system, and on a budget, which keeps them from exhausting time and memory:
loop iterations and calls are counted, and strings, lists and numbers have a maximum size. To
enforce this, a template is rewritten before it is compiled: loops, joins and literals go through
functions that count.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.llm.errors import ModelError
from penstock.llm.modelfile import ModelFile
from penstock.llm.safetensors_file import read_json

_MOST_STEPS = 300_000  # loop iterations, calls (times _CALL) and KiB touched by one rendering
_CALL = 10  # steps that a call counts for
_LONGEST_TEXT = 1 << 24
_MOST_ITEMS = 1 << 16  # in one value, at any depth
_LARGEST_NUMBER = 1 << 63
_LARGEST_ARGUMENT = 1 << 16  # for arguments that could be a width, count or indent
_LONGEST_TEMPLATE = 1 << 20
_WIDE = re.compile(r"\d{4}|\*")  # a width or precision that no chat needs

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
        # Jinja evaluates constant expressions when it compiles, so compiling needs a budget, too.
        with _on_budget("the chat template cannot be compiled"):
            self._template = _environment().from_string(source)

    @classmethod
    def of(cls, model: ModelFile) -> ChatTemplate:
        """The template that is stored with the model."""
        source, tokens = _stored(model)
        if source is None:
            raise ModelError(f"{model.path} has no chat template; give the prompt as text")
        return cls(source, **tokens)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The text of a conversation, ready for `Tokenizer.encode`.

        A message is `{"role": "user", "content": "…"}`. `variables` are further variables of the
        template, such as `enable_thinking=False` or `tools=[…]`.
        """
        # Templates test the value of `tools`, not whether the variable is defined.
        given = {"tools": None, "documents": None} | self._tokens | variables
        with _on_budget("the chat template cannot be rendered"):
            text = _joined(
                self._template.generate(
                    messages=list(messages), add_generation_prompt=add_generation_prompt, **given
                )
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ModelError(
                f"the text of the conversation has half of a character, a lone surrogate: {error}"
            ) from error
        return text


def _stored(model: ModelFile) -> tuple[str | None, dict[str, str]]:
    if model.format == "gguf":
        return _stored_in_keys(model.metadata)
    settings_path = model.directory / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.exists() else {}
    tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name in ("bos_token", "eos_token")
        if (value := settings.get(name))
    }
    alone = model.directory / "chat_template.jinja"
    source = _text(alone) if alone.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = [one for one in source if isinstance(one, dict) and one.get("name") == "default"]
        source = named[0].get("template") if named else None
    kept = {name: value for name, value in tokens.items() if isinstance(value, str)}
    return source if isinstance(source, str) else None, kept


def _stored_in_keys(metadata: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    source = metadata.get("tokenizer.chat_template")
    names = metadata.get("tokenizer.ggml.tokens", [])
    tokens: dict[str, str] = {}
    for name in ("bos", "eos"):
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(number, int) and 0 <= number < len(names):
            tokens[f"{name}_token"] = str(names[number])
    return source if isinstance(source, str) else None, tokens


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4 * _LONGEST_TEMPLATE).decode()
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


# The budget.


class _Budget:
    def __init__(self) -> None:
        self.steps = _MOST_STEPS

    def take(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise ModelError(f"the chat template takes more than {_MOST_STEPS:,} steps")


_BUDGET: contextvars.ContextVar[_Budget] = contextvars.ContextVar("budget")


@contextlib.contextmanager
def _on_budget(what: str) -> Iterator[None]:
    """Count what a template does in the block, and turn whatever it raises into `ModelError`."""
    before = _BUDGET.set(_Budget())
    try:
        yield
    except ModelError:
        raise
    # A template is a program and may raise anything; callers expect only `ModelError`.
    except Exception as error:
        line = getattr(error, "lineno", None)
        at = f" (line {line})" if isinstance(line, int) else ""
        raise ModelError(f"{what}{at}: {type(error).__name__}: {error}"[:1000]) from error
    finally:
        _BUDGET.reset(before)


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """Count the iterations of a loop."""
    budget = _BUDGET.get()
    for value in values:
        budget.take(1)
        yield value


def _bounded(value: Any) -> Any:
    """Return the value; raises if it is too large for a conversation."""
    if isinstance(value, str | bytes):
        _BUDGET.get().take(len(value) >> 10)
        if len(value) > _LONGEST_TEXT:
            raise ModelError(f"the chat template makes text of more than {_LONGEST_TEXT:,} bytes")
    elif isinstance(value, int):
        if abs(value) > _LARGEST_NUMBER:
            raise ModelError("the chat template calculates with absurd numbers")
    elif value is not None and not isinstance(value, float):
        _count_items(value)
    return value


def _count_items(value: Any) -> None:
    """Refuse too many items or too much text, at any depth; shared values count each time."""
    left, text = _MOST_ITEMS, _LONGEST_TEXT
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            text -= len(one)
        elif isinstance(one, list | tuple | set | frozenset):
            left -= len(one)
            waiting += one if left >= 0 else []
        elif isinstance(one, Mapping):
            left -= 2 * len(one)
            waiting += [*one.keys(), *one.values()] if left >= 0 else []
        elif type(one).__name__ == "Namespace":
            waiting.append(one._Namespace__attrs)
            left -= 1
        if left < 0 or text < 0:
            raise ModelError("the chat template builds a value that is too large")
    _BUDGET.get().take(((_MOST_ITEMS - left) >> 2) + ((_LONGEST_TEXT - text) >> 10))


def _joined(parts: Iterable[Any]) -> str:
    """Join strings; raises if the result is too long."""
    made: list[str] = []
    length = 0
    for part in parts:
        made.append(str(_bounded(part)))
        length += len(made[-1])
        if length > _LONGEST_TEXT:
            raise ModelError(f"the chat template makes text of more than {_LONGEST_TEXT:,} bytes")
    return "".join(made)


def _check_call(name: str, arguments: Sequence[Any]) -> None:
    """Refuse a call whose result could be far larger than its arguments.

    The first argument is the value that the method or filter works on.
    """
    _BUDGET.get().take(_CALL)
    for value in arguments:
        _bounded(value)
    if name == "safe_range":
        return  # bounded by the sandbox, and counted where it is looped over
    if any(isinstance(value, int) and abs(value) > _LARGEST_ARGUMENT for value in arguments[1:]):
        raise ModelError(f"the chat template calls {name} with an absurd number")
    if name == "replace" and len(arguments) >= 3 and isinstance(arguments[2], str):
        text, old = str(arguments[0]), str(arguments[1])
        if (text.count(old) * len(arguments[2])) > _LONGEST_TEXT:
            raise ModelError("the chat template makes too much text with replace")
    if name == "join" and len(arguments) >= 2:
        # Separator and items, in either order. An iterator has no length: the budget bounds it.
        one, other = (
            len(value) if hasattr(value, "__len__") else _MOST_STEPS for value in arguments[:2]
        )
        if one * other > _LONGEST_TEXT:
            raise ModelError("the chat template makes too much text with join")
    if name in ("format", "mod") and arguments and _WIDE.search(str(arguments[0])):
        raise ModelError("the chat template formats with an absurd width")


# The environment.

_REFUSED_METHODS = {"format_map", "expandtabs", "translate", "encode"}
_REFUSED_FILTERS = {"pprint", "xmlattr", "urlize", "random", "wordwrap", "filesizeformat"}


def _environment() -> Any:
    try:
        import jinja2
        import jinja2.ext
        from jinja2 import nodes
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.visitor import NodeTransformer
    except ImportError as error:
        raise ModelError(
            "chat templates need the package jinja2: pip install 'penstock-gpu[llm]'"
        ) from error

    class Budgeted(NodeTransformer):
        """Routes loops, joins and literals through the functions that count."""

        def generic_visit(self, node: Any, *arguments: Any, **named: Any) -> Any:
            node = super().generic_visit(node, *arguments, **named)
            if isinstance(node, nodes.For):
                node.iter = self._through("counted ", node.iter)
            elif isinstance(node, nodes.Concat):
                return self._through("joined ", nodes.List(node.nodes, lineno=node.lineno))
            elif isinstance(node, nodes.List | nodes.Dict) or (
                isinstance(node, nodes.Tuple) and node.ctx == "load"
            ):
                return self._through("bounded ", node)
            return node

        def _through(self, name: str, node: Any) -> Any:
            return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    class Generation(jinja2.ext.Extension):
        """{% generation %}, which marks answers for training; here it renders only its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(
                parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line
            )

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+", "-", "*", "**", "//", "/", "%"})
        concat = staticmethod(_joined)

        def _generate(self, source: Any, *arguments: Any, **named: Any) -> Any:
            return super()._generate(Budgeted().visit(source), *arguments, **named)

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if isinstance(obj, str | bytes) and attr in _REFUSED_METHODS:
                return False
            return bool(super().is_safe_attribute(obj, attr, value))

        def call(__self, __context: Any, __obj: Any, *arguments: Any, **named: Any) -> Any:  # noqa: N805
            method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps some methods
            on = getattr(method, "__self__", None)
            on = on if isinstance(on, str | bytes | list | tuple | dict) else None
            _check_call(getattr(method, "__name__", ""), [on, *arguments, *named.values()])
            return _bounded(super().call(__context, __obj, *arguments, **named))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operation(operator, left, right)
            return _bounded(super().call_binop(context, operator, left, right))

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, "jinja2.ext.loopcontrols"],
    )
    for name in _REFUSED_FILTERS:
        environment.filters.pop(name, None)
    environment.filters = {
        name: _watched(name, function) for name, function in environment.filters.items()
    }
    environment.filters["tojson"] = _watched("tojson", _to_json)
    # The names contain a space, so no template can refer to them.
    environment.filters |= {"counted ": _counted, "joined ": _joined, "bounded ": _bounded}
    for name in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(name, None)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _check_operation(operator: str, left: Any, right: Any) -> None:
    _BUDGET.get().take(1)
    if operator == "**" and not (isinstance(right, int | float) and abs(right) <= 64):
        raise ModelError("the chat template calculates with absurd numbers")
    if operator == "*":
        for one, times in ((left, right), (right, left)):
            if hasattr(one, "__len__") and isinstance(times, int):
                limit = _LONGEST_TEXT if isinstance(one, str) else _MOST_ITEMS
                if len(one) * times > limit:
                    raise ModelError("the chat template repeats something too often")
    if operator == "%" and isinstance(left, str):
        _check_call("mod", [left, right])


def _watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that its arguments and result are checked."""
    # Filters that take Jinja's state as the first argument have this attribute.
    own = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    def watched(*arguments: Any, **named: Any) -> Any:
        _check_call(name, [*arguments[own:], *named.values()])
        result = function(*arguments, **named)
        return _counted(result) if isinstance(result, Iterator) else _bounded(result)

    if own:
        watched.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return watched


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. Jinja's own filter escapes for HTML, which chat templates do not expect."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise ModelError(f"the chat template refuses the conversation: {message}"[:1000])
