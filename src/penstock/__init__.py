"""Penstock feeds a GPU from Python: no copy, allocation or wait that the data does not demand."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import *  # noqa: F403
from penstock.errors import __all__ as _errors

if TYPE_CHECKING:
    from penstock.array.array import Array
    from penstock.device import Device, devices
    from penstock.driver.protocol import DeviceInfo
    from penstock.graph.graph import Graph
    from penstock.launch.kernel import Kernel
    from penstock.launch.result import Result
    from penstock.launch.scratch import Scratch
    from penstock.memory.pool import MemoryStats
    from penstock.ops.elementwise import Elementwise
    from penstock.schedule.event import Event
    from penstock.schedule.pending import Pending
    from penstock.schedule.stream import Stream
    from penstock.tracing.receipt import Point, Trace, TraceEvent, trace

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
    "Array": "array.array",
    "Device": "device",
    "DeviceInfo": "driver.protocol",
    "Elementwise": "ops.elementwise",
    "Event": "schedule.event",
    "Graph": "graph.graph",
    "Kernel": "launch.kernel",
    "MemoryStats": "memory.pool",
    "Pending": "schedule.pending",
    "Point": "tracing.receipt",
    "Result": "launch.result",
    "Scratch": "launch.scratch",
    "Stream": "schedule.stream",
    "Trace": "tracing.receipt",
    "TraceEvent": "tracing.receipt",
    "devices": "device",
    "trace": "tracing.receipt",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"penstock.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
