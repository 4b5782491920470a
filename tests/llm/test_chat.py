"""Chat templates: rendered as transformers renders them; hostile ones end, soon, with an error."""

from __future__ import annotations

import datetime
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from penstock.llm import ChatTemplate, ModelError, Tokenizer, open_model
from tests.llm.model_builders import hugging_face, miniature, smollm2

HI = [{"role": "user", "content": "Hi"}]
TALK = [*HI, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"}]


def render(template: str, messages: Any = HI, **variables: Any) -> str:
    return ChatTemplate(template, bos_token="<s>", eos_token="</s>").render(messages, **variables)


def test_the_template_of_a_gguf_file(tmp_path: Path) -> None:
    model = open_model(miniature(tmp_path, tokenizer=True))
    text = ChatTemplate.of(model).render(TALK)
    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    tokenizer = Tokenizer.of(model)
    assert tokenizer.decode(tokenizer.encode(text), special=True) == text
    assert not ChatTemplate.of(model).render(TALK, add_generation_prompt=False).endswith("ant\n")


def test_the_template_of_smollm2() -> None:
    text = ChatTemplate.of(open_model(smollm2())).render(HI)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_templates_beside_safetensors(tmp_path: Path) -> None:
    directory = hugging_face(tmp_path / "hf")
    with pytest.raises(ModelError, match="has no chat template"):
        ChatTemplate.of(open_model(directory))
    settings = directory / "tokenizer_config.json"
    for stored in ("A{{ bos_token }}", [{"name": "default", "template": "A{{ bos_token }}"}]):
        token = {"content": "<b>", "special": True}
        settings.write_text(json.dumps({"chat_template": stored, "bos_token": token}))
        assert ChatTemplate.of(open_model(directory)).render(HI) == "A<b>"
    (directory / "chat_template.jinja").write_text("B{{ messages[0].content }}")
    assert ChatTemplate.of(open_model(directory)).render(HI) == "BHi"
    settings.write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        ChatTemplate.of(open_model(directory))


def test_a_gguf_file_without_template(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no chat template; give the prompt as text"):
        ChatTemplate.of(open_model(miniature(tmp_path)))


FEATURES = {
    "tokens": ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
    "blocks are trimmed": ("{% if 1 %}\n  {% if 1 %}\nx\n  {% endif %}\n{% endif %}\n", "x\n"),
    "json is not for HTML": ("{{ {'a': \"é<'\"}|tojson }}", '{"a": "é<\'"}'),
    "json with indent": ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
    "loop controls": ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                      "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
    "loop variables": ("{% for m in [1, 2, 3] %}{{ loop.index0 }}{{ loop.last }}"
                       "{{ loop.previtem }}/{{ loop.length }}{% endfor %}",
                       "0False/31False1/32True2/3"),
    "pairs": ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
    "set of pairs": ("{% set a, b = 1, 2 %}{{ a + b }}", "3"),
    "namespace": ("{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}"
                  "{% endfor %}{{ n.x }}", "4"),
    "macros": ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) ~ m('é') }}", "<1><é>"),
    "filters": ("{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')"
                "|join(', ')|upper|trim }}", "HI"),
    "slices and methods": ("{{ 'a,b'.split(',')[-1] }}{{ messages[::-1]|length }}"
                           "{{ ' x '.strip().startswith('x') }}{{ 'aXb'.replace('X', '-') }}",
                           "b1Truea-b"),
    "set blocks": ("{% set x %}a{{ 1 }}{% endset %}{{ x * 2 }}", "a1a1"),
    "formats": ("{{ '%s-%d' % ('a', 1) }}{{ '{:>3}'.format(7) }}", "a-1  7"),
    "tests": ("{{ messages is iterable }}{{ x is defined }}{{ 'role' in messages[0] }}",
              "TrueFalseTrue"),
    "answers marked for training": ("{% generation %}x{% endgeneration %}", "x"),
    "recursive loops": ("{% for i in [[], [[]]] recursive %}({{ loop(i) }}){% endfor %}",
                        "()(())"),
    "no tools": ("{{ tools is none }}{{ documents is none }}{{ other is defined }}",
                 "TrueTrueFalse"),
    "numbers": ("{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ 1 / 2 }}{{ -1 }}", "3380.5-1"),
}  # fmt: skip


@pytest.mark.parametrize("what", FEATURES)
def test_what_templates_use(what: str) -> None:
    template, expected = FEATURES[what]
    assert render(template) == expected


@pytest.mark.parametrize("what", FEATURES)
def test_transformers_renders_the_same(what: str) -> None:
    theirs = pytest.importorskip("transformers.utils.chat_template_utils")
    template, expected = FEATURES[what]
    (text,), _ = theirs.render_jinja_template(
        [HI], chat_template=template, bos_token="<s>", eos_token="</s>"
    )
    assert text == expected


def test_variables_and_the_date() -> None:
    assert render("{{ enable_thinking }}{{ tools[0].name }}", enable_thinking=False,
                  tools=[{"name": "f"}]) == "Falsef"  # fmt: skip
    assert render("{{ strftime_now('%Y') }}") in {
        str(datetime.datetime.now().year + shift) for shift in (0, -1)
    }


