"""Every check and every step of the native launch, removed or weakened in the C source.

`python -m mutation native [NAME ...]` builds the module with each in turn, and runs the programs of
`tests.native.differential`, whose every driver call must be the one that Python makes. A mutant is
caught if the output differs, or the process crashes or hangs. Mutants of what the native step does
over a driver in Python are caught by tests over the stand-in for HIP.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tools import build_native

_PROGRAMS = ("0", "8", "250")  # the first seed, how many, and steps of each
_LIMIT = 120  # seconds for one mutant
_HIP = "tests/native/test_native_hip.py"
_RUN = """
import runpy, sys
import penstock
penstock.__path__.insert(0, sys.argv.pop(1))
runpy.run_module("tests.native.differential", run_name="__main__")
"""


_TEST = """
import sys
import penstock
penstock.__path__.insert(0, sys.argv.pop(1))
import pytest
sys.exit(pytest.main(["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", sys.argv[1]]))
"""


class NativeMutant(NamedTuple):
    """A piece of a C file, which occurs there once, and its replacement."""

    name: str
    file: str
    old: str
    new: str
    also: tuple[tuple[str, str, str], ...] = ()  # further changes: file, old, new
    tests: str = ""  #: the tests that notice it, if the programs cannot


NATIVE = (
    # Names and numbers.
    NativeMutant("a missing argument", "call.c", "if (found != wanted)", "if (found > wanted)"),
    NativeMutant(
        "a number that does not fit", "call.c",
        "else if (overflow || small < INTEGERS[i].least ||\n"
        "                 (small > 0 && bits > INTEGERS[i].most))\n            return 0;",
        "",
    ),
    NativeMutant(
        "a number that is none", "call.c",
        "if (!PyFloat_CheckExact(value) && !PyLong_CheckExact(value))\n            return 0;", "",
    ),
    NativeMutant("a float that overflows", "call.c", "return !failed;", "return 1;"),
    NativeMutant(
        "counts of other types", "call.c", "if (!PyTuple_CheckExact(groups))\n        return 0;",
        "if (!PyTuple_CheckExact(groups))\n        return PyNumber_Check(groups);",
    ),
    NativeMutant(
        "a launch of no groups", "call.c", "number(PyTuple_GET_ITEM(counts, 0)) > 0 ? counts",
        "number(PyTuple_GET_ITEM(counts, 0)) >= 0 ? counts",
    ),
    # Arrays.
    NativeMutant(
        "an array that was not checked", "call.c",
        "PySet_Contains(accepted, PyTuple_GET_ITEM(self->wants, i)) == 1;", "1;",
    ),
    NativeMutant(
        "an array that has moved", "call.c", "return SLOT(*bound, Bound_backing) == backing &&",
        "return",
    ),
    NativeMutant(
        "an array that a view shows", "call.c",
        "PyList_GET_SIZE(SLOT(backing, Backing_views)) == 0 &&", "",
    ),
    NativeMutant(
        "an array that is closed", "call.c", "SLOT(buffer, Buffer_closed) == Py_False &&", "",
    ),
    NativeMutant(
        "an array that may not be written", "call.c",
        "(!self->writes[i] || SLOT(buffer, Buffer_guarded) == Py_False) &&", "",
    ),
    NativeMutant(
        "a write counts as a read", "call.c",
        "            launch->uses[i] = SLOT(bound, Bound_writing);", "            ;",
    ),
    # Device and stream.
    NativeMutant(
        "a trace or a capture", "call.c",
        "SLOT(self->scheduler, Scheduler_plain) != Py_True) /* a forked child has no lock to take "
        "*/",
        "0)",
        (("call.c", "SLOT(self->scheduler, Scheduler_plain) != Py_True ||\n", ""),),
    ),
    NativeMutant(
        "a call within a call", "call.c", "if (locked != Py_False)\n        return NULL;", "",
    ),
    # The ledger.
    NativeMutant(
        "conflicts of overlapping parts", "ledger.c", "if (!shared)\n                continue;",
        "if (1)\n                continue;",
    ),
    NativeMutant(
        "waits for another stream", "ledger.c",
        "return -1; /* a wait for another lane */", "continue;",
    ),
    NativeMutant(
        "a write after reads", "ledger.c",
        "return needs_after(lane, SLOT(history, History_reads), region, barrier);", "return 0;",
    ),
    NativeMutant(
        "a read after a write", "ledger.c",
        "    if (needs_after(lane, SLOT(history, History_writes), region, barrier) < 0)\n"
        "        return -1;\n", "",
    ),
    NativeMutant(
        "an access of another stream's", "ledger.c", "&& SLOT(known, Access_lane) == lane)", ")",
    ),
    NativeMutant(
        "the value of an access", "ledger.c",
        "put(&SLOT(known, Access_value), value);", "",
    ),
    NativeMutant(
        "the epoch of an access", "ledger.c",
        "put(&SLOT(known, Access_epoch), SLOT(lane, Lane_epoch));", "",
    ),
    NativeMutant(
        "reads that a write crosses out", "ledger.c",
        "(write == Py_False || (PyList_GET_SIZE(reads) == 0 && PyList_GET_SIZE(writes) == 1))",
        "(write == Py_False || PyList_GET_SIZE(writes) == 1)",
    ),
    NativeMutant("the barrier", "call.c", "    if (barrier && (", "    if (0 && ("),
    NativeMutant(
        "the epoch of a barrier", "call.c", "number(SLOT(lane, Lane_epoch)) + 1) < 0",
        "number(SLOT(lane, Lane_epoch))) < 0",
    ),
    NativeMutant(
        "the ledger's note", "call.c",
        "if (ledger_note(lane, use, value, self->what) < 0)", "if (0)",
    ),
    NativeMutant(
        "that writes are to be published", "call.c",
        "            SLOT(PyTuple_GET_ITEM(use, 0), History_device_only) != Py_True)\n"
        "            put(&SLOT(batch, Batch_must_publish), Py_True);",
        "            0)\n            ;",
    ),
    NativeMutant(
        "that a result is to be published", "call.c",
        "            goto end;\n        put(&SLOT(batch, Batch_must_publish), Py_True);",
        "            goto end;",
    ),
    # Commands.
    NativeMutant(
        "a pipeline that is bound already", "recorder.c",
        "if (SLOT(commands, Commands__program) != program) {", "if (0) {",
    ),
    NativeMutant(
        "what another pipeline had bound", "recorder.c",
        "        put(&SLOT(commands, Commands__bindings), Py_None);\n", "",
    ),
    NativeMutant(
        "numbers that another pipeline had", "recorder.c",
        "        put(&SLOT(commands, Commands__pushed), Py_None);\n", "",
    ),
    NativeMutant(
        "bindings that have changed", "recorder.c",
        "if (!same_numbers(bindings, SLOT(commands, Commands__bindings))) {",
        "if (SLOT(commands, Commands__bindings) == Py_None) {",
    ),
    NativeMutant(
        "numbers that have changed", "recorder.c",
        "!same_bytes(block, SLOT(commands, Commands__pushed))) {",
        "SLOT(commands, Commands__pushed) == Py_None) {",
    ),
    NativeMutant(
        "freed memory in a command buffer", "recorder.c",
        " ||\n        number(PyTuple_GET_ITEM(content, 0)) != number(generation))", ")",
    ),
    NativeMutant(
        "the bindings of a lone launch", "recorder.c",
        "            same_numbers(PyTuple_GET_ITEM(first, 1), PyTuple_GET_ITEM(known, 1)) &&\n", "",
    ),
    NativeMutant(
        "the numbers of a lone launch", "recorder.c",
        "            same_bytes(PyTuple_GET_ITEM(first, 2), PyTuple_GET_ITEM(known, 2)) &&\n", "",
    ),
    NativeMutant(
        "the kernel of a lone launch", "recorder.c",
        "            PyTuple_GET_ITEM(known, 0) == PyTuple_GET_ITEM(first, 0) &&\n", "",
    ),
    NativeMutant(
        "what a lone launch publishes", "recorder.c",
        "    if (publish)\n        recorder->barrier(recorder->command, recorder->to_host);\n", "",
    ),
    NativeMutant(
        "the end of a command buffer", "recorder.c", "recorder->end(recorder->command)", "0",
    ),
    # Submissions.
    NativeMutant(
        "what a submission waits for", "stream.c",
        " || PyDict_GET_SIZE(SLOT(stream, Stream__waits)))\n        return 0;\n"
        "    if (SLOT(batch, Batch_must_publish)",
        ")\n        return 0;\n    if (SLOT(batch, Batch_must_publish)",
    ),
    NativeMutant(
        "waits of the submission before", "recorder.c",
        "        number(SLOT(queue, VulkanQueue__waited)) != 0 ||\n", "",
    ),
    NativeMutant(
        "what is to be published", "stream.c",
        "if (SLOT(batch, Batch_must_publish) == Py_True) {", "if (0) {",
    ),
    NativeMutant(
        "that a batch is submitted", "stream.c",
        "    put(&SLOT(lane, Lane_submitted), value);\n", "",
    ),
    NativeMutant(
        "a recording in flight", "stream.c",
        "if (number(SLOT(oldest, Batch_value)) > complete)\n                break;", "",
    ),
    NativeMutant(
        "that the device is busy", "stream.c", "if ((dry || count >= LONGEST) &&", "if (",
    ),
    NativeMutant(
        "how much to hand over at a time", "stream.c",
        "put_number(&SLOT(policy, SubmitPolicy_first_look), dry ? next : 1) == 0)", "1)",
    ),
    # Drivers in Python.
    NativeMutant(
        "a loss when it polls", "stream.c",
        "    if (asked < 0)\n        return failed(SLOT(stream, Stream_scheduler));",
        "    if (asked < 0)\n        return -1;", tests=_HIP,
    ),
    NativeMutant(
        "a failed poll of a launch", "stream.c", "    if (polled < 0)\n        return -1;\n",
        "    PyErr_Clear();\n", tests=_HIP,
    ),
    NativeMutant(
        "a failed poll of a new batch", "stream.c",
        "        if (polled <= 0)\n            return polled;",
        "        if (!polled)\n            return 0;\n        PyErr_Clear();", tests=_HIP,
    ),
    NativeMutant(
        "a loss when it submits", "stream.c",
        "    if (submitted < 0)\n        return failed(SLOT(stream, Stream_scheduler));",
        "    if (submitted < 0)\n        return -1;", tests=_HIP,
    ),
    NativeMutant(
        "a loss when it waits", "stream.c", "reached < 0 && failed(scheduler) < 0", "reached < 0",
        tests=_HIP,
    ),
    NativeMutant(
        "no memory to submit", "stream.c",
        "    if (!PyErr_ExceptionMatches((PyObject *)is.OutOfMemory))\n        return -1;",
        "    if (1)\n        return -1;", tests=_HIP,
    ),
    NativeMutant(
        "an error of a submission", "stream.c",
        "    if (!PyErr_ExceptionMatches((PyObject *)is.OutOfMemory))\n        return -1;", "",
        tests=_HIP,
    ),
    NativeMutant(
        "that a value is not reached", "recorder.c", "asked < 0 ? -1 : reached >= value",
        "asked < 0 ? -1 : 1", tests=_HIP,
    ),
    NativeMutant(
        "the guest of a failed wait", "stream.c",
        "    PySet_Discard(SLOT(shutdown, Shutdown_guests), guest);\n",
        "    if (reached >= 0)\n        PySet_Discard(SLOT(shutdown, Shutdown_guests), guest);\n",
        tests=_HIP,
    ),
)  # fmt: skip


def outcome_of(mutant: NativeMutant | None, folder: Path) -> str | None:
    """What the programs or tests say with a mutant, or without; None if they fail or hang."""
    place = folder / (mutant.name.replace(" ", "-") if mutant else "intact")
    sources = place / "sources"
    shutil.copytree(build_native.SOURCES, sources)
    if mutant is not None:
        for file, old, new in ((mutant.file, mutant.old, mutant.new), *mutant.also):
            text = (sources / file).read_text()
            if text.count(old) != 1:
                raise SystemExit(f"mutation: {mutant.name!r} does not fit native/{file} any more")
            (sources / file).write_text(text.replace(old, new))
    build_native.build(place, ["-O1", "-w"], sources)
    if mutant is not None and mutant.tests:
        return _run([sys.executable, "-c", _TEST, str(place), mutant.tests], PENSTOCK_NATIVE="1")
    return run_programs(str(place))


def run_programs(folder: str = "", **settings: str) -> str | None:
    """What the programs say, with the module in a folder."""
    given = {"LP_NUM_THREADS": "0", "PENSTOCK_NATIVE": "1", **settings}
    return _run([sys.executable, "-c", _RUN, folder, *_PROGRAMS], **given)


def _run(command: Sequence[str], **settings: str) -> str | None:
    environment = {**os.environ, **settings}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode else done.stdout


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m mutation native", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of mutants, or parts of them (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(words)
    only = arguments.only
    chosen = [m for m in NATIVE if not only or any(each in m.name for each in only)]
    expected = run_programs(PENSTOCK_NATIVE="0")
    if expected is None:
        raise SystemExit("mutation: the programs break down without the native step")
    caught = {}
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as made:
        folder = Path(made)
        if outcome_of(None, folder) != expected:
            raise SystemExit("mutation: the native step differs from Python without any mutant")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            outcomes = pool.map(lambda mutant: outcome_of(mutant, folder), chosen)
            for mutant, outcome in zip(chosen, outcomes, strict=True):
                how = "a crash" if outcome is None else "other calls"
                if mutant.tests:
                    caught[mutant.name] = "a test" if outcome is None else ""
                else:
                    caught[mutant.name] = how if outcome != expected else ""
                if not arguments.json:
                    how = caught[mutant.name]
                    verdict = f"caught by {how}" if how else "SURVIVED"
                    print(f"{mutant.name:<45} {verdict}", flush=True)
    if arguments.json:
        print(json.dumps(caught))
    survivors = sum(not how for how in caught.values())
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants caught", file=sys.stderr)
    return 1 if survivors else 0
