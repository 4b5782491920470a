"""Penstock feeds a GPU from Python: no copy, allocation or wait that the data does not demand."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import *  # noqa: F403
from penstock.errors import __all__ as _errors

if TYPE_CHECKING:
    from penstock.array import Array
    from penstock.device import Device, devices
    from penstock.driver.protocol import DeviceInfo
    from penstock.elementwise import Elementwise
    from penstock.event import Event
    from penstock.graph import Graph
    from penstock.kernel import Kernel
    from penstock.memory import MemoryStats
    from penstock.pending import Pending
    from penstock.result import Result
    from penstock.scratch import Scratch
    from penstock.stream import Stream
    from penstock.tracing import Point, Trace, TraceEvent, trace

__version__ = "0.1.0"

__all__ = [
    "Array",
    "Device",
    "DeviceInfo",
    "Elementwise",
    "Event",
    "Graph",
    "Kernel",
    "MemoryStats",
    "Pending",
    "Point",
    "Result",
    "Scratch",
    "Stream",
    "Trace",
    "TraceEvent",
    "devices",
    "trace",
    *_errors,
]

# Loaded when first used, as the imports above say: the pytest plugin is part of this package, and
# a test suite that has nothing to do with a GPU must not load NumPy on its account.
_HOMES = {
    "Array": "array",
    "Device": "device",
    "DeviceInfo": "driver.protocol",
    "Elementwise": "elementwise",
    "Event": "event",
    "Graph": "graph",
    "Kernel": "kernel",
    "MemoryStats": "memory",
    "Pending": "pending",
    "Point": "tracing",
    "Result": "result",
    "Scratch": "scratch",
    "Stream": "stream",
    "Trace": "tracing",
    "TraceEvent": "tracing",
    "devices": "device",
    "trace": "tracing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"penstock.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
