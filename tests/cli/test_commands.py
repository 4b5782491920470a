"""`penstock` without a command, and with words that it does not know."""

from __future__ import annotations

import argparse

import pytest

from penstock.__main__ import _parser, main


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of words that are no command line."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert not said.out
    return said.err


def test_the_commands_are_listed_with_what_they_are_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = refused([], capsys)
    said = " ".join(text.split())
    (commands,) = (
        each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction)
    )
    listed = {each.dest: each.help for each in commands._choices_actions}
    assert set(listed) == set(commands.choices)
    for name, about in listed.items():
        assert about
        assert f"{name} {about}" in said
    assert "error" not in text


@pytest.mark.parametrize(
    ("word", "meant"), [("doctro", "; did you mean doctor?"), ("chat", ""), ("", "")]
)
def test_a_misspelt_command(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused([word], capsys).splitlines() == [
        f"penstock: error: there is no command {word!r}{meant}",
        "`penstock --help` lists the commands",
    ]


@pytest.mark.parametrize(
    ("words", "command", "says"),
    [
        ("demo --nope", "demo", "--nope"),
        ("doctor twice", "doctor", "twice"),
        ("--versoin", "", "--versoin; did you mean --version?"),
        ("generate m -p x --temperature 1", "generate", "--temperature 1; did you mean --temp?"),
        ("generate m -p x --temperature=1", "generate", "--temperature=1; did you mean --temp?"),
        ("bench mechanisms --quikc", "bench mechanisms", "--quikc; did you mean --quick?"),
        ("trace --opne x.py", "trace", "--opne; did you mean --open?"),
    ],
)
def test_an_unknown_option_is_the_commands_own_error(
    words: str, command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program = f"penstock {command}".strip()
    usage, *_, last = refused(words.split(), capsys).splitlines()
    assert usage.startswith(f"usage: {program} ")
    assert last == f"{program}: error: unrecognized arguments: {says}"
