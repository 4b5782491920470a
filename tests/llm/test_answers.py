"""Answers taken apart: reasoning, text and calls, however the text is cut into pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.llm.answers import AnswerReader
from penstock.llm.chat import THINKING, ChatTemplate
from penstock.llm.tools import ToolCall, parse_call, schemas_of


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> str:
    """Tell the weather.

    Args:
        city: where,
            as a name
        days (int): how many
    Returns:
        a sentence
    """
    return f"{city} {days} {unit}"


TOOLS = schemas_of([weather])


def read(
    pieces: Sequence[str], prompt: str = "", tools: Any = TOOLS, **options: Any
) -> dict[str, Any]:
    reader = AnswerReader(prompt=prompt, tools=tools, **options)
    parts = [part for piece in pieces for part in reader.push(piece)] + list(reader.finish())
    assert all(part.text for part in parts)
    return {
        "reasoning": "".join(part.text for part in parts if part.kind == "reasoning").strip("\n"),
        "text": "".join(part.text for part in parts if part.kind == "text"),
        "calls": [(part.call.name, part.call.arguments) for part in parts if part.call],
    }


PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CODER = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
#: An answer; its reasoning, its text, its calls.
ANSWERS: dict[str, tuple[str, str, str, list[Any]]] = {
    "text": ("Hello <b>!", "", "Hello <b>!", []),
    "nothing": ("", "", "", []),
    "reasoning": ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.", []),
    "spaces before": ("\n <think>Hm.</think>Yes.", "Hm.", "Yes.", []),
    "empty reasoning": ("<think>\n\n</think>\n\nYes.", "", "Yes.", []),
    "no end of reasoning": ("<think>\nHm. </thin", "Hm. </thin", "", []),
    "not at the start": ("I <think>so</think>.", "", "I <think>so</think>.", []),
    "almost a tag": ("<thin", "", "<thin", []),
    "a call": (PARIS, "", "", [("weather", {"city": "Paris"})]),
    "text before": ("Wait.\n" + PARIS + "\n", "", "Wait.", [("weather", {"city": "Paris"})]),
    "two calls": (f"{PARIS}\n{PARIS}\n", "", "", [("weather", {"city": "Paris"})] * 2),
    "all": (f"<think>Hm.</think>\n\nOK\n{PARIS}", "Hm.", "OK", [("weather", {"city": "Paris"})]),
    "tags": (CODER, "", "", [("weather", {"city": "New\nYork", "days": 3})]),
    "text after": (
        CODER + "\nDone. ",
        "",
        "Done.",
        [("weather", {"city": "New\nYork", "days": 3})],
    ),
    "without the first tag": (
        "OK\n" + CODER.removeprefix("<tool_call>\n") + "\n" + CODER.removeprefix("<tool_call>\n"),
        "",
        "OK",
        [("weather", {"city": "New\nYork", "days": 3})] * 2,
    ),
    "without both tags": (
        "<function=f>\n</function>\nDone.",
        "",
        "Done.",
        [("f", {})],
    ),
    "a function in text": ("Use <function=f> here", "", "Use <function=f> here", []),
    "arguments as text": (
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": [1]}"}</tool_call>',
        "",
        "",
        [("f", {"a": [1]})],
    ),
    "a tag in a string": (
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
        "",
        "",
        [("f", {"a": "</tool_call>"})],
    ),
    "a call in reasoning": (f"<think>{PARIS}</think>No.", PARIS, "No.", []),
    "not closed": ('A <tool_call>{"name": "f"', "", 'A <tool_call>{"name": "f"', []),
    "no JSON": ("A\n<tool_call>f(1)</tool_call>\nB", "", "A\n<tool_call>f(1)</tool_call>\nB", []),
    "malformed, then one": (
        f"<tool_call>{{oops}}</tool_call>{PARIS}",
        "",
        "<tool_call>{oops}</tool_call>",
        [("weather", {"city": "Paris"})],
    ),
    "begun twice": (
        f"<tool_call>oops {PARIS}",
        "",
        "<tool_call>oops ",
        [("weather", {"city": "Paris"})],
    ),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_parts_of_an_answer(what: str) -> None:
    answer, reasoning, text, calls = ANSWERS[what]
    wanted = {"reasoning": reasoning, "text": text, "calls": calls}
    for size in (1, 2, 7, 1000):
        pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
        assert read(pieces) == wanted
    if reasoning:
        opened = answer.lstrip().removeprefix("<think>")
        assert read([opened], "<|im_start|>assistant\n<think>\n") == wanted


def test_without_tools_calls_are_text() -> None:
    assert read([PARIS], tools=())["text"] == PARIS


TEXT = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            PARIS,
            CODER,
            "<",
            "\n",
            "a",
            " ",
            '{"name": "f"}',
            "{",
            "<function=f>",
            "</function>",
        ]
    )
).map("".join)


@settings(max_examples=200, deadline=None)
@given(TEXT, st.integers(1, 9), st.booleans(), st.booleans())
def test_pieces_do_not_matter(answer: str, size: int, thinking: bool, with_tools: bool) -> None:
    tools = TOOLS if with_tools else ()
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    whole = read([answer], "<think>" if thinking else "", tools)
    assert read(pieces, "<think>" if thinking else "", tools) == whole
    # Nothing is lost but tags and spaces.
    kept = whole["reasoning"] + whole["text"]
    assert sum(map(answer.count, "a")) >= kept.count("a")
    if not whole["calls"]:
        assert kept.count("a") == answer.count("a")


MALFORMED = [
    "",
    "{",
    "[]",
    "3",
    "null",
    '{"name": 3}',
    '{"name": ""}',
    '{"arguments": {}}',
    '{"name": "f", "arguments": [1]}',
    '{"name": "f", "arguments": "x"}',
    "[" * 100_000,
    '{"name": "f", "arguments": ' + "[" * 100_000,
    "<function=>\n</function>",
    "<function=f>",
    "<function=f>\n<parameter=a>1</function>",
    "<function=f>\nx<parameter=a>1</parameter></function>",
    "<function=f></function> more",
    '{"name": "f"} more',
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: body[:20])
def test_malformed_calls_stay_text(body: str) -> None:
    assert parse_call(body, TOOLS) is None
    answer = f"<tool_call>{body}</tool_call>"
    assert read([answer]) == {"reasoning": "", "text": answer, "calls": []}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "integer"}, "3", 3),
        (None, "3", "3"),
        ({"type": "integer"}, "three", "three"),
        ({"type": "number"}, "3", 3),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "integer"}, "2.5", "2.5"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": "string"}, "null", "null"),
        ({"anyOf": [{"type": "array"}]}, "[]", []),
        ({"type": 3}, "x", "x"),
        ("odd", "x", "x"),
        ({"type": "string"}, "<a>\n</parameter>b", "<a>\n</parameter>b"),
    ],
)
def test_values_of_tags_are_what_the_schema_says(schema: Any, text: str, value: Any) -> None:
    tool = {"function": {"name": "f", "parameters": {"properties": {"x": schema}}}}
    body = f"<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>"
    found = parse_call(body, [tool])
    assert found == ToolCall("f", {"x": value})
    assert type(found.arguments["x"]) is type(value)
    json.dumps(found.as_message())


def test_a_function_is_a_schema() -> None:
    assert TOOLS == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Tell the weather.",
                "parameters": {
                    "type": "object",
                    "required": ["city"],
                    "properties": {
                        "city": {"type": "string", "description": "where, as a name"},
                        "days": {"type": "integer", "description": "how many"},
                        "unit": {"type": "string", "enum": ["C", "F"]},
                    },
                },
            },
        }
    ]

    def other(
        a: list[int], b: dict[str, float] | None, c: int | str, d: Any, e: tuple[bool, ...]
    ) -> None:
        pass

    properties = schemas_of([other])[0]["function"]["parameters"]["properties"]
    assert properties == {
        "a": {"type": "array", "items": {"type": "integer"}},
        "b": {"type": "object", "additionalProperties": {"type": "number"}, "nullable": True},
        "c": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "d": {},
        "e": {"type": "array", "items": {"type": "boolean"}},
    }
    assert schemas_of([{"name": "f"}]) == [{"name": "f"}]


def _untyped(x):  # type: ignore[no-untyped-def]
    pass


def _many(*x: int) -> None:
    pass


def _odd(x: complex) -> None:
    pass


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([_untyped], "x has no type hint"),
        ([_many], "name every parameter"),
        ([_odd], "a type that JSON lacks"),
        ([3], "a tool is a JSON schema"),
        ("f", "a list of tools"),
        ({"a": 1}, "a list of tools"),
        (3, "a list of tools"),
        ([dict.get], "cannot be read|no type"),
    ],
)
def test_what_is_no_tool(tools: Any, says: str) -> None:
    with pytest.raises(ps.ArgumentError, match=says):
        schemas_of(tools)


def test_where_an_answer_begins() -> None:
    begun = "<|im_start|>assistant\n<think>\n"
    assert read(["Hm.</think>Yes."], begun)["reasoning"] == "Hm."
    assert read(["Hm.</think>Yes."], f"{begun}\n</think>\n\n")["reasoning"] == ""


@pytest.mark.parametrize("tags", THINKING)
def test_other_tags_around_the_reasoning(tags: tuple[str, str]) -> None:
    first, last = tags
    answer = f"{first}\nHm. <think>\n{last}\nYes."
    wanted = {"reasoning": "Hm. <think>", "text": "Yes.", "calls": []}
    for size in (1, 3, 100):
        pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
        assert read(pieces, thinking_tags=tags) == wanted
    assert read([answer.removeprefix(first)], f"a {first}\n", thinking_tags=tags) == wanted
    assert ChatTemplate(f"{{# {first} {last} #}}").thinking_tags == tags
    assert ChatTemplate(f"{{# {first} #}}").thinking_tags == THINKING[0]
