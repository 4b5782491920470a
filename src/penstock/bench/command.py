"""`penstock bench`: a model, `runtime`, `mechanisms`, `compare` or `report`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.bench import forms, plots
from penstock.bench.values import numbers, pairs
from penstock.cli.parser import Parser
from penstock.llm.layers import CACHE_TYPES
from penstock.llm.modelfile import find
from penstock.llm.progress_bar import Bar

_OTHERS = ("runtime", "mechanisms", "compare", "report")
_QUICK = (
    "--quick only tries that everything runs: in so few rounds no effect can be told; leave it out "
    "to measure"
)
_USAGE = """penstock bench MODEL… [-p 512] [-n 128] [-d 0] [-r 5] [-o md] [--ablate] …
       penstock bench runtime [-r 20] [-o md] [--only launch,transfer] …
       penstock bench mechanisms [--only load,access] [--sizes 0.1,2] [--quick] …
       penstock bench compare BEFORE.json AFTER.json
       penstock bench report FILE.json… -o DIRECTORY"""


def add_options(command: argparse.ArgumentParser) -> None:
    command.usage = _USAGE
    command.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    words: list[str] = arguments.words
    if words and words[0] in _OTHERS:
        others = {
            "runtime": _runtime, "mechanisms": _mechanisms, "compare": _compare, "report": _report,
        }  # fmt: skip
        return others[words[0]](words[1:])
    return _model(words)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each thing that can be measured or done; that of a model has no name."""
    return {
        "": _model_options(),
        "runtime": _runtime_options(),
        "mechanisms": _mechanisms_options(),
        "compare": _compare_options(),
        "report": _report_options(),
    }


# A model.


def _model(words: Sequence[str]) -> int:
    from penstock.bench import ablation, models

    asked = _model_options().parse_args(words)
    named = [*asked.models, *asked.more]
    if not named:
        raise ps.InvalidValue(f"which model? Usage: {_USAGE}")
    plan = models.Plan(
        models=[find(name) for name in named],
        tests=_tests(asked),
        batches=_several("-b", asked.batch, [64]),
        caches=asked.cache.split(","),
        repeat=asked.repetitions,
        warm_up=not asked.no_warmup,
        delay=asked.delay,
    )
    _check(plan.repeat, plan.caches, plan.batches)
    rows: Iterable[dict[str, Any]]
    if asked.ablate:
        test = next((one for one in plan.tests if one.n_gen and not one.n_prompt), None)
        if test is None or len(plan.models) > 1:
            raise ps.InvalidValue("--ablate takes one model, and the first test of -n")
        rows = ablation.ablate(
            plan.models[0], asked.device, test, batch=plan.batches[0], cache=plan.caches[0],
            repeat=plan.repeat, progress=_progress,
        )  # fmt: skip
        _print(asked, rows, forms.ablation_columns())
        return 0
    varied = ["n_batch"] * (len(plan.batches) > 1) + ["type_k"] * (len(plan.caches) > 1)
    with ps.Device(asked.device) as device:
        _print(asked, models.measure(plan, device, _progress), forms.model_columns(varied))
    return 0


def _model_options() -> argparse.ArgumentParser:
    parser = Parser(
        prog="penstock bench", usage=_USAGE, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Tokens per second, and what a token costs, by llama-bench's rules.",
        epilog="Options that take numbers take lists and ranges, and may be repeated: -p 128,256 "
        "-d 0-4096+1024 -b 1-64*2.\nEvery combination is a row.",
    )  # fmt: skip
    add = parser.add_argument
    add("models", nargs="*", help=".gguf files, directories of safetensors, or 'smollm2'")
    add("-m", "--model", dest="more", action="append", default=[], help="the same, as an option")
    add("-p", "--n-prompt", action="append", help="tokens of a prompt; 0: none (512)")
    add("-n", "--n-gen", action="append", help="tokens that are generated; 0: none (128)")
    add("-pg", dest="both", action="append", default=[], help="a prompt and tokens in one: 512,128")
    add("-d", "--n-depth", action="append", help="tokens in the cache before (0)")
    add("-b", "--batch-size", "-ub", dest="batch", action="append", help="of a prompt (64)")
    add(
        "-ctk",
        "-ctv",
        "--cache-type",
        dest="cache",
        default="f16",
        help="f16, f32, q8_0 (%(default)s)",
    )
    add("--ablate", action="store_true", help="decode without each mechanism in turn")
    _add_common(parser, repetitions=5)
    add("--delay", type=float, default=0, help="seconds between runs (%(default)s)")
    add("--no-warmup", action="store_true", help="do not run everything once before")
    return parser


