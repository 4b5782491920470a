"""The native step: C code that does the common case of what Python functions of this package do.

`penstock._native` is optional. The Python functions are the specification, and run alone where the
module is not built or `PENSTOCK_NATIVE=0` is set. The C code works on the objects of the Python
code: a class whose slots it reads or changes is handed to it with `share`, where the class is
defined. A module that was built from other sources than these does not fit, and is not used.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType
from typing import Any, TypeVar

_VERSION = 1  # of what the Python code relies on; `native/module.c` has the same
C = TypeVar("C", bound=type)


def _load() -> tuple[ModuleType | None, str]:
    """The module, if it is to be used, and what to say of it."""
    if os.environ.get("PENSTOCK_NATIVE") == "0":
        return None, "off (PENSTOCK_NATIVE=0)"
    try:
        from penstock import _native  # type: ignore[attr-defined]
    except ImportError as error:
        if error.name != "penstock._native":
            return None, _refuse(str(error))
        return None, "not built; launches are made in Python"
    if _native.VERSION != _VERSION:
        return None, _refuse(f"it has version {_native.VERSION}, and {_VERSION} is needed")
    return _native, "in use"


def _refuse(why: str) -> str:
    warnings.warn(
        f"penstock._native does not fit this version of Penstock ({why}), so launches are made in "
        "Python; build it again with scripts/setup, or install penstock-gpu again",
        RuntimeWarning,
        stacklevel=2,
    )
    return f"refused: {why}"


native: Any
native, status = _load()


def share(class_: C) -> C:
    """Let the native step use the slots of a class. A decorator."""
    global native, status
    if native is not None:
        try:
            native.share(class_)
        except TypeError as error:
            native, status = None, _refuse(str(error))
    return class_


class PythonCallable:
    """The base of `Kernel` where there is no native step."""

    __slots__ = ()

    def _retire(self) -> None:
        """Leave every call to Python from now on."""


Callable: Any = PythonCallable if native is None else native.Callable
