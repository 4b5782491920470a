"""The command line: `penstock demo`, `doctor`, `devices`, `check`, `trace`, `generate`, `bench`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import penstock as ps
from penstock.array.transfer import MODES
from penstock.bench import command as bench
from penstock.cli import script
from penstock.cli.parser import Parser, did_you_mean
from penstock.driver import DRIVERS, LISTING
from penstock.install_hints import advice
from penstock.llm import command as generate

#: Exit codes of a program that was ended by Ctrl-C, or by a closed output pipe.
_INTERRUPTED, _PIPE_CLOSED = 128 + 2, 128 + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        try:
            return _run(argv)
        finally:
            # Flush now: when the interpreter exits, a closed pipe can no longer be handled.
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _PIPE_CLOSED


def _run(argv: Sequence[str] | None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if arguments.command != "trace":  # there, the output is the traced program's
        _accept_any_text()
    try:
        code: int = arguments.run(arguments)
    except BrokenPipeError:
        raise
    except (ps.Error, OSError) as error:
        if _was_interrupted(error):
            return _INTERRUPTED
        print(f"penstock: {error}", file=sys.stderr)
        if isinstance(error, ps.NoDevice):
            print("`penstock doctor` tells what is here and what is missing", file=sys.stderr)
        return 1
    return code


def _was_interrupted(error: BaseException) -> bool:
    """Whether an error was raised while Ctrl-C was being handled."""
    before = error.__context__
    while before is not None:
        if isinstance(before, KeyboardInterrupt):
            return True
        before = before.__context__
    return False


def _accept_any_text() -> None:
    """Escape characters that the terminal's encoding lacks, instead of raising."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Discard output that has not been flushed yet."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _parser() -> argparse.ArgumentParser:
    description, _, _ = (ps.__doc__ or "").partition("\n")
    parser = _Commands(prog="penstock", description=description)
    parser.add_argument("--version", action="version", version=f"penstock {ps.__version__}")
    parser.add_argument(
        "--completion", action=_Completion, choices=("bash", "fish", "zsh"),
        help="print what makes a shell complete commands",
    )  # fmt: skip
    commands = parser.add_subparsers(
        dest="command", title="commands", metavar="COMMAND", parser_class=Parser
    )  # fmt: skip
    for name, run, about in (
        ("demo", _demo, "run a kernel on an adopted NumPy array and print the receipt"),
        ("doctor", _doctor, "tell what is here, what each device can do, and what is missing"),
        ("devices", _devices, "list the devices that can be opened"),
        ("check", _check, "run the conformance suite: named and random programs against NumPy"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("--json", action="store_true", help="print JSON, for machines")
        command.set_defaults(run=run)
        if name == "demo":
            command.add_argument("--device", help="part of a device's name (default: the best)")
            command.add_argument("--size", type=int, default=1 << 20, help="elements (%(default)s)")
        if name == "doctor":
            _add_report_options(command)
        if name == "check":
            _add_check_options(command)
        if name == "devices":
            command.add_argument(
                "--driver",
                choices=LISTING,
                default="vulkan",
                help="whose devices (%(default)s)",
            )
    about = "run a program and write a page that shows what it cost, on a timeline"
    command = commands.add_parser("trace", help=about, description=about)
    command.set_defaults(run=script.run)
    script.add_options(command)
    about = "continue a text with a language model, and tell what it cost"
    command = commands.add_parser("generate", help=about, description=about)
    command.set_defaults(run=generate.run)
    generate.add_options(command)
    about = "measure a model, or the runtime; compare two measurements; make a report of them"
    # `bench` parses its own options: here everything after the name is a plain word.
    command = commands.add_parser("bench", help=about, add_help=False, prefix_chars="\0")
    command.set_defaults(run=bench.run, parsers=bench.parsers)
    bench.add_options(command)
    return parser


class _Commands(Parser):
    """Says what a misspelt command may have meant, instead of all that there are."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = action.choices or ()
        if action.dest == "command" and value not in known:
            error = f"there is no command {value!r}{did_you_mean(value, known)}"
            self.exit(2, f"penstock: error: {error}\n`penstock --help` lists the commands\n")
        super()._check_value(action, value)


class _Completion(argparse.Action):
    """`--completion SHELL` prints the script and exits, as `--version` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: Any, option: object = None
    ) -> None:
        from penstock.cli.completion import completion

        print(completion(parser, values), end="")
        parser.exit()


def _devices(arguments: argparse.Namespace) -> int:
    from penstock.driver import list_devices

    found = list_devices(arguments.driver)
    if arguments.json:
        print(json.dumps([_plain(info) for info in found], indent=2))
        return 0
    for info in found:
        memory = f"{info.memory / 2**30:.1f} GiB"
        traits = [info.kind, memory, "unified memory" if info.uma else "separate memory"]
        traits.append("imports host memory" if info.can_import else "no host import")
        version = f", Vulkan {info.api_version}" if info.driver == "vulkan" else ""
        print(f"{info.index}: {info.name}\n   {info.driver_info}{version}")
        print(f"   {', '.join(traits)}")
    if not found:
        raise ps.NoDevice(f"there is no Vulkan device; {advice('loader', 'driver')}")
    return 0


def _add_report_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--report", action="store_true",
        help="check and time one device, and print what to paste into an issue",
    )  # fmt: skip
    of_it = command.add_argument_group("with --report")
    of_it.add_argument("--device", help="part of a device's name (default: the best)")
    of_it.add_argument(
        "--driver", choices=LISTING, default="vulkan", help="of that device (%(default)s)"
    )
    of_it.add_argument(
        "--programs", type=int, default=100, help="random programs to check (%(default)s)"
    )


