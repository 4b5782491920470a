"""Shell completion: `penstock --completion bash` prints the completion script of a shell.

It is generated from the command line's parser, so it has every command and option.
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
    # Do not name a variable `words`: zsh reserves that name.
    every = _commands(parser)
    cases = []
    for name, command in every.items():
        options = [flag for option in _options(command) for flag in option.names]
        offered = " ".join([*_below(every, name), *options])
        cases.append(f"        {name!r}) offered={offered!r} ;;")
    values = [
        f"        {'|'.join(repr(f'{name}:{flag}') for flag in option.names)})"
        f" offered={' '.join(option.values)!r} ;;"
        for name, command in {"": parser, **every}.items()
        for option in _options(command)
        if option.values
    ]
    nested = "|".join(repr(name) for name in every if " " in name)
    first = [*_below(every, ""), *(flag for o in _options(parser) for flag in o.names)]
    lines = [
        '# penstock: eval "$(penstock --completion bash)"',
        "_penstock() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}",
        "    local command= offered=",
        "    if ((COMP_CWORD > 1)); then command=${COMP_WORDS[1]}; fi",
        "    if ((COMP_CWORD > 2)); then",
        '        case "$command ${COMP_WORDS[2]}" in',
        f'            {nested}) command="$command ${{COMP_WORDS[2]}}" ;;',
        "        esac",
        "    fi",
        '    case "$command" in',
        f"        '') offered={' '.join(first)!r} ;;",
        *cases,
        "    esac",
        '    if [[ "$command" == -* ]]; then command=; fi',
        '    case "$command:$previous" in',
        *values,
        "    esac",
        '    COMPREPLY=($(compgen -W "$offered" -- "$current"))',
        "}",
        "complete -o default -F _penstock penstock",
    ]
    return "\n".join(lines) + "\n"


def _zsh(parser: argparse.ArgumentParser) -> str:
    # zsh can run bash completions.
    lines = [
        '# penstock: eval "$(penstock --completion zsh)"',
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }",
        "autoload -U +X bashcompinit && bashcompinit",
        _bash(parser),
    ]
    return "\n".join(lines)


def _fish(parser: argparse.ArgumentParser) -> str:
    every = _commands(parser)
    abouts = _abouts(parser)
    lines = ["# penstock: penstock --completion fish | source"]
    for name, command in {"": parser, **every}.items():
        when = _fish_condition(every, name)
        lines += [f"complete -c penstock -n '{when}'{_fish_option(o)}" for o in _options(command)]
        for below in _below(every, name):
            about = abouts.get(f"{name} {below}".strip(), "")
            described = f" -d {_fish_quoted(about)}" if about else ""
            # "bench" also takes a file.
            only = "f" if not name else ""
            lines.append(f"complete -c penstock -n '{when}' -{only}a {below}{described}")
    return "\n".join(lines) + "\n"


def _fish_condition(every: dict[str, argparse.ArgumentParser], name: str) -> str:
    """The fish condition that holds while this command is being typed."""
    if not name:
        return "__fish_use_subcommand"
    seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
    below = " ".join(_below(every, name))
    return f"{seen}; and not __fish_seen_subcommand_from {below}" if below else seen


def _fish_option(option: Option) -> str:
    text = ""
    for name in option.names:
        if name.startswith("--"):
            text += f" -l {name[2:]}"
        else:
            text += f" -s {name[1:]}" if len(name) == 2 else f" -o {name[1:]}"
    if option.values:
        text += f" -xa '{' '.join(option.values)}'"
    elif option.takes_value:
        text += " -r"
    return f"{text} -d {_fish_quoted(option.help)}" if option.help else text


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: dict[str, Callable[[argparse.ArgumentParser], str]] = {
    "bash": _bash, "fish": _fish, "zsh": _zsh,
}  # fmt: skip


# Inspection of a parser. argparse has no public interface for it.


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """All commands by name; a subcommand is named by both words: "bench compare"."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                parsers = command.get_default("parsers")
                below = {"": command} if parsers is None else parsers()
                found |= {f"{name} {word}".strip(): one for word, one in below.items()}
    return found


def _below(every: dict[str, argparse.ArgumentParser], name: str) -> list[str]:
    """The names of a command's subcommands."""
    words = [one.split() for one in every]
    start = name.split()
    return [one[-1] for one in words if one[:-1] == start]


def _abouts(parser: argparse.ArgumentParser) -> dict[str, str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {choice.dest: choice.help or "" for choice in action._get_subactions()}
    return {}


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.option_strings:
            shown = ""
            if action.help and action.help != argparse.SUPPRESS:
                about = parser._get_formatter()._expand_help(action)
                shown = about.split(" (")[0]
            values = tuple(str(choice) for choice in action.choices or ())
            takes = action.nargs != 0
            yield Option(tuple(action.option_strings), shown, values, takes)
