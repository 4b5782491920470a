"""A build of `penstock._native` for tests, which acts at points inside the C code.

C has no bytecodes, so `penstock.conformance.interrupts` does not see where the native step can be
disturbed. `points.h` says where that is. The C sources need no mark for it: the header replaces the
functions of CPython that allocate, release and call, and `instrumented` puts a point before each
call through a pointer, which is a call of the driver. `test_disturbed.py` fails on a function of
CPython that neither this module nor the header knows.
"""

from __future__ import annotations

import ctypes
import enum
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools import build_native

_HERE = Path(__file__).parent
_DRIVER_CALL = re.compile(r"\b(\w+->(?!tp_)\w+)\(")

#: Functions of CPython at which nothing can happen that `points.h` has to provide for, as regular
#: expressions: they run no Python code, and allocate nothing or only while the module is set up.
HARMLESS = (
    r"Py\w+_(Check|CheckExact|TypeCheck|GET_SIZE|GET_ITEM|SET_ITEM|AS_STRING)",
    r"PyErr_\w+",
    r"Py_(ARRAY_LENGTH|BuildValue|X?INCREF|X?NewRef|TYPE|SIZE|UNUSED|VISIT|CLEAR|X?SETREF)",
    r"Py_(BEGIN|END)_CRITICAL_SECTION|PyUnstable_\w+|PyThread_\w+",
    r"PyEval_GetFrame|PyFrame_Get\w+|PyMemoryView_GET_BUFFER",
    r"PyLong_As\w+|PyFloat_Pack\d|PyBool_FromLong",
    r"PyDict_(GetItem\w*|Next)|PySet_(Contains|Discard)|PyObject_Size",  # of plain keys; of a deque
    r"PyList_SetItem",  # of a number
    r"PyObject_RichCompareBool",  # of tuples of numbers
    r"PyObject_CallMethodO(neArg|bjArgs)",  # methods of a deque, which are written in C
    r"PyVectorcall_NARGS|PyMem_Free",
    r"PyObject_IsTrue",  # of a flag, before a lock is taken
    # While a kernel is made, the module is imported, or an object is deallocated.
    r"PyArg_ParseTuple|PyObject_(GetAttrString|GC_UnTrack)|PyType_\w+|PyModule_\w+|PyInit_\w+",
    r"PyUnicode_\w+|PyDoc_STRVAR|PyVarObject_HEAD_INIT|PyFloat_FromDouble",
    r"PyDict_SetItemString|PyLong_FromUnsignedLongLong",  # in `left`
)


class Kind(enum.IntFlag):
    """What the C code does at a point; as in `points.h`."""

    DRIVER = 1  # it calls the driver
    ALLOCATION = 2
    END = 4  # it drops the last reference to an object
    RELEASE = 8  # it is about to release the interpreter's lock, or has it again
    CALL = 16  # it is about to call a Python function, or that has returned


class Act(enum.IntEnum):
    """What happens at a point; as in `points.c`."""

    SIGNAL = 0  # the process gets SIGINT; its handler runs when CPython looks for signals next
    RAISE = 1  # an allocation or a Python function raises
    CALL = 2  # a function is called, as a finaliser


def instrumented(folder: Path, sources: Path = build_native.SOURCES) -> Path:
    """Copy the sources into a folder, with a point before each call of the driver."""
    folder.mkdir(parents=True)
    for source in sources.glob("*.[ch]"):
        text = _DRIVER_CALL.sub(r"AT_DRIVER(\1)(", source.read_text())
        (folder / source.name).write_text(text)
    for own in ("points.h", "points.c"):
        shutil.copy(_HERE / own, folder)
    return folder


def build(
    folder: Path, sources: Path = build_native.SOURCES, flags: Sequence[str] = ("-O1", "-g")
) -> Path:
    """Compile the module with points into a folder; returns the file."""
    made = instrumented(folder / "instrumented", sources)
    own = ["-include", str(made / "points.h"), f"-fmacro-prefix-map={made}/="]
    return build_native.build(folder, [*flags, *own], made)


class Points:
    """The points of the module that is loaded."""

    def __init__(self) -> None:
        from penstock import accelerator

        assert accelerator.is_native(), accelerator.status
        library = ctypes.PyDLL(accelerator.native.__file__)
        self._start: Any = library.points_start
        self._start.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.py_object)
        self._start.restype = None
        self._stop: Any = library.points_stop
        self._stop.restype = ctypes.c_longlong
        self._place: Any = library.points_place
        self._place.restype = ctypes.c_char_p

    def during(
        self, run: Callable[[], None], kinds: Kind, act: Act, number: int, what: Any = None
    ) -> tuple[int, str]:
        """Run, and act at point `number` of these kinds that the calling thread passes.

        Returns how many were passed, and where it acted ("": nowhere). `what` is raised, or called.
        """
        self._start(int(kinds), int(act), number, what)
        try:
            run()
        finally:
            count: int = self._stop()
        return count, self.place

    @property
    def place(self) -> str:
        """Where it acted last."""
        found: bytes = self._place()
        return found.decode()
