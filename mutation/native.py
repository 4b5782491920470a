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
from collections.abc import Callable, Iterator, Sequence
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
module = sys.argv.pop(1)
penstock.__path__.insert(0, sys.argv.pop(1))
runpy.run_module(module, run_name="__main__")
"""
_PYTEST = ("-x", "-q", "--assert=plain", "-p", "no:cacheprovider")


class NativeMutant(NamedTuple):
    """A piece of a C file, which occurs there once, and its replacement."""

    name: str
    file: str
    old: str
    new: str
    also: tuple[tuple[str, str, str], ...] = ()  # further changes: file, old, new
    tests: str = ""  #: the tests that notice it, if the programs cannot

    @property
    def file_name(self) -> str:
        return self.name.replace(" ", "-")

    @property
    def changes(self) -> tuple[tuple[str, str, str], ...]:
        return ((self.file, self.old, self.new), *self.also)

    def applied(self, folder: Path) -> Path:
        """Copy the sources into a new folder, and change them."""
        shutil.copytree(build_native.SOURCES, folder)
        for file, old, new in self.changes:
            text = (folder / file).read_text()
            if text.count(old) != 1:
                raise SystemExit(f"mutation: {self.name!r} does not fit native/{file} any more")
            (folder / file).write_text(text.replace(old, new))
        return folder


NATIVE = (
    # Names and numbers.
    NativeMutant(
        "a missing argument", "call.c", "return found == wanted;", "return found <= wanted;",
    ),
    NativeMutant(
        "a number that does not fit", "call.c",
        "else if (overflow || small < INTEGERS[i].least ||\n"
        "                 (small > 0 && bits > INTEGERS[i].most))\n            return 0;",
        "",
    ),
    NativeMutant(
        "a number that is none", "call.c",
        "if (!is_number(numbers, value))\n        return 0;", "",
    ),
    NativeMutant(
        "numbers of the caller's own classes", "call.c", "PySet_Contains(numbers, type) == 1", "1",
    ),
    NativeMutant(
        "code that runs for a class", "call.c", "Py_TYPE(type) == &PyType_Type && ", "",
    ),
    NativeMutant(
        "a fraction where an integer is wanted", "call.c", "PyNumber_Index(value)",
        "PyNumber_Long(value)",
    ),
    NativeMutant(
        "the int of a number of NumPy's", "call.c", "        Py_XDECREF(whole);\n", "",
        tests="tests/native/test_native.py::test_nothing_is_left_behind",
    ),
    NativeMutant(
        "an int that no float holds", "call.c",
        "    if (number == -1.0 && PyErr_Occurred())\n        return -1;\n",
        "    PyErr_Clear();\n",
    ),
    NativeMutant(
        "a float that overflows", "call.c", "packed = pack_float(scalar->code, value, to) == 0;",
        "packed = pack_float(scalar->code, value, to) <= 0, PyErr_Clear();",
    ),
    NativeMutant(
        "counts of other types", "call.c", "if (!PyTuple_CheckExact(asked))\n        return 0;",
        "if (!PyTuple_CheckExact(asked))\n        return PyNumber_Check(asked);",
    ),
    NativeMutant(
        "a launch of no groups", "call.c", "number(PyTuple_GET_ITEM(counts, 0)) <= 0)",
        "number(PyTuple_GET_ITEM(counts, 0)) < 0)",
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
        " &&\n           (!self->writes[i] || SLOT(buffer, Buffer_guarded) == Py_False)", "",
    ),
    NativeMutant(
        "a write counts as a read", "call.c",
        "            launch->uses[i] = SLOT(bound, Bound_writing);", "            ;",
    ),
    NativeMutant(
        "texels bound as a buffer", "call.c", "    if (format == Py_None)\n", "    if (1)\n",
    ),
    NativeMutant(
        "texels that have no view yet", "call.c",
        "return view == NULL ? NULL : PyTuple_GET_ITEM(view, 0);",
        "return view == NULL ? SLOT(bound, Bound_place) : PyTuple_GET_ITEM(view, 0);",
    ),
    # Device and stream.
    NativeMutant(
        "a graph that is being captured", "lock.c",
        "if (slot_of(scheduler, condition) != Py_True) /* a forked child has no lock to take */",
        "if (0)",
        (("lock.c", "if (slot_of(scheduler, condition) == Py_True)", "if (1)"),),
    ),
    NativeMutant(
        "a call within a call", "lock.c",
        "&& (is_own(lock) || sleep_and_take(lock) < 0))",
        "&& !is_own(lock) && sleep_and_take(lock) < 0)",
    ),
    NativeMutant(
        "that the lock is released", "lock.c",
        "    release((Lock *)SLOT(scheduler, Scheduler_mutex));", "    (void)scheduler;",
    ),
    NativeMutant(
        "that a sleeper is woken", "lock.c",
        "    if (atomic_load(&lock->sleepers) && ", "    if (0 && ",
        tests="tests/native/test_lock.py",
    ),
    NativeMutant(
        "that the alarm can be rung again", "lock.c",
        "            atomic_store(&lock->rung, 0);", "            ;",
        tests="tests/native/test_lock.py",
    ),
    NativeMutant(
        "that the lock has one owner", "lock.c",
        "    return atomic_compare_exchange_strong(&lock->owner, &found,",
        "    found = lock->owner;\n    return atomic_compare_exchange_strong(&lock->owner, &found,",
        tests="tests/native/test_lock.py",
    ),
    NativeMutant(
        "that only its owner releases the lock", "lock.c",
        "    if (!is_own((Lock *)self)) {", "    if (0) {", tests="tests/native/test_lock.py",
    ),
    NativeMutant(
        "an interrupt of the wait for the lock", "lock.c",
        "            taken = -1;", "            PyErr_Clear();", tests="tests/native/test_lock.py",
    ),
    NativeMutant(
        "a stream of another device", "call.c",
        " ||\n        SLOT(launch.stream, Stream_scheduler) != self->scheduler)\n", ")\n",
        tests="tests/native/test_native.py::test_a_kernel_of_another_device",
    ),
    NativeMutant(
        "which binding is which", "call.c", "PyBytes_AS_STRING(flat) + PLACE * i,",
        "PyBytes_AS_STRING(flat) + PLACE * (self->bindings - 1 - i),",
    ),
    # The ledger.
    NativeMutant(
        "rows with a pitch", "ledger.c",
        "    if (number(PyTuple_GET_ITEM(a, 3)) || number(PyTuple_GET_ITEM(b, 3)))\n"
        "        return -1;\n", "",
    ),
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
        "return needs_after(lane, SLOT(history, History_reads), region, behind);", "return 0;",
    ),
    NativeMutant(
        "a read after a write", "ledger.c",
        "    if (needs_after(lane, SLOT(history, History_writes), region, behind) < 0)\n"
        "        return -1;\n", "",
    ),
    NativeMutant(
        "an access of another stream's", "ledger.c", "&& SLOT(known, Access_lane) == lane)", ")",
    ),
    NativeMutant(
        "the value of an access", "ledger.c",
        "put(known, Access_value, value);", "",
    ),
    NativeMutant(
        "the epoch of an access", "ledger.c",
        "put(known, Access_epoch, SLOT(lane, Lane_epoch));", "",
    ),
    NativeMutant(
        "reads that a write crosses out", "ledger.c",
        "(write == Py_False || (PyList_GET_SIZE(reads) == 0 && PyList_GET_SIZE(writes) == 1))",
        "(write == Py_False || PyList_GET_SIZE(writes) == 1)",
    ),
    NativeMutant("the barrier", "call.c", "    if (behind != NULL &&\n", "    if (0 &&\n"),
    NativeMutant(
        "a poll while the result is made", "call.c",
        "        if (find_needs(launch) < 0) /* again: whatever made the result may have polled "
        "the stream */\n            goto end;\n", "",
    ),
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
        "            put(batch, Batch_must_publish, Py_True);",
        "            0)\n            ;",
    ),
    NativeMutant(
        "that a result is to be published", "call.c",
        "            goto end;\n        put(batch, Batch_must_publish, Py_True);",
        "            goto end;",
    ),
    # Commands.
    NativeMutant(
        "what a command buffer is reused with", "recorder.c",
        "    put(recording, VulkanRecording__first, Py_None);\n    return 1;", "    return 1;",
    ),
    NativeMutant(
        "that a lone launch is published", "recorder.c",
        "        put(recording, VulkanRecording__published, Py_True);", "        ;",
    ),
    NativeMutant(
        "bytes of another length", "recorder.c",
        "PyBytes_GET_SIZE(a) == PyBytes_GET_SIZE(b) &&\n                      memcmp(",
        "1 || 0 * memcmp(",
    ),
    NativeMutant(
        "what a command buffer has in it", "recorder.c",
        "        put(recording, VulkanRecording__content, content);\n", "",
    ),
    NativeMutant(
        "a launch that begins a command buffer", "recorder.c",
        "            put(recording, VulkanRecording__first, first);\n", "",
    ),
    NativeMutant(
        "a pipeline that is bound already", "recorder.c",
        "if (before != program) {", "if (0) {",
    ),
    NativeMutant(
        "what another pipeline had bound", "recorder.c",
        "            put(commands, Commands__bindings, Py_None);\n", "",
    ),
    NativeMutant(
        "a pipeline with the same layout", "recorder.c",
        "    return Py_TYPE(native) == &Program_Type && native->layout == layout;",
        "    return 0 && layout;",
    ),
    NativeMutant(
        "numbers that another pipeline had", "recorder.c",
        "            put(commands, Commands__pushed, Py_None);\n", "",
    ),
    NativeMutant(
        "bindings that have changed", "recorder.c",
        "if (!same_bytes(bindings, SLOT(commands, Commands__bindings))) {",
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
        "            same_bytes(PyTuple_GET_ITEM(first, 1), PyTuple_GET_ITEM(known, 1)) &&\n", "",
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
    # Receipts.
    NativeMutant(
        "that a trace is active", "call.c",
        "int traced = SLOT(self->scheduler, Scheduler_plain) != Py_True;", "int traced = 0;",
    ),
    NativeMutant(
        "the barrier on a receipt", "call.c", "(traced && trace_barrier(behind, here) < 0) ||", "",
    ),
    NativeMutant(
        "which access a barrier is for", "ledger.c", "if (*behind == NULL && number", "if (number",
    ),
    NativeMutant(
        "the launch on a receipt", "call.c",
        "(trace_launch(self->name, launch->counts, here, launch->uses, self->arrays,\n"
        "                                launch->start) < 0 ||\n", "(\n",
    ),
    NativeMutant(
        "the bytes that a launch binds", "trace.c", "bound += number", "bound = number",
    ),
    NativeMutant(
        "the time that a call takes", "call.c",
        "if (!traces_active || (launch.start = trace_time()) != NULL)", "if (1)",
    ),
    NativeMutant(
        "a poll on a receipt", "stream.c",
        "is_traced(stream) && reached > complete && trace_done(lane, reached) < 0", "0",
    ),
    NativeMutant(
        "a poll that found nothing new", "stream.c", "reached > complete && trace_done",
        "trace_done",
    ),
    NativeMutant(
        "a submission on a receipt", "stream.c", "if (is_traced(stream) || SLOT(batch",
        "if (SLOT(batch",
    ),
    NativeMutant(
        "the command of an event", "trace.c", "number(SLOT(batch, Batch_count)) + 1);",
        "number(SLOT(batch, Batch_count)));",
    ),
    NativeMutant(
        "code that is not the user's", "trace.c",
        "PyObject *code = NULL, *is_user = Py_False,", "PyObject *code = NULL, *is_user = Py_None,",
        (
            ("trace.c", "while (frame != NULL && is_user == Py_False) {", "while (frame) {"),
            ("trace.c", "is_user = PyDict_GetItemWithError(judged, asked->co_filename);",
             "is_user = Py_True;"),
        ),
    ),
    NativeMutant(
        "a file that is met first", "trace.c", "is_user == NULL || PyErr_Occurred()", "0",
    ),
    NativeMutant(
        "a thread that runs no user's code", "trace.c",
        " && PyUnicode_Compare(asked->co_filename, threads_file)) {", ") {",
    ),
    NativeMutant(
        "the second of two traces", "trace.c", "i < PyTuple_GET_SIZE(recording)", "i < 1",
    ),
    NativeMutant("what is counted", "trace.c", "if (is_counting())\n", "if (0)\n"),
    NativeMutant("the bytes of a copy", "trace.c", "count(BYTES_COPIED, nbytes);", ""),
    NativeMutant(
        "the count of a traced launch", "trace.c", "kind == word.launch ? LAUNCHES", "0 ? LAUNCHES",
    ),
    NativeMutant("the count of a launch", "call.c", "count(LAUNCHES, 1);", ";"),
    NativeMutant(
        "the count of a barrier", "call.c", "if (behind != NULL && !traced)", "if (!traced)",
    ),
    NativeMutant("the count of a submission", "stream.c", "count(SUBMISSIONS, 1);", ""),
    NativeMutant("the count of what is published", "stream.c", "count(BARRIERS, 1);", ""),
    NativeMutant("the count of a wait", "stream.c", "count(WAITS, 1);", ";"),
    NativeMutant(
        "a wait for what is done", "stream.c", "asked && come >= number(value)", "asked",
    ),
    NativeMutant("the count of a read", "host.c", "count_copy(array);", ";"),
    NativeMutant("the count of a write", "host.c", "count_copy(args[0]);", ";"),
    NativeMutant("the count of an argument", "carry.c", "count_copy(one->array);", ";"),
    NativeMutant(
        "whether times are wanted", "trace.c",
        "int timed = PyTuple_GET_SIZE(timing) > 0;", "int timed = 1;",
    ),
    NativeMutant("a launch's time", "trace.c", "if (!failed && ended != Py_None) {", "if (0) {"),
    NativeMutant(
        "room for timestamps", "recorder.c",
        " ||\n        number(SLOT(times, Timestamps_count)) - number(SLOT(times, Timestamps_base))"
        " >= ROOM) {", ") {",
    ),
    NativeMutant(
        "the place of a timestamp in its pool", "recorder.c",
        "(uint32_t)(number(query) - number(SLOT(times, Timestamps_base)))",
        "(uint32_t)number(query)",
    ),
    NativeMutant(
        "timestamps of the last use", "recorder.c",
        "        SLOT(commands, PrimaryCommands__timed) != Py_True ||\n", "",
    ),
    NativeMutant(
        "timestamps before the recording has begun", "recorder.c",
        "        SLOT(recording, VulkanRecording__started) != Py_True ||\n"
        "        SLOT(commands, PrimaryCommands__timed)",
        "        SLOT(commands, PrimaryCommands__timed)",
    ),
    NativeMutant(
        "the moment of a timestamp", "recorder.c", "end ? BOTTOM : TOP", "TOP",
    ),
    NativeMutant(
        "the number of the next timestamp", "recorder.c", "number(query) + 1) < 0",
        "number(query)) < 0",
    ),
    # Submissions.
    NativeMutant(
        "what a submission waits for", "stream.c",
        " ||\n        PyDict_GET_SIZE(SLOT(stream, Stream__waits)))\n        return 0;\n"
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
        "    put(lane, Lane_submitted, value);\n", "",
    ),
    NativeMutant(
        "a recording in flight", "stream.c",
        "if (number(SLOT(oldest, Batch_value)) > complete)\n                break;", "",
    ),
    NativeMutant(
        "that the device is busy", "stream.c", "if ((dry || count >= LONGEST) &&", "if (",
    ),
    NativeMutant(
        "a block of commands that is put off", "stream.c",
        "    if (PySet_GET_SIZE(SLOT(policy, SubmitPolicy__blocks)))\n"
        "        return put_number(batch, Batch_look_at, NEVER);\n", "",
    ),
    NativeMutant(
        "how far the device has come", "stream.c",
        "    if (number(value) > number(SLOT(lane, Lane_complete)))\n"
        "        old = swap(lane, at.Lane_complete, value);\n", "",
    ),
    NativeMutant(
        "how much to hand over at a time", "stream.c",
        "put_number(policy, SubmitPolicy_first_look, dry ? next : 1) == 0) {", "1) {",
    ),
    # Waits.
    NativeMutant(
        "the wait for a stream", "host.c",
        "? 1\n                      : host_waits(scheduler, lane, value);", "? 1 : 1;",
    ),
    NativeMutant(
        "a stream that waits for another", "host.c",
        "                PyDict_GET_SIZE(SLOT(stream, Stream__waits)) == 0 &&\n", "",
    ),
    NativeMutant(
        "a stream that is closed", "host.c", "SLOT(stream, Stream__closed) == Py_False &&", "",
    ),
    NativeMutant(
        "copies that a stream has yet to make", "host.c",
        "number_in(copies, Lane_submitted) <= number_in(copies, Lane_complete) &&",
        "",
    ),
    NativeMutant(
        "that the host follows closely", "host.c",
        "return put_number(policy, SubmitPolicy_first_look, 1) == 0 &&", "return",
    ),
    NativeMutant(
        "that a point was reached", "stream.c",
        "(reached = timeline_comes(timeline, number(value)))", "(reached = 1)",
    ),
    NativeMutant(
        "a view that a wait would wait for", "stream.c",
        "           PyDict_GET_SIZE(SLOT(views, HostViews_held)) == 0 &&\n", "",
    ),
    # Small reads and writes.
    NativeMutant(
        "work of two streams", "host.c",
        "        if (*lane != NULL && *lane != on)\n            return 0;\n", "",
    ),
    NativeMutant(
        "a write in flight", "host.c",
        "        if (!usual || lane == NULL) {", "        if (1) {",
    ),
    NativeMutant(
        "what a write would disturb", "host.c",
        "find_conflicts(args[0], 1, &lane, &value) && lane == NULL &&", "",
    ),
    NativeMutant(
        "reads that a write would disturb", "host.c",
        "           (!write ||\n            find_conflict(scheduler, SLOT(history, History_reads), "
        "region, write, lane, value));", "           1;",
    ),
    NativeMutant(
        "bytes that have moved", "host.c", " || PyTuple_GET_ITEM(seen, 0) != backing", "",
    ),
    NativeMutant(
        "bytes that a view shows", "host.c",
        "        PyList_GET_SIZE(SLOT(backing, Backing_views)) ||\n", "",
    ),
    NativeMutant(
        "bytes of a closed array", "host.c",
        "SLOT(buffer, Buffer_closed) != Py_False || Py_TYPE(history)", "Py_TYPE(history)",
    ),
    NativeMutant(
        "bytes that are not published", "host.c",
        "        SLOT(history, History_device_only) != Py_False ||\n", "",
    ),
    NativeMutant(
        "bytes that may not be written", "host.c",
        "        (write && SLOT(buffer, Buffer_guarded) != Py_False) ||\n", "",
    ),
    NativeMutant(
        "an array that only the device writes", "host.c",
        "return allowed == Py_True && array_fits(", "return array_fits(",
    ),
    NativeMutant(
        "the dtype of a source", "host.c",
        "dtype == SLOT(array, Array_dtype) && shape != NULL &&", "shape != NULL &&",
    ),
    NativeMutant(
        "the shape of a source", "host.c",
        "               PyObject_RichCompareBool(shape, SLOT(array, Array_shape), Py_EQ) == 1;",
        "               1;",
    ),
    NativeMutant(
        "a source of another class", "host.c", "if (Py_TYPE(source) != Py_TYPE(seen) || ", "if (",
    ),
    NativeMutant(
        "a source in adopted memory", "host.c",
        "Py_TYPE(adopted) != is.HostMemory ||\n"
        "        PyDict_GET_SIZE(SLOT(adopted, HostMemory_pieces)))", "0)",
    ),
    # Results.
    NativeMutant(
        "a result slot in flight", "result.c",
        " ||\n        (lane != Py_None &&\n"
        "         number(SLOT(slot, ResultMemory__value)) > number_in(lane, Lane_complete))) {",
        ") {",
    ),
    NativeMutant(
        "what a result slot had", "result.c", "    memset(raw->buf, 0, (size_t)raw->len);\n", "",
    ),
    NativeMutant(
        "which launch a result slot is of", "result.c",
        "    put(slot, ResultMemory__value, value);\n", "",
    ),
    NativeMutant(
        "the wait for a result", "result.c",
        "        reached = host_waits(scheduler, lane, value);", "        reached = 1;",
    ),
    NativeMutant(
        "that a result slot returns", "result.c",
        "if (SLOT(SLOT(slot, ResultMemory__pool), ResultPool_closed) == Py_False &&", "if (0 &&",
    ),
    NativeMutant(
        "that a result is read once", "result.c",
        "    put(result, Result__memory, Py_None);\n", "",
    ),
    # NumPy arguments.
    NativeMutant(
        "a temporary that is taken", "carry.c",
        "        if (PyList_SetSlice(spare, i, i + 1, NULL) == 0)\n            return 1;",
        "        return 1;",
    ),
    NativeMutant(
        "that a temporary returns", "carry.c",
        "if (locked && PyList_Insert(", "if (0 && PyList_Insert(",
    ),
    NativeMutant(
        "the content of a NumPy argument", "carry.c",
        "        done = copied(scheduler, &carried[i], 0);", "        ;",
    ),
    NativeMutant(
        "what a kernel wrote to a NumPy argument", "carry.c",
        " || !copied(scheduler, &carried[i], 1))", ")",
    ),
    NativeMutant(
        "the wait for a NumPy argument", "carry.c",
        "if (host_waits(scheduler, lane, value) != 1 || ", "if (",
    ),
    NativeMutant(
        "a NumPy argument that is read-only", "carry.c",
        " || !is_writeable(host))", ")",
    ),
    NativeMutant(
        "NumPy arguments that share memory", "carry.c",
        "        if (backs > 1)\n", "        if (0)\n",
        tests="tests/launch/test_numpy_arguments.py",
    ),
    NativeMutant(
        "an interrupt in the search for a temporary", "carry.c",
        "            if (PyErr_Occurred())\n                break;", "            ", tests=_HIP,
    ),
    NativeMutant(
        "a temporary of another shape", "carry.c", "return array_fits(array, host) && is_done",
        "return is_done",
    ),
    NativeMutant(
        "a temporary in flight", "carry.c",
        " && is_done(SLOT(history, History_reads)) &&\n"
        "           is_done(SLOT(history, History_writes));", ";",
    ),
    NativeMutant(
        "a NumPy argument in adopted memory", "carry.c",
        "Py_TYPE(adopted) != is.HostMemory ||\n"
        "        PyDict_GET_SIZE(SLOT(adopted, HostMemory_pieces)) ||\n", "",
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
        "a loss when it waits", "stream.c", "        failed(scheduler);\n", "        ;\n",
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
        "    if (aside.error == NULL)\n"
        "        PySet_Discard(SLOT(shutdown, Shutdown_guests), guest);\n",
        tests=_HIP,
    ),
)  # fmt: skip


def outcome_of(mutant: NativeMutant | None, folder: Path) -> str | None:
    """What the programs or tests say with a mutant, or without; None if they fail or hang."""
    place = folder / (mutant.file_name if mutant else "intact")
    place.mkdir(parents=True)
    sources = mutant.applied(place / "sources") if mutant else build_native.SOURCES
    build_native.build(place, ["-O1", "-w"], sources)
    if mutant is not None and mutant.tests:
        return run_with("pytest", str(place), (*_PYTEST, mutant.tests))
    return run_programs(str(place))


def run_programs(folder: str = "", **settings: str) -> str | None:
    """What the programs say, with the module in a folder."""
    return run_with("tests.native.differential", folder, _PROGRAMS, **settings)


def run_with(module: str, folder: str, words: Sequence[str], **settings: str) -> str | None:
    """What a module prints, with the native module in a folder; None if it fails or hangs."""
    try:
        done = run_module(module, folder, words, **settings)
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode else done.stdout


def run_module(
    module: str, folder: str, words: Sequence[str], limit: float = _LIMIT, **settings: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _RUN, module, folder, *words]
    environment = {**os.environ, "LP_NUM_THREADS": "0", "PENSTOCK_NATIVE": "1", **settings}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=limit, env=environment
    )


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m mutation native", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of mutants, or parts of them (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(words)
    only = arguments.only

    def is_chosen(mutant: NativeMutant) -> bool:
        return not only or any(each in mutant.name for each in only)

    verdicts = [_differential, _disturbed]
    caught = {}
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as made:
        for verdict in verdicts:
            for name, how in verdict(is_chosen, Path(made)):
                caught[name] = how
                if not arguments.json:
                    print(f"{name:<45} {f'caught by {how}' if how else 'SURVIVED'}", flush=True)
    if arguments.json:
        print(json.dumps(caught))
    survivors = sum(not how for how in caught.values())
    print(f"{len(caught) - survivors} of {len(caught)} mutants caught", file=sys.stderr)
    return 1 if survivors else 0


def _differential(
    is_chosen: Callable[[NativeMutant], bool], folder: Path
) -> Iterator[tuple[str, str]]:
    """Each chosen mutant's name, and how the programs caught it ("": not)."""
    chosen = [*filter(is_chosen, NATIVE)]
    if not chosen:
        return
    expected = run_programs(PENSTOCK_NATIVE="0")
    if expected is None:
        raise SystemExit("mutation: the programs break down without the native step")
    if outcome_of(None, folder) != expected:
        raise SystemExit("mutation: the native step differs from Python without any mutant")

    def how_caught(mutant: NativeMutant) -> str:
        try:
            outcome = outcome_of(mutant, folder)
        except build_native.CannotBuild as error:
            print(f"mutation: {mutant.name!r} cannot be built: {error}", file=sys.stderr)
            return ""
        if mutant.tests:
            return "a test" if outcome is None else ""
        if outcome == expected:
            return ""
        return "a crash" if outcome is None else "other calls"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from zip((each.name for each in chosen), pool.map(how_caught, chosen), strict=True)


def _disturbed(
    is_chosen: Callable[[NativeMutant], bool], folder: Path
) -> Iterator[tuple[str, str]]:
    """The same, where the programs are disturbed in the middle."""
    from mutation.disturbed import DISTURBED, survives

    chosen = [each for each in DISTURBED if is_chosen(each.mutant)]
    for words in {each.words for each in chosen}:
        if not survives(None, words, folder / "-".join(words)):
            raise SystemExit(f"mutation: {' '.join(words)} fails without any mutant")
    for mutant, words in chosen:
        lives = survives(mutant, words, folder / mutant.file_name)
        yield mutant.name, "" if lives else " ".join(words)