def _add_common(parser: argparse.ArgumentParser, repetitions: int) -> None:
    add = parser.add_argument
    add("-r", "--repetitions", type=int, default=repetitions, help="runs (%(default)s)")
    add("-o", "--output", choices=forms.NAMES, default="md", help="to the terminal (%(default)s)")
    add("-oe", "--output-err", choices=forms.NAMES, help="the same in another form, to stderr")
    add("--save", type=Path, metavar="FILE", help="also write JSON, for compare and report")
    add("-dev", "--device", help="part of a device's name (default: the best)")


def _tests(asked: argparse.Namespace) -> list[Any]:
    from penstock.bench.models import Test

    prompts = _several("-p", asked.n_prompt, [512])
    generated = _several("-n", asked.n_gen, [128])
    if asked.both and asked.n_prompt is None and asked.n_gen is None:
        prompts, generated = [], []
    tests = []
    for depth in _several("-d", asked.n_depth, [0]):
        tests += [Test(count, 0, depth) for count in prompts if count]
        tests += [Test(0, count, depth) for count in generated if count]
        tests += [Test(*pairs("-pg", text), depth) for text in asked.both]
    if not tests:
        raise ps.InvalidValue("-p 0 -n 0 leaves nothing to measure")
    return tests


def _several(option: str, given: Sequence[str] | None, usual: list[int]) -> list[int]:
    return usual if given is None else [value for text in given for value in numbers(option, text)]


def _check(repeat: int, caches: Sequence[str], batches: Sequence[int]) -> None:
    if repeat < 1:
        raise ps.InvalidValue(f"-r {repeat}; at least one run is needed")
    if unknown := [name for name in caches if name not in CACHE_TYPES]:
        raise ps.InvalidValue(
            f"-ctk {','.join(unknown)}; keys and values are stored as {', '.join(CACHE_TYPES)}"
        )
    if min(batches) < 1:
        raise ps.InvalidValue("-b 0; at least one token is read at a time")


# The others.


def _runtime_options() -> argparse.ArgumentParser:
    from penstock.bench import runtime

    parser = Parser(
        prog="penstock bench runtime",
        description="What the runtime's own work costs, compared with bare driver calls or NumPy.",
    )
    _add_common(parser, repetitions=20)
    parser.add_argument(
        "--only", help=f"some groups: {', '.join(runtime.GROUPS)} (default: all)", metavar="GROUPS"
    )
    return parser


def _runtime(words: Sequence[str]) -> int:
    from penstock.bench import runtime

    asked = _runtime_options().parse_args(words)
    groups = asked.only.split(",") if asked.only else list(runtime.GROUPS)
    if unknown := sorted(set(groups) - set(runtime.GROUPS)):
        raise ps.InvalidValue(f"--only knows {', '.join(runtime.GROUPS)}; not {', '.join(unknown)}")
    _check(asked.repetitions, (), (1,))
    _leave_a_core()
    with ps.Device(asked.device) as device:
        rows = runtime.measure(device, groups, asked.repetitions, _progress)
        _print(asked, rows, forms.runtime_columns())
    return 0


def _leave_a_core() -> None:
    # Lavapipe's worker threads would compete with the interpreter for the cores. Mesa reads this
    # when it is loaded, which the first device does.
    os.environ.setdefault("LP_NUM_THREADS", "0")


def _mechanisms_options() -> argparse.ArgumentParser:
    from penstock.bench.mechanisms.measuring import MECHANISMS

    parser = Parser(
        prog="penstock bench mechanisms",
        description="What each mechanism is worth where its effect lies: the same work with it on "
        "and off, in turn. Prints a table, and makes a page and plots of it.",
    )
    _add_common(parser, repetitions=10)
    add = parser.add_argument
    add("--only", help=f"some of: {', '.join(MECHANISMS)} (default: all)", metavar="NAMES")
    add(
        "--quick",
        action="store_true",
        help="only try that everything runs: small sizes, two rounds, no figures",
    )
    add(
        "--sizes", default="0.1,0.5,2", metavar="GB",
        help="of the model files that are loaded (%(default)s); the disk must hold them all",
    )  # fmt: skip
    add("--models", type=Path, metavar="DIR", help="keep model files there (default: delete them)")
    add(
        "--report", type=Path, default=Path("bench-report"), metavar="DIR",
        help="where page and plots go (%(default)s)",
    )  # fmt: skip
    add("--no-report", action="store_true", help="the table only")
    add("--docs", type=Path, metavar="FILE", help="also rewrite the generated text of this page")
    return parser