def _doctor(arguments: argparse.Namespace) -> int:
    from penstock.cli import doctor, report

    return report.run(arguments) if arguments.report else doctor.run(arguments)


def _demo(arguments: argparse.Namespace) -> int:
    from penstock.cli.demo import run

    outcome = run(arguments.device, arguments.size)
    if arguments.json:
        counts = outcome.receipt.as_dict()
        print(json.dumps({"device": outcome.device, "correct": outcome.correct, **counts}))
    else:
        print(f"device: {outcome.device}")
        print(f"saxpy on {arguments.size:,} floats in the caller's own memory, then a look at one")
        print(outcome.receipt)
        print("the result is", "correct" if outcome.correct else "WRONG")
    return 0 if outcome.correct else 1


def _add_check_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--driver",
        choices=DRIVERS,
        default="sim",
        help="what to check (%(default)s)",
    )
    command.add_argument("--device", help="part of a device's name (default: the best)")
    command.add_argument("--programs", type=int, default=1000, help="random ones (%(default)s)")
    command.add_argument("--seed", type=int, default=0, help="of the first one (%(default)s)")
    command.add_argument(
        "--transfers", choices=(*MODES, "all"), default="all", help="one path only (%(default)s)"
    )
    command.add_argument("--validate", action="store_true", help="with the validation layer")
    command.add_argument(
        "--faults", action="store_true", help="fail every call of the simulator in turn"
    )


def _check(arguments: argparse.Namespace) -> int:
    from penstock.conformance.check import check, check_faults
    from penstock.conformance.lab import Lab

    modes = MODES if arguments.transfers == "all" else (arguments.transfers,)
    if arguments.faults:
        if arguments.driver != "sim":
            raise ps.InvalidValue("--faults is for the simulator: use it with --driver sim")
        report = check_faults(arguments.programs, arguments.seed, modes)
    else:
        with Lab(arguments.driver, arguments.device, validate=arguments.validate) as lab:
            report = check(lab, arguments.programs, arguments.seed, modes)
    print(json.dumps(report.as_dict()) if arguments.json else report)
    return 0 if report.failure is None else 1


def _plain(info: ps.DeviceInfo) -> dict[str, Any]:
    plain = dataclasses.asdict(info)
    for name in ("features", "texel_formats"):
        plain[name] = sorted(plain[name])
    return plain


if __name__ == "__main__":
    sys.exit(main())
