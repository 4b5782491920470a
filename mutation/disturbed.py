"""Safeguards of the native launch against what happens in the middle of it, removed one by one.

The programs without disturbance do the same with these mutants. `tests.native.disturbed` must fail:
it runs out of memory, is interrupted, or lets finalisers and other threads run at each point inside
the C code. `python -m mutation native` runs these after the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mutation.native import NativeMutant, run_with
from tests.native import points
from tools import build_native

_NOTE = """    for (Py_ssize_t i = 0; i < launch->used; i++) {
        PyObject *use = launch->uses[i];
        if (ledger_note("""
_LAUNCHED = """        if (result_launched(result, lane, value) < 0)
            goto end;
"""
_DISPATCH = (
    "    if (record_dispatch(recording, self->program, flat, launch->block, launch->counts) < 0)\n"
    "        goto end;\n"
)


class Disturbed(NamedTuple):
    """A mutant, and the words of `tests.native.disturbed` with which it is caught."""

    mutant: NativeMutant
    words: tuple[str, ...]


DISTURBED = (
    # Before the driver has a launch, the ledger and the result slot must have it.
    Disturbed(
        NativeMutant(
            "noted before it is recorded", "call.c", _DISPATCH, "",
            (("call.c", _NOTE, _DISPATCH + _NOTE),),
        ),
        ("simulator", "interrupt", "many"),
    ),
    Disturbed(
        NativeMutant(
            "a slot taken before it is recorded", "call.c", _LAUNCHED, "",
            (("call.c", _DISPATCH,
              _DISPATCH + "    if (memory != NULL) {\n" + _LAUNCHED + "    }\n"),),
        ),
        ("simulator", "interrupt", "results"),
    ),
    # Whatever fails, nothing stays held or is lost.
    Disturbed(
        NativeMutant(
            "the lock after an exception", "call.c",
            "    lock_left(scheduler);\n    Py_DECREF(scheduler);\n    return result;",
            "    if (!PyErr_Occurred())\n        lock_left(scheduler);\n"
            "    Py_DECREF(scheduler);\n    return result;",
        ),
        ("simulator", "interrupt", "many"),
    ),
    Disturbed(
        NativeMutant(
            "the result of a failed launch", "call.c",
            "    Py_DECREF(result);\n    return NULL;", "    return NULL;",
        ),
        ("simulator", "interrupt", "results"),
    ),
    Disturbed(
        NativeMutant(
            "the bindings of a failed launch", "call.c",
            "    Py_XDECREF(flat);\n", "    if (done)\n        Py_DECREF(flat);\n",
        ),
        ("llvmpipe", "interrupt", "leaks"),
    ),
    Disturbed(
        NativeMutant(
            "the block of a failed launch", "call.c",
            "        Py_XDECREF(launch->block);\n",
            "        if (result != NULL)\n            Py_DECREF(launch->block);\n",
        ),
        ("llvmpipe", "memory", "leaks"),
    ),
    Disturbed(
        NativeMutant(
            "the guest of a wait", "stream.c",
            "    PySet_Discard(SLOT(shutdown, Shutdown_guests), guest);\n", "",
        ),
        ("llvmpipe", "memory", "lone"),
    ),
    # Without memory, Python does the rest, and finds how far it came.
    Disturbed(
        NativeMutant(
            "a batch that is not taken out", "stream.c",
            "opened(policy, batch) == 0 &&\n"
            "               PyList_SetSlice(spare, last, last + 1, NULL) == 0;",
            "opened(policy, batch) == 0;",
            (("stream.c", "        put(batch, Batch_must_publish, Py_False);\n",
              "        if (PyList_SetSlice(spare, last, last + 1, NULL) < 0)\n"
              "            goto end;\n"
              "        put(batch, Batch_must_publish, Py_False);\n"),
             ("stream.c", "    Py_XDECREF(value);\n    Py_XDECREF(zero);\n",
              "end:\n    Py_XDECREF(value);\n    Py_XDECREF(zero);\n")),
        ),
        ("llvmpipe", "memory", "many"),
    ),
    Disturbed(
        NativeMutant(
            "a batch that stays in flight", "stream.c",
            "                PyList_SetSlice(spare, PyList_GET_SIZE(spare) - 1, "
            "PyList_GET_SIZE(spare), NULL);\n", "",
        ),
        ("llvmpipe", "memory", "lone"),
    ),
    Disturbed(
        NativeMutant(
            "that a command buffer has ended", "recorder.c",
            "    int ended = success != NULL && PyList_Append(results, success) == 0;\n"
            "    Py_XDECREF(success);\n"
            "    int32_t result = ended ? recorder->end(recorder->command) : 0;\n",
            "    int32_t result = recorder->end(recorder->command);\n"
            "    int ended = success != NULL && PyList_Append(results, success) == 0;\n"
            "    Py_XDECREF(success);\n",
        ),
        ("llvmpipe", "memory", "many"),
    ),
    Disturbed(
        NativeMutant(
            "that a batch was issued", "recorder.c",
            "    put(timeline, VulkanTimeline_issued, value);\n", "",
        ),
        ("llvmpipe", "memory", "many"),
    ),
    # Other threads run meanwhile.
    Disturbed(
        NativeMutant(
            "a timeline that is released meanwhile", "stream.c",
            "if (number(value) <= number_in(lane, Lane_complete))\n        reached = 1;",
            "if (0)\n        ;",
        ),
        ("llvmpipe", "thread", "closed streams"),
    ),
    Disturbed(
        NativeMutant(
            "a device that is closed meanwhile", "stream.c",
            "int torn = SLOT(shutdown, Shutdown_over) == Py_False ||", "int torn = 1 ||",
        ),
        ("llvmpipe", "thread", "closing"),
    ),
)  # fmt: skip


def survives(mutant: NativeMutant | None, words: tuple[str, ...], folder: Path) -> bool:
    """Whether the programs end well with a mutant in the C source, or without."""
    folder.mkdir(parents=True)
    points.build(folder, mutant.applied(folder / "sources") if mutant else build_native.SOURCES)
    said = run_with("tests.native.disturbed", str(folder), words, PENSTOCK_INTERRUPTS="1")
    return said is not None