def _mechanisms(words: Sequence[str]) -> int:
    from penstock.bench.mechanisms import document, measuring, model_files
    from penstock.bench.mechanisms.comparison import Plan

    asked = _mechanisms_options().parse_args(words)
    mechanisms = measuring.chosen(asked.only)
    sizes = _gigabytes(asked.sizes)
    _check(asked.repetitions, (), (1,))
    if asked.docs:
        document.BLOCK.read(asked.docs)  # raises before anything is measured
        if not plots.are_possible():
            raise ps.Unsupported(plots.MISSING)
    report = None if asked.no_report else asked.report
    if report and not plots.are_possible():
        print(f"no page: {plots.MISSING}", file=sys.stderr)
        report = None
    _leave_a_core()
    with ExitStack() as ending:
        directory = asked.models
        if directory is None:
            directory = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
        directory.mkdir(parents=True, exist_ok=True)
        if not asked.quick and any(one.name == "load" for one in mechanisms):
            model_files.check_room(directory, sizes)
        device = ending.enter_context(ps.Device(asked.device))
        repeat = min(2, asked.repetitions) if asked.quick else asked.repetitions
        plan = Plan(device, directory, sizes, repeat, asked.quick, _progress)
        rows = _print(asked, measuring.measure(plan, mechanisms), document.all_columns())
    if asked.quick:
        print(_QUICK, file=sys.stderr)
    for made in _pages(rows, report, asked.docs):
        print(made, file=sys.stderr)
    return 0


def _gigabytes(given: str) -> list[float]:
    try:
        sizes = [float(one) for one in given.split(",")]
    except ValueError:
        sizes = []
    if not sizes or not all(0.02 <= size <= 16 for size in sizes):
        raise ps.InvalidValue(
            f"--sizes {given!r}; write gigabytes from 0.02 to 16, as in 0.1,0.5,2"
        )
    return sizes


def _compare_options() -> argparse.ArgumentParser:
    parser = Parser(prog="penstock bench compare", description="Before and after, row by row.")
    parser.add_argument("before", type=Path, help="JSON of penstock bench")
    parser.add_argument("after", type=Path, help="JSON of the same, later")
    parser.add_argument(
        "--fail-on", choices=("worse", "counts", "never"), default="worse",
        help="exit with 1 if anything got worse, or only if a count did (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--least", type=float, default=2.0, metavar="PERCENT",
        help="what is never called a difference (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", choices=("md", "json"), default="md", help="to the terminal (%(default)s)"
    )
    return parser


def _compare(words: Sequence[str]) -> int:
    from penstock.bench import compare

    asked = _compare_options().parse_args(words)
    found = compare.compare(compare.read(asked.before), compare.read(asked.after), asked.least)
    print(compare.as_json(found) if asked.output == "json" else compare.as_text(found))
    return compare.exit_code(found, asked.fail_on)


def _report_options() -> argparse.ArgumentParser:
    parser = Parser(
        prog="penstock bench report",
        description="A page and plots of what was measured. Needs: pip install penstock-gpu[bench]",
    )
    parser.add_argument("files", nargs="+", type=Path, help="JSON of penstock bench")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("bench-report"), metavar="DIR",
        help="where to (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--docs", type=Path, metavar="FILE",
        help="also rewrite the generated text about mechanisms of this page, and its plots",
    )  # fmt: skip
    return parser


def _report(words: Sequence[str]) -> int:
    from penstock.bench import compare

    asked = _report_options().parse_args(words)
    rows = [row for file in asked.files for row in compare.read(file)]
    for made in _pages(rows, asked.output, asked.docs):
        print(made)
    return 0


def _pages(
    rows: Sequence[dict[str, Any]], directory: Path | None, docs: Path | None
) -> Iterator[Path]:
    """Write what was asked for; each file as it is there."""
    from penstock.bench import report

    if docs:
        yield from report.write_docs(rows, docs)
    if directory:
        yield from report.write(rows, directory)


# Output.


def _progress(what: str, done: int, total: int) -> None:
    """Show a bar for what is being measured, on a terminal."""
    Bar(f"{what:<32.32}", "runs")(done, total)


def _print(
    asked: argparse.Namespace, rows: Iterable[dict[str, Any]], columns: Sequence[forms.Column]
) -> list[dict[str, Any]]:
    """Print rows as they come, in the forms that were asked for; returns them."""
    kept: list[dict[str, Any]] = []

    def keeping() -> Iterable[dict[str, Any]]:
        for row in rows:
            kept.append(row)
            yield row

    for line in forms.write(asked.output, keeping(), columns):
        print(line, flush=True)
    if asked.output == "md" and kept:
        about = kept[0]
        print(
            f"\n{about['command']}\n{about['cpu_info']}, {about['gpu_info']}, load {about['load']}"
        )
        print(about["settings"])
        print(f"build: {about['build_commit']} ({about['build_number']})")
    if asked.output_err:
        for line in forms.write(asked.output_err, kept, columns):
            print(line, file=sys.stderr)
    if asked.save:
        asked.save.write_text("\n".join(forms.write("json", kept, columns)) + "\n")
    return kept
