"""`penstock trace script.py`: runs a program with a trace active.

The program runs as under `python script.py`: with its arguments, its folder first on the path, and
itself as `__main__`. Its output, exceptions and exit code are passed on. Penstock's own messages go
to standard error.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import io
import os
import re
import runpy
import sys
import threading
import traceback
import types
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from penstock.tracing.receipt import Trace, trace

_INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


def add_options(command: argparse.ArgumentParser) -> None:
    command.usage = "penstock trace [options] (script.py | -m module) [its arguments]"
    command.add_argument(
        "--output", "-o", type=Path, default=Path("trace.html"), metavar="FILE",
        help="the page (%(default)s)",
    )  # fmt: skip
    command.add_argument("--json", type=Path, metavar="FILE", help="events and counts, as JSON")
    command.add_argument("--perfetto", type=Path, metavar="FILE", help="for ui.perfetto.dev")
    command.add_argument(
        "--kernels", action="store_true", help="also time each command inside replayed graphs"
    )
    command.add_argument("--open", action="store_true", help="show the page in the browser")
    command.add_argument("-m", dest="module", action="store_true", help="a module, not a file")
    command.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Trace the program, write what was asked for, and return the program's exit code."""
    # Resolved and checked before the program runs: it may change folders, and may run for hours.
    asked = (
        ("html", arguments.output),
        ("json", arguments.json),
        ("perfetto", arguments.perfetto),
    )
    files = {form: file.absolute() for form, file in asked if file is not None}
    problem = _problem(arguments, list(files.values()))
    if problem:
        print(f"penstock trace: {problem}", file=sys.stderr)
        return 2
    title = " ".join(["-m"] * arguments.module + arguments.program)
    with _own_error_stream() as said:
        with trace(kernels=arguments.kernels) as receipt:
            code = run_program(arguments.program, module=arguments.module)
        _save(receipt, files, title, said)
    if arguments.open:
        webbrowser.open(files["html"].as_uri())
    return code


def _problem(arguments: argparse.Namespace, files: Sequence[Path]) -> str:
    """An error in the arguments, found before the program runs; "" if there is none."""
    if not arguments.program:
        return "which program? penstock trace [options] script.py [its arguments]"
    script = Path(arguments.program[0])
    if not arguments.module and not script.is_file():
        return f"there is no file {str(script)!r}"
    for file in files:
        if file.is_dir():
            return f"{str(file)!r} is a folder; name a file in it"
        if not file.parent.is_dir():
            return f"there is no folder {str(file.parent)!r} to write {file.name} to"
    return ""


@contextlib.contextmanager
def _own_error_stream() -> Iterator[TextIO]:
    """Standard error, for messages after the program's end: the program may close its own."""
    try:
        own = os.fdopen(os.dup(sys.stderr.fileno()), "w", errors="backslashreplace")
    except (OSError, ValueError, AttributeError):  # closed, or no file
        yield sys.stderr
    else:
        with own:
            yield own


def _save(receipt: Trace, files: dict[str, Path], title: str, said: TextIO) -> None:
    receipt.wait_for_times()
    lines = str(receipt).splitlines()
    summary = lines[: lines.index("  in detail")] if "  in detail" in lines else lines
    # The program may print receipts of its own, of parts of it.
    whole = "penstock receipt of the whole program,"
    summary = [re.sub("^penstock receipt,", whole, line) for line in summary]
    tips = [f"  advice: {each}" for each in receipt.advice]
    print("\n".join(summary + tips), file=said)
    save = {
        "html": receipt.save_html,
        "json": receipt.save_json,
        "perfetto": receipt.save_perfetto,
    }
    for form, file in files.items():
        save[form](file, title)
        print(f"{form:<9} {file}", file=said)


def run_program(program: Sequence[str], *, module: bool = False) -> int:
    """Run a script or a module as Python would; returns its exit code."""
    name = program[0]
    others = threading.enumerate()
    first = os.getcwd() if module else str(Path(name).resolve().parent)
    with _in_place_of_ours(list(program), first):
        try:
            if module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                _run_script(name)
            code = 0
        except SystemExit as error:
            code = _exit_code(error)
        except BaseException as error:
            _report(error)
            code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        # As the interpreter does before it ends.
        for thread in threading.enumerate():
            if not thread.daemon and thread not in others:
                thread.join()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
    return code


def _run_script(name: str) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=name, __builtins__=builtins)
    sys.modules["__main__"] = main
    with io.open_code(str(Path(name).resolve())) as file:
        source = file.read()
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)


@contextlib.contextmanager
def _in_place_of_ours(program: list[str], first: str) -> Iterator[None]:
    """Set `sys.argv` and the head of `sys.path` for the program; restores ours afterwards."""
    main, arguments, path = sys.modules["__main__"], sys.argv, sys.path[:]
    sys.argv = program
    if not sys.flags.safe_path:
        sys.path[0] = first
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = main, arguments, path


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    """Print the traceback as Python would, starting with the program's frames."""
    frames = error.__traceback__
    ours = {__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap>"}
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    try:
        sys.excepthook(type(error), error.with_traceback(frames), frames)
    except BaseException:
        traceback.print_exception(error)
