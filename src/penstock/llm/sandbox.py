"""Runs chat templates, which are untrusted programs, in a sandbox and on a budget.

Jinja's sandbox keeps a template away from the system. The budget keeps it from exhausting time and
memory: loop iterations, calls and the text that is made count as steps, and strings, containers and
numbers have a maximum size. Both grow with the conversation, so that thousands of messages fit.

To count, a template is rewritten between parsing and compiling: loops, output, joins and literals
go through filters that count. All of it uses Jinja's public interface: `Environment.parse` and
`compile`, the nodes of the syntax tree, `Template.from_code`, and the methods that a sandbox
overrides. `tests/llm/test_chat.py` tests each thing that the budget relies on.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.llm.errors import ModelError

_MOST_STEPS = 300_000  # loop iterations, calls (times _CALL) and KiB touched by one rendering
_STEPS_EACH = 100  # more steps for each item of the input: 500 for a message with two keys
_CALL = 10  # steps that a call counts for
_LONGEST_TEXT = 1 << 24
_MOST_ITEMS = 1 << 16  # in one value, at any depth
_MOST_INPUT = 1 << 23  # items in a conversation; a list that contains itself has more
_DEEPEST = 100  # containers within containers
_LARGEST_NUMBER = 1 << 63
_LARGEST_ARGUMENT = 1 << 16  # for arguments that could be a width, count or indent
_WIDE = re.compile(r"\d{4}|\*")  # a width or precision that no chat needs

_LEAVES = {int, float, bool, type(None)}
_REFUSED_METHODS = {"format_map", "expandtabs", "translate", "encode"}
_REFUSED_FILTERS = {"pprint", "xmlattr", "urlize", "random", "wordwrap", "filesizeformat"}


class Sandboxed:
    """A template, compiled for the sandbox."""

    def __init__(self, source: str) -> None:
        # Jinja evaluates some constant expressions when it compiles.
        with _on_budget("the chat template cannot be compiled", ()):
            environment = _environment()
            tree = _counting(environment.parse(source))
            tree.set_environment(environment)
            code = environment.compile(tree)
            self._template = environment.template_class.from_code(
                environment, code, environment.make_globals(None)
            )

    def render(self, **variables: Any) -> str:
        with _on_budget("the chat template cannot be rendered", variables):
            return _joined(self._template.generate(**variables))


# The budget.


class _Size(NamedTuple):
    """What a value holds, at any depth; shared values count each time."""

    items: int
    text: int
    fixed: bool  # False if it holds a namespace, which a template can change


class _Budget:
    """What one compilation or rendering may still use."""

    def __init__(self, given: object) -> None:
        self.most_items, self.most_text = _MOST_INPUT, 1 << 40
        #: Sizes of containers by their ids, with the containers, so that no id is used again. A
        #: template changes no container but namespaces; `_changes` counts that.
        self._sizes: dict[int, tuple[object, _Size, int]] = {}
        self._spaces: dict[int, tuple[object, dict[str, Any]]] = {}  # what namespaces hold
        self._changes = 0
        self._deep = 0
        self._most_steps = self._steps = _MOST_INPUT
        size = self.size(given)
        self.most_items = _MOST_ITEMS + 2 * size.items
        self.most_text = _LONGEST_TEXT + 2 * size.text
        self._most_steps = _MOST_STEPS + _STEPS_EACH * size.items + (size.text >> 6)
        self._steps = self._most_steps

    def take(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise ModelError(f"the chat template takes more than {self._most_steps:,} steps")

    def check_text(self, length: int) -> None:
        if length > self.most_text:
            raise ModelError(f"the chat template makes text of more than {self.most_text:,} bytes")

    def size(self, value: object) -> _Size:
        """Measure a value; raises if it is too large."""
        if isinstance(value, str):
            return _Size(0, len(value), True)
        known = self._sizes.get(id(value))
        if known is not None and (known[1].fixed or known[2] == self._changes):
            return known[1]
        if isinstance(value, list | tuple | set | frozenset):
            size = self._sum(value, len(value), True)
        elif isinstance(value, Mapping):
            size = self._sum([*value.keys(), *value.values()], 2 * len(value), True)
        elif id(value) in self._spaces:
            size = self._sum(self._spaces[id(value)][1].values(), 1, False)
        else:
            return _Size(0, 0, True)
        self._sizes[id(value)] = value, size, self._changes
        return size

    def note_space(self, space: object, values: Mapping[str, Any]) -> None:
        """Note that a namespace holds these values, besides others that it may hold already."""
        self._spaces.setdefault(id(space), (space, {}))[1].update(values)
        self._changes += 1

    def _sum(self, values: Iterable[object], items: int, fixed: bool) -> _Size:
        text = 0
        self._deep += 1
        self.take(items >> 3)
        try:
            if self._deep > _DEEPEST:
                raise ModelError("the chat template builds, or is given, a value nested too deep")
            for value in values:
                if type(value) in _LEAVES:
                    continue
                size = self.size(value)
                items, text, fixed = items + size.items, text + size.text, fixed and size.fixed
                if items > self.most_items or text > self.most_text:
                    raise ModelError("the chat template builds a value that is too large")
        finally:
            self._deep -= 1
        return _Size(items, text, fixed)


_BUDGET: contextvars.ContextVar[_Budget] = contextvars.ContextVar("budget")


@contextlib.contextmanager
def _on_budget(what: str, given: object) -> Iterator[None]:
    """Count what a template does in the block, and turn whatever it raises into `ModelError`."""
    before = _BUDGET.set(_Budget(given))
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
    budget = _BUDGET.get()
    if isinstance(value, str | bytes):
        budget.take(len(value) >> 10)
        budget.check_text(len(value))
    elif isinstance(value, int):
        if abs(value) > _LARGEST_NUMBER:
            raise ModelError("the chat template calculates with absurd numbers")
    elif value is not None and not isinstance(value, float):
        budget.size(value)
    return value


def _shown(value: Any) -> str:
    """The text of a value that the template puts out."""
    text: str = _bounded(str(_bounded(value)))
    return text


def _joined(parts: Iterable[Any]) -> str:
    """Join strings; raises if the result is too long."""
    made: list[str] = []
    length = 0
    for part in parts:
        made.append(_shown(part))
        length += len(made[-1])
        _BUDGET.get().check_text(length)
    return "".join(made)


def _check_call(name: str, arguments: Sequence[Any]) -> None:
    """Refuse a call whose result could be far larger than its arguments.

    The first argument is the value that the method or filter works on.
    """
    budget = _BUDGET.get()
    budget.take(_CALL)
    for value in arguments:
        _bounded(value)
    if name == "safe_range":
        return  # bounded by the sandbox, and counted where it is looped over
    if any(isinstance(value, int) and abs(value) > _LARGEST_ARGUMENT for value in arguments[1:]):
        raise ModelError(f"the chat template calls {name} with an absurd number")
    if name == "replace" and len(arguments) >= 3 and isinstance(arguments[2], str):
        text, old = str(arguments[0]), str(arguments[1])
        if (text.count(old) * len(arguments[2])) > budget.most_text:
            raise ModelError("the chat template makes too much text with replace")
    if name == "join" and len(arguments) >= 2:
        # Separator and items, in either order. An iterator has no length: the budget bounds it.
        one, other = (
            len(value) if hasattr(value, "__len__") else _MOST_STEPS for value in arguments[:2]
        )
        if one * other > budget.most_text:
            raise ModelError("the chat template makes too much text with join")
    if name in ("format", "mod") and arguments and _WIDE.search(str(arguments[0])):
        raise ModelError("the chat template formats with an absurd width")


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


# The environment.


def _counting(node: Any) -> Any:
    """Route loops, output, joins and literals of a syntax tree through the filters that count."""
    from jinja2 import nodes

    for name, value in list(node.iter_fields()):
        if isinstance(value, nodes.Node):
            setattr(node, name, _counting(value))
        elif isinstance(value, list):
            kept = [_counting(one) if isinstance(one, nodes.Node) else one for one in value]
            setattr(node, name, kept)

    def through(name: str, inner: Any) -> Any:
        return nodes.Filter(inner, name, [], [], None, None, lineno=node.lineno)

    if isinstance(node, nodes.For):
        node.iter = through("counted ", node.iter)
    elif isinstance(node, nodes.Output):
        node.nodes = [
            one if isinstance(one, nodes.TemplateData) else through("shown ", one)
            for one in node.nodes
        ]
    elif isinstance(node, nodes.Concat):
        return through("joined ", nodes.List(node.nodes, lineno=node.lineno))
    elif isinstance(node, nodes.List | nodes.Dict) or (
        isinstance(node, nodes.Tuple) and node.ctx == "load"
    ):
        return through("bounded ", node)
    return node


def _environment() -> Any:
    try:
        import jinja2
        import jinja2.ext
        from jinja2 import nodes
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ModelError(
            "chat templates need the package jinja2: pip install 'penstock-gpu[llm]'"
        ) from error

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
    states = (jinja2.Environment, jinja2.runtime.Context, nodes.EvalContext)
    environment.filters = {
        name: _watched(name, function, states) for name, function in environment.filters.items()
    }
    environment.filters["tojson"] = _watched("tojson", _to_json, ())
    # The names contain a space, so no template can refer to them.
    environment.filters |= {
        "counted ": _counted, "joined ": _joined, "bounded ": _bounded, "shown ": _shown,
    }  # fmt: skip
    for name in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(name, None)
    environment.globals["namespace"] = _namespaces(environment.globals["namespace"])
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _namespaces(theirs: Any) -> Any:
    """Jinja's `namespace`, of which the budget knows what it holds."""

    class Namespace(theirs):  # type: ignore[misc]
        # Attributes of an instance are the template's, so what it holds is noted elsewhere.
        def __init__(*given: Any, **named: Any) -> None:
            self, *values = given
            theirs.__init__(self, *values, **named)
            _BUDGET.get().note_space(self, dict(*values, **named))

        def __setitem__(self, name: str, value: Any) -> None:
            super().__setitem__(name, value)
            _BUDGET.get().note_space(self, {name: value})

    return Namespace


def _watched(
    name: str, function: Callable[..., Any], states: tuple[type, ...]
) -> Callable[..., Any]:
    """Wrap a filter so that its arguments and result are checked.

    Some filters take Jinja's state as the first argument: an instance of one of `states`.
    """

    @functools.wraps(function)  # copies the mark of those filters, too
    def watched(*arguments: Any, **named: Any) -> Any:
        own = 1 if arguments and states and isinstance(arguments[0], states) else 0
        _check_call(name, [*arguments[own:], *named.values()])
        result = function(*arguments, **named)
        return _counted(result) if isinstance(result, Iterator) else _bounded(result)

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
