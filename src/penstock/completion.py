"""Shell completion: `penstock --completion bash` prints what a shell needs to complete commands.

It is made from the parser of the command line itself, so it has every command and option there is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Option(NamedTuple):
    """An option of a command, with the values it can have if they are known."""

    names: tuple[str, ...]
    help: str
    values: tuple[str, ...]
    takes_value: bool


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell: one of `SHELLS`."""
    return SHELLS[shell](parser)


def _bash(parser: argparse.ArgumentParser) -> str:
    cases = []
    for name, command in _commands(parser).items():
        options = [flag for option in _options(command) for flag in option.names]
        cases.append(f"        {name}) words={' '.join(options)!r} ;;")
    values = [
        f"        {'|'.join(f'{name}:{flag}' for flag in option.names)})"
        f" words={' '.join(option.values)!r} ;;"
        for name, command in {"*": parser, **_commands(parser)}.items()
        for option in _options(command)
        if option.values
    ]
    first = " ".join([*_commands(parser), *(flag for o in _options(parser) for flag in o.names)])
    lines = [
        '# penstock: eval "$(penstock --completion bash)"',
        "_penstock() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=",
        "    if ((COMP_CWORD == 1)); then",
        f"        words={first!r}",
        "    else",
        "        case ${COMP_WORDS[1]} in",
        *(f"    {line}" for line in cases),
        "        esac",
        "    fi",
        "    case ${COMP_WORDS[1]}:$previous in",
        *values,
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o default -F _penstock penstock",
    ]
    return "\n".join(lines) + "\n"


def _zsh(parser: argparse.ArgumentParser) -> str:
    # zsh runs completions of bash, and knows how to show them.
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(parser)}"


def _fish(parser: argparse.ArgumentParser) -> str:
    lines = ["# penstock: penstock --completion fish | source"]
    lines += [
        f"complete -c penstock -n __fish_use_subcommand{_fish_option(o)}" for o in _options(parser)
    ]
    abouts = _abouts(parser)
    for name, command in _commands(parser).items():
        about = abouts.get(name, "").replace("'", "")
        lines.append(f"complete -c penstock -n __fish_use_subcommand -xa {name} -d '{about}'")
        lines += [
            f"complete -c penstock -n '__fish_seen_subcommand_from {name}'{_fish_option(option)}"
            for option in _options(command)
        ]
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    text = "".join(
        f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names
    )
    if option.values:
        text += f" -xa '{' '.join(option.values)}'"
    elif option.takes_value:
        text += " -r"
    return f"{text} -d '{option.help}'" if option.help else text


SHELLS: dict[str, Callable[[argparse.ArgumentParser], str]] = {
    "bash": _bash, "fish": _fish, "zsh": _zsh,
}  # fmt: skip


# What a parser knows. argparse has no public way to ask.


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _abouts(parser: argparse.ArgumentParser) -> dict[str, str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {choice.dest: choice.help or "" for choice in action._get_subactions()}
    return {}


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.option_strings:
            about = action.help or ""
            shown = "" if about == argparse.SUPPRESS else about.split(" (")[0].replace("'", "")
            values = tuple(str(choice) for choice in action.choices or ())
            takes = action.nargs != 0
            yield Option(tuple(action.option_strings), shown, values, takes)
