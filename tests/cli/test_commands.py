"""`penstock` without a command, or with one that does not exist."""

from __future__ import annotations

import argparse

import pytest

from penstock.__main__ import _parser, main


@pytest.mark.parametrize("words", [[], ["chat"]])
def test_the_commands_are_listed_with_what_they_are_for(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    (commands,) = (
        each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction)
    )
    listed = {each.dest: each.help for each in commands._choices_actions}
    assert set(listed) == set(commands.choices)
    for name, about in listed.items():
        assert about
        assert f"{name} {about}" in said


def test_a_wrong_option_shows_the_usage_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--nope"])
    said = capsys.readouterr().err
    assert said.endswith("penstock: error: unrecognized arguments: --nope\n")
    assert "doctor" not in said