def test_a_long_conversation_fits_the_budget() -> None:
    messages = [{"role": "user", "content": "word " * 400}] * 500
    text = render("{% for m in messages %}{{ '<' + m.role + '>' + m.content|trim }}{% endfor %}",
                  messages)  # fmt: skip
    assert len(text) == 500 * (len("<user>") + 1999)


GROW = (
    "{{% set n = namespace(x={start}) %}}"
    "{{% for i in range(60) %}}{step}{{% endfor %}}{{{{ n.x }}}}"
)
TWICE = "{{% for i in {0} %}}{{% for j in {0} %}}{{% endfor %}}{{% endfor %}}"
HOSTILE = {
    "nested loops": TWICE.format("range(99999)"),
    "loops over text": TWICE.format("'a' * 99999"),
    "range": "{{ range(10**9)|list }}",
    "repeated text": "{{ 'x' * 10**10 }}",
    "repeated list": "{{ [0] * 10**9 }}",
    "power": "{{ 10**10**10 }}",
    "powers": "{% set x = 9**60 %}{{ x**60 }}",
    "doubled by ~": GROW.format(start="'aaaa'", step="{% set n.x = n.x ~ n.x %}"),
    "doubled by +": GROW.format(start="'aaaa'", step="{% set n.x = n.x + n.x %}"),
    "doubled by a block": GROW.format(
        start="'aaaa'", step="{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"
    ),
    "doubled by join": GROW.format(start="'aaaa'", step="{% set n.x = [n.x, n.x]|join %}"),
    "doubled by replace": GROW.format(start="'aa'", step="{% set n.x = n.x.replace('a', 'aa') %}"),
    "nested lists": GROW.format(start="[0]", step="{% set n.x = [n.x, n.x] %}"),
    "nested tuples": GROW.format(start="(0,)", step="{% set n.x = (n.x, n.x) %}"),
    "nested objects": GROW.format(start="{}", step="{% set n.x = {'a': n.x, 'b': n.x} %}"),
    "nested namespaces": GROW.format(start="0", step="{% set n.x = namespace(a=n.x, b=n.x) %}"),
    "nested dicts": GROW.format(start="0", step="{% set n.x = dict(a=n.x, b=n.x) %}"),
    "longer lists": GROW.format(start="[0]", step="{% set n.x = n.x + n.x %}"),
    "padding": "{{ 'x'.ljust(10**9) }}",
    "padding by filter": "{{ 'x'|center(10**9) }}",
    "indent": "{{ 'x'|indent(10**9) }}",
    "indent of json": "{{ [1]|tojson(indent=10**9) }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "width from argument": "{{ '%*d' % (1000000000, 1) }}",
    "width in braces": "{{ '{:>1000000000}'.format(1) }}",
    "width by filter": "{{ '%1000000000s'|format(1) }}",
    "width by map": "{{ '{:>1000000000}'.format_map({}) }}",
    "batch": "{{ [1]|batch(10**9, 1)|list }}",
    "replace": "{% set x = 'a' * 99999 %}{{ x.replace('a', x) }}",
    "replace by filter": "{% set x = 'a' * 99999 %}{{ x|replace('a', x) }}",
    "join": "{% set x = 'a' * 99999 %}{{ x.join(x) }}",
    "join by filter": "{% set x = 'a' * 99999 %}{{ x|list|join(x) }}",
    "join of what has no length": "{% set x = 'a' * 99999 %}{{ x|map('upper')|join(x) }}",
    "output": "{% set x = 'a' * 99999 %}{% for i in range(9999) %}{{ x }}{% endfor %}",
    "work": "{% set x = 'a' * 9999999 %}{% for i in range(9999) %}{% if x.upper() %}{% endif %}"
            "{% endfor %}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "branching macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
                       "{% endmacro %}{{ m(30) }}",
    "lorem ipsum": "{{ lipsum(9999) }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "change of a message": "{{ messages.append(1) }}",
    "change in a message": "{{ messages[0].update(a=1) }}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "syntax": "{% for x in",
    "deep syntax": "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "division": "{{ 1 / 0 }}",
    "nothing there": "{{ nothing.there }}",
    "its own refusal": "{{ raise_exception('roles must alternate') }}",
    "date": "{{ strftime_now('%Y' * 9999999) }}",
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_templates_end_with_an_error(what: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="chat template"):
            render(HOSTILE[what])
        assert tracemalloc.get_traced_memory()[1] < 256 << 20
    finally:
        tracemalloc.stop()


def test_formats_do_not_reach_classes() -> None:
    assert render("{{ '{0.__class__}'.format('') }}") == ""


def test_refusals_carry_the_reason() -> None:
    with pytest.raises(ModelError, match="refuses the conversation: roles must alternate"):
        render(HOSTILE["its own refusal"])


def test_too_long_a_template() -> None:
    with pytest.raises(ModelError, match="too long"):
        ChatTemplate("x" * (1 << 21))
