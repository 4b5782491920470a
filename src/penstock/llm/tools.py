"""Tools that a chat model may call: their descriptions for the template, and the calls it makes.

A tool is described by a JSON schema, as OpenAI and transformers write it, or is a Python function,
whose schema is made from its type hints and docstring. Models write calls between `<tool_call>` and
`</tool_call>`, in one of two formats: as JSON (Qwen3, Hermes), or as tags, `<function=name>` with a
`<parameter=name>` for each argument (Qwen3-Coder), whose values are text unless the schema says
otherwise. What is neither stays text.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import penstock as ps

Tool = Mapping[str, Any] | Callable[..., Any]

_TYPES: dict[Any, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
    list: "array", tuple: "array", dict: "object",
}  # fmt: skip
_FUNCTION = re.compile(r"<function=([^>\n]+)>\s*(.*?)\s*</function>\s*\Z", re.S)
_PARAMETER = re.compile(
    r"<parameter=([^>\n]+)>(.*?)</parameter>\s*(?=<parameter=|\Z)", re.S
)  # a value may itself have tags


@dataclass(frozen=True)
class ToolCall:
    """A call that the model makes: the name of a tool, and JSON arguments by their names."""

    name: str
    arguments: dict[str, Any]

    def as_message(self) -> dict[str, Any]:
        """As an entry of `tool_calls` of a message."""
        return {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def schemas_of(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """The tools as JSON schemas, for the template."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise ps.ArgumentError(f"tools= is a list of tools, not {type(tools).__name__}")
    found: list[dict[str, Any]] = []
    for tool in tools:
        if isinstance(tool, Mapping):
            found.append(dict(tool))
        elif callable(tool):
            found.append(_schema_of(tool))
        else:
            raise ps.ArgumentError(
                f"a tool is a JSON schema (a dict) or a function, not {type(tool).__name__}"
            )
    return found


def parse_call(body: str, tools: Sequence[Mapping[str, Any]] = ()) -> ToolCall | None:
    """The call between `<tool_call>` and `</tool_call>`, or None if it is malformed."""
    body = body.strip()
    return _of_json(body) if body.startswith("{") else _of_tags(body, tools)


def is_cut_short(body: str) -> bool:
    """Whether JSON ends within a string: then what looked like the end of the call was in it."""
    try:
        json.loads(body.strip())
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _of_json(body: str) -> ToolCall | None:
    try:
        call = json.loads(body)
        name, arguments = call.get("name"), call.get("arguments", {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments)


def _of_tags(body: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall | None:
    function = _FUNCTION.match(body)
    if function is None:
        return None
    name, inside = function[1].strip(), function[2]
    properties = _properties(name, tools)
    arguments: dict[str, Any] = {}
    end = 0
    for found in _PARAMETER.finditer(inside):
        if found.start() != end:
            return None
        end = found.end()
        key = found[1].strip()
        value = found[2].removeprefix("\n").removesuffix("\n")
        arguments[key] = _value(value, properties.get(key))
    return ToolCall(name, arguments) if name and end == len(inside) else None


def _properties(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            found = parameters.get("properties") if isinstance(parameters, Mapping) else None
            return found if isinstance(found, Mapping) else {}
    return {}


def _value(text: str, schema: object) -> Any:
    """The value that a schema says the text is; the text if there is none, or it is not that."""
    wanted = _types_in(schema)
    if not wanted or ("string" in wanted and text != "null"):
        return text
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text.strip())
        kind = {int: "integer", float: "number"}.get(type(value)) or _TYPES[type(value)]
        if kind in wanted or (kind == "integer" and "number" in wanted):
            return value
    if "boolean" in wanted and text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    return text


def _types_in(schema: object) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    found = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else set()
    if schema.get("nullable") is True:
        found.add("null")
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        for option in options if isinstance(options, list) else []:
            found |= _types_in(option)
    return {one for one in found if isinstance(one, str)}


# Functions as schemas.


def _schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        hints = typing.get_type_hints(function)
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError, NameError) as error:
        raise ps.ArgumentError(f"tool {name}: its parameters cannot be read: {error}") from error
    description, explained = _documented(inspect.getdoc(function) or "")
    properties: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ps.ArgumentError(f"tool {name}: {parameter} has no schema; name every parameter")
        if key not in hints:
            raise ps.ArgumentError(f"tool {name}: parameter {key} has no type hint")
        properties[key] = _type_schema(f"tool {name}: parameter {key}", hints[key])
        if key in explained:
            properties[key]["description"] = explained[key]
    required = [key for key, one in parameters.items() if one.default is one.empty]
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


def _type_schema(where: str, hint: Any) -> dict[str, Any]:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin is typing.Annotated:
        return _type_schema(where, inside[0])
    if origin is Literal:
        kinds = sorted({_TYPES.get(type(value), "string") for value in inside})
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(inside)}
    if origin in (typing.Union, types.UnionType):
        options = [_type_schema(where, one) for one in inside if one is not type(None)]
        found = options[0] if len(options) == 1 else {"anyOf": options}
        return {**found, "nullable": True} if type(None) in inside else found
    kind = _TYPES.get(origin or hint)
    if kind is None and inspect.isclass(origin or hint):
        kind = "array" if issubclass(origin or hint, Sequence) else None
        kind = "object" if issubclass(origin or hint, Mapping) else kind
    if kind is None:
        raise ps.ArgumentError(f"{where} has a type that JSON lacks: {hint}")
    if kind == "array" and inside and inside[0] is not Ellipsis:
        return {"type": kind, "items": _type_schema(where, inside[0])}
    if kind == "object" and len(inside) == 2:
        return {"type": kind, "additionalProperties": _type_schema(where, inside[1])}
    return {"type": kind}


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """The description in a docstring, and what its section "Args:" says of each parameter."""
    description, _, rest = text.partition("\nArgs:\n")
    explained: dict[str, str] = {}
    key = ""
    for line in rest.splitlines():
        if line and not line[0].isspace():
            break  # the next section
        found = re.match(r"\s+(\w+)(?:\s*\([^)]*\))?:\s*(.*)", line)
        if found:
            key = found[1]
            explained[key] = found[2].strip()
        elif key and line.strip():
            explained[key] += " " + line.strip()
    first = re.split(r"\n(?:Returns|Raises|Yields|Examples?):\n", description)[0]
    return first.strip(), explained
